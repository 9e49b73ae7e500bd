"""Groups of past runs against each other: what their metric shows, and what it does not.

Every run that was given is either in a group's values or among the excluded runs, with the reason.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from runs.comparison.direction import better_text, direction_of
from runs.comparison.grouping import ExcludedRun, Group, damage, differences_between, differences_within, group_runs
from runs.comparison.inference import MeanDifference, Sample, are_paired, holm, paired_test, sample, welch_test
from runs.errors import ComparisonError
from runs.query.filters import matches, parse_filter
from runs.query.texts import count_text
from runs.stores.run import Run

__all__ = ["FEW", "Comparison", "GroupResult", "PairResult", "compare"]

# Below it an interval rests on hardly any knowledge of the spread: with 4 values Student's factor is 3.2, not 2.
FEW = 5
TESTS = ("auto", "paired", "welch")
_ENDED = ("COMPLETED", "COMPLETED_WITH_LOSS")


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """A group of runs, and the statistics of its repetitions.

    Attributes:
        values: The fields that make the group, by name.
        label, name: The same as text, with the fields' names and without.
        sample: n, mean, std and interval over the repetitions.
        best: The best value of a single run; None if there is none.
        best_run: The id of that run.
        runs: Ids of the runs that count.
        num_excluded: Number of runs that were excluded.
    """

    values: dict[str, Any]
    label: str
    name: str
    sample: Sample
    best: float | None
    best_run: str | None
    runs: tuple[str, ...]
    num_excluded: int


@dataclasses.dataclass(frozen=True)
class PairResult:
    """Two groups against each other.

    Attributes:
        first, second: The two groups.
        test: The difference, first minus second, and its test.
        p_holm: p corrected for all tests of the comparison; None if there is no p.
        verdict: `first` or `second`, whichever is better; `unclear`; `too few` if there is no test, see `test.reason`.
        unpaired: In a paired test, the repetitions of either group that the other one does not have.
        is_few: Whether fewer than `FEW` values or pairs are behind it.
    """

    first: GroupResult
    second: GroupResult
    test: MeanDifference
    p_holm: float | None
    verdict: str
    unpaired: tuple[str, ...]
    is_few: bool


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Groups of runs, best mean first, and all their pairs.

    Attributes:
        metric, by, over: The fields that were asked for.
        confidence: Of every interval; a pair differs where its corrected p is below 1 - confidence.
        larger_is_better: Whether the best value is the largest.
        groups: A `GroupResult` each: `name`, `sample` (`n`, `mean`, `std`, `low`, `high`), `best`, `best_run`, `runs`.
            The best mean comes first, groups without a value last.
        pairs: A `PairResult` for each group against each that follows it: `first`, `second`, `test` (`value`, `low`,
            `high`, `p`, `effect`, `method`), `p_holm`, and `verdict`: `first`, `second`, `unclear` or `too few`.
        excluded: Runs that were excluded: `run`, `group` and `reason` of each.
        cautions: Sentences on what weakens the comparison, such as few repetitions.
    """

    metric: str
    by: tuple[str, ...]
    over: tuple[str, ...]
    confidence: float
    larger_is_better: bool
    groups: tuple[GroupResult, ...]
    pairs: tuple[PairResult, ...]
    excluded: tuple[ExcludedRun, ...]
    cautions: tuple[str, ...]

    @property
    def better(self) -> str:
        """The better direction, in words."""
        return better_text("max" if self.larger_is_better else "min")


@dataclasses.dataclass(frozen=True)
class _Measured:
    """A group with the one value of each of its repetitions."""

    group: Group
    values: dict[Hashable, float]
    result: GroupResult


def compare(
    runs: Iterable[Run],
    by: str | Sequence[str],
    over: str | Sequence[str] | None,
    metric: str,
    confidence: float = 0.95,
    where: Any = None,
    *,
    mode: str = "auto",
    test: str = "auto",
    any_status: bool = False,
) -> Comparison:
    """Compare groups of runs by one number of each run, with t-tests between all pairs of groups.

    Pairs that share repetitions get the paired t-test, others Welch's; p is corrected for the number of tests (Holm).

    Args:
        runs: Runs of any stores, in any order.
        by: Fields that make the groups, such as `optimizer.name`.
        over: Fields that a setting was repeated over, such as `seed`; None if every run is a repetition of its own.
            Runs of a group that share their values count once, with their mean.
        metric: Field with the number, such as `val/accuracy.max` or `result`; or `duration`, in seconds.
        confidence: Of the intervals, between 0 and 1.
        where: A filter that the runs must meet, as `Store.find` takes it.
        mode: Which way is better: `max`, `min`, or `auto`: as the runs record it, see
            `runs.comparison.direction.direction_of`.
        test: `paired`, `welch`, or `auto`: paired where two groups share at least two repetitions, and at least half
            of those of either.
        any_status: Whether runs count, too, that did not complete; the value of a run that stopped early is not what
            it would have become.

    Returns:
        The groups, best mean first, all pairs of them, the excluded runs, and what weakens the comparison.

    Raises:
        ComparisonError: If no run has such a field or number, none records which way it is better, or an argument makes
            no sense.
        FilterError: If `where` makes no sense.

    Example:
        with open_store("my_runs") as store:
            found = compare(store.find(), by="optimizer.name", over="seed", metric="val/accuracy.max")
        for group in found.groups:
            print(group.name, group.sample.n, group.sample.mean, group.sample.std)
        for pair in found.pairs:
            print(pair.first.name, pair.second.name, pair.verdict, pair.p_holm)
    """
    by, over = _names(by), _names(over)
    if not 0 < confidence < 1:
        raise ComparisonError(f"confidence: got {confidence}, expected a number between 0 and 1, such as 0.95")
    if test not in TESTS:
        raise ComparisonError(f"test: got {test!r}, expected one of {', '.join(TESTS)}")
    if test == "paired" and not over:
        raise ComparisonError("test: got 'paired' without over; give what the runs are paired by, such as seed")
    tree = parse_filter(where)
    runs = [run for run in (run.listed() for run in runs) if matches(tree, run.__getitem__)]
    if not runs:
        raise ComparisonError("there are no runs to compare; see which there are with: python -m runs ls")
    groups, excluded = group_runs(runs, by, over)
    counted = [run for group in groups for run in group.runs]
    numbered = [run for run in counted if not _number(run, metric, any_status)[1]]
    larger_is_better = bool(numbered) and direction_of(numbered, metric, mode) == "max"
    measured = [_measure(group, metric, confidence, larger_is_better, any_status, excluded) for group in groups]
    if not any(part.values for part in measured):
        raise ComparisonError(_nothing(metric, runs, excluded))
    measured.sort(key=lambda part: _rank(part.result.sample.mean, larger_is_better))
    pairs = _pairs(measured, test, confidence, larger_is_better)
    cautions = tuple(_cautions(measured, pairs, excluded, (*by, *over)))
    results = tuple(part.result for part in measured)
    return Comparison(metric, by, over, confidence, larger_is_better, results, pairs, tuple(excluded), cautions)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def _measure(
    group: Group,
    metric: str,
    confidence: float,
    larger_is_better: bool,
    any_status: bool,
    excluded: list[ExcludedRun],
) -> _Measured:
    values: dict[Hashable, float] = {}
    best: tuple[float, str] | None = None
    counted = []
    for repetition, runs in group.repetitions.items():
        numbers = []
        for run in runs:
            number, reason = _number(run, metric, any_status)
            if reason:
                excluded.append(ExcludedRun(run, group.label, reason))
                continue
            numbers.append(number)
            counted.append(run.id)
            if best is None or (number > best[0] if larger_is_better else number < best[0]):
                best = number, run.id
        if numbers:
            values[repetition] = math.fsum(number / len(numbers) for number in numbers)
    found = sample(np.array(list(values.values())), confidence)
    missing = sum(entry.group == group.label for entry in excluded)
    value, run_id = best or (None, None)
    result = GroupResult(group.values, group.label, group.name, found, value, run_id, tuple(counted), missing)
    return _Measured(group, values, result)


def _number(run: Run, metric: str, any_status: bool) -> tuple[float, str]:
    """Return the number of a run, or why there is none."""
    if run.status not in _ENDED and not any_status:
        return math.nan, f"is {run.status}"
    value = run.get(metric)
    if value is None:
        return math.nan, damage(run, [metric]) or f"has no {metric}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan, f"has {metric} {value!r}, which is no number"
    try:
        value = float(value)
    except OverflowError:
        return math.nan, f"has a {metric} that is too large"
    return (value, "") if math.isfinite(value) else (value, f"has {metric} {value}")


def _rank(mean: float | None, larger_is_better: bool) -> tuple:
    return (mean is None, 0 if mean is None else -mean if larger_is_better else mean)


def _pairs(
    measured: Sequence[_Measured], test: str, confidence: float, larger_is_better: bool
) -> tuple[PairResult, ...]:
    found = []
    for first, second in itertools.combinations(measured, 2):
        # Without `over` every run is a repetition of its own, and none is shared.
        shared = [key for key in first.values if key in second.values]
        is_paired = test == "paired" or (test == "auto" and are_paired(first.values, second.values))
        found.append(_paired(first, second, shared, confidence) if is_paired else _unpaired(first, second, confidence))
    # Where there is a p there is a difference, too.
    corrected = iter(holm([pair.test.p for pair in found if pair.test.p is not None]))
    results = []
    for pair in found:
        if pair.test.p is not None and pair.test.value is not None:
            p = next(corrected)
            better = "first" if (pair.test.value > 0) == larger_is_better else "second"
            pair = dataclasses.replace(pair, p_holm=p, verdict=better if p < 1 - confidence else "unclear")
        results.append(pair)
    return tuple(results)


def _paired(first: _Measured, second: _Measured, shared: Sequence[Hashable], confidence: float) -> PairResult:
    one, other = (np.array([part.values[key] for key in shared]) for part in (first, second))
    others = sorted(
        f"{part.group.names[key]} of {part.result.label}"
        for part in (first, second)
        for key in part.values
        if key not in shared
    )
    test = paired_test(one, other, confidence)
    return PairResult(first.result, second.result, test, None, "too few", tuple(others), len(shared) < FEW)


def _unpaired(first: _Measured, second: _Measured, confidence: float) -> PairResult:
    one, other = (np.array(list(part.values.values())) for part in (first, second))
    test = welch_test(one, other, confidence)
    return PairResult(first.result, second.result, test, None, "too few", (), min(len(one), len(other)) < FEW)


def _nothing(metric: str, runs: Sequence[Run], excluded: Sequence[ExcludedRun]) -> str:
    """Return why no run has a number."""
    if any(metric in run.summary for run in runs):
        return f"got the metric {metric}, expected a statistic of it too, such as {metric}.last or {metric}.max"
    reasons = sorted({entry.reason for entry in excluded})
    more = f" and {len(reasons) - 3} other reasons" if len(reasons) > 3 else ""
    return f"none of the {len(runs)} runs can be compared by {metric}; each {', or '.join(reasons[:3])}{more}"


def _cautions(
    measured: Sequence[_Measured],
    pairs: Sequence[PairResult],
    excluded: Sequence[ExcludedRun],
    asked: Sequence[str],
) -> Iterable[str]:
    others = [entry.run for entry in excluded if entry.is_of_other_command]
    if others:
        yield f"left out: {count_text(len(others), 'run')} of {', '.join(sorted({run.command for run in others}))}"
    num_lacking = len(excluded) - len(others)
    if num_lacking:
        yield (
            f"{num_lacking} of {num_lacking + sum(len(part.result.runs) for part in measured)} runs are excluded;"
            " if they failed because of what is compared, the rest is biased"
        )
    for part in measured:
        found = part.result.sample
        if found.n < 2:
            yield f"{part.result.label}: n = {found.n} says nothing about chance; at least 2 repetitions are needed"
        elif found.n < FEW:
            yield f"{part.result.label}: n = {found.n} is few; the interval is wide, and rests on normal values"
        if found.std == 0:
            yield f"{part.result.label}: all {found.n} values are equal; are the repetitions really different runs?"
        twice = [part.group.names[key] for key, runs in part.group.repetitions.items() if len(runs) > 1]
        if twice:
            yield f"{part.result.label}: more than one run of {', '.join(twice)}; their mean counts once"
        mixed = differences_within(part.group, asked)
        if mixed:
            yield f"{part.result.label}: its runs differ in {mixed} too"
    mixed = differences_between([part.group for part in measured], asked)
    if mixed:
        yield f"the groups differ in {mixed} too"
    num_tests = sum(pair.test.p is not None for pair in pairs)
    if num_tests > 1:
        yield f"p is corrected for {num_tests} tests (Holm); the intervals of the differences are not"
