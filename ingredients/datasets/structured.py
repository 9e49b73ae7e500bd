"""Samples of any structure, such as dicts, nested tuples, sequences of different lengths: looked at once, as they are.

They are neither converted nor normalised. Of each is taken what a split, a sampler and a fingerprint need: its label,
its length, its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ingredients.config.seed import global_stream
from ingredients.datasets.items import Joined
from ingredients.datasets.samples import Source
from ingredients.errors import DataError

__all__ = [
    "ArrayStructure",
    "add_content",
    "array_structure",
    "is_dataset",
    "map_arrays",
    "structured_source",
    "weights_of",
]

# Keys that the label of a dict is looked for under, in this order.
_LABELS = ("label", "labels", "target", "targets")


class ArrayStructure:
    """A structure of arrays with one row per sample, such as a dict of several inputs; `[index]` is one sample.

    Args:
        arrays: Dicts and tuples of arrays, nested as they like.
    """

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays
        self._length = len(next(_leaves(arrays)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return map_arrays(self.arrays, lambda array: array[index])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in _leaves(self.arrays))

    def rows_at(self, indices: np.ndarray) -> ArrayStructure:
        """Return some of the samples."""
        return ArrayStructure(self[indices])


def is_dataset(made: Any) -> bool:
    """Tell whether something is a map-style dataset, and no array, dict or tuple."""
    is_plain = isinstance(made, tuple | str | bytes | Mapping | np.ndarray) or _is_array(made)
    return not is_plain and hasattr(made, "__len__") and hasattr(made, "__getitem__")


def array_structure(made: Any, where: str) -> ArrayStructure | None:
    """Return a structure of arrays, with 64-bit floats as float32, which models have; None if it is none.

    Raises:
        DataError: If the arrays differ in their number of rows.
    """
    if not isinstance(made, Mapping | tuple | list) or not made:
        return None
    leaves = list(_leaves(made))
    if not leaves or not all(_is_array(leaf) and np.ndim(leaf) for leaf in leaves):
        return None
    rows = {len(leaf) for leaf in leaves}
    if len(rows) > 1:
        raise DataError(f"{where}: got arrays of {sorted(rows)} rows, expected one row per sample in each")
    return ArrayStructure(map_arrays(made, _as_array))


def structured_source(
    parts: Mapping[int | None, Any], where: str, target: str | None, collate: Any, weights: str | None = None
) -> Source:
    """Return samples of any structure as a source.

    A dataset says what it knows by attributes: `targets`, its labels (samples,), to stratify and balance by; `lengths`
    (samples,); `classes`, their names; `fingerprint`, a string that changes with its content. What it does not say is
    found out by reading each sample once; none is read where it has a fingerprint.

    Args:
        parts: Map-style datasets, or `ArrayStructure`s, by their part; None leaves the split to the lab.
        where: The setting that names them, for messages.
        target: The key that a label stands under in samples that are dicts.
        collate: What makes a batch of samples.
        weights: The key of the weight in samples that are dicts, or an attribute of the datasets with all of them.
    """
    found = [_look(dataset, target, weights) for dataset in parts.values()]
    sizes = [len(dataset) for dataset in parts.values()]
    total = hashlib.sha256()
    for one in found:
        total.update(one.digest)
    samples = _one_behind_the_other(list(parts.values()))
    part = None if None in parts else np.repeat(np.array(list(parts), np.int8), sizes)
    shards = weights_of(list(parts.values()), "shards")
    shapes = set().union(*(one.shapes for one in found))
    return Source(
        samples,
        _joined([one.labels for one in found]),
        tuple(map(str, getattr(next(iter(parts.values())), "classes", ()))) or None,
        part=part,
        digest=total.hexdigest(),
        lengths=_joined([one.lengths for one in found]),
        weights=_joined([one.weights for one in found]),
        shards=None if shards is None else shards.astype(np.int64),
        item_shape=shapes.pop() if len(shapes) == 1 else (),
        is_structured=True,
        collate=collate,
    )


class _Look:
    """What a look at a dataset found: the digest of its content, labels, lengths, weights, shapes of first tensors."""

    def __init__(self) -> None:
        self.digest = b""
        self.labels: np.ndarray | None = None
        self.lengths: np.ndarray | None = None
        self.weights: np.ndarray | None = None
        self.shapes: set[tuple[int, ...]] = set()


def _look(dataset: Any, target: str | None, weights: str | None) -> _Look:
    found, total = _Look(), hashlib.sha256()
    labels: list[Any] = []
    lengths: list[int | None] = []
    weighed: list[float] = []
    given = getattr(dataset, "fingerprint", None)
    if isinstance(given, str):
        total.update(given.encode())
    else:
        # Items may be drawn at random; the digest is to be that of the same draws each time.
        with global_stream(0, "fingerprint"):
            for index in range(len(dataset)):
                item = dataset[index]
                add_content(total, item)
                labels.append(_label_of(item, target))
                first: Any = next(_leaves(item), None)
                found.shapes.add(np.shape(first) if _is_array(first) else ())
                lengths.append(_length_of(item))
                if isinstance(item, Mapping) and weights in item:
                    weighed.append(float(item[weights]))
    found.digest = total.digest()
    found.labels = _labels(getattr(dataset, "targets", labels), len(dataset))
    found.weights = np.array(weighed) if weighed and len(weighed) == len(dataset) else weights_of([dataset], weights)
    measured = getattr(dataset, "lengths", lengths)
    if len(measured) == len(dataset) and all(length is not None for length in measured):
        found.lengths = np.asarray(measured, np.int64)
    return found


def weights_of(datasets: Sequence[Any], name: str | None) -> np.ndarray | None:
    """Return the weights (samples,) that datasets have under an attribute; None if one has none."""
    found = [np.asarray(getattr(dataset, name, ()) if name else (), np.float64) for dataset in datasets]
    fits = all(weights.shape == (len(dataset),) for weights, dataset in zip(found, datasets, strict=True))
    return np.concatenate(found) if name and fits else None


def _labels(values: Any, count: int) -> np.ndarray | None:
    """Return labels (samples,) of ints, bools or texts; None if there are none."""
    if len(values) != count or any(value is None for value in values):
        return None
    try:
        labels = np.asarray(values)
    except ValueError:  # boxes of different number, and the like
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "biuU" else None


def _label_of(item: Any, target: str | None) -> Any:
    """Return the label of a sample: the second of a pair, or what stands under a key; None if that is no label."""
    value: Any = None
    if isinstance(item, Mapping):
        key = target or next((name for name in _LABELS if name in item), None)
        value = item.get(key)
    elif isinstance(item, tuple | list) and len(item) == 2:
        value = item[1]
    if isinstance(value, str | bool | int | np.integer | np.bool_):
        return value
    return value.item() if _is_array(value) and np.ndim(value) == 0 else None


def _length_of(item: Any) -> int | None:
    """Return the length of the first sequence in a sample."""
    return next((len(leaf) for leaf in _leaves(item) if isinstance(leaf, str | bytes) or np.ndim(leaf)), None)


def add_content(total: Any, value: Any) -> None:
    """Add a sample to a hash: structure, types, shapes and values; of other objects their class alone."""
    if isinstance(value, Mapping):
        total.update(f"dict {len(value)}".encode())
        for key, item in value.items():
            add_content(total, str(key))
            add_content(total, item)
    elif isinstance(value, list | tuple):
        total.update(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            add_content(total, item)
    elif value is None or isinstance(value, str | bytes | bool | int | float):
        total.update(f"{type(value).__name__} {value!r}\0".encode())
    elif _is_array(value) or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
        total.update(f"{array.dtype.str} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data if array.dtype.kind in "biufc" else repr(array.tolist()).encode())
    else:
        total.update(type(value).__qualname__.encode())


def _leaves(made: Any) -> Iterator[Any]:
    if isinstance(made, Mapping | tuple | list):
        # A list of numbers is one sequence.
        if isinstance(made, list) and all(isinstance(one, int | float) for one in made):
            yield np.asarray(made)
            return
        for item in made.values() if isinstance(made, Mapping) else made:
            yield from _leaves(item)
    else:
        yield made


def map_arrays(made: Any, function: Callable[[Any], Any]) -> Any:
    """Return the structure with `function` applied to its arrays; lists become tuples."""
    if isinstance(made, Mapping):
        return {key: map_arrays(item, function) for key, item in made.items()}
    if isinstance(made, tuple | list):
        return tuple(map_arrays(item, function) for item in made)
    return function(made)


def _as_array(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _is_array(value: Any) -> bool:
    """Tell whether a value is an array of numpy, or a tensor, of numbers; torch is not imported for it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    return hasattr(value, "detach") and hasattr(value, "__array__")


def _one_behind_the_other(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if not all(isinstance(part, ArrayStructure) for part in parts):
        return Joined(parts)
    rows = zip(*(_leaves(part.arrays) for part in parts), strict=True)
    whole = iter([np.concatenate(arrays) for arrays in rows])
    return ArrayStructure(map_arrays(parts[0].arrays, lambda array: next(whole)))


def _joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    there = [array for array in arrays if array is not None]
    return np.concatenate(there) if len(there) == len(arrays) else None
