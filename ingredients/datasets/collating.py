"""Batches from samples of any structure: stacked, padded, kept in lists, or made by the user's function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from ingredients.config.construct import check_options, import_object, is_dotted_path
from ingredients.config.nearest import nearest
from ingredients.errors import DataError, LabError

__all__ = ["IGNORED", "Collate", "Padded", "collate_function", "collated", "keep_lists", "pad", "stack"]

Collate = Callable[[list], Any]

# The class that losses of torch leave out.
IGNORED = -100


class Padded(NamedTuple):
    """Sequences of different lengths as one tensor. B sequences, L the longest of them.

    Attributes:
        values: (B, L, ...), filled up behind the end of each sequence.
        lengths: (B,), int64.
        mask: (B, L), True where there are values of a sequence.
    """

    values: Tensor
    lengths: Tensor
    mask: Tensor


def collate_function(name: str | None, options: Mapping[str, Any] = {}) -> Collate:
    """Return what makes a batch of a list of samples.

    Args:
        name: None to stack, `pad`, `list`, or `package.module:function`.
        options: Further arguments of the function.

    Raises:
        DataError, ConfigError: If there is none of that name, or it does not take the options.
    """
    known: dict[str | None, Collate] = {None: stack, "pad": pad, "list": keep_lists}
    if name in known:
        function = known[name]
    elif is_dotted_path(str(name)):
        function = import_object(str(name), "data.collate")
        if not callable(function):
            raise DataError(f"data.collate: {name} is a {type(function).__name__}, expected a function of a list")
    else:
        near = nearest(str(name), ["pad", "list"])
        hint = f"did you mean {near}?" if near else "there are: pad, list, package.module:function"
        raise DataError(f"data.collate: got {name!r}, which is unknown; {hint}")
    if not options:
        return function
    samples = next(iter(inspect.signature(function).parameters), "samples")
    check_options(function, options, "data.collate_options", {samples: ()})
    return functools.partial(function, **options)


def collated(collate: Collate, samples: list) -> Any:
    """Return the batch of samples.

    Raises:
        DataError: If torch's own refuse them, as it does tensors of different shapes.
    """
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
    """Return samples of one structure as a batch of that structure, as torch's `default_collate` does.

    Tuples stay tuples, and numbers of 64 bits with a point become float32, which models have.
    """
    return _joined(samples, lambda parts, path: _stacked(parts))


def pad(samples: list, value: float = 0, fields: Sequence[str | int] | None = None) -> Any:
    """Return samples with sequences of different lengths as a batch, each field of sequences as `Padded`.

    Everything of one dimension or more counts as a sequence, along its first. Of samples (inputs, targets) the targets
    stay a plain tensor, integers filled up with -100, which losses of torch ignore.

    Args:
        samples: All of one structure.
        value: What sequences are filled up with.
        fields: The fields to pad, by key or place, inner ones joined by points (`tokens`, `0`, `0.tokens`); None pads
            all.
    """
    chosen = None if fields is None else {str(field) for field in fields}
    is_pair = isinstance(samples[0], tuple | list) and len(samples[0]) == 2

    def join(parts: list, path: str) -> Any:
        first = parts[0]
        if isinstance(first, str | bytes) or not np.ndim(first) or (chosen is not None and path not in chosen):
            return _stacked(parts)
        tensors = [_float32(torch.as_tensor(part)) for part in parts]
        if is_pair and path == "1":
            return _filled(tensors, value if tensors[0].is_floating_point() else IGNORED)
        lengths = torch.tensor([len(part) for part in tensors])
        values = _filled(tensors, value)
        return Padded(values, lengths, torch.arange(values.shape[1]) < lengths[:, None])

    return _joined(samples, join, lists_are_sequences=True)


def keep_lists(samples: list) -> Any:
    """Return samples as lists, field by field: tuples become a tuple of lists, dicts a dict of lists."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: [sample[key] for sample in samples] for key in first}
    return tuple(map(list, zip(*samples, strict=True))) if isinstance(first, tuple) else list(samples)


def _joined(parts: list, join: Callable[[list, str], Any], path: str = "", *, lists_are_sequences: bool = False) -> Any:
    """Walk into dicts and tuples, and `join(values, path)` what lies there."""
    first = parts[0]
    walk = functools.partial(_joined, join=join, lists_are_sequences=lists_are_sequences)
    if isinstance(first, Mapping):
        return {key: walk([part[key] for part in parts], path=_below(path, key)) for key in first}
    if isinstance(first, tuple):
        if len({len(part) for part in parts}) > 1:
            raise ValueError("the samples are tuples of different lengths")
        columns = [
            walk(list(column), path=_below(path, place)) for place, column in enumerate(zip(*parts, strict=True))
        ]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    if isinstance(first, list) and not (lists_are_sequences and all(isinstance(one, int | float) for one in first)):
        return _float32(default_collate(parts))
    return join(parts, path)


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _stacked(parts: list) -> Any:
    return _float32(default_collate(parts))


def _filled(tensors: Sequence[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True, padding_value=value)


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float64 else value
