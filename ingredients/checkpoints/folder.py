"""`CheckpointFolder`: the best and the newest states of one training, as files; a good one is there at any moment.

    best.pt            weights of the best epoch
    last.pt            the newest state of the whole training
    step-000000120.pt  earlier states, by their optimizer steps
    best-000004.pt     weights of an epoch that were the best at an earlier state
    start/             the state of another run that the training started from, and its best weights
    nonfinite-000000120/  a step whose loss, gradients or weights were not finite; see
                          `sacristan.experiments.training.triage`

A training begins at one of these states, and ends after a whole step once a signal asked for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sacristan.ingredients.checkpoints.files import (
    check_weights,
    complete_config,
    load_checkpoint,
    save_checkpoint,
    split_of,
)
from sacristan.ingredients.checkpoints.training_state import check_whole
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.ranks.group import ALONE
from sacristan.observers.record.files import make_folder, replacing, sync_folder

_log = logging.getLogger(__name__)
T = TypeVar("T")
# Errors of a loader whose workers were ended from outside: it says so, or their shared memory is gone.
LOADER_ERRORS = (RuntimeError, OSError, EOFError)


class CheckpointFolder:
    """The newest `keep` states of one training; their folder is created with the first one."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.keep = keep
        self._last_step: int | None = None
        self._last_is_interim = False
        self._best_epoch = 0
        # The epoch of the best weights according to each kept state; None where that is not known.
        self._best_epochs: dict[Path, int | None] = {}
        self._was_read_back = False

    @property
    def best(self) -> Path:
        return self.path / "best.pt"

    @property
    def last(self) -> Path:
        return self.path / "last.pt"

    def has_states(self) -> bool:
        """Return whether there is a state of the whole training, valid or damaged."""
        return bool(self._states())

    def _states(self) -> list[Path]:
        """Return the states, newest first."""
        return [path for path in (self.last, *sorted(self.path.glob("step-*.pt"), reverse=True)) if path.is_file()]

    # ------------------------------------------------------------------ reading

    def clear(self) -> None:
        """Remove incomplete files of a killed process; nobody else may write here meanwhile."""
        for path in self.path.glob(".*.tmp"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def newest(self, check: Callable[[Mapping[str, Any], Path], None]) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest valid state and its path; None if there are no states.

        `check` rejects a state by a CheckpointError. It is also raised if none is valid or the disk fails to read one.
        """
        faults = []
        for path in self._states():
            try:
                state = load_checkpoint(path)
                check(state, path)
            except CheckpointError as error:
                if isinstance(error.__cause__, OSError):
                    raise
                faults.append(str(error))
                _log.warning("%s; trying the state before it", error)
            else:
                return path, state
        if faults:
            raise CheckpointError(
                f"{self.path}: none of its {len(faults)} states of the training can be loaded; the newest: "
                f"{faults[0]}; put a good one back, or start a new run"
            )
        return None

    def split(self, start: Path) -> Split | None:
        """Return the split of a training that started from `start`: of its own states, of its copy, or None."""
        for path in self._states():
            with contextlib.suppress(CheckpointError):
                split = split_of(load_checkpoint(path, check=False), path)
                if split is not None:
                    return split
        path = self.start_of(start)
        return split_of(load_checkpoint(path, check=False), path)

    def start_of(self, start: Path) -> Path:
        """Return this folder's copy of a state of another run, which outlives the original, or else `start` itself."""
        kept = self.path / "start" / start.name
        return kept if kept.is_file() else start

    def keep_start(self, path: Path, epoch: int) -> None:
        """Copy a state of another run and its best weights, of `epoch` (0: none), which may be removed there."""
        folder = self.path / "start"
        if path.parent == folder:
            return
        make_folder(folder)
        weights = CheckpointFolder(path.parent, 1).weights_of(epoch) if epoch else None
        if weights is not None:
            _link(weights, folder / self.best.name)
        # Last: its presence means that both are there.
        _link(path, folder / path.name)

    def resume_from(self, path: Path, state: Mapping[str, Any], *, best: bool) -> None:
        """Make a state in this folder the newest, and its best weights the best; remove newer, unusable states."""
        epoch = best_epoch(state)
        if best and epoch:
            weights = self.weights_of(epoch)
            if weights is None:
                raise CheckpointError(
                    f"{self.best}: the weights of epoch {epoch}, the best so far, are missing or damaged; put them "
                    "back, or start a new run"
                )
            if weights != self.best:
                _link(weights, self.best)
        elif best:
            self.best.unlink(missing_ok=True)
        older = self._states()
        if path != self.last:
            _link(path, self.last)
            for other in older[: older.index(path)]:
                if other != self.last:
                    other.unlink()
        self._best_epochs = {other: _kept_epoch(other) for other in older if other.exists() and other != self.last}
        self._best_epochs[self.last] = self._best_epoch = epoch
        self._last_step = state["step"]
        self._last_is_interim = _is_interim(state)

    def weights_of(self, epoch: int) -> Path | None:
        """Return the best weights of an epoch, in `best.pt` or in a file of their own; None if unreadable."""
        for path in (self.best, self._superseded(epoch)):
            with contextlib.suppress(CheckpointError):
                if load_checkpoint(path).get("epoch") == epoch:
                    return path
        return None

    # ------------------------------------------------------------------ writing

    def write_best(self, weights: Mapping[str, Any]) -> None:
        """Write the best weights so far; the previous ones stay while a kept state refers to them."""
        if self._best_epoch and self._best_epoch in self._best_epochs.values() and self.best.exists():
            _link(self.best, self._superseded(self._best_epoch))
        save_checkpoint(weights, self.best)
        self._best_epoch = weights["epoch"]

    def adopt_best(self, path: Path, epoch: int) -> None:
        """Adopt the best weights of another training as the best so far, as a hard link if possible."""
        make_folder(self.path)
        _link(path, self.best)
        self._best_epoch = epoch

    def write_last(self, state: Mapping[str, Any]) -> None:
        """Write the newest state, and keep the newest `keep` ones; if it cannot be written, the previous one stays.

        An interim state, which only a signal caused, is replaced by the next, so a resumed training keeps the same
        states. The first state is read back before it replaces that of an earlier session.
        """
        is_same_step = self._last_step == state["step"]
        if _is_interim(state) and is_same_step and not self._last_is_interim:
            return
        is_kept = self._last_step is not None and not is_same_step and not self._last_is_interim
        if is_kept and self.keep > 1 and self.last.exists():
            before = self.path / f"step-{self._last_step:09d}.pt"
            _link(self.last, before)
            self._best_epochs[before] = self._best_epochs.get(self.last)
        save_checkpoint(state, self.last, check=not self._was_read_back)
        self._was_read_back = True
        self._best_epochs[self.last] = best_epoch(state)
        self._last_step, self._last_is_interim = state["step"], _is_interim(state)
        self._drop_old()

    def _drop_old(self) -> None:
        older = sorted((path for path in self._best_epochs if path != self.last), reverse=True)
        for path in older[self.keep - 1 :]:
            path.unlink(missing_ok=True)
            del self._best_epochs[path]
        needed = set(self._best_epochs.values())
        if None in needed:
            return
        kept = {self._superseded(epoch) for epoch in needed if epoch}
        for path in self.path.glob("best-*.pt"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def _superseded(self, epoch: int) -> Path:
        return self.path / f"best-{epoch:06d}.pt"


def best_epoch(state: Mapping[str, Any]) -> int:
    """Return the epoch of the best weights according to a state of a training; 0 if there are none yet."""
    return (state.get("monitor") or {}).get("epoch", 0)


def _is_interim(state: Mapping[str, Any]) -> bool:
    """Return whether only a signal caused a state, not the intervals of the training."""
    return bool(state.get("interim"))


def _kept_epoch(path: Path) -> int | None:
    """Return the epoch of the best weights according to the state in a file; None if it cannot be read."""
    try:
        return best_epoch(load_checkpoint(path, check=False))
    except CheckpointError:
        return None


def _link(path: Path, alias: Path) -> None:
    """Make `alias` the same file as `path`: a hard link, or a copy where the file system has none; all or nothing."""
    temporary = alias.with_name(f".{alias.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        temporary.replace(alias)
        # Where both are one file already, replacing does nothing.
        temporary.unlink(missing_ok=True)
        sync_folder(alias.parent)
    except OSError:
        with path.open("rb") as source, replacing(alias) as target:
            shutil.copyfileobj(source, target)


@dataclasses.dataclass(frozen=True)
class StateFinder:
    """Finds a state, and checks that it is of this run, its data and its split."""

    files: CheckpointFolder
    config: Mapping[str, Any]
    record: Any
    parts: Mapping[str, Any]
    split: Split | None
    legacy_defaults: Mapping[str, Any]

    def own_state(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest valid state of an earlier session; None if there are no states.

        States whose points are all in the record come first. Raises `CheckpointError` if no state can be read and fits.
        """
        self.files.clear()
        lacking = []

        def check_with_record(state: Mapping[str, Any], path: Path) -> None:
            self._check_own(state, path)
            position = state.get("position")
            if self.record is None or position is None or self.is_followed:
                return
            num_missing = self.record.num_missing(position)
            if num_missing:
                lacking.append(path)
                raise CheckpointError(f"{path}: {num_missing} entries of the record up to this state are missing")

        try:
            return self.files.newest(check_with_record)
        except CheckpointError as error:
            if not lacking or isinstance(error.__cause__, OSError):
                raise
        _log.warning("the record is not complete at any state that is kept; resuming from the newest good one")
        return self.files.newest(self._check_own)

    def other_state(self, path: Path) -> dict[str, Any]:
        """Return the state of another run; reject one that lacks a part, or whose data were split differently."""
        state = load_checkpoint(path)
        complete_config(state, self.config, self.legacy_defaults)
        check_whole(state, self.parts, path)
        self._check_split(state, path)
        return state

    def keep_other(self, path: Path, state: Mapping[str, Any], *, best: bool) -> bool:
        """Copy another run's state and its best weights; return False, and start over, if those are missing."""
        try:
            self.files.keep_start(path, best_epoch(state))
            monitor = self.parts.get("monitor")
            epoch = monitor.state_dict()["epoch"] if best and monitor is not None else 0
            if not epoch:
                return True
            weights = CheckpointFolder(path.parent, 1).weights_of(epoch)
            if weights is not None:
                self.files.adopt_best(weights, epoch)
                return True
        except OSError as error:
            raise CheckpointError(f"{self.files.path}: cannot be written: {error}") from error
        _log.warning("%s: weights of epoch %d, its best, are missing; the best value starts again", path.parent, epoch)
        return False

    @property
    def is_followed(self) -> bool:
        """True if a later training of the run has states: its points are needed, and it rewinds the record."""
        path = self.files.path
        stem, _, number = path.name.rpartition("-")
        after = f"{stem}-{int(number) + 1}" if stem and number.isdecimal() else f"{path.name}-2"
        return CheckpointFolder(path.with_name(after), 1).has_states()

    def _check_own(self, state: Mapping[str, Any], path: Path) -> None:
        check_whole(state, self.parts, path)
        if self.parts.get("model") is not None:
            check_weights(self.parts["model"], state, path, self.config)
        uid = None if self.record is None else self.record.uid
        if state.get("run") != uid:
            raise CheckpointError(
                f"{path}: is of the run {state.get('run')}, not of {uid}; to start from another run's state, fork that"
            )
        saved, now = state.get("data"), data_fingerprint(self.record)
        if saved is not None and now is not None and saved != now:
            raise CheckpointError(
                f"{path}: was saved in a training on data with the fingerprint {saved[:12]}, and these have "
                f"{now[:12]}: their content has changed; put back what it was"
            )
        self._check_split(state, path)

    def _check_split(self, state: Mapping[str, Any], path: Path) -> None:
        """Reject a state trained on samples that are in other parts here, unless the config asks for that."""
        kept = split_of(state, path)
        if kept is None or self.split is None or self.config.get(kept.ingredient, {}).get("new_split"):
            return
        if not kept.is_like(self.split):
            raise CheckpointError(
                f"{path}: was trained on another split of the data, so the test part here may hold samples that it was "
                "trained on; give make_data the split of the state, start=checkpoint.load_split(_run), or ask for "
                f"another one: {kept.ingredient}.new_split=True"
            )


def data_fingerprint(record: Any) -> str | None:
    """Return the fingerprint of the data of a run, `experiments.LabRun`, if its ingredient noted one."""
    data = None if record is None else record.info.get("data")
    return data.get("fingerprint") if isinstance(data, Mapping) else None


class SignalStop:
    """The signal that a run holds back until its training has saved a state."""

    def __init__(self, record: Any) -> None:
        self.ranks = ALONE
        self._record = record
        self._has_agreed = False

    @property
    def is_asked(self) -> bool:
        """True if a signal asked the training to end, and all ranks know."""
        return self._has_agreed if self.ranks.size > 1 else bool(self._own_signal())

    def deferred(self) -> contextlib.AbstractContextManager[None]:
        """Hold signals back inside the block."""
        return contextlib.nullcontext() if self._record is None else self._record.signals_deferred()

    def poll(self) -> bool:
        """Return `is_asked` after a step, when ranks exchange whether a signal has come; does not wait."""
        if self.ranks.size > 1:
            self._hold_back(self.ranks.poll(self._own_signal()))
        return self.is_asked

    def agree(self) -> None:
        """Inform all ranks of a signal that one of them held back; they wait for each other."""
        if self.ranks.size > 1 and not self._has_agreed:
            self._hold_back(self.ranks.agree(self._own_signal()))

    def stop_if_asked(self, saved_step: int | None) -> None:
        """End the run if a signal arrived; `saved_step` is the step of the last saved state, None if there is none."""
        if self._record is not None and self.is_asked:
            self._record.stop(saved_step)

    def until_asked(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items; stop if getting one fails after a signal, which ends the workers of a loader, too."""
        iterator = iter(items)
        while True:
            held = []
            try:
                held.append(next(iterator))
            except StopIteration:
                return
            except LOADER_ERRORS:
                if self.is_asked:
                    return
                raise
            # Keeps no reference to the item: the next one takes its memory.
            yield held.pop()

    def _own_signal(self) -> int:
        return 0 if self._record is None else self._record.stopping or 0

    def _hold_back(self, number: int) -> None:
        if number and self._record is not None:
            self._has_agreed = True
            self._record.hold_back(number)
