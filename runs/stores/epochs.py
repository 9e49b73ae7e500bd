"""Epochs of a run's steps, from what its record tells."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from observers.record.points.points import Series

__all__ = ["epochs_at"]


class _Recorded(Protocol):
    """The part of a run that is asked; see `runs.stores.run.Run`."""

    @property
    def metrics(self) -> list[str]: ...

    def metric(self, name: str) -> Series: ...

    def get(self, name: str) -> object: ...


def epochs_at(run: _Recorded, steps: np.ndarray) -> np.ndarray | None:
    """Return the epoch at each step, with its fraction; None if the record does not tell.

    A metric `epoch` tells, on straight lines between its points, as Lightning logs one; else the validations of the
    training loop do, which come every `training.val_interval` epochs.

    Args:
        run: The run.
        steps: (n,) any.
    """
    there = set(run.metrics)
    if "epoch" in there:
        series = run.metric("epoch")
        known = np.flatnonzero(np.isfinite(series.values) & np.isfinite(series.steps))
        if not len(known):
            return None
        order = known[np.argsort(series.steps[known], kind="stable")]
        return np.interp(steps, series.steps[order], series.values[order])
    interval, monitor = run.get("config.training.val_interval"), run.get("config.training.monitor")
    name = monitor if isinstance(monitor, str) and monitor in there and monitor.startswith("val/") else "val/loss"
    if name not in there or not isinstance(interval, int) or interval < 1:
        return None
    # A run that was started from another one goes on with its steps.
    at = np.unique(run.metric(name).steps)
    at = np.diff(at) if run.get("parent") else at
    return None if not len(at) or not at[0] > 0 else np.asarray(steps, float) * interval / float(at[0])
