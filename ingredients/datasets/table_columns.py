"""Columns of a table as numbers: categories become an input of 0 or 1 for each of their values, or one code."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ingredients.datasets.csv_cells import GAPS_OF_PANDAS
from ingredients.datasets.whole_numbers import tell_merged
from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["TableColumns"]

_log = logging.getLogger(__name__)

# More values than these are names or free text, and no categories.
_MAX_CATEGORIES = 1000
# In fewer rows, categories may well be all different.
_MIN_ROWS = 50
# What the numbers of samples, customers and so on are called.
_ID = re.compile(r"(^|[_ .-])(id|uuid|index)$", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Columns of a table that inputs are made of.

    Attributes:
        columns: Their names, in order.
        categories: Values, as text, of each of them that holds categories; "" stands for a missing one.
        chosen: Whether they were chosen, so that a table may have others beside them.
        encoding: What a category becomes: `one_hot`, an input of 0 or 1 for each value, or `codes`, a whole number, for
            models with embeddings. Value k of N has the code k + 1; 0 is a value that is not among them.
        missing: `refuse`, or `fill`: missing numbers are left NaN, to be filled with the mean, and missing categories
            are a value of their own.
        gaps: Columns of numbers with missing values that are filled; each has a further input that is 1 there.
        verbatim: Whether a category is the text that stands in a file; in tables of earlier versions, numbers among
            them are named as such.
        na_values: Texts of a file that stand for a missing value, beside an empty cell.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    chosen: bool = False
    encoding: str = "one_hot"
    missing: str = "refuse"
    gaps: tuple[str, ...] = ()
    verbatim: bool = False
    na_values: tuple[str, ...] = GAPS_OF_PANDAS

    @classmethod
    def fitted(
        cls,
        frame: pandas.DataFrame,
        categorical: str | Sequence[str] | None,
        where: str,
        *,
        chosen: bool,
        encoding: str = "one_hot",
        missing: str = "refuse",
        verbatim: bool = False,
        na_values: tuple[str, ...] = GAPS_OF_PANDAS,
    ) -> TableColumns:
        """Return how to encode the columns of a frame.

        Args:
            frame: The inputs.
            categorical: Columns of categories; `auto` takes those of text.
            where: The setting that names the table, for messages.
            chosen: Whether the columns were chosen by name.
            encoding, missing, verbatim, na_values: See the class.

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
        filled = [name for name in columns if missing == "fill" and frame[name].isna().any()]
        categories = {name: tuple(map(_value_name, _distinct(frame[name]))) for name in names}
        _tell_unique(frame, categories, where)
        if not chosen:
            _tell_ids(frame[[name for name in columns if name not in categories]], where)
        categories |= {name: ("", *values) for name, values in categories.items() if name in filled}
        many = next((name for name, values in categories.items() if len(values) > _MAX_CATEGORIES), None)
        if many is not None:
            raise DataError(
                f"data.categorical: {many} of {where} has {len(categories[many]):,} values, expected at most "
                f"{_MAX_CATEGORIES:,}; leave it out with data.columns, or group its values"
            )
        gaps = tuple(name for name in filled if name not in categories)
        return cls(columns, categories, chosen, encoding, missing, gaps, verbatim, na_values)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs: those of the columns, and COLUMN=VALUE for each value of a category that has no code.

        A column of numbers with gaps is followed by COLUMN=missing.
        """
        return tuple(feature for name in self.columns for feature in self._features_of(name))

    def _features_of(self, name: str) -> list[str]:
        if name in self.categories and self.encoding == "one_hot":
            return [f"{name}={value}" for value in self.categories[name]]
        return [name, f"{name}=missing"] if name in self.gaps else [name]

    @property
    def code_counts(self) -> dict[int, int]:
        """How many codes there are in each input that is one, by its place among the inputs."""
        if self.encoding == "one_hot":
            return {}
        features = self.features
        return {features.index(name): len(values) + 1 for name, values in self.categories.items()}

    def encode(self, frame: pandas.DataFrame, dtype: str, where: str, *, strict: bool) -> np.ndarray:
        """Return the columns of a frame as an array (rows, features).

        Args:
            frame: It has our columns.
            dtype: `float32`, or `int64` for whole numbers.
            where: The setting that names the table, for messages.
            strict: Whether values of one-hot categories that are not ours are refused; else they are told, and all of
                their inputs are 0. Codes have one for them.

        Raises:
            DataError: If a column is no number, or not whole where it has to be.
        """
        parts = []
        for name in self.columns:
            column = frame[name]
            if name in self.categories:
                part = self._encode(column, name, f"{where}: the column {name}", strict=strict)
            elif column.dtype.kind not in "biuf":
                _refuse_text(column, where)
            else:
                part = column.to_numpy()[:, None]
                if name in self.gaps:
                    part = np.concatenate([part, np.isnan(part)], 1)
            if dtype == "int64" and part.dtype.kind == "f" and not (part == np.round(part)).all():
                raise DataError(
                    f"data.dtype=int64: the column {name} of {where} holds fractions or lacks values, expected whole "
                    "numbers; leave it out with data.columns, or take data.dtype=float32"
                )
            if dtype == "float32":
                tell_merged(part, f"{where}: the column {name}")
            parts.append(part.astype(dtype))
        return np.concatenate(parts, 1) if parts else np.zeros((len(frame), 0), dtype)

    def _encode(self, column: pandas.Series, name: str, where: str, *, strict: bool) -> np.ndarray:
        values, is_code = self.categories[name], self.encoding == "codes"
        codes = _codes(
            column,
            values,
            where,
            strict=strict and not is_code,
            fate="its code is 0" if is_code else "all inputs of that column are 0",
        )
        encoded = codes[:, None] if is_code else np.eye(len(values) + 1, dtype=np.float32)[codes, 1:]
        # A missing value that is none of ours is left to be refused, or filled; a code has 0 for it.
        if self.missing == "refuse" or (not is_code and "" not in values):
            encoded = np.where(column.isna().to_numpy()[:, None], np.nan, encoded)
        return encoded.astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values, which a checkpoint may hold."""
        return {**dataclasses.asdict(self), "categories": dict(self.categories)}


def _distinct(column: pandas.Series) -> list[Any]:
    """Return the values of a column in order; texts that are all numbers in the order of those."""
    import pandas

    values = sorted(column.dropna().unique().tolist())
    numbers = pandas.to_numeric(pandas.Series(values, dtype=object), errors="coerce")
    return values if numbers.isna().any() else [values[place] for place in numbers.argsort(kind="stable")]


def _tell_unique(frame: pandas.DataFrame, categories: Mapping[str, Sequence[str]], where: str) -> None:
    """Warn of categories that hardly any two rows share: names, dates, or numbers in a form that is not read."""
    for name, values in categories.items():
        count = int(frame[name].notna().sum())
        if count >= _MIN_ROWS and len(values) > count / 2:
            _log.warning(
                "%s: the column %s has %d categories in %d rows, such as %s; names, dates, and numbers such as '3,14' "
                "tell a model nothing as categories: leave the column out with data.columns, or correct it",
                where,
                name,
                len(values),
                count,
                _listed(list(map(repr, values[:3]))),
            )


def _tell_ids(frame: pandas.DataFrame, where: str) -> None:
    """Warn of whole numbers of which no two rows share one, and which are called an id, or count the rows."""
    for name in frame.columns:
        values = frame[name].dropna()
        if len(values) < _MIN_ROWS or values.dtype.kind not in "iuf" or not values.is_unique:
            continue
        if not bool((values % 1 == 0).all()):
            continue
        counts = int(values.max()) - int(values.min()) == len(values) - 1
        if counts or _ID.search(str(name)):
            _log.warning(
                "%s: the column %s looks like an id: each row has another whole number there, which tells a model "
                "nothing about other rows; leave the column out by naming the inputs with data.columns",
                where,
                name,
            )


def _value_name(value: Any) -> str:
    """Return a value as text; a whole number as an int, though gaps in a column make it a float."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _codes(column: pandas.Series, values: Sequence[str], where: str, *, strict: bool, fate: str) -> np.ndarray:
    """Return the place of each value among `values`, from 1 on, int64 (rows,); 0 for those that are not there."""
    place = {value: number for number, value in enumerate(values, 1)}
    is_there = column.notna().to_numpy()
    names = [_value_name(value) if there else "" for value, there in zip(column.tolist(), is_there, strict=True)]
    unknown = sorted({name for name, there in zip(names, is_there, strict=True) if there and name not in place})
    if unknown:
        text = f"{where} holds {_listed(unknown)}, which the checkpoint was not trained on"
        if strict:
            raise DataError(f"{text}; correct or remove those rows")
        _log.warning("%s; %s there", text, fate)
    return np.array([place.get(name, 0) for name in names], np.int64)


def _refuse_text(column: pandas.Series, where: str) -> NoReturn:
    import pandas

    is_text = (pandas.to_numeric(column, errors="coerce").isna() & column.notna()).to_numpy()
    row = int(np.argmax(is_text))
    raise DataError(
        f"{where}: has {column.iloc[row]!r} in the column {column.name}, row {row + 1}, where the checkpoint was "
        "trained on numbers; correct that row"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(str, names[:10])) + (", ..." if len(names) > 10 else "")


def _as_setting(names: Sequence[str]) -> str:
    return "'[" + ", ".join(f'"{name}"' for name in names) + "]'"
