"""Descriptions of data for `data.stats`: of prepared data, and of files that cannot be trained on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacristan.configs.files import find_file
from sacristan.configs.map import abbreviated
from sacristan.ingredients.config.construct import require
from sacristan.ingredients.datasets.csv_cells import read_cells, typed
from sacristan.ingredients.datasets.image_folder import image_files
from sacristan.ingredients.datasets.preparation import Prepared
from sacristan.ingredients.datasets.samples import Sequences
from sacristan.ingredients.datasets.sources import load_arrays, read_idx_array
from sacristan.ingredients.datasets.splitting import SPLITS
from sacristan.ingredients.datasets.structured import Streams

if TYPE_CHECKING:
    import pandas

__all__ = ["describe", "survey"]

_HEADER = ["name", "type", "values", "missing", "distinct", "range"]
# Distinct values of larger arrays take too long to count.
_MAX_COUNTED = 1_000_000


def describe(prepared: Prepared) -> dict[str, Any]:
    """Describe prepared data, for `data.stats`.

    The keys are `task`, `classes`, `input_shape`, `dtype`, `fingerprint`, and `splits`: the `count` of samples,
    `classes` (counts) or `targets` (lowest and highest), and `mean`, `std` and number of `missing` values of the inputs
    as trained on; NaN for structured samples and texts.
    """
    by = prepared.preparation
    if isinstance(prepared.inputs, Streams):
        nothing = {"mean": math.nan, "std": math.nan, "missing": 0}
        parts = prepared.inputs.parts.items()
        splits = {SPLITS[code]: {"count": part.length or 0, **nothing} for code, part in parts}
    else:
        splits = {name: _describe_split(prepared, index) for name, index in prepared.indices.items()}
    return {
        "task": by.task,
        "classes": list(by.classes),
        "input_shape": list(by.input_shape),
        "dtype": by.dtype,
        "fingerprint": prepared.fingerprint,
        "splits": splits,
    }


def _describe_split(prepared: Prepared, index: np.ndarray) -> dict[str, Any]:
    row = {"count": len(index), **_describe_inputs(prepared, index)}
    targets, by = prepared.targets[index], prepared.preparation
    if by.task == "multilabel":
        row["classes"] = targets.sum(0).astype(int).tolist()
    elif by.task == "regression" and len(index):
        if by.target_std is not None:
            targets = targets * by.target_std + by.target_mean
        row["targets"] = [float(targets.min()), float(targets.max())]
    elif by.task != "regression" and by.classes and prepared.has_targets:
        row["classes"] = np.bincount(targets[targets >= 0], minlength=len(by.classes)).tolist()
    return row


def _describe_inputs(prepared: Prepared, index: np.ndarray) -> dict[str, Any]:
    missing, count, total, squares = 0, 0, 0.0, 0.0
    has_moments = prepared.preparation.task != "custom" and not isinstance(prepared.inputs, Sequences)
    for part in np.array_split(index, math.ceil(len(index) / 256)) if has_moments and len(index) else ():
        values = prepared.values(part)
        good = values[np.isfinite(values)].astype(np.float64)
        missing += values.size - good.size
        count, total, squares = count + good.size, total + float(good.sum()), squares + float((good**2).sum())
    mean = total / count if count else math.nan
    std = math.sqrt(max(squares / count - mean**2, 0)) if count else math.nan
    return {"mean": mean, "std": std, "missing": missing}


def survey(name: str, path: str, csv: Mapping[str, Any] = {}) -> list[list[Any]] | None:
    """Describe a file, or the files in a folder, without preparing the data, as the rows of a table and its header.

    The rows are the columns of a csv, the arrays of npz and idx files, or the folders of images; None for other kinds.
    """
    where = find_file(Path(path).expanduser())
    if name == "image_folder" and where.is_dir():
        return [["folder", "images", "sizes"], *_of_folders(where)]
    rows: Iterable[list[Any]]
    if name == "csv":
        frame = typed(read_cells(where, csv=csv), csv=csv)
        rows = (_of_column(frame[column]) for column in frame.columns)
    elif name == "npz":
        rows = (_of_array(key, array) for key, array in load_arrays(where).items())
    elif name == "idx":
        files = sorted((where if where.is_dir() else where.parent).glob("*-idx?-ubyte*"))
        rows = (_of_array(file.name, read_idx_array(file)) for file in files)
    else:
        return None
    return [_HEADER, *rows]


def _of_column(column: pandas.Series) -> list[Any]:
    kind = {"b": "bools", "i": "integers", "u": "integers", "f": "numbers"}.get(column.dtype.kind, "text")
    present = column.dropna()
    if kind == "text":
        shown = abbreviated(present.astype(str).value_counts().index, 3)
    else:
        shown = _range(present.to_numpy())
    return [column.name, kind, len(present), len(column) - len(present), int(present.nunique()), shown]


def _of_array(name: str, array: np.ndarray) -> list[Any]:
    is_number = array.dtype.kind in "biuf"
    missing = int(array.size - np.isfinite(array).sum()) if is_number else 0
    distinct = len(np.unique(array)) if array.size <= _MAX_COUNTED and array.dtype.kind != "O" else ""
    shape = "x".join(map(str, array.shape))
    return [name, f"{array.dtype} {shape}", array.size, missing, distinct, _range(array) if is_number else ""]


def _range(values: np.ndarray) -> str:
    if values.dtype.kind == "b":
        values = values.astype(int)
    values = values[np.isfinite(values)]
    return f"{values.min():.6g} to {values.max():.6g}" if values.size else "none"


def _of_folders(top: Path) -> Iterator[list[Any]]:
    image = require("PIL.Image", "images", "data.name=image_folder")
    by_folder: dict[str, list[Path]] = {}
    for file in image_files(top):
        by_folder.setdefault(file.parent.relative_to(top).as_posix(), []).append(file)
    for folder, files in by_folder.items():
        sizes: Counter[str] = Counter()
        for file in files:
            try:
                with image.open(file) as opened:
                    sizes["x".join(map(str, opened.size))] += 1
            except (OSError, image.DecompressionBombError):
                sizes["unreadable"] += 1
        yield [folder, len(files), abbreviated((f"{size} ({count})" for size, count in sizes.most_common()), 3)]
