"""wandb's `command`: how wandb's agents start a script.

Agents here start the experiment themselves and pass every parameter as a setting. So the interpreter, the script and
the macros for the parameters are skipped; a fixed setting, `epochs=3` or `--epochs=3`, becomes a parameter with that
value; any other word is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from sacristan.configs.files import load_yaml
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import items, shown

__all__ = ["fixed_settings", "read_words"]

# The interpreter, and the macros for it and for all parameters.
_SKIPPED = re.compile(
    r"(.*/)?(env|python[0-9.]*)|\$\{(env|interpreter|args(_no_boolean_flags|_no_hyphens|_json|_json_file)?)\}"
)
_PARAMETER = re.compile(r"(?:--)?(?P<name>[A-Za-z_][\w.-]*)=\$\{(?P<macro>[A-Za-z_][\w.-]*)\}")
_SETTING = re.compile(r"(?:--)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>[^$]*)", re.S)
_LITERALS = {"True": True, "False": False, "None": None}


def _word(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SweepError(f"{where}: got {shown(value)}, expected text; quote it")
    return value


_read_list = items("[${env}, python, ${program}, with, ${args_no_hyphens}]", _word)


def read_words(where: str, value: Any) -> list[str]:
    """Read the words of a command, a list of texts that is not empty."""
    return _read_list(where, value)


def fixed_settings(
    words: Sequence[str], program: str | None, parameters: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a command fixes, by name, and notes on words that have no effect here."""
    settings: dict[str, Any] = {}
    notes = []
    for position, word in enumerate(words):
        where = f"command[{position}]"
        if word in ("${program}", "with", program) or _SKIPPED.fullmatch(word):
            continue
        if match := _PARAMETER.fullmatch(word):
            if match["macro"] not in parameters:
                notes.append(f"{where}: {word} names no parameter of the sweep, so runs keep the default")
            continue
        name, value = _setting(where, word)
        if name in parameters or name in settings:
            raise SweepError(f"{where}: got {shown(word)}, but {name} has a value already; remove one of them")
        settings[name] = value
    return settings, notes


def _setting(where: str, word: str) -> tuple[str, Any]:
    import yaml

    match = _SETTING.fullmatch(word)
    if match is None:
        raise SweepError(
            f"{where}: got {shown(word)}, which runs cannot be started with; expected settings such as epochs=3 "
            "beside the macros, or leave out command: each run gets its parameters as settings"
        )
    name, value = match.groups()
    try:
        return name, _LITERALS[value] if value in _LITERALS else load_yaml(value)
    except yaml.YAMLError as error:
        raise SweepError(f"{where}: got {shown(word)}, expected NAME=VALUE; put a text in quotes") from error
