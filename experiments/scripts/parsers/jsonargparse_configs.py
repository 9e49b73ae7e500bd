"""`jsonargparse`, Lightning's CLI above all: the nested namespace that its parser returns, config files included."""

from __future__ import annotations

import functools
import sys
from typing import Any

from sacristan.experiments.scripts.capturing import Capture
from sacristan.experiments.scripts.parsers.argparse_namespaces import parsing
from sacristan.experiments.scripts.parsers.typed_words import typed_in

__all__ = ["attach"]


def attach(module: Any, capture: Capture) -> None:
    """Watch the method through which all parsers of the library parse a command line."""
    parse = module.ArgumentParser.parse_args

    @functools.wraps(parse)
    def parse_args(self: Any, args: Any = None, *others: Any, **options: Any) -> Any:
        with parsing() as typed:  # it calls the method of argparse, which would tell the names of its options
            found = parse(self, args, *others, **options)
        if typed is not None and capture.run is not None:
            _tell(capture, found, sys.argv[1:] if args is None else args)
        return found

    module.ArgumentParser.parse_args = parse_args


def _tell(capture: Capture, found: Any, words: Any) -> None:
    try:
        config = {name: value for name, value in found.as_dict().items() if name not in ("config", "__path__")}
        typed = typed_in([str(word) for word in words], config) if isinstance(words, list | tuple) else []
        capture.config(config, typed, library="jsonargparse", call="parse_args")
    except Exception:  # whatever a namespace of the script's own holds
        capture.unknown("jsonargparse", "parse_args")
