"""The effect of settings of memory and speed: time and memory of a step, difference of gradients or outputs."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ingredients.config.tables import print_table
from ingredients.datasets.batches import Data
from ingredients.datasets.structure import map_tensors, to_device
from ingredients.losses.building import Loss
from ingredients.precision.mixed_precision import MixedPrecision

__all__ = ["measure", "measure_copies", "measure_validation", "print_copies", "print_costs"]

# A change of a model in place, or another optimizer: what one setting does.
Tuned = Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]


def measure(
    variants: Mapping[str, Tuned],
    model: nn.Module,
    loss: Loss,
    data: Data,
    amp: MixedPrecision,
    *,
    num_steps: int = 20,
) -> dict[str, Any]:
    """Time training steps of copies of a model, and compare their memory and gradients with those of the first.

    Args:
        variants: By name, what makes a copy of the model and its optimizer ready; the first is the one to compare with.
        model: The model, on its device; it is not trained.
        loss: The loss.
        data: Where the batch comes from.
        amp: The precision.
        num_steps: Steps to time; the median counts.

    Returns:
        `what` was timed, what was `compared`, `batch_size`, and `rows`: per variant `name`, `first_s` (the first step,
        in which a model is compiled), `ms` a step, `speed` against the first, `memory_bytes` (what a step takes at its
        peak beyond what is there before), `state_bytes` of the optimizer, and `difference`: the largest of a gradient,
        as a share of the largest gradient.
    """
    batch = next(iter(data.train.epoch(0)))
    rows: list[dict[str, Any]] = []
    expected: list[Tensor] = []
    for name, tuned in variants.items():
        network, optimizer = tuned(copy.deepcopy(model))
        network.train()
        row, gradients = _cost(network, optimizer, loss, batch, amp, num_steps)
        expected = expected or gradients
        row |= {"name": name, "difference": _difference(expected, gradients)}
        rows.append(row)
    return _compared("one training step", "gradients", len(batch[1]), rows)


def measure_validation(model: nn.Module, data: Data, amp: MixedPrecision, *, num_steps: int = 20) -> dict[str, Any]:
    """Time the forward pass of a validation on one batch, without and with `training.inference_mode`.

    Args:
        model: The model, on its device; it is not changed.
        data: Where the batch comes from.
        amp: The precision.
        num_steps: Passes to time; the median counts.

    Returns:
        The same as `measure`; `difference` is that of outputs.
    """
    inputs, targets = next(iter(data.train.epoch(0)))
    rows: list[dict[str, Any]] = []
    expected: list[Tensor] = []
    network = copy.deepcopy(model).eval()
    for name, mode in {"none": torch.no_grad, "training.inference_mode": torch.inference_mode}.items():

        def step(mode: Callable[[], Any] = mode) -> Tensor:
            with mode(), amp.autocast():
                outputs = network(inputs)
            _wait(inputs.device)
            return outputs

        start = time.perf_counter()
        found = [step()]
        first = time.perf_counter() - start
        expected = expected or found
        row = {"name": name, "first_s": first, **_timed(step, inputs.device, num_steps)}
        rows.append(row | {"difference": _difference(expected, found)})
    return _compared("validating", "outputs", len(targets), rows)


def measure_copies(batch: Any, device: torch.device, *, num_copies: int = 20) -> list[dict[str, Any]]:
    """Time copies of a batch to a GPU, without and with `data.pin_memory`.

    Args:
        batch: Tensors, wherever they are.
        device: Where they are copied to; CUDA.
        num_copies: How often to time it; the median counts.

    Returns:
        Rows with `name`, `ms` till the batch is there, and `waited_ms`, in which the training can do nothing else.
    """
    usual = map_tensors(batch, lambda part: part.cpu())
    rows = []
    for name, host in (("none", usual), ("data.pin_memory", map_tensors(usual, lambda part: part.pin_memory()))):
        times = []
        for _ in range(1 + num_copies):
            _wait(device)
            start = time.perf_counter()
            copied = to_device(host, device)
            waited = time.perf_counter() - start
            _wait(device)
            times.append((time.perf_counter() - start, waited))
            del copied
        there, waiting = (1e3 * statistics.median(column) for column in zip(*times[1:], strict=True))
        rows.append({"name": name, "ms": there, "waited_ms": waiting})
    return rows


def _compared(what: str, compared: str, batch_size: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        row["speed"] = rows[0]["ms"] / row["ms"]
    return {"what": what, "compared": compared, "batch_size": batch_size, "rows": rows}


def _cost(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    batch: tuple[Tensor, Tensor],
    amp: MixedPrecision,
    num_steps: int,
) -> tuple[dict[str, Any], list[Tensor]]:
    inputs, targets = batch

    def backward() -> None:
        with amp.autocast():
            value = loss(model(inputs), targets)
        amp.backward(value)
        _wait(inputs.device)

    def step() -> None:
        backward()
        amp.step(optimizer)
        amp.update()
        optimizer.zero_grad()
        _wait(inputs.device)

    start = time.perf_counter()
    # Each has the same random numbers in its first step, such as those of dropout.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backward()
    first = time.perf_counter() - start
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    optimizer.zero_grad()
    step()
    states = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    kept = {"state_bytes": sum(value.nbytes for value in states)}
    return {"first_s": first, **kept, **_timed(step, inputs.device, num_steps)}, gradients


def _timed(step: Callable[[], Any], device: torch.device, num_steps: int) -> dict[str, Any]:
    memory = _peak(step, device)
    times = []
    for _ in range(num_steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return {"ms": 1e3 * statistics.median(times), "memory_bytes": memory}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(step: Callable[[], Any], device: torch.device) -> int:
    """Return the bytes that a step takes at its peak, beyond those that are taken before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        step()
    events = found.profiler.kineto_results.events()
    now = peak = 0
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        now += size
        peak = max(peak, now)
    return peak


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    largest = max(value.abs().max().item() for value in expected)
    return max((a - b).abs().max().item() for a, b in zip(expected, found, strict=True)) / (largest or 1.0)


def print_costs(found: Mapping[str, Any]) -> None:
    """Print what `measure` or `measure_validation` found."""
    print(f"{found['what']} on {found['batch_size']} samples:")
    rows = [
        [
            row["name"],
            f"{row['ms']:.2f}",
            f"{row['speed']:.2f}x",
            f"{row['memory_bytes'] / 2**20:.2f}",
            *([f"{row['state_bytes'] / 2**20:.2f}"] if "state_bytes" in row else []),
            f"{row['first_s']:.2f}",
            f"{row['difference']:.1e}",
        ]
        for row in found["rows"]
    ]
    kept = ["MiB of the optimizer"] if "state_bytes" in found["rows"][0] else []
    names = ["settings", "ms", "speed", "MiB at the peak", *kept, "first step, s", f"{found['compared']} differ by"]
    print_table(names, rows)


def print_copies(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what `measure_copies` found."""
    print("copying a batch to the GPU:")
    print_table(
        ["settings", "ms", "ms waited"], [[row["name"], f"{row['ms']:.3f}", f"{row['waited_ms']:.3f}"] for row in rows]
    )
