"""Runs beside each other: differences of two, and comparisons of groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from sacristan.runs.query import Changes

if TYPE_CHECKING:
    from sacristan.runs.comparison.comparing import Comparison, GroupResult, PairResult
    from sacristan.runs.stores import Run


class RunKey(TypedDict):
    """A run by its ids."""

    id: Annotated[str, "Id in the store."]
    uid: Annotated[str | None, "Globally unique id; null for a run of stock Sacred."]


class Differences(TypedDict):
    """The differences between two runs."""

    a: Annotated[RunKey, "The two runs."]
    b: Annotated[RunKey, "The two runs."]
    differ: Annotated[bool, "Whether they differ."]
    command: Annotated[Changes, "Names of experiment and command."]
    config: Annotated[Changes, "Entries by dotted name."]
    git: Annotated[Changes, "Commit, branch, uncommitted changes and so on."]
    packages: Annotated[Changes, "Versions by name."]
    outcome: Annotated[Changes, "Status and result."]
    metrics: Annotated[Changes, "Statistics, such as `val/loss.min`, without those of the machine."]
    sources: Annotated[dict[str, str], "A unified diff, or why there is none, by path."]
    output: NotRequired[Annotated[str, "The unified diff of their output; with `--log`."]]


class ComparedGroup(TypedDict):
    """A group of runs."""

    group: Annotated[str, "Its name."]
    values: Annotated[dict[str, Any], "Values of the fields that define it."]
    n: Annotated[int, "Number of repetitions."]
    mean: Annotated[float | None, "Mean, and standard deviation (n - 1); null if there are too few."]
    std: Annotated[float | None, "Mean, and standard deviation (n - 1); null if there are too few."]
    low: Annotated[float | None, "Student's interval of the mean; null if there are too few."]
    high: Annotated[float | None, "Student's interval of the mean; null if there are too few."]
    best: Annotated[float | None, "The best value, and the id of its run; null without any."]
    best_run: Annotated[str | None, "The best value, and the id of its run; null without any."]
    runs: Annotated[list[str], "Ids of the runs that count."]
    num_left_out: Annotated[int, "Number of runs that do not count."]


class GroupPair(TypedDict):
    """Two groups against each other."""

    first: Annotated[str, "Names of the groups."]
    second: Annotated[str, "Names of the groups."]
    method: Annotated[str, "`paired t` or `welch t`."]
    n: Annotated[int, "Number of pairs, or of values in both groups."]
    unpaired: Annotated[list[str], "Repetitions that only one group has, in a paired test."]
    difference: Annotated[
        float | None,
        "Difference of the means, first minus second, and its interval; null if unknown.",
    ]
    low: Annotated[float | None, "Difference of the means, first minus second, and its interval; null if unknown."]
    high: Annotated[float | None, "Difference of the means, first minus second, and its interval; null if unknown."]
    t: Annotated[float | None, "Statistic, degrees of freedom and two-sided p; null without a test."]
    df: Annotated[float | None, "Statistic, degrees of freedom and two-sided p; null without a test."]
    p: Annotated[float | None, "Statistic, degrees of freedom and two-sided p; null without a test."]
    p_holm: Annotated[float | None, "p, corrected for all pairs."]
    effect: Annotated[float | None, "Standardized difference, and its kind: `g_z` or `g`."]
    effect_name: Annotated[str, "Standardized difference, and its kind: `g_z` or `g`."]
    verdict: Annotated[str, "`first` or `second`, the better group; `unclear`; or `too few` for a test."]
    is_few: Annotated[bool, "Whether the test rests on few values."]
    reason: Annotated[str, "Why there is no test; empty if there is one."]


class LeftOut(TypedDict):
    """A run that does not count."""

    run: Annotated[str, "Its id."]
    group: Annotated[str, "Its group."]
    reason: Annotated[str, "Why it does not count."]


class Compared(TypedDict):
    """Groups of runs, compared by one field."""

    metric: Annotated[str, "The field."]
    by: Annotated[list[str], "Fields that define the groups."]
    over: Annotated[list[str], "Fields that vary within a group."]
    confidence: Annotated[float, "Confidence of the intervals."]
    larger_is_better: Annotated[bool, "Whether the largest value is the best."]
    groups: Annotated[list[ComparedGroup], "The groups, best mean first."]
    pairs: Annotated[list[GroupPair], "Each group against each that follows it."]
    left_out: Annotated[list[LeftOut], "Runs that do not count."]
    cautions: Annotated[list[str], "Weaknesses of the comparison, in sentences."]


def run_key(run: Run) -> RunKey:
    """Return the ids of a run."""
    return {"id": run.id, "uid": run.uid}


def differences_of(
    old: Run, new: Run, *, with_output: bool = False, max_output_bytes: int | None = None
) -> Differences:
    """Return the differences between two runs; of their output, only of the first `max_output_bytes` bytes."""
    from sacristan.runs.comparison import compare_output, diff

    difference = diff(old, new)
    output = compare_output(old, new, max_output_bytes) if with_output else None
    document: Differences = {
        "a": run_key(old),
        "b": run_key(new),
        "differ": bool(difference or output),
        "command": difference.command,
        "config": difference.config,
        "git": difference.git,
        "packages": difference.packages,
        "outcome": difference.outcome,
        "metrics": difference.metrics,
        "sources": difference.sources,
    }
    if output is not None:
        document["output"] = output
    return document


def comparison_of(comparison: Comparison) -> Compared:
    """Return a comparison for JSON; numbers that are not finite become None."""
    return {
        "metric": comparison.metric,
        "by": list(comparison.by),
        "over": list(comparison.over),
        "confidence": comparison.confidence,
        "larger_is_better": comparison.larger_is_better,
        "groups": [_group(group) for group in comparison.groups],
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "left_out": [
            {"run": entry.run.id, "group": entry.group, "reason": entry.reason} for entry in comparison.excluded
        ],
        "cautions": list(comparison.cautions),
    }


def _group(group: GroupResult) -> ComparedGroup:
    return {
        "group": group.label,
        "values": group.values,
        "n": group.sample.n,
        "mean": _finite(group.sample.mean),
        "std": _finite(group.sample.std),
        "low": _finite(group.sample.low),
        "high": _finite(group.sample.high),
        "best": _finite(group.best),
        "best_run": group.best_run,
        "runs": list(group.runs),
        "num_left_out": group.num_excluded,
    }


def _pair(pair: PairResult) -> GroupPair:
    test = pair.test
    return {
        "first": pair.first.label,
        "second": pair.second.label,
        "method": test.method,
        "n": test.n,
        "unpaired": list(pair.unpaired),
        "difference": _finite(test.value),
        "low": _finite(test.low),
        "high": _finite(test.high),
        "t": _finite(test.t),
        "df": _finite(test.df),
        "p": _finite(test.p),
        "p_holm": _finite(pair.p_holm),
        "effect": _finite(test.effect),
        "effect_name": test.effect_name,
        "verdict": pair.verdict,
        "is_few": pair.is_few,
        "reason": test.reason,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
