"""The time of training steps: a profile of some of them by phase, and their speed and loss in mixed precision."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.ingredients.commands import print_table
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.precision import MixedPrecision, auto_dtype

PHASES = ("data", "forward", "backward", "optimizer", "rest")
# Operations in the table.
_MOST_OPERATIONS = 10


@dataclasses.dataclass(frozen=True)
class Profiled:
    """The result of a profile."""

    steps: int
    seconds: dict[str, float]
    operations: list[tuple[str, int, float]]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return milliseconds a step, and shares, by phase."""
        per_step = {phase: 1e3 * seconds / self.steps for phase, seconds in self.seconds.items()}
        shares = {phase: seconds / max(self.total, 1e-12) for phase, seconds in self.seconds.items()}
        return {"steps": self.steps, "ms_per_step": per_step, "share": shares}

    def __str__(self) -> str:
        lines = [f"{'phase':<12}{'ms a step':>11}{'share':>8}"]
        for phase, seconds in self.seconds.items():
            lines.append(f"{phase:<12}{1e3 * seconds / self.steps:>11.3f}{seconds / max(self.total, 1e-12):>8.1%}")
        width = max((len(name) for name, _, _ in self.operations), default=0)
        lines += ["", f"{'operation':<{width}}{'calls':>8}{'ms':>10}"]
        lines += [f"{name:<{width}}{calls:>8}{ms:>10.3f}" for name, calls, ms in self.operations]
        return "\n".join(lines)


class StepProfile:
    """Times the phases of steps between `begin` and `end`."""

    def __init__(self, task: Any, amp: Any, device: torch.device) -> None:
        self._task = task
        self._amp = amp
        self._device = device
        self._stack = contextlib.ExitStack()
        self._profiler: Any = None
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._steps = 0
        self._phase: str | None = None
        self._since = 0.0

    def begin(self) -> None:
        """Start timing; the next batch is about to be requested."""
        self._profiler = self._stack.enter_context(quiet_profile(with_cuda=self._device.type == "cuda"))
        for owner, name, phase in (
            (self._task, "loss", "forward"),
            (self._amp, "backward", "backward"),
            (self._amp, "step", "optimizer"),
        ):
            self._stack.callback(_replaced(owner, name, self._timed(getattr(owner, name), phase)))
        self._enter("data")

    def next_step(self) -> None:
        self._steps += 1
        self._enter("data")

    def leave_epoch(self) -> None:
        """Record the end of an epoch: time until the next step counts as the rest, not as waiting for data."""
        self._enter("rest")

    def end(self) -> Profiled:
        self._enter(None)
        profiler = self._profiler
        self.close()
        key = "self_device_time_total" if self._device.type == "cuda" else "self_cpu_time_total"
        events = sorted(profiler.key_averages(), key=lambda event: getattr(event, key), reverse=True)
        operations = [
            (event.key[:60], event.count, getattr(event, key) / 1e3)
            for event in events
            if not event.key.startswith(("step: ", "ProfilerStep"))
        ]
        self._trace = profiler
        return Profiled(max(self._steps, 1), dict(self._seconds), operations[:_MOST_OPERATIONS])

    def write_trace(self, path: Path) -> None:
        """Write the profiled steps for chrome://tracing or Perfetto, gzipped for `.gz`; call `end` first."""
        self._trace.export_chrome_trace(str(path))

    def close(self) -> None:
        """Stop profiling, and restore the replaced methods."""
        self._profiler = None
        self._stack.close()

    def _enter(self, phase: str | None) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._phase == phase or not torch.is_grad_enabled():  # a recursive call, or a validation
                return function(*args, **kwargs)
            before = "rest" if self._phase == "data" else self._phase
            self._enter(phase)
            try:
                with torch.profiler.record_function(f"step: {phase}"):
                    return function(*args, **kwargs)
            finally:
                self._enter(before)

        return timed


def quiet_profile(*, with_cuda: bool = False, **options: Any) -> torch.profiler.profile:
    """Return a torch profiler that prints nothing when it begins and ends; `with_cuda` adds CUDA to the CPU."""
    from torch.profiler import ProfilerActivity, profile

    # Read when the first profile begins. Errors are raised by torch, whatever the level.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if with_cuda else [])], **options)


def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of an object, and return the function that restores it."""
    own = vars(owner).get(name)
    setattr(owner, name, function)

    def put_back() -> None:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return put_back


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
    """Return name, type and sizes of layers whose sizes are no multiples of 8, which 16-bit tensor cores need.

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
