"""Sessions of a run: opening a new record, that of a queued run, or that of an earlier session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.observers.errors import ResumeError
from sacristan.observers.file.run_file import Beginning, LeaseFile, RunFile, command_line, new_entry
from sacristan.observers.provenance.lab_sources import LabSources
from sacristan.observers.record import run_clock
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.locking import RecordLock
from sacristan.observers.record.numbered_folder import make_run_folder
from sacristan.observers.record.resuming import open_for_resuming, resumed_entry, time_reached
from sacristan.observers.record.schema import RUN, read_json

__all__ = ["Session", "folder_of", "new_session", "resumed_session", "started_session", "uid_in"]


class Session(NamedTuple):
    """A session whose record is open, and locked.

    Attributes:
        lease: Writes the lease, and holds the lock.
        start: When the run started, or was queued, in UTC without a time zone; for a resumed run, its first session.
        earlier_sources: Sources of the earlier sessions: the name of each, and where its content is kept.
    """

    base: Path
    journal: Journal
    lease: LeaseFile
    run: RunFile
    start: datetime
    run_id: Any
    earlier_sources: Sequence[Sequence[str]] = ()

    def sources(self, experiment: Mapping[str, Any], store: Path | None, base: Path) -> LabSources:
        """Return the keeper of the session's sources; without a `store`, it keeps no copies."""
        return LabSources(experiment, store, base, self.earlier_sources)


def new_session(beginning: Beginning, base: Path, beat_interval_s: float, states_folder: Path | None = None) -> Session:
    """Create the folder of a new run, and open its record.

    If nothing can be created below `base`, the session is in a temporary folder. `states_folder` is the run's folder of
    an earlier observer, which has the states of the training.
    """
    base, folder, run_id = make_run_folder(base, beginning.run_id)
    lock = RecordLock(folder)
    lock.acquire()
    journal = Journal(folder)
    entry = new_entry(beginning) | ({"states_folder": str(states_folder.absolute())} if states_folder else {})
    run = RunFile(journal, entry, beginning.meta_info)
    lease = LeaseFile(journal, lock, beat_interval_s, is_anonymous=beginning.is_anonymous)
    return Session(base, journal, lease, run, beginning.at, run_id)


def started_session(folder: Path, beginning: Beginning, base: Path, beat_interval_s: float) -> Session:
    """Open the record of a queued run, which starts now.

    The meta entry receives what was noted when the run was queued. Raises ResumeError if the run is no longer queued,
    or another process is starting it.
    """
    with open_for_resuming(folder, base) as (before, journal, lock):
        if before["status"] != "QUEUED":
            raise ResumeError(f"{folder} cannot be started: got a run that is {before['status']}, expected QUEUED")
        meta_info = beginning.meta_info
        for name, value in before["meta"].items():
            meta_info.setdefault(name, value)
        meta_info["uid"] = before["uid"]
        entry = new_entry(beginning)
        entry |= {name: before[name] for name in ("queue_time", "parent", "states_folder") if name in before}
        queued_by = {name: value for name, value in (before.get("host") or {}).items() if name == "user"}
        entry["host"] = {name: value for name, value in entry["host"].items() if name != "user"} | queued_by
        run = RunFile(journal, entry, meta_info)
    lease = LeaseFile(journal, lock, beat_interval_s, is_anonymous=beginning.is_anonymous)
    return Session(base, journal, lease, run, beginning.at, journal.folder.name)


def resumed_session(folder: Path, beginning: Beginning, base: Path, beat_interval_s: float) -> Session:
    """Open the record of an earlier session, and note the new one in it.

    The meta entry receives the run's uid. If it cannot be resumed, the record is unchanged.
    """
    with open_for_resuming(folder, base) as (before, journal, lock):
        lease = LeaseFile(journal, lock, beat_interval_s, is_anonymous=beginning.is_anonymous)
        run_clock.keep_above(time_reached(before, folder))
        at = max(beginning.at, run_clock.utc_now())
        entry = resumed_entry(before, folder, at, beginning.host, command_line())
        run = RunFile(journal, entry, beginning.meta_info)
        if "sweep" in beginning.meta_info:  # the attempt at its trial
            run.entry["meta"]["sweep"] = beginning.meta_info["sweep"]
        # With both, others see that the run is taken, whatever it said before.
        lease.write()
        run.write()
        journal.clear()
    beginning.meta_info["uid"] = before["uid"]
    start = datetime.fromisoformat(before["start_time"])
    return Session(base, journal, lease, run, start, journal.folder.name, before["experiment"]["sources"])


def folder_of(base: Path, uid: str) -> Path | None:
    """Return the folder below `base` of the run with a uid; None if there is none."""
    return next((path.parent for path in base.glob(f"*/{RUN}") if uid_in(path.parent) == uid), None)


def uid_in(folder: Path) -> str | None:
    """Return the uid of the run in a folder; None without a readable `run.json` of this program."""
    try:
        run = read_json(folder / RUN)
    except (OSError, ValueError):
        return None
    return run.get("uid") if isinstance(run, dict) else None
