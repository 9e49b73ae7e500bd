"""`Checkpointer`: saves the states of a training, and resumes the training from them.

A state is copied on the thread that trains, and written on another one. It replaces the one before only once the record
holds all points logged up to it, so a training resumed from it misses none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from sacristan.ingredients.checkpoints.files import load_weights
from sacristan.ingredients.checkpoints.folder import (
    LOADER_ERRORS,
    CheckpointFolder,
    SignalStop,
    StateFinder,
    data_fingerprint,
)
from sacristan.ingredients.checkpoints.training_state import (
    Place,
    branch,
    capture,
    of_all_ranks,
    of_rank,
    resume,
    snapshot,
    state_of,
    warn_of_unsaved,
    weights_of,
)
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.ranks.group import ALONE, Ranks
from sacristan.observers.file.sacred_form import plain

__all__ = ["Checkpointer", "Writer"]

_log = logging.getLogger(__name__)


class Writer:
    """Runs jobs in the background; the next `wait` raises their error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs one after the other, until one fails; `wait` and `join` raise an OSError as CheckpointError."""
        # No daemon: Python waits for it, so no copied state is lost.
        self._thread = threading.Thread(target=self._work, args=(jobs,), name="sacristan-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until all jobs are done; raise `CheckpointError` if one could not write."""
        error = self.join()
        self._error = None
        if error is not None:
            raise error

    def join(self) -> BaseException | None:
        """Wait until all jobs are done, and return the error that `wait` would raise."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._error

    def _work(self, jobs: Sequence[Callable[[], None]]) -> None:
        try:
            for job in jobs:
                job()
        except OSError as error:
            self._error = CheckpointError(f"{self._folder}: cannot be written: {error}; the checkpoint before it stays")
        except BaseException as error:
            self._error = error


T = TypeVar("T")


class Checkpointer:
    """Saves states of a training into a folder, and finds the state to resume from.

    Args:
        folder: The folder; made when the first checkpoint is saved.
        config: The run's config, kept in every checkpoint; passwords in URLs are hidden.
        best: Whether to keep the best weights.
        last: Whether to keep the newest states.
        interval: Epochs between newest states.
        interval_steps: Optimizer steps between newest states within an epoch; None for none.
        keep: How many newest states to keep.
        start: A checkpoint of another run, to start from.
        legacy_defaults: What settings meant before they existed, nested, such as `LabRun.legacy_defaults`; an older
            checkpoint to start from may lack them.
        resume: Whether to resume from the states of an earlier session in the folder.
        record: The run, such as an `experiments.LabRun`, or None. Its `position`, `flush` and `rewind` keep the record
            in step with the training; its `signals_deferred`, `stopping` and `stop` end it after a whole step.

    Attributes:
        branched_from: The state of another run that the training began at; None if it did not.
        newest_step: After which step the newest state of the training was taken; None before there is one.

    Raises:
        CheckpointError: If a number is out of range.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        best: bool = True,
        last: bool = True,
        interval: int = 1,
        interval_steps: int | None = None,
        keep: int = 2,
        start: Path | None = None,
        legacy_defaults: Mapping[str, Any] | None = None,
        resume: bool = False,
        record: Any = None,
    ) -> None:
        for name, value in (("interval", interval), ("interval_steps", interval_steps), ("keep", keep)):
            if value is not None and value < 1:
                raise CheckpointError(f"checkpoint.{name}: got {value}, expected at least 1")
        self.files = CheckpointFolder(folder, keep)
        self.config = plain(config)  # which `weights_only` loads, whatever the config holds
        self._legacy_defaults = plain(legacy_defaults or {})
        self.best = best
        self.last = last
        self.interval = interval
        self.interval_steps = interval_steps
        self.start = start
        self.resume = resume
        self.record = record
        self.branched_from: Path | None = None
        self.newest_step: int | None = None
        self._writer = Writer(folder)
        self._stopping = SignalStop(record if last else None)
        self._preparation: Preparation | None = None
        self._split: Split | None = None
        self._ranks = ALONE
        # The module of the loss, if training changes it.
        self._loss: nn.Module | None = None
        # Whether momenta that states lack were looked for.
        self._has_looked = False
        # After which step the newest state on the disk was saved.
        self._saved_step: int | None = None

    @property
    def best_path(self) -> Path:
        """The file of the best weights."""
        return self.files.best

    @property
    def last_path(self) -> Path:
        """The file of the newest state."""
        return self.files.last

    def begin(
        self,
        parts: Mapping[str, Any],
        *,
        preparation: Preparation | None = None,
        split: Split | None = None,
        ranks: Ranks = ALONE,
    ) -> Place:
        """Load the state to begin at into `parts`, rewind the record to it, and return its place.

        With `resume`, that is the newest good state of an earlier session whose points are all in the record, or, if
        all lack some, the newest good one. Otherwise it is the state at `start`, or the beginning.

        Args:
            parts: By name, objects with `state_dict` and `load_state_dict`; None for an absent one. `model` is the one
                whose weights are kept as the best. `optimizer`, `scheduler`, `amp` and `monitor` follow a config that
                changed, other parts are loaded unchanged.
            preparation: The preparation of the data, `Data.preparation`; kept in every checkpoint.
            split: The split of data without a preparation, `Data.split`; kept, too.
            ranks: The processes of the training; rank 0 reads states for all of them, and writes.

        Raises:
            CheckpointError: If there are states, and none of them can be read and fits; or if the split of the data
                differs from that of the state, and the config does not ask for that.
        """
        self._preparation = preparation
        self._split = split if preparation is None else preparation.split
        self._loss = parts.get("loss")
        self._ranks = self._stopping.ranks = ranks
        finder = StateFinder(self.files, self.config, self.record, parts, self._split, self._legacy_defaults)
        is_own, path, state = ranks.from_first(lambda: self._state_to_begin_at(finder))
        place = Place()
        if is_own:
            place = resume(parts, of_rank(state, ranks), path)
            self._saved_step = self.newest_step = place.step
            if ranks.is_first:
                self.files.resume_from(path, state, best=self.best)
        elif state is not None:
            place = branch(parts, of_rank(state, ranks), path, self.config)
            self.branched_from = self.start
            if not ranks.from_first(lambda: finder.keep_other(path, state, best=self.best)):
                parts["monitor"].load_state_dict({"value": math.nan, "epoch": 0, "waited": 0})
        if self.resume and ranks.is_first and self.record is not None and not finder.is_followed:
            self.record.rewind(state.get("position") if is_own else None, place.step)
        if place.step:
            _log.info("resuming from %s, after %d steps", path, place.step)
        return place

    def _state_to_begin_at(self, finder: StateFinder) -> tuple[bool, Path, Any]:
        """Return whether the state is of this run, its file, and the state or None."""
        own = finder.own_state() if self.resume else None
        if own is not None:
            return True, *own
        if self.start is None:
            return False, Path(), None
        path = self.files.start_of(self.start) if self.resume else self.start
        return False, path, finder.other_state(path)

    # ------------------------------------------------------------------ a training runs

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold signals back until a step has ended, and wait at the end until all is written.

        Raises:
            CheckpointError: If the last state cannot be written.
        """
        try:
            with self._stopping.deferred():
                yield
        except BaseException:
            error = self._writer.join()
            if error is not None:
                _log.error("%s", error)
            raise
        self.wait()
        self._stopping.agree()
        self._stopping.stop_if_asked(self._saved_step)  # a signal may have come after the last save

    @contextlib.contextmanager
    def saving_if_stopped(self, save: Callable[[], None]) -> Iterator[None]:
        """Save the state, and end the run, where the block fails after a signal asked for the end.

        See `until_stopped` for why it fails.

        Args:
            save: Calls `save` for the state before the block, which must not change it, such as an evaluation.
        """
        try:
            yield
            return
        except LOADER_ERRORS:
            if not self.is_stopping:
                raise
        save()

    @property
    def is_stopping(self) -> bool:
        """True if a signal asked the training to end, and all ranks know of it."""
        return self._stopping.is_asked

    def is_due(self, step: int) -> bool:
        """Return whether to save the state after a step: by its number, or because a signal asked for the end.

        Call it once after each step, which is when ranks exchange whether a signal has come.

        Args:
            step: Number of the step.
        """
        is_stopping = self._stopping.poll()
        if self.interval_steps is not None and self.last and step % self.interval_steps == 0:
            return True
        return is_stopping

    def until_stopped(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items; stop where getting one fails after a signal asked for the end.

        A signal to all processes of a job ends the workers of a loader, too.

        Args:
            items: Such as the batches of a loader.
        """
        return self._stopping.until_asked(items)

    def save(
        self,
        place: Place,
        parts: Mapping[str, Any],
        best: Mapping[str, float] | None = None,
        *,
        final: bool = False,
        due: bool = False,
        evaluated: nn.Module | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Save the checkpoints due at `place`; end the run if a signal asked for that.

        Returns once the tensors are copied, except for the final state. Raises the error of an earlier save.

        Args:
            place: The training's place.
            parts: As given to `begin`.
            best: The metrics, if the weights are the best so far.
            final: Whether the training ends here.
            due: Whether a state is due, whatever the intervals say.
            evaluated: The model whose weights are the best, if that is not the one of `parts`.
            check: Called before a state is taken; where it raises, the states before stay.

        Raises:
            CheckpointError: If a checkpoint cannot be written; the one before it stays. Or if the weights are the best,
            and no part is a `model`.
        """
        self._stopping.agree()
        is_stopping, is_regular = self.is_stopping, final or due or self._is_regular(place)
        last = self.last and (is_stopping or is_regular)
        best = best if self.best else None
        if best is not None and parts.get("model") is None:
            raise CheckpointError(
                f"the best weights are those of the part `model`, and there are only: {', '.join(parts)}; name one "
                "`model`, or call save without `best`"
            )
        if best is not None or last:
            self.wait()
            if check is not None:
                check()
            state = self._state(place, parts) if last else weights_of(parts)
            if last and not is_regular:
                state["interim"] = True
            self._start_writing(state, place, parts.get("model"), best, evaluated, last=last)
        if is_stopping or final:
            self.wait()
            # A signal may also arrive while the last state is being written; nothing else checks for it.
            self._stopping.stop_if_asked(place.step)

    def _start_writing(
        self,
        state: dict[str, Any],
        place: Place,
        model: nn.Module | None,
        best: Mapping[str, float] | None,
        evaluated: nn.Module | None,
        *,
        last: bool,
    ) -> None:
        jobs: list[Callable[[], None]] = [] if self.record is None else [self.record.flush]
        if best is not None:
            weights = {
                **{name: state[name] for name in ("model", "loss") if state.get(name) is not None},
                **({} if evaluated in (None, model) else {"model": state_of(evaluated)}),
                "epoch": place.epoch,
                "step": place.step,
                "metrics": snapshot(dict(best)),
                **self._of_run(),
            }
            jobs.append(lambda: self.files.write_best(weights))
        if last:
            self.newest_step = place.step
            jobs.append(lambda: self._write_last(state))
        if not self._ranks.is_first:
            jobs, self._saved_step = [], place.step if last else self._saved_step
        self._writer.start(jobs)

    def _is_regular(self, place: Place) -> bool:
        """Return whether the intervals ask for a state at `place`."""
        if place.batch:
            return self.interval_steps is not None and place.step % self.interval_steps == 0
        return place.epoch % self.interval == 0

    def _write_last(self, state: Mapping[str, Any]) -> None:
        self.files.write_last(state)
        self._saved_step = state["step"]

    def _state(self, place: Place, parts: Mapping[str, Any]) -> dict[str, Any]:
        if place.step and self._ranks.is_first and not self._has_looked:
            self._has_looked = True
            warn_of_unsaved(parts)
        of_record = {} if self.record is None else {"position": self.record.position()}
        data = {"data": data_fingerprint(self.record)}
        return of_all_ranks({**capture(place, parts), **of_record, **data, **self._of_run()}, self._ranks)

    def _of_run(self) -> dict[str, Any]:
        """Return the entries about the run in each of its checkpoints."""
        prepared = {} if self._preparation is None else {"preparation": self._preparation.state_dict()}
        if self._preparation is None and self._split is not None:
            prepared = {"split": dataclasses.asdict(self._split)}
        of_record = {} if self.record is None else {"run": self.record.uid}
        return {"config": self.config, **prepared, **of_record}

    def restore_best(self, model: nn.Module) -> None:
        """Load the best weights so far into `model`, and into the loss; without any, both stay as they are.

        Args:
            model: The model that was trained.

        Raises:
            CheckpointError: If they cannot be read.
        """
        self.wait()

        def load() -> bool:
            is_there = self.best and self.best_path.exists()
            if is_there:
                load_weights(model, self.best_path, self.config, self._loss)
            return is_there

        if self._ranks.from_first(load):
            self._ranks.send_tensors(model)

    def wait(self) -> None:
        """Wait until all states are written.

        Raises:
            CheckpointError: If one cannot be.
        """
        self._writer.wait()

    def newest(self) -> tuple[Path, int] | None:
        """Return the file of the newest state, once it is written, and its step; None if none was saved."""
        self._writer.join()
        return None if self._saved_step is None else (self.last_path, self._saved_step)
