"""`RunFile`: the document `run.json` of a run, from its beginning to its end.

It tells what the run is (uid, experiment, command, host), what it has (sources, resources, artifacts), and how it
stands (status, heartbeat, result). The head of a resumed run tells of its first session, and the last of its
`sessions` of the current one (see `observers.record.resuming`).
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from observers.file.odd_entries import OddEntries
from observers.record.identity import new_uid, parent_uid
from observers.record.journal import Journal
from observers.record.json_text import MAX_LEVELS
from observers.record.redaction import hide_passwords, redact
from observers.record.schema import FORMAT, RUN

__all__ = ["SACREDS_BEAT_INTERVAL", "RunFile", "command_line", "new_entry"]

SACREDS_BEAT_INTERVAL = timedelta(seconds=10)

# Losses that are noted while a run goes on.
_LOST_BEFORE = ("lost_points", "lost_artifacts", "lost_resources")


class RunFile:
    """Writes `run.json`, as a whole, whenever something of it changes.

    Args:
        journal: The journal of the run.
        entry: What stands in it: a `new_entry`, or a `resuming.resumed_entry`.
        meta_info: Sacred's meta entry of this session.

    Attributes:
        entry: What stands in it.
        odd: Makes what the run notes plain.
    """

    def __init__(self, journal: Journal, entry: dict[str, Any], meta_info: Mapping[str, Any]) -> None:
        self.entry = {**entry, "folder": str(journal.folder.absolute())}
        self.odd = OddEntries(journal)
        self._journal = journal
        self._meta = meta_info
        self._written_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """True if the run has ended in any way."""
        return "stop_time" in self.entry

    @property
    def session(self) -> dict[str, Any] | None:
        """Entry of this session; None for a run's first session, which the head describes."""
        return self.entry["sessions"][-1] if "sessions" in self.entry else None

    def write(self) -> bool:
        """Replace the file, and return whether that is done."""
        return self._journal.write(RUN, self.odd.plain("", self.entry, num_levels=MAX_LEVELS))

    def update(self, entries: Mapping[str, Any]) -> None:
        """Take entries over from somebody else."""
        self.entry.update(entries)
        self.write()

    def follow(self) -> None:
        """Note that the folder is another one."""
        self.entry["folder"] = str(self._journal.folder.absolute())
        self.write()

    def heartbeat(self, at: datetime, result: Any) -> None:
        """Note that the run is alive, and its result.

        A new result replaces the file at once, a heartbeat alone as often as Sacred's come: `LeaseFile` has them all.
        """
        # Compared as JSON: arrays, and what else a result may hold, compare in ways of their own, or not at all.
        result = self.odd.plain("result", result)
        # A clock may be set back.
        is_due = self._written_at is None or abs(at - self._written_at) >= SACREDS_BEAT_INTERVAL
        changed = self.entry.get("result") != result
        self.entry |= {"result": result, "heartbeat": at.isoformat()}
        if changed or is_due:
            self._written_at = at
            self.write()

    def note_sources(self, pairs: list[list[str]], changed: list[str]) -> None:
        """List the sources, and which of them are not as in the sessions before; see `LabSources`."""
        self.entry["experiment"]["sources"] = pairs
        if self.session is not None:
            self.session["changed_sources"] = changed
        self.write()

    def note_environment(self, changes: dict[str, Any]) -> None:
        """Note how the environment of a resumed run differs from that of its first session."""
        session = self.session
        if session is not None and session.get("changed_environment", {}) != changes:
            session["changed_environment"] = changes
            self.write()

    def add_resource(self, filename: str, stored: str) -> None:
        """List a file that the run read, and where its content is kept."""
        lost = [name for name in self.entry.pop("lost_resources", ()) if name != filename]
        self.entry |= {"lost_resources": lost} if lost else {}
        if [filename, stored] not in self.entry["resources"]:
            self.entry["resources"].append([filename, stored])
            self.write()

    def add_artifact(self, name: str, metadata: Any, content_type: str | None, left_at: Path | None = None) -> None:
        """List a file that the run made, which is in the folder, or `left_at` where it was made."""
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
        """List where the content is that had a name until now, which another file is about to get."""
        details = self.entry.get("artifact_details", {}).pop(name, {})
        self.entry.setdefault("earlier_artifacts", []).append({"name": name, "file": file, **details})
        self.write()

    def add_once(self, key: str, value: Any) -> None:
        """List `value` under `key`, unless it stands there."""
        values = self.entry.setdefault(key, [])
        if value not in values:
            values.append(value)
            self.write()

    def note_lost_points(self, count: int) -> None:
        """Note points and media that earlier sessions had recorded and that are gone; the run cannot be COMPLETED."""
        self.entry["lost_points"] = self.entry.get("lost_points", 0) + count
        self.write()

    def note_unwritten_points(self, count: int) -> None:
        """Note points that could not be written in this session, among those that are lost."""
        if count:
            for key in ("lost_points", "unwritten_points"):
                self.entry[key] = self.entry.get(key, 0) + count

    def forget_lost_points(self, *, all_of_them: bool) -> None:
        """Forget points that could not be written; or all that are lost."""
        unwritten = self.entry.pop("unwritten_points", 0)
        left = 0 if all_of_them else self.entry.get("lost_points", 0) - unwritten
        self.entry.pop("lost_points", None)
        self.entry |= {"lost_points": left} if left else {}

    @contextlib.contextmanager
    def rewinding(self, step: int) -> Iterator[None]:
        """Say, while the record is rewound, that it is; afterwards that it was, and the step this session begins at.

        Raises:
            OSError: If that cannot be written; then nothing is to be rewound.
        """
        # Written before, so that whoever delivers the run sees that what it sent may be gone.
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
        """Note how the run ended. It is written by the next `write`: after all else, so that the rest is there by then.

        Args:
            status: Its status; one that is completed is so only if nothing is lost.
            at: When.
            lost: How much of the record was given up, or which parts of it, by its name in the file.
            **entries: What else there is to tell of it.
        """
        entries = {name: self.odd.plain(name, value) for name, value in entries.items()}
        lost = {name: amount for name, amount in lost.items() if amount}
        if (lost or any(name in self.entry for name in _LOST_BEFORE)) and status == "COMPLETED":
            status = "COMPLETED_WITH_LOSS"
        self.entry |= {"stop_time": at.isoformat(), "heartbeat": at.isoformat(), "status": status, **entries, **lost}
        if self.session is not None:
            by = {"interrupted_by": self._meta["interrupted_by"]} if "interrupted_by" in self._meta else {}
            self.entry["meta"] |= by
            self.session.update({"stop_time": at.isoformat(), "status": status, **by})


def new_entry(
    ex_info: Mapping[str, Any],
    command: str,
    host_info: Mapping[str, Any],
    at: datetime,
    meta_info: dict[str, Any],
    status: str,
) -> dict[str, Any]:
    """Return the `run.json` of a run that begins, to which its meta entry gets a uid if it has none.

    Args:
        ex_info: What Sacred tells of the experiment.
        command: What it runs.
        host_info: What Sacred tells of the machine.
        at: When it starts; with the status QUEUED, when it was queued.
        meta_info: Its meta entry, taken as it is: what comes to it later stands there, too.
        status: RUNNING or QUEUED.
    """
    meta_info.setdefault("uid", new_uid())
    parent = parent_uid(meta_info)
    return {
        "format": FORMAT,
        "uid": meta_info["uid"],
        "experiment": {**copy.deepcopy(dict(ex_info)), "sources": []},
        "command": command,
        "host": dict(host_info),
        "queue_time" if status == "QUEUED" else "start_time": at.isoformat(),
        "meta": meta_info,
        "status": status,
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
    """Return the words that this process was started with, without passwords."""
    return [hide_passwords(redact(word)) for word in sys.argv]
