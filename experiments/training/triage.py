"""Triage of a training that is not finite: the steps since its newest good state are repeated, up to the bad one.

Nothing of it is in the steady loop. Once a loss or a weight turns out not to be finite, the training goes back to the
newest state that it has kept, takes the same steps again on the same batches, and looks at loss, gradients and weights
after each. The first bad step is then taken apart by `diagnose`, and written down by `write_bundle`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.running.replaying import Replayed, bundle_to_replay
from experiments.training.bundle import like, plain, read_bundle, write_bundle
from experiments.training.callbacks import Callbacks
from experiments.training.diagnosis import Finding, diagnose, non_finite_gradients, take_step
from experiments.training.divergence import non_finite_parameters
from experiments.training.trainer import Trainer, grouped
from ingredients.checkpoints.checkpointer import Checkpointer
from ingredients.checkpoints.files import check_weights, load_checkpoint
from ingredients.checkpoints.training_state import Place, capture, check_whole, resume
from ingredients.datasets.streaming import StreamBatches
from ingredients.datasets.structure import to_device
from ingredients.errors import CheckpointError, TrainingError

__all__ = ["Triage", "replay_if_asked"]

_log = logging.getLogger(__name__)

# Steps whose losses and gradient norms a bundle tells.
_HISTORY = 20


@dataclasses.dataclass
class _Repeated:
    """The step at which steps that were repeated have ended.

    Attributes:
        step: Its number.
        first: The first of its batches in the epoch, from 0.
        before: The state from before it.
        group: Its micro-batches, plain.
        template: One of them as it was.
        history: Losses, gradient norms and scales up to it.
        is_bad: Whether it was not finite again.
    """

    step: int
    first: int
    before: dict[str, Any]
    group: list[Any]
    template: Any
    history: list[dict[str, Any]]
    is_bad: bool


class Triage:
    """Finds the step that was not finite, once one was, and writes its bundle.

    Attributes:
        parts: What states of the training hold, by name.

    Args:
        trainer: The training.
        parts: What its states hold.
        callbacks: Its callbacks.
        keeper: Keeps its states, in whose folder bundles are written; None writes none.
        on_nan: The setting; `ignore` looks for nothing.
    """

    def __init__(
        self, trainer: Trainer, parts: Mapping[str, Any], callbacks: Callbacks, keeper: Checkpointer | None, on_nan: str
    ) -> None:
        self._trainer = trainer
        self.parts = parts
        self._callbacks = callbacks.without_observers()
        self._keeper = keeper
        self._is_on = keeper is not None and on_nan != "ignore" and not _is_shared() and not _is_temporary(keeper)
        # The state at the beginning of the epoch, where the keeper has none.
        self._state: dict[str, Any] | None = None

    def begin_epoch(self) -> None:
        """Keep the state as it is, unless the training has just saved it."""
        if self._is_on and self._keeper is not None:
            has_it = self._keeper.newest_step == self._trainer.place.step
            self._state = None if has_it else capture(self._trainer.place, self.parts)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Write the bundle where the training fails because it is not finite; the error then tells of it."""
        try:
            yield
        except TrainingError as error:
            if self._is_on and error.step is not None:
                error.args = (f"{error}. {self.examine(error.step, str(error))}",)
            raise

    def examine(self, step: int, what: str) -> str:
        """Look for the first step up to `step` that was not finite, write its bundle, and return what came of it.

        The training is left in the state from before that step.

        Args:
            step: Where it was seen.
            what: What was seen.
        """
        trainer, place, log = self._trainer, self._trainer.place, self._trainer.log
        trainer.log = lambda name, value, step: None
        try:
            found = self._repeat(step)
            if found is None:
                return "The steps before were not looked at again, as the run was asked to end"
            group = [to_device(like(found.template, batch), trainer.amp.device) for batch in found.group]
            self._put_back(found.before)
            with self._callbacks.looking(trainer):
                finding = diagnose(trainer, group)[0] if found.is_bad else None
            return self._written(found, finding, what)
        except Exception as error:
            # The training has failed already, which is what is to be told.
            _log.debug("no bundle was written", exc_info=True)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"No bundle of the step was written: {reason}"
        finally:
            trainer.place, trainer.log = place, log

    def examine_in_passing(self, step: int, what: str) -> str:
        """Do as `examine` does, between two steps of a training that goes on: all of it is put back afterwards."""
        if not self._is_on:
            return ""
        now = capture(self._trainer.place, self.parts)
        try:
            return f"{self.examine(step, what)}."
        finally:
            self._put_back(now)

    def good_state(self) -> tuple[Mapping[str, Any], Path]:
        """Return the newest state from before anything was seen, and where it is from.

        Raises:
            CheckpointError: If there is none, or it cannot be read.
        """
        kept = None if self._keeper is None else self._keeper.newest()
        if kept is not None and (self._state is None or kept[1] > self._state["step"]):
            return load_checkpoint(kept[0]), kept[0]
        if self._state is None:
            raise CheckpointError("no state from before it is kept")
        return self._state, Path("the state at the beginning of the epoch")

    def _repeat(self, until: int) -> _Repeated | None:
        """Take the steps after the newest good state again, up to one that is bad, or to `until`."""
        trainer, keeper = self._trainer, self._keeper
        state, path = self.good_state()
        place = trainer.place = self._put_back(state, path)
        _log.info("repeating the steps %d to %d, to find what was not finite", place.step + 1, until)
        for module in trainer.task.modules(trainer.model):
            module.train()
        trainer.is_logged = True  # a task's own steps measure gradients then
        history: collections.deque[dict[str, Any]] = collections.deque(maxlen=_HISTORY)
        batches = trainer.data.train.epoch(place.epoch + 1, place.batch)
        with self._callbacks.looking(trainer):
            for group in grouped(batches, trainer.amp.accumulate):
                if keeper is not None and keeper.is_stopping:
                    return None
                before, kept = capture(place, self.parts), [plain(batch) for batch in group]
                found = _Repeated(place.step + 1, place.batch, before, kept, group[0], [], False)
                place.batch += len(group)
                loss, stepped = take_step(trainer, group)
                loss = trainer.batch_loss if loss is None else loss
                history.append(self._measured(found.step, loss))
                found.history, found.is_bad = list(history), self._is_bad(loss)
                if found.is_bad or found.step == until:
                    return found
                self._end_step(place, stepped=stepped)
        raise CheckpointError("it is not among the steps after the newest state")

    def _put_back(self, state: Mapping[str, Any], path: Path = Path()) -> Place:
        """Put all of a state into the training, which may have been left in the middle of a step."""
        place = resume(self.parts, state, path)
        self._trainer.clear_added()
        return place

    def _end_step(self, place: Place, *, stepped: bool) -> None:
        """Do what the training does after the optimizers have stepped."""
        trainer = self._trainer
        if trainer.steps_itself:
            trainer.after_step()
        else:
            trainer.amp.update()
            trainer.clear_added()
            if stepped and "" in trainer.schedules:
                trainer.schedules[""].after_step()
        place.step += 1
        if self._callbacks.look_at_steps:
            self._callbacks.after_step(trainer)
            trainer.clear_added()

    def _measured(self, step: int, loss: Tensor | None) -> dict[str, Any]:
        trainer = self._trainer
        norms = {name: float(trainer.amp.grad_norm(optimizer)) for name, optimizer in trainer.optimizers.items()}
        scale = {"scale": trainer.amp.scale()} if trainer.amp.dtype == "float16" else {}
        shown = None if loss is None else _json_number(float(loss.detach()))
        norm: Any = {name: _json_number(value) for name, value in norms.items()}
        return {"step": step, "loss": shown, "grad_norm": norm[""] if list(norm) == [""] else norm, **scale}

    def _is_bad(self, loss: Tensor | None) -> bool:
        trainer = self._trainer
        is_finite = loss is None or bool(loss.detach().isfinite().all())
        if not is_finite and not (trainer.task.may_be_nan and loss is not None and bool(loss.isnan())):
            return True
        # With float16 gradients overflow now and then, and the scaler skips the step.
        if trainer.amp.dtype != "float16" and non_finite_gradients(trainer):
            return True
        return bool(non_finite_parameters(*trainer.task.modules(trainer.model)))

    def _written(self, found: _Repeated, finding: Finding | None, what: str) -> str:
        keeper = self._keeper
        if keeper is None:
            return ""
        said = "the step was finite when it was repeated" if finding is None else str(finding)
        incident = self._incident(found, finding, what) | {"summary": said, "training": keeper.files.path.name}
        path = write_bundle(keeper.files.path, incident, keeper.config, found.before, found.group)
        info = None if keeper.record is None else keeper.record.info
        if isinstance(info, dict):
            entry = {"step": found.step, "summary": said, "bundle": f"{keeper.files.path.name}/{path.name}"}
            info["nonfinite"] = [*info.get("nonfinite", []), entry]
        return f"Found at step {found.step}: {said}. Repeat that step with: replay with bundle={path}"

    def _incident(self, found: _Repeated, finding: Finding | None, what: str) -> dict[str, Any]:
        trainer, size = self._trainer, len(found.group)
        return {
            "what": what,
            "epoch": found.before["epoch"] + 1,
            "step": found.step,
            "batches": list(range(found.first + 1, found.first + size + 1)),
            "samples": _samples(trainer.data.train, found.before["epoch"] + 1, found.first, size),
            "finding": None if finding is None else dataclasses.asdict(finding),
            "history": found.history,
            "scale": trainer.amp.scale() if trainer.amp.dtype == "float16" else 1.0,
            "precision": trainer.amp.dtype,
            "device": str(trainer.amp.device),
            "torch": torch.__version__,
        }


def replay_if_asked(
    trainer: Trainer, parts: Mapping[str, Any], callbacks: Callbacks, keeper: Checkpointer | None
) -> None:
    """Repeat the step of a bundle, where the command `replay` asks for that, and end the training by it.

    A run of several trainings has the step taken in the one that the bundle is of; those before it train as ever.

    Raises:
        Replayed: Once the step was taken.
        CheckpointError: If the bundle cannot be read, or is not of this training.
    """
    path = bundle_to_replay()
    if path is None:
        return
    bundle = read_bundle(path)
    if keeper is not None and keeper.files.path.name != bundle.incident.get("training"):
        return
    check_whole(bundle.state, parts, path)
    check_weights(trainer.model, bundle.state, path, {} if keeper is None else keeper.config)
    observed = callbacks.without_observers()
    trainer.place = resume(parts, bundle.state, path)
    trainer.log = lambda name, value, step: None
    observed.start(trainer)
    for module in trainer.task.modules(trainer.model):
        module.train()
    template = next(iter(trainer.data.train.epoch(trainer.place.epoch + 1)), None)
    group = [to_device(like(template, batch), trainer.amp.device) for batch in bundle.group]
    # What the callbacks and the data drew meanwhile is not to count.
    resume(parts, bundle.state, path)
    with observed.looking(trainer):
        finding, loss = diagnose(trainer, group)
    value = "none" if loss is None else f"{float(loss.detach()):.6g}"
    said = "all of it is finite here" if finding is None else str(finding)
    recorded = bundle.incident["summary"]
    report = [f"step {bundle.incident['step']}, epoch {bundle.incident['epoch']}: loss {value}", said]
    if said != recorded:
        report.append(f"recorded was: {recorded}")
    raise Replayed("\n".join(report), None if finding is None else dataclasses.asdict(finding))


def _samples(batches: Any, epoch: int, first: int, count: int) -> list[list[int]] | None:
    """Return the places in the training part of the samples of batches; None of a stream, which has none."""
    if isinstance(batches, StreamBatches):
        return None
    order, size = batches.order(epoch), batches.batch_size
    return [order[number * size : (number + 1) * size].tolist() for number in range(first, first + count)]


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _is_shared() -> bool:
    """Tell whether other processes take part, which would have to repeat the steps, too."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_temporary(keeper: Checkpointer) -> bool:
    """Tell whether the run has a folder only while it goes on."""
    return keeper.record is not None and keeper.record.folder is None
