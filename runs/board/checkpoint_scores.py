"""Scores of checkpoints: epoch, step and monitored value, as far as the record of the run has them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator

import numpy as np

from sacristan.observers.record.directions import monitored_direction
from sacristan.runs.comparison.comparing import better_text
from sacristan.runs.errors import StoreError
from sacristan.runs.query.flattening import mapping_of
from sacristan.runs.query.texts import is_number
from sacristan.runs.stores.run import Run

__all__ = ["CheckpointScore", "checkpoint_scores"]

# The names that `sacristan.ingredients.checkpoints.folder` gives to a run's own; those below `start/` are another
# run's.
_NAME = re.compile(r"checkpoints/(?:best\.pt|last\.pt|best-(?P<epoch>\d+)\.pt|step-(?P<step>\d+)\.pt)")


@dataclasses.dataclass(frozen=True)
class CheckpointScore:
    """Origin and quality of the weights of a checkpoint.

    Attributes:
        metric: The metric that the training monitored; empty if the record does not have it.
        better: The better direction, in words.
        value: Its value for exactly these weights; None if there is none.
        step: Optimizer steps before the checkpoint; None if the record does not have it.
        epoch: Epochs before it, with their fraction; None if the record does not have it.
    """

    metric: str = ""
    better: str = ""
    value: float | None = None
    step: int | None = None
    epoch: float | None = None


def checkpoint_scores(run: Run, names: Iterable[str]) -> Iterator[CheckpointScore]:
    """Yield the score of each checkpoint; an empty one if the training loop did not name the checkpoint.

    The best checkpoint has the best value, the last one the last value; a checkpoint of a step or an epoch has the
    value of a validation there.
    """
    metric = run.get("config.training.monitor")
    metric = metric if isinstance(metric, str) and metric in run.summary else ""
    direction = monitored_direction(metric, mapping_of(run.get("config.training")).get("mode"))
    points = _Validations(run, metric)
    for name in names:
        score = _score(points, name, direction)
        yield dataclasses.replace(score, better=better_text(direction)) if score.metric else score


def _score(points: _Validations, name: str, direction: str) -> CheckpointScore:
    match = _NAME.fullmatch(name)
    if match is None:
        return CheckpointScore()
    if match["step"] is not None:
        return points.at_step(int(match["step"]))
    if match["epoch"] is not None:
        return points.at_epoch(int(match["epoch"]))
    return points.of_summary(direction if name.endswith("best.pt") else "last")


class _Validations:
    """Values of the monitored metric; points are read on first use."""

    def __init__(self, run: Run, metric: str) -> None:
        self._run, self._metric = run, metric
        self._summary = run.summary.get(metric, {})

    def of_summary(self, statistic: str) -> CheckpointScore:
        value, step = self._summary.get(statistic), self._summary.get(f"{statistic}_step")
        if not is_number(value) or not is_number(step):
            return CheckpointScore(self._metric, value=value if is_number(value) else None)
        return CheckpointScore(self._metric, value=value, step=int(step), epoch=self._epoch(int(step)))

    def at_step(self, step: int) -> CheckpointScore:
        steps, values = self._points()
        found = np.flatnonzero(steps == step)
        value = float(values[found[-1]]) if len(found) else None
        return CheckpointScore(self._metric if found.size else "", value=value, step=step, epoch=self._epoch(step))

    def at_epoch(self, epoch: int) -> CheckpointScore:
        steps, values = self._points()
        with contextlib.suppress(StoreError):
            epochs = self._run.epochs_at(steps)
            found = np.flatnonzero(np.abs(epochs - epoch) < 1e-6) if epochs is not None else np.empty(0, np.intp)
            if len(found):
                value, step = float(values[found[-1]]), int(steps[found[-1]])
                return CheckpointScore(self._metric, value=value, step=step, epoch=epoch)
        return CheckpointScore(epoch=epoch)

    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        if self._metric:
            with contextlib.suppress(StoreError):
                series = self._run.metric(self._metric)
                return series.steps, series.values
        return np.zeros(0, np.int64), np.zeros(0)

    def _epoch(self, step: int) -> float | None:
        with contextlib.suppress(StoreError):
            epochs = self._run.epochs_at(np.array([step]))
            return None if epochs is None else round(float(epochs[0]), 2)
        return None
