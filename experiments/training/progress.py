"""Progress of a training: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from sacristan.experiments.running.captured_output import terminal
from sacristan.experiments.training.time_left import TimeLeft

__all__ = ["Progress"]

_log = logging.getLogger(__name__)
_LINES = 20
# A logged line reaches the terminal later than the bar, because it passes through the process that captures output.
_LINE_ARRIVES_S = 0.1
# tqdm's own, with the time left of `TimeLeft` for `{remaining}`.
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<%s, {rate_fmt}{postfix}]"


class Progress:
    """A bar over optimizer steps on a terminal, which the captured output leaves out; else about twenty lines a run.

    Args:
        num_epochs: Epochs of the training.
        num_steps: Optimizer steps of the training.
        step: Steps done by earlier sessions.
        num_validations: Validations to come.
        may_stop_early: Whether patience may end the training before its last step.
    """

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

    def __enter__(self) -> Progress:
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
