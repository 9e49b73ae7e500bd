"""Data that code makes: torchvision's data sets, and a user's factory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, import_object, require
from sacristan.ingredients.config.seed import global_stream
from sacristan.ingredients.datasets.samples import Rounding, Source, SourceSettings, as_samples, from_arrays, joined
from sacristan.ingredients.datasets.source_checks import EXACT, check_whole, warn_of_merged
from sacristan.ingredients.datasets.splitting import PARTS, TEST, TRAIN, VAL
from sacristan.ingredients.datasets.structured import (
    ArrayStructure,
    array_structure,
    attribute_of,
    is_dataset,
    is_stream,
    part_of,
    streams_of,
    structured_source,
    weights_of,
)
from sacristan.ingredients.errors import DataError

Collate = Callable[[list], Any]


def from_torchvision(name: str, settings: SourceSettings) -> Source:
    """Return a torchvision dataset, its training and test parts; `path` is its folder, by default `my_data`."""
    where = f"data.name=torchvision:{name}"
    datasets = require("torchvision.datasets", "torchvision", where)
    if not hasattr(datasets, name):
        hint = suggestion(name, datasets.__all__, "", "torchvision:{}".format)
        raise DataError(f"data.name: torchvision has no data set {name!r}{hint and f'; {hint}'}")
    cls, root = getattr(datasets, name), settings.path or "my_data"
    parts = {
        code: build(cls, settings.options, "data.options", DataError, root=root, train=code == TRAIN)
        for code in (TRAIN, TEST)
    }
    if settings.is_plain and all(hasattr(part, "data") and hasattr(part, "targets") for part in parts.values()):
        arrays = [(code, np.asarray(part.data), np.asarray(part.targets)) for code, part in parts.items()]
        source = from_arrays(arrays, where, settings.dtype)
        return dataclasses.replace(source, classes=tuple(getattr(parts[TRAIN], "classes", ())) or None)
    return from_factory({"train": parts[TRAIN], "test": parts[TEST]}, where, **settings.for_items)


def from_code(name: str, settings: SourceSettings) -> Source:
    """Return the data of a user's factory `package.module:factory`, which draws from the random stream `factory`."""
    with global_stream(settings.seed, "factory"):
        made = build(import_object(name, "data.name"), settings.options, "data.options", DataError)
    return from_factory(made, f"data.name={name}", **settings.for_items)


class Items:
    """A user's map-style dataset with items converted to (array of `dtype`, target), int64 or float32.

    Large integers and 64-bit floats stay float64 until they are normalised. `exact_digest` is the SHA-256 with them if
    float32 would lose digits, else None.
    """

    exact_digest: str | None = None

    def __init__(self, dataset: Any, where: str, dtype: str = "float32") -> None:
        self.dataset = dataset
        self.where = where
        self.dtype = dtype
        # Integers beyond float32's precision, collected while all items are read once.
        self.large: set[int] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        item = self.dataset[index]
        if not _is_pair(item):
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
        is_wide = self.dtype == "float32" and values.dtype.kind in "iuf" and values.dtype.itemsize >= 4
        return np.ascontiguousarray(
            values, np.float64 if is_wide and values.dtype != np.float32 else self.dtype
        ), target


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def from_factory(
    made: Any,
    where: str,
    dtype: str = "float32",
    *,
    task: str = "auto",
    target: str | None = None,
    collate: Collate | None = None,
    weights: str | None = None,
    split_column: str | None = None,
) -> Source:
    """Return the result of a factory as a source: arrays, datasets or streams, or a dict of them by part.

    Pairs (numbers, target) become inputs and targets; anything else, or with a collate function or the task `custom`,
    becomes samples of any structure. `target`, `weights` and `split_column` are keys of samples that are dicts; the
    last two may also be attributes of the dataset.
    """
    if isinstance(made, Source):
        return dataclasses.replace(made, inputs=as_samples(made.inputs, where, dtype)) if made.in_memory else made
    if isinstance(made, tuple) and _is_pair(made) and callable(made[1]) and not is_dataset(made[1]):
        made, collate = made[0], collate or made[1]
    parts = _parts(made, where)
    if any(map(is_stream, parts.values())):
        streams = streams_of(parts, where)
        return Source(streams, None, digest=streams.digest, is_structured=True, collate=collate)
    keeps_structure = task == "custom" or collate is not None
    if not keeps_structure and all(map(_is_pair_of_arrays, parts.values())):
        return from_arrays([(code, *_pair(pair, where)) for code, pair in parts.items()], where, dtype)
    datasets = {code: _dataset(part, where) for code, part in parts.items()}
    if keeps_structure or not all(map(_has_plain_items, datasets.values())):
        return structured_source(datasets, target, collate, weights, split_column)
    source = _from_datasets(datasets, where, dtype, weights)
    return dataclasses.replace(source, split_values=attribute_of(list(datasets.values()), split_column))


def _parts(made: Any, where: str) -> dict[int | None, Any]:
    """Return the result of a factory by the code of its part; None stands for a whole that the lab splits."""
    if isinstance(made, Mapping) and (made.keys() & PARTS.keys() or any(map(_is_container, made.values()))):
        if "train" not in made or made.keys() - PARTS.keys():
            raise DataError(f"{where}: got parts {sorted(made)}, expected train and, optionally, val and test")
        return {PARTS[word]: part for word, part in made.items()}
    if (
        isinstance(made, tuple)
        and 2 <= len(made) <= 3
        and all(is_dataset(part) and not isinstance(part, list) for part in made)
    ):
        return dict(zip((TRAIN, VAL, TEST), made, strict=False))
    return {None: made}


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | tuple | list) or is_dataset(value) or is_stream(value)


def _is_pair_of_arrays(part: Any) -> bool:
    """Return whether a part is (inputs, targets), each a single array."""
    return _is_pair(part) and not any(
        isinstance(item, Mapping) or (isinstance(item, tuple) and array_structure(item, "") is not None)
        for item in part
    )


def _dataset(part: Any, where: str) -> Any:
    """Return a dataset, or the arrays that hold the samples."""
    if is_dataset(part):
        return part
    arrays = array_structure(part, where)
    if arrays is None:
        raise DataError(
            f"{where}: got a {type(part).__name__}, expected a pair (inputs, targets), a dict or tuple of arrays "
            "(not of lists), a dataset with len() and [index], or a dict of these for train, val, test"
        )
    return arrays


def _has_plain_items(dataset: Any) -> bool:
    """Return whether the items of a dataset are pairs (numbers, target), judged by the first."""
    if isinstance(dataset, ArrayStructure):
        return False
    if not len(dataset):
        return True
    with global_stream(0, "fingerprint"):
        item = dataset[0]
    if not _is_pair(item):
        return False
    try:
        values, target = np.asarray(item[0]), np.asarray(item[1])
    except (ValueError, TypeError):
        return False
    return values.dtype.kind in "biuf" and target.dtype.kind in "biufU"


def _pair(pair: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        return np.asarray(pair[0]), np.asarray(pair[1])
    except ValueError as error:
        raise DataError(
            f"{where}: got rows of different lengths, expected arrays; return a dataset, and pad with data.collate=pad"
        ) from error


def _from_datasets(datasets: Mapping[int | None, Any], where: str, dtype: str, weights: str | None) -> Source:
    """Return datasets of pairs as a source; reads every item once for targets, missing values and the digest."""
    parts = list(datasets.values())
    items = Items(joined(parts), where, dtype)
    total, exact, rounding, targets, missing = hashlib.sha256(), hashlib.sha256(), Rounding(), [], []
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    items.large = set()
    # Items may draw random numbers; the same seed gives the same digest each time.
    with global_stream(0, "fingerprint"):
        for index in range(len(items)):
            values, target = items[index]
            with np.errstate(over="ignore"):
                rounded = values.astype(np.float32) if values.dtype == np.float64 else values
            total.update(rounded.tobytes() + target.tobytes())
            shapes.setdefault((values.shape, target.shape), index)
            if values.dtype == np.float64 and len(shapes) == 1:
                exact.update(values.tobytes() + target.tobytes())
                rounding.add(values[None])
            targets.append(target)
            missing.append(np.count_nonzero(~np.isfinite(rounded)))
    if len(shapes) > 1:
        (one, first), (other, second) = list(shapes.items())[:2]
        raise DataError(
            f"{where}: the items {first} and {second} have (inputs, targets) of shapes {one} and {other}, expected the "
            "same shapes; pad sequences with data.collate=pad, or keep lists with data.collate=list"
        )
    if rounding.matters:
        items.exact_digest = exact.hexdigest()
    else:
        warn_of_merged(np.array([EXACT, *items.large]), where)
    items.large = None
    return Source(
        items,
        np.array(targets),
        tuple(map(str, getattr(parts[0], "classes", ()))) or None,
        part=part_of(datasets),
        digest=total.hexdigest(),
        missing=np.array(missing, np.int64),
        weights=weights_of(parts, weights),
        shards=weights_of(parts, "shards"),
    )
