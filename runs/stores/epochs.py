"""Epochs of a run's steps, from its record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sacristan.observers.record.points.points import Series

__all__ = ["epochs_at"]


def epochs_at(
    series: Callable[[str], Series | None], field: Callable[[str], object], steps: np.ndarray
) -> np.ndarray | None:
    """Return the epoch, with its fraction, at each of (n,) steps; None if the record does not tell.

    A metric `epoch`, as Lightning logs it, is interpolated linearly, and continued beyond its ends with its mean slope.
    Without one, epochs are derived from the validations, which run every `training.val_interval` epochs. `series` and
    `field` return None for what the run lacks.
    """
    epochs = series("epoch")
    if epochs is not None:
        return _interpolated(epochs, steps)
    interval, monitor = field("config.training.val_interval"), field("config.training.monitor")
    if not isinstance(interval, int) or interval < 1:
        return None
    names = [monitor] if isinstance(monitor, str) and monitor.startswith("val/") else []
    validations = next((found for name in [*names, "val/loss"] if (found := series(name)) is not None), None)
    if validations is None:
        return None
    return _counted(validations, interval, steps, is_continued=bool(field("parent")))


def _counted(validations: Series, interval: int, steps: np.ndarray, *, is_continued: bool) -> np.ndarray | None:
    # A run that was started from another continues its steps.
    at = np.unique(validations.steps)
    at = np.diff(at) if is_continued else at
    return None if not len(at) or not at[0] > 0 else np.asarray(steps, float) * interval / float(at[0])


def _interpolated(epochs: Series, steps: np.ndarray) -> np.ndarray | None:
    known = np.flatnonzero(np.isfinite(epochs.values) & np.isfinite(epochs.steps))
    if not len(known):
        return None
    order = known[np.argsort(epochs.steps[known], kind="stable")]
    at, values = epochs.steps[order].astype(float), epochs.values[order]
    steps = np.asarray(steps, float)
    slope = max(0.0, (values[-1] - values[0]) / (at[-1] - at[0])) if at[-1] > at[0] else 0.0
    return np.interp(steps, at, values) + slope * (steps - np.clip(steps, at[0], at[-1]))
