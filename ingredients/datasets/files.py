"""Arrays in files: npz and idx."""

from __future__ import annotations

import dataclasses
import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from sacristan.ingredients.datasets.samples import Source, from_arrays
from sacristan.ingredients.datasets.source_checks import reading
from sacristan.ingredients.datasets.source_settings import SourceSettings
from sacristan.ingredients.datasets.splitting import PARTS, TEST, TRAIN
from sacristan.ingredients.errors import DataError

__all__ = ["load_arrays", "read_idx", "read_idx_array", "read_npz"]

# A part of the data: its code, inputs, targets.
_Part = tuple[int | None, np.ndarray, np.ndarray | None]
# Names of the arrays of inputs and targets, in order of preference.
_ARRAYS = (("x", "y"), ("X", "y"), ("inputs", "targets"), ("data", "target"), ("images", "labels"))


def read_npz(path: Path, settings: SourceSettings) -> Source:
    """Read the arrays `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`, or others with similar names.

    `settings.weights` names an array of sampling weights (samples,), of the training part if there are parts. Without
    `needs_targets`, `x` or `x_test` may stand alone.
    """
    arrays = load_arrays(path)
    source = _source_of(arrays, path, needs_targets=settings.needs_targets, dtype=settings.dtype)
    source = dataclasses.replace(source, split_values=_split_values(arrays, source, settings))
    weights = arrays.get(str(settings.weights))
    if weights is None:
        return source
    is_train = np.ones(source.num_samples, bool) if source.part is None else source.part == TRAIN
    if weights.shape != (is_train.sum(),) or weights.dtype.kind not in "biuf":
        raise DataError(
            f"data.weights={settings.weights}: got an array of shape {weights.shape} and type {weights.dtype}, "
            f"expected {is_train.sum()} numbers, one per sample"
        )
    whole = np.zeros(source.num_samples)
    whole[is_train] = weights
    return dataclasses.replace(source, weights=whole)


def _split_values(arrays: dict[str, np.ndarray], source: Source, settings: SourceSettings) -> np.ndarray | None:
    """Return the groups or times to split by: one array, or one for each part, such as `patient_train`."""
    name = settings.split_column
    if name is None or name in arrays or source.part is None:
        return None if name is None else arrays.get(name)
    by_part = {code: arrays[f"{name}_{word}"] for word, code in PARTS.items() if f"{name}_{word}" in arrays}
    codes = list(dict.fromkeys(source.part.tolist()))
    return np.concatenate([by_part[code] for code in codes]) if by_part.keys() >= set(codes) else None


def _source_of(arrays: dict[str, np.ndarray], path: Path, *, needs_targets: bool, dtype: str) -> Source:
    candidates = (_parts_of(arrays, *names, needs_targets=needs_targets) for names in _ARRAYS)
    parts: list[_Part] = next(filter(None, candidates), [])
    if not parts and not needs_targets:
        parts += [(None, arrays[inputs], None) for inputs, _ in _ARRAYS if inputs in arrays][:1]
    if parts:
        return from_arrays(parts, f"data.path: {path}", dtype)
    raise DataError(
        f"data.path: {path} holds {', '.join(arrays) or 'no arrays'}; "
        + ("expected x and y, or x_train, y_train, x_test, y_test" if needs_targets else "expected x, or x_test")
    )


def _parts_of(arrays: dict[str, np.ndarray], inputs: str, targets: str, *, needs_targets: bool) -> list[_Part]:
    """Return the (part, inputs, targets) triples of arrays that are called like a pair of names."""
    if inputs in arrays and targets in arrays:
        return [(None, arrays[inputs], arrays[targets])]
    if not needs_targets and f"{inputs}_test" in arrays and f"{targets}_test" not in arrays:
        return [(TEST, arrays[f"{inputs}_test"], None)]
    return [
        (part, arrays[f"{inputs}_{word}"], arrays[f"{targets}_{word}"])
        for word, part in PARTS.items()
        if f"{inputs}_{word}" in arrays and f"{targets}_{word}" in arrays
    ]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name, without executing code."""
    with reading(path, ".npz", Exception), np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def read_idx(path: Path, settings: SourceSettings) -> Source:
    """Read images (samples, 1, height, width) and labels in MNIST's IDX format: http://yann.lecun.com/exdb/mnist.

    `path` is a folder with files such as `train-images-idx3-ubyte`, gzipped or not, or one of its files. The file names
    may define the parts.
    """
    folder = path if path.is_dir() else path.parent
    parts = []
    for images in sorted(folder.glob("*images*idx3*")):
        if images.suffix == ".gz" and images.with_suffix("").exists():
            continue
        part = next((PARTS[word] for word in images.name.split("-") if word in PARTS), None)
        parts.append((part, read_idx_array(images), _labels_of(images, needs_targets=settings.needs_targets)))
    if not parts:
        raise DataError(
            f"data.path: {folder} has no files like train-images-idx3-ubyte(.gz), which data.name=idx reads"
        )
    return from_arrays(parts, f"data.path: {folder}", settings.dtype)


def _labels_of(images: Path, *, needs_targets: bool) -> np.ndarray | None:
    """Return the labels in the file beside images, gzipped or not; None without one."""
    plain = images.with_name(images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1"))
    labels = next((file for file in (plain, plain.with_name(f"{plain.name}.gz")) if file.exists()), None)
    if labels is None and needs_targets:
        raise DataError(f"data.path: {images} has no labels beside it; expected {plain.name}, gzipped or not")
    return None if labels is None else read_idx_array(labels)


_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx_array(path: Path) -> np.ndarray:
    """Return the array of one IDX file."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"data.path: {path} cannot be read: {error}; download it again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(f"data.path: {path} is not in the IDX format; expected two zero bytes and a type at its start")
    kind, ndim = np.dtype(_IDX_TYPES[raw[2]]), raw[3]
    shape = np.frombuffer(raw, ">u4", ndim, 4) if len(raw) >= 4 + 4 * ndim else np.zeros(0, ">u4")
    expected = 4 + 4 * ndim + math.prod(int(size) for size in shape) * kind.itemsize
    if len(shape) < ndim or len(raw) != expected:
        raise DataError(f"data.path: {path} has {len(raw)} bytes, expected {expected} by its header; download it again")
    return np.frombuffer(raw, kind, offset=4 + 4 * ndim).reshape([int(size) for size in shape])
