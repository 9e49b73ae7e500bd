"""Effect of settings of memory and speed: time and memory of a step with each, and gradients or outputs.

Optimizers of 8 bits change the bytes of the optimizer's states, page-locked memory the time of a copy to a GPU.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.ingredients.commands import print_table
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.datasets.collating import map_tensors, tensors_of
from sacristan.ingredients.datasets.loading import LoaderBatches
from sacristan.ingredients.inspection.profiling import quiet_profile
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.precision import MixedPrecision

__all__ = ["describe_copies", "measure", "measure_validation", "print_costs"]

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
        peak beyond what is there before), `state_bytes` (the optimizer's states), and `difference`: the largest of a
        gradient, as a share of the largest gradient.
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


def describe_copies(data: Data, device: torch.device, *, num_copies: int = 20) -> str:
    """Say in a line what `data.pin_memory` changes: on a GPU, the time that a batch takes to get there.

    Args:
        data: Where the batch comes from.
        device: Where it is wanted.
        num_copies: How often to time it; the median counts.
    """
    if device.type != "cuda":
        return f"data.pin_memory changes nothing: page-locked memory speeds up copies to a GPU, and this is {device}"
    if not isinstance(data.train, LoaderBatches):
        return f"data.pin_memory changes nothing: the data lie in memory on {device}, so that no batch is copied"
    batch = map_tensors(next(iter(data.train.epoch(0))), Tensor.cpu)
    num_bytes = sum(part.nbytes for part in tensors_of(batch))
    times = []
    for host, is_pinned in ((batch, False), (map_tensors(batch, Tensor.pin_memory), True)):

        def copy_there(host: Any = host, is_pinned: bool = is_pinned) -> None:
            map_tensors(host, lambda part: part.to(device, non_blocking=is_pinned))
            _wait(device)

        times.append(_timed(copy_there, device, num_copies)["ms"])
    return (
        f"data.pin_memory: copying a batch ({num_bytes / 2**20:.2f} MiB) to {device} takes {times[1]:.2f} ms, beside "
        f"the computation; without it {times[0]:.2f} ms, which the computation waits for"
    )


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
    timed = _timed(step, inputs.device, num_steps)
    return {"first_s": first, "state_bytes": _state_bytes(optimizer), **timed}, gradients


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


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
    with quiet_profile(profile_memory=True, acc_events=True) as found:
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
    # A validation has no optimizer.
    has_states = "state_bytes" in found["rows"][0]
    rows = [
        [
            row["name"],
            f"{row['ms']:.2f}",
            f"{row['speed']:.2f}x",
            f"{row['memory_bytes'] / 2**20:.2f}",
            *([f"{row['state_bytes'] / 2**20:.2f}"] if has_states else []),
            f"{row['first_s']:.2f}",
            f"{row['difference']:.1e}",
        ]
        for row in found["rows"]
    ]
    states = ["MiB of optimizer state"] if has_states else []
    differ = f"{found['compared']} differ by"
    print_table(["settings", "ms", "speed", "MiB at the peak", *states, "first step, s", differ], rows)
