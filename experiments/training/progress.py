"""Progress of a training: logged values of its steps, a bar on a terminal with the time left, a few lines elsewhere."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sacristan.experiments.running.captured_output import terminal
from sacristan.experiments.training.trainer import Trainer

__all__ = ["StepLog", "TimeLeft", "TrainingProgress"]

_log = logging.getLogger(__name__)

_LINES = 20
# A logged line reaches the terminal later than the bar, because it passes through the process that captures output.
_LINE_ARRIVES_S = 0.1
# tqdm's own, with the time left of `TimeLeft` for `{remaining}`.
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<%s, {rate_fmt}{postfix}]"


class TimeLeft:
    """Estimates the seconds until a training ends: its steps and validations to come, at their mean durations so far.

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
        """Log the values of the steps up to this one, as means; return the mean loss, NaN if all steps were skipped.

        Only this waits for the device in the loop, unless float16 looks for overflows, or micro-batches are weighed by
        their classes.
        """
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
