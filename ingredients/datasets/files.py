"""Data in files: npz, idx, folders of images."""

from __future__ import annotations

import dataclasses
import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ingredients.datasets.fitted import Preparation
from ingredients.datasets.samples import Source, from_arrays
from ingredients.datasets.splitting import PARTS, TEST, TRAIN
from ingredients.errors import DataError

__all__ = ["load_arrays", "read_idx", "read_idx_array", "read_image_folder", "read_npz"]


# What arrays of inputs and targets are called.
_ARRAYS = (("x", "y"), ("X", "y"), ("inputs", "targets"), ("data", "target"), ("images", "labels"))


def read_npz(path: Path, *, needs_targets: bool = True, dtype: str = "float32", weights: str | None = None) -> Source:
    """Read arrays `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`, or others that are called alike.

    Args:
        path: The file.
        needs_targets: Whether there have to be targets; else `x`, or `x_test`, may stand alone.
        dtype: `float32`, or `int64` for whole numbers.
        weights: Name of an array (samples,) of weights; with parts, that of the training part.

    Raises:
        DataError: If the file cannot be read, or has no such arrays.
    """
    arrays = load_arrays(path)
    source = _source_of(arrays, path, needs_targets=needs_targets, dtype=dtype)
    given = arrays.get(str(weights))
    if given is None:
        return source
    is_train = np.ones(source.num_samples, bool) if source.part is None else source.part == TRAIN
    if given.shape != (is_train.sum(),) or given.dtype.kind not in "biuf":
        raise DataError(
            f"data.weights={weights}: got an array of shape {given.shape} and type {given.dtype}, expected "
            f"{is_train.sum()} numbers, one per sample"
        )
    weighed = np.zeros(source.num_samples)
    weighed[is_train] = given
    return dataclasses.replace(source, weights=weighed)


def _source_of(arrays: dict[str, np.ndarray], path: Path, *, needs_targets: bool, dtype: str) -> Source:
    for inputs, targets in _ARRAYS:
        if inputs in arrays and targets in arrays:
            return from_arrays([(None, arrays[inputs], arrays[targets])], f"data.path: {path}", dtype)
        if not needs_targets and f"{inputs}_test" in arrays and f"{targets}_test" not in arrays:
            return from_arrays([(TEST, arrays[f"{inputs}_test"], None)], f"data.path: {path}", dtype)
        parts = [
            (part, arrays[f"{inputs}_{word}"], arrays[f"{targets}_{word}"])
            for word, part in PARTS.items()
            if f"{inputs}_{word}" in arrays and f"{targets}_{word}" in arrays
        ]
        if parts:
            return from_arrays(parts, f"data.path: {path}", dtype)
    alone = next((arrays[inputs] for inputs, _ in _ARRAYS if inputs in arrays), None)
    if alone is not None and not needs_targets:
        return from_arrays([(None, alone, None)], f"data.path: {path}", dtype)
    raise DataError(
        f"data.path: {path} holds {', '.join(arrays) or 'no arrays'}; "
        + ("expected x and y, or x_train, y_train, x_test, y_test" if needs_targets else "expected x, or x_test")
    )


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by their names; none of them runs code.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as error:
        raise DataError(f"data.path: {path} cannot be read as .npz: {error}") from error


def read_idx(path: Path, *, needs_targets: bool = True, dtype: str = "float32") -> Source:
    """Read images and labels in MNIST's format: http://yann.lecun.com/exdb/mnist (format of the IDX files)."""
    folder = path if path.is_dir() else path.parent
    parts = []
    for images in sorted(folder.glob("*images*idx3*")):
        if images.suffix == ".gz" and images.with_suffix("").exists():
            continue
        part = next((PARTS[word] for word in images.name.split("-") if word in PARTS), None)
        labels = folder / images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
        if not labels.exists():
            labels = labels.with_name(f"{labels.name}.gz")
        if not labels.exists() and needs_targets:
            plain = labels.name.removesuffix(".gz")
            raise DataError(f"data.path: {images} has no labels beside it; expected {plain}, gzipped or not")
        parts.append((part, read_idx_array(images), read_idx_array(labels) if labels.exists() else None))
    if not parts:
        raise DataError(
            f"data.path: {folder} has no files like train-images-idx3-ubyte(.gz), which data.name=idx reads"
        )
    return from_arrays(parts, f"data.path: {folder}", dtype)


_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx_array(path: Path) -> np.ndarray:
    """Return the array of one IDX file, gzipped or not.

    Raises:
        DataError: If it cannot be read.
    """
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
