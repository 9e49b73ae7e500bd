"""`TimeLeft`: estimates when a training ends, from its own steps and validations."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TimeLeft"]


class TimeLeft:
    """Estimates the seconds until a training ends: its steps and validations to come, at their mean durations so far.

    The clock starts at the first noted step, because the steps before it compile and warm up.

    Args:
        num_steps: Number of the last step.
        num_validations: Validations to come.
        clock: Returns seconds.

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
