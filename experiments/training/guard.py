"""`NonFiniteGuard`: notices a loss, a gradient or a weight that is NaN or infinite, and acts as `training.on_nan` says.

`stop` looks at losses where they are fetched anyway. `skip` and `rollback` look before each step, in `Recovery`.
`triage` finds the step at fault, `diagnosis` its cause.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sacristan.configs.map import abbreviated
from sacristan.experiments.training import Trainer
from sacristan.experiments.training.callbacks import Callback, Callbacks
from sacristan.experiments.training.diagnosis import non_finite_parameters
from sacristan.experiments.training.triage import Triage
from sacristan.ingredients.checkpoints import Checkpointer
from sacristan.ingredients.checkpoints.training_state import capture, resume
from sacristan.ingredients.config.seed import global_states, set_global_states
from sacristan.ingredients.errors import CheckpointError, ConfigError, TrainingError
from sacristan.ingredients.precision import parameters_of, recomputes_loss

_log = logging.getLogger(__name__)

# Steps in a row that may be skipped; times that a training may roll back.
_MAX_SKIPS, _MAX_ROLLBACKS = 10, 10
# Factor on the learning rates of a rollback.
_SLOWER = 0.5


class Recovery(Callback):
    """Keeps a training from taking steps whose loss or gradients are not finite, with `skip` and `rollback`.

    Each step waits for the device. With float16, the scaler skips gradients that overflow. The first such step of a
    session is written as a bundle. After `skip`, weights, buffers and optimizer are as before the step. `rollback`
    returns them to the newest state and halves all learning rates; batches, steps and schedules continue, so no batch
    is trained on twice. `NonFiniteGuard` sets `triage`.
    """

    _looks_last = True

    def __init__(self, kind: str) -> None:
        self.triage: Triage
        self._rolls_back = kind == "rollback"
        self._num_bad = 0
        self._in_row = 0
        self._is_bad = self._is_examined = False
        self._buffers: list[Tensor] = []
        self._kept: list[Tensor] = []

    def start(self, trainer: Trainer) -> None:
        for optimizer in filter(recomputes_loss, trainer.optimizers.values()):
            raise ConfigError(
                f"training.on_nan: {type(optimizer).__name__} steps on its own, so no step can be left out; use stop "
                "or ignore"
            )
        # A forward pass changes buffers before anything is known of the step.
        modules = trainer.task.modules(trainer.model)
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._kept = [buffer.clone() for buffer in self._buffers]

    def before_step(self, trainer: Trainer, optimizer: str) -> None:
        gradients = [p.grad for p in parameters_of(trainer.optimizers[optimizer]) if p.grad is not None]
        is_finite = trainer.batch_loss is None or trainer.batch_loss.isfinite().all() | (
            trainer.batch_loss.isnan() if trainer.task.may_be_nan else False
        )
        if trainer.amp.dtype != "float16" and gradients:
            is_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all() & is_finite
        if not is_finite:
            self._is_bad = True
            trainer.skip_step()

    def after_step(self, trainer: Trainer) -> None:
        """Undo the changes of a bad step to buffers, or keep those of a good one."""
        if not self._is_bad:
            self._in_row = 0
            _copy(self._kept, self._buffers)
            return
        self._is_bad = False
        self._num_bad += 1
        self._in_row += 1
        _copy(self._buffers, self._kept)
        step = trainer.place.step
        trainer.log("train/nonfinite", self._num_bad, step)
        report = ""
        if not self._is_examined:
            self._is_examined = True
            report = self.triage.examine_in_passing(step, f"training: step {step} is not finite")
        if self._num_bad > _MAX_ROLLBACKS if self._rolls_back else self._in_row >= _MAX_SKIPS:
            times = f"{self._num_bad} times" if self._rolls_back else f"{self._in_row} times in a row"
            raise TrainingError(
                f"training: stopped, as loss or gradients were NaN or infinite {times}, the last at step {step}; "
                f"lower the learning rate.{report}"
            )
        action = self._roll_back(trainer) if self._rolls_back else "it is left out"
        _copy(self._kept, self._buffers)  # the examination has kept those of repeated steps
        _log.warning("step %d: loss or gradients are NaN or infinite; %s.%s", step, action, report)

    def _roll_back(self, trainer: Trainer) -> str:
        """Return weights and optimizers to the newest good state, at half the present rates."""
        rates = {name: [group["lr"] for group in o.param_groups] for name, o in trainer.optimizers.items()}
        try:
            state, _ = self.triage.good_state()
            streams = global_states()
            resume({name: part for name, part in self.triage.parts.items() if _is_trained(name)}, state, Path())
            set_global_states(streams)
        except CheckpointError as error:
            raise TrainingError(f"training.on_nan=rollback: {error}") from error
        for name, optimizer in trainer.optimizers.items():
            for group, rate in zip(optimizer.param_groups, rates[name], strict=False):
                group["lr"] = rate if name in trainer.schedules else rate * _SLOWER
        for schedule in trainer.schedules.values():
            schedule.slow_down(_SLOWER)
        return f"back to the weights after step {state['step']}, with half the learning rate"

    def state_dict(self) -> dict[str, Any]:
        return {"num_bad": self._num_bad, "in_row": self._in_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_bad, self._in_row, self._is_bad = state["num_bad"], state["in_row"], False


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def _is_trained(part: str) -> bool:
    """Tell whether steps change a part of a state, not counting the place of the training and its rates."""
    return part.partition(".")[0] in ("model", "loss", "optimizer", "task")


class NonFiniteGuard:
    """Fails a training whose losses or weights are not finite, and has the step at fault written as a bundle.

    Losses are checked where they are fetched anyway: when they are logged, at the end of an epoch, and before a state
    is saved. Those since the last check stay on the device until then, so no step waits. With `ignore`, nothing raises.
    """

    def __init__(
        self,
        trainer: Trainer,
        parts: Mapping[str, Any],
        callbacks: Callbacks,
        keeper: Checkpointer | None,
        on_nan: str,
        recovery: Recovery | None = None,
    ) -> None:
        task, model = trainer.task, trainer.model
        self._trainer = trainer
        self._parts = parts
        self._keeper = keeper
        self._ignores = on_nan == "ignore"
        self._trained = task.modules(model) if task.parameters else (model,)
        # The step up to which all losses were checked.
        self._checked = 0
        self._triage = Triage(trainer, parts, callbacks, None if self._ignores else keeper)
        if recovery is not None:
            recovery.triage = self._triage

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Examine the step at fault where the block fails on one; the error then reports the cause and the bundle."""
        try:
            yield
        except TrainingError as error:
            if self._triage.is_on and error.step is not None:
                error.args = (f"{error}. {self._triage.examine(error.step, str(error))}",)
            raise

    def begin_epoch(self) -> None:
        """Keep the state to repeat steps from, unless the training has just saved it."""
        place = self._trainer.place
        if self._triage.is_on and self._keeper is not None:
            self._triage.state = None if self._keeper.newest_step == place.step else capture(place, self._parts)

    def check_losses(self, mean: float | None = None) -> None:
        """Check the losses of this epoch since the last check; if their `mean` is finite, all of them are."""
        place = self._trainer.place
        count = min(place.step - self._checked, len(place.losses))
        self._checked = place.step
        if self._ignores or not count or (mean is not None and math.isfinite(mean)):
            return
        values = _numbers(place.losses[-count:])
        bad = next((number for number, value in enumerate(values) if not math.isfinite(value)), None)
        if bad is None:
            return
        if self._trainer.task.may_be_nan and math.isnan(values[bad]) and not non_finite_parameters(*self._trained):
            return
        raise self._error(f"the loss is {values[bad]}", place.step - count + bad + 1)

    def check_weights(self) -> None:
        names = [] if self._ignores else non_finite_parameters(*self._trained)
        if names:
            raise self._error(f"weights are NaN or infinite ({abbreviated(names, 3)})", self._trainer.place.step)

    def _error(self, fault: str, step: int) -> TrainingError:
        kept = None if self._keeper is None else self._keeper.newest()
        state = "no state was saved before" if kept is None else f"the state after step {kept[1]} is kept in {kept[0]}"
        error = TrainingError(
            f"training: {fault} at step {step} ({self._where(step)}); {state}. Lower the learning rate, clip the "
            "gradients (amp.clip_norm), or look for bad samples in that batch; training.on_nan=ignore trains on anyway"
        )
        error.step = step
        return error

    def _where(self, step: int) -> str:
        """Return epoch and batches of a step of the current epoch, or of the last step of one that is done."""
        place, size = self._trainer.place, self._trainer.amp.accumulate
        if not place.batch:
            return f"epoch {place.epoch}, its last batch"
        number = math.ceil(place.batch / size) - (place.step - step)
        first, last = (number - 1) * size + 1, min(number * size, place.batch)
        return f"epoch {place.epoch + 1}, " + (f"batch {first}" if first == last else f"batches {first} to {last}")


def _numbers(losses: Sequence[Tensor | float | None]) -> list[float]:
    """Return losses as numbers, those on a device fetched at once; 0 for a step that was skipped."""
    counted = [0.0 if loss is None else loss for loss in losses]
    numbers = [loss for loss in counted if isinstance(loss, float)]
    if len(numbers) == len(counted):
        return numbers
    device = next(loss.device for loss in counted if isinstance(loss, Tensor))
    return torch.stack([torch.as_tensor(loss, device=device).float() for loss in counted]).tolist()
