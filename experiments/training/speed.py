"""The speed of a training: samples and steps a second, peak memory, and the share of its time spent waiting for data.

The clock is read at the ends of epochs, where the loop has waited for the device anyway. Waiting for data is timed only
where batches are read on demand: around each `next` on the CPU, and on CUDA by events in the stream, which measure how
long the device itself was idle.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from sacristan.ingredients.checkpoints.training_state import Place
from sacristan.ingredients.datasets.batches import Batches

__all__ = ["Speed", "Stopwatch", "peak_memory_bytes"]

_log = logging.getLogger(__name__)

# Share of the time and seconds from which on a warning calls the loader the bottleneck.
_WARNING_SHARE, _WARNING_S = 0.2, 5.0


@dataclasses.dataclass(frozen=True)
class Speed:
    """Figures of the steps of one session, without validations and states saved between epochs.

    Attributes:
        train_s: Seconds of training.
        samples: Samples trained on.
        steps: Steps, skipped ones included.
        peak_memory_bytes: Peak memory: on CUDA of tensors on the device during the training, else of the process; None
            where the system does not report it.
        data_wait: Share of `train_s` spent waiting for data, from 0 to 1; None for batches cut from memory.
    """

    train_s: float
    samples: int
    steps: int
    peak_memory_bytes: int | None
    data_wait: float | None

    @property
    def figures(self) -> dict[str, float]:
        """The known figures by name, as in `info.speed`."""
        figures = {
            "samples_per_s": self.samples / self.train_s,
            "steps_per_s": self.steps / self.train_s,
            "train_s": self.train_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "data_wait": self.data_wait,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def __str__(self) -> str:
        """Return the figures in one line."""
        parts = [f"{_rounded(self.samples / self.train_s)} samples/s, {_rounded(self.steps / self.train_s)} steps/s"]
        if self.peak_memory_bytes is not None:
            parts.append(f"peak memory {_rounded(self.peak_memory_bytes / 2**20)} MiB")
        if self.data_wait is not None:
            parts.append(f"{self.data_wait:.0%} of the time waiting for data")
        return "; ".join(parts)


class Stopwatch:
    """Times the epochs of a training, and its waiting for data."""

    def __init__(self, batches: Batches, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._batches = batches
        self._device = device
        self._clock = clock
        self._wait = _new_wait(device, clock) if batches.is_read else None
        self._seconds = 0.0
        self._samples = 0
        self._steps = 0
        self._began = (0.0, 0, 0)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)  # not the peak of anything before

    def start(self, place: Place) -> None:
        """Begin to time an epoch, or the rest of one that is resumed."""
        self._began = (self._clock(), place.batch, place.step)

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of an epoch; with waiting for them timed, where they are read on demand."""
        batches = self._batches.epoch(epoch, start)
        return batches if self._wait is None else _Timed(batches, self._wait)

    def stop(self, place: Place) -> None:
        """Stop timing an epoch, once the device has finished its work.

        Steps and samples are the difference to the place at `start`. A short last batch counts by its samples.
        """
        then, batch, step = self._began
        self._seconds += self._clock() - then
        self._steps += place.step - step
        self._samples += (place.batch - batch) * self._batches.batch_size
        if place.batch == len(self._batches) > batch:
            self._samples -= self._batches.batch_size - self._batches.last_batch_size

    def report(self) -> Speed | None:
        """Log and return the figures; None if nothing was trained."""
        if not self._steps or self._seconds <= 0:
            return None
        waited_s = None if self._wait is None else self._wait.seconds()
        share = None if waited_s is None else min(waited_s / self._seconds, 1.0)
        speed = Speed(self._seconds, self._samples, self._steps, peak_memory_bytes(self._device), share)
        _log.info("trained at %s", speed)
        if waited_s is not None and share is not None:
            self._warn_of_waiting(waited_s, share)
        return speed

    def _warn_of_waiting(self, waited_s: float, share: float) -> None:
        if share >= _WARNING_SHARE and waited_s >= _WARNING_S:
            _log.warning(
                "the loader is the bottleneck: the training waited for data %.0f%% of its time; raise data.num_workers "
                "(it is %d), or hold the data in memory (data.in_memory=True) if they fit",
                100 * share,
                getattr(self._batches, "num_workers", 0),
            )


class _Timed:
    """Iterates over batches and times each `next`; keeps no reference to a batch."""

    def __init__(self, batches: Iterable[Any], wait: _Wait | _DeviceWait) -> None:
        self._batches = iter(batches)
        self._wait = wait

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        self._wait.begin()
        try:
            return next(self._batches)
        finally:
            self._wait.end()


class _Wait:
    """Seconds this process waits."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._total = self._began = 0.0

    def begin(self) -> None:
        self._began = self._clock()

    def end(self) -> None:
        self._total += self._clock() - self._began

    def seconds(self) -> float:
        return self._total


class _DeviceWait:
    """Seconds a CUDA device is idle: the process runs ahead of it, so its own waiting says little."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._pairs: collections.deque[tuple[torch.cuda.Event, torch.cuda.Event]] = collections.deque()
        self._total_ms = 0.0

    def begin(self) -> None:
        self._began = self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def end(self) -> None:
        self._pairs.append((self._began, self._stream.record_event(torch.cuda.Event(enable_timing=True))))
        while self._pairs and self._pairs[0][1].query():  # the device has passed both; the query does not wait
            self._add()

    def seconds(self) -> float:
        self._stream.synchronize()
        while self._pairs:
            self._add()
        return self._total_ms / 1e3

    def _add(self) -> None:
        began, ended = self._pairs.popleft()
        self._total_ms += began.elapsed_time(ended)


def _new_wait(device: torch.device, clock: Callable[[], float]) -> _Wait | _DeviceWait:
    return _DeviceWait(device) if device.type == "cuda" else _Wait(clock)


def peak_memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory so far: of tensors on a CUDA device, else of this process.

    None where the system does not report it. Devices other than CUDA count the memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # Not `ru_maxrss`, which on Linux is at least that of the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return _peak_of_process()


def _peak_of_process() -> int | None:
    """Return the peak from POSIX, which counts bytes on macOS and KiB elsewhere."""
    import sys

    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _rounded(value: float) -> str:
    """Return a figure with three digits, or without decimals from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
