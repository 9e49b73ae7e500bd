"""Curves of runs: smoothed, averaged with a band, joined to those they continue, and computed from metrics.

In a joined curve, an ancestor's points end before the first point of its descendant. If the descendant was started from
a state such as `step-000000120.pt`, they end at the state's step.

Expressions of metrics, such as `val/loss - train/loss`, are parsed by hand and computed by NumPy:

    expression = term {("+" | "-") term}        term = factor {("*" | "/") factor}
    factor = "-" factor | atom ["**" factor]    atom = number | metric | function "(" expression {"," expression} ")"
                                                       | "(" expression ")"

A metric is written as it is, or between backticks if it holds other characters than letters, digits and `_ . / : @ %`.
So `/` and `-` between metrics need a space before them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from sacristan.observers.record.points import Series
from sacristan.runs.comparison.inference import mean_interval
from sacristan.runs.drawing.curve import X_AXES, Curve, curve_of
from sacristan.runs.errors import PlotError, StoreAwayError, StoreError
from sacristan.runs.query import QUOTED, unquoted
from sacristan.runs.stores import Run, prefetch
from sacristan.runs.stores.run import each_series

if TYPE_CHECKING:
    from sacristan.runs.stores import Run

BANDS = ("interval", "range", "none")
# Maximum size of the table of a mean, with a row for each run and a column for each position: 80 MB.
_MAX_CELLS = 10_000_000
_MAX_LENGTH, _MAX_DEPTH = 500, 20
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?(?![\w/]))|(?P<name>[^\W\d][\w./:@%]*)|"
    rf"(?P<quoted>{QUOTED})|(?P<operator>\*\*|[-+*/(),]))"
)
_FUNCTIONS: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    "abs": (1, np.abs),
    "exp": (1, np.exp),
    "log": (1, np.log),
    "log10": (1, np.log10),
    "sqrt": (1, np.sqrt),
    "min": (2, np.minimum),
    "max": (2, np.maximum),
}
_BINARY: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
}

Values = Mapping[str, np.ndarray]
Formula = Callable[[Values], np.ndarray]


def smooth(curve: Curve, weight: float) -> Curve:
    """Smooth a curve without a band; its `raw` keeps the original values. See `smoothed`."""
    values = smoothed(curve.y, weight)
    return curve if weight == 0 else dataclasses.replace(curve, y=values, raw=curve.y)


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """Return exponential moving averages of (n,) values, corrected for the bias towards the start.

    `weight` is TensorBoard's smoothing, and the curve is TensorBoard's; gaps stay and count for nothing. 1,000,000
    values take about 0.2 s. Pass all of them: the average of a thinned curve is another curve. Raises PlotError if
    `weight` is not in [0, 1).
    Sources: `resmoothDataset` in
    https://github.com/tensorflow/tensorboard/blob/34877f15/tensorboard/components/vz_line_chart2/line-chart.ts,
    the correction is Adam's, Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, section 3.
    """
    if not 0 <= weight < 1:
        raise PlotError(f"smoothing: got {weight}, expected a number from 0 to below 1, such as 0.6")
    if weight == 0:
        return values
    result = values.astype(np.float64)
    is_finite = np.isfinite(result)
    share = 1 - weight
    averages = itertools.accumulate(
        result[is_finite].tolist(), lambda average, value: weight * average + share * value, initial=0.0
    )
    num_values = int(is_finite.sum())
    sums = np.fromiter(itertools.islice(averages, 1, None), np.float64, num_values)
    result[is_finite] = sums / (1 - weight ** np.arange(1.0, num_values + 1))
    return result


def mean_curve(curves: Sequence[Curve], label: str = "", band: str = "interval", confidence: float = 0.95) -> Curve:
    """Return the mean of at least one curve, each from an independent repetition.

    Curves with different positions are interpolated on straight lines between their own points, never beyond the first
    and last, and not across a gap. So fewer curves may count at some points: `counts` has the number. Several values of
    a curve at one position count with their mean. The interval is Student's interval of the mean, position by position:
    it does not hold for the curve as a whole. `band` is `interval`, `range` from the least to the greatest value, or
    `none`; others raise PlotError.
    """
    if band not in BANDS:
        raise PlotError(f"band: got {band!r}, expected one of {', '.join(BANDS)}")
    positions = _positions(curves)
    table = np.stack([_at(curve, positions) for curve in curves])
    counts = np.isfinite(table).sum(0)
    table[~np.isfinite(table)] = np.nan
    some = counts > 0
    mean = np.full(len(positions), np.nan)
    mean[some] = np.nanmean(table[:, some], axis=0)
    low, high = _edges(table, mean, counts, band, confidence)
    raw = None
    if any(curve.raw is not None for curve in curves):
        before = [
            dataclasses.replace(curve, y=curve.y if curve.raw is None else curve.raw, raw=None) for curve in curves
        ]
        raw = mean_curve(before, band="none").y
    left_out = sum((collections.Counter(curve.left_out) for curve in curves), collections.Counter())
    return Curve(label, positions, mean, low, high, counts, raw, left_out=left_out)


def _edges(
    table: np.ndarray, mean: np.ndarray, counts: np.ndarray, band: str, confidence: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the edges of a band around the mean of a table that has a row for each curve."""
    if band == "none":
        return None, None
    if band == "range":
        low, high, some = mean.copy(), mean.copy(), counts > 0
        low[some], high[some] = np.nanmin(table[:, some], axis=0), np.nanmax(table[:, some], axis=0)
        return low, high
    std = np.full(len(mean), np.nan)
    std[counts >= 2] = np.nanstd(table[:, counts >= 2], axis=0, ddof=1)
    half = mean_interval(mean, std, counts, confidence)
    return mean - half, mean + half


def _positions(curves: Sequence[Curve]) -> np.ndarray:
    """Return all positions of the curves, or evenly chosen ones if they are too many."""
    positions = np.unique(np.concatenate([curve.x for curve in curves]))
    most = max(1000, _MAX_CELLS // len(curves))
    if len(positions) > most:
        positions = positions[np.linspace(0, len(positions) - 1, most).round().astype(int)]
    return positions


def _at(curve: Curve, positions: np.ndarray) -> np.ndarray:
    if len(curve.x) == len(positions) and np.array_equal(curve.x, positions):
        return curve.y.copy()
    if not len(curve.x):
        return np.full(len(positions), np.nan)
    x, starts = np.unique(curve.x, return_index=True)
    y = np.where(np.isfinite(curve.y), curve.y, np.nan)
    if len(x) < len(y):
        counts = np.add.reduceat(np.isfinite(y).astype(int), starts)
        shares = np.nan_to_num(y) / np.repeat(np.maximum(counts, 1), np.diff(starts, append=len(y)))
        y = np.where(counts > 0, np.add.reduceat(shares, starts), np.nan)
    return np.interp(positions, x, y, left=np.nan, right=np.nan)


# ---------------------------------------------------------------------- joined curves


# Generations that are looked for.
_MAX_ANCESTORS = 20
_START = "config.checkpoint.resume"
_STATE = re.compile(r"step-(\d{1,18})\.pt")

Piece = tuple[Run, Series]
Reader = Callable[[Run], Series | None]


class Ancestry:
    """The runs that some runs were started from, found with one query a generation."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._by_uid: dict[str, Run] = {}
        for _, members in itertools.groupby(runs, lambda run: run.store):
            self._find(list(members))

    def _find(self, runs: list[Run]) -> None:
        for _ in range(_MAX_ANCESTORS):
            prefetch(runs, ["parent", _START, "start_time"])
            wanted = {uid for run in runs if (uid := _parent_of(run))} - self._by_uid.keys()
            if not wanted:
                return
            parents = runs[0].store.find({"uid": {"$in": sorted(wanted)}})
            runs = [run.listed() for run in parents]
            prefetch(runs, ["metrics"])
            self._by_uid |= {run.uid: run for run in runs if run.uid}

    def of(self, run: Run) -> Iterator[tuple[Run, Run]]:
        """Yield each ancestor of a run with the run that was started from it, the parent first."""
        seen = {run.uid}
        if not self._by_uid:
            return  # the parent of each run would be asked of the store
        while (parent := self._by_uid.get(_parent_of(run))) is not None and parent.uid not in seen:
            yield parent, run
            seen.add(parent.uid)
            run = parent

    def pieces(self, run: Run, own: Series, read: Reader) -> list[Piece]:
        """Return the pieces of a joined curve, oldest first, the run's own last; `read` may return None."""
        pieces = [(run, own)]
        first = float(np.min(own.steps)) if len(own) else -math.inf
        for parent, child in self.of(run):
            first = min(first, _first_step(child))
            series = _readable(parent, read)
            if series is None or not (kept := series.steps < first).any():
                continue
            parts = {name: getattr(series, name)[kept] for name in ("steps", "values", "times")}
            pieces.insert(0, (parent, dataclasses.replace(series, **parts)))
            first = float(np.min(parts["steps"]))
        return pieces


def _parent_of(run: Run) -> str:
    uid = run.get("parent")
    return uid if isinstance(uid, str) else ""  # a foreign record may hold anything


def _first_step(child: Run) -> float:
    """Return the smallest step that a run can log itself, if the name of its first state reveals it."""
    start = child.get(_START)
    state = _STATE.fullmatch(PurePath(start).name) if isinstance(start, str) else None
    return int(state[1]) + 1 if state else math.inf


def _readable(run: Run, read: Reader) -> Series | None:
    try:
        return read(run)
    except StoreAwayError:
        raise
    except StoreError:  # a damaged ancestor does not hide the run's own points
        return None


def joined_series(pieces: Sequence[Piece], *, on_wall: bool = False) -> Series:
    """Return the points of the pieces from `Ancestry.pieces` in one series.

    By default, an ancestor's last point is at 0 s, the start of the run, so that pauses between runs do not count. With
    `on_wall`, times keep their distance on the clock.
    """
    times: list[np.ndarray] = []
    start = 0.0
    for piece, series in reversed(pieces):
        if on_wall:
            start = _start_s(piece) - _start_s(pieces[-1][0])
        elif times:
            start -= float(np.max(series.times))
        times.insert(0, series.times + start)
    parts = [series for _, series in pieces]
    joined = {name: np.concatenate([getattr(one, name) for one in parts]) for name in ("steps", "values")}
    return dataclasses.replace(parts[-1], **joined, times=np.concatenate(times))


def _start_s(run: Run) -> float:
    return run.start_time.timestamp() if run.start_time else 0.0


def run_curve(pieces: Sequence[Piece], label: str, x: str) -> Curve:
    """Return the curve of one run with all points, ancestors first; `own_from` is where its own points begin.

    Raises PlotError if the axis shows epochs and the record of the run has none. For `x`, see
    `sacristan.runs.drawing.curve.curve_of`; of a metric or expression, each point has the last value up to its step.
    """
    run, own = pieces[-1]
    others = None
    num_points = sum(len(series) for _, series in pieces)
    if x == "epoch":
        pieces, others = _with_epochs(pieces)
    elif x not in X_AXES:
        others = np.concatenate([_values_at(run, series.steps, x) for run, series in pieces])
    series = joined_series(pieces, on_wall=x == "wall")
    curve = curve_of(series, label, x, others=others, start_s=_start_s(run))
    if num_lacking := num_points - len(series):
        left_out = {**curve.left_out, "of earlier runs, whose epochs are not known or not earlier": num_lacking}
        curve = dataclasses.replace(curve, left_out=left_out)
    if len(pieces) == 1 or not len(own):
        return curve
    positions = {"step": series.steps, "time": series.times, "wall": _start_s(run) + series.times}.get(x, others)
    first = np.asarray(positions, float)[-len(own) :]
    return dataclasses.replace(curve, own_from=float(np.nanmin(first))) if np.isfinite(first).any() else curve


def _values_at(run: Run, steps: np.ndarray, name: str) -> np.ndarray:
    """Return the last value of a metric or expression up to each of (n,) steps; NaN where there is none."""
    quantity = Quantity.of(name, run.metrics)
    if not quantity.is_of(run) or not len(steps):
        return np.full(len(steps), np.nan)
    known, values = values_by_step(next(quantity.each_series([run]))[1])
    at = np.searchsorted(known, steps, "right") - 1
    return np.where(at >= 0, values[at], np.nan) if len(known) else np.full(len(steps), np.nan)


def _with_epochs(pieces: Sequence[Piece]) -> tuple[list[Piece], np.ndarray]:
    """Return the pieces whose epochs are known and do not exceed those of the next piece, and the epochs."""
    kept: list[Piece] = []
    epochs: list[np.ndarray] = []
    for run, series in reversed(pieces):
        numbers = run.epochs_at(series.steps)
        if numbers is None:
            break
        shown = numbers <= np.min(epochs[0]) if epochs and len(epochs[0]) else np.ones(len(numbers), bool)
        parts = {name: getattr(series, name)[shown] for name in ("steps", "values", "times")}
        kept.insert(0, (run, dataclasses.replace(series, **parts)))
        epochs.insert(0, numbers[shown])
    if not kept:
        raise PlotError(
            f"run {pieces[-1][0].id}: its record has no epochs; log a metric named epoch, or draw over steps"
        )
    return kept, np.concatenate(epochs)


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A metric, or an expression of metrics: its text, the metrics' names, and a formula if it is no plain metric."""

    text: str
    names: tuple[str, ...]
    formula: Formula | None = None

    @classmethod
    def of(cls, text: str, metrics: Collection[str]) -> Quantity:
        """Parse a quantity; the name of a metric in `metrics` is never an expression. May raise PlotError."""
        if text in metrics:
            return cls(text, (text,))
        parser = _Parser(text)
        formula = parser.whole()
        names = tuple(dict.fromkeys(parser.names))
        if names == (text,) or not names:
            return cls(text, (text,))
        return cls(text, names, formula)

    def is_of(self, run: Run) -> bool:
        """Tell whether a run has all of the metrics."""
        return set(self.names) <= set(run.metrics)

    def each_series(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Series]]:
        """Yield each run, which has all metrics, with the quantity's points at the steps that all of them have."""
        if self.formula is None:
            yield from each_series(runs, self.names[0])
            return
        for pairs in zip(*(each_series(runs, name) for name in self.names), strict=True):
            yield pairs[0][0], self._computed([series for _, series in pairs])

    def _computed(self, parts: Sequence[Series]) -> Series:
        assert self.formula is not None
        firsts = [_last_of_each_step(series) for series in parts]
        steps = functools.reduce(np.intersect1d, (steps for steps, _ in firsts))
        chosen = [positions[np.searchsorted(own, steps)] for own, positions in firsts]
        values = {
            name: np.asarray(series.values[where], float)
            for name, series, where in zip(self.names, parts, chosen, strict=True)
        }
        with np.errstate(all="ignore"):
            result = np.broadcast_to(np.asarray(self.formula(values), float), steps.shape)
        return dataclasses.replace(parts[0], steps=steps, values=result, times=parts[0].times[chosen[0]])


def values_by_step(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a series, ascending, and the last value of each."""
    steps, positions = _last_of_each_step(series)
    return steps, np.asarray(series.values[positions], float)


def _last_of_each_step(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a series, ascending, and the position of the last point of each."""
    steps, from_end = np.unique(series.steps[::-1], return_index=True)
    return steps, len(series.steps) - 1 - from_end


class _Parser:
    """Parses one expression by recursive descent; `names` are the metrics that it names."""

    def __init__(self, text: str) -> None:
        self.names: list[str] = []
        self._text = text
        self._tokens = list(self._tokenized()) if len(text) <= _MAX_LENGTH else []
        if not self._tokens:
            raise self._error(f"expected a metric or an expression of at most {_MAX_LENGTH} characters")
        self._place = self._depth = 0

    def _tokenized(self) -> Iterator[tuple[str, str]]:
        position, end = 0, len(self._text.rstrip())
        while position < end:
            match = _TOKEN.match(self._text, position)
            if match is None or match.lastgroup is None:
                raise self._error(f"cannot read {self._text[position : position + 20]!r}")
            yield match.lastgroup, unquoted(match[match.lastgroup])
            position = match.end()

    def _error(self, why: str) -> PlotError:
        example = "write it like val/loss - train/loss, and other names between backticks"
        return PlotError(f"got the expression {self._text[:100]!r}: {why}; {example}")

    def _next(self, *operators: str) -> str:
        """Consume and return the next operator if it is one of these; otherwise return an empty text."""
        kind, token = self._tokens[self._place] if self._place < len(self._tokens) else ("", "")
        if kind != "operator" or token not in operators:
            return ""
        self._place += 1
        return token

    def whole(self) -> Formula:
        formula = self._sum()
        if self._place < len(self._tokens):
            raise self._error(f"expected an operator before {self._tokens[self._place][1]!r}")
        return formula

    def _sum(self) -> Formula:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested more than {_MAX_DEPTH} deep")
        formula = self._chain(("+", "-"), lambda: self._chain(("*", "/"), self._factor))
        self._depth -= 1
        return formula

    def _chain(self, operators: tuple[str, ...], part: Callable[[], Formula]) -> Formula:
        formula = part()
        while operator := self._next(*operators):
            formula = _applied(_BINARY[operator], formula, part())
        return formula

    def _factor(self) -> Formula:
        num_signs = 0
        while self._next("-"):
            num_signs += 1
        formula = self._atom()
        if self._next("**"):
            formula = _applied(np.power, formula, self._factor())
        return _applied(np.negative, formula) if num_signs % 2 else formula

    def _atom(self) -> Formula:
        if self._next("("):
            return self._closed([self._sum()])[0]
        if self._place == len(self._tokens):
            raise self._error("it ends too early")
        kind, token = self._tokens[self._place]
        self._place += 1
        if kind == "number":
            number = np.asarray(float(token))
            return lambda values: number
        if kind == "name" and token in _FUNCTIONS and self._next("("):
            return self._call(token)
        if kind == "operator":
            raise self._error(f"expected a metric instead of {token!r}")
        self.names.append(token)
        return lambda values: values[token]

    def _call(self, name: str) -> Formula:
        num, function = _FUNCTIONS[name]
        arguments = [self._sum()]
        while self._next(","):
            arguments.append(self._sum())
        if len(arguments) != num:
            raise self._error(f"{name} takes {num} argument{'s' * (num > 1)}, got {len(arguments)}")
        return _applied(function, *self._closed(arguments))

    def _closed(self, formulas: list[Formula]) -> list[Formula]:
        if not self._next(")"):
            raise self._error("a parenthesis is not closed")
        return formulas


def _applied(function: Callable[..., np.ndarray], *formulas: Formula) -> Formula:
    return lambda values: function(*(formula(values) for formula in formulas))
