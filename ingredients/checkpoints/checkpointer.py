"""`Checkpointer`: saves the states of a training beside it, and takes the training up again where it was left.

A state is copied on the thread that trains, and written on another one. It is put in its place only once the record
holds all that was logged up to it, so that a training resumed from it misses nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ingredients.checkpoints.files import check_weights, load_checkpoint, load_weights, split_of
from ingredients.checkpoints.folder import CheckpointFolder, best_epoch
from ingredients.checkpoints.rank_states import of_all_ranks, of_rank
from ingredients.checkpoints.record import TrainingRecord
from ingredients.checkpoints.training_state import Place, branch, capture, check_whole, resume, snapshot, state_of
from ingredients.checkpoints.writer import Writer
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.splitting import Split
from ingredients.errors import CheckpointError
from ingredients.ranks.group import ALONE, Ranks
from observers.record.object_names import named
from observers.record.redaction import hide_passwords

__all__ = ["Checkpointer"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
# What a loader raises whose workers were ended from outside: it says so, or their shared memory no longer exists.
_OF_ENDED_WORKERS = (RuntimeError, OSError, EOFError)


class Checkpointer:
    """Saves states of a training into a folder, and finds the state to resume from.

    Args:
        folder: Where to; made when the first checkpoint is saved.
        config: The run's config, kept in every checkpoint; passwords in URLs are hidden.
        best: Whether to keep the best weights.
        last: Whether to keep the newest states.
        interval: Epochs between newest states.
        interval_steps: Optimizer steps between newest states within an epoch; None for none.
        keep: How many newest states to keep.
        start: A checkpoint of another run, to start from.
        resume: Whether to resume from what an earlier session of the same run left in the folder.
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
        resume: bool = False,
        record: TrainingRecord | None = None,
    ) -> None:
        for name, value in (("interval", interval), ("interval_steps", interval_steps), ("keep", keep)):
            if value is not None and value < 1:
                raise CheckpointError(f"checkpoint.{name}: got {value}, expected at least 1")
        self.files = CheckpointFolder(folder, keep)
        self.config = hide_passwords(named(config))
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
        self._preparation: Preparation | None = None
        self._split: Split | None = None
        # The processes of the training, and whether they have agreed to end it.
        self._ranks = ALONE
        self._has_agreed = False
        # The module of the loss, if training changes it.
        self._loss: nn.Module | None = None
        # After which step the newest state on the disk was saved.
        self._saved_step: int | None = None

    @property
    def best_path(self) -> Path:
        """Path of the best weights."""
        return self.files.best

    @property
    def last_path(self) -> Path:
        """Path of the newest state."""
        return self.files.last

    # ------------------------------------------------------------------ a training begins

    def begin(
        self,
        parts: Mapping[str, Any],
        *,
        preparation: Preparation | None = None,
        split: Split | None = None,
        ranks: Ranks = ALONE,
    ) -> Place:
        """Bring `parts` and the record to the state to resume from, and return the place of the training.

        That is what an earlier session of the run left, if it is to be resumed: the newest good state whose points are
        all in the record, or, if there is none such, the newest good one. Else it is the state at `start`; else none,
        which is the beginning.

        Args:
            parts: By name, what has `state_dict` and `load_state_dict`; None stands for what there is none of. Among
                them is `model`, whose weights are kept as the best. `optimizer`, `scheduler`, `amp` and `monitor`
                follow a config that changed, other names are taken as they were.
            preparation: What the data are prepared by, `Data.preparation`; kept in every checkpoint.
            split: How data without a preparation are split, `Data.split`; kept, too.
            ranks: The processes of the training; rank 0 reads states for all of them, and writes.

        Raises:
            CheckpointError: If there are states, and none of them can be read and fits; or if the data are split
                otherwise than those of the state, and the config does not ask for that.
        """
        self._preparation = preparation
        self._split = split if preparation is None else preparation.split
        self._loss = parts.get("loss")
        self._ranks = ranks
        is_own, path, state = ranks.from_first(lambda: self._state_to_begin_at(parts))
        place = Place()
        if is_own:
            place = resume(parts, of_rank(state, ranks), path)
            self._saved_step = self.newest_step = place.step
            if ranks.is_first:
                self.files.resume_from(path, state, best=self.best)
        elif state is not None:
            place = branch(parts, of_rank(state, ranks), path, self.config)
            self.branched_from = self.start
            if not ranks.from_first(lambda: self._keep_start(path, state, parts.get("monitor"))):
                parts["monitor"].load_state_dict({"value": math.nan, "epoch": 0, "waited": 0})
        if self.resume and ranks.is_first and self.record is not None and not self._is_followed():
            self.record.rewind(state.get("position") if is_own else None, place.step)
        if place.step:
            _log.info("resuming from %s, after %d steps", path, place.step)
        return place

    def _state_to_begin_at(self, parts: Mapping[str, Any]) -> tuple[bool, Path, Any]:
        """Return whether the run has left a state of its own, where that or the one to start at is, and it; or None."""
        if self.resume:
            self.files.clear()
            found = self._newest_state(parts)
            if found is not None:
                return True, *found
        if self.start is None:
            return False, Path(), None
        path = self.files.start_of(self.start) if self.resume else self.start
        state = load_checkpoint(path)
        check_whole(state, parts, path)
        self._check_split(state, path)
        return False, path, state

    def _keep_start(self, path: Path, state: Mapping[str, Any], monitor: Any) -> bool:
        """Keep the state of another run that this one starts at; tell whether what it has for the best is there."""
        try:
            self.files.keep_start(path, best_epoch(state))
            return self._adopt_best(path.parent, monitor)
        except OSError as error:
            raise CheckpointError(f"{self.files.path}: cannot be written: {error}") from error

    def _newest_state(self, parts: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest good state whose points the record has, or, of those that lack some, the newest."""
        lacking = []

        def check_with_record(state: Mapping[str, Any], path: Path) -> None:
            self._check(state, path, parts)
            num_missing = self._num_missing(state)
            if num_missing:
                lacking.append(path)
                raise CheckpointError(f"{path}: {num_missing} entries of the record up to this state are missing")

        try:
            return self.files.newest(check_with_record)
        except CheckpointError as error:
            if not lacking or isinstance(error.__cause__, OSError):
                raise
        _log.warning("the record is not complete at any state that is kept; resuming from the newest good one")
        return self.files.newest(lambda state, path: self._check(state, path, parts))

    def _num_missing(self, state: Mapping[str, Any]) -> int:
        position = state.get("position")
        if self.record is None or position is None or self._is_followed():
            return 0
        return self.record.num_missing(position)

    def _check(self, state: Mapping[str, Any], path: Path, parts: Mapping[str, Any]) -> None:
        check_whole(state, parts, path)
        check_weights(parts["model"], state, path, self.config)
        uid = None if self.record is None else self.record.uid
        if state.get("run") != uid:
            raise CheckpointError(
                f"{path}: is of the run {state.get('run')}, not of {uid}; to start from another run's state, fork that"
            )
        saved, now = state.get("data"), self._fingerprint()
        if saved is not None and now is not None and saved != now:
            raise CheckpointError(
                f"{path}: was saved in a training on data with the fingerprint {saved[:12]}, and these have "
                f"{now[:12]}: their content has changed; restore it"
            )
        self._check_split(state, path)

    def _check_split(self, state: Mapping[str, Any], path: Path) -> None:
        """Refuse a state that was trained on samples which are in other parts here, unless the config asks for that."""
        kept = split_of(state, path)
        if kept is None or self._split is None or self.config.get(kept.ingredient, {}).get("new_split"):
            return
        if not kept.is_like(self._split):
            raise CheckpointError(
                f"{path}: was trained on another split of the data, so the test part here may hold samples that it was "
                "trained on; give make_data the split of the state, start=checkpoint.load_split(_run), or ask for "
                f"another one: {kept.ingredient}.new_split=True"
            )

    def _is_followed(self) -> bool:
        """Tell whether a later training of the run has states: its points are wanted, and it rewinds the record."""
        name = self.files.path.name
        stem, _, number = name.rpartition("-")
        after = f"{stem}-{int(number) + 1}" if stem and number.isdecimal() else f"{name}-2"
        return CheckpointFolder(self.files.path.with_name(after), 1).has_states()

    def _adopt_best(self, folder: Path, monitor: Any) -> bool:
        """Take over the weights that the other run's state has for the best; False if the best has to start anew."""
        epoch = 0 if monitor is None else monitor.state_dict()["epoch"]
        if not epoch or not self.best:
            return True
        path = CheckpointFolder(folder, 1).weights_of(epoch)
        if path is not None:
            self.files.adopt_best(path, epoch)
            return True
        _log.warning("%s: the weights of epoch %d, its best, are not there; the best starts anew", folder, epoch)
        return False

    # ------------------------------------------------------------------ a training runs

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold signals back until a step has ended, and do not leave before all is written.

        Raises:
            CheckpointError: If what was saved last cannot be written.
        """
        deferred = self.record.signals_deferred() if self.last and self.record is not None else contextlib.nullcontext()
        try:
            with deferred:
                yield
        except BaseException:
            error = self._writer.join()
            if error is not None:
                _log.error("%s", error)
            raise
        self.wait()
        self._agree()
        self._stop_if_asked(self._saved_step)  # the signal may have come when there was nothing left to save

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
        except _OF_ENDED_WORKERS:
            if not self.is_stopping:
                raise
        save()

    @property
    def is_stopping(self) -> bool:
        """True if a signal asked the training to end; with several ranks, once all of them know."""
        if self._ranks.size > 1:
            return self._has_agreed
        return self.last and self.record is not None and self.record.stopping is not None

    def _own_signal(self) -> int:
        return (self.record.stopping or 0) if self.last and self.record is not None else 0

    def _agree(self) -> None:
        """Let all ranks know of a signal that one of them has held back."""
        if self._ranks.size > 1 and not self._has_agreed:
            self._take(self._ranks.agree(self._own_signal()))

    def _take(self, number: int) -> None:
        if number and self.record is not None:
            self._has_agreed = True
            self.record.hold_back(number)

    def _stop_if_asked(self, saved_step: int | None) -> None:
        if self.record is not None and self.is_stopping:
            self.record.stop(saved_step)

    def is_due(self, step: int) -> bool:
        """Tell whether the state after `step` is to be saved: by its number, or because a signal asked for the end.

        It is asked once after each step, which is when ranks exchange whether a signal has come.
        """
        if self._ranks.size > 1:
            self._take(self._ranks.poll(self._own_signal()))
        if self.interval_steps is not None and self.last and step % self.interval_steps == 0:
            return True
        return self.is_stopping

    def until_stopped(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items of a loader until a signal asks the training to end.

        A signal to all processes of a job also ends the loader's workers. The error that this causes ends the
        iteration, and does not fail the run.

        Args:
            items: Such as the batches of an epoch.
        """
        iterator = iter(items)
        while True:
            held = []
            try:
                held.append(next(iterator))
            except StopIteration:
                return
            except _OF_ENDED_WORKERS:
                if self.is_stopping:
                    return
                raise
            # Nothing holds on to it here: the next one takes its memory.
            yield held.pop()

    def save(
        self,
        place: Place,
        parts: Mapping[str, Any],
        best: Mapping[str, float] | None = None,
        *,
        final: bool = False,
        evaluated: nn.Module | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Save what is due at `place`; end the run if a signal asked for that.

        It returns when the tensors are copied, but for the final state. The error of an earlier save is raised here.

        Args:
            place: The training's place.
            parts: As given to `begin`.
            best: The metrics, if the weights are the best so far.
            final: Whether the training ends here.
            evaluated: The model whose weights are the best, if that is not the one of `parts`.
            check: Called before a state is taken; where it raises, the states before stay.

        Raises:
            CheckpointError: If a checkpoint cannot be written; the one before it stays.
        """
        self._agree()
        stopping = self.is_stopping
        is_regular = final or self._is_regular(place)
        last = self.last and (stopping or is_regular)
        best = best if self.best else None
        if best is not None or last:
            self.wait()
            if check is not None:
                check()
            jobs: list[Callable[[], None]] = [] if self.record is None else [self.record.flush]
            state = self._state(place, parts) if last else self._weights(parts)
            if last and not is_regular:
                state["interim"] = True
            if best is not None:
                weights = {
                    **{name: state[name] for name in ("model", "loss") if state.get(name) is not None},
                    **({} if evaluated in (None, parts["model"]) else {"model": state_of(evaluated)}),
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
        if stopping or final:
            self.wait()
            # A signal may have come while the last state was written, too, and nobody else looks for it.
            self._stop_if_asked(place.step)

    def _is_regular(self, place: Place) -> bool:
        """Tell whether the intervals ask for a state at `place`."""
        if place.batch:
            return self.interval_steps is not None and place.step % self.interval_steps == 0
        return place.epoch % self.interval == 0

    def _write_last(self, state: Mapping[str, Any]) -> None:
        self.files.write_last(state)
        self._saved_step = state["step"]

    def _state(self, place: Place, parts: Mapping[str, Any]) -> dict[str, Any]:
        of_record = {} if self.record is None else {"position": self.record.position()}
        state = {**capture(place, parts), **of_record, "data": self._fingerprint(), **self._of_run()}
        return of_all_ranks(state, self._ranks)

    def _weights(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: state_of(parts[name]) for name in ("model", "loss") if parts.get(name) is not None}

    def _of_run(self) -> dict[str, Any]:
        """Return what every checkpoint of the run tells of it."""
        prepared = {} if self._preparation is None else {"preparation": self._preparation.state_dict()}
        if self._preparation is None and self._split is not None:
            prepared = {"split": dataclasses.asdict(self._split)}
        of_record = {} if self.record is None else {"run": self.record.uid}
        return {"config": self.config, **prepared, **of_record}

    def _fingerprint(self) -> str | None:
        """Return the fingerprint of the run's data, where its ingredient noted one."""
        data = None if self.record is None else self.record.info.get("data")
        return data.get("fingerprint") if isinstance(data, Mapping) else None

    def restore_best(self, model: nn.Module) -> None:
        """Load the best weights kept so far into `model`, and into the loss; without any they stay as they are.

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
        """Wait until all that was saved is written.

        Raises:
            CheckpointError: If it cannot be.
        """
        self._writer.wait()

    def newest(self) -> tuple[Path, int] | None:
        """Return where the newest state is, once it is written, and its step; None if none was saved."""
        self._writer.join()
        return None if self._saved_step is None else (self.last_path, self._saved_step)
