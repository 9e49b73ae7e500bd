"""Stopping a training that has diverged: its loss or its weights are NaN or infinite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from experiments.training.tasks import Task
from ingredients.checkpoints.checkpointer import Checkpointer
from ingredients.checkpoints.training_state import Place
from ingredients.errors import ConfigError, TrainingError
from ingredients.models.compiled import plain_name

__all__ = ["DivergenceCheck", "non_finite_parameters"]


class DivergenceCheck:
    """Raises once a loss, or a weight, is not finite.

    Losses are checked where they are fetched anyway: when they are logged, at the end of an epoch, and before a state
    is saved. Those since the last check stay on the device until then, one for each step, so that the step that went
    wrong is found afterwards and no step waits for the device.

    Args:
        model: The model that is trained.
        task: What it is trained for.
        keeper: Keeps the states of the training, to name the last good one.
        accumulate: Micro-batches in a step.
        on_nan: `ignore` never raises; with the others, `Recovery` keeps most of it from here.

    Raises:
        ConfigError: If `on_nan` is something else.
    """

    def __init__(self, model: nn.Module, task: Task, keeper: Checkpointer, accumulate: int, on_nan: str) -> None:
        if on_nan not in ("stop", "ignore", "skip", "rollback"):
            raise ConfigError(f"training.on_nan: got {on_nan!r}, expected stop, skip, rollback or ignore")
        self._ignores = on_nan == "ignore"
        self._trained = task.modules(model) if task.parameters else (model,)
        self._keeper = keeper
        self._accumulate = accumulate
        # The step up to which all losses have been checked.
        self._seen = 0
        self._may_be_nan = task.may_be_nan

    def losses(self, place: Place, mean: float | None = None) -> None:
        """Check the losses since the last look; `place` is within the epoch that they are of.

        Args:
            place: The training's place.
            mean: Mean of `place.losses`, if it is known: where that is finite, all of them are.

        Raises:
            TrainingError: If one is not finite.
        """
        count = min(place.step - self._seen, len(place.losses))
        self._seen = place.step
        if self._ignores or not count or (mean is not None and math.isfinite(mean)):
            return
        values = _fetched(place.losses[-count:])
        bad = next((number for number, value in enumerate(values) if not math.isfinite(value)), None)
        if bad is None:
            return
        if self._may_be_nan and math.isnan(values[bad]) and not non_finite_parameters(*self._trained):
            return
        raise self._error(f"the loss is {values[bad]}", place, place.step - count + bad + 1)

    def weights(self, place: Place) -> None:
        """Check the weights as they are after the step of `place`.

        Raises:
            TrainingError: If one is not finite.
        """
        names = [] if self._ignores else non_finite_parameters(*self._trained)
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise self._error(f"weights are NaN or infinite ({shown})", place, place.step)

    def state(self, place: Place) -> None:
        """Check all that a state at `place` would hold.

        Raises:
            TrainingError: If a loss or a weight is not finite.
        """
        self.losses(place)
        self.weights(place)

    def _error(self, what: str, place: Place, step: int) -> TrainingError:
        kept = self._keeper.newest()
        state = "no state was saved before" if kept is None else f"the state after step {kept[1]} is kept in {kept[0]}"
        error = TrainingError(
            f"training: {what} at step {step} ({self._where(place, step)}); {state}. Lower the learning rate, clip the "
            "gradients (amp.clip_norm), or look for bad samples in that batch; training.on_nan=ignore trains on anyway"
        )
        error.step = step
        return error

    def _where(self, place: Place, step: int) -> str:
        """Return epoch and batches of a step, which is of the epoch that `place` is in, or the last of the one done."""
        if not place.batch:
            return f"epoch {place.epoch}, its last batch"
        number = math.ceil(place.batch / self._accumulate) - (place.step - step)
        first, last = (number - 1) * self._accumulate + 1, min(number * self._accumulate, place.batch)
        return f"epoch {place.epoch + 1}, " + (f"batch {first}" if first == last else f"batches {first} to {last}")


def _fetched(losses: Sequence[Tensor | float | None]) -> list[float]:
    """Return losses as numbers, those on a device fetched at once; 0 for a step that was skipped."""
    known = [0.0 if loss is None else loss for loss in losses]
    numbers = [loss for loss in known if isinstance(loss, float)]
    if len(numbers) == len(known):
        return numbers
    device = next(loss.device for loss in known if isinstance(loss, Tensor))
    return torch.stack([torch.as_tensor(loss, device=device).float() for loss in known]).tolist()


def non_finite_parameters(*modules: nn.Module) -> list[str]:
    """Return the names of parameters that hold NaN or an infinity. Waits for the device once, if there are none."""
    all_named = itertools.chain.from_iterable(module.named_parameters() for module in modules)
    named = [(plain_name(name), p.detach()) for name, p in all_named if p.is_floating_point() or p.is_complex()]
    by_device: dict[torch.device, list[Tensor]] = {}
    for _, parameter in named:
        # A sum costs an eighth of looking at each number, and is not finite if one of them is not.
        total = parameter.sum(dtype=torch.promote_types(parameter.dtype, torch.float32))
        by_device.setdefault(parameter.device, []).append(total.isfinite())
    if all(torch.stack(finite).all() for finite in by_device.values()):
        return []
    return [name for name, parameter in named if not parameter.isfinite().all()]
