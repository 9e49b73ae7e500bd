"""Rules of a split, at random, by the groups or the times in a column, in folds; and samples drawn by them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.datasets.csv_cells import as_numbers
from sacristan.ingredients.errors import DataError

# A text of ISO 8601 with a time of day and a zone: Z, +01:00, +0100 or +01.
_ZONED = r"[T ]\d\d.*(?:[zZ]|[+-]\d\d(?::?\d\d)?)$"

# Groups are dealt in random order this often at most, and so that about so many are dealt in all; the best one counts.
_DEALS, _DEALT = 20, 20_000
# Classes are balanced over groups if there are at most so many counts of a class in a group.
_MAX_COUNTS = 20_000_000


@dataclasses.dataclass(frozen=True)
class Fold:
    """One of `count` folds; `number` counts from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str | None) -> Fold | None:
        """Return the fold that `data.fold` asks for, such as 2/5; None without one."""
        if text is None:
            return None
        match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        fold = cls(*map(int, match.groups())) if match else None
        if fold is None or not max(fold.number, 2) <= fold.count:
            raise DataError(
                f"data.fold: got {text!r}, expected the number of a fold and how many there are, from 1/5 to 5/5"
            )
        return fold


@dataclasses.dataclass(frozen=True)
class SplitRule:
    """The rule of `data.split`: `group` keeps samples with one value together, `time` puts later ones into later parts.

    `column` is a column, array, key or attribute, or a pattern in names of files; `format` is that of times, as
    `strptime` takes it, None for numbers and ISO 8601.
    """

    text: str
    kind: Literal["random", "group", "time"]
    column: str | None = None
    format: str | None = None

    @classmethod
    def parse(cls, text: str) -> SplitRule:
        """Return the rule in a text: random, group:COLUMN, time:COLUMN or time:COLUMN:FORMAT."""
        kind, colon, column = text.partition(":")
        if kind not in ("random", "group", "time") or (kind == "random") == bool(colon) or bool(colon) != bool(column):
            hint = suggestion(kind, ("random", "group", "time") if colon else (), "write one of these")
            raise DataError(f"data.split: got {text!r}, expected random, group:COLUMN or time:COLUMN; {hint}")
        parts = re.fullmatch("(.+?):(%.*)", column) if kind == "time" else None
        name, format = parts.groups() if parts else (column or None, None)
        return cls(text, cast(Any, kind), name, format)

    def codes(self, values: np.ndarray | None, count: int) -> np.ndarray:
        """Return groups or times (later ones higher) as int64 (samples,) from 0; `values` may be missing."""
        if values is None or values.shape != (count,):
            shape = "no such values" if values is None else f"values of shape {values.shape}"
            raise DataError(
                f"data.split={self.text}: the data have {shape}, expected {self.column!r} with one value per sample: a "
                "column, an array of an npz, a key of dict samples, or an attribute of the dataset"
            )
        values = self._complete(values)
        keys = np.strings.strip(values.astype(str)) if self.kind == "group" else self._times(values)
        return np.unique(keys, return_inverse=True)[1].astype(np.int64)

    def _complete(self, values: np.ndarray) -> np.ndarray:
        """Return values without objects where they are plain; reject missing ones."""
        import pandas

        missing = np.asarray(pandas.isna(values))
        if values.dtype.kind == "O":
            compound = next((value for value in values.tolist() if isinstance(value, list | tuple | dict)), None)
            if compound is not None:
                raise DataError(f"data.split={self.text}: got {compound} in {self.column!r}, expected single values")
        if values.dtype.kind in "OUT":
            missing = missing | np.array([value == "" for value in values.tolist()], bool)
        if missing.any():
            raise DataError(
                f"data.split={self.text}: {missing.sum()} of {len(values)} samples lack a value of {self.column!r}, "
                f"the first is sample {np.argmax(missing)} (from 0); fill them in, or remove those samples"
            )
        return np.asarray(values.tolist()) if values.dtype.kind in "OT" else values

    def _times(self, values: np.ndarray) -> np.ndarray:
        """Return times as values that can be ordered: numbers as they are, instants in UTC."""
        import pandas

        if self.format is None and values.dtype.kind in "biufM":
            return values
        is_text = self.format is not None or values.dtype.kind == "U"
        times = pandas.Series(values.astype(str) if is_text else values, dtype=object)
        if self.format is None and is_text and (numbers := as_numbers(times)) is not None:
            return numbers.to_numpy()
        if self.format is None:
            zoned = times.str.contains(_ZONED) if is_text else times.map(lambda time: getattr(time, "tzinfo", None))
            self._check_zones(times, zoned.astype(bool) if is_text else zoned.notna())
        format = self.format or ("ISO8601" if is_text else None)
        try:
            instants = pandas.to_datetime(times, format=format, utc=True, errors="coerce")
        except (ValueError, TypeError) as error:
            raise DataError(f"data.split={self.text}: {times.iloc[0]} cannot be read as a time: {error}") from error
        if instants.isna().any():
            expected = f"a time written as {self.format}" if self.format else "a number or a time of ISO 8601"
            raise DataError(
                f"data.split={self.text}: got {times[instants.isna()].iloc[0]!r}, expected {expected}; write the "
                f"format behind the column, such as data.split='time:{self.column}:%d.%m.%Y'"
            )
        return instants.dt.tz_localize(None).to_numpy()

    def _check_zones(self, times: Any, zoned: Any) -> None:
        """Reject times some of which have a time zone, and others not: their order is not known."""
        if zoned.any() and not zoned.all():
            raise DataError(
                f"data.split={self.text}: {times[zoned].iloc[0]} has a time zone and {times[~zoned].iloc[0]} has none, "
                "so their order is unknown; give all of them a time zone, or none"
            )


RANDOM = SplitRule("random", "random")


def default_test_fraction(split: str, fold: str | None) -> float:
    """Return the default of `data.test_fraction`: 0.15, or a fold; those by time keep one more block to train on."""
    if (parsed := Fold.parse(fold)) is None:
        return 0.15
    return 1 / (parsed.count + (SplitRule.parse(split).kind == "time"))


def values_in_names(names: Sequence[str], rule: SplitRule, *, strict: bool) -> np.ndarray | None:
    """Return what the rule's pattern matches in file names: its group or whole; None, or raise if `strict`."""
    if rule.column is None:
        return None
    try:
        pattern = re.compile(rule.column)
    except re.error as error:
        raise DataError(f"data.split={rule.text}: {rule.column!r} is no regular expression: {error}") from error
    matches = [pattern.search(name) for name in names]
    if all(matches):
        return np.array([match[1 if pattern.groups else 0] or "" for match in matches if match])
    if not strict:
        return None
    raise DataError(
        f"data.split={rule.text}: {names[matches.index(None)]} does not match {rule.column!r}; write a regular "
        r"expression that finds the value in the path of every file, such as 'group:patient\d+'"
    )


@dataclasses.dataclass
class Cutter:
    """Draws shares and folds of samples by a rule, with labels to balance and codes of groups or times (samples,)."""

    rule: SplitRule
    labels: np.ndarray | None
    codes: np.ndarray | None
    rng: np.random.Generator

    def cut(self, free: np.ndarray, share: float, num_left: int) -> np.ndarray:
        """Return about `share` of `free`, so that the rest can be cut into `num_left` parts."""
        if self.codes is None:
            return _draw(free, self.labels, share, self.rng)
        if not share or not len(free):
            return free[:0]
        codes = self.codes[free]
        self._check_enough(codes, num_left + 1)
        if self.rule.kind == "group":
            return free[_dealt(codes, self._labels_of(free), [1 - share, share], self.rng, num_left) == 1]
        edges = _edges(codes)[num_left - 1 :]
        edge = edges[np.abs(edges - len(free) * (1 - share)).argmin()]
        return free[np.argsort(codes, kind="stable")[edge:]]

    def fold(self, free: np.ndarray, fold: Fold) -> tuple[np.ndarray, np.ndarray]:
        """Return a fold of `free`, and the samples that are then in no part."""
        count, by_time = fold.count, self.rule.kind == "time"
        codes = np.arange(len(free)) if self.codes is None else self.codes[free]
        self._check_enough(codes, count + by_time)
        if by_time:
            order, size, edges = np.argsort(codes, kind="stable"), len(free) / (count + 1), _edges(codes)
            bounds, first = [], 0
            for number in range(1, count + 1):
                # The nearest change of the time that leaves one for each of the later folds.
                reach = edges[first : len(edges) - (count - number)]
                first += int(np.abs(reach - number * size).argmin()) + 1
                bounds.append(int(edges[first - 1]))
            start, end = [*bounds, len(free)][fold.number - 1 : fold.number + 1]
            return free[order[start:end]], free[order[end:]]
        if self.codes is None:
            numbers = np.empty(len(free), np.int64)
            numbers[np.lexsort((self.rng.permutation(len(free)), self._labels_of(free)))] = np.arange(len(free)) % count
        else:
            numbers = _dealt(codes, self._labels_of(free), [1 / count] * count, self.rng)
        return free[numbers == fold.number - 1], free[:0]

    def _labels_of(self, free: np.ndarray) -> np.ndarray:
        return np.zeros(len(free), np.int8) if self.labels is None else self.labels[free]

    def _check_enough(self, codes: np.ndarray, least: int) -> None:
        count = len(np.unique(codes))
        if count < least:
            kinds = {"random": "samples", "group": "groups", "time": "different times"}
            raise DataError(
                f"data.split={self.rule.text}: there are {count} {kinds[self.rule.kind]} to split, expected at least "
                f"{least}; ask for fewer folds or parts, or give more data"
            )


def _edges(codes: np.ndarray) -> np.ndarray:
    """Return the positions in sorted codes where the next code starts."""
    return np.cumsum(np.unique(codes, return_counts=True)[1])[:-1]


def _draw(free: np.ndarray, labels: np.ndarray | None, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw round(share * len(free)) of `free`; stratified by class, if given, with the largest remainder method."""
    total = round(share * len(free))
    if labels is None:
        return rng.permutation(free)[:total]
    classes, inverse = np.unique(labels[free], return_inverse=True)
    exact = np.bincount(inverse, minlength=len(classes)) * share
    quota = np.floor(exact).astype(int)
    by_remainder = np.lexsort((rng.permutation(len(classes)), -(exact - quota)))
    quota[by_remainder[: total - quota.sum()]] += 1
    return np.concatenate([rng.permutation(free[inverse == k])[: quota[k]] for k in range(len(classes))] or [free[:0]])


def _dealt(
    codes: np.ndarray, labels: np.ndarray, shares: Sequence[float], rng: np.random.Generator, num_first: int = 1
) -> np.ndarray:
    """Assign groups to bins so that every bin gets about its share of the samples, and of every class.

    `codes` and `labels` are the group and class of each sample, and the result is its bin, all (samples,). The first
    bin gets at least `num_first` groups, the others one. Each group goes to the bin that lacks its samples most; the
    best of several random orders counts. All arithmetic is on integers, so every machine gets the same bins.
    """
    groups, codes = np.unique(codes, return_inverse=True)
    classes, labels = np.unique(labels, return_inverse=True)
    if len(groups) * len(classes) > _MAX_COUNTS:
        classes, labels = classes[:1], np.zeros_like(labels)
    shape = len(groups), len(classes)
    counts = np.bincount(codes * shape[1] + labels, minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.concatenate([counts, counts.sum(1, keepdims=True)], 1).astype(np.int64)
    totals = counts.sum(0)
    # The same share of a rare class counts as much as that of a common one.
    scale = (len(codes) // totals) ** 2
    scaled = counts * scale
    wanted = np.rint(np.outer(shares, totals)).astype(np.int64)
    best, least = np.zeros(len(groups), np.int64), None
    for _ in range(min(_DEALS, _DEALT // len(groups) + 1)):
        bins, lacking = np.empty(len(groups), np.int64), wanted.copy()
        owed = [num_first] + [1] * (len(shares) - 1)
        for left, group in zip(range(len(groups), 0, -1), rng.permutation(len(groups)).tolist(), strict=True):
            scores = lacking @ scaled[group]
            if left <= sum(owed):
                scores = np.where(np.array(owed) > 0, scores, np.iinfo(np.int64).min)
            chosen = int(scores.argmax())
            bins[group] = chosen
            lacking[chosen] -= counts[group]
            owed[chosen] = max(owed[chosen] - 1, 0)
        error = int((lacking**2 @ scale).sum())
        if least is None or error < least:
            best, least = bins, error
    return best[codes]
