"""Tables in CSV files: choose inputs and targets, and match the columns of a trained model."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacristan.ingredients.datasets import csv_cells
from sacristan.ingredients.datasets.fitted import TableColumns
from sacristan.ingredients.datasets.samples import Source, SourceSettings
from sacristan.ingredients.datasets.source_checks import as_list, refuse_column
from sacristan.ingredients.datasets.targets import class_name
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

    from sacristan.ingredients.datasets.fitted import Preparation

_log = logging.getLogger(__name__)

# How pandas names a column without a name; a file that pandas wrote again holds this name.
_UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)*")


def read_csv(path: Path, settings: SourceSettings) -> Source:
    """Read a CSV file with its `TableColumns`; a trained model's columns are put in its order and encoding."""
    cells = _without_index(csv_cells.read_cells(path, _na_values(settings), settings.csv), settings.trained, path)
    frame = csv_cells.typed(cells, _text_columns(settings), settings.csv)
    frame, split_values = _split_values(frame, cells, settings, path)
    frame, weights = _split_weights(frame, settings, path)
    _check_shape(frame, settings, path)
    candidates = _target_candidates(list(frame.columns), settings)
    names = next((names for names in candidates if set(names) <= set(frame.columns)), None)
    if names is None and settings.needs_targets:
        refuse_column("data.target", path, candidates[0], list(frame.columns))
    inputs = _inputs(frame, set(itertools.chain(*candidates)), settings, path)
    for name in inputs.columns:
        if inputs[name].dtype.kind not in "biuf" and not _is_category(name, settings):
            csv_cells.refuse_notation(inputs[name], f"data.path={path}", settings.csv, "name it in data.categorical")
    table = settings.table or _fitted(inputs, settings, path)
    encoded = table.encode(inputs, settings.dtype, f"data.path={path}", strict=settings.needs_targets, csv=settings.csv)
    return Source(
        encoded,
        None if names is None else _targets(cells, frame, names, settings, path),
        features=table.features,
        target_names=None if names is None else tuple(names),
        table=table,
        weights=weights,
        split_values=split_values,
    )


def _na_values(settings: SourceSettings) -> Collection[str]:
    if settings.table is not None:
        return settings.table.na_values
    return settings.na_values if settings.trained is None else csv_cells.GAPS_OF_PANDAS


def _text_columns(settings: SourceSettings) -> Collection[str]:
    """Return the columns whose cells stay text: named categories, as configured or as trained."""
    if settings.table is not None:
        return set(settings.table.categories) if settings.table.verbatim else ()
    return () if settings.categorical == "auto" else as_list(settings.categorical) or ()


def _is_category(name: str, settings: SourceSettings) -> bool:
    if settings.table is not None:
        return name in settings.table.categories
    return settings.categorical == "auto" or name in _text_columns(settings)


def _without_index(frame: pandas.DataFrame, trained: Preparation | None, path: Path) -> pandas.DataFrame:
    """Drop unnamed columns that number the rows at the start of the table, and empty ones at its end."""
    features = () if trained is None else trained.features or ()
    index = list(itertools.takewhile(lambda name: _UNNAMED.fullmatch(name) and name not in features, frame.columns))
    if index:
        _log.info("%s: the first column has no name, so it is dropped as the row number", path)
    empty = [name for name in frame.columns if _UNNAMED.fullmatch(name) and frame[name].isna().all()]
    return frame.drop(columns=list({*index, *empty}))


def _split_values(
    frame: pandas.DataFrame, cells: pandas.DataFrame, settings: SourceSettings, path: Path
) -> tuple[pandas.DataFrame, np.ndarray | None]:
    """Return the frame without the column to split by, unless it is an input or the target, and its values."""
    name, trained = settings.split_column, settings.trained
    if name is None or (name not in frame.columns and trained is not None):
        return frame, None
    if name not in frame.columns:
        refuse_column("data.split", path, [name], list(frame.columns))
    # A group is the text of its cell, as a category is; times may be numbers.
    values = (cells if settings.rule.kind == "group" or frame[name].dtype.kind not in "biuf" else frame)[name]
    kept = [*(as_list(settings.columns) or ()), *(as_list(settings.target) or ())]
    if trained is not None:
        columns = trained.features if settings.table is None else settings.table.columns
        kept = [*(columns or ()), *(trained.target_names or ())]
    return frame if name in kept else frame.drop(columns=name), values.to_numpy(object)


def _split_weights(
    frame: pandas.DataFrame, settings: SourceSettings, path: Path
) -> tuple[pandas.DataFrame, np.ndarray | None]:
    """Return the frame without the weights, and the weights (rows,); a trained model needs none."""
    name = settings.weights
    if name is None or (name not in frame.columns and settings.trained is not None):
        return frame, None
    if name not in frame.columns:
        refuse_column("data.weights", path, [name], list(frame.columns))
    if frame[name].dtype.kind not in "biuf":
        raise DataError(f"data.weights: the column {name!r} of {path} holds text, expected numbers")
    return frame.drop(columns=name), frame[name].to_numpy(np.float64)


def _check_shape(frame: pandas.DataFrame, settings: SourceSettings, path: Path) -> None:
    if frame.shape[1] < (2 if settings.needs_targets else 1):
        raise DataError(
            f"data.path: {path} has {frame.shape[1]} columns, expected inputs and a target, separated by commas or "
            "by data.csv.sep"
        )
    if frame.empty:
        raise DataError(f"data.path: {path} has a header but no rows; expected one row per sample")


def _target_candidates(columns: list[str], settings: SourceSettings) -> list[list[str]]:
    """Return the lists of columns that may be the targets, preferred ones first."""
    trained, target = settings.trained, as_list(settings.target)
    configured = [] if target is None else [target]
    if trained is None:
        return configured or [columns[-1:]]
    trained_targets = [list(trained.target_names)] if trained.target_names else []
    if configured and trained_targets and set(configured[0]) == set(trained_targets[0]):
        return trained_targets  # in the order of training
    has_none = not settings.needs_targets and trained.input_shape == (len(columns),)
    return configured + trained_targets or ([] if has_none else [columns[-1:]])


def _inputs(frame: pandas.DataFrame, targets: set[str], settings: SourceSettings, path: Path) -> pandas.DataFrame:
    """Return the input columns: as configured, or those of a trained model in its order."""
    trained, table = settings.trained, settings.table
    chosen = _chosen(frame, as_list(settings.columns), targets, path) if trained is None else frame
    names = [name for name in chosen.columns if name not in targets]
    if trained is None:
        if not names:
            raise DataError(
                f"data.target: {path} has no columns besides {', '.join(sorted(targets))}; expected at least one input"
            )
        return chosen[names]
    if table is not None and table.chosen:
        names = [name for name in names if name in table.columns]
    if table is not None or trained.features:
        names = [names[index] for index in trained.column_order(names, f"data.path={path}", of_table=True)]
    return frame[names]


def _chosen(frame: pandas.DataFrame, columns: list[str] | None, targets: set[str], path: Path) -> pandas.DataFrame:
    if columns is None:
        return frame
    if any(name not in frame.columns for name in columns):
        refuse_column("data.columns", path, columns, list(frame.columns))
    target = next((name for name in columns if name in targets), None)
    if target is not None:
        raise DataError(f"data.columns: got {target!r}, which is the target; leave it out, or write data.target=")
    if not columns:
        raise DataError("data.columns: got no column, expected at least one, or None for all")
    return frame[columns]


def _fitted(inputs: pandas.DataFrame, settings: SourceSettings, path: Path) -> TableColumns:
    """Return the encoding of a table, unless a trained model defines it."""
    where, as_text = f"data.path={path}", _text_columns(settings)
    for name in inputs.columns:
        if inputs[name].dtype.kind not in "biuf" and name not in as_text:
            csv_cells.refuse_strays(inputs[name], where, "name the column in data.categorical", settings.csv)
    if settings.trained is not None:  # a checkpoint of an earlier version, which had no categories
        return TableColumns.fitted(inputs, None, where, chosen=False)
    return TableColumns.fitted(
        inputs,
        settings.categorical,
        where,
        chosen=settings.columns is not None,
        encoding=settings.encoding,
        missing=settings.missing,
        verbatim=True,
        na_values=tuple(settings.na_values),
    )


def _targets(
    cells: pandas.DataFrame, frame: pandas.DataFrame, names: list[str], settings: SourceSettings, path: Path
) -> np.ndarray:
    trained = settings.trained
    if trained is not None and trained.task == "classification" and len(names) == 1:
        labels = _labels(cells[names[0]], trained.classes, path, needs_targets=settings.needs_targets)
        values = frame[names[0]]
        # Read as in training where that makes no difference, the same data have the same fingerprint.
        if values.isna().any() or [*map(class_name, labels)] != [*map(class_name, values)]:
            return labels
    for name in names if settings.task in ("auto", "regression") else ():
        if trained is None and frame[name].dtype.kind not in "biuf" and frame[name].nunique() > csv_cells.MANY:
            csv_cells.refuse_notation(frame[name], "data.target", settings.csv, "set data.task=classification")
    return read_targets(frame, names, path, needs_targets=settings.needs_targets)


def _labels(cells: pandas.Series, classes: Sequence[str], path: Path, *, needs_targets: bool) -> np.ndarray:
    """Return labels (rows,), NaN if missing: the class, or the number, whatever the other cells of the column."""
    import pandas

    def label(text: str) -> Any:
        number = None if text in classes else csv_cells.as_numbers(pandas.Series([text]))
        return text if number is None else number.item()

    _check_missing(int(cells.isna().sum()), [str(cells.name)], path, needs_targets=needs_targets)
    distinct = {text: label(text) for text in cells.dropna().unique()}
    return np.array([distinct.get(text, np.nan) for text in cells.tolist()], object)


def read_targets(frame: pandas.DataFrame, names: list[str], path: Path, *, needs_targets: bool) -> np.ndarray:
    """Return targets (rows,) of one column, else (rows, columns): numbers, text, or objects if text is missing."""
    for name in names:
        if frame[name].dtype.kind not in "biuf":
            csv_cells.refuse_strays(frame[name].astype(str).where(frame[name].notna()), "data.target", "leave them out")
    targets = frame[names[0]] if len(names) == 1 else frame[names]
    num_missing = int(targets.isna().to_numpy().sum())
    _check_missing(num_missing, names, path, needs_targets=needs_targets)
    kinds = [frame[name].dtype for name in names]
    if all(kind.kind in "biuf" for kind in kinds):
        return targets.to_numpy(np.result_type(*kinds))
    return targets.to_numpy(object if num_missing else str)


def _check_missing(num_missing: int, names: list[str], path: Path, *, needs_targets: bool) -> None:
    if num_missing and needs_targets:
        raise DataError(f"data.target: {path} lacks {num_missing} values of {names}; remove those rows")
