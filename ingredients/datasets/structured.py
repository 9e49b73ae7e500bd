"""Samples of any structure, such as dicts, nested tuples and sequences of different lengths; and streams of samples.

They stay unconverted and are not normalised. Each is read once for its label, its length and a digest of its content,
which splits, samplers and fingerprints use; those of a stream can only be iterated, not indexed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sacristan.ingredients.config.seed import global_stream
from sacristan.ingredients.datasets.samples import Source, joined
from sacristan.ingredients.datasets.source_checks import TARGET_NAMES
from sacristan.ingredients.datasets.splitting import SPLITS, TRAIN
from sacristan.ingredients.errors import DataError


class ArrayStructure:
    """A nested structure of arrays with one row per sample, such as several inputs; `[index]` is one sample."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays
        self._length = len(next(_leaves(arrays)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return _map_arrays(self.arrays, lambda array: array[index])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in _leaves(self.arrays))

    def rows_at(self, indices: np.ndarray) -> ArrayStructure:
        return ArrayStructure(self[indices])

    def map(self, function: Callable[[Any], Any]) -> Any:
        """Apply a function to each array, and return the same structure of results."""
        return _map_arrays(self.arrays, function)


def is_dataset(made: Any) -> bool:
    """Return whether an object is a map-style dataset, and not an array, dict or tuple."""
    is_plain = isinstance(made, tuple | str | bytes | Mapping | np.ndarray) or _is_array(made)
    return not is_plain and hasattr(made, "__len__") and hasattr(made, "__getitem__")


def array_structure(made: Any, where: str) -> ArrayStructure | None:
    """Return dicts and tuples of arrays as samples, in float32 for 64-bit floats; None for any other object."""
    if not isinstance(made, Mapping | tuple | list) or not _has_only_arrays(made):
        return None
    arrays = _map_arrays(made, _as_array)
    rows = {len(leaf) for leaf in _leaves(arrays)}
    if not rows:
        return None
    if len(rows) > 1:
        raise DataError(f"{where}: got arrays of {sorted(rows)} rows, expected one row per sample in each")
    return ArrayStructure(arrays)


def structured_source(
    parts: Mapping[int | None, Any],
    target: str | None,
    collate: Any,
    weights: str | None = None,
    split_column: str | None = None,
) -> Source:
    """Return structured samples as a source; the part None leaves the split to the lab.

    Datasets may have attributes: `targets`, labels (samples,) to stratify and balance by; `lengths` (samples,);
    `classes`, names; `fingerprint`, a string that changes with the content. Without a fingerprint every sample is read
    once, which also finds labels and lengths. `target`, `weights` and `split_column` are keys of samples that are
    dicts; the last two may also be attributes of the datasets with all values.
    """
    datasets = list(parts.values())
    facts = [_facts_of(dataset, target, weights, split_column) for dataset in datasets]
    shards = weights_of(datasets, "shards")
    shapes = set().union(*(each.shapes for each in facts))
    return Source(
        _concatenated(datasets),
        _joined_or_none([each.labels for each in facts]),
        tuple(map(str, getattr(datasets[0], "classes", ()))) or None,
        part=part_of(parts),
        digest=hashlib.sha256(b"".join(each.digest for each in facts)).hexdigest(),
        lengths=_joined_or_none([each.lengths for each in facts]),
        weights=_joined_or_none([each.weights for each in facts]),
        split_values=_joined_or_none([each.split_values for each in facts]),
        shards=None if shards is None else shards.astype(np.int64),
        item_shape=shapes.pop() if len(shapes) == 1 else (),
        is_structured=True,
        collate=collate,
    )


def part_of(datasets: Mapping[int | None, Any]) -> np.ndarray | None:
    """Return the part (samples,) of each sample, int8, of datasets by the code of their part; None without codes."""
    sizes = [len(dataset) for dataset in datasets.values()]
    return None if None in datasets else np.repeat(np.array(list(datasets), np.int8), sizes)


@dataclasses.dataclass
class _Facts:
    """Facts about a dataset: digest of the content, labels, lengths, weights, values to split by, first shapes."""

    digest: bytes
    labels: np.ndarray | None
    lengths: np.ndarray | None
    weights: np.ndarray | None
    split_values: np.ndarray | None
    shapes: set[tuple[int, ...]]


def _facts_of(dataset: Any, target: str | None, weights: str | None, split_column: str | None) -> _Facts:
    fingerprint = getattr(dataset, "fingerprint", None)
    if isinstance(fingerprint, str):
        facts = _Facts(hashlib.sha256(fingerprint.encode()).digest(), None, None, None, None, set())
    else:
        facts = _read_facts(dataset, target, weights, split_column)
    if hasattr(dataset, "targets"):
        facts.labels = _labels(dataset.targets, len(dataset))
    if hasattr(dataset, "lengths"):
        facts.lengths = _lengths(dataset.lengths, len(dataset))
    if facts.weights is None:
        facts.weights = weights_of([dataset], weights)
    if facts.split_values is None:
        facts.split_values = attribute_of([dataset], split_column)
    return facts


def _read_facts(dataset: Any, target: str | None, weights: str | None, split_column: str | None) -> _Facts:
    total, shapes = hashlib.sha256(), set()
    labels, lengths, item_weights, split_values = [], [], [], []
    # Items may draw random numbers; the same seed gives the same digest each time.
    with global_stream(0, "fingerprint"):
        for index in range(len(dataset)):
            item = dataset[index]
            _add_content(total, item)
            labels.append(_label_of(item, target))
            first: Any = next(_leaves(item), None)
            shapes.add(np.shape(first) if _is_array(first) else ())
            lengths.append(_length_of(item))
            if isinstance(item, Mapping) and weights in item:
                item_weights.append(float(item[weights]))
            if isinstance(item, Mapping) and split_column in item:
                split_values.append(item[split_column])
    is_weighted = item_weights and len(item_weights) == len(dataset)
    return _Facts(
        total.digest(),
        _labels(labels, len(dataset)),
        _lengths(lengths, len(dataset)),
        np.array(item_weights) if is_weighted else None,
        _one_per_sample(split_values) if 0 < len(split_values) == len(dataset) else None,
        shapes,
    )


def weights_of(datasets: Sequence[Any], name: str | None) -> np.ndarray | None:
    """Return numbers in an attribute of datasets, float64 (samples,); None if one lacks it, or some of them."""
    values = [np.asarray(getattr(dataset, name, ()) if name else (), np.float64) for dataset in datasets]
    fits = all(each.shape == (len(dataset),) for each, dataset in zip(values, datasets, strict=True))
    return np.concatenate(values) if name and fits else None


def attribute_of(datasets: Sequence[Any], name: str | None) -> np.ndarray | None:
    """Return the values (samples,) in an attribute of datasets; None if one lacks it or has too many or too few."""
    values: list[Any] = [getattr(dataset, name, None) if name else None for dataset in datasets]
    fits = all(hasattr(each, "__len__") and len(each) == len(data) for each, data in zip(values, datasets, strict=True))
    return np.concatenate(list(map(_one_per_sample, values))) if fits else None


def _one_per_sample(values: Any) -> np.ndarray:
    """Return values as an array (samples,); those that are no plain values as objects."""
    plain = [value.item() if _is_array(value) and not np.ndim(value) else value for value in values]
    array = np.empty(len(plain), object)
    array[:] = plain
    return array


def _labels(values: Any, count: int) -> np.ndarray | None:
    """Return labels (samples,) of ints, bools or text; None if there are none."""
    if len(values) != count or any(value is None for value in values):
        return None
    try:
        labels = np.asarray(values)
    except ValueError:  # boxes of different number, and the like
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "biuU" else None


def _lengths(values: Any, count: int) -> np.ndarray | None:
    if len(values) != count or any(length is None for length in values):
        return None
    return np.asarray(values, np.int64)


def _label_of(item: Any, target: str | None) -> Any:
    """Return the label of a sample: the second of a pair, or the value of a key; None if that is not a label."""
    value: Any = None
    if isinstance(item, Mapping):
        value = item.get(target or next((name for name in TARGET_NAMES if name in item), None))
    elif isinstance(item, tuple | list) and len(item) == 2:
        value = item[1]
    if isinstance(value, str | bool | int | np.integer | np.bool_):
        return value
    return value.item() if _is_array(value) and not np.ndim(value) else None


def _length_of(item: Any) -> int | None:
    """Return the length of the first sequence in a sample."""
    return next((len(leaf) for leaf in _leaves(item) if isinstance(leaf, str | bytes) or np.ndim(leaf)), None)


def _add_content(total: Any, value: Any) -> None:
    """Add a sample to a `hashlib` hash: structure, types, shapes and values; only the class of unknown objects."""
    if isinstance(value, Mapping):
        total.update(f"dict {len(value)}".encode())
        for key, item in value.items():
            _add_content(total, str(key))
            _add_content(total, item)
    elif isinstance(value, list | tuple):
        total.update(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            _add_content(total, item)
    elif isinstance(value, str | bytes | bool | int | float | None):
        total.update(f"{type(value).__name__} {value!r}\0".encode())
    elif _is_array(value) or hasattr(value, "__array_interface__"):
        _add_array(total, np.asarray(value))
    else:
        total.update(type(value).__qualname__.encode())


def _add_array(total: Any, array: np.ndarray) -> None:
    total.update(f"{array.dtype.str} {array.shape}".encode())
    total.update(np.ascontiguousarray(array).data if array.dtype.kind in "biufc" else repr(array.tolist()).encode())


def _has_only_arrays(made: Any) -> bool:
    if isinstance(made, Mapping | tuple | list):
        return all(map(_has_only_arrays, made.values() if isinstance(made, Mapping) else made))
    return _is_array(made) and np.ndim(made) > 0


def _leaves(made: Any) -> Iterator[Any]:
    if isinstance(made, Mapping | tuple | list):
        # A list of numbers is one sequence.
        if isinstance(made, list) and all(isinstance(item, int | float) for item in made):
            yield np.asarray(made)
            return
        for item in made.values() if isinstance(made, Mapping) else made:
            yield from _leaves(item)
    else:
        yield made


def _map_arrays(made: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to each array of nested dicts and tuples, and return the same structure; lists become tuples."""
    if isinstance(made, Mapping):
        return {key: _map_arrays(item, function) for key, item in made.items()}
    if isinstance(made, tuple | list):
        return tuple(_map_arrays(item, function) for item in made)
    return function(made)


def _as_array(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _is_array(value: Any) -> bool:
    """Return whether a value is a numeric array of numpy, or a tensor, without importing torch."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    return hasattr(value, "detach") and hasattr(value, "__array__")


def _concatenated(parts: list[Any]) -> Any:
    if len(parts) == 1 or not all(isinstance(part, ArrayStructure) for part in parts):
        return joined(parts)
    rows = zip(*(_leaves(part.arrays) for part in parts), strict=True)
    whole = iter([np.concatenate(arrays) for arrays in rows])
    return ArrayStructure(_map_arrays(parts[0].arrays, lambda array: next(whole)))


def _joined_or_none(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if len(present) == len(arrays) else None


@dataclasses.dataclass(frozen=True)
class Stream:
    """A part of the data as a stream, or a map-style dataset next to one, and the length of its epoch if known.

    `samples` may yield functions without arguments that make a sample; those of skipped samples are not called.
    """

    samples: Any
    length: int | None


@dataclasses.dataclass(frozen=True)
class Streams:
    """Data with at least one stream; `digest` is the SHA-256 of the classes and fingerprints of the parts."""

    parts: Mapping[int, Stream]
    digest: str

    def __len__(self) -> int:
        return sum(part.length or 0 for part in self.parts.values())

    def ready(self, epoch_samples: int | None, where: str) -> Streams:
        """Return streams with known lengths: val and test are counted, `epoch_samples` is that of training."""
        parts = {code: self._with_length(code, part, epoch_samples, where) for code, part in self.parts.items()}
        return dataclasses.replace(self, parts=parts)

    def _with_length(self, code: int, part: Stream, epoch_samples: int | None, where: str) -> Stream:
        length = part.length
        if code == TRAIN:
            length = epoch_samples or length
            if length is None:
                raise DataError(
                    f"data.epoch_samples: got None, but {where} is a stream of unknown length; set data.epoch_samples "
                    "to the number of samples in an epoch"
                )
        elif length is None:
            with global_stream(0, "fingerprint"):
                length = sum(1 for _ in part.samples)
        if not length:
            raise DataError(f"{where}: the {SPLITS[code]} part of the stream has no samples")
        return dataclasses.replace(part, length=length)


def is_stream(made: Any) -> bool:
    """Return whether an object can only be iterated, such as an `IterableDataset` of torch or of Hugging Face."""
    if any(cls.__name__ == "IterableDataset" for cls in type(made).__mro__):
        return True
    return hasattr(made, "__iter__") and not hasattr(made, "__len__") and not hasattr(made, "__array__")


def streams_of(parts: Mapping[int | None, Any], where: str) -> Streams:
    """Return parts as streams, a single one as training part; reject one that can be read only once."""
    total = hashlib.sha256(where.encode())
    streams = {}
    for code, samples in parts.items():
        if is_stream(samples) and iter(samples) is samples:
            raise DataError(
                f"{where}: got a {type(samples).__name__}, which can be read only once; return an IterableDataset, or "
                "an object whose __iter__ starts again"
            )
        total.update(f"{code} {type(samples).__qualname__} {getattr(samples, 'fingerprint', '')}".encode())
        streams[TRAIN if code is None else code] = Stream(samples, _length(samples))
    return Streams(streams, total.hexdigest())


def _length(samples: Any) -> int | None:
    try:
        return len(samples)
    except TypeError:
        return None
