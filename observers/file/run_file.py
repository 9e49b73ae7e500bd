"""The whole files of a run that change while it is active: `run.json`, `info.json` and `lease.json`.

`run.json` says what the run is (uid, experiment, command, host), what it has (sources, resources, artifacts), and its
state (status, heartbeat, result). For a resumed run, its head describes the first session, and the last entry of
`sessions` the current one (see `sacristan.observers.file.sessions`).
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.observers.file.sacred_form import OddEntries
from sacristan.observers.record import run_clock
from sacristan.observers.record.folders import RecordLock
from sacristan.observers.record.identity import is_anonymous, lease, new_uid, parent_uid, user_name
from sacristan.observers.record.interface import Pace
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.json_text import MAX_LEVELS
from sacristan.observers.record.redaction import hide_passwords, redact
from sacristan.observers.record.schema import FORMAT, INFO, LEASE, RUN

SACREDS_BEAT_INTERVAL = timedelta(seconds=10)

# Losses noted while a run is active.
_LOST_BEFORE = ("lost_points", "lost_artifacts", "lost_resources")
# What entries that count losses, or name them, are called in messages.
_LOSSES = {
    "lost_points": "points",
    "damaged_points": "damaged points",
    "lost_media": "media",
    "lost_artifacts": "artifacts",
    "lost_resources": "resources",
    "lost_sources": "sources",
    "lost_parts": "parts",
}


class Beginning(NamedTuple):
    """The arguments of Sacred's event for a run that starts, or is queued, at a time in UTC without a time zone.

    Observers add the uid to `meta_info`, and remove what is meant for them. `run_id` is the id that the run should
    have, or got from an earlier observer; None for the next free one.
    """

    ex_info: dict[str, Any]
    command: str
    host_info: dict[str, Any]
    at: datetime
    config: dict[str, Any]
    meta_info: dict[str, Any]
    run_id: Any
    is_queued: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the command line."""
        return self.meta_info.get("options") or {}

    @property
    def is_anonymous(self) -> bool:
        """True if neither user nor machine is recorded."""
        return is_anonymous(self.meta_info)

    @property
    def host(self) -> dict[str, Any]:
        """The machine and the user, as they are recorded."""
        named = {"hostname": self.host_info.get("hostname"), "user": user_name()}
        recorded = {} if self.is_anonymous else {name: value for name, value in named.items() if value is not None}
        return {**{name: value for name, value in self.host_info.items() if name not in named}, **recorded}

    @property
    def beat_interval_s(self) -> float:
        """Seconds between two heartbeats, by the option, or Sacred's default."""
        option = self.options.get("--beat-interval")
        return SACREDS_BEAT_INTERVAL.total_seconds() if option is None else float(option)


class RunFile:
    """Writes `run.json` whenever something in `entry` changes: it is from `new_entry` or `sessions.resumed_entry`."""

    def __init__(self, journal: Journal, entry: dict[str, Any], meta_info: Mapping[str, Any]) -> None:
        self.entry = {**entry, "folder": str(journal.folder.absolute())}
        self.odd = OddEntries(journal)
        self._journal = journal
        self._meta = meta_info
        self._written_at = datetime.min

    @property
    def has_ended(self) -> bool:
        return "stop_time" in self.entry

    @property
    def session(self) -> dict[str, Any] | None:
        """The entry of the current session; None in the first session, which the head describes."""
        return self.entry["sessions"][-1] if "sessions" in self.entry else None

    @property
    def notes(self) -> dict[str, Any]:
        """What is noted on the run when it starts: its `display_name`, `note` and `tags`, as `init` gives them."""
        return {name: value for name, value in (self._meta.get("notes") or {}).items() if value}

    def write(self) -> bool:
        """Replace the file, and return whether it is written; if not, it is retried."""
        self._written_at = run_clock.utc_now()
        return self._journal.write(RUN, self.odd.plain("", self.entry, num_levels=MAX_LEVELS))

    def update(self, entries: Mapping[str, Any]) -> None:
        self.entry.update(entries)
        self.write()

    def follow(self) -> None:
        """Note the new folder after the old one was moved or deleted."""
        self.entry["folder"] = str(self._journal.folder.absolute())
        self.write()

    def heartbeat(self, at: datetime, result: Any) -> None:
        """Note that the run is alive: at once with a new result, otherwise as often as Sacred does."""
        # Compared as JSON: arrays and other values cannot be compared, or not with ==.
        result = self.odd.plain("result", result)
        # The clock may be set back.
        is_due = abs(at - self._written_at) >= SACREDS_BEAT_INTERVAL
        changed = self.entry.get("result") != result
        self.entry |= {"result": result, "heartbeat": at.isoformat()}
        if changed or is_due:
            self.write()

    def note_settings(self) -> None:
        """Note which settings were typed, as the meta entry of the run says now."""
        self.entry["meta"] |= {name: self._meta[name] for name in ("config_updates", "origins") if name in self._meta}
        self.write()

    def note_sources(self, pairs: list[list[str]], changed: list[str]) -> None:
        """List the sources as `[name, place of its content]`, for the next `write`; see `LabSources`."""
        self.entry["experiment"]["sources"] = pairs
        if self.session is not None:
            self.session["changed_sources"] = changed

    def note_environment(self, changes: dict[str, Any]) -> None:
        """Note how the environment of a resumed run differs from its first session; see `environment_changes`."""
        session = self.session
        if session is not None and session.get("changed_environment", {}) != changes:
            session["changed_environment"] = changes
            self.write()

    def add_resource(self, filename: str, stored: str) -> None:
        """List a file that the run read, and where its content is kept."""
        lost = [name for name in self.entry.pop("lost_resources", ()) if name != filename]
        self.entry |= {"lost_resources": lost} if lost else {}
        self.add_once("resources", [filename, stored])

    def add_artifact(self, name: str, metadata: Any, content_type: str | None, left_at: Path | None = None) -> None:
        """List a file that the run made; `left_at` is its place if it was not copied into the folder."""
        if name not in self.entry["artifacts"]:
            self.entry["artifacts"].append(name)
        if metadata or content_type:
            plain = self.odd.plain(f"metadata of the artifact {name}", metadata)
            details = {"metadata": plain, "content_type": content_type}
            self.entry.setdefault("artifact_details", {})[name] = details
        if left_at is not None:
            self.entry.setdefault("artifact_paths", {})[name] = str(left_at)
        else:
            self.entry.get("artifact_paths", {}).pop(name, None)
        self.write()

    def add_earlier_artifact(self, name: str, file: str) -> None:
        """List the previous content of an artifact's name, which another file is about to get."""
        details = self.entry.get("artifact_details", {}).pop(name, {})
        self.entry.setdefault("earlier_artifacts", []).append({"name": name, "file": file, **details})
        self.write()

    def add_once(self, key: str, value: Any) -> None:
        """Add a value to a list of the file unless it is there, and write the file; a missing list is created."""
        values = self.entry.setdefault(key, [])
        if value not in values:
            values.append(value)
            self.write()

    def note_lost_points(self, count: int) -> None:
        """Note that points and media of earlier sessions are lost; the run cannot end as COMPLETED."""
        self.entry["lost_points"] = self.entry.get("lost_points", 0) + count
        self.write()

    def note_unwritten_points(self, count: int) -> None:
        """Note points of this session that could not be written, and so count as lost, for the next `write`."""
        if count:
            for key in ("lost_points", "unwritten_points"):
                self.entry[key] = self.entry.get(key, 0) + count

    def forget_lost_points(self, *, all_of_them: bool) -> None:
        """Drop the count of lost points that the run records again: all, or only those that could not be written."""
        unwritten = self.entry.pop("unwritten_points", 0)
        left = 0 if all_of_them else self.entry.get("lost_points", 0) - unwritten
        self.entry.pop("lost_points", None)
        self.entry |= {"lost_points": left} if left else {}

    @contextlib.contextmanager
    def rewinding(self, step: int) -> Iterator[None]:
        """Mark the record while a block rewinds it, and count the revision. After an OSError nothing may be rewound."""
        # Written first, so that a delivery knows that what it sent may be gone.
        self.entry["rewinding"] = True
        if not self.write():
            raise OSError("run.json cannot be written")
        yield
        self.entry["revision"] = self.entry.get("revision", 0) + 1
        del self.entry["rewinding"]
        if self.session is not None:
            self.session["step"] = step
        self.write()

    def end(self, status: str, at: datetime, lost: Mapping[str, int | list[str]], **entries: Any) -> None:
        """Note for the last `write` how the run ended: COMPLETED_WITH_LOSS if counts or names are in `lost`."""
        entries = {name: self.odd.plain(name, value) for name, value in entries.items()}
        lost = {name: amount for name, amount in lost.items() if amount}
        if (lost or any(name in self.entry for name in _LOST_BEFORE)) and status == "COMPLETED":
            status = "COMPLETED_WITH_LOSS"
        self.entry |= {"stop_time": at.isoformat(), "heartbeat": at.isoformat(), "status": status, **entries, **lost}
        if self.session is not None:
            by = {"interrupted_by": self._meta["interrupted_by"]} if "interrupted_by" in self._meta else {}
            self.entry["meta"] |= by
            self.session.update({"stop_time": at.isoformat(), "status": status, **by})

    def losses(self) -> list[str]:
        """Return what the ended run lacks, such as `3 points`."""
        amounts = {words: self.entry.get(name, 0) for name, words in _LOSSES.items()}
        counts = {words: amount if isinstance(amount, int) else len(amount) for words, amount in amounts.items()}
        losses = [f"{count} {words}" for words, count in counts.items() if count]
        if not losses and self.entry.get("lost_bytes"):
            losses = [f"{self.entry['lost_bytes']} bytes of output"]
        return losses


def new_entry(beginning: Beginning) -> dict[str, Any]:
    """Return the `run.json` of a run that starts or is queued, with its meta entry itself, which gets a uid."""
    meta_info = beginning.meta_info
    meta_info.setdefault("uid", new_uid())
    parent = parent_uid(meta_info)
    return {
        "format": FORMAT,
        "uid": meta_info["uid"],
        "experiment": {**copy.deepcopy(dict(beginning.ex_info)), "sources": []},
        "command": beginning.command,
        "host": beginning.host,
        "queue_time" if beginning.is_queued else "start_time": beginning.at.isoformat(),
        "meta": meta_info,
        "status": "QUEUED" if beginning.is_queued else "RUNNING",
        "command_line": command_line(),
        "cwd": _working_folder(),
        "resources": [],
        "artifacts": [],
        "heartbeat": None,
        **({"parent": parent} if parent else {}),
    }


def _working_folder() -> str | None:
    """Return the working folder; None if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def command_line() -> list[str]:
    """Return the words of this process's command line, without passwords."""
    words = sys.orig_argv[1:] if sys.argv[:1] == ["-m"] else sys.argv  # which lacks a module that is looked up
    return [hide_passwords(redact(word)) for word in words]


class InfoFile:
    """Writes `info.json` when the info has changed; the experiment changes it in place, at any time."""

    def __init__(self, journal: Journal, odd: OddEntries) -> None:
        self._journal = journal
        self._odd = odd
        self._info: dict[str, Any] = {}
        self._text = "{}"
        self._pace = Pace()

    def heartbeat(self, info: dict[str, Any]) -> None:
        """Write the info if it has changed; a large one is checked rarely enough to take 1 % of the time."""
        self._info = info
        if self._pace.is_due:
            self.write()

    def write(self) -> None:
        """Write the info of the last heartbeat, as it is now, if it has changed."""
        with self._pace:
            document = self._odd.plain("info", self._info)
            text = json.dumps(document, sort_keys=True)
            if text != self._text:
                self._text = text
                self._journal.write(INFO, document)


class LeaseFile:
    """Writes `lease.json`, which says who writes the record, and when; holds the lock where locks are supported."""

    def __init__(
        self, journal: Journal, lock: RecordLock, beat_interval_s: float, *, is_anonymous: bool = False
    ) -> None:
        self._journal = journal
        self._lock = lock
        self._is_anonymous = is_anonymous
        self._beat_interval_s = beat_interval_s
        self._due = 0.0

    def renew(self) -> None:
        """Write the lease, unless the last one is fresh enough for readers: heartbeats may be more frequent."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        self._lock.hold()
        content = lease(self._beat_interval_s, locked=self._lock.is_held, is_anonymous=self._is_anonymous)
        self._journal.write(LEASE, content, durable=False)
        self._due = time.monotonic() + 0.5

    def move_to(self, lock: RecordLock) -> None:
        """Hold the lock on a new folder, after the old one was deleted; the next `write` says whether it is held."""
        self._lock.release()
        self._lock = lock

    def release(self) -> None:
        """Let other processes write the record."""
        self._lock.release()
