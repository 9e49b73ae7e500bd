"""Tables in CSV files."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ingredients.config.nearest import nearest
from ingredients.datasets.csv_cells import GAPS_OF_PANDAS, as_numbers, read_cells, refuse_strays, typed
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.samples import Source
from ingredients.datasets.table_columns import TableColumns
from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["read_csv", "read_targets", "refuse_column"]

_log = logging.getLogger(__name__)

# What pandas calls a column without a name; saved once more, it has that name.
_UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)*")


def read_csv(
    path: Path,
    target: str | Sequence[str] | None = None,
    trained: Preparation | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] | None = None,
    encoding: str = "one_hot",
    missing: str = "refuse",
    na_values: Sequence[str] = (),
    dtype: str = "float32",
    weights: str | None = None,
    needs_targets: bool = True,
) -> Source:
    """Read a table with a header.

    Args:
        path: The file.
        target: Target column or columns; None takes those that the model was trained on, else the last one.
        trained: What the data of the model were prepared by: its columns are put into their order, and its categories
            encoded as they were; `columns`, `categorical`, `encoding`, `missing` and `na_values` do not count then.
        columns: Columns to take for inputs; None takes all but the targets.
        categorical: Columns of categories, `auto` for those of text.
        encoding, missing: What becomes of categories, and of missing values; see `TableColumns`.
        na_values: Texts that stand for a missing value, beside an empty cell.
        dtype: `float32`, or `int64` for whole numbers.
        weights: Column of the weights of the samples, which is no input; it may be missing where nothing is trained.
        needs_targets: Whether the target columns have to be there, and full.

    Raises:
        DataError: If it is no table of numbers and categories, or columns are missing.
    """
    where = f"data.path={path}"
    table = None if trained is None else trained.table
    if table is not None:
        na_values, as_text = table.na_values, set(table.categories) if table.verbatim else set()
    else:
        na_values, as_text = na_values if trained is None else GAPS_OF_PANDAS, _named(categorical)
    cells = _without_index(read_cells(path, na_values), trained, path)
    frame = typed(cells, as_text)
    weighed = None
    if weights is not None and (weights in frame.columns or trained is None):
        if weights not in frame.columns:
            refuse_column("data.weights", path, [weights], list(frame.columns))
        weighed = _numbers(frame[weights], path)
        frame = frame.drop(columns=weights)
    if frame.shape[1] < (2 if needs_targets else 1):
        raise DataError(
            f"data.path: {path} has {frame.shape[1]} columns, expected inputs and a target, split by commas"
        )
    if frame.empty:
        raise DataError(f"data.path: {path} has a header and no rows below it; expected one row per sample")
    candidates = _target_candidates(list(frame.columns), target, trained, needs_targets=needs_targets)
    names = next((names for names in candidates if all(name in frame.columns for name in names)), None)
    if names is None and needs_targets:
        refuse_column("data.target", path, candidates[0], list(frame.columns))
    named = {name for names in candidates for name in names}
    if table is None:
        chosen = [columns] if isinstance(columns, str) else columns
        inputs = _chosen(frame, chosen, named, path) if trained is None else frame
    else:
        inputs = frame[[name for name in frame.columns if name in table.columns]] if table.chosen else frame
    inputs = inputs[[column for column in inputs.columns if column not in named]]
    if trained is not None and (table is not None or trained.features):
        inputs = inputs.iloc[:, trained.column_order(list(inputs.columns), where, of_table=True)]
    if table is None:
        for name in inputs.columns:
            if frame[name].dtype.kind not in "biuf" and name not in as_text:
                refuse_strays(frame[name], where, "take the column for categories by name, with data.categorical")
        # What a checkpoint of an earlier version was trained on has no categories.
        how: dict[str, Any] = {}
        if trained is None:
            how = {"encoding": encoding, "missing": missing, "verbatim": True, "na_values": tuple(na_values)}
        table = TableColumns.fitted(
            inputs,
            None if trained is not None else categorical,
            where,
            chosen=trained is None and columns is not None,
            **how,
        )
    encoded = table.encode(inputs, dtype, where, strict=needs_targets)
    targets = None
    if names is not None and trained is not None and trained.task == "classification" and len(names) == 1:
        targets = _labels(cells[names[0]], trained.classes, path, needs_targets=needs_targets)
    elif names is not None:
        targets = read_targets(frame, names, path, needs_targets=needs_targets)
    target_names = None if names is None else tuple(names)
    return Source(encoded, targets, features=table.features, target_names=target_names, table=table, weights=weighed)


def _named(categorical: str | Sequence[str] | None) -> set[str]:
    """Return the columns that were named as categories."""
    if categorical is None or categorical == "auto":
        return set()
    return {categorical} if isinstance(categorical, str) else set(categorical)


def _labels(cells: pandas.Series, classes: Sequence[str], path: Path, *, needs_targets: bool) -> np.ndarray:
    """Return labels as objects, NaN where one is missing: the text of a class, or the number that a cell holds.

    A cell is one class whatever stands in the others.

    Raises:
        DataError: If values are missing, and needed.
    """
    _require_targets(int(cells.isna().sum()), [str(cells.name)], path, needed=needs_targets)
    known = set(classes)
    distinct = {text: text if text in known else _number_or_text(text) for text in cells.dropna().unique()}
    return np.array([distinct.get(text, np.nan) for text in cells.tolist()], object)


def _number_or_text(text: str) -> object:
    import pandas

    found = as_numbers(pandas.Series([text]))
    return text if found is None else found.item()


def _require_targets(num_missing: int, names: list[str], path: Path, *, needed: bool) -> None:
    if num_missing and needed:
        raise DataError(f"data.target: {path} lacks {num_missing} values of {names}; remove those rows")


def _without_index(frame: pandas.DataFrame, trained: Preparation | None, path: Path) -> pandas.DataFrame:
    """Leave out first columns without a name, which number the rows, and empty ones at the end."""
    known = set() if trained is None else {*(trained.features or ())}
    index = list(itertools.takewhile(lambda name: _UNNAMED.fullmatch(name) and name not in known, frame.columns))
    if index:
        _log.info("%s: the first column, which has no name, is left out as the number of the row", path)
    empty = [name for name in frame.columns if _UNNAMED.fullmatch(name) and frame[name].isna().all()]
    return frame.drop(columns=list({*index, *empty}))


def _chosen(frame: pandas.DataFrame, columns: Sequence[str] | None, targets: set[str], path: Path) -> pandas.DataFrame:
    """Return the columns that the config chose for inputs; all without a choice."""
    if columns is None:
        return frame
    if any(name not in frame.columns for name in columns):
        refuse_column("data.columns", path, columns, list(frame.columns))
    twice = next((name for name in columns if name in targets), None)
    if twice is not None:
        raise DataError(f"data.columns: got {twice!r}, which is the target; leave it out, or write data.target=")
    if not columns:
        raise DataError("data.columns: got no column, expected at least one, or None for all")
    return frame[list(dict.fromkeys(columns))]


def _numbers(column: pandas.Series, path: Path) -> np.ndarray:
    if column.dtype.kind not in "biuf":
        raise DataError(f"data.weights: the column {column.name!r} of {path} holds text, expected numbers")
    return column.to_numpy(np.float64)


def _target_candidates(
    columns: list[str], target: str | Sequence[str] | None, trained: Preparation | None, *, needs_targets: bool
) -> list[list[str]]:
    """Return which columns may be the targets, those first that are to be preferred."""
    given = [] if target is None else [[target] if isinstance(target, str) else list(target)]
    if trained is None:
        return given or [columns[-1:]]
    known = [list(trained.target_names)] if trained.target_names else []
    if given and known and set(given[0]) == set(known[0]):
        return known  # in the order that the model was trained on
    if given or known:
        return [*given, *known]
    has_none = not needs_targets and trained.input_shape == (len(columns),)
    return [] if has_none else [columns[-1:]]


def refuse_column(setting: str, path: Path, names: Sequence[str], columns: list[str]) -> NoReturn:
    """Raise a `DataError` that names the first of `names` that is no column, and the nearest one that is.

    Args:
        setting: Where it was asked for.
        path: The file.
        names: Columns that were asked for.
        columns: Those that there are.
    """
    name = next(name for name in names if name not in columns)
    near = nearest(name, columns)
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(columns)}"
    raise DataError(f"{setting}: {path} has no column {name!r}; {hint}")


def read_targets(frame: pandas.DataFrame, names: list[str], path: Path, *, needs_targets: bool) -> np.ndarray:
    """Return the columns of targets of a table; those that may be missing are of objects.

    Raises:
        DataError: If values are missing, and needed, or a column is text but nearly all of it numbers.
    """
    for name in names:
        if frame[name].dtype.kind not in "biuf":
            refuse_strays(frame[name].astype(str).where(frame[name].notna()), "data.target", "leave them out")
    targets = frame[names[0]] if len(names) == 1 else frame[names]
    num_missing = int(targets.isna().to_numpy().sum())
    _require_targets(num_missing, names, path, needed=needs_targets)
    kinds = [frame[name].dtype for name in names]
    if all(kind.kind in "biuf" for kind in kinds):
        return targets.to_numpy(np.result_type(*kinds))
    return targets.to_numpy(object if num_missing else str)
