"""Runs beside each other: differences of two, and comparisons of groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from sacristan.runs.query import Changes

if TYPE_CHECKING:
    from sacristan.runs.comparison.comparing import Comparison, GroupResult, PairResult
    from sacristan.runs.stores.run import Run


class RunKey(TypedDict):
    """A run by its ids.

    Attributes:
        id: Id in the store.
        uid: Globally unique id; null for a run of stock Sacred.
    """

    id: str
    uid: str | None


class Differences(TypedDict):
    """The differences between two runs.

    Attributes:
        a, b: The two runs.
        differ: Whether they differ.
        command: Names of experiment and command.
        config: Entries by dotted name.
        git: Commit, branch, uncommitted changes and so on.
        packages: Versions by name.
        outcome: Status and result.
        metrics: Statistics, such as `val/loss.min`, without those of the machine.
        sources: A unified diff, or why there is none, by path.
        output: The unified diff of their output; with `--log`.
    """

    a: RunKey
    b: RunKey
    differ: bool
    command: Changes
    config: Changes
    git: Changes
    packages: Changes
    outcome: Changes
    metrics: Changes
    sources: dict[str, str]
    output: NotRequired[str]


class ComparedGroup(TypedDict):
    """A group of runs.

    Attributes:
        group: Its name.
        values: Values of the fields that define it.
        n: Number of repetitions.
        mean, std: Mean, and standard deviation (n - 1); null if there are too few.
        low, high: Student's interval of the mean; null if there are too few.
        best, best_run: The best value, and the id of its run; null without any.
        runs: Ids of the runs that count.
        num_left_out: Number of runs that do not count.
    """

    group: str
    values: dict[str, Any]
    n: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    best: float | None
    best_run: str | None
    runs: list[str]
    num_left_out: int


class GroupPair(TypedDict):
    """Two groups against each other.

    Attributes:
        first, second: Names of the groups.
        method: `paired t` or `welch t`.
        n: Number of pairs, or of values in both groups.
        unpaired: Repetitions that only one group has, in a paired test.
        difference, low, high: Difference of the means, first minus second, and its interval; null if unknown.
        t, df, p: Statistic, degrees of freedom and two-sided p; null without a test.
        p_holm: p, corrected for all pairs.
        effect, effect_name: Standardized difference, and its kind: `g_z` or `g`.
        verdict: `first` or `second`, the better group; `unclear`; or `too few` for a test.
        is_few: Whether the test rests on few values.
        reason: Why there is no test; empty if there is one.
    """

    first: str
    second: str
    method: str
    n: int
    unpaired: list[str]
    difference: float | None
    low: float | None
    high: float | None
    t: float | None
    df: float | None
    p: float | None
    p_holm: float | None
    effect: float | None
    effect_name: str
    verdict: str
    is_few: bool
    reason: str


class LeftOut(TypedDict):
    """A run that does not count.

    Attributes:
        run: Its id.
        group: Its group.
        reason: Why it does not count.
    """

    run: str
    group: str
    reason: str


class Compared(TypedDict):
    """Groups of runs, compared by one field.

    Attributes:
        metric: The field.
        by: Fields that define the groups.
        over: Fields that vary within a group.
        confidence: Confidence of the intervals.
        larger_is_better: Whether the largest value is the best.
        groups: The groups, best mean first.
        pairs: Each group against each that follows it.
        left_out: Runs that do not count.
        cautions: Weaknesses of the comparison, in sentences.
    """

    metric: str
    by: list[str]
    over: list[str]
    confidence: float
    larger_is_better: bool
    groups: list[ComparedGroup]
    pairs: list[GroupPair]
    left_out: list[LeftOut]
    cautions: list[str]


def run_key(run: Run) -> RunKey:
    """Return the ids of a run."""
    return {"id": run.id, "uid": run.uid}


def differences_of(
    old: Run, new: Run, *, with_output: bool = False, max_output_bytes: int | None = None
) -> Differences:
    """Return the differences between two runs.

    Only the first `max_output_bytes` bytes of the output are compared; None compares all.
    """
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
