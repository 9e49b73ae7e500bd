"""Columns of a table as numbers: categories become an input of 0 or 1 for each of their values."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingredients.datasets.whole_numbers import tell_merged
from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["TableColumns"]

_log = logging.getLogger(__name__)

# More values than these are names or free text, and no categories.
_MAX_CATEGORIES = 1000


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Columns of a table that inputs are made of.

    Attributes:
        columns: Their names, in order.
        categories: Values, as text, of each of them that holds categories.
        chosen: Whether they were chosen, so that a table may have others beside them.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    chosen: bool = False

    @classmethod
    def fitted(
        cls, frame: pandas.DataFrame, categorical: str | Sequence[str] | None, where: str, *, chosen: bool
    ) -> TableColumns:
        """Return how to encode the columns of a frame.

        Args:
            frame: The inputs.
            categorical: Columns of categories; `auto` takes those of text.
            where: The setting that names the table, for messages.
            chosen: Whether the columns were chosen by name.

        Raises:
            DataError: If a column of text is not among the categories, or they are too many.
        """
        columns = tuple(frame.columns)
        text = [name for name in columns if frame[name].dtype.kind not in "biuf"]
        names = text if categorical == "auto" else [categorical] if isinstance(categorical, str) else categorical or []
        strange = [name for name in names if name not in columns]
        if strange:
            raise DataError(f"data.categorical: {where} has no input {strange[0]!r}; its inputs are {_listed(columns)}")
        left = [name for name in text if name not in names]
        if left:
            raise DataError(
                f"{where}: has text in the columns {_listed(left)}; take them for categories "
                f"(data.categorical={_as_setting(left)}), or choose others with data.columns"
            )
        categories = {name: tuple(map(_value_name, _distinct(frame[name]))) for name in names}
        many = next((name for name, values in categories.items() if len(values) > _MAX_CATEGORIES), None)
        if many is not None:
            raise DataError(
                f"data.categorical: {many} of {where} has {len(categories[many]):,} values, expected at most "
                f"{_MAX_CATEGORIES:,}; leave it out with data.columns, or group its values"
            )
        return cls(columns, categories, chosen)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs: those of the columns, and COLUMN=VALUE for each value of a category."""
        return tuple(
            feature
            for name in self.columns
            for feature in (
                [f"{name}={value}" for value in self.categories[name]] if name in self.categories else [name]
            )
        )

    def encode(self, frame: pandas.DataFrame, dtype: str, where: str, *, strict: bool) -> np.ndarray:
        """Return the columns of a frame as an array (rows, features).

        Args:
            frame: It has our columns.
            dtype: `float32`, or `int64` for whole numbers.
            where: The setting that names the table, for messages.
            strict: Whether categories that are not ours are refused; else they are told, and all of their inputs are 0.

        Raises:
            DataError: If a column is no number, or not whole where it has to be.
        """
        parts = []
        for name in self.columns:
            column = frame[name]
            if name in self.categories:
                part = _one_hot(column, self.categories[name], f"{where}: the column {name}", strict=strict)
            elif column.dtype.kind not in "biuf":
                raise DataError(f"{where}: has text in the column {name}, expected numbers")
            else:
                part = column.to_numpy()[:, None]
            if dtype == "int64" and part.dtype.kind == "f" and not (part == np.round(part)).all():
                raise DataError(
                    f"data.dtype=int64: the column {name} of {where} holds fractions or lacks values, expected whole "
                    "numbers; leave it out with data.columns, or take data.dtype=float32"
                )
            if dtype == "float32":
                tell_merged(part, f"{where}: the column {name}")
            parts.append(part.astype(dtype))
        return np.concatenate(parts, 1) if parts else np.zeros((len(frame), 0), dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values, which a checkpoint may hold."""
        return {**dataclasses.asdict(self), "categories": dict(self.categories)}


def _distinct(column: pandas.Series) -> list[Any]:
    return sorted(column.dropna().unique().tolist())


def _value_name(value: Any) -> str:
    """Return a value as text; a whole number as an int, though gaps in a column make it a float."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _one_hot(column: pandas.Series, values: Sequence[str], where: str, *, strict: bool) -> np.ndarray:
    """Return an array (rows, values) of 0 and 1; where the value is missing, NaN."""
    place = {value: number for number, value in enumerate(values)}
    is_there = column.notna().to_numpy()
    names = [_value_name(value) if there else "" for value, there in zip(column.tolist(), is_there, strict=True)]
    unknown = sorted({name for name, there in zip(names, is_there, strict=True) if there and name not in place})
    if unknown:
        text = f"{where} holds {_listed(unknown)}, which the checkpoint was not trained on"
        if strict:
            raise DataError(f"{text}; correct or remove those rows")
        _log.warning("%s; all inputs of that column are 0 there", text)
    hot = np.zeros((len(names), len(values)), np.float32)
    rows = [row for row, name in enumerate(names) if name in place and is_there[row]]
    hot[rows, [place[names[row]] for row in rows]] = 1
    hot[~is_there] = np.nan
    return hot


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(str, names[:10])) + (", ..." if len(names) > 10 else "")


def _as_setting(names: Sequence[str]) -> str:
    return "'[" + ", ".join(f'"{name}"' for name in names) + "]'"
