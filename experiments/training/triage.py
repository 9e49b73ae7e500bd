"""`Triage`: repeats the steps since the newest good state, up to the first bad one, and writes that as a bundle.

It adds nothing to the steady loop. Once a loss or a weight is not finite, the training returns to the newest state that
it has kept, takes the same steps again on the same batches, and checks loss, gradients and weights after each.
`diagnose` finds the cause in the first bad step, `write_bundle` keeps it, with all that is needed to repeat it:

checkpoints/nonfinite-000000120/     named after the step; beside the states of the training
    incident.json    the cause, the place in the training, losses and gradient norms before it
    config.json      the run's config
    batch.pt         the micro-batches of the step; tensors and plain values, as in checkpoints
    state.pt         the state of the training from before the step; a checkpoint

The folder appears as a whole or not at all. It replaces another one atomically where the file system can exchange two
folders, as Linux's own can; elsewhere, as on network file systems, a kill between two renames leaves neither. A killed
process may leave a folder that ends in `.tmp`, which the next session of the run removes.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import json
import logging
import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from sacristan.experiments.running.commands import INCIDENT, Replayed, bundle_to_replay
from sacristan.experiments.training import Trainer
from sacristan.experiments.training.callbacks import Callbacks
from sacristan.experiments.training.diagnosis import Finding, diagnose, non_finite_gradients, non_finite_parameters
from sacristan.experiments.training.gradients import grouped
from sacristan.ingredients.checkpoints import Checkpointer
from sacristan.ingredients.checkpoints.files import check_weights, load_checkpoint, read_file, save_checkpoint
from sacristan.ingredients.checkpoints.training_state import Place, capture, check_whole, resume
from sacristan.ingredients.datasets.collating import to_device
from sacristan.ingredients.datasets.loading import StreamBatches
from sacristan.ingredients.errors import CheckpointError
from sacristan.observers.record.files import make_folder, sync_files, sync_folder
from sacristan.observers.record.schema import CONFIG

_log = logging.getLogger(__name__)

FORMAT = 1
_BATCH, _STATE = "batch.pt", "state.pt"
# Entries of an incident that a replay needs.
_REQUIRED = ("training", "epoch", "step", "summary")
# Of Linux: renameat2(2).
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

# Steps whose losses and gradient norms a bundle holds.
_HISTORY = 20


@dataclasses.dataclass(frozen=True)
class StepBundle:
    """The content of a bundle."""

    path: Path
    incident: Mapping[str, Any]
    state: Mapping[str, Any]
    group: Sequence[Any]


def on_cpu(batch: Any) -> Any:
    """Copy a batch to the CPU in plain containers, as files hold it."""
    if isinstance(batch, Tensor):
        return batch.detach().to("cpu", copy=True)
    if isinstance(batch, Mapping):
        return {name: on_cpu(item) for name, item in batch.items()}
    if isinstance(batch, list | tuple):
        return (list if isinstance(batch, list) else tuple)(map(on_cpu, batch))
    return batch


def like(template: Any, batch: Any) -> Any:
    """Return a batch from `on_cpu` in the containers of a template, as far as it has them."""
    if isinstance(batch, dict) and isinstance(template, Mapping):
        items = {name: like(template.get(name), item) for name, item in batch.items()}
        return items if type(template) is dict else type(template)(items)  # type: ignore[call-arg]
    if isinstance(batch, list) and isinstance(template, list):
        return [like(next(iter(template), None), item) for item in batch]
    is_tuple = isinstance(batch, tuple) and isinstance(template, tuple)
    if is_tuple and len(batch) == len(template):
        parts = tuple(map(like, template, batch))
        return type(template)(*parts) if hasattr(template, "_fields") else parts
    return batch


def write_bundle(
    folder: Path,
    incident: Mapping[str, Any],
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    group: Sequence[Any],
) -> Path:
    """Write a bundle, whole or not at all, and return its folder; it replaces one of the same step."""
    path = folder / f"nonfinite-{incident['step']:09d}"
    make_folder(folder)
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        files = {INCIDENT: {"format": FORMAT, **incident}, CONFIG: config}
        for name, content in files.items():
            (temporary / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        save_checkpoint(state, temporary / _STATE)
        save_checkpoint({"group": list(group)}, temporary / _BATCH)
        # A batch that cannot be loaded again is an error now.
        read_file(temporary / _BATCH, check=False)
        sync_files(temporary / name for name in files)
        replaced = temporary
        if not _exchange(temporary, path):
            replaced = temporary.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            with contextlib.suppress(FileNotFoundError):
                path.replace(replaced)
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise
    sync_folder(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    return path


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return False where one is missing, or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


def read_bundle(path: Path) -> StepBundle:
    """Read a bundle, such as my_runs/3/checkpoints/nonfinite-000000120. Runs no code, whatever it holds."""
    try:
        incident = json.loads((path / INCIDENT).read_text(encoding="utf-8"))
        if incident["format"] != FORMAT:
            use = "use the version of the lab that saved it"
            raise CheckpointError(f"{path}: has format {incident['format']}, this version reads {FORMAT}; {use}")
        missing = [name for name in _REQUIRED if name not in incident]
        if missing:
            raise KeyError(missing[0])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"bundle: {path} is none that can be read ({type(error).__name__}: {error}); expected a folder such as "
            "my_runs/3/checkpoints/nonfinite-000000120"
        ) from error
    group = read_file(path / _BATCH, check=True, entry="bundle")["group"]
    return StepBundle(path, incident, load_checkpoint(path / _STATE), group)


@dataclasses.dataclass
class _Repeated:
    """The step at which the repetition ended."""

    step: int
    first: int
    before: dict[str, Any]
    group: list[Any]
    template: Any
    history: list[dict[str, Any]]
    is_bad: bool


class Triage:
    """Finds the first step of a training that was not finite, and writes its bundle."""

    def __init__(
        self, trainer: Trainer, parts: Mapping[str, Any], callbacks: Callbacks, keeper: Checkpointer | None
    ) -> None:
        self.parts = parts
        self.state: dict[str, Any] | None = None
        self._trainer = trainer
        self._callbacks = callbacks.without_observers()
        self._keeper = keeper
        is_temporary = keeper is not None and keeper.record is not None and keeper.record.folder is None
        is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.is_on = keeper is not None and not is_temporary and not is_shared

    def examine(self, step: int, fault: str) -> str:
        """Find the first bad step, write its bundle, and leave the training in the state before it.

        Returns a report for the user: the cause and the command that repeats the step, or why there is none.
        """
        trainer, place, log = self._trainer, self._trainer.place, self._trainer.log
        trainer.log = _log_nothing
        try:
            repeated = self._repeat(step)
            if repeated is None:
                return "The steps before were not repeated, because a signal asked the run to end"
            group = [to_device(like(repeated.template, batch), trainer.amp.device) for batch in repeated.group]
            self._put_back(repeated.before)
            with self._callbacks.looking(trainer):
                finding = diagnose(trainer, group)[0] if repeated.is_bad else None
            return self._written(repeated, finding, fault)
        except Exception as error:
            # The training has failed already, and its error is the one to report.
            _log.debug("no bundle was written", exc_info=True)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"No bundle of the step was written: {reason}"
        finally:
            trainer.place, trainer.log = place, log

    def examine_in_passing(self, step: int, fault: str) -> str:
        """Examine a step of a training that continues; return the report after a space, empty without bundles."""
        if not self.is_on:
            return ""
        now = capture(self._trainer.place, self.parts)
        try:
            return f" {self.examine(step, fault)}."
        finally:
            self._put_back(now)

    def good_state(self) -> tuple[Mapping[str, Any], Path]:
        """Return the newest state from before any fault was noticed, and its file, for messages."""
        kept = None if self._keeper is None else self._keeper.newest()
        if kept is not None and (self.state is None or kept[1] > self.state["step"]):
            return load_checkpoint(kept[0]), kept[0]
        if self.state is None:
            raise CheckpointError("no state from before it is kept; give fit a checkpointer")
        return self.state, Path("the state at the beginning of the epoch")

    def _repeat(self, until: int) -> _Repeated | None:
        """Repeat the steps after the newest good state, up to a bad one, or to `until`; None if a signal came."""
        trainer, keeper = self._trainer, self._keeper
        place = trainer.place = self._put_back(*self.good_state())
        _log.info("repeating the steps %d to %d, to find the one that was not finite", place.step + 1, until)
        for module in trainer.task.modules(trainer.model):
            module.train()
        trainer.is_logged = True  # a task's own steps measure gradients then
        history: collections.deque[dict[str, Any]] = collections.deque(maxlen=_HISTORY)
        batches = trainer.data.train.epoch(place.epoch + 1, place.batch)
        with self._callbacks.looking(trainer):
            for group in grouped(batches, trainer.amp.accumulate):
                if keeper is not None and keeper.is_stopping:
                    return None
                before, kept = capture(place, self.parts), [on_cpu(batch) for batch in group]
                step, first, template = place.step + 1, place.batch, group[0]
                place.batch += len(group)
                loss, stepped = trainer.bound_step()(list(group))
                loss = trainer.batch_loss if loss is None else loss
                history.append(self._measured(step, loss))
                is_bad = self._is_bad(loss)
                if is_bad or step == until:
                    return _Repeated(step, first, before, kept, template, list(history), is_bad)
                self._end_step(place, stepped=stepped)
        raise CheckpointError("it is not among the steps after the newest state")

    def _put_back(self, state: Mapping[str, Any], path: Path = Path()) -> Place:
        """Put all of a state into the training, which may be in the middle of a step."""
        place = resume(self.parts, state, path)
        self._trainer.clear_gradients()
        return place

    def _end_step(self, place: Place, *, stepped: bool) -> None:
        """Do the work of the training after the optimizers have stepped."""
        trainer = self._trainer
        if trainer.steps_itself:
            trainer.after_step()
        else:
            trainer.amp.update()
            trainer.clear_gradients()
            if stepped and "" in trainer.schedules:
                trainer.schedules[""].after_step()
        place.step += 1
        if self._callbacks.look_at_steps:
            self._callbacks.after_step(trainer)
            trainer.clear_gradients()

    def _measured(self, step: int, loss: Tensor | None) -> dict[str, Any]:
        trainer = self._trainer
        norms: Any = {
            name: _json_number(float(trainer.amp.grad_norm(optimizer)))
            for name, optimizer in trainer.optimizers.items()
        }
        scale = {"scale": trainer.amp.scale()} if trainer.amp.dtype == "float16" else {}
        shown = None if loss is None else _json_number(float(loss.detach()))
        return {"step": step, "loss": shown, "grad_norm": norms[""] if list(norms) == [""] else norms, **scale}

    def _is_bad(self, loss: Tensor | None) -> bool:
        trainer = self._trainer
        is_finite = loss is None or bool(loss.detach().isfinite().all())
        if not is_finite and not (trainer.task.may_be_nan and loss is not None and bool(loss.isnan())):
            return True
        # With float16 gradients overflow now and then, and the scaler skips the step.
        if trainer.amp.dtype != "float16" and non_finite_gradients(trainer):
            return True
        return bool(non_finite_parameters(*trainer.task.modules(trainer.model)))

    def _written(self, repeated: _Repeated, finding: Finding | None, fault: str) -> str:
        keeper = self._keeper
        if keeper is None:
            return ""
        summary = "the step was finite when it was repeated" if finding is None else str(finding)
        folder = keeper.files.path
        incident = self._incident(repeated, finding, fault) | {"summary": summary, "training": folder.name}
        path = write_bundle(folder, incident, keeper.config, repeated.before, repeated.group)
        info = None if keeper.record is None else keeper.record.info
        if isinstance(info, dict):
            entry = {"step": repeated.step, "summary": summary, "bundle": f"{folder.name}/{path.name}"}
            info["nonfinite"] = [*info.get("nonfinite", []), entry]
        return f"Found at step {repeated.step}: {summary}. Repeat that step with: replay with bundle={path}"

    def _incident(self, repeated: _Repeated, finding: Finding | None, fault: str) -> dict[str, Any]:
        trainer, size, first = self._trainer, len(repeated.group), repeated.first
        epoch = repeated.before["epoch"] + 1
        return {
            "what": fault,
            "epoch": epoch,
            "step": repeated.step,
            "batches": list(range(first + 1, first + size + 1)),
            "samples": _samples(trainer.data.train, epoch, first, size),
            "finding": None if finding is None else dataclasses.asdict(finding),
            "history": repeated.history,
            "scale": trainer.amp.scale() if trainer.amp.dtype == "float16" else 1.0,
            "precision": trainer.amp.dtype,
            "device": str(trainer.amp.device),
            "torch": torch.__version__,
        }


def replay_if_asked(
    trainer: Trainer, parts: Mapping[str, Any], callbacks: Callbacks, keeper: Checkpointer | None
) -> None:
    """Repeat the step of a bundle where `replay` asks for that, and end its training by raising `Replayed`."""
    path = bundle_to_replay()
    if path is None:
        return
    bundle = read_bundle(path)
    if keeper is not None and keeper.files.path.name != bundle.incident.get("training"):
        return
    _replay(trainer, parts, callbacks.without_observers(), {} if keeper is None else keeper.config, bundle)


def _replay(
    trainer: Trainer, parts: Mapping[str, Any], callbacks: Callbacks, config: Mapping[str, Any], bundle: StepBundle
) -> NoReturn:
    path = bundle.path
    check_whole(bundle.state, parts, path)
    check_weights(trainer.model, bundle.state, path, config)
    trainer.place = resume(parts, bundle.state, path)
    trainer.log = _log_nothing
    callbacks.start(trainer)
    for module in trainer.task.modules(trainer.model):
        module.train()
    template = next(iter(trainer.data.train.epoch(trainer.place.epoch + 1)), None)
    group = [to_device(like(template, batch), trainer.amp.device) for batch in bundle.group]
    # Again, because callbacks and data have drawn random numbers since.
    resume(parts, bundle.state, path)
    with callbacks.looking(trainer):
        finding, loss = diagnose(trainer, group)
    value = "none" if loss is None else f"{float(loss.detach()):.6g}"
    summary = "all of it is finite here" if finding is None else str(finding)
    recorded = bundle.incident["summary"]
    report = [f"step {bundle.incident['step']}, epoch {bundle.incident['epoch']}: loss {value}", summary]
    if summary != recorded:
        report.append(f"recorded was: {recorded}")
    raise Replayed("\n".join(report), None if finding is None else dataclasses.asdict(finding))


def _log_nothing(name: str, value: float, step: int) -> None:
    pass


def _samples(batches: Any, epoch: int, first: int, count: int) -> list[list[int]] | None:
    """Return the places in the training part of the samples of batches; None of a stream, which has none."""
    if isinstance(batches, StreamBatches):
        return None
    order, size = batches.order(epoch), batches.batch_size
    return [order[number * size : (number + 1) * size].tolist() for number in range(first, first + count)]


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
