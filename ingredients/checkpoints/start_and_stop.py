"""The state that a training begins at, and its end after a whole step once a signal asked for it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sacristan.ingredients.checkpoints.files import check_weights, complete_config, load_checkpoint, split_of
from sacristan.ingredients.checkpoints.folder import CheckpointFolder, best_epoch
from sacristan.ingredients.checkpoints.training_state import check_whole
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.ranks.group import ALONE

__all__ = ["LOADER_ERRORS", "SignalStop", "StateFinder", "data_fingerprint"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
# Errors of a loader whose workers were ended from outside: it says so, or their shared memory is gone.
LOADER_ERRORS = (RuntimeError, OSError, EOFError)


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

        States whose points are all in the record come first; if all lack some, the newest good one counts. Raises
        `CheckpointError` if there are states, but none can be read and fits.
        """
        self.files.clear()
        lacking = []

        def check_with_record(state: Mapping[str, Any], path: Path) -> None:
            self._check_own(state, path)
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
        return self.files.newest(self._check_own)

    def other_state(self, path: Path) -> dict[str, Any]:
        """Return the state of another run; reject one that lacks a part, or whose data were split differently."""
        state = load_checkpoint(path)
        complete_config(state, self.config, self.legacy_defaults)
        check_whole(state, self.parts, path)
        self._check_split(state, path)
        return state

    def keep_other(self, path: Path, state: Mapping[str, Any], *, best: bool) -> bool:
        """Copy the state of another run and, with `best`, its best weights into this run.

        Returns False if the best weights are needed and missing; the best value then starts over.
        """
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

    def _num_missing(self, state: Mapping[str, Any]) -> int:
        position = state.get("position")
        if self.record is None or position is None or self.is_followed:
            return 0
        return self.record.num_missing(position)

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
        """Yield items; stop if getting one fails after a signal asked the run to end.

        A signal to all processes of a job ends the workers of a loader, too.
        """
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
