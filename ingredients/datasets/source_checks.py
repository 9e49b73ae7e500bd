"""Checks that all sources of data share: files that can be read, columns that exist, numbers that stay exact."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.errors import DataError

_log = logging.getLogger(__name__)

# float32 represents every integer up to here.
EXACT = 2**24

# Columns and keys that hold the target where `data.target` names none, in order of preference.
TARGET_NAMES = ("label", "labels", "target", "targets")


def as_list(names: str | Sequence[str] | None) -> list[str] | None:
    """Return a name, or several, as a list without repetitions; None stays None."""
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(dict.fromkeys(names))


@contextlib.contextmanager
def reading(path: object, kind: str, *errors: type[Exception], advice: str = "") -> Iterator[None]:
    """Turn the given errors of reading a file into a `DataError` that names the file."""
    try:
        yield
    except errors as error:
        raise DataError(f"data.path: {path} cannot be read as {kind}: {error}{advice}") from error


def refuse_column(setting: str, where: object, names: Iterable[str], columns: Sequence[str]) -> NoReturn:
    """Raise the error for a setting that names missing columns; it suggests the column nearest to the first."""
    name = next(name for name in names if name not in columns)
    hint = suggestion(name, columns, form=repr)
    raise DataError(f"{setting}: {where} has no column {name!r}; {hint}")


def check_whole(kind: np.dtype, where: str, dtype: str) -> None:
    """Reject inputs that are not integers for `data.dtype=int64`."""
    if dtype == "int64" and kind.kind not in "biu":
        raise DataError(f"{where}: got inputs of type {kind}, and data.dtype=int64 expects integers; convert them")


def exact_floats(values: np.ndarray) -> np.ndarray:
    """Return numbers as float32 if it represents each exactly, or cannot hold their size; else as float64."""
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values, np.float32)
    rounded = (floats != values) & (floats == floats)
    is_exact = not rounded.any() or np.isinf(floats[rounded]).any()
    return floats if is_exact else np.ascontiguousarray(values, np.float64)


def warn_of_merged(values: np.ndarray, where: str, *, of_whole: bool = True) -> None:
    """Warn of distinct numbers that become one float32: of integers such as ids, or, if not `of_whole`, of all."""
    values = values[np.isfinite(values)]
    is_whole = np.abs(values).max(initial=0) > EXACT and not (values % 1).any()
    if of_whole and not is_whole:
        return
    before, after = len(np.unique(values)), len(np.unique(values.astype(np.float32)))
    if after < before:
        _log.warning(
            "%s: float32 cannot tell %s apart: %s different ones become %s; %s",
            where,
            "integers above 16,777,216" if is_whole else "numbers with a large offset",
            f"{before:,}",
            f"{after:,}",
            "keep them with data.dtype=int64, number them from 0, or leave them out"
            if is_whole
            else "normalise them, or subtract the offset",
        )
