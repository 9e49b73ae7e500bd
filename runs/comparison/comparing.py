"""`compare`: groups of past runs against each other, by one number of each run, whose better direction the runs record.

Every run given is either in the values of a group or among the excluded runs, with the reason.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from sacristan.observers.record.directions import DIRECTIONS, MEASURED, base_name, monitored_direction, noted_directions
from sacristan.runs.comparison import ExcludedRun, Group, damage, differences_between, differences_within, group_runs
from sacristan.runs.comparison.inference import MeanDifference, Sample, holm, repetition_test, sample
from sacristan.runs.errors import ComparisonError
from sacristan.runs.query import DURATION, STATISTICS
from sacristan.runs.query.texts import count_text, is_number
from sacristan.runs.stores import Run, prefetch

# With fewer values the spread is hardly known: with 4, Student's factor is 3.2, not 2.
FEW = 5
TESTS = ("auto", "paired", "welch")
_ENDED = ("COMPLETED", "COMPLETED_WITH_LOSS")


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """A group of runs, with the statistics of its repetitions."""

    values: dict[str, Any]  # the fields that define the group, by name
    # The values as text, with and without the names of the fields.
    label: str
    name: str
    sample: Sample  # n, mean, std and interval over the repetitions
    best: float | None  # the best value of a single run; None if there is none
    best_run: str | None  # the id of that run
    runs: tuple[str, ...]  # ids of the runs that were used
    num_excluded: int  # number of runs that were excluded


@dataclasses.dataclass(frozen=True)
class PairResult:
    """Two groups against each other."""

    first: GroupResult
    second: GroupResult
    test: MeanDifference  # the difference, first minus second, and its test
    p_holm: float | None  # p, corrected for all tests of the comparison; None if there is no p
    verdict: str  # the better one, `first` or `second`; `unclear`; `too few` if there is no test, see `test.reason`
    unpaired: tuple[str, ...]  # in a paired test, the repetitions that only one of the groups has
    is_few: bool  # whether the test uses fewer than `FEW` values or pairs


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Groups of runs, best mean first, and all their pairs.

    Attributes:
        metric, by, over: The fields given.
        confidence: Confidence of every interval; a pair differs where its corrected p is below 1 - confidence.
        larger_is_better: Whether the largest value is the best.
        groups: A `GroupResult` each: `name`, `sample` (`n`, `mean`, `std`, `low`, `high`), `best`, `best_run`, `runs`.
            The best mean comes first, groups without a value last.
        pairs: A `PairResult` for each group against each that follows it: `first`, `second`, `test` (`value`, `low`,
            `high`, `p`, `effect`, `method`), `p_holm`, and `verdict`: `first`, `second`, `unclear` or `too few`.
        excluded: The excluded runs: `run`, `group` and `reason` of each.
        cautions: Sentences on the weaknesses of the comparison, such as few repetitions.
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
    def title(self) -> str:
        """The metric, the fields of groups and repetitions, and the better direction, in one line."""
        over = f" over {', '.join(self.over)}" if self.over else ""
        return f"{self.metric} by {', '.join(self.by)}{over} ({self.better})"

    @property
    def better(self) -> str:
        """The direction that is better, in words."""
        return better_text("max" if self.larger_is_better else "min")


@dataclasses.dataclass(frozen=True)
class _Measured:
    """A group with one value for each of its repetitions."""

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
        by: Fields that define the groups, such as `optimizer.name`.
        over: Fields that a setting was repeated over, such as `seed`; None if every run is a repetition. Runs of a
            group that share the values of these fields count once, with their mean.
        metric: Field with the number, such as `val/accuracy.max` or `result`; or `duration`, in seconds.
        confidence: Confidence of the intervals, between 0 and 1.
        where: A filter that the runs must meet, as for `Store.find`.
        mode: The direction that is better: `max`, `min`, or `auto`, as the runs record it; see
            `sacristan.runs.comparison.comparing.direction_of`.
        test: `paired`, `welch`, or `auto`: paired where two groups share at least two repetitions, and at least half
            of those of either.
        any_status: Include runs that did not complete. The value of a run that stopped early is not its final value.

    Returns:
        The groups, best mean first, all pairs of them, the excluded runs, and cautions.

    Raises:
        ComparisonError: If no run has such a field or number, no run records which direction is better, or an argument
            is invalid.
        FilterError: If `where` is invalid.

    Example:
        with open_store("my_runs") as store:
            comparison = compare(store.find(), by="optimizer.name", over="seed", metric="val/accuracy.max")
        for group in comparison.groups:
            print(group.name, group.sample.n, group.sample.mean, group.sample.std)
        for pair in comparison.pairs:
            print(pair.first.name, pair.second.name, pair.verdict, pair.p_holm)
    """
    by, over = _names(by), _names(over)
    _check_options(confidence, test, over)
    runs = _chosen(runs, where)
    groups, excluded = group_runs(runs, by, over)
    numbered = [run for group in groups for run in group.runs if not _number(run, metric, any_status)[1]]
    larger_is_better = bool(numbered) and direction_of(numbered, metric, mode) == "max"
    measured = [_measure(group, metric, confidence, larger_is_better, any_status, excluded) for group in groups]
    if not any(part.values for part in measured):
        raise ComparisonError(_nothing(metric, runs, excluded))
    measured.sort(key=lambda part: _rank(part.result.sample.mean, larger_is_better))
    pairs = _pairs(measured, test, confidence, larger_is_better)
    cautions = tuple(_cautions(measured, pairs, excluded, (*by, *over)))
    results = tuple(part.result for part in measured)
    return Comparison(metric, by, over, confidence, larger_is_better, results, pairs, tuple(excluded), cautions)


def _chosen(runs: Iterable[Run], where: Any) -> list[Run]:
    chosen = [run.listed() for run in runs]
    if where is not None:
        stores = {id(run.store): run.store for run in chosen}.values()
        matching = {run for store in stores for run in store.find(where, columns=())}
        chosen = [run for run in chosen if run in matching]
    if not chosen:
        raise ComparisonError("there are no runs to compare; see which there are with: sacristan ls")
    return chosen


def _names(fields: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if fields is None else (fields,) if isinstance(fields, str) else tuple(fields)


def _check_options(confidence: float, test: str, over: Sequence[str]) -> None:
    if not 0 < confidence < 1:
        raise ComparisonError(f"confidence: got {confidence}, expected a number between 0 and 1, such as 0.95")
    if test not in TESTS:
        raise ComparisonError(f"test: got {test!r}, expected one of {', '.join(TESTS)}")
    if test == "paired" and not over:
        raise ComparisonError("test: got 'paired' without over; give what the runs are paired by, such as seed")


def _measure(
    group: Group,
    metric: str,
    confidence: float,
    larger_is_better: bool,
    any_status: bool,
    excluded: list[ExcludedRun],
) -> _Measured:
    values: dict[Hashable, float] = {}
    counted: list[tuple[float, str]] = []
    for repetition, runs in group.repetitions.items():
        numbers = []
        for run in runs:
            number, reason = _number(run, metric, any_status)
            if reason:
                excluded.append(ExcludedRun(run, group.label, reason))
            else:
                numbers.append((number, run.id))
        if numbers:
            values[repetition] = math.fsum(number / len(numbers) for number, _ in numbers)
        counted += numbers
    choose = max if larger_is_better else min
    best, best_run = choose(counted, key=lambda entry: entry[0]) if counted else (None, None)
    statistics = sample(np.array(list(values.values())), confidence)
    ids = tuple(id for _, id in counted)
    num_excluded = sum(entry.group == group.label for entry in excluded)
    result = GroupResult(group.values, group.label, group.name, statistics, best, best_run, ids, num_excluded)
    return _Measured(group, values, result)


def _number(run: Run, metric: str, any_status: bool) -> tuple[float, str]:
    """Return the number of a run, and the reason if it has none."""
    if run.status not in _ENDED and not any_status:
        return math.nan, f"is {run.status}"
    value = run.get(metric)
    if value is None:
        return math.nan, damage(run, [metric]) or f"has no {metric}"
    if not is_number(value):
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
    pairs = [_pair(first, second, test, confidence) for first, second in itertools.combinations(measured, 2)]
    # Where there is a p there is a difference.
    corrected = iter(holm([pair.test.p for pair in pairs if pair.test.p is not None]))
    results = []
    for pair in pairs:
        if pair.test.p is not None and pair.test.value is not None:
            p = next(corrected)
            better = "first" if (pair.test.value > 0) == larger_is_better else "second"
            pair = dataclasses.replace(pair, p_holm=p, verdict=better if p < 1 - confidence else "unclear")
        results.append(pair)
    return tuple(results)


def _pair(first: _Measured, second: _Measured, test: str, confidence: float) -> PairResult:
    # Without `over` every run is a repetition, and none is shared.
    result = repetition_test(first.values, second.values, confidence, None if test == "auto" else test == "paired")
    if result.method != "paired t":
        num = min(len(first.values), len(second.values))
        return PairResult(first.result, second.result, result, None, "too few", (), num < FEW)
    unpaired = sorted(
        f"{part.group.names[key]} of {part.result.label}"
        for part, other in ((first, second), (second, first))
        for key in part.values
        if key not in other.values
    )
    return PairResult(first.result, second.result, result, None, "too few", tuple(unpaired), result.n < FEW)


def _nothing(metric: str, runs: Sequence[Run], excluded: Sequence[ExcludedRun]) -> str:
    """Explain why no run has a number."""
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
        yield from (f"{part.result.label}: {caution}" for caution in _cautions_of(part, asked))
    if mixed := differences_between([part.group for part in measured], asked):
        yield f"the groups also differ in {mixed}"
    num_tests = len([pair for pair in pairs if pair.test.p is not None])
    if num_tests > 1:
        yield f"p is corrected for {num_tests} tests (Holm); the intervals of the differences are not"


def _cautions_of(part: _Measured, asked: Sequence[str]) -> Iterable[str]:
    n = part.result.sample.n
    if n < 2:
        yield f"n = {n} says nothing about chance; at least 2 repetitions are needed"
    elif n < FEW:
        yield f"n = {n} is few; the interval is wide, and assumes normal values"
    if part.result.sample.std == 0:
        yield f"all {n} values are equal; are the repetitions really different runs?"
    twice = [part.group.names[key] for key, runs in part.group.repetitions.items() if len(runs) > 1]
    if twice:
        yield f"more than one run of {', '.join(twice)}; their mean counts once"
    if mixed := differences_within(part.group, asked):
        yield f"its runs also differ in {mixed}"


# ---------------------------------------------------------------------- the better direction


MODES = ("auto", *DIRECTIONS)


def direction_of(runs: Iterable[Run], field: str, mode: str = "auto") -> str:
    """Return the better direction of a field: `max` or `min`.

    With `auto` the records decide: by the noted directions (`better` in their info, of the result, the ingredient
    `metrics` or a sweep's goal), by the monitored metric (`training.monitor` and `training.mode`), or by a name that
    the training loop uses: accuracy, r2, loss, mae, rmse, and `duration`. Raises ComparisonError if no run records a
    direction, or two runs contradict each other.
    """
    if mode not in MODES:
        raise ComparisonError(f"mode: got {mode!r}, expected one of {', '.join(MODES)}")
    if mode != "auto":
        return mode
    runs = list(runs)
    prefetch(runs, ["info", "config"])
    recorded: dict[str, Run] = {}
    for run in runs:
        direction = _recorded_by(run, field)
        if direction is not None:
            recorded.setdefault(direction, run)
    if len(recorded) == 1:
        return next(iter(recorded))
    more = "say which: --max or --min (in Python mode='max' or mode='min')"
    if recorded:
        most, least = recorded["max"].id, recorded["min"].id
        raise ComparisonError(f"{field}: run {most} records that more is better, run {least} that less is; {more}")
    raise ComparisonError(f"{field}: no run records whether more or less of it is better; {more}")


def _recorded_by(run: Run, field: str) -> str | None:
    head, _, statistic = field.removeprefix("summary.").rpartition(".")
    name = base_name(head if statistic in STATISTICS else field)
    noted = noted_directions(run.info)
    parts = name.split("/")
    for length in range(len(parts), 0, -1):  # `f1/cat` is a class of `f1`
        direction = noted.get("/".join(parts[:length]))
        if direction is not None:
            return direction
    monitor, mode = run.get("config.training.monitor"), run.get("config.training.mode")
    is_monitored = isinstance(monitor, str) and base_name(monitor) == name
    if is_monitored and (mode in DIRECTIONS or (mode == "auto" and monitored_direction(name, mode) == "max")):
        return monitored_direction(name, mode)
    return {**MEASURED, DURATION: "min"}.get(name)


def better_text(direction: str) -> str:
    """Return `max` or `min` in words: `greater is better` or `less is better`."""
    return "greater is better" if direction == "max" else "less is better"
