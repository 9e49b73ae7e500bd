"""Sweeps: their `Definition`, with which any agent that reaches it can work on one; and the words of a trial.

The words of a script in the command of a trial are its own, and the parameters, by the macros of wandb's `command`:

| macro | words |
| --- | --- |
| ${args} | --lr=0.1 --amp=True |
| ${args_no_boolean_flags} | --lr=0.1 --amp, and nothing for a parameter that is False |
| ${args_no_hyphens} | lr=0.1 amp=True |
| ${args_json} | {"lr": 0.1, "amp": true} |
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.runs.errors import SweepError

__all__ = ["Definition", "script_words", "setting_words", "with_macro"]

# A sweep that was extended, or whose failed points run again, has the second one; that of a script, the third one.
FORMATS = ("sacristan-sweep-1", "sacristan-sweep-2", "sacristan-sweep-3")


@dataclasses.dataclass(frozen=True)
class Definition:
    """The facts about a sweep that every agent needs. The question that the sweep asks never changes.

    An extension replaces `spec`, and keeps the one before, so that points of each version can be read.
    """

    id: str
    experiment: str
    spec: dict[str, Any]
    script: str  # the main file, relative to `base` where it is below it
    module: str  # the main module, if the experiment is started as a module; else empty
    base: str  # the folder of the experiment's sources where `sweep.run` was last given
    cwd: str  # the folder that trials start in on that machine
    # Settings that all trials share: named configs and assignments, as after `with`. Of a script, its words, with
    # macros for the parameters.
    settings: tuple[str, ...]
    options: tuple[str, ...]  # options of the experiment's command line that all trials share, without the database
    seed: int  # seed of the sampler, and the first seed of each trial that has several
    count: int | None  # maximum number of points; None for all of a grid, or no limit
    storage: str  # URL of an Optuna storage for the study; empty for the sweep's own journal
    created: str
    # What was extended, the first version first: `spec`, `count`, and the time, `until`.
    earlier: tuple[dict[str, Any], ...] = ()
    # Whether failed points were ever given to agents again, each as a further trial of Optuna's.
    has_retried: bool = False
    # Whether the runs are those of a script, as `sacristan run` starts it, and not of an experiment.
    is_script: bool = False

    @staticmethod
    def id_of(experiment: str, spec: Mapping[str, Any], settings: tuple[str, ...], seed: int) -> str:
        """Derive the id of a sweep that was given none, so that the same command finds the same sweep.

        It has eight hexadecimal digits, at least one of them a letter other than e: where it is typed, YAML would read
        1234e567 as a number.
        """
        question = {key: value for key, value in spec.items() if key not in ("run_cap", "name", "description")}
        text = json.dumps([experiment, question, settings, seed], sort_keys=True, default=str)
        digits = hashlib.sha256(text.encode()).hexdigest()
        starts = (start for start in range(len(digits) - 7) if set(digits[start : start + 8]) & set("abcdf"))
        start = next(starts, 0)
        return digits[start : start + 8]

    @property
    def id_option(self) -> str:
        """The option that names a sweep, as messages call it."""
        return "--id" if self.is_script else "sweep.id"

    def action(self, name: str) -> str:
        """Return the command that does something with the sweep, such as `stop`, as messages name it."""
        return f"sacristan sweep {name} --id {self.id}" if self.is_script else f"sweep.{name} with sweep.id={self.id}"

    @property
    def path(self) -> Path:
        return Path(self.base) / self.script

    def words_of(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return what follows the program on the command line of a run, without options."""
        if self.is_script:
            return script_words(self.settings, parameters)
        words = self.settings_of(parameters)
        return ["with", *words] if words else []

    @property
    def script_program(self) -> list[str]:
        """The script or module as `sacristan run` takes it: relative to `cwd` if it is below that."""
        if self.module:
            return ["-m", self.module]
        return [str(self.path.relative_to(self.cwd) if self.path.is_relative_to(self.cwd) else self.path)]

    def command_line(self, parameters: Mapping[str, Any]) -> str:
        """Return the command that runs a point again, quoted for a shell."""
        if self.is_script:
            return shlex.join(["sacristan", "run", *self.script_program, *self.words_of(parameters)])
        start = ["-m", self.module] if self.module else [self.script]
        return shlex.join(["python", *start, *self.words_of(parameters)])

    def settings_of(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return the settings of a run, as after `with`: the shared ones, then its parameters, given by dotted key."""
        shared = [word for word in self.settings if word.partition("=")[0] not in parameters]
        return [*shared, *setting_words(parameters)]

    def check_parameters(self, names: Iterable[str]) -> None:
        """Reject parameters that runs cannot vary: settings of the sweep itself or fixed by a shared setting."""
        if self.is_script:
            fixed = {word.partition("=")[0].lstrip("-"): word for word in self.settings if word.startswith("--")}
        else:
            fixed = {word.partition("=")[0].strip(): word for word in self.settings if "=" in word}
        for name in names:
            if name.partition(".")[0] == "sweep":
                raise SweepError(
                    f"{name}: is a setting of the sweep itself, expected settings of its runs; give it as {name}=..."
                )
            for key, word in fixed.items():
                if name == key or name.startswith(f"{key}.") or key.startswith(f"{name}."):
                    raise SweepError(f"{name}: is searched, but {word} is fixed for all runs; leave one of them out")

    def located(self, lab: Path) -> Definition:
        """Return the definition for a machine with the sources in `lab`; a `cwd` below `base` moves with them."""
        if str(lab) == self.base:
            return self
        cwd = Path(self.cwd)
        below = cwd.relative_to(self.base) if cwd.is_relative_to(self.base) else Path()
        return dataclasses.replace(self, base=str(lab), cwd=str(lab / below))

    def document(self) -> dict[str, Any]:
        document = dataclasses.asdict(self)
        lists = {name: list(document[name]) for name in ("settings", "options", "earlier")}
        number = 2 if self.is_script else int(bool(self.earlier or self.has_retried))
        document = {"format": FORMATS[number], **document, **lists}
        # Earlier versions of the lab know none of these, and read all others.
        later = ("earlier", "has_retried", "is_script")
        return {name: value for name, value in document.items() if value or name not in later}

    @classmethod
    def of(cls, document: Mapping[str, Any], where: str) -> Definition:
        """Read a stored definition; messages call the place `where`."""
        expected = "expected a sweep that this version wrote"
        if not isinstance(document, Mapping):
            raise SweepError(f"{where}: got {document!r}, {expected}")
        if (written := document.get("format", FORMATS[0])) not in FORMATS:  # the first versions wrote none
            use = "use the version of the lab that started the sweep"
            raise SweepError(f"{where}: its format is {written!r}, this version reads up to {FORMATS[-1]}; {use}")
        document = {"earlier": [], "has_retried": False, "is_script": False, **document}
        names = [field.name for field in dataclasses.fields(cls)]
        if missing := [name for name in names if name not in document]:
            raise SweepError(f"{where}: got a sweep without {missing[0]!r}, {expected}")
        fields = {name: document[name] for name in names}
        lists = ("settings", "options", "earlier")
        for name, kind in (("id", str), ("spec", Mapping), *((name, list) for name in lists), ("seed", int)):
            if not isinstance(fields[name], kind):
                raise SweepError(f"{where}: got {fields[name]!r} as {name!r}, {expected}")
        for version in fields["earlier"]:
            if not isinstance(version, Mapping) or not isinstance(version.get("spec"), Mapping):
                raise SweepError(f"{where}: got {version!r} in 'earlier', {expected}")
        return cls(**fields | {name: tuple(fields[name]) for name in lists})


def setting_words(parameters: Mapping[str, Any]) -> list[str]:
    """Return parameters as settings for the command line, such as `lr=0.1`."""
    return [f"{key}={_setting_text(value)}" for key, value in parameters.items()]


def _setting_text(value: Any) -> str:
    """Return a value as the command line needs it, so that Sacred reads the same value back."""
    if not isinstance(value, str):
        return _literal(value)
    if value != value.strip():
        return repr(value)  # Sacred strips what is bare
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    except (TypeError, MemoryError, RecursionError):
        pass  # which Sacred would not survive either
    return repr(value)  # a text that would be read as something else


def _literal(value: Any) -> str:
    """Return a value as a Python literal, which has no word for infinity."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)


_USUAL_MACRO = "${args_no_boolean_flags}"


def script_words(words: Sequence[str], parameters: Mapping[str, Any]) -> list[str]:
    """Return words with their macros replaced by parameters, which are given by dotted name."""
    return [each for word in words for each in (_MACROS[word](parameters) if word in _MACROS else [word])]


def with_macro(words: Sequence[str], document: Mapping[str, Any]) -> list[str]:
    """Return words with a macro for the parameters: their own, that of a spec's `command`, or the usual one."""
    if any(word in _MACROS for word in words):
        return [*words]
    macros = [word for word in document.get("command", ()) if word.startswith("${args")]
    if unknown := [macro for macro in macros if macro not in _MACROS]:
        raise SweepError(f"command: {unknown[0]} is not supported; expected one of: {', '.join(_MACROS)}")
    return [*words, *(macros or ["${args}" if "program" in document else _USUAL_MACRO])]


def _assigned(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in parameters.items()]


def _options(parameters: Mapping[str, Any]) -> list[str]:
    return [f"--{word}" for word in _assigned(parameters)]


def _flags(parameters: Mapping[str, Any]) -> list[str]:
    flags_and_values = {name: value for name, value in parameters.items() if value is not False}
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags_and_values.items()]


def _json(parameters: Mapping[str, Any]) -> list[str]:
    return [json.dumps(dict(parameters))]


_MACROS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "${args}": _options,
    _USUAL_MACRO: _flags,
    "${args_no_hyphens}": _assigned,
    "${args_json}": _json,
}
