"""Resuming a recorded run: access to its record, and the history of its sessions.

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
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.errors import ResumeError
from sacristan.observers.record.identity import is_alive, last_beat, read_lease
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.locking import RecordLock
from sacristan.observers.record.points.intact_points import last_time
from sacristan.observers.record.schema import FORMAT, RUN, newer_format

__all__ = [
    "changed_libraries",
    "environment_changes",
    "open_for_resuming",
    "resumed_entry",
    "session_of",
    "time_reached",
]

# Entries about losses, and all entries of an end, which are removed when a run is resumed.
_LOST = ("lost_bytes", "lost_media", "lost_parts", "lost_sources", "damaged_points")
_END = ("stop_time", "fail_trace", *_LOST, "result", "rewinding")
# Texts of any length, which only the first session records.
_NOT_COMPARED = {"diff", "untracked"}
_COMPARED = ("git", "packages", "machine", "determinism")


@contextlib.contextmanager
def open_for_resuming(folder: Path, base: Path) -> Iterator[tuple[dict[str, Any], Journal, RecordLock]]:
    """Yield the content of `run.json`, the journal and the lock of a run to resume or start.

    Raises ResumeError if the record is missing, damaged, elsewhere, or of another program, or another process writes
    it. Then, and if the block raises, the lock is released.
    """
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
    known = (run.get("sessions") or [{}])[-1]
    session |= {key: value for key, value in known.items() if key not in ("status", "stop_time")}
    by = (run.get("meta") or {}).get("interrupted_by")
    # Copied, because Sacred's serializer does not write the same list twice.
    return copy.deepcopy(session | ({"interrupted_by": by} if by and status != "DEAD" else {}))


def time_reached(run: Mapping[str, Any], folder: Path) -> float:
    """Return the latest time in a run's record, which a resumed run continues from, in seconds since 1970.

    All points must be in `metrics.bin`.
    """
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


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Return how `git`, `packages`, `libraries`, `machine` and `determinism` differ, as `{part: {name: [was, is]}}`.

    Libraries are compared by their digests.
    """
    changes = {part: _differences(part, before.get(part) or {}, now.get(part) or {}) for part in _COMPARED}
    old, new = before.get("libraries") or {}, now.get("libraries") or {}
    changes["libraries"] = {
        name: [old[name].get("digest"), new[name].get("digest")] for name in changed_libraries(old, new)
    }
    return {part: pairs for part, pairs in changes.items() if pairs}


def _differences(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    # Parts of the machine and of the flags are known only once torch is imported.
    names = old.keys() | new.keys() if part in ("git", "packages") else new.keys()
    return {
        name: [old.get(name), new.get(name)] for name in sorted(names - _NOT_COMPARED) if old.get(name) != new.get(name)
    }


def changed_libraries(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return by library the files that both runs have, but with different contents.

    Files that only one of them has do not count, because the way of recording decides which files are imported.
    """
    changes: dict[str, list[str]] = {}
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name].get("files") or {}, now[name].get("files") or {}
        files = sorted(file for file in old.keys() & new.keys() if old[file] != new[file])
        changes |= {name: files} if files else {}
    return changes
