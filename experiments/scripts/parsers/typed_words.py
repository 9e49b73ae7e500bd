"""Which settings of a known config the words of a command line name, for parsers that do not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sacred.utils import iterate_flattened

__all__ = ["typed_in"]


def typed_in(words: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """Return the dotted names in a config that options such as `--opt.lr 0.1` and `--no-verbose` name.

    The options of a subcommand may be in a group of its name.
    """
    names = {_plain(name): name for name, _ in iterate_flattened(config)}
    named = [_plain(word.lstrip("-").partition("=")[0]) for word in words if word.startswith("-")]
    groups = ["", *(f"{_plain(word)}." for word in words if _plain(word) in config)]
    found = {group + form for word in named for form in _forms(word) for group in groups}
    return sorted(names[each] for each in found if each in names)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _forms(name: str) -> Iterable[str]:
    """Return an option's name, and that of the flag which it negates."""
    *groups, last = name.split(".")
    return name, ".".join([*groups, last.removeprefix("no_")]), name.removeprefix("no_")
