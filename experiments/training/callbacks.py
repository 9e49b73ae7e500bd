"""`Callback`: what is done beside a training, at five moments of it: pictures, own stopping rules, own schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingredients.errors import CheckpointError

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer

__all__ = ["Callback", "Callbacks"]


class Callback:
    """Does something at moments of a training; a subclass writes the methods it wants.

    What it keeps from one moment to the next, and wants back when the training is resumed, `state_dict` returns.

    Attributes:
        metrics: Names of what it adds to the metrics of a validation, such as `val/fid`; they may be monitored.

    Example:
        class StopAt(Callback):
            def after_validation(self, trainer, metrics):
                if metrics["val/accuracy"] > 0.99:
                    trainer.stop()

        opt = optimizer.make_optimizer(network)
        loop.fit(network, batches, criterion, opt, log=_run.log_scalar, callbacks=[StopAt()], **training)
    """

    metrics: Sequence[str] = ()

    def start(self, trainer: Trainer) -> None:
        """Called once in each session, after the state to resume from was loaded, before the first step."""

    def after_step(self, trainer: Trainer) -> None:
        """Called after each step, before its state is saved; `trainer.place.step` is its number."""

    def after_epoch(self, trainer: Trainer) -> None:
        """Called after the last step of each epoch, before its validation; again, if it was resumed in between."""

    def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Called after each validation with its metrics as `val/NAME`, to which it may add those it names."""

    def end(self, trainer: Trainer) -> None:
        """Called when the training has ended by itself: not when it failed, or was stopped by a signal."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume from here."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned."""


class Callbacks:
    """All callbacks of a training, in order; checkpoints hold their states.

    Args:
        callbacks: They are called in this order.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        # A method that nobody wrote is not called: after_step is in the steady loop.
        self._after_step = [c for c in self._callbacks if type(c).after_step is not Callback.after_step]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def metrics(self) -> list[str]:
        """The names of what they add to the metrics of a validation."""
        return [name for callback in self._callbacks for name in callback.metrics]

    @property
    def look_at_steps(self) -> bool:
        """Whether one wants to be called after each step."""
        return bool(self._after_step)

    def start(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            callback.start(trainer)

    def after_step(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._after_step:
            callback.after_step(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            callback.after_epoch(trainer)

    def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            callback.after_validation(trainer, metrics)

    def end(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            callback.end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all, by number and class."""
        return {
            f"{number} {type(callback).__name__}": callback.state_dict()
            for number, callback in enumerate(self._callbacks)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned.

        Raises:
            CheckpointError: If they were others.
        """
        names = list(self.state_dict())
        if sorted(state) != sorted(names):
            raise CheckpointError(
                f"callbacks: the state has {', '.join(sorted(state)) or 'none'}, this training {', '.join(names)}"
            )
        for name, callback in zip(names, self._callbacks, strict=True):
            callback.load_state_dict(state[name])
