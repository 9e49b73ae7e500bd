"""`Origins`: records what an active run is made of (sources, git, packages, machine, files read), and what changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sacristan.configs.map import abbreviated
from sacristan.observers.file.run_file import RunFile
from sacristan.observers.provenance.gathering import Gathering
from sacristan.observers.provenance.lab_sources import LabSources
from sacristan.observers.record.guarding import Pace
from sacristan.observers.record.journal import Journal

__all__ = ["Origins"]

_log = logging.getLogger(__name__)

# Names shown in one message.
_SHOWN = 10
# Entries of the machine that may change results.
_OF_MACHINE = ("python", "cpu", "gpus", "cuda", "cudnn")


class Origins:
    """Records the origins of one session of a run."""

    def __init__(self, journal: Journal, run: RunFile, sources: LabSources) -> None:
        self._journal = journal
        self._run = run
        self._sources = sources
        self._has_warned_of_missing = False
        # Changes since the first session that were reported: the part and the name.
        self._reported: set[tuple[str, str]] = set()
        self._gathering: Gathering | None = None
        self._pace = Pace()

    def gather(self, lock: Any, experiment: Mapping[str, Any], *, with_reads: bool) -> None:
        """Start to gather git, packages, machine, and the files that the run reads."""
        note_changes = None if self._run.session is None else self._note_environment
        self._gathering = Gathering(self._journal, lock, experiment, note_changes, with_reads=with_reads)

    def save_sources(self, *, last: bool = False) -> bool:
        """Keep every source imported so far, and return whether `run.json` has changed and must be written.

        Sources imported later come with later heartbeats. At the end (`last`), sources that cannot be kept are lost.
        """
        has_new = self._sources.look(last=last)
        if has_new:
            for _, stored in self._sources.pairs:
                self._journal.note_file(self._sources.base / stored)
            self._run.note_sources(self._sources.pairs, self._sources.changed)
            if self._run.session is not None:
                self._warn_of_changes({"sources": dict.fromkeys(self._sources.changed)})
        self._warn_of_missing(last=last)
        return has_new

    def _warn_of_missing(self, *, last: bool) -> None:
        missing = self._sources.missing
        if missing and (last or not self._has_warned_of_missing):
            self._has_warned_of_missing = True
            _log.log(
                logging.ERROR if last else logging.WARNING,
                "%s: %d sources are not stored, %s: %s%s",
                self._journal.folder,
                len(missing),
                "and are lost" if last else "which is retried with each heartbeat",
                ", ".join(list(missing)[:_SHOWN]),
                f" ({next(iter(missing.values()))}; make room, or get the right to write there)",
            )

    @property
    def missing_sources(self) -> list[str]:
        """Names of the sources that could not be kept, sorted."""
        return sorted(self._sources.missing)

    def look(self, *, last: bool = False) -> None:
        """Record determinism flags and libraries that have changed.

        Before the `last` call, this takes at most 1 % of the time.
        """
        if self._gathering is not None and (last or self._pace.is_due):
            with self._pace:
                self._gathering.look()

    def wait(self, timeout_s: float) -> None:
        """Wait until everything is gathered; do not call it under the lock, which gathering takes."""
        if self._gathering is not None:
            self._gathering.join(timeout_s)

    def _note_environment(self, changes: dict[str, dict[str, list[Any]]]) -> None:
        self._run.note_environment(changes)
        machine = {name: pair for name, pair in changes.get("machine", {}).items() if name in _OF_MACHINE}
        self._warn_of_changes({**changes, "git": {}, "machine": machine})

    def _warn_of_changes(self, changes: Mapping[str, Mapping[str, Sequence[Any] | None]]) -> None:
        """Warn once of each difference from the run's first session that may change results."""
        for part, pairs in changes.items():
            new = [name for name in pairs if (part, name) not in self._reported]
            self._reported |= {(part, name) for name in new}
            if new and "states_folder" not in self._run.entry:  # else the observer of that folder warns
                texts = [
                    name if (pair := pairs[name]) is None else f"{name} was {pair[0]}, is {pair[1]}" for name in new
                ]
                _log.warning(
                    "%s is resumed, but not as it began, so it may end differently: %s: %s",
                    self._journal.folder,
                    part,
                    abbreviated(texts, _SHOWN, ", and {} more"),
                )
