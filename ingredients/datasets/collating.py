"""Batches of any structure, nested tuples, lists and dicts of tensors and other values; and their collation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import check_options, import_object, is_dotted_path
from sacristan.ingredients.errors import DataError, LabError

# The class that torch's losses ignore.
IGNORED = -100


def map_tensors(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to all tensors, or objects with a method `to`, in a batch of any structure."""
    if isinstance(batch, Mapping):
        return {name: map_tensors(item, function) for name, item in batch.items()}
    if hasattr(batch, "to") and not isinstance(batch, list):
        return function(batch)
    if not isinstance(batch, list | tuple):
        return batch
    items = [map_tensors(item, function) for item in batch]
    return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch on `device`; tensors in page-locked memory are copied asynchronously."""
    return map_tensors(batch, lambda part: part.to(device, non_blocking=True))


def sent(drawn: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`; a copy to CUDA uses page-locked memory, so that it is asynchronous."""
    return drawn.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else drawn.to(device)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from tensors_of(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from tensors_of(item)


def num_samples(batch: Any) -> int:
    """Return the length of the first tensor or list: in a tuple or dict, each holds all samples; or TypeError."""
    length = _length(batch)
    if length is None:
        raise TypeError(f"batch: got {type(batch).__name__} without a tensor or a list, expected samples in one")
    return length


def _length(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    if isinstance(batch, list):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else ()
    return next((length for part in parts if (length := _length(part)) is not None), None)


Collate = Callable[[list], Any]


class Padded(NamedTuple):
    """Sequences of different lengths as one tensor. B sequences, L the length of the longest.

    Attributes:
        values: (B, L, ...), padded after the end of each sequence.
        lengths: (B,), int64.
        mask: (B, L), True at values of a sequence, False at padding.
    """

    values: Tensor
    lengths: Tensor
    mask: Tensor


def collate_function(name: str | None, options: Mapping[str, Any] = {}) -> Collate:
    """Return the function for `data.collate`: None (stack), `pad`, `list`, or `package.module:function`."""
    functions: dict[str | None, Collate] = {None: stack, "pad": pad, "list": keep_lists}
    if name in functions:
        function = functions[name]
    elif is_dotted_path(str(name)):
        function = import_object(str(name), "data.collate")
        if not callable(function):
            raise DataError(f"data.collate: {name} is a {type(function).__name__}, expected a function of a list")
    else:
        hint = suggestion(str(name), ["pad", "list"], "there are: pad, list, package.module:function")
        raise DataError(f"data.collate: got {name!r}, which is unknown; {hint}")
    if not options:
        return function
    samples = next(iter(inspect.signature(function).parameters), "samples")
    check_options(function, options, "data.collate_options", {samples: ()})
    return functools.partial(function, **options)


def collated(collate: Collate, samples: list) -> Any:
    """Make a batch; if one of the lab's functions cannot, raise DataError. A user's error passes unchanged."""
    try:
        return collate(samples)
    except LabError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        function = getattr(collate, "func", collate)
        if function not in (stack, pad, keep_lists):
            raise
        raise DataError(
            f"data.collate: {len(samples)} samples cannot be joined to a batch: {str(error).splitlines()[0]}; pad "
            "sequences with data.collate=pad, keep lists with data.collate=list, or write package.module:function"
        ) from error


def stack(samples: list) -> Any:
    """Stack samples of one structure like torch's `default_collate`; tuples stay, float64 becomes float32."""
    return _joined(samples, lambda parts, path: _stacked(parts))


def pad(samples: list, value: float = 0, fields: Sequence[str | int] | None = None) -> Any:
    """Pad sequences of different lengths to a batch, each field of sequences as `Padded`.

    Every value of one dimension or more is a sequence along its first. In samples (inputs, targets) the targets stay a
    plain tensor, integers padded with -100, which torch's losses ignore. `fields` are keys or positions, nested ones
    joined by dots (`0.tokens`); None pads all.
    """
    chosen = None if fields is None else {str(field) for field in fields}
    is_pair = isinstance(samples[0], tuple | list) and len(samples[0]) == 2

    def join(parts: list, path: str) -> Any:
        is_sequence = not isinstance(parts[0], str | bytes) and np.ndim(parts[0])
        if not is_sequence or (chosen is not None and path not in chosen):
            return _stacked(parts)
        tensors = [_float32(torch.as_tensor(part)) for part in parts]
        if is_pair and path == "1":
            return _filled(tensors, value if tensors[0].is_floating_point() else IGNORED)
        lengths = torch.tensor([len(part) for part in tensors])
        values = _filled(tensors, value)
        return Padded(values, lengths, torch.arange(values.shape[1]) < lengths[:, None])

    return _joined(samples, join, lists_are_sequences=True)


def keep_lists(samples: list) -> Any:
    """Collect samples in a list, or in a tuple or dict of lists if they are tuples or dicts."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: [sample[key] for sample in samples] for key in first}
    return tuple(map(list, zip(*samples, strict=True))) if isinstance(first, tuple) else list(samples)


def _joined(parts: list, join: Callable[[list, str], Any], path: str = "", *, lists_are_sequences: bool = False) -> Any:
    """Walk through dicts and tuples, and replace the values at each path by `join(values, path)`."""
    first = parts[0]
    walk = functools.partial(_joined, join=join, lists_are_sequences=lists_are_sequences)
    if isinstance(first, Mapping):
        return {key: walk([part[key] for part in parts], path=_below(path, key)) for key in first}
    if isinstance(first, tuple):
        columns = [walk(column, path=_below(path, index)) for index, column in enumerate(_columns(parts))]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    if isinstance(first, list) and not (lists_are_sequences and all(isinstance(item, int | float) for item in first)):
        return _stacked(parts)
    return join(parts, path)


def _columns(parts: list[tuple]) -> list[list]:
    if len({len(part) for part in parts}) > 1:
        raise ValueError("the samples are tuples of different lengths")
    return list(map(list, zip(*parts, strict=True)))


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _stacked(parts: list) -> Any:
    return _float32(default_collate(parts))


def _filled(tensors: Sequence[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True, padding_value=value)


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float64 else value
