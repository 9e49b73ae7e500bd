"""The verdict on a reproduced run, and how far its values may be from the recorded ones.

`runs.rerun.judging` comes to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = [
    "COLOURS",
    "CUT_OFF",
    "DIVERGED",
    "IDENTICAL",
    "RANKS",
    "RESULT",
    "WITHIN",
    "Deviation",
    "MetricVerdict",
    "Tolerance",
    "Verdict",
]

IDENTICAL, WITHIN, DIVERGED = "IDENTICAL", "WITHIN TOLERANCE", "DIVERGED"
# What a run that did not come to its end recorded is a beginning of what it would have.
CUT_OFF = ("INTERRUPTED", "DEAD", "TIMEOUT")
RESULT = "result"
COLOURS = {IDENTICAL: "green", WITHIN: "yellow", DIVERGED: "red"}
# From the best to the worst.
RANKS = (IDENTICAL, WITHIN, DIVERGED)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Allowed distance of a value from the recorded one: `atol + rtol * |recorded|`.

    Attributes:
        rtol: Relative, of every metric and of numbers in the result.
        atol: Absolute.
        by_metric: Relative tolerances of single metrics; an infinite one lets a metric not count. `result` is one, too.

    Example:
        done = reproduce(run, Tolerance(rtol=1e-6, by_metric={"val/loss": 1e-2}))
    """

    rtol: float = 1e-3
    atol: float = 0.0
    by_metric: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def rtol_of(self, metric: str) -> float:
        """Return the relative tolerance of a metric."""
        return self.by_metric.get(metric, self.rtol)

    @property
    def text(self) -> str:
        """The tolerance in a few words."""
        own = [f"{name} {rtol:g}" for name, rtol in self.by_metric.items()]
        absolute = [f"{self.atol:g} absolute"] if self.atol else []
        return ", ".join([f"{self.rtol:g} relative", *absolute, *own])


@dataclasses.dataclass(frozen=True)
class Deviation:
    """One point of a metric that differs.

    Attributes:
        metric: Its name.
        step: Its step in the recorded run.
        old, new: The two values.
        new_step: Its step in the new run.
    """

    metric: str
    step: int | float
    old: float
    new: float
    new_step: int | float

    @property
    def text(self) -> str:
        """The difference in a few words."""
        if self.step != self.new_step:
            return f"{self.metric}: recorded at step {self.step}, now at step {self.new_step}"
        return f"{self.metric} at step {self.step}: recorded {self.old!r}, now {self.new!r}"


@dataclasses.dataclass(frozen=True)
class MetricVerdict:
    """The verdict on one metric.

    Attributes:
        name: The metric.
        verdict: IDENTICAL, WITHIN TOLERANCE or DIVERGED.
        num_points: Of the recorded run.
        num_new_points: Of the new run.
        num_deviating: Points whose values are not the same bit for bit.
        rtol: The relative tolerance that was allowed.
        largest_relative, largest_absolute: The largest deviations seen.
        first: The first point beyond the tolerance, if there is one.
    """

    name: str
    verdict: str
    num_points: int
    num_new_points: int
    num_deviating: int
    rtol: float
    largest_relative: float
    largest_absolute: float
    first: Deviation | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a run was reproduced.

    Attributes:
        verdict: IDENTICAL, WITHIN TOLERANCE or DIVERGED.
        metrics: A verdict on each metric.
        first: The first point beyond the tolerance, of all metrics.
        reasons: What else counts as diverged, a sentence each.
        notes: What does not count, a sentence each.
        tolerance: What was allowed.
    """

    verdict: str
    metrics: tuple[MetricVerdict, ...]
    first: Deviation | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    tolerance: Tolerance

    @property
    def text(self) -> str:
        """The verdict in one line, with where it first diverged."""
        if self.verdict == DIVERGED:
            first = self.first.text if self.first else ""
            return f"{DIVERGED}: {first or (self.reasons[0] if self.reasons else '')}"
        if self.verdict == WITHIN:
            worst = max(self.metrics, key=lambda one: one.largest_relative, default=None)
            of = f": at most {worst.largest_relative:.3g}, in {worst.name}" if worst and worst.largest_relative else ""
            return f"{WITHIN} ({self.tolerance.text}){of}"
        return IDENTICAL

    def as_json(self) -> dict[str, Any]:
        """Return all of it as what JSON holds."""
        return dataclasses.asdict(self)
