"""`Spec`: the search of a sweep, read from wandb's sweep format.

    method: bayes                       grid, random, bayes (which is tpe), tpe, gp, cma-es, qmc, nsga2;
                                        with options {name: tpe, n_startup_trials: 20}
    metric: {name: val/loss, goal: minimize, target: 0.1}
    metrics: [{name: ...}, ...]         several objectives, instead of metric
    parameters:
      optimizer.lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
      optimizer: {parameters: {momentum: {min: 0.0, max: 0.99, when: {optimizer.name: sgd}}}}
    early_terminate: {type: hyperband, min_iter: 3}
    constraints: [time < 10]            on metrics
    run_cap: 100                        maximum number of points
    seeds: 3                            runs of each point, whose mean is judged
    budget: 2h                          no trial starts later

wandb's format lacks some of these: further methods and rules of early termination, under Optuna's names; `metrics` with
any method but custom; `when`, `constraints`, `seeds`, `budget`. Of wandb's other keys, `name`, `description`, `program`
and `command` are read; `project`, `entity`, `controller`, `apiVersion`, `kind` and the imputation of failed runs have
no effect here, and `Spec.notes` says so; `job`, `image_uri` and `scheduler` are rejected.

wandb's agents start a script by `command`. Agents here start the experiment themselves and pass every parameter as a
setting. So the interpreter, the script and the macros for the parameters are skipped; a fixed setting, `epochs=3` or
`--epochs=3`, becomes a parameter with that value; any other word is rejected.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.configs.files import find_file, load_json, load_yaml
from sacristan.runs.errors import SweepError
from sacristan.runs.query import seconds_of
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec.distributions import DISTRIBUTION_KEYS, Choice, Constant, Integers, Reals
from sacristan.runs.sweeps.spec.fields import (
    Reader,
    anything,
    identity,
    integer,
    items,
    json_value,
    mapping,
    read_fields,
    shown,
    text,
)
from sacristan.runs.sweeps.spec.parameters import Grid, Parameter, read_parameters
from sacristan.runs.sweeps.spec.search import (
    Constraint,
    EarlyTermination,
    Objective,
    read_constraint,
    read_method,
    read_objective,
    read_stopping,
)

__all__ = ["Spec", "read_over", "read_spec", "spec_of"]

_REJECTED = {
    "job": "runs are started from this folder, not as jobs of wandb's Launch; leave it out",
    "image_uri": "runs are started from this folder, not from images; leave it out",
    "scheduler": "the search runs here; name its method, such as method: tpe",
}
_IGNORED = {
    "project": "records stay in their store",
    "entity": "records stay in their store",
    "controller": "agents here need none",
}
_WITHOUT_METRIC = ("grid", "random", "qmc")
_WITHOUT_SEVERAL = ("cma-es",)
_WITHOUT_CONSTRAINTS = ("grid", "random", "cma-es", "qmc")


@dataclasses.dataclass(frozen=True)
class Spec:
    """The search of a sweep."""

    document: dict[str, Any]  # the spec as JSON holds it; `read_spec` returns an equal spec for it
    method: str
    method_options: Mapping[str, Any]  # the options of the method, by their names in Optuna
    parameters: dict[str, Parameter]
    # The metrics to optimize; none in a grid or random search that only tries points.
    objectives: tuple[Objective, ...] = ()
    stopping: EarlyTermination | None = None
    constraints: tuple[Constraint, ...] = ()
    run_cap: int | None = None
    seeds: int = 1
    budget_s: float | None = None
    name: str | None = None
    description: str | None = None
    program: str | None = None
    notes: tuple[str, ...] = ()  # the parts of the spec that have no effect, one sentence each
    before: Spec | None = None  # the spec that this one extends; None in a sweep that was never extended

    @property
    def version(self) -> int:
        """1, and one more for each extension."""
        return 1 if self.before is None else self.before.version + 1

    def at(self, version: int) -> Spec:
        """Return the spec as it was in an earlier version."""
        spec = self
        while spec.version > version and spec.before is not None:
            spec = spec.before
        return spec

    def for_point(self, number: int) -> Spec:
        """Return the version that a new point belongs to: in a grid the first one that has it, else this one."""
        spec = self
        while spec.grid is not None and number < spec.grid.start and spec.before is not None:
            spec = spec.before
        return spec

    @functools.cached_property
    def grid(self) -> Grid | None:
        """The grid's points, with those of earlier versions; None with another method."""
        return (
            Grid(self.parameters, None if self.before is None else self.before.grid) if self.method == "grid" else None
        )

    def choices_of(self, parameter: Parameter) -> Sequence[Any] | None:
        """Return the values that a parameter is chosen from; None if it is a number from a range."""
        if isinstance(parameter.distribution, Constant | Integers):
            return None
        if self.grid is not None:
            return self.grid.values[parameter.name]
        return (
            parameter.distribution.values
            if isinstance(parameter.distribution, Choice) and not parameter.distribution.probabilities
            else None
        )

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """The names of the parameters in Optuna's study, where one name has one kind of value, and the same choices."""
        kinds: dict[str, list[str]] = {}
        labels: dict[str, str] = {}
        for spec in map(self.at, range(1, self.version + 1)):
            for name, parameter in spec.parameters.items():
                kinds_of_name, kind = kinds.setdefault(name, []), spec._kind(parameter)
                if kind not in kinds_of_name:
                    kinds_of_name.append(kind)
                position = kinds_of_name.index(kind)
                labels[name] = f"{name} ({position + 1})" if position else name
        return labels

    def _kind(self, parameter: Parameter) -> str:
        values, distribution = self.choices_of(parameter), parameter.distribution
        if values is not None:
            return identity(list(values))
        return (
            f"{type(distribution).__name__} {distribution.shape} {distribution.q is None}"
            if isinstance(distribution, Reals)
            else type(distribution).__name__
        )

    @property
    def size(self) -> int | None:
        """Number of the grid's points; None with another method."""
        return None if self.grid is None else len(self.grid)

    def limit(self, count: int | None) -> int | None:
        """Return the number of points at which the sweep is done, given its `count`; None without a limit."""
        return min((limit for limit in (self.size, self.run_cap, count) if limit is not None), default=None)

    @property
    def objective_names(self) -> tuple[str, ...]:
        return tuple(objective.name for objective in self.objectives)

    def is_reached(self, values: Sequence[float]) -> bool:
        """Tell whether a run ends the search: its values, in the order of `objectives`, reach every target there is."""
        pairs = zip(self.objectives, values, strict=True)
        reached = [objective.is_reached(value) for objective, value in pairs if objective.target is not None]
        return bool(reached) and all(reached)


# ---------------------------------------------------------------------- sources


def spec_of(definition: Definition) -> Spec:
    """Return the spec of a sweep, with the earlier ones that it extends."""
    return read_spec(definition.spec, [version["spec"] for version in definition.earlier])


def read_spec(source: str | Path | Mapping[str, Any], earlier: Iterable[Mapping[str, Any]] = ()) -> Spec:
    """Read and validate a spec. This starts nothing and loads neither Optuna nor numpy.

    A file of YAML or JSON is in the working folder or one of the lab's `configs/sweeps/`. `earlier` are the specs that
    this one extends, the first one first.
    """
    before = None
    for document in earlier:
        before = _read(json_value("", document), before)
    if isinstance(source, Mapping):
        return _read(json_value("", source), before)
    path = find_file(source)
    try:
        return _read(json_value("", _load(path)), before)
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from error


def read_over(over: Mapping[str, Any], **others: Any) -> Spec:
    """Read the short form of a spec, its parameters alone: `{lr: [1e-3, 1e-2], dropout: {min: 0.0, max: 0.5}}`.

    A list holds the values of a parameter; a mapping is a parameter as in a spec, or holds nested parameters; anything
    else is a single value. The method is grid, unless `others`, without those that are None, name another.
    """
    parameters = _expanded("over", json_value("over", mapping("{lr: [1e-3, 1e-2]}")("over", over)))
    keys = {name: value for name, value in others.items() if value is not None}
    return read_spec({"method": "grid", **keys, "parameters": parameters})


def _expanded(where: str, over: Mapping[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for key, value in over.items():
        if isinstance(value, list):
            parameters[key] = {"values": items("[1e-3, 1e-2]")(f"{where}.{key}", value)}
        elif not isinstance(value, Mapping):
            parameters[key] = {"value": value}
        elif not value or {*DISTRIBUTION_KEYS, "parameters"} & set(value):
            parameters[key] = dict(value)
        else:
            parameters[key] = {"parameters": _expanded(f"{where}.{key}", value)}
    return parameters


def _load(path: Path) -> Any:
    import yaml

    if path.suffix not in (".yaml", ".yml", ".json"):
        raise SweepError(f"got a {path.suffix or 'suffixless'} file, expected .yaml, .yml or .json")
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SweepError("there is no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SweepError(f"cannot be read as text: {error}") from error
    try:
        return load_json(content) if path.suffix == ".json" else load_yaml(content)
    except (ValueError, yaml.YAMLError) as error:
        raise SweepError(f"is not valid {path.suffix[1:].upper()}: {' '.join(str(error).split())}") from error


# ---------------------------------------------------------------------- reading


def _label(where: str, value: Any) -> str | None:
    # wandb's have names such as 2024, which YAML reads as numbers.
    return None if value is None else text()(where, str(value) if isinstance(value, int | float) else value)


def _budget(where: str, value: Any) -> float:
    seconds = seconds_of(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise SweepError(f"{where}: got {shown(value)}, expected a time such as 90m, 2h or 1d12h, or seconds")
    return float(seconds)


def _word(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SweepError(f"{where}: got {shown(value)}, expected text; quote it")
    return value


_READERS: dict[str, Reader] = {
    "method": read_method,
    "metric": read_objective,
    "metrics": items("[{name: val/loss}, {name: time}]", read_objective),
    "parameters": read_parameters,
    "early_terminate": read_stopping,
    "constraints": items("[time < 10]", read_constraint),
    "run_cap": integer(1),
    "seeds": integer(1),
    "budget": _budget,
    "name": _label,
    "description": _label,
    "program": _label,
    "command": items("[${env}, python, ${program}, with, ${args_no_hyphens}]", _word),
    **dict.fromkeys(("project", "entity", "controller", "apiVersion", "kind"), anything),
}
_REQUIRED = dict.fromkeys(("method", "parameters"), "; a sweep needs method, such as random, and parameters")


def _read(document: Any, before: Spec | None = None) -> Spec:
    if not isinstance(document, dict):
        raise SweepError(f"got {shown(document)}, expected a mapping with method and parameters")
    for key, reason in _REJECTED.items():
        if key in document:
            raise SweepError(f"{key}: is not supported: {reason}")
    fields = read_fields("", document, _READERS, "a sweep", _REQUIRED)
    method, method_options = fields["method"]
    parameters, program = fields["parameters"], fields.get("program")
    settings, command_notes = _fixed_settings(fields.get("command", ()), program, parameters)
    parameters |= {name: Parameter(name, Constant(value)) for name, value in settings.items()}
    spec = Spec(
        document,
        method,
        method_options,
        parameters,
        objectives=_objectives(fields),
        stopping=fields.get("early_terminate"),
        constraints=tuple(fields.get("constraints", ())),
        budget_s=fields.get("budget"),
        notes=tuple(_notes(document, method, command_notes)),
        before=before,
        **{key: fields[key] for key in ("run_cap", "seeds", "name", "description", "program") if key in fields},
    )
    _check_objectives(spec)
    _check_parameters(spec)
    return spec


def _objectives(fields: Mapping[str, Any]) -> tuple[Objective, ...]:
    if "metric" in fields and "metrics" in fields:
        raise SweepError("metrics: got metric and metrics, expected one of them; list all objectives in metrics")
    return (fields["metric"],) if "metric" in fields else tuple(fields.get("metrics", ()))


def _notes(document: Mapping[str, Any], method: str, command_notes: Sequence[str]) -> list[str]:
    """Return the parts of a valid document that have no effect, one sentence each."""
    notes = [f"{key} is not used: {reason}" for key, reason in _IGNORED.items() if key in document]
    metrics = document.get("metrics") or [document.get("metric", {})]
    imputed = {key for metric in metrics for key in metric if key.startswith("impute")}
    notes += [
        *command_notes,
        *(f"metric.{key} is not used: failed runs do not guide the search" for key in sorted(imputed)),
    ]
    if "constraints" in document and method in _WITHOUT_CONSTRAINTS:
        notes.append(f"constraints do not guide the method {method}: they only say which points count")
    return notes


def _check_objectives(spec: Spec) -> None:
    names = spec.objective_names
    if not names:
        if spec.stopping or spec.method not in _WITHOUT_METRIC:
            key = "early_terminate" if spec.stopping else f"the method {spec.method}"
            raise SweepError(f"metric: is missing, which {key} needs; add metric: {{name: ..., goal: minimize}}")
    elif len(names) > 1:
        _check_several(spec, names)


def _check_several(spec: Spec, names: Sequence[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise SweepError(f"metrics[{position}].name: got {name!r} twice, expected different metrics; remove one")
    if spec.stopping:
        raise SweepError("early_terminate: judges one metric, got several in metrics; leave out one of the two")
    if spec.method in _WITHOUT_SEVERAL:
        raise SweepError(f"metrics: got several, the method {spec.method} takes one; try nsga2, tpe or gp")


def _check_parameters(spec: Spec) -> None:
    if spec.seeds > 1 and spec.stopping:
        raise SweepError("seeds: the mean of several runs is judged, which early_terminate would cut short; remove one")
    if spec.seeds > 1 and "seed" in spec.parameters:
        raise SweepError("seeds: each point runs on its own seeds, but seed is also a parameter; remove one of them")
    if spec.grid is not None:
        spec.grid.check()
    elif all(isinstance(parameter.distribution, Constant) for parameter in spec.parameters.values()):
        raise SweepError(
            "parameters: all have one value, expected at least one to search; give it values, or min and max"
        )


# The interpreter, and the macros for it and for all parameters.
_SKIPPED = re.compile(
    r"(.*/)?(env|python[0-9.]*)|\$\{(env|interpreter|args(_no_boolean_flags|_no_hyphens|_json|_json_file)?)\}"
)
_PARAMETER = re.compile(r"(?:--)?(?P<name>[A-Za-z_][\w.-]*)=\$\{(?P<macro>[A-Za-z_][\w.-]*)\}")
_SETTING = re.compile(r"(?:--)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>[^$]*)", re.S)
_LITERALS = {"True": True, "False": False, "None": None}


def _fixed_settings(
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
