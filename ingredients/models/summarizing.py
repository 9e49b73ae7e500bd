"""Summary of a model: output shapes, parameters, operations and memory of each layer."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sacristan.ingredients.datasets.structure import tensors_of
from sacristan.ingredients.models.modes import evaluating

__all__ = ["summarize"]


def summarize(model: nn.Module, input_shape: Sequence[int], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Run one sample of zeros through a model, and summarise its layers for `model.summary`.

    The totals are `parameters`, `trainable`, `operations`, `parameter_bytes` (with buffers) and `output_bytes`.
    `layers` has a row for each module that is a leaf, or has parameters or operations besides those of its children:
    name, type, output shape without the batch, parameters (shared ones once), operations and output bytes. Operations
    are floating-point operations of one forward sample, as `torch.utils.flop_counter` counts them (a multiply and an
    add are two). Output bytes are those of leaf modules, roughly what training keeps for the backward pass.
    """
    shapes: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    handles = [
        module.register_forward_hook(_shape_recorder(shapes, None if any(module.children()) else sizes, name))
        for name, module in model.named_modules()
    ]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    inputs = torch.zeros(1, *input_shape, dtype=dtype, device=device)
    try:
        with torch.no_grad(), evaluating(model), _countable(model), FlopCounterMode(display=False) as counter:
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    kept = [*model.parameters(), *model.buffers()]
    return {
        "layers": _layers(model, shapes, sizes, counter),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "operations": counter.get_total_flops(),
        "parameter_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept),
        "output_bytes": sum(sizes.values()),
    }


@contextlib.contextmanager
def _countable(model: nn.Module) -> Iterator[None]:
    """Compute attention and recurrent layers by matrix products, which the counter supports, not fused kernels."""
    has_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn] if has_recurrent else []
    before = [library.enabled for library in libraries]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for library in libraries:
            library.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library, enabled in zip(libraries, before, strict=True):
            library.enabled = enabled
        torch.backends.mha.set_fastpath_enabled(fast)


def _shape_recorder(shapes: dict[str, list[int]], sizes: dict[str, int] | None, name: str) -> Any:
    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        shapes[name] = list(output.shape[1:]) if isinstance(output, Tensor) else []
        if sizes is not None:
            sizes[name] = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(output))

    return record


def _layers(
    model: nn.Module,
    shapes: dict[str, list[int]],
    sizes: dict[str, int],
    counter: FlopCounterMode,
) -> list[dict[str, Any]]:
    operations = _own_operations(counter, type(model).__name__, shapes)
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in seen]
        seen.update(map(id, own))
        if own or operations.get(name) or name in sizes:
            row = {
                "name": name or "(model)",
                "type": type(module).__name__,
                "output": shapes.get(name, []),
                "parameters": sum(map(Tensor.numel, own)),
                "operations": operations.get(name, 0),
                "output_bytes": sizes.get(name, 0),
            }
            layers.append(row)
    return layers


def _own_operations(counter: FlopCounterMode, root: str, called: Collection[str]) -> dict[str, int]:
    """Return the operations of each called module, without those of the modules that it called."""
    counts = counter.get_flop_counts()
    totals = {name: sum(counts.get(f"{root}.{name}" if name else root, {}).values()) for name in called}
    own = dict(totals)
    for name, total in totals.items():
        caller = name.rpartition(".")[0]
        while caller and caller not in totals:
            caller = caller.rpartition(".")[0]
        if name and caller in totals:
            own[caller] -= total
    return own
