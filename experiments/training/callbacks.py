"""Work beside a training, at some moments of it: pictures, your own stopping rules, your own schedules."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sacristan.ingredients.config.seed import look_stream
from sacristan.ingredients.errors import CheckpointError, ConfigError
from sacristan.ingredients.models.modules import Freezing, evaluating, freezings_of, is_held_in_eval, switching
from sacristan.ingredients.training import TrainingSettings

if TYPE_CHECKING:
    from sacristan.experiments.training import Trainer

_log = logging.getLogger(__name__)


class Callback:
    """Acts at moments of a training; a subclass overrides the methods it needs.

    Its `state_dict` is in the checkpoints, so that a resumed training continues with it.

    Attributes:
        metrics: Names of the metrics it adds to those of a validation, such as `val/fid`; they may be monitored.
        observes: Whether it only observes: it changes nothing of the training and keeps no state. A training may be
            resumed with or without it, and steps that are repeated to find a fault leave it out. Its `start`,
            `after_epoch`, `after_validation` and `end` draw from their own random stream.

    Example:
        class StopAt(Callback):
            def after_validation(self, trainer, metrics):
                if metrics["val/accuracy"] > 0.99:
                    trainer.stop()

        opt = optimizer.make_optimizer(network)
        loop.fit(network, batches, criterion, opt, log=_run.log_scalar, callbacks=[StopAt()], **training)
    """

    metrics: Sequence[str] = ()
    observes: bool = False
    # Whether its `before_step` comes after those of all others, which may change gradients.
    _looks_last: bool = False

    def start(self, trainer: Trainer) -> None:
        """Act once in each session, after the state to resume from is loaded, before the first step.

        Args:
            trainer: The training: `model`, `task`, `data`, `optimizers`, `place` and `log`; see `Trainer`. All methods
                get the same one.
        """

    def before_step(self, trainer: Trainer, optimizer: str) -> None:
        """Act before an optimizer takes its step.

        Its parameters have the gradients of the whole batch, without the scale of float16, and not clipped yet;
        `trainer.batch_loss` is the loss. `trainer.skip_step()` leaves the step out. Optimizers that recompute their
        loss, such as LBFGS, do not call it.

        Args:
            trainer: The training.
            optimizer: Name of the optimizer; "" if it is the only one.
        """

    def after_step(self, trainer: Trainer) -> None:
        """Act after each step, before its state is saved; `trainer.place.step` is its number.

        Gradients are cleared by then; `before_step` sees them. A callback without this method costs nothing in a step.
        `trainer.stop()` ends the training here.
        """

    def after_epoch(self, trainer: Trainer) -> None:
        """Act after the last step of each epoch, before its validation; `trainer.place.epoch` is the number before it.

        A training that is resumed between the two calls it again for the same epoch, so it must bear a second call.
        """

    def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Act after each validation; `trainer.stop()` ends the training here.

        With an optimizer that evaluates other weights than it trains, the model has those to evaluate during the call;
        do not change them.

        Args:
            trainer: The training.
            metrics: The metrics as `val/NAME`. The callback may add those named in `metrics`, and log them itself.
        """

    def end(self, trainer: Trainer) -> None:
        """Act when the training has ended on its own: not when it failed, or a signal stopped it."""

    def close(self) -> None:
        """Remove hooks and close files, however the training ended."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from: tensors and plain values; checkpoints hold it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the value of `state_dict`; called before `start`."""


class Callbacks:
    """All callbacks of a training; checkpoints hold their states."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        # Methods that are not overridden are not called: after_step is in the steady loop.
        self._after_step = [c for c in self._callbacks if type(c).after_step is not Callback.after_step]
        looking = [c for c in self._callbacks if type(c).before_step is not Callback.before_step]
        self._before_step = sorted(looking, key=lambda callback: callback._looks_last)
        self._stateful = [c for c in self._callbacks if not c.observes]

    def __bool__(self) -> bool:
        """Tell whether checkpoints hold the state of any."""
        return bool(self._stateful)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics they add to those of a validation."""
        return [name for callback in self._callbacks for name in callback.metrics]

    @property
    def look_at_steps(self) -> bool:
        """True if a callback acts after each step."""
        return bool(self._after_step)

    @contextlib.contextmanager
    def session(self, trainer: Trainer) -> Iterator[None]:
        """Let callbacks see the gradients before each step, and close them all at the end."""
        with contextlib.ExitStack() as stack:
            for callback in reversed(self._callbacks):
                stack.callback(callback.close)
            stack.enter_context(self.looking(trainer))
            yield

    @contextlib.contextmanager
    def looking(self, trainer: Trainer) -> Iterator[None]:
        """Let callbacks see the gradients before each step inside the block."""
        before = trainer.look
        trainer.look_before_steps(self._look_before_step if self._before_step else None)
        try:
            yield
        finally:
            trainer.look_before_steps(before)

    def without_observers(self) -> Callbacks:
        """Return the callbacks that change the training, for steps that are repeated."""
        return Callbacks(self._stateful)

    def _look_before_step(self, trainer: Trainer, optimizer: str) -> None:
        for callback in self._before_step:
            callback.before_step(trainer, optimizer)

    def start(self, trainer: Trainer) -> None:
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.start(trainer)

    def after_step(self, trainer: Trainer) -> None:
        for callback in self._after_step:
            callback.after_step(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.after_epoch(trainer)

    def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.after_validation(trainer, metrics)

    def end(self, trainer: Trainer) -> None:
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.end(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {
            f"{number} {type(callback).__name__}": callback.state_dict()
            for number, callback in enumerate(self._stateful)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = list(self.state_dict())
        if sorted(state) != sorted(names):
            raise CheckpointError(
                f"callbacks: the state has {', '.join(sorted(state)) or 'none'}, this training {', '.join(names)}"
            )
        for name, callback in zip(names, self._stateful, strict=True):
            callback.load_state_dict(state[name])


def _stream_of(callback: Callback) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a callback that only observes draws from its own random stream."""
    return look_stream() if callback.observes else contextlib.nullcontext()


class Averaging(Callback):
    """Averages the weights of the model; from the epoch `start` on, validations measure, and keep, the average.

    States of the training hold model and average. Parameters of the loss or the task are not averaged. `ema` averages
    exponentially, after every step, of which the share `decay` stays, with the statistics of normalisation layers.
    `swa` is the mean of the weights at the end of each epoch (https://arxiv.org/abs/1803.05407), for which a pass
    through the training data recomputes the statistics of batch normalisation.
    """

    def __init__(self, kind: str, decay: float, start: int) -> None:
        self._kind = kind
        self._decay = decay
        self._start = start
        self._averaged: AveragedModel | None = None
        self._last_epoch = 0
        self._loaded: Mapping[str, Any] = {}

    def start(self, trainer: Trainer) -> None:
        for optimizer in switching(trainer.optimizers.values()):
            raise ConfigError(
                f"training.average: got {self._kind!r}, but {type(optimizer).__name__} evaluates its own average; "
                "leave training.average out"
            )
        if not trainer.data.val.num_samples:
            raise ConfigError(
                "training.average: there is no validation part to choose the best average by; set data.val_fraction "
                "above 0"
            )
        if self._loaded.get("averaged") is not None:
            self._average(trainer).load_state_dict(self._loaded["averaged"])
            self._last_epoch = self._loaded["last_epoch"]
        self._loaded = {}

    def after_step(self, trainer: Trainer) -> None:
        if self._kind == "ema" and trainer.place.epoch + 1 >= self._start:
            averaged, model = self._average(trainer), _uncompiled(trainer.model)
            averaged.update_parameters(model)
            # torch averages whole numbers, too, and cuts off the decimals: 3 becomes 2.
            for mine, theirs in zip(averaged.module.buffers(), model.buffers(), strict=True):
                if not mine.is_floating_point():
                    mine.copy_(theirs)

    def after_epoch(self, trainer: Trainer) -> None:
        epoch = trainer.place.epoch + 1
        if self._kind == "swa" and epoch >= self._start:
            averaged = self._average(trainer)
            if self._last_epoch < epoch:  # else it was resumed between this and the validation
                averaged.update_parameters(_uncompiled(trainer.model))
                self._last_epoch = epoch
            _update_batch_norms(averaged.module, trainer, epoch)

    def _average(self, trainer: Trainer) -> AveragedModel:
        if self._averaged is None:
            is_ema = self._kind == "ema"
            average = get_ema_multi_avg_fn(self._decay) if is_ema else None
            self._averaged = AveragedModel(_uncompiled(trainer.model), multi_avg_fn=average, use_buffers=is_ema)
            trainer.evaluated = self._averaged.module
        return self._averaged

    def state_dict(self) -> dict[str, Any]:
        averaged = None if self._averaged is None else self._averaged.state_dict()
        return {"averaged": averaged, "last_epoch": self._last_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state  # until the training starts


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return a model without `torch.compile`, which cannot be copied."""
    return getattr(model, "_orig_mod", model)


@torch.no_grad()
def _update_batch_norms(model: nn.Module, trainer: Trainer, epoch: int) -> None:
    """Recompute statistics as `torch.optim.swa_utils.update_bn` does, for any task; frozen layers stay."""
    all_norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in all_norms if norm.running_mean is not None and not is_held_in_eval(norm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    task = trainer.task
    try:
        with look_stream(), evaluating(*task.modules(model)):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a mean over all batches
                norm.train()
            for batch in trainer.data.train.epoch(epoch):
                with trainer.amp.autocast():
                    task.measure(model, batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class Unfreezing(Callback):
    """Trains frozen parts of a model from an epoch on, which alone decides: a resumed training needs no state."""

    def __init__(self, freezing: Freezing, epochs: int) -> None:
        self._freezing = freezing
        never = freezing.frozen_after(epochs)
        if never:
            _log.warning("model.unfreeze: %s stay frozen: the training has %d epochs", ", ".join(never), epochs)

    def start(self, trainer: Trainer) -> None:
        self._freezing.begin_epoch(trainer.place.epoch + 1)

    def after_epoch(self, trainer: Trainer) -> None:
        epoch = trainer.place.epoch + 2
        opened = self._freezing.opened_in(epoch)
        if opened:
            _log.info("from epoch %d on, %s are trained", epoch, ", ".join(opened))
        self._freezing.begin_epoch(epoch)


def implied_callbacks(model: nn.Module, settings: TrainingSettings) -> list[Callback]:
    """Return the callbacks that a model and the settings ask for."""
    implied: list[Callback] = [Unfreezing(freezing, settings.epochs) for freezing in freezings_of(model)]
    if settings.average is not None:
        first = 1 if settings.average == "ema" else settings.epochs * 3 // 4 + 1
        implied.append(Averaging(settings.average, settings.average_decay, settings.average_start or first))
    return implied
