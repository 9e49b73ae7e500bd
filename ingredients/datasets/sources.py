"""Where data come from: bundled sets, files, folders of images, torchvision, a user's factory.

Everything here is numpy, so that data can be looked at without torch. A source gives either arrays, which are kept in
memory, or a map-style dataset (`len`, `[index] -> (input, target)`), which is read item by item.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ingredients.config.construct import build, import_object, is_dotted_path, require
from ingredients.config.entry_types import nearest
from ingredients.config.seed import global_stream
from ingredients.errors import DataError

__all__ = ["BUNDLED", "FILES", "TEST", "TRAIN", "VAL", "Source", "load_source"]

TRAIN, VAL, TEST = 0, 1, 2

BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")
FILES = ("npz", "csv", "idx", "image_folder")

_PARTS = {"train": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST, "t10k": TEST}

Task = Literal["auto", "classification", "regression", "multilabel"]


@dataclasses.dataclass(frozen=True)
class Source:
    """Raw data, before splitting and normalising.

    Attributes:
        inputs: Array (samples, *shape), or a map-style dataset of (input, target).
        targets: Array (samples,) or (samples, outputs): class labels of any type, or numbers.
        classes: Names of the classes by label 0, 1, ...; None to read them off the targets.
        part: Array (samples,) of TRAIN, VAL, TEST where the source itself says so, else None.
        features: Names of the inputs' columns, if they have any.
        digest: SHA-256 of the content of a dataset; arrays are hashed as they are.
        missing: Array (samples,) of how many values of a dataset's inputs are NaN or infinite; arrays are counted as
            they are.
    """

    inputs: Any
    targets: np.ndarray
    classes: tuple[str, ...] | None = None
    part: np.ndarray | None = None
    features: tuple[str, ...] | None = None
    digest: str | None = None
    missing: np.ndarray | None = None

    @property
    def in_memory(self) -> bool:
        """Whether the inputs are one array."""
        return isinstance(self.inputs, np.ndarray)


def load_source(
    name: str,
    path: str | None = None,
    target: str | Sequence[str] | None = None,
    image_size: int | None = None,
    options: Mapping[str, Any] = {},
    seed: int = 0,
) -> Source:
    """Load the data called `name`; the arguments are those of the data ingredient's config.

    A factory that draws from the global generators draws from the stream `factory` of `seed`.

    Raises:
        DataError: If there are no such data, or they cannot be read.
    """
    if name in BUNDLED:
        return _bundled(name)
    if name in FILES:
        if path is None:
            raise DataError(f"data.path: got None, but data.name={name} reads from a path; write data.path=...")
        where = Path(path).expanduser()
        if not where.exists():
            raise DataError(f"data.path: there is no {path!r} (from {Path.cwd()}); check the path")
        readers: dict[str, Callable[[], Source]] = {
            "npz": lambda: _npz(where),
            "csv": lambda: _csv(where, target),
            "idx": lambda: _idx(where),
            "image_folder": lambda: _image_folder(where, image_size),
        }
        return readers[name]()
    if name.startswith("torchvision:"):
        return _torchvision(name.partition(":")[2], path, options)
    if Path(name).suffix in (".npz", ".csv"):
        kind = Path(name).suffix[1:]
        raise DataError(f"data.name: got {name!r}, which is a path; write data.name={kind} data.path={name}")
    if is_dotted_path(name):
        factory = import_object(name, "data.name")
        if not callable(factory):
            raise DataError(f"data.name: {name} is a {type(factory).__name__}, expected a function that makes the data")
        with global_stream(seed, "factory"):
            made = build(factory, options, "data.options", DataError)
        return _from_factory(made, f"data.name={name}")
    known = [*BUNDLED, *FILES, "torchvision:NAME", "package.module:factory"]
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
    raise DataError(f"data.name: got {name!r}, which is unknown; {hint}")


def _bundled(name: str) -> Source:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    if name == "digits":
        # 4-bit grey values: https://archive.ics.uci.edu/dataset/80
        return Source((bunch.images / 16).astype(np.float32)[:, None], bunch.target, tuple(map(str, range(10))))
    classes = tuple(map(str, bunch.target_names)) if hasattr(bunch, "target_names") else None
    return Source(bunch.data.astype(np.float32), bunch.target, classes, features=tuple(map(str, bunch.feature_names)))


def _npz(path: Path) -> Source:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:
        raise DataError(f"data.path: {path} cannot be read as .npz: {error}") from error
    for inputs, targets in (("x", "y"), ("X", "y"), ("inputs", "targets"), ("data", "target"), ("images", "labels")):
        if inputs in arrays and targets in arrays:
            return _from_arrays([(None, arrays[inputs], arrays[targets])], f"data.path: {path}")
        parts = [
            (part, arrays[f"{inputs}_{word}"], arrays[f"{targets}_{word}"])
            for word, part in _PARTS.items()
            if f"{inputs}_{word}" in arrays and f"{targets}_{word}" in arrays
        ]
        if parts:
            return _from_arrays(parts, f"data.path: {path}")
    raise DataError(
        f"data.path: {path} holds {', '.join(arrays) or 'no arrays'}; "
        "expected x and y, or x_train, y_train, x_test, y_test"
    )


def _from_arrays(parts: Sequence[tuple[int | None, np.ndarray, np.ndarray]], where: str) -> Source:
    """Join (part, inputs, targets) triples into one source; a part of None leaves the split to the lab."""
    for _, inputs, targets in parts:
        if not (inputs.ndim and targets.ndim):
            raise DataError(f"{where}: got a single number, expected arrays with one row per sample")
        if len(inputs) != len(targets):
            raise DataError(f"{where}: got {len(inputs)} inputs and {len(targets)} targets, expected as many of each")
    shapes = {tuple(inputs.shape[1:]) for _, inputs, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"{where}: the parts have inputs of different shapes {sorted(shapes)}, expected one shape")
    inputs = _as_samples(np.concatenate([inputs for _, inputs, _ in parts]), where)
    targets = np.concatenate([targets for _, _, targets in parts])
    given = [part for part, _, _ in parts]
    part = None
    if None not in given:
        part = np.concatenate([np.full(len(inputs), part, np.int8) for part, inputs, _ in parts])
    return Source(inputs, targets, part=part)


def _as_samples(inputs: np.ndarray, where: str) -> np.ndarray:
    """Return inputs as float32, images as (samples, channels, height, width) and bytes as 0 to 1."""
    if inputs.dtype.kind not in "biuf":
        raise DataError(f"{where}: got inputs of type {inputs.dtype}, expected numbers; encode text as numbers first")
    if inputs.ndim < 2:
        inputs = inputs[:, None]
    is_bytes = inputs.dtype == np.uint8
    if inputs.ndim == 3 and is_bytes:
        inputs = inputs[:, None]
    elif inputs.ndim == 4 and inputs.shape[-1] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4):
        inputs = np.moveaxis(inputs, -1, 1)
    inputs = np.ascontiguousarray(inputs, np.float32)
    return inputs / np.float32(255) if is_bytes and inputs.ndim == 4 else inputs


def _csv(path: Path, target: str | Sequence[str] | None) -> Source:
    import pandas

    try:
        frame = pandas.read_csv(path, skipinitialspace=True)
    except (ValueError, OSError) as error:
        raise DataError(f"data.path: {path} cannot be read as CSV: {error}") from error
    if frame.shape[1] < 2:
        raise DataError(
            f"data.path: {path} has {frame.shape[1]} columns, expected inputs and a target, split by commas"
        )
    if frame.empty:
        raise DataError(f"data.path: {path} has a header and no rows below it; expected one row per sample")
    names = [frame.columns[-1]] if target is None else [target] if isinstance(target, str) else list(target)
    for name in names:
        if name not in frame.columns:
            near = nearest(name, [str(column) for column in frame.columns])
            hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(map(str, frame.columns))}"
            raise DataError(f"data.target: {path} has no column {name!r}; {hint}")
    inputs = frame.drop(columns=names)
    text = [str(column) for column in inputs.columns if inputs[column].dtype.kind not in "biuf"]
    if text:
        raise DataError(f"data.path: {path} has text in the columns {', '.join(text)}; encode them as numbers first")
    targets = frame[names[0]] if len(names) == 1 else frame[names]
    if targets.isna().to_numpy().any():
        raise DataError(
            f"data.target: {path} lacks {int(targets.isna().to_numpy().sum())} values of {names}; remove those rows"
        )
    kinds = [frame[name].dtype for name in names]
    numbers = all(kind.kind in "biuf" for kind in kinds)
    return Source(
        inputs.to_numpy(np.float32),
        targets.to_numpy(np.result_type(*kinds) if numbers else str),
        features=tuple(map(str, inputs)),
    )


def _idx(path: Path) -> Source:
    """Read images and labels in MNIST's format: http://yann.lecun.com/exdb/mnist (format of the IDX files)."""
    folder = path if path.is_dir() else path.parent
    parts = []
    for images in sorted(folder.glob("*images*idx3*")):
        if images.suffix == ".gz" and images.with_suffix("").exists():
            continue
        part = next((_PARTS[word] for word in images.name.split("-") if word in _PARTS), None)
        labels = folder / images.name.replace("images", "labels").replace("idx3", "idx1")
        if not labels.exists():
            raise DataError(f"data.path: {images} has no labels beside it; expected {labels.name}")
        parts.append((part, _read_idx(images), _read_idx(labels)))
    if not parts:
        raise DataError(
            f"data.path: {folder} has no files like train-images-idx3-ubyte(.gz), which data.name=idx reads"
        )
    return _from_arrays(parts, f"data.path: {folder}")


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


def _image_folder(path: Path, image_size: int | None) -> Source:
    if not path.is_dir():
        raise DataError(f"data.path: {path} is a file, expected a folder with one folder of images per class")
    from ingredients.datasets.image_folder import ImageFolder

    images = ImageFolder(path, image_size, _PARTS)
    return Source(images, images.targets, images.classes, images.part, digest=images.digest())


def _torchvision(name: str, path: str | None, options: Mapping[str, Any]) -> Source:
    datasets = require("torchvision.datasets", "torchvision", f"data.name=torchvision:{name}")
    if not hasattr(datasets, name):
        near = nearest(name, list(datasets.__all__))
        hint = f"; did you mean torchvision:{near}?" if near else ""
        raise DataError(f"data.name: torchvision has no data set {name!r}{hint}")
    cls, root = getattr(datasets, name), path or "my_data"
    both = [build(cls, options, "data.options", DataError, root=root, train=train) for train in (True, False)]
    if all(hasattr(part, "data") and hasattr(part, "targets") for part in both):
        parts = [
            (code, np.asarray(part.data), np.asarray(part.targets))
            for code, part in zip((TRAIN, TEST), both, strict=True)
        ]
        source = _from_arrays(parts, f"data.name=torchvision:{name}")
        classes = tuple(getattr(both[0], "classes", ())) or None
        return dataclasses.replace(source, classes=classes)
    joined = Joined(both)
    part = np.repeat(np.array([TRAIN, TEST], np.int8), [len(part) for part in both])
    return dataclasses.replace(_from_factory(joined, f"data.name=torchvision:{name}"), part=part)


class Joined:
    """Map-style datasets one behind the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: int) -> Any:
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


class Items:
    """A user's map-style dataset with items as (float32 array, target)."""

    def __init__(self, dataset: Any, where: str) -> None:
        self.dataset = dataset
        self.where = where

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        item = self.dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{self.where}: item {index} is a {type(item).__name__}, expected a pair (input, target)")
        values, target = np.asarray(item[0]), np.asarray(item[1])
        if values.dtype == np.uint8 and values.ndim in (2, 3):
            values = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
            values = values / np.float32(255)
        if values.dtype.kind not in "biuf":
            raise DataError(f"{self.where}: the input of item {index} is of type {values.dtype}, expected numbers")
        return np.ascontiguousarray(values, np.float32), target


def _from_factory(made: Any, where: str) -> Source:
    if isinstance(made, Source):
        return dataclasses.replace(made, inputs=_as_samples(made.inputs, where)) if made.in_memory else made
    if isinstance(made, Mapping):
        unknown = sorted(set(made) - set(_PARTS))
        if unknown or "train" not in made:
            raise DataError(f"{where}: got parts {sorted(made)}, expected train and, if there are any, val and test")
        return _from_arrays([(_PARTS[word], *_pair(pair, where)) for word, pair in made.items()], where)
    if isinstance(made, tuple | list) and len(made) == 2:
        return _from_arrays([(None, *_pair(made, where))], where)
    if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
        return _from_dataset(Items(made, where), made)
    raise DataError(
        f"{where}: made a {type(made).__name__}, expected (inputs, targets), a dict of such pairs for train, "
        "val, test, or a dataset with len() and [index] -> (input, target)"
    )


def _pair(pair: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{where}: got a {type(pair).__name__}, expected a pair (inputs, targets)")
    return np.asarray(pair[0]), np.asarray(pair[1])


def _from_dataset(items: Items, dataset: Any) -> Source:
    """Read every item once, for the targets, the missing values and the digest of the content."""
    total, targets, missing = hashlib.sha256(), [], []
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    # Items may be drawn at random; the digest is to be that of the same draws each time.
    with global_stream(0, "fingerprint"):
        for index in range(len(items)):
            values, target = items[index]
            total.update(values.tobytes() + target.tobytes())
            targets.append(target)
            missing.append(np.count_nonzero(~np.isfinite(values)))
            shapes.setdefault((values.shape, target.shape), index)
    if len(shapes) > 1:
        (one, first), (other, second) = list(shapes.items())[:2]
        raise DataError(
            f"{items.where}: the items {first} and {second} have (inputs, targets) of shapes {one} and {other}, "
            "expected one shape of each"
        )
    classes = tuple(map(str, getattr(dataset, "classes", ()))) or None
    return Source(items, np.array(targets), classes, digest=total.hexdigest(), missing=np.array(missing, np.int64))
