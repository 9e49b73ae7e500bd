"""Progress of a training: logged values of its steps, a bar with the time left or a few lines, and its speed.

The speed is samples and steps a second, peak memory, and the share of the time spent waiting for data. The clock is
read at the ends of epochs, where the loop has waited for the device anyway. Waiting for data is timed only where
batches are read on demand: around each `next` on the CPU, and on CUDA by events in the stream, which measure how long
the device itself was idle.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sacristan.experiments.running.captured_output import terminal
from sacristan.experiments.training import Trainer
from sacristan.ingredients.checkpoints.training_state import Place
from sacristan.ingredients.datasets.batches import Batches

_log = logging.getLogger(__name__)

_LINES = 20
# A logged line reaches the terminal later than the bar, because it passes through the process that captures output.
_LINE_ARRIVES_S = 0.1
# tqdm's own, with the time left of `TimeLeft` for `{remaining}`.
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<%s, {rate_fmt}{postfix}]"
# Share of the time and seconds from which on a warning calls the loader the bottleneck.
_WARNING_SHARE, _WARNING_S = 0.2, 5.0


class TimeLeft:
    """Estimates the seconds until a training ends, by mean durations of steps and validations so far.

    The clock starts at the first noted step, because the steps before it compile and warm up.

    Example:
        now = 0.0
        left = TimeLeft(num_steps=30, num_validations=2, clock=lambda: now)
        left.step(5)
        now = 10.0
        left.step(15)
        assert left.seconds() == 15.0
        assert left.lacks_validations
        now = 14.0
        left.validated()
        assert left.seconds() == 15.0 + 4.0
    """

    def __init__(self, num_steps: int, num_validations: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_steps, self._num_validations, self._clock = num_steps, num_validations, clock
        self._steps_s, self._num_timed = 0.0, 0
        self._validations_s, self._num_validated = 0.0, 0
        # The last noted step, and the time up to which all is counted; None before the first one.
        self._noted: tuple[int, float] | None = None

    def step(self, step: int) -> None:
        """Count the time since the last call of a method as training."""
        now = self._clock()
        if self._noted is not None:
            self._num_timed += step - self._noted[0]
            self._steps_s += now - self._noted[1]
        self._noted = step, now

    def validated(self) -> None:
        """Count the time since the last call of a method as one validation."""
        now = self._clock()
        if self._noted is not None:
            self._validations_s += now - self._noted[1]
            self._num_validated += 1
            self._noted = self._noted[0], now
        self._num_validations -= 1

    @property
    def lacks_validations(self) -> bool:
        """True if validations come whose duration is not known yet, so that the training takes longer."""
        return self._num_validations > 0 and not self._num_validated

    def seconds(self) -> float | None:
        """Return the estimate; None before two steps are noted."""
        if self._noted is None or not self._num_timed:
            return None
        seconds = (self._num_steps - self._noted[0]) * self._steps_s / self._num_timed
        if self._num_validated:
            seconds += max(0, self._num_validations) * self._validations_s / self._num_validated
        return seconds


class TrainingProgress:
    """A bar over optimizer steps on a terminal, which the captured output leaves out; else about twenty lines a run."""

    def __init__(
        self,
        num_epochs: int,
        num_steps: int,
        step: int = 0,
        *,
        num_validations: int = 0,
        may_stop_early: bool = False,
    ) -> None:
        self.num_epochs = num_epochs
        self._may_stop_early = may_stop_early
        self._time_left = TimeLeft(num_steps, num_validations)
        self._bar: Any = None
        self._handlers: list[logging.Handler] = []
        stream = terminal()
        if stream is not None:
            from tqdm import tqdm

            time.sleep(_LINE_ARRIVES_S)
            bar = {"unit": "step", "leave": False, "dynamic_ncols": True, "bar_format": _FORMAT % "?"}
            self._bar = tqdm(total=num_steps, initial=step, file=stream, **bar)

    def __enter__(self) -> TrainingProgress:
        if self._bar is not None:
            self._handlers = list(logging.getLogger().handlers)
            for handler in self._handlers:
                handler.addFilter(self._make_room)
        return self

    def __exit__(self, *exception: Any) -> None:
        for handler in self._handlers:
            handler.removeFilter(self._make_room)
        if self._bar is not None:
            self._bar.close()

    def _make_room(self, record: logging.LogRecord) -> bool:
        """Clear the bar before a line is logged, and wait tqdm's `mininterval`, 0.1 s, before drawing it again."""
        self._bar.clear()
        self._bar.last_print_t = time.time()
        return True

    def step(self, step: int, loss: float) -> None:
        """Show the number of steps done and the time left on the bar, if there is one."""
        if self._bar is not None:
            self._time_left.step(step)
            self._bar.bar_format = _FORMAT % self._left()
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update(step - self._bar.n)

    def trained(self, step: int) -> None:
        """Note the end of the steps of an epoch, after which it is validated and saved."""
        self._time_left.step(step)

    def epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a finished epoch: of every epoch up to twenty, else of every n-th and the last one."""
        if metrics:
            self._time_left.validated()
        if epoch % math.ceil(self.num_epochs / _LINES) and epoch != self.num_epochs:
            return
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        _log.info("epoch %d/%d  %s", epoch, self.num_epochs, shown)

    def _left(self) -> str:
        """Return the time left, `?` if nothing is known; `=` before it means at most, and `+` after it at least."""
        seconds, lacks_validations = self._time_left.seconds(), self._time_left.lacks_validations
        if seconds is None or (lacks_validations and self._may_stop_early):
            return "?"
        return f"{'=' * self._may_stop_early}{self._bar.format_interval(seconds)}{'+' * lacks_validations}"


class StepLog:
    """Logs losses, scalars, gradient norms, learning rates and the scale of float16."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        # Scalars beside the loss that were reported as not finite.
        self._reported: set[str] = set()

    def log(self, step: int) -> float:
        """Log steps up to this one as means; return the mean loss, NaN if all skipped. Only this waits for devices."""
        trainer = self._trainer
        means = self._means()
        for name, mean in means.items():
            trainer.log(name, mean, step)
        self._warn(means, step)
        for name, optimizer in trainer.optimizers.items():
            trainer.log(_named("lr", name), optimizer.param_groups[0]["lr"], step)
        if trainer.amp.dtype == "float16":
            trainer.log("amp/scale", trainer.amp.scale(), step)
            trainer.log("amp/skipped", trainer.amp.num_skipped, step)
        return means.get("train/loss", math.nan)

    def _means(self) -> dict[str, float]:
        trainer, place = self._trainer, self._trainer.place
        values: dict[str, list[Any]] = {"train/loss": [loss for loss in place.losses if loss is not None]}
        for name, optimizer in trainer.optimizers.items():
            norm = trainer.grad_norms.get(name, 0.0) if trainer.steps_itself else trainer.amp.grad_norm(optimizer)
            values[_named("grad_norm", name)] = [norm]
        values |= {f"train/{name}": scalars for name, scalars in place.scalars.items()}
        means = _means({name: column for name, column in values.items() if column}, trainer.amp.device)
        return means if trainer.ranked is None else trainer.ranked.means(means)

    def _warn(self, means: Mapping[str, float], step: int) -> None:
        for name in self._trainer.place.scalars:
            mean = means[f"train/{name}"]
            if not math.isfinite(mean) and name not in self._reported:
                self._reported.add(name)
                _log.warning(
                    "train/%s, which the task returns beside its loss, is %s by step %d; the loss does not depend on "
                    "it, so training continues",
                    *(name, mean, step),
                )


def _named(value: str, optimizer: str) -> str:
    """Return the logged name of a value of an optimizer; a sole optimizer has no name."""
    return f"train/{optimizer}/{value}" if optimizer else f"train/{value}"


def _means(columns: Mapping[str, Sequence[Any]], device: torch.device) -> dict[str, float]:
    """Return the means of numbers and scalars; those on a device are fetched at once."""
    if device.type == "cpu":
        return {name: sum(map(float, column)) / len(column) for name, column in columns.items()}
    # A state that was saved on another device may hold numbers, or scalars there.
    means = [
        torch.stack([torch.as_tensor(value, dtype=torch.float32, device=device) for value in column]).mean()
        for column in columns.values()
    ]
    return dict(zip(columns, torch.stack(means).tolist(), strict=True))


@dataclasses.dataclass(frozen=True)
class Speed:
    """Figures of the steps of one session, skipped ones included, without validations and states saved between epochs.

    Attributes:
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
        """Stop timing an epoch, when the device is done; steps and samples count since `start`."""
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
    """Return the peak memory so far, on CUDA of tensors, else of this process; None if unknown."""
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
