"""`StepLog`: logs the values of the steps since the last logged one, all fetched from the device at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sacristan.experiments.training.trainer import Trainer

__all__ = ["StepLog"]

_log = logging.getLogger(__name__)


class StepLog:
    """Logs losses, scalars, gradient norms, learning rates and the scale of float16.

    Args:
        trainer: The training; its `place` holds the losses and scalars since the last logged ones.
    """

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
