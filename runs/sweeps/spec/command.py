"""wandb's `command`: how its agents start a script.

A sweep here starts the experiment itself, with all parameters as settings. So what only says that is read and done
with: the interpreter, the script, and the macros for the parameters. A fixed setting, `epochs=3` or `--epochs=3`,
becomes a parameter with that value. All else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from configs.yaml_text import load_yaml
from runs.errors import SweepError
from runs.sweeps.spec.checking import check_list, shown

__all__ = ["read_command"]

_INTERPRETER = re.compile(r"(.*/)?(env|python[0-9.]*)|\$\{(env|interpreter)\}")
_ARGS = re.compile(r"\$\{args(_no_boolean_flags|_no_hyphens|_json|_json_file)?\}")
_PARAMETER = re.compile(r"(?:--)?(?P<name>[A-Za-z_][\w.-]*)=\$\{(?P<macro>[A-Za-z_][\w.-]*)\}")
_SETTING = re.compile(r"(?:--)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>[^$]*)", re.S)
_EXAMPLE = "[${env}, python, ${program}, with, ${args_no_hyphens}]"


def read_command(value: Any, program: str | None, parameters: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the fixed settings of a command by their names, and notes on what makes no difference here.

    Args:
        value: The list of words.
        program: The script of the spec.
        parameters: The names of the spec's parameters.

    Raises:
        SweepError: If a word asks for something that runs are not started with.
    """
    settings: dict[str, Any] = {}
    notes = []
    for position, word in enumerate(check_list("command", value, _EXAMPLE)):
        where = f"command[{position}]"
        if not isinstance(word, str):
            raise SweepError(f"{where}: got {shown(word)}, expected text; quote it")
        if _INTERPRETER.fullmatch(word) or _ARGS.fullmatch(word) or word in ("${program}", "with", program):
            continue
        if match := _PARAMETER.fullmatch(word):
            if match["macro"] not in parameters:
                notes.append(f"{where}: {word} names no parameter of the sweep, so runs keep the default")
            continue
        match = _SETTING.fullmatch(word)
        if match is None:
            raise SweepError(
                f"{where}: got {shown(word)}, which runs cannot be started with; expected settings such as epochs=3 "
                "beside the macros, or leave out command: each run gets its parameters as settings"
            )
        if match["name"] in parameters or match["name"] in settings:
            raise SweepError(f"{where}: got {shown(word)}, but {match['name']} has a value already; remove one of them")
        settings[match["name"]] = _value(where, word, match["value"])
    return settings, notes


def _value(where: str, word: str, text: str) -> Any:
    import yaml

    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise SweepError(f"{where}: got {shown(word)}, expected NAME=VALUE; put a text in quotes") from error
