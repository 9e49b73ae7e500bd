"""Fire: the arguments that it calls functions and classes with, defaults included."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any

from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.parsers.typed_words import typed_in

__all__ = ["attach"]


def attach(module: Any, capture: Capture) -> None:
    """Watch what its core parses for a call."""
    make = module._MakeParseFn

    @functools.wraps(make)
    def make_parse_function(function: Any, metadata: Any) -> Any:
        def note(result: Any, _: Any) -> None:
            (args, kwargs), consumed = result[:2]
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            config, words = dict(bound.arguments), [str(word) for word in consumed]
            num_positional = len(list(itertools.takewhile(lambda word: not word.startswith("-"), words)))
            if config:
                typed = {*typed_in(words, config), *[*config][:num_positional]}
                capture.config(config, sorted(typed), library="fire", call="Fire")

        return watched(make(function, metadata), note)

    module._MakeParseFn = make_parse_function
