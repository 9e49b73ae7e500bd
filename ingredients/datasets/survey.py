"""A look at a file of data as it is, whether or not it can be trained on: for `data.stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingredients.config.construct import require
from ingredients.datasets.csv_cells import read_cells, typed
from ingredients.datasets.files import load_arrays, read_idx_array
from ingredients.datasets.image_folder import image_files

if TYPE_CHECKING:
    import pandas

__all__ = ["survey"]

_HEADER = ["name", "type", "values", "missing", "distinct", "range"]
# More values than these are counted in no time, and told by nobody.
_MAX_COUNTED = 1_000_000


def survey(name: str, path: str) -> list[list[Any]] | None:
    """Return what a file, or a folder of them, holds, as the rows of a table; the first one is its header.

    Args:
        name: The kind of data, such as `csv`.
        path: Where they are.

    Returns:
        Rows for the columns of a csv, the arrays of npz and idx files, the folders of images; None for other data.

    Raises:
        DataError: If it cannot be read at all.
    """
    where = Path(path).expanduser()
    if name == "csv":
        frame = typed(read_cells(where))
        return [_HEADER, *(_of_column(frame[column]) for column in frame.columns)]
    if name == "npz":
        return [_HEADER, *(_of_array(key, array) for key, array in load_arrays(where).items())]
    if name == "idx":
        folder = where if where.is_dir() else where.parent
        return [_HEADER, *(_of_array(file.name, read_idx_array(file)) for file in sorted(folder.glob("*-idx?-ubyte*")))]
    if name == "image_folder" and where.is_dir():
        return [["folder", "images", "sizes"], *_of_folders(where)]
    return None


def _of_column(column: pandas.Series) -> list[Any]:
    kind = {"b": "bools", "i": "integers", "u": "integers", "f": "numbers"}.get(column.dtype.kind, "text")
    there = column.dropna()
    distinct = int(there.nunique())
    if kind == "text":
        common = there.astype(str).value_counts()
        shown = ", ".join(map(str, common.index[:3])) + (", ..." if len(common) > 3 else "")
    else:
        shown = _range(there.to_numpy())
    return [column.name, kind, len(there), len(column) - len(there), distinct, shown]


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
        shown = ", ".join(f"{size} ({count})" for size, count in sizes.most_common(3))
        yield [folder, len(files), shown + (", ..." if len(sizes) > 3 else "")]
