"""Following one metric: which epoch was the best, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ingredients.errors import ConfigError
from ingredients.training import check_patience

__all__ = ["Monitor"]


class Monitor:
    """Follows one metric: which epoch was the best, and how long ago.

    Args:
        name: Name of the metric, such as `val/loss`.
        mode: `min`, `max`, or `auto`: max for accuracy and r2, else min.
        patience: Validations without improvement that exhaust it; None for no end.
        min_delta: Smallest change that patience takes for an improvement; the best epoch is the best, however close.

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
        """Check that the metric is among the names of `metrics`.

        Raises:
            ConfigError: If it is not.
        """
        if self.name not in metrics:
            raise ConfigError(
                f"training.monitor: got {self.name!r}, which is not measured; there are: {', '.join(metrics)}"
            )

    def update(self, metrics: Mapping[str, float], epoch: int) -> bool:
        """Take in the metrics of a validation, and return whether they are the best so far.

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
        """Return what is needed to resume from here."""
        return {"value": self.value, "epoch": self.epoch, "waited": self.waited, "mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned."""
        self.value, self.epoch, self.waited = state["value"], state["epoch"], state["waited"]
        # Earlier versions took the best value for it.
        self._mark = state.get("mark", self.value)
