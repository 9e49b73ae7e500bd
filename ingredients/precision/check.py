"""Effects of mixed precision on a model and device, measured by the command `amp.check`."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.losses.building import Loss
from sacristan.ingredients.precision.mixed_precision import MixedPrecision, auto_dtype

__all__ = ["measure", "print_check", "unaligned_layers"]


def measure(model: nn.Module, loss: Loss, data: Data, device: torch.device, *, num_steps: int = 20) -> dict[str, Any]:
    """Time training steps of a copy of `model` in each precision, and compare its loss on one batch with float32's.

    The median of `num_steps` counts. Returns `device`, `auto`, `supported` (precision to bool), `rows` (per precision
    milliseconds a step, speed against float32, loss, difference of the loss), `unaligned` (see `unaligned_layers`).
    """
    inputs, targets = next(iter(data.train.epoch(0)))
    supported = {
        name: _supports(device, dtype) for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16))
    }
    rows: list[dict[str, Any]] = []
    for name in ("off", *(name for name, fine in supported.items() if fine)):
        milliseconds, value = _time(
            copy.deepcopy(model), loss, inputs, targets, MixedPrecision(device, name), num_steps
        )
        rows.append({"dtype": "float32" if name == "off" else name, "ms_per_step": milliseconds, "loss": value})
    for row in rows:
        row["speed"] = rows[0]["ms_per_step"] / row["ms_per_step"]
        row["loss_difference"] = row["loss"] - rows[0]["loss"]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return {
        "device": name,
        "auto": auto_dtype(device),
        "supported": supported,
        "batch_size": len(targets),
        "rows": rows,
        "unaligned": unaligned_layers(model),
    }


def _supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Try a product in this precision on the device."""
    try:
        factor = torch.ones(8, 8, device=device, dtype=dtype)
        return bool(torch.isfinite(factor @ factor).all())
    except RuntimeError:
        return False


def _time(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, amp: MixedPrecision, num_steps: int
) -> tuple[float, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model.eval()
    with torch.no_grad(), amp.autocast():
        value = float(loss(model(inputs), targets))
    model.train()
    times = []
    for _ in range(num_steps + 3):
        start = time.perf_counter()
        with amp.autocast():
            batch_loss = loss(model(inputs), targets)
        amp.backward(batch_loss)
        amp.step(optimizer)
        amp.update()
        optimizer.zero_grad()
        if inputs.device.type == "cuda":
            torch.cuda.synchronize(inputs.device)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[3:]), value


def unaligned_layers(model: nn.Module) -> list[dict[str, Any]]:
    """Return linear and convolutional layers whose sizes are not multiples of 8, which 16-bit tensor cores need.

    Each has `name`, `type` and `sizes`, the sizes by argument.

    Source: https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
    """
    unaligned = []
    for name, module in model.named_modules():
        sizes = {}
        if isinstance(module, nn.Linear):
            sizes = {"in_features": module.in_features, "out_features": module.out_features}
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            sizes = {"in_channels": module.in_channels, "out_channels": module.out_channels}
        odd = {key: size for key, size in sizes.items() if size % 8}
        if odd:
            unaligned.append({"name": name, "type": type(module).__name__, "sizes": odd})
    return unaligned


def print_check(measured: dict[str, Any]) -> None:
    """Print the supported precisions, a table of their speed and loss, and the layers that tensor cores cannot use."""
    from sacristan.ingredients.config.tables import print_table

    supported = ", ".join(f"{name} {'yes' if fine else 'no'}" for name, fine in measured["supported"].items())
    print(f"device: {measured['device']}; supports {supported}; amp.dtype=auto means {measured['auto']}")
    print(f"one training step on {measured['batch_size']} samples:")
    rows = [
        [
            r["dtype"],
            f"{r['ms_per_step']:.2f}",
            f"{r['speed']:.2f}x",
            f"{r['loss']:.6f}",
            f"{r['loss_difference']:+.1e}",
        ]
        for r in measured["rows"]
    ]
    print_table(["precision", "ms", "speed", "loss", "difference"], rows)
    for row in measured["unaligned"]:
        sizes = ", ".join(f"{key}={size}" for key, size in row["sizes"].items())
        print(f"not a multiple of 8: {row['name']} ({row['type']}, {sizes})")
