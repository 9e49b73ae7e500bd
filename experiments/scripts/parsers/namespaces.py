"""Parsers that return settings: `argparse` and what is built on it, `jsonargparse` (so LightningCLI), `absl.flags`."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from sacred.utils import iterate_flattened

from sacristan.experiments.scripts.capturing import Capture, watched

# Libraries with an adapter of their own, and that of IPython, whose options are not the script's.
_OTHERS = ("fire", "hydra", "traitlets")


class _Parsing(threading.local):
    """The parsing in progress of a thread: how many parsers are within each other, and what was typed so far."""

    depth = 0
    typed: set[str] = set()  # noqa: RUF012 - replaced, never written to


_now = _Parsing()


@contextlib.contextmanager
def parsing() -> Iterator[set[str] | None]:
    """Yield the set that the names of typed settings go to; None within another parser."""
    is_outermost = not _now.depth
    if is_outermost:
        _now.typed = set()
    _now.depth += 1
    try:
        yield _now.typed if is_outermost else None
    finally:
        _now.depth -= 1


def _is_of_another_parser() -> bool:
    """Return whether a library parses its own options, beside those of the script."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "argparse":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _OTHERS


def attach_argparse(module: ModuleType, capture: Capture) -> None:
    """Watch all parsers: those of subcommands call the same method, within that of the whole."""
    parse, convert = ArgumentParser.parse_known_args, ArgumentParser._get_values

    @functools.wraps(parse)
    def parse_known_args(self: ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        if capture.run is None or _is_of_another_parser():
            return parse(self, *args, **kwargs)
        with parsing() as typed:
            result = parse(self, *args, **kwargs)
        if typed is not None:
            with capture.guarded("argparse", "parse_args"):
                capture.config(result[0], sorted(typed), library="argparse", call="parse_args")
        return result

    @functools.wraps(convert)
    def get_values(self: ArgumentParser, action: Action, words: list[str]) -> Any:
        if _now.depth and action.dest != SUPPRESS and (words or action.option_strings):
            _now.typed.add(action.dest)
        return convert(self, action, words)

    ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]  # it is the point
    ArgumentParser._get_values = get_values  # type: ignore[assignment,method-assign]  # wraps hides the kind


# ---------------------------------------------------------------------- jsonargparse


def attach_jsonargparse(module: Any, capture: Capture) -> None:
    """Watch the method through which all parsers of the library parse a command line."""
    parse = module.ArgumentParser.parse_args

    @functools.wraps(parse)
    def parse_args(self: Any, args: Any = None, *others: Any, **options: Any) -> Any:
        with parsing() as typed:  # it calls the method of argparse, which would tell the names of its options
            found = parse(self, args, *others, **options)
        if typed is not None and capture.run is not None:
            with capture.guarded("jsonargparse", "parse_args"):
                _tell_nested(capture, found, sys.argv[1:] if args is None else args)
        return found

    module.ArgumentParser.parse_args = parse_args


def _tell_nested(capture: Capture, found: Any, words: Any) -> None:
    config = {name: value for name, value in found.as_dict().items() if name not in ("config", "__path__")}
    typed = typed_in([str(word) for word in words], config) if isinstance(words, list | tuple) else []
    capture.config(config, typed, library="jsonargparse", call="parse_args")


# ---------------------------------------------------------------------- absl


def attach_absl(module: Any, capture: Capture) -> None:
    """Watch how flags are parsed: those of the script and its modules, without those of absl itself."""

    def note(_: Any, flags: Any, *__: Any, **___: Any) -> None:
        found = {
            flag.name: flag
            for home, defined in flags.flags_by_module_dict().items()
            if home.partition(".")[0] != "absl"
            for flag in defined
        }
        typed = [name for name, flag in found.items() if flag.present]
        capture.config({name: flag.value for name, flag in found.items()}, typed, library="absl", call="flags")

    module.FlagValues.__call__ = watched(module.FlagValues.__call__, note)


# ---------------------------------------------------------------------- what was typed


def typed_in(words: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """Return the dotted names in a config of options such as `--opt.lr 0.1`, perhaps in a subcommand's group."""
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
