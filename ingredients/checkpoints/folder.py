"""`CheckpointFolder`: the best and the newest states of one training, as files of which a good one is always there.

best.pt            weights of the best epoch
last.pt            the newest state of the whole training
step-000000120.pt  the states before it, by their optimizer steps
best-000004.pt     weights of an epoch that one of those before still has for the best
start/             the state of another run that the training started from, and its best weights
nonfinite-000000120/  a step whose loss, gradients or weights were not finite; see `experiments.training.bundle`
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ingredients.checkpoints.files import load_checkpoint, save_checkpoint, split_of
from ingredients.datasets.splitting import Split
from ingredients.errors import CheckpointError
from observers.record.atomic_file import make_folder, replacing, sync_folder

__all__ = ["CheckpointFolder", "best_epoch"]

_log = logging.getLogger(__name__)


class CheckpointFolder:
    """The states of one training.

    Args:
        path: The folder; made when the first checkpoint is written.
        keep: How many newest states to keep.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.keep = keep
        self._last_step: int | None = None
        self._last_is_interim = False
        self._best_epoch = 0
        # The epoch of the best weights by each newest state that is kept; None where that is not known.
        self._best_epochs: dict[Path, int | None] = {}
        self._was_read_back = False

    @property
    def best(self) -> Path:
        """Path of the best weights."""
        return self.path / "best.pt"

    @property
    def last(self) -> Path:
        """Path of the newest state."""
        return self.path / "last.pt"

    def has_states(self) -> bool:
        """Tell whether there is a state of the whole training, good or damaged."""
        return bool(self._states())

    def _states(self) -> list[Path]:
        """Return the states, the newest first."""
        return [path for path in (self.last, *sorted(self.path.glob("step-*.pt"), reverse=True)) if path.is_file()]

    # ------------------------------------------------------------------ reading

    def clear(self) -> None:
        """Remove what a process that was killed had written half; nobody else may write here meanwhile."""
        for path in self.path.glob(".*.tmp"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def newest(self, check: Callable[[Mapping[str, Any], Path], None]) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest state that is whole and passes `check`, with its path; None if there is no state.

        Raises:
            CheckpointError: If there are states, and none of them is good; or if the disk refuses to read one, which
                may be good.
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
        """Return how the data of a training were split that began at the state `start` of another run.

        That is told by its own states, and before it has any, by `start`, as it is kept here, or there.

        Raises:
            CheckpointError: If none of them can be read.
        """
        for path in self._states():
            with contextlib.suppress(CheckpointError):
                split = split_of(load_checkpoint(path, check=False), path)
                if split is not None:
                    return split
        path = self.start_of(start)
        return split_of(load_checkpoint(path, check=False), path)

    def start_of(self, start: Path) -> Path:
        """Return where the state `start` of another run is kept here; `start` itself if it is not."""
        kept = self.path / "start" / start.name
        return kept if kept.is_file() else start

    def keep_start(self, path: Path, epoch: int) -> None:
        """Keep a state of another run, and the best weights by it: there they go, or others take their place.

        Args:
            path: The state.
            epoch: That of the best weights; 0 if there are none.

        Raises:
            OSError: If it cannot be written.
        """
        folder = self.path / "start"
        if path.parent == folder:
            return
        make_folder(folder)
        weights = CheckpointFolder(path.parent, 1).weights_of(epoch) if epoch else None
        if weights is not None:
            stand_for(weights, folder / self.best.name)
        # The last, because it says that all is there.
        stand_for(path, folder / path.name)

    def resume_from(self, path: Path, state: Mapping[str, Any], *, best: bool) -> None:
        """Let `state`, read from `path`, be the newest one, and the weights that it has for the best be those.

        States that were passed over for it go: they are damaged, or ahead of the record.

        Args:
            path: One of the states here.
            state: Its content.
            best: Whether best weights are kept.

        Raises:
            CheckpointError: If the best weights are not there.
        """
        epoch = best_epoch(state)
        if best and epoch:
            weights = self.weights_of(epoch)
            if weights is None:
                raise CheckpointError(
                    f"{self.best}: the weights of epoch {epoch}, the best so far, are missing or damaged; put them "
                    "back, or start a new run"
                )
            if weights != self.best:
                stand_for(weights, self.best)
        elif best:
            self.best.unlink(missing_ok=True)
        older = self._states()
        if path != self.last:
            stand_for(path, self.last)
            for other in older[: older.index(path)]:
                if other != self.last:
                    other.unlink()
        self._best_epochs = {other: _kept_epoch(other) for other in older if other.exists() and other != self.last}
        self._best_epochs[self.last] = self._best_epoch = epoch
        self._last_step = state["step"]
        self._last_is_interim = is_interim(state)

    def weights_of(self, epoch: int) -> Path | None:
        """Return where the weights of `epoch`, once the best, are and can be read; None if nowhere."""
        for path in (self.best, self._superseded(epoch)):
            with contextlib.suppress(CheckpointError):
                if load_checkpoint(path).get("epoch") == epoch:
                    return path
        return None

    # ------------------------------------------------------------------ writing

    def write_best(self, weights: Mapping[str, Any]) -> None:
        """Write the best weights so far; those before stay as long as a state here has them for the best.

        Raises:
            CheckpointError: If they cannot be written; those before stay.
            OSError: The same.
        """
        if self._best_epoch and self._best_epoch in self._best_epochs.values() and self.best.exists():
            stand_for(self.best, self._superseded(self._best_epoch))
        save_checkpoint(weights, self.best)
        self._best_epoch = weights["epoch"]

    def adopt_best(self, path: Path, epoch: int) -> None:
        """Take the best weights of another training for the best so far.

        Raises:
            OSError: If they cannot be written.
        """
        make_folder(self.path)
        stand_for(path, self.best)
        self._best_epoch = epoch

    def write_last(self, state: Mapping[str, Any]) -> None:
        """Write the newest state; `keep` in all stay.

        An interim state, which only a signal caused, gives way to the next one, so that a resumed training keeps the
        states of an uninterrupted one.

        Raises:
            CheckpointError: If it cannot be written, or not be read back; the one before it stays.
            OSError: The same.
        """
        is_same_step = self._last_step == state["step"]
        if is_interim(state) and is_same_step and not self._last_is_interim:
            return
        if self._last_step is not None and not is_same_step and not self._last_is_interim:
            self._keep_last()
        save_checkpoint(state, self.last)
        self._best_epochs[self.last] = best_epoch(state)
        self._last_step, self._last_is_interim = state["step"], is_interim(state)
        if not self._was_read_back:
            # What holds something that is not loaded again is to be known now, not when it is needed.
            load_checkpoint(self.last)
            self._was_read_back = True
        self._drop_old()

    def _keep_last(self) -> None:
        """Keep the newest state under its step, before another one takes its place."""
        if self.keep > 1 and self.last.exists():
            before = self.path / f"step-{self._last_step:09d}.pt"
            stand_for(self.last, before)
            self._best_epochs[before] = self._best_epochs.get(self.last)

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
    """Return the epoch of the best weights by a state; 0 if there are none."""
    return (state.get("monitor") or {}).get("epoch", 0)


def is_interim(state: Mapping[str, Any]) -> bool:
    """Tell whether a state was saved because of a signal alone, not by the intervals of the training."""
    return bool(state.get("interim"))


def _kept_epoch(path: Path) -> int | None:
    """Return the epoch of the best weights by the state in a file; None if it cannot be read."""
    try:
        return best_epoch(load_checkpoint(path, check=False))
    except CheckpointError:
        return None


def stand_for(path: Path, alias: Path) -> None:
    """Make `alias` the same file as `path`: a hard link, or a copy where the file system has none.

    Raises:
        OSError: If it cannot be written; then `alias` stays as it was.
    """
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
