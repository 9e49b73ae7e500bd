"""Objectives and constraints: the metrics that a sweep optimizes, and the limits that its solutions must meet.

    metric: {name: val/loss, goal: minimize, target: 0.1}
    constraints: [time < 10]

A constraint is NAME OPERATOR NUMBER. The operator is <, <=, > or >=; the name is that of a metric and may hold any
other character.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import anything, choice, mapping, number, read_fields, shown, text

__all__ = ["Constraint", "Objective", "read_constraint", "read_objective", "violations"]

_FORM = re.compile(r"\s*(?P<metric>[^\s<>=!](?:[^<>=!]*[^\s<>=!])?)\s*(?P<operator><=|>=|<|>)\s*(?P<bound>\S+)\s*")
_NAME = "the name of a metric that runs log"


@dataclasses.dataclass(frozen=True)
class Objective:
    """A metric to optimize.

    Attributes:
        goal: `minimize` or `maximize`.
        target: A value that is good enough: once a run reaches it, no other run is started. None for no target.
    """

    name: str
    goal: str = "minimize"
    target: float | None = None

    def is_reached(self, value: float) -> bool:
        """Tell whether a value is as good as the target; always False without a target, or for nan."""
        if self.target is None:
            return False
        return value <= self.target if self.goal == "minimize" else value >= self.target


_OBJECTIVE = {
    "name": text(_NAME),
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
    fields = read_fields(where, document, _OBJECTIVE, "a metric", {"name": f", {_NAME}"})
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
    """Return by how much a run breaks each constraint, by the constraint's text; see `Constraint.violation`.

    If the run logged nothing, or NaN, for a constrained metric, this raises SweepError.
    """
    by_text = {}
    for constraint in constraints:
        value = values.get(constraint.metric, math.nan)
        if math.isnan(value):
            logged = "NaN" if constraint.metric in values else "nothing"
            raise SweepError(f"constraint {constraint}: the run logged {logged} as {constraint.metric}; log a number")
        by_text[str(constraint)] = constraint.violation(value)
    return by_text
