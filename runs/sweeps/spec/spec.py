"""`Spec`: what a sweep searches, and how, read from wandb's sweep format.

    method: bayes                       grid, random, bayes (which is tpe), tpe, gp, cma-es, qmc, nsga2;
                                        with options {name: tpe, n_startup_trials: 20}
    metric: {name: val/loss, goal: minimize, target: 0.1}
    metrics: [{name: ...}, ...]         in place of metric: several objectives
    parameters:
      optimizer.lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
      optimizer: {parameters: {momentum: {min: 0.0, max: 0.99, when: {optimizer.name: sgd}}}}
    early_terminate: {type: hyperband, min_iter: 3}
    constraints: [time < 10]            on metrics
    run_cap: 100                        points at most
    seeds: 3                            runs for each point, whose mean is judged
    budget: 2h                          no trial is started later

Not in wandb's format are: further methods and rules of early termination, under Optuna's names; `metrics` with any
method but custom; `when`, `constraints`, `seeds`, `budget`. Of wandb's other keys `name`, `description`, `program` and
`command` are read; `project`, `entity`, `controller`, `apiVersion`, `kind` and how failed runs are imputed make no
difference here, which `Spec.notes` says; `job`, `image_uri` and `scheduler` are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.yaml_text import load_yaml
from runs.errors import SweepError
from runs.sweeps.spec.checking import (
    check_choice,
    check_integer,
    check_keys,
    check_list,
    check_mapping,
    check_number,
    check_text,
    plain,
    shown,
)
from runs.sweeps.spec.command import read_command
from runs.sweeps.spec.constraints import Constraint, read_constraints
from runs.sweeps.spec.grids import Grid
from runs.sweeps.spec.laws import LAW_KEYS, Constant
from runs.sweeps.spec.methods import Stopping, read_method, read_stopping
from runs.sweeps.spec.parameters import Parameter, read_parameters

__all__ = ["Objective", "Spec", "read_over", "read_spec"]

_KEYS = (
    "method", "metric", "metrics", "parameters", "early_terminate", "constraints", "run_cap", "seeds", "budget", "name",
    "description", "program", "command", "project", "entity", "controller", "apiVersion", "kind",
)  # fmt: skip
_REFUSED = {
    "job": "runs are started from this folder, not as jobs of wandb's Launch; leave it out",
    "image_uri": "runs are started from this folder, not from images; leave it out",
    "scheduler": "the search runs here; name its method, such as method: tpe",
}
_IGNORED = {
    "project": "records stay in their store",
    "entity": "records stay in their store",
    "controller": "agents here need none",
}
_WITHOUT_SEVERAL = ("cma-es",)
_WITHOUT_CONSTRAINTS = ("grid", "random", "cma-es", "qmc")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


@dataclasses.dataclass(frozen=True)
class Objective:
    """A metric to optimize.

    Attributes:
        name: The metric.
        goal: `minimize` or `maximize`.
        target: A value that is good enough: once a run has reached it no other one is started.
    """

    name: str
    goal: str = "minimize"
    target: float | None = None

    def is_reached(self, value: float) -> bool:
        """Tell whether a value is as good as the target; never if there is none."""
        if self.target is None:
            return False
        return value <= self.target if self.goal == "minimize" else value >= self.target


@dataclasses.dataclass(frozen=True)
class Spec:
    """Definition of the search space and method of a sweep.

    Attributes:
        document: The spec as JSON holds it, which `read_spec` takes again.
        method: The search: `grid`, `random`, `bayes`, or another one of `runs.sweeps.spec.methods.METHODS`.
        method_options: What it is given, by names of Optuna's.
        parameters: By their dotted names, in wandb's order.
        objectives: What is optimized; none in a grid or random search that only tries points.
        stopping: The rule of early termination, if any.
        constraints: What solutions have to meet.
        run_cap: At most as many points are tried; None for no limit.
        seeds: Runs for each point.
        budget_s: Seconds after which no trial is started; None for no limit.
        name, description, program: As the spec has them.
        notes: What the spec says and is not followed, one sentence each.
    """

    document: dict[str, Any]
    method: str
    method_options: Mapping[str, Any]
    parameters: dict[str, Parameter]
    objectives: tuple[Objective, ...] = ()
    stopping: Stopping | None = None
    constraints: tuple[Constraint, ...] = ()
    run_cap: int | None = None
    seeds: int = 1
    budget_s: float | None = None
    name: str | None = None
    description: str | None = None
    program: str | None = None
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def grid(self) -> Grid | None:
        """The grid's points; None with another method."""
        return Grid(self.parameters) if self.method == "grid" else None

    @property
    def size(self) -> int | None:
        """Number of the grid's points; None with another method."""
        return None if self.grid is None else len(self.grid)

    def is_reached(self, values: Sequence[float]) -> bool:
        """Tell whether a run's values, one for each objective, reach all targets, of which there is at least one."""
        aimed = [(goal, value) for goal, value in zip(self.objectives, values, strict=True) if goal.target is not None]
        return bool(aimed) and all(objective.is_reached(value) for objective, value in aimed)


# ---------------------------------------------------------------------- reading


def read_spec(source: str | Path | Mapping[str, Any]) -> Spec:
    """Return the spec in a file of YAML or JSON, or in a mapping of the same form.

    Raises:
        SweepError: If there is no such file, or the spec makes no sense; the message names the key.
    """
    if isinstance(source, Mapping):
        return _read(plain("", source))
    path = Path(source)
    try:
        return _read(plain("", _load(path)))
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from error


def read_over(over: Mapping[str, Any], **others: Any) -> Spec:
    """Return the spec of a search over a few parameters: `{lr: [1e-3, 1e-2], dropout: {min: 0.0, max: 0.5}}`.

    A list holds the values of a parameter, a mapping is that of a spec, or holds parameters, and anything else is one
    value. The method is grid, unless `others` names it.

    Args:
        over: The parameters.
        **others: Further keys of the spec, such as `metric`; those that are None are left out.

    Raises:
        SweepError: If they make no spec.
    """
    parameters = _over("over", plain("over", check_mapping("over", over, "{lr: [1e-3, 1e-2]}")))
    given = {name: value for name, value in others.items() if value is not None}
    return read_spec({"method": "grid", **given, "parameters": parameters})


def _over(where: str, document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, list):
            found[key] = {"values": check_list(f"{where}.{key}", value, "[1e-3, 1e-2]")}
        elif not isinstance(value, Mapping):
            found[key] = {"value": value}
        elif not value or {*LAW_KEYS, "parameters"} & set(value):
            found[key] = dict(value)
        else:
            found[key] = {"parameters": _over(f"{where}.{key}", value)}
    return found


def _load(path: Path) -> Any:
    import yaml

    if path.suffix not in (".yaml", ".yml", ".json"):
        raise SweepError(f"got a {path.suffix or 'suffixless'} file, expected .yaml, .yml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SweepError("there is no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SweepError(f"cannot be read as text: {error}") from error
    try:
        return json.loads(text) if path.suffix == ".json" else load_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise SweepError(f"is not valid {path.suffix[1:].upper()}: {' '.join(str(error).split())}") from error


def _read(document: Any) -> Spec:
    if not isinstance(document, dict):
        raise SweepError(f"got {shown(document)}, expected a mapping with method and parameters")
    for key, reason in _REFUSED.items():
        if key in document:
            raise SweepError(f"{key}: is not supported: {reason}")
    check_keys("", document, _KEYS, "a sweep")
    for key in ("method", "parameters"):
        if key not in document:
            raise SweepError(f"{key}: is missing; a sweep needs method, such as random, and parameters")
    parameters = read_parameters(document["parameters"])
    program, notes = (
        _text(document, "program"),
        [f"{key} is not used: {_IGNORED[key]}" for key in _IGNORED if key in document],
    )
    if "command" in document:
        fixed, said = read_command(document["command"], program, parameters)
        parameters |= {name: Parameter(name, Constant(value)) for name, value in fixed.items()}
        notes += said
    objectives, said = _objectives(document)
    method, method_options = read_method(document["method"])
    spec = Spec(
        document=document,
        method=method,
        method_options=method_options,
        parameters=parameters,
        objectives=objectives,
        stopping=read_stopping(document["early_terminate"]) if "early_terminate" in document else None,
        constraints=read_constraints(document["constraints"]) if "constraints" in document else (),
        run_cap=check_integer("run_cap", document["run_cap"], least=1) if "run_cap" in document else None,
        seeds=check_integer("seeds", document.get("seeds", 1), least=1),
        budget_s=_budget(document["budget"]) if "budget" in document else None,
        name=_text(document, "name"),
        description=_text(document, "description"),
        program=program,
    )
    _check_together(spec)
    if spec.constraints and spec.method in _WITHOUT_CONSTRAINTS:
        said.append(f"constraints do not guide the method {spec.method}: they only say which points count")
    return dataclasses.replace(spec, notes=(*notes, *said))


def _text(document: Mapping[str, Any], key: str) -> str | None:
    # wandb's have names such as 2024, which YAML reads as numbers.
    value = document.get(key)
    return check_text(key, str(value) if isinstance(value, int | float) else value) if value is not None else None


def _objectives(document: Mapping[str, Any]) -> tuple[tuple[Objective, ...], list[str]]:
    """Return the objectives of `metric` or `metrics`, and notes."""
    if "metric" in document and "metrics" in document:
        raise SweepError("metrics: got metric and metrics, expected one of them; list all objectives in metrics")
    if "metrics" in document:
        given = check_list("metrics", document["metrics"], "[{name: val/loss}, {name: time}]")
        places = [(f"metrics[{position}]", entry) for position, entry in enumerate(given)]
    else:
        places = [("metric", document["metric"])] if "metric" in document else []
    found = tuple(_objective(where, entry) for where, entry in places)
    names = [objective.name for objective in found]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise SweepError(f"metrics[{position}].name: got {name!r} twice, expected different metrics; remove one")
    imputed = {key for _, entry in places for key in entry if key.startswith("impute")}
    return found, [f"metric.{key} is not used: a failed run tells the search nothing" for key in sorted(imputed)]


def _objective(where: str, entry: Any) -> Objective:
    if isinstance(entry, str):
        raise SweepError(f"{where}: got {shown(entry)}, expected a mapping; write {where}: {{name: {entry}}}")
    check_mapping(where, entry, "{name: val/loss, goal: minimize}")
    check_keys(where, entry, ("name", "goal", "target", "impute", "impute_while_running"), "a metric")
    if "name" not in entry:
        raise SweepError(f"{where}.name: is missing, the name of a metric that runs log")
    return Objective(
        check_text(f"{where}.name", entry["name"], "the name of a metric that runs log"),
        check_choice(f"{where}.goal", entry.get("goal", "minimize"), ("minimize", "maximize")),
        check_number(f"{where}.target", entry["target"]) if "target" in entry else None,
    )


def _budget(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    text = value.replace(" ", "") if isinstance(value, str) else ""
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _BUDGET.findall(text))
    if seconds <= 0 or _BUDGET.sub("", text):
        raise SweepError(f"budget: got {shown(value)}, expected a time such as 90m, 2h or 1d12h, or seconds")
    return seconds


def _check_together(spec: Spec) -> None:
    """Refuse keys that do not go together."""
    method = spec.method
    if not spec.objectives and (method not in ("grid", "random", "qmc") or spec.stopping):
        what = "early_terminate" if spec.stopping else f"the method {method}"
        raise SweepError(f"metric: is missing, which {what} needs; add metric: {{name: ..., goal: minimize}}")
    if len(spec.objectives) > 1:
        if spec.stopping:
            raise SweepError("early_terminate: judges one metric, got several in metrics; leave out one of the two")
        if method in _WITHOUT_SEVERAL:
            raise SweepError(f"metrics: got several, the method {method} takes one; try nsga2, tpe or gp")
    if spec.stopping and spec.seeds > 1:
        raise SweepError("seeds: the mean of several runs is judged, which early_terminate would cut short; remove one")
    if spec.seeds > 1 and "seed" in spec.parameters:
        raise SweepError("seeds: each point runs on seeds of its own, but seed is a parameter, too; remove one of them")
    if method != "grid" and all(isinstance(parameter.law, Constant) for parameter in spec.parameters.values()):
        raise SweepError(
            "parameters: all have one value, expected one to search at least; give it values, or min and max"
        )
    if spec.grid is not None:
        spec.grid.check()
