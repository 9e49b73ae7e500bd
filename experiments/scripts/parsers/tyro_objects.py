"""`tyro`: the fields of the object that `tyro.cli` returns, or the arguments of the function that it calls."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from sacristan.experiments.running.computed_config import as_setting
from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.parsers.typed_words import typed_in

__all__ = ["attach"]


def attach(module: Any, capture: Capture) -> None:
    """Watch `tyro.cli`; the arguments of a function are known when it begins."""

    def note(config: Any, args: Any) -> None:
        words = sys.argv[1:] if args is None else list(args)
        settings = as_setting(config)
        if isinstance(settings, dict):
            capture.config(settings, typed_in(words, settings), library="tyro", call="cli")

    def note_result(result: Any, f: Any, *_: Any, args: Any = None, **options: Any) -> None:
        if not inspect.isroutine(f):
            note(result[0] if options.get("return_unknown_args") else result, args)

    watched_cli = watched(module.cli, note_result)

    def cli(f: Any, *others: Any, **options: Any) -> Any:
        if inspect.isroutine(f) and capture.run is not None:
            f = _noting(f, lambda config: note(config, options.get("args")))
        return watched_cli(f, *others, **options)

    module.cli = cli


def _noting(function: Any, note: Any) -> Any:
    """Return a function that tells its arguments when it is called."""
    import functools

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        watched(lambda: None, lambda _: note(dict(bound.arguments)))()
        return function(*args, **kwargs)

    return call
