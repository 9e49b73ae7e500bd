"""Constraints on what a run measures, such as `time < 10`: a point that breaks one is no solution.

    NAME OPERATOR NUMBER

The operator is <, <=, > or >=; the name is that of a metric, which may hold anything but these signs.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from runs.errors import SweepError
from runs.sweeps.spec.checking import check_list, shown

__all__ = ["Constraint", "read_constraints", "violations"]

_FORM = re.compile(r"\s*(?P<metric>[^\s<>=!](?:[^<>=!]*[^\s<>=!])?)\s*(?P<operator><=|>=|<|>)\s*(?P<bound>\S+)\s*")
_EXAMPLE = "a metric, one of < <= > >=, and a number, such as 'time < 10'"


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A metric against a number."""

    metric: str
    operator: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.bound:g}"

    def violation(self, value: float) -> float:
        """Return by how much a value breaks the constraint: above 0 if it does, else 0 or below."""
        excess = value - self.bound if self.operator.startswith("<") else self.bound - value
        if excess == 0 and self.operator in "<>":
            return sys.float_info.min
        return excess


def read_constraints(value: Any) -> tuple[Constraint, ...]:
    """Return the constraints of a list of texts.

    Raises:
        SweepError: If one of them is none.
    """
    return tuple(
        _constraint(f"constraints[{position}]", text)
        for position, text in enumerate(check_list("constraints", value, "[time < 10]"))
    )


def _constraint(where: str, text: Any) -> Constraint:
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    try:
        bound = float(match["bound"]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise SweepError(f"{where}: got {shown(text)}, expected {_EXAMPLE}")
    return Constraint(match["metric"], match["operator"], bound)


def violations(constraints: Iterable[Constraint], values: Mapping[str, float]) -> dict[str, float]:
    """Return by how much a run breaks each constraint, by the constraint's text; see `Constraint.violation`.

    Args:
        constraints: Those of the spec.
        values: What the run measured, by the names of its metrics.

    Raises:
        SweepError: If the run has no such metric, or NaN for it.
    """
    found = {}
    for constraint in constraints:
        value = values.get(constraint.metric, math.nan)
        if math.isnan(value):
            said = "NaN" if constraint.metric in values else "nothing"
            raise SweepError(f"constraint {constraint}: the run logged {said} as {constraint.metric}; log a number")
        found[str(constraint)] = constraint.violation(value)
    return found
