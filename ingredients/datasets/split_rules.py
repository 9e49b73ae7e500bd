"""Rules of a split: at random, by the groups or the times in a column, in folds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.datasets.csv_cells import as_numbers
from sacristan.ingredients.errors import DataError

__all__ = ["RANDOM", "Fold", "Rule", "default_test_fraction", "values_in_names"]

# A text of ISO 8601 with a time of day and a zone: Z, +01:00, +0100 or +01.
_ZONED = r"[T ]\d\d.*(?:[zZ]|[+-]\d\d(?::?\d\d)?)$"


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
class Rule:
    """The rule of `data.split`.

    Attributes:
        kind: `group` keeps samples with the same value together; `time` puts later ones into later parts.
        column: Column, array, key or attribute with the values, or a pattern in the names of files.
        format: Format of the times, as `strptime` takes it; None for numbers and ISO 8601.
    """

    text: str
    kind: Literal["random", "group", "time"]
    column: str | None = None
    format: str | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Return the rule in a text: random, group:COLUMN, time:COLUMN or time:COLUMN:FORMAT."""
        kind, colon, column = text.partition(":")
        if kind not in ("random", "group", "time") or (kind == "random") == bool(colon) or bool(colon) != bool(column):
            hint = suggestion(kind, ("random", "group", "time") if colon else (), "write one of these")
            raise DataError(f"data.split: got {text!r}, expected random, group:COLUMN or time:COLUMN; {hint}")
        parts = re.fullmatch("(.+?):(%.*)", column) if kind == "time" else None
        name, format = parts.groups() if parts else (column or None, None)
        return cls(text, cast(Any, kind), name, format)

    def codes(self, values: np.ndarray | None, count: int) -> np.ndarray:
        """Return the groups or times of samples as numbers from 0, int64 (samples,); later times have higher ones.

        `values` is None if the data have no such column.
        """
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


RANDOM = Rule("random", "random")


def default_test_fraction(split: str, fold: str | None) -> float:
    """Return the default of `data.test_fraction`: the share of a fold; 0.15 without folds.

    Folds by time leave the oldest of `count` + 1 blocks to train on.
    """
    if (parsed := Fold.parse(fold)) is None:
        return 0.15
    return 1 / (parsed.count + (Rule.parse(split).kind == "time"))


def values_in_names(names: Sequence[str], rule: Rule, *, strict: bool) -> np.ndarray | None:
    """Return what the rule's pattern, its column, matches in file names: the first group, else the whole match.

    If a name does not match, `strict` raises; otherwise the result is None.
    """
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
