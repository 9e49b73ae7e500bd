"""The verdict on a reproduced run, and the tolerance that it allows; `sacristan.runs.rerun.judging` reaches it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import RunsError
from sacristan.runs.stores import Run

IDENTICAL, WITHIN, DIVERGED = "IDENTICAL", "WITHIN TOLERANCE", "DIVERGED"
# Runs that ended early: their points are the beginning of the whole run's.
CUT_OFF = ("INTERRUPTED", "DEAD", "TIMEOUT", "PRUNED")
RESULT = "result"
COLOURS = {IDENTICAL: "green", WITHIN: "yellow", DIVERGED: "red"}
# From the best to the worst.
RANKS = (IDENTICAL, WITHIN, DIVERGED)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Allowed distance of a value from the recorded one: `atol + rtol * |recorded|`.

    Attributes:
        rtol: Relative tolerance of every metric and of numbers in the result.
        atol: Absolute tolerance.
        by_metric: Relative tolerances of single metrics, of globs such as `eval_*`, and of `result`; an infinite one
            excludes the metric. A name counts before globs, and of these the first.

    Example:
        done = reproduce(run, Tolerance(rtol=1e-6, by_metric={"val/loss": 1e-2}))
    """

    rtol: float = 1e-3
    atol: float = 0.0
    by_metric: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def rtol_of(self, metric: str) -> float:
        """Return the relative tolerance of a metric.

        Args:
            metric: Its name, or `result`.
        """
        if metric in self.by_metric or metric == RESULT:
            return self.by_metric.get(metric, self.rtol)
        return next((rtol for glob, rtol in self.by_metric.items() if fnmatchcase(metric, glob)), self.rtol)

    def check(self, run: Run) -> None:
        """Reject a tolerance of a metric that a run does not have.

        Args:
            run: The run to reproduce.

        Raises:
            RunsError: If it names another metric, or a glob matches none.
        """
        names = [*run.metrics, RESULT]
        for name in self.by_metric:
            if name not in names and not any(fnmatchcase(metric, name) for metric in run.metrics):
                shown = [name for name in names if not name.startswith("system/")]
                hint = word_suggestion(name, shown)
                raise RunsError(f"tolerance: run {run.id} has no metric {name!r}; {hint}")

    @property
    def text(self) -> str:
        """The tolerance in a few words."""
        absolute = [f"{self.atol:g} absolute"] if self.atol else []
        by_metric = [f"{name} {rtol:g}" for name, rtol in self.by_metric.items()]
        return ", ".join([f"{self.rtol:g} relative", *absolute, *by_metric])


@dataclasses.dataclass(frozen=True)
class Deviation:
    """One point of a metric, or one number of the result, that differs."""

    metric: Annotated[str, "Its name."]
    step: Annotated[int | float | None, "Its step in the recorded run; None for a number of the result."]
    old: Annotated[float, "The two values."]
    new: Annotated[float, "The two values."]
    new_step: Annotated[int | float | None, "Its step in the new run."]

    @property
    def absolute(self) -> float:
        """Distance of the two values; infinite from a number to NaN or an infinity."""
        if self.old == self.new or (self.old != self.old and self.new != self.new):
            return 0.0
        distance = abs(self.new - self.old)
        return math.inf if math.isnan(distance) else distance

    @property
    def relative(self) -> float:
        """The distance divided by the recorded value; infinite if that is 0."""
        if not self.absolute:
            return 0.0
        ratio = self.absolute / abs(self.old) if self.old else math.inf
        return math.inf if math.isnan(ratio) else ratio

    @property
    def text(self) -> str:
        """The difference in a few words."""
        if self.step != self.new_step:
            value = f", with the same value {self.old!r}" if not self.absolute else ""
            return f"{self.metric}: recorded at step {self.step}, now at step {self.new_step}{value}"
        where = "" if self.step is None else f" at step {self.step}"
        return f"{self.metric}{where}: recorded {self.old!r}, now {self.new!r}"


@dataclasses.dataclass(frozen=True)
class MetricVerdict:
    """The verdict on one metric."""

    name: Annotated[str, "The metric."]
    verdict: Annotated[str, "IDENTICAL, WITHIN TOLERANCE or DIVERGED."]
    num_points: Annotated[int, "Of the recorded run."]
    num_new_points: Annotated[int, "Of the new run."]
    num_deviating: Annotated[int, "Number of points that are not the same bit for bit."]
    rtol: Annotated[float, "The allowed relative tolerance."]
    largest_relative: Annotated[float, "The largest deviations."]
    largest_absolute: Annotated[float, "The largest deviations."]
    first: Annotated[Deviation | None, "The first point beyond the tolerance, if there is one."] = None
    extremes: Annotated[
        tuple[Deviation, ...],
        "The points of the largest relative and absolute deviation, if there are any.",
    ] = ()
    is_of_steps: Annotated[bool, "Whether all values are the same and only steps differ."] = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of comparing a reproduction with the original.

    Attributes:
        verdict: IDENTICAL, WITHIN TOLERANCE or DIVERGED.
        metrics: A verdict on each metric.
        first: The first point beyond the tolerance, of all metrics.
        reasons: Sentences about other differences that count.
        notes: Sentences about differences that do not count.
        tolerance: The allowed distance.
        largest: The numbers of the largest relative and absolute deviation, within the tolerance or not, of the result
            and of all metrics that count.
    """

    verdict: str
    metrics: tuple[MetricVerdict, ...]
    first: Deviation | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    tolerance: Tolerance
    largest: tuple[Deviation, ...] = ()

    @property
    def text(self) -> str:
        """The verdict in one line, with the first deviation, or with the largest one within the tolerance."""
        if self.verdict == DIVERGED:
            first = self.first.text if self.first else ""
            kind = " IN THE STEPS ALONE" if self.is_of_steps else ""
            return f"{DIVERGED}{kind}: {first or (self.reasons[0] if self.reasons else '')}"
        if self.verdict == WITHIN:
            return f"{WITHIN} ({self.tolerance.text}){f': {self.largest_text}' if self.largest else ''}"
        return IDENTICAL

    @property
    def is_of_steps(self) -> bool:
        """True if only steps are beyond the tolerance."""
        diverged = [metric for metric in self.metrics if metric.verdict == DIVERGED]
        return bool(diverged) and not self.reasons and all(metric.is_of_steps for metric in diverged)

    @property
    def largest_text(self) -> str:
        """The largest differences in a few words; empty if there are none."""
        if not self.largest:
            return ""
        relative, absolute = self.largest[0], self.largest[-1]
        if relative == absolute:
            sizes = f"{relative.relative:.3g} relative, {absolute.absolute:.3g} absolute"
            return f"largest difference {sizes} ({relative.text})"
        return (
            f"largest difference {relative.relative:.3g} relative ({relative.text}), {absolute.absolute:.3g} absolute "
            f"({absolute.text})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the whole verdict as a document for JSON."""
        return dataclasses.asdict(self)
