"""Data in files: npz, csv, idx, folders of images."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ingredients.config.nearest import nearest
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.samples import Source, from_arrays
from ingredients.datasets.splitting import PARTS, TEST
from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["read_csv", "read_idx", "read_image_folder", "read_npz"]


# What arrays of inputs and targets are called.
_ARRAYS = (("x", "y"), ("X", "y"), ("inputs", "targets"), ("data", "target"), ("images", "labels"))


def read_npz(path: Path, *, needs_targets: bool = True) -> Source:
    """Read arrays `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`, or others that are called alike.

    Args:
        path: The file.
        needs_targets: Whether there have to be targets; else `x`, or `x_test`, may stand alone.

    Raises:
        DataError: If the file cannot be read, or has no such arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:
        raise DataError(f"data.path: {path} cannot be read as .npz: {error}") from error
    for inputs, targets in _ARRAYS:
        if inputs in arrays and targets in arrays:
            return from_arrays([(None, arrays[inputs], arrays[targets])], f"data.path: {path}")
        if not needs_targets and f"{inputs}_test" in arrays and f"{targets}_test" not in arrays:
            return from_arrays([(TEST, arrays[f"{inputs}_test"], None)], f"data.path: {path}")
        parts = [
            (part, arrays[f"{inputs}_{word}"], arrays[f"{targets}_{word}"])
            for word, part in PARTS.items()
            if f"{inputs}_{word}" in arrays and f"{targets}_{word}" in arrays
        ]
        if parts:
            return from_arrays(parts, f"data.path: {path}")
    alone = next((arrays[inputs] for inputs, _ in _ARRAYS if inputs in arrays), None)
    if alone is not None and not needs_targets:
        return from_arrays([(None, alone, None)], f"data.path: {path}")
    raise DataError(
        f"data.path: {path} holds {', '.join(arrays) or 'no arrays'}; "
        + ("expected x and y, or x_train, y_train, x_test, y_test" if needs_targets else "expected x, or x_test")
    )


def read_csv(
    path: Path,
    target: str | Sequence[str] | None = None,
    trained: Preparation | None = None,
    *,
    needs_targets: bool = True,
) -> Source:
    """Read a table with a header.

    Args:
        path: The file.
        target: Target column or columns; None takes those that the model was trained on, else the last one.
        trained: What the data of the model were prepared by: its columns are put into their order.
        needs_targets: Whether the target columns have to be there, and full.

    Raises:
        DataError: If it is no table of numbers, or columns are missing.
    """
    import pandas

    try:
        frame = pandas.read_csv(path, skipinitialspace=True)
    except (ValueError, OSError) as error:
        raise DataError(f"data.path: {path} cannot be read as CSV: {error}") from error
    if frame.shape[1] < (2 if needs_targets else 1):
        raise DataError(
            f"data.path: {path} has {frame.shape[1]} columns, expected inputs and a target, split by commas"
        )
    if frame.empty:
        raise DataError(f"data.path: {path} has a header and no rows below it; expected one row per sample")
    frame.columns = list(map(str, frame.columns))
    candidates = _target_candidates(list(frame.columns), target, trained, needs_targets=needs_targets)
    names = next((names for names in candidates if all(name in frame.columns for name in names)), None)
    if names is None and needs_targets:
        _refuse_target(path, candidates[0], list(frame.columns))
    named = {name for names in candidates for name in names}
    inputs = frame[[column for column in frame.columns if column not in named]]
    if trained is not None and trained.features:
        order = trained.column_order(list(inputs.columns), f"data.path={path}")
        inputs = inputs.iloc[:, order]
    text = [str(column) for column in inputs.columns if inputs[column].dtype.kind not in "biuf"]
    if text:
        raise DataError(f"data.path: {path} has text in the columns {', '.join(text)}; encode them as numbers first")
    targets = None if names is None else _targets(frame, names, path, needs_targets=needs_targets)
    target_names = None if names is None else tuple(names)
    return Source(inputs.to_numpy(np.float32), targets, features=tuple(inputs), target_names=target_names)


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


def _refuse_target(path: Path, names: Sequence[str], columns: list[str]) -> NoReturn:
    name = next(name for name in names if name not in columns)
    near = nearest(name, columns)
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(columns)}"
    raise DataError(f"data.target: {path} has no column {name!r}; {hint}")


def _targets(frame: pandas.DataFrame, names: list[str], path: Path, *, needs_targets: bool) -> np.ndarray:
    targets = frame[names[0]] if len(names) == 1 else frame[names]
    num_missing = int(targets.isna().to_numpy().sum())
    if num_missing and needs_targets:
        raise DataError(f"data.target: {path} lacks {num_missing} values of {names}; remove those rows")
    kinds = [frame[name].dtype for name in names]
    if all(kind.kind in "biuf" for kind in kinds):
        return targets.to_numpy(np.result_type(*kinds))
    return targets.to_numpy(object if num_missing else str)


def read_idx(path: Path, *, needs_targets: bool = True) -> Source:
    """Read images and labels in MNIST's format: http://yann.lecun.com/exdb/mnist (format of the IDX files)."""
    folder = path if path.is_dir() else path.parent
    parts = []
    for images in sorted(folder.glob("*images*idx3*")):
        if images.suffix == ".gz" and images.with_suffix("").exists():
            continue
        part = next((PARTS[word] for word in images.name.split("-") if word in PARTS), None)
        labels = folder / images.name.replace("images", "labels").replace("idx3", "idx1")
        if not labels.exists() and needs_targets:
            raise DataError(f"data.path: {images} has no labels beside it; expected {labels.name}")
        parts.append((part, _read_idx(images), _read_idx(labels) if labels.exists() else None))
    if not parts:
        raise DataError(
            f"data.path: {folder} has no files like train-images-idx3-ubyte(.gz), which data.name=idx reads"
        )
    return from_arrays(parts, f"data.path: {folder}")


_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def _read_idx(path: Path) -> np.ndarray:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"data.path: {path} cannot be read: {error}; fetch it again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(
            f"data.path: {path} is not in the IDX format; expected it to begin with two zero bytes and a type"
        )
    kind, ndim = np.dtype(_IDX_TYPES[raw[2]]), raw[3]
    shape = np.frombuffer(raw, ">u4", ndim, 4) if len(raw) >= 4 + 4 * ndim else np.zeros(0, ">u4")
    expected = 4 + 4 * ndim + math.prod(int(size) for size in shape) * kind.itemsize
    if len(shape) < ndim or len(raw) != expected:
        raise DataError(f"data.path: {path} has {len(raw)} bytes, expected {expected} by its header; fetch it again")
    return np.frombuffer(raw, kind, offset=4 + 4 * ndim).reshape([int(size) for size in shape])


def read_image_folder(
    path: Path, image_size: int | None = None, trained: Preparation | None = None, *, needs_targets: bool = True
) -> Source:
    """Read a folder with one folder of images per class; see `ImageFolder`."""
    if not path.is_dir():
        raise DataError(f"data.path: {path} is a file, expected a folder with one folder of images per class")
    from ingredients.datasets.image_folder import ImageFolder

    size = trained.image_size if image_size is None and trained is not None else image_size
    images = ImageFolder(
        path,
        size,
        PARTS,
        channels=trained.input_shape[0] if trained is not None and len(trained.input_shape) == 3 else None,
        known_classes=None if trained is None or needs_targets else trained.classes,
    )
    digest = images.digest()
    return Source(images, images.targets, images.classes, images.part, digest=digest, names=images.names)
