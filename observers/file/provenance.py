"""`Provenance`: records what a run is made of (sources, git, packages, machine, files read), and what changes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.configs.map import abbreviated
from sacristan.observers.errors import ArtifactError
from sacristan.observers.file.run_file import RunFile
from sacristan.observers.provenance.gathering import Gathering
from sacristan.observers.provenance.sources import imported_files
from sacristan.observers.record.guarding import Pace
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.stored_files import keep

__all__ = ["LabSources", "Provenance"]

_log = logging.getLogger(__name__)

# Names shown in one message.
_SHOWN = 10
# Entries of the machine that may change results.
_OF_MACHINE = ("python", "cpu", "gpus", "cuda", "cudnn")


class Provenance:
    """Records the provenance of one session of a run."""

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


# ---------------------------------------------------------------------- sources


class LabSources:
    """Keeps what a run imports, whenever `look` is called; without a `store`, it keeps no copies.

    `experiment` is what Sacred says about it: `base_dir`, `mainfile`, and the first `sources`. `pairs` has the name of
    each source, and where its content is kept, relative to the folder of runs `base`; of a name that occurs twice, the
    last is the newest. `changed` are names whose content differs from the `earlier` sessions, `missing` those whose
    content could not be kept so far, and why.
    """

    def __init__(
        self,
        experiment: Mapping[str, Any],
        store: Path | None,
        base: Path,
        earlier: Sequence[Sequence[str]] = (),
    ) -> None:
        self.base = base
        self._lab = Path(experiment["base_dir"])
        self._mainfile = self._lab / experiment["mainfile"] if experiment.get("mainfile") else None
        self._first = [name for name, _ in experiment["sources"]]
        self._store = store
        self._earlier: list[list[str]] = [list(pair) for pair in earlier]
        self._kept: dict[str, str] = {}
        self._num_modules = 0
        self.pairs: list[list[str]] = self._earlier
        self.changed: list[str] = []
        self.missing: dict[str, str] = {}
        self._retry_pace = Pace()

    def look(self, *, last: bool = False) -> bool:
        """Keep every source imported so far, and return whether `pairs` has changed.

        Those that cannot be kept are `missing`, and retried; the `last` call retries in any case.
        """
        is_retry = bool(self.missing) and (last or self._retry_pace.is_due)
        if len(sys.modules) == self._num_modules and not is_retry:
            return False
        self._num_modules = len(sys.modules)
        names = (*self._first, *imported_files(self._lab, self._mainfile), *self.missing)
        self.missing = {}
        with self._retry_pace:
            for name in names:
                if name not in self._kept:
                    self._keep(name)
        before, recorded = self.pairs, dict(self._earlier)
        new = sorted([name, stored] for name, stored in self._kept.items() if recorded.get(name) != stored)
        self.pairs, self.changed = [*self._earlier, *new], [name for name, _ in new if name in recorded]
        return self.pairs != before

    def _keep(self, name: str) -> None:
        path = self._lab / name
        try:
            self._kept[name] = str(path) if self._store is None else keep(path, self._store, self.base)
        except OSError as error:
            self.missing[name] = f"{error.filename or self._store}: {error.strerror}"
        except ArtifactError as error:
            self.missing[name] = str(error)
