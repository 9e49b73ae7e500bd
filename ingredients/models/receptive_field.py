"""Receptive fields: how much of the input a value of a layer depends on, followed through the operations of a model.

Source: Araujo, Norris and Sim, Computing Receptive Fields of Convolutional Neural Networks, Distill 2019,
https://distill.pub/2019/computing-receptive-fields/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ingredients.datasets.structure import tensors_of

__all__ = ["receptive_fields"]

# Operations that keep each place where it is, though torch does not tag them as being of single values; parts of names.
_KEEP_PLACES = ("clone", "detach", "alias", "_to_copy", "native_dropout", "batch_norm", "constant_pad_nd")
_ACTIVATIONS = ("hardswish", "hardsigmoid", "hardtanh", "elu", "silu", "mish", "softplus", "shrink")


@dataclasses.dataclass(frozen=True)
class _Field:
    """Places of the input that a value depends on, and how far those of neighbours are apart, by dimension."""

    size: tuple[int, ...]
    jump: tuple[int, ...]


def receptive_fields(model: nn.Module, inputs: Tensor) -> dict[str, list[int]]:
    """Return the receptive field of each leaf module's output, by name: such as [7, 7] places of an image.

    It is that of the architecture, however large the input is. It is not defined, and left out, for what depends on
    the whole input: after flattening, global pooling, attention, and norms over places; and after transposed
    convolutions and interpolation. The model is in evaluation mode, without gradients.

    Args:
        model: Its layers.
        inputs: (1, C, *places).
    """
    if inputs.ndim < 3:
        return {}
    follow = _Follow(inputs)
    found: dict[str, list[int]] = {}
    handles = []

    def keeper(name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            field = follow.field_of(output) if isinstance(output, Tensor) else None
            if field is not None:
                found[name] = list(field.size)

        return keep

    for name, module in model.named_modules():
        if not any(module.children()):
            handles.append(module.register_forward_hook(keeper(name)))
    try:
        with torch.no_grad(), follow:
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


class _Follow(TorchDispatchMode):
    """Follows which places of an input the results of operations depend on."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        places = inputs.ndim - 2
        # With the tensors, whose ids stay theirs. None stands for what depends on all places.
        self._known: dict[int, tuple[Tensor, _Field | None]] = {}
        self._know(inputs, _Field((1,) * places, (1,) * places))

    def field_of(self, tensor: Tensor) -> _Field | None:
        return self._known.get(id(tensor), (tensor, None))[1]

    def _know(self, tensor: Tensor, field: _Field | None) -> None:
        self._known[id(tensor)] = (tensor, field)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        taken = [tensor for tensor in tensors_of((args, kwargs or {})) if id(tensor) in self._known]
        if taken:
            field = self._after(func, args, taken, result)
            for number, tensor in enumerate(tensors_of(result)):
                self._know(tensor, field if number == 0 else None)
        return result

    def _after(self, func: Any, args: Sequence[Any], taken: Sequence[Tensor], result: Any) -> _Field | None:
        fields = [field for tensor in taken if (field := self.field_of(tensor)) is not None]
        first = next(tensors_of(result), None)
        name = func._schema.name.removeprefix("aten::")
        if len(fields) < len(taken) or first is None:
            return None
        if name in ("squeeze", "unsqueeze") and len(args) > 1 and isinstance(args[1], int):
            return _with_place(fields[0], args[1], taken[0].ndim, is_new=name == "unsqueeze")
        if first.ndim != len(fields[0].size) + 2:
            return None
        if name == "convolution":
            return _convolved(fields[0], args)
        if name.startswith(("max_pool", "avg_pool")):
            kernel, stride = args[1], (args[2] if len(args) > 2 and args[2] else args[1])
            dilation = args[4] if name.startswith("max_pool") and len(args) > 4 else 1
            return _widened(fields[0], kernel, stride, dilation)
        places = first.shape[2:]
        if name == "cat" and (args[1] if len(args) > 1 else 0) % first.ndim == 1:
            return _joined(fields)
        is_padded = name == "constant_pad_nd"
        if not is_padded and any(tensor.shape[2:] != places for tensor in taken):
            return None
        if torch.Tag.pointwise in func.tags or any(part in name for part in (*_KEEP_PLACES, *_ACTIVATIONS)):
            return _joined(fields)
        return None


def _convolved(field: _Field, args: Sequence[Any]) -> _Field | None:
    weight, stride, dilation, is_transposed = args[1], args[3], args[5], args[6]
    return None if is_transposed else _widened(field, weight.shape[2:], stride, dilation)


def _widened(field: _Field, kernel: Any, stride: Any, dilation: Any) -> _Field:
    count = len(field.size)
    kernel, stride, dilation = (_each(value, count) for value in (kernel, stride, dilation))
    sizes = zip(field.size, field.jump, kernel, dilation, strict=True)
    size = tuple(before + (wide - 1) * apart * jump for before, jump, wide, apart in sizes)
    return _Field(size, tuple(jump * step for jump, step in zip(field.jump, stride, strict=True)))


def _with_place(field: _Field, dim: int, ndim: int, *, is_new: bool) -> _Field | None:
    """Return a field with a dimension of one place more or less, as pooling of sequences goes through images."""
    place = dim % (ndim + is_new) - 2
    if place < 0:
        return None
    size, jump = list(field.size), list(field.jump)
    for values in (size, jump):
        if is_new:
            values.insert(place, 1)
        else:
            del values[place]
    return _Field(tuple(size), tuple(jump))


def _joined(fields: Sequence[_Field]) -> _Field:
    """Return the field of what depends on several values at one place: the largest, if they are as far apart."""
    return _Field(tuple(map(max, zip(*(field.size for field in fields), strict=True))), fields[0].jump)


def _each(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, list | tuple | torch.Size) else [value]
    return values * count if len(values) == 1 else values
