"""`Callback`: what is done beside a training, at some moments of it: pictures, own stopping rules, own schedules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingredients.config.seed import look_stream
from ingredients.errors import CheckpointError

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer

__all__ = ["Callback", "Callbacks"]


class Callback:
    """Does something at moments of a training; a subclass writes the methods it wants.

    What it keeps from one moment to the next, and wants back when the training is resumed, `state_dict` returns.

    Attributes:
        metrics: Names of what it adds to the metrics of a validation, such as `val/fid`; they may be monitored.
        observes: Whether it only looks: it changes nothing of the training and keeps no state, so a training may be
            resumed with or without it, and steps that are repeated to find a fault leave it out. Its `start`,
            `after_epoch`, `after_validation` and `end` draw from a random stream of their own.

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
        """Prepare; called once in each session, before the first step.

        Args:
            trainer: The training. If it is resumed, its state, and that of this callback, are loaded already.
        """

    def before_step(self, trainer: Trainer, optimizer: str) -> None:
        """Called before an optimizer takes its step, whose name is "" if it is the only one.

        Its parameters have the gradients of the whole batch, without the scale of float16, and not clipped yet;
        `trainer.batch_loss` is the loss. `trainer.skip_step()` leaves the step out. Not called for optimizers that
        recompute their loss, such as LBFGS.
        """

    def after_step(self, trainer: Trainer) -> None:
        """React to a step; called after each one, before its state is saved.

        Args:
            trainer: The training; `trainer.place.step` is the number of the step. Gradients are cleared by now, so read
                them in `before_step`. `trainer.stop()` ends the training here.
        """

    def after_epoch(self, trainer: Trainer) -> None:
        """React to the end of an epoch; called after its last step, before its validation.

        Args:
            trainer: The training. If it was interrupted before the epoch's state was saved, this is called again after
                the resume.
        """

    def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """React to a validation, or add metrics to it.

        Args:
            trainer: The training.
            metrics: The validation's metrics by name, as `val/NAME`. Add further ones under the names in the attribute
                `metrics`: they are logged, and `training.monitor` may follow them.
        """

    def end(self, trainer: Trainer) -> None:
        """React to the end of the training; called once all epochs are done, or patience or a callback has ended it.

        Not called when the training fails or a signal stops it; see `close`.
        """

    def close(self) -> None:
        """Called when the training is left, in whatever way: the place to remove hooks and to close files."""

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
        looking = [c for c in self._callbacks if type(c).before_step is not Callback.before_step]
        self._before_step = sorted(looking, key=lambda callback: callback._looks_last)
        self._stateful = [c for c in self._callbacks if not c.observes]

    def __bool__(self) -> bool:
        """Tell whether there are any whose state belongs to that of the training."""
        return bool(self._stateful)

    @property
    def metrics(self) -> list[str]:
        """The names of what they add to the metrics of a validation."""
        return [name for callback in self._callbacks for name in callback.metrics]

    @property
    def look_at_steps(self) -> bool:
        """True if a callback wants to be called after each step."""
        return bool(self._after_step)

    @contextlib.contextmanager
    def session(self, trainer: Trainer) -> Iterator[None]:
        """Let those that want it see the gradients before each step, and close all of them at the end."""
        with contextlib.ExitStack() as stack:
            for callback in reversed(self._callbacks):
                stack.callback(callback.close)
            stack.enter_context(self.looking(trainer))
            yield

    @contextlib.contextmanager
    def looking(self, trainer: Trainer) -> Iterator[None]:
        """Let those that want it see the gradients before each step."""
        before = trainer.look
        trainer.look_before_steps(self._look_before_step if self._before_step else None)
        try:
            yield
        finally:
            trainer.look_before_steps(before)

    def without_observers(self) -> Callbacks:
        """Return those that change something of the training, for steps that are repeated."""
        return Callbacks(self._stateful)

    def _look_before_step(self, trainer: Trainer, optimizer: str) -> None:
        for callback in self._before_step:
            callback.before_step(trainer, optimizer)

    def start(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.start(trainer)

    def after_step(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._after_step:
            callback.after_step(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.after_epoch(trainer)

    def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.after_validation(trainer, metrics)

    def end(self, trainer: Trainer) -> None:
        """See `Callback`."""
        for callback in self._callbacks:
            with _stream_of(callback):
                callback.end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all, by number and class."""
        return {
            f"{number} {type(callback).__name__}": callback.state_dict()
            for number, callback in enumerate(self._stateful)
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
        for name, callback in zip(names, self._stateful, strict=True):
            callback.load_state_dict(state[name])


def _stream_of(callback: Callback) -> contextlib.AbstractContextManager[None]:
    """Return what lets a callback that only looks draw from a stream of its own."""
    return look_stream() if callback.observes else contextlib.nullcontext()
