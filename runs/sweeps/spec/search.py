"""How a sweep searches: objectives and constraints, the method, and the rule of early termination.

    method: {name: tpe, n_startup_trials: 20}
    metric: {name: val/loss, goal: minimize, target: 0.1}
    constraints: [time < 10]
    early_terminate: {type: hyperband, min_iter: 3}

A constraint is NAME OPERATOR NUMBER. The operator is <, <=, > or >=; the name is that of a metric and may hold any
other character. `sacristan.runs.sweeps.study` turns methods and rules into Optuna's objects.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import (
    Reader,
    anything,
    choice,
    flag,
    integer,
    listing,
    mapping,
    number,
    read_fields,
    shown,
    text,
)

_FORM = re.compile(r"\s*(?P<metric>[^\s<>=!](?:[^<>=!]*[^\s<>=!])?)\s*(?P<operator><=|>=|<|>)\s*(?P<bound>\S+)\s*")
_METRIC_NAME = "the name of a metric that runs log"


@dataclasses.dataclass(frozen=True)
class Objective:
    """A metric to minimize or maximize; once a run reaches its `target`, no other run is started."""

    name: str
    goal: str = "minimize"
    target: float | None = None

    def is_reached(self, value: float) -> bool:
        """Tell whether a value is as good as the target; always False without a target, or for nan."""
        if self.target is None:
            return False
        return value <= self.target if self.goal == "minimize" else value >= self.target


_OBJECTIVE = {
    "name": text(_METRIC_NAME),
    "goal": choice("minimize", "maximize"),
    "target": number(),
    "impute": anything,
    "impute_while_running": anything,
}


def read_objective(where: str, value: Any) -> Objective:
    """Read an objective from a mapping with `name`, `goal` and `target`; wandb's `impute` keys are ignored."""
    if isinstance(value, str):
        raise SweepError(f"{where}: got {shown(value)}, expected a mapping; write {where}: {{name: {value}}}")
    document = mapping("{name: val/loss, goal: minimize}")(where, value)
    fields = read_fields(where, document, _OBJECTIVE, "a metric", {"name": f", {_METRIC_NAME}"})
    return Objective(**{key: item for key, item in fields.items() if not key.startswith("impute")})


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A metric, an operator and a number, such as `time < 10`."""

    metric: str
    operator: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.bound:g}"

    def violation(self, value: float) -> float:
        """Return by how much a value breaks the constraint, as Optuna expects it: above 0 if it does, else <= 0."""
        excess = value - self.bound if self.operator.startswith("<") else self.bound - value
        if excess == 0 and self.operator in "<>":
            return sys.float_info.min
        return excess


def read_constraint(where: str, value: Any) -> Constraint:
    """Read a constraint from a text such as `time < 10`."""
    match = _FORM.fullmatch(value) if isinstance(value, str) else None
    try:
        bound = float(match["bound"]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise SweepError(
            f"{where}: got {shown(value)}, expected a metric, one of < <= > >=, and a number, such as 'time < 10'"
        )
    return Constraint(match["metric"], match["operator"], bound)


def violations(constraints: Iterable[Constraint], values: Mapping[str, float]) -> dict[str, float]:
    """Return by how much a run breaks each constraint, by the constraint's text; SweepError if it logged no number."""
    by_text = {}
    for constraint in constraints:
        value = values.get(constraint.metric, math.nan)
        if math.isnan(value):
            logged = "NaN" if constraint.metric in values else "nothing"
            raise SweepError(f"constraint {constraint}: the run logged {logged} as {constraint.metric}; log a number")
        by_text[str(constraint)] = constraint.violation(value)
    return by_text


# ---------------------------------------------------------------------- methods and early termination


_SHARE = number(least=0, most=1)
_TPE: dict[str, Reader] = {"n_startup_trials": integer(0), "n_ei_candidates": integer(1), "multivariate": flag}
_MEDIAN: dict[str, Reader] = {
    "n_startup_trials": integer(0),
    "n_warmup_steps": integer(0),
    "interval_steps": integer(1),
    "n_min_trials": integer(1),
}

# The methods, and the options of each under their names in Optuna.
METHODS: dict[str, dict[str, Reader]] = {
    "grid": {"order": choice("listed", "random")},
    "random": {},
    "bayes": _TPE,
    "tpe": _TPE,
    "gp": {"n_startup_trials": integer(1), "deterministic_objective": flag},
    "cma-es": {"n_startup_trials": integer(1), "popsize": integer(2)},
    "qmc": {"qmc_type": choice("sobol", "halton"), "scramble": flag},
    "nsga2": {
        "population_size": integer(2),
        "mutation_prob": _SHARE,
        "crossover_prob": _SHARE,
        "swapping_prob": _SHARE,
    },
}

# The rules of early termination: `hyperband` is wandb's, all others are Optuna's.
STOPPING: dict[str, dict[str, Reader]] = {
    "hyperband": {
        "min_iter": integer(1),
        "max_iter": integer(1),
        "s": integer(1),
        "eta": number(above=1),
        "strict": flag,
    },
    "median": _MEDIAN,
    "percentile": {"percentile": number(least=0), **_MEDIAN},
    "successive_halving": {
        "min_resource": integer(1),
        "reduction_factor": integer(2),
        "min_early_stopping_rate": integer(0),
        "bootstrap_count": integer(0),
    },
    "optuna_hyperband": {"min_resource": integer(1), "max_resource": integer(1), "reduction_factor": integer(2)},
    "patient": {"patience": integer(0), "min_delta": number(least=0)},
    "threshold": {
        "lower": number(),
        "upper": number(),
        "n_warmup_steps": integer(0),
        "interval_steps": integer(1),
    },
}
_REQUIRED = {"percentile": "percentile", "patient": "patience", "optuna_hyperband": "max_resource"}


@dataclasses.dataclass(frozen=True)
class EarlyTermination:
    """A rule of early termination with the options given; for wandb's `hyperband` with the defaults of the others."""

    name: str
    options: Mapping[str, Any]


def read_method(where: str, value: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a search method, given as a name or as a mapping with `name`, and its options."""
    document = {"name": value} if isinstance(value, str) else mapping("{name: tpe}")(where, value)
    name = document.get("name")
    if name == "custom":
        raise SweepError(
            f"{where}: got 'custom', wandb's for schedulers of others; name the search itself, such as tpe"
        )
    name = choice(*METHODS)(where, name)
    fields = read_fields(where, document, {"name": anything, **METHODS[name]}, f"the method {name}")
    return fields.pop("name"), fields


def read_stopping(where: str, value: Any) -> EarlyTermination:
    """Read the rule of early termination from a mapping with `type` and options."""
    document = mapping("{type: hyperband, min_iter: 3}")(where, value)
    if "type" not in document:
        raise SweepError(f"{where}.type: is missing, expected {listing(STOPPING)}")
    name = choice(*STOPPING)(f"{where}.type", document["type"])
    required = {_REQUIRED[name]: f", which the type {name} needs"} if name in _REQUIRED else {}
    options = read_fields(where, document, {"type": anything, **STOPPING[name]}, f"the type {name}", required)
    del options["type"]
    if name == "threshold" and not {"lower", "upper"} & set(options):
        raise SweepError(f"{where}: got a threshold without limits; add lower or upper")
    if name == "hyperband":
        options = {"eta": 3, "strict": True, **options}
        _check_hyperband(where, options)
    return EarlyTermination(name, options)


def _check_hyperband(where: str, options: Mapping[str, Any]) -> None:
    if "max_iter" not in options and "min_iter" not in options:
        raise SweepError(f"{where}: got hyperband without min_iter or max_iter; add min_iter, or max_iter and s")
    if "max_iter" in options and "s" not in options:
        raise SweepError(f"{where}.s: is missing, the number of brackets that max_iter needs; or take min_iter alone")
    if not bands(options):
        raise SweepError(
            f"{where}: got no bracket (max_iter {options['max_iter']} / eta {options['eta']:g} is below 1); "
            "raise max_iter, or lower eta"
        )


def bands(options: Mapping[str, Any]) -> list[int]:
    """Return the numbers of reports after which wandb's hyperband judges a run, in ascending order.

    With `max_iter`, which takes precedence, they are max_iter / eta, max_iter / eta**2, ..., `s` of them and none below
    1; otherwise min_iter, min_iter * eta, min_iter * eta**2, ...
    """
    eta = options["eta"]
    numbers: list[int] = []
    # Step by step, as wandb rounds; the power of a large eta would overflow.
    if "max_iter" in options:
        band = options["max_iter"] / eta
        while len(numbers) < options["s"] and band >= 1:
            numbers.insert(0, int(band))
            band /= eta
        return numbers
    band = options["min_iter"]
    while len(numbers) < 100 and band < 2**62:
        numbers.append(int(band))
        band *= eta
    return numbers
