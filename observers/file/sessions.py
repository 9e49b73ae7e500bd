"""Sessions of a run: opening a new record, that of a queued run, or that of an earlier session.

A session is one process that wrote the run. `sessions` in `run.json`, which a run with only one session does not have,
has for each, the current one last:

    start_time, stop_time, status   as for a run; DEAD if the process was killed
    interrupted_by                  the signal that ended it, if any
    host, command_line              where and how it was started
    step                            the training's step that it started at
    changed_sources                 names of sources whose content differs from the record's
    changed_environment             differences of git, packages, libraries, machine and determinism flags from the
                                    first session, if there are any: {"packages": {name: [was, is]}}
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.configs.map import abbreviated
from sacristan.observers.errors import ArtifactError, ResumeError
from sacristan.observers.file.run_file import Beginning, LeaseFile, RunFile, command_line, new_entry
from sacristan.observers.provenance.gathering import Gathering
from sacristan.observers.provenance.sources import imported_files, num_found
from sacristan.observers.record import run_clock
from sacristan.observers.record.copies import keep
from sacristan.observers.record.folders import RecordLock, make_run_folder
from sacristan.observers.record.identity import is_alive, last_beat, read_lease
from sacristan.observers.record.interface import Pace
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.points.intact_points import last_time
from sacristan.observers.record.schema import FORMAT, RUN, newer_format, read_json

_log = logging.getLogger(__name__)

# Names shown in one message.
_SHOWN = 10
# Entries of the machine that may change results.
_OF_MACHINE = ("python", "cpu", "gpus", "cuda", "cudnn")


class OpenRecord(NamedTuple):
    """The record of a session, open and locked by its `lease`.

    `start` is when the run started, or was queued, in UTC without a time zone; of a resumed run, its first session.
    """

    base: Path
    journal: Journal
    lease: LeaseFile
    run: RunFile
    start: datetime
    run_id: Any
    earlier_sources: Sequence[Sequence[str]] = ()


def new_session(
    beginning: Beginning, base: Path, beat_interval_s: float, states_folder: Path | None = None
) -> OpenRecord:
    """Create the folder of a new run, or a temporary one if nothing can be created below `base`, and open its record.

    `states_folder` is the run's folder of an earlier observer, which has the states of the training.
    """
    base, folder, run_id = make_run_folder(base, beginning.run_id)
    lock = RecordLock(folder)
    lock.acquire()
    journal = Journal(folder)
    entry = new_entry(beginning) | ({"states_folder": str(states_folder.absolute())} if states_folder else {})
    run = RunFile(journal, entry, beginning.meta_info)
    lease = LeaseFile(journal, lock, beat_interval_s, is_anonymous=beginning.is_anonymous)
    return OpenRecord(base, journal, lease, run, beginning.at, run_id)


def started_session(folder: Path, beginning: Beginning, base: Path, beat_interval_s: float) -> OpenRecord:
    """Open the record of a queued run, which starts now; raise ResumeError if another process has started it."""
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
    return OpenRecord(base, journal, lease, run, beginning.at, journal.folder.name)


def resumed_session(folder: Path, beginning: Beginning, base: Path, beat_interval_s: float) -> OpenRecord:
    """Open the record of an earlier session, and note the new one in it; on failure the record is unchanged."""
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
    return OpenRecord(base, journal, lease, run, start, journal.folder.name, before["experiment"]["sources"])


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


# ---------------------------------------------------------------------- the record of an earlier session

# Entries about losses, and all entries of an end, which are removed when a run is resumed.
_LOST = ("lost_bytes", "lost_media", "lost_parts", "lost_sources", "damaged_points")
_END = ("stop_time", "fail_trace", *_LOST, "result", "rewinding")


@contextlib.contextmanager
def open_for_resuming(folder: Path, base: Path) -> Iterator[tuple[dict[str, Any], Journal, RecordLock]]:
    """Yield `run.json`, journal and lock of a run to resume; raise ResumeError if it is unusable or being written."""
    if folder.resolve().parent != base.resolve():
        raise ResumeError(
            f"{folder} cannot be resumed: runs are recorded in {base}; record in {folder.parent} (-F {folder.parent})"
        )
    _read(folder)  # before a lock is created in a folder that is no run's
    lock = RecordLock(base / folder.name)
    try:
        lock.acquire()
    except BlockingIOError:
        raise ResumeError(_taken(folder, read_lease(folder))) from None
    try:
        run, lease = _read(folder), read_lease(folder, lock)
        if run.get("status") == "RUNNING" and lease is not None and is_alive(lease):
            raise ResumeError(_taken(folder, lease))
        yield run, _recalled(base / folder.name, folder), lock
    except BaseException:
        lock.release()
        raise


def _taken(folder: Path, lease: Mapping[str, Any] | None) -> str:
    writer = f"process {lease['pid']} on {lease.get('host')}" if lease and "pid" in lease else "another process"
    return f"{folder} cannot be resumed: {writer} writes, resumes or removes it; wait until it has finished, or end it"


def _read(folder: Path) -> dict[str, Any]:
    try:
        run = load_json(folder / RUN)
    except FileNotFoundError:
        raise ResumeError(f"{folder} cannot be resumed: there is no run; give a folder that has a {RUN}") from None
    except (OSError, ValueError) as error:
        raise ResumeError(f"{folder / RUN} cannot be read ({error}); the run cannot be resumed") from error
    if newer := newer_format(run):
        raise ResumeError(f"{folder} cannot be resumed: {newer}")
    has_begun = isinstance(run, dict) and (run.get("start_time") or run.get("status") == "QUEUED")
    if not has_begun or run.get("format") != FORMAT:
        raise ResumeError(f"{folder} cannot be resumed: no FileObserver of this program started it")
    return run


def _recalled(path: Path, folder: Path) -> Journal:
    try:
        journal = Journal(path)
        journal.recall()
    except PermissionError as error:
        raise ResumeError(
            f"{folder} cannot be resumed: {error.filename} cannot be written ({error.strerror}); let its user resume "
            "it, or fork it"
        ) from error
    except (OSError, ValueError) as error:
        raise ResumeError(f"{folder} cannot be resumed: its record is damaged ({error})") from error
    return journal


def session_of(run: Mapping[str, Any], lease: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of the last session of a run that has ended."""
    status, stop_time = run.get("status"), run.get("stop_time")
    if status == "RUNNING":
        beat = last_beat(lease or {})
        status, stop_time = "DEAD", beat.isoformat() if beat else run.get("heartbeat")
    host = run.get("host")
    session = {
        "start_time": run["start_time"],
        "stop_time": stop_time,
        "status": status,
        **_named(host if isinstance(host, dict) else {}),
        "command_line": run.get("command_line"),
        "step": 0,
        "changed_sources": [],
    }
    session |= {key: run[key] for key in _LOST if key in run}
    # For a later session, its own entry is right, and the head, which describes the first one, has only how it ended.
    own = (run.get("sessions") or [{}])[-1]
    session |= {key: value for key, value in own.items() if key not in ("status", "stop_time")}
    by = (run.get("meta") or {}).get("interrupted_by")
    # Copied, because Sacred's serializer does not write the same list twice.
    return copy.deepcopy(session | ({"interrupted_by": by} if by and status != "DEAD" else {}))


def time_reached(run: Mapping[str, Any], folder: Path) -> float:
    """Return the latest time in a run's record in seconds since 1970; all points must be in `metrics.bin`."""
    texts = run["start_time"], session_of(run, read_lease(folder))["stop_time"]
    times = [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in texts if text]
    return max(*times, times[0] + last_time(folder))


def resumed_entry(
    run: Mapping[str, Any], folder: Path, at: datetime, host: Mapping[str, Any], command_line: list[str]
) -> dict[str, Any]:
    """Return the `run.json` of a run that is resumed, with a new session."""
    new = {
        "start_time": at.isoformat(),
        "stop_time": None,
        "status": "RUNNING",
        **_named(host),
        "command_line": command_line,
        "step": None,
        "changed_sources": [],
    }
    earlier = [*run.get("sessions", ())[:-1], session_of(run, read_lease(folder))]
    meta = {key: value for key, value in run["meta"].items() if key not in ("interrupted_by", "refused")}
    kept = {key: value for key, value in run.items() if key not in _END}
    # A run that was killed while it was rewound has another state than before.
    revision = {"revision": run.get("revision", 0) + 1} if run.get("rewinding") else {}
    return {**kept, "status": "RUNNING", "result": None, "meta": meta, "sessions": [*earlier, new], **revision}


def _named(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return machine and user of a session."""
    return {"host": host.get("hostname"), **({"user": host["user"]} if "user" in host else {})}


class Provenance:
    """Records the provenance of one session of a run."""

    def __init__(self, journal: Journal, run: RunFile, sources: LabSources) -> None:
        self._journal = journal
        self._run = run
        self.sources = sources
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
        """Keep the sources imported so far; return whether `run.json` has changed. At the end, others are lost."""
        has_new = self.sources.look(last=last)
        if has_new:
            for _, stored in self.sources.pairs:
                self._journal.note_file(self.sources.base / stored)
            self._run.note_sources(self.sources.pairs, self.sources.changed)
            if self._run.session is not None:
                self._warn_of_changes({"sources": dict.fromkeys(self.sources.changed)})
        self._warn_of_missing(last=last)
        return has_new

    def _warn_of_missing(self, *, last: bool) -> None:
        missing = self.sources.missing
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

    def look(self, *, last: bool = False) -> None:
        """Record new determinism flags and libraries; before the `last` call, within 1 % of the time."""
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

    `pairs` has the name of each source, and where its content is kept, relative to the folder of runs `base`; of a name
    that occurs twice, the last is the newest. `changed` are names whose content differs from the `earlier` sessions,
    `missing` those whose content could not be kept so far, and why.
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
        self._num_found = 0
        self.pairs: list[list[str]] = self._earlier
        self.changed: list[str] = []
        self.missing: dict[str, str] = {}
        self._retry_pace = Pace()

    def look(self, *, last: bool = False) -> bool:
        """Keep the sources imported so far; return whether `pairs` has changed. Those that fail are retried."""
        is_retry = bool(self.missing) and (last or self._retry_pace.is_due)
        if num_found() == self._num_found and not is_retry:
            return False
        self._num_found = num_found()
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
