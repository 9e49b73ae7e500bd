"""`argparse`, and what is built on it: the namespace of the outermost parser is the config."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sacristan.experiments.scripts.capturing import Capture

__all__ = ["attach", "parsing"]


# Libraries with an adapter of their own.
_OTHERS = ("fire", "hydra")


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


def attach(module: ModuleType, capture: Capture) -> None:
    """Watch all parsers: those of subcommands call the same method, within that of the whole."""
    parse, convert = ArgumentParser.parse_known_args, ArgumentParser._get_values

    @functools.wraps(parse)
    def parse_known_args(self: ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        if capture.run is None or _is_of_another_parser():
            return parse(self, *args, **kwargs)
        with parsing() as typed:
            result = parse(self, *args, **kwargs)
        if typed is not None:
            with contextlib.suppress(Exception):  # whatever a namespace of the script's own holds
                capture.config(vars(result[0]), sorted(typed), library="argparse", call="parse_args")
        return result

    @functools.wraps(convert)
    def get_values(self: ArgumentParser, action: Action, words: list[str]) -> Any:
        if _now.depth and action.dest != SUPPRESS and (words or action.option_strings):
            _now.typed.add(action.dest)
        return convert(self, action, words)

    ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]  # it is the point
    ArgumentParser._get_values = get_values  # type: ignore[assignment,method-assign]  # wraps hides the kind
