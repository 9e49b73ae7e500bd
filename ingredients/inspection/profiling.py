"""`StepProfile`: the time of some steps by phase: waiting for data, forward, backward, the optimizer, and the rest.

The phases are timed by the clock, waiting for the device at the end of each. `torch.profiler` records the same steps,
for a trace and for the slowest operations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["PHASES", "Profiled", "StepProfile", "quiet_profile"]

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
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return milliseconds a step, and shares, by phase."""
        per_step = {phase: 1e3 * seconds / self.steps for phase, seconds in self.seconds.items()}
        shares = {phase: seconds / max(self.total, 1e-12) for phase, seconds in self.seconds.items()}
        return {"steps": self.steps, "ms_per_step": per_step, "share": shares}

    def __str__(self) -> str:
        """Return the profile as two tables."""
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
        """Record the end of a step."""
        self._steps += 1
        self._enter("data")

    def leave_epoch(self) -> None:
        """Record the end of an epoch: time until the next step counts as the rest, not as waiting for data."""
        self._enter("rest")

    def end(self) -> Profiled:
        """Stop timing, and return the result."""
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
        """Write the trace of the profiled steps, for chrome://tracing or Perfetto; gzipped if it ends in `.gz`.

        Call `end` first.
        """
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
