"""`Monitor`: follows one metric, to find the best epoch and to stop early."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.training import check_patience

__all__ = ["Monitor"]


class Monitor:
    """Follows one metric: its best epoch, and the validations since the last improvement.

    Args:
        name: Name of the metric, such as `val/loss`.
        mode: `min`, `max`, or `auto`: max for accuracy and r2, else min.
        patience: Validations without improvement that exhaust it; None for no end.
        min_delta: Smallest change that patience counts as an improvement; the best epoch needs no minimum.

    Raises:
        ConfigError: If `patience` or `min_delta` is out of range.

    Example:
        best = Monitor("val/accuracy", patience=2)
        for epoch, accuracy in enumerate([0.5, 0.7, 0.6, 0.6], start=1):
            best.update({"val/accuracy": accuracy}, epoch)
        assert (best.epoch, best.value, best.exhausted) == (2, 0.7, True)
    """

    def __init__(self, name: str, mode: str = "auto", patience: int | None = None, min_delta: float = 0.0) -> None:
        check_patience(patience, min_delta)
        self.name = name
        self.larger_is_better = mode == "max" or (mode == "auto" and name.endswith(("accuracy", "r2")))
        self.patience = patience
        self.min_delta = min_delta
        self.value = math.nan
        self.epoch = 0
        self.waited = 0
        # The value that the next improvement is counted from.
        self._mark = math.nan

    @property
    def exhausted(self) -> bool:
        """True if patience has run out."""
        return self.patience is not None and self.waited >= self.patience

    def check(self, metrics: Collection[str]) -> None:
        """Check that validations measure the metric.

        Args:
            metrics: Names of the metrics of validations, such as `val/loss`.

        Raises:
            ConfigError: If they do not; the message lists the names.
        """
        if self.name not in metrics:
            raise ConfigError(
                f"training.monitor: got {self.name!r}, which is not measured; there are: {', '.join(metrics)}"
            )

    def update(self, metrics: Mapping[str, float], epoch: int) -> bool:
        """Add the metrics of a validation.

        Args:
            metrics: The metrics by name.
            epoch: The epoch before the validation, from 1.

        Returns:
            Whether they are the best so far; the first ones are, and a number is better than NaN.

        Raises:
            ConfigError: If the metric is not among them.
        """
        self.check(metrics)
        value = metrics[self.name]
        is_first = self.epoch == 0
        if is_first or self._is_better(value, self._mark, self.min_delta):
            self._mark, self.waited = value, 0
        else:
            self.waited += 1
        better = is_first or self._is_better(value, self.value, 0.0)
        if better:
            self.value, self.epoch = value, epoch
        return better

    def _is_better(self, value: float, other: float, least: float) -> bool:
        """Tell whether a value is better by more than `least`; a number is better than NaN."""
        if math.isnan(other):
            return not math.isnan(value)
        return (value - other if self.larger_is_better else other - value) > least

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {"value": self.value, "epoch": self.epoch, "waited": self.waited, "mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the value of `state_dict`."""
        self.value, self.epoch, self.waited = state["value"], state["epoch"], state["waited"]
        # States of earlier versions lack it.
        self._mark = state.get("mark", self.value)
