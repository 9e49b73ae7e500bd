"""The words of a script in the command of a trial: its own, and the parameters, by the macros of wandb's `command`.

| macro | words |
| --- | --- |
| ${args} | --lr=0.1 --amp=True |
| ${args_no_boolean_flags} | --lr=0.1 --amp, and nothing for a parameter that is False |
| ${args_no_hyphens} | lr=0.1 amp=True |
| ${args_json} | {"lr": 0.1, "amp": true} |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sacristan.runs.errors import SweepError

__all__ = ["USUAL_MACRO", "script_words", "with_macro"]

USUAL_MACRO = "${args_no_boolean_flags}"


def script_words(words: Sequence[str], parameters: Mapping[str, Any]) -> list[str]:
    """Return words with their macros replaced by parameters, which are given by dotted name."""
    return [each for word in words for each in (_MACROS[word](parameters) if word in _MACROS else [word])]


def with_macro(words: Sequence[str], document: Mapping[str, Any]) -> list[str]:
    """Return words that have a macro for the parameters: their own, that of a spec's `command`, or the usual one.

    A spec with a `program`, and no macro in its `command`, is meant for wandb, whose usual one is ${args}.
    """
    if any(word in _MACROS for word in words):
        return [*words]
    macros = [word for word in document.get("command", ()) if word.startswith("${args")]
    if unknown := [macro for macro in macros if macro not in _MACROS]:
        raise SweepError(f"command: {unknown[0]} is not supported; expected one of: {', '.join(_MACROS)}")
    return [*words, *(macros or ["${args}" if "program" in document else USUAL_MACRO])]


def _assigned(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in parameters.items()]


def _options(parameters: Mapping[str, Any]) -> list[str]:
    return [f"--{word}" for word in _assigned(parameters)]


def _flags(parameters: Mapping[str, Any]) -> list[str]:
    given = {name: value for name, value in parameters.items() if value is not False}
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]


def _json(parameters: Mapping[str, Any]) -> list[str]:
    return [json.dumps(dict(parameters))]


_MACROS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "${args}": _options,
    USUAL_MACRO: _flags,
    "${args_no_hyphens}": _assigned,
    "${args_json}": _json,
}
