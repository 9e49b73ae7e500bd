"""Data that code makes: torchvision's data sets, and a user's factory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingredients.config.construct import build, require
from ingredients.config.nearest import nearest
from ingredients.config.seed import global_stream
from ingredients.datasets.samples import Source, as_samples, from_arrays
from ingredients.datasets.splitting import PARTS, TEST, TRAIN
from ingredients.datasets.whole_numbers import EXACT, check_whole, tell_merged
from ingredients.errors import DataError

__all__ = ["Items", "Joined", "from_factory", "from_torchvision"]


def from_torchvision(name: str, path: str | None, options: Mapping[str, Any], dtype: str = "float32") -> Source:
    """Return the data of a class of `torchvision.datasets`, its training and its test part.

    Args:
        name: The class.
        path: The folder that it reads; by default `my_data`.
        options: Further arguments of the class.
        dtype: What inputs become: `float32`, or `int64` for whole numbers.

    Raises:
        DataError: If there is no such class, or it cannot be built.
    """
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
        source = from_arrays(parts, f"data.name=torchvision:{name}", dtype)
        classes = tuple(getattr(both[0], "classes", ())) or None
        return dataclasses.replace(source, classes=classes)
    joined = Joined(both)
    part = np.repeat(np.array([TRAIN, TEST], np.int8), [len(part) for part in both])
    return dataclasses.replace(from_factory(joined, f"data.name=torchvision:{name}", dtype), part=part)


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
    """A user's map-style dataset with items as (array of `dtype`, target)."""

    def __init__(self, dataset: Any, where: str, dtype: str = "float32") -> None:
        self.dataset = dataset
        self.where = where
        self.dtype = dtype
        # Integers that float32 may merge, while all items are read once.
        self.large: set[int] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        item = self.dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{self.where}: item {index} is a {type(item).__name__}, expected a pair (input, target)")
        values, target = np.asarray(item[0]), np.asarray(item[1])
        check_whole(values.dtype, f"{self.where}: item {index}", self.dtype)
        if values.dtype == np.uint8 and values.ndim in (2, 3):
            values = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
            values = values if self.dtype == "int64" else values / np.float32(255)
        if values.dtype.kind not in "biuf":
            raise DataError(f"{self.where}: the input of item {index} is of type {values.dtype}, expected numbers")
        if self.large is not None and values.dtype.kind in "iu" and self.dtype == "float32":
            self.large.update(values[np.abs(values) > EXACT].tolist())
        return np.ascontiguousarray(values, self.dtype), target


def from_factory(made: Any, where: str, dtype: str = "float32") -> Source:
    """Return what a factory made as a source; `where` names the factory, inputs become `dtype`.

    Raises:
        DataError: If it is no pair of arrays, no dict of such pairs, and no dataset.
    """
    if isinstance(made, Source):
        return dataclasses.replace(made, inputs=as_samples(made.inputs, where, dtype)) if made.in_memory else made
    if isinstance(made, Mapping):
        unknown = sorted(set(made) - set(PARTS))
        if unknown or "train" not in made:
            raise DataError(f"{where}: got parts {sorted(made)}, expected train and, if there are any, val and test")
        return from_arrays([(PARTS[word], *_pair(pair, where)) for word, pair in made.items()], where, dtype)
    if isinstance(made, tuple | list) and len(made) == 2:
        return from_arrays([(None, *_pair(made, where))], where, dtype)
    if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
        return _from_dataset(Items(made, where, dtype), made)
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
    items.large = set()
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
    tell_merged(np.array([EXACT, *items.large]), items.where)
    items.large = None
    classes = tuple(map(str, getattr(dataset, "classes", ()))) or None
    return Source(items, np.array(targets), classes, digest=total.hexdigest(), missing=np.array(missing, np.int64))
