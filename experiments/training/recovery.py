"""`Recovery`: lets a training go on past steps that are not finite: it leaves them out, or goes back and slows down."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from experiments.training.callbacks import Callback
from ingredients.checkpoints.training_state import resume
from ingredients.config.seed import global_states, set_global_states
from ingredients.errors import CheckpointError, ConfigError, TrainingError
from ingredients.precision.closures import recomputes_loss

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer
    from experiments.training.triage import Triage

__all__ = ["Recovery"]

_log = logging.getLogger(__name__)

# Steps in a row that may be left out; times that a training may go back.
_MOST_SKIPPED, _MOST_BACK = 10, 10
# What going back does to the rates.
_SLOWER = 0.5


class Recovery(Callback):
    """Keeps a training from taking steps whose loss or gradients are not finite; `fit` adds one if asked for.

    To see that in time, each step waits for the device. With float16 gradients that overflow are the scaler's to skip.
    The first such step of a session is examined and written down; see `Triage`.

    Args:
        kind: `skip`: weights, buffers and the optimizer stay as they were before the step. `rollback`: they become
            those of the newest state that is kept, and all learning rates are halved from there on; batches, steps and
            schedules go on, so that what was trained on since is not trained on again.
    """

    _looks_last = True

    def __init__(self, kind: str) -> None:
        self._goes_back = kind == "rollback"
        self._num_bad = 0
        self._in_row = 0
        self._is_bad = self._is_examined = False
        self._buffers: list[Tensor] = []
        self._kept: list[Tensor] = []
        self.triage: Triage | None = None

    def start(self, trainer: Trainer) -> None:
        """Keep the buffers, which a step forward changes before anything is known of it.

        Raises:
            ConfigError: If an optimizer recomputes its loss.
        """
        for optimizer in filter(recomputes_loss, trainer.optimizers.values()):
            raise ConfigError(
                f"training.on_nan: {type(optimizer).__name__} steps on its own, so no step can be left out; use stop "
                "or ignore"
            )
        modules = trainer.task.modules(trainer.model)
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._kept = [buffer.clone() for buffer in self._buffers]

    def before_step(self, trainer: Trainer, optimizer: str) -> None:
        """Leave out the step of an optimizer if its loss or its gradients are not finite."""
        groups = trainer.optimizers[optimizer].param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        is_finite = trainer.batch_loss is None or trainer.batch_loss.isfinite().all() | (
            trainer.batch_loss.isnan() if trainer.task.may_be_nan else False
        )
        if trainer.amp.dtype != "float16" and gradients:
            is_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all() & is_finite
        if not is_finite:
            self._is_bad = True
            trainer.skip_step()

    def after_step(self, trainer: Trainer) -> None:
        """Undo what the step has done to buffers, or keep those that it has made.

        Raises:
            TrainingError: If it happens again and again.
        """
        if not self._is_bad:
            self._in_row = 0
            if self._buffers:
                torch._foreach_copy_(self._kept, self._buffers)
            return
        self._is_bad = False
        self._num_bad += 1
        self._in_row += 1
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._kept)
        step = trainer.place.step
        trainer.log("train/nonfinite", self._num_bad, step)
        said = ""
        if not self._is_examined and self.triage is not None:
            self._is_examined = True
            said = f" {self.triage.examine_in_passing(step, f'training: step {step} is not finite')}"
        most = self._num_bad > _MOST_BACK if self._goes_back else self._in_row >= _MOST_SKIPPED
        if most:
            times = f"{self._num_bad} times" if self._goes_back else f"{self._in_row} times in a row"
            raise TrainingError(
                f"training: loss or gradients were NaN or infinite {times}, the last at step {step}; going on does not "
                f"help. Lower the learning rate, or look at what was found.{said}"
            )
        done = self._go_back(trainer) if self._goes_back else "it is left out"
        if self._buffers:
            torch._foreach_copy_(self._kept, self._buffers)  # steps that were examined were kept, too
        _log.warning("step %d: loss or gradients are NaN or infinite; %s.%s", step, done, said)

    def _go_back(self, trainer: Trainer) -> str:
        """Take weights and optimizers from the newest good state, at half the rates of now."""
        if self.triage is None:
            raise TrainingError("training.on_nan=rollback: no states are kept to go back to; give fit a checkpointer")
        rates = {name: [group["lr"] for group in o.param_groups] for name, o in trainer.optimizers.items()}
        try:
            state, _ = self.triage.good_state()
            streams = global_states()
            kept = {name: part for name, part in self.triage.parts.items() if _is_trained(name)}
            resume(kept, state, Path("the state to go back to"))
            set_global_states(streams)
        except CheckpointError as error:
            raise TrainingError(f"training.on_nan=rollback: {error}") from error
        for name, optimizer in trainer.optimizers.items():
            for group, rate in zip(optimizer.param_groups, rates[name], strict=False):
                group["lr"] = rate * _SLOWER
                for bound in ("initial_lr", "max_lr", "min_lr"):
                    if bound in group:
                        group[bound] = group[bound] * _SLOWER
        for schedule in trainer.schedules.values():
            schedule.slow_down(_SLOWER)
        return f"back to the weights after step {state['step']}, with half the learning rate"

    def state_dict(self) -> dict[str, Any]:
        """Return how often it has happened."""
        return {"num_bad": self._num_bad, "in_row": self._in_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned."""
        self._num_bad, self._in_row, self._is_bad = state["num_bad"], state["in_row"], False


def _is_trained(part: str) -> bool:
    """Tell whether a part of a state is what steps change: not how far the training is, nor its rates."""
    return part.partition(".")[0] in ("model", "loss", "optimizer", "task")
