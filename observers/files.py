"""`FileObserver`: records a run in a folder, so that a killed process loses at most the last beat.

It takes the place of Sacred's FileStorageObserver: the same arguments, the same layout of a run's folder, and more
beside it (see `observers.schema`). It never raises into a run: what cannot be written is said once, tried again, and
counted.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sacred.observers import RunObserver
from sacred.serializer import flatten

from observers.continuing import ResumeError, continued_entry, environment_changes, open_for_continuing
from observers.destination import redact
from observers.gathering import Gathering
from observers.guarding import guarded
from observers.identity import RECORD_TO_VARIABLE, lease, new_uid, parent_uid
from observers.journal import Journal
from observers.lab_sources import LabSources
from observers.media import MediaEntry
from observers.numbered_folder import make_numbered_folder
from observers.rewinding import Position, is_rewound, missing_from, next_step
from observers.sacred_form import sacred_metrics
from observers.schema import (
    CONFIG,
    FORMAT,
    INFO,
    LEASE,
    MAX_SACRED_POINTS,
    MEDIA,
    NOTES,
    OUTPUT,
    POINTS,
    RUN,
    SACRED_METRICS,
    SUMMARY,
    TICKS_PER_S,
)
from observers.stored_files import copy_file, keep

__all__ = ["FileObserver", "journal_of"]

_log = logging.getLogger(__name__)

PROVENANCE = "provenance.json"

# The observer that writes each run of this process down, by uid: what else delivers a run reads its journal.
_writers: dict[str, FileObserver] = {}

_OWN_FILES = {RUN, CONFIG, INFO, OUTPUT, SACRED_METRICS, PROVENANCE, LEASE, SUMMARY, POINTS, MEDIA, NOTES}


def journal_of(uid: str | None) -> FileObserver | None:
    """Return the observer that writes the run `uid` down in this process, if there is one."""
    return _writers.get(uid)


class FileObserver(RunObserver):
    """Records runs below a folder, each in a numbered folder of its own.

    A run whose `meta_info["resume"]` is the folder of an earlier run below `basedir` goes on there: the same record,
    with one more session (see `observers.continuing`).

    Args:
        basedir: Where to; made if it is not there. `SACRISTAN_RECORD_TO` in the environment stands in its place, and of
            the two folders below.
        resource_dir: Where contents of resources are kept, by default `basedir/_resources`.
        source_dir: Where contents of sources are kept, by default `basedir/_sources`.
        template: Taken for Sacred's sake; reports are not rendered.
        priority: Observers of higher priority hear of events first.
        copy_artifacts: Whether artifacts are copied into the run's folder.
        copy_sources: Whether sources are copied into `source_dir`.

    Attributes:
        dir: The folder of the run, as text; None before it starts.
        run_entry: What stands in `run.json`.
        num_errors: Events that failed.
        is_continued: Whether the run goes on in the record of an earlier session.
    """

    VERSION = FORMAT

    def __init__(
        self,
        basedir: str | Path,
        resource_dir: str | Path | None = None,
        source_dir: str | Path | None = None,
        template: str | Path | None = None,
        priority: int = 40,
        copy_artifacts: bool = True,
        copy_sources: bool = True,
    ) -> None:
        elsewhere = self._elsewhere()
        if elsewhere is not None:
            basedir, resource_dir, source_dir = elsewhere, None, None
        self.basedir = str(basedir)
        self.resource_dir = Path(resource_dir or Path(basedir) / "_resources")
        self.source_dir = Path(source_dir or Path(basedir) / "_sources")
        self.template = template
        self.priority = priority
        self.copy_artifacts = copy_artifacts
        self.copy_sources = copy_sources
        self.dir: str | None = None
        self.run_entry: dict[str, Any] = {}
        self.journal: Journal | None = None
        self.num_errors = 0
        self.is_continued = False
        self._lock = threading.RLock()
        self._start: datetime | None = None
        self._output_done = 0
        self._info = "{}"
        self._info_due = 0.0
        self._live_info: dict = {}
        self._meta: dict[str, Any] = {}
        self._sources: LabSources | None = None
        self._gathering: Gathering | None = None
        self._is_first_gathered = False

    def _elsewhere(self) -> str | None:
        """Return the folder to record below in the place of the one given."""
        return os.environ.get(RECORD_TO_VARIABLE) or None

    # ------------------------------------------------------------------ a run begins

    def queued_event(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        queue_time: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
    ) -> Any:
        """Write down a run that is to be started by somebody else."""
        with self._lock:
            return self._begin(ex_info, command, host_info, queue_time, config, meta_info, _id, "QUEUED")

    def started_event(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        start_time: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
    ) -> Any:
        """Write down a run that starts now; returns its id in this folder."""
        with self._lock:
            resume = meta_info.pop("resume", None)
            if resume is not None:
                number = self._continue(Path(resume), ex_info, host_info, start_time, config, meta_info)
            else:
                number = self._begin(ex_info, command, host_info, start_time, config, meta_info, _id, "RUNNING")
            self._gathering = Gathering(self._write_provenance, self._lock, ex_info["base_dir"])
            return number

    def _begin(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        at: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
        status: str,
    ) -> Any:
        number = self._make_folder(_id)
        self.journal = Journal(Path(self.dir))
        self._start = at.replace(tzinfo=UTC)
        self.is_continued = False
        meta_info.setdefault("uid", new_uid())
        self._forget_session(ex_info, meta_info)
        time_key = "start_time" if status == "RUNNING" else "queue_time"
        self.run_entry = {
            "format": FORMAT,
            "uid": meta_info["uid"],
            "experiment": copy.deepcopy(dict(ex_info)),
            "command": command,
            "host": dict(host_info),
            time_key: at.isoformat(),
            "meta": meta_info,
            "status": status,
            "command_line": _command_line(),
            "cwd": str(Path.cwd()),
            "folder": str(Path(self.dir).absolute()),
            "resources": [],
            "artifacts": [],
            "heartbeat": None,
        }
        parent = parent_uid(meta_info)
        self.run_entry |= {"parent": parent} if parent else {}
        self.run_entry["experiment"]["sources"] = []
        self._save_sources()
        self.journal.write(CONFIG, _plain(config))
        self._write_lease()
        self._write_run()
        return number

    def _forget_session(self, ex_info: dict, meta_info: dict, sources: Sequence = ()) -> None:
        """Begin with what counts for one session."""
        self._output_done, self._info, self._live_info = 0, "{}", {}
        self._meta, self._is_first_gathered = meta_info, False
        self._sources = LabSources(ex_info, self.source_dir if self.copy_sources else None, self.basedir, sources)
        _writers[meta_info["uid"]] = self

    def _continue(
        self, folder: Path, ex_info: dict, host_info: dict, at: datetime, config: dict, meta_info: dict
    ) -> str:
        """Go on with the record of an earlier session; returns its id.

        Raises:
            ResumeError: If that cannot be; then nothing of it is changed.
        """
        with open_for_continuing(folder, Path(self.basedir)) as run:
            try:
                journal = Journal(Path(self.basedir) / folder.name)
                journal.recall()
            except (OSError, ValueError) as error:
                raise ResumeError(f"{folder} cannot be continued: its record is damaged ({error})") from error
            self.dir, self.journal, self.is_continued = str(journal.folder), journal, True
            self.run_entry = continued_entry(run, folder, at, host_info, _command_line())
            # From here on others see that the run is taken.
            self._write_lease()
        self._start = datetime.fromisoformat(run["start_time"]).replace(tzinfo=UTC)
        meta_info["uid"] = run["uid"]
        self._forget_session(ex_info, meta_info, run["experiment"]["sources"])
        self.run_entry["folder"] = str(Path(self.dir).absolute())
        self._write_run()
        self._save_sources()
        # What the end of an earlier session wrote is made anew at the end of this one.
        (journal.folder / SACRED_METRICS).unlink(missing_ok=True)
        self.journal.write(CONFIG, _plain(config))
        self.journal.end_line()
        line = f"--- session {len(self.run_entry['sessions'])}, {at.isoformat(' ', 'seconds')} UTC ---\n"
        self.journal.add_output(line.encode())
        return journal.folder.name

    def _write_provenance(self, found: dict[str, Any]) -> None:
        """Write down what the run was made of; of a later session, what differs from the first one."""
        try:
            first = json.loads((Path(self.dir) / PROVENANCE).read_bytes()) if self.is_continued else None
        except (OSError, ValueError):
            first = None
        if first is None or self._is_first_gathered:
            self._is_first_gathered = True
            self.journal.write(PROVENANCE, found)
            return
        session = self.run_entry["sessions"][-1]
        changes = environment_changes(first, found)
        if session.get("changed_environment", {}) != changes:
            session["changed_environment"] = changes
            self._write_run()

    @property
    def elapsed_s(self) -> float:
        """Seconds that a continued run has behind it: no sample of the machine was taken at a later step."""
        if not self.is_continued:
            return 0.0
        steps = [row["last_step"] for name, row in self.journal.summary.items() if not is_rewound(name)]
        return max((datetime.now(UTC) - self._start).total_seconds(), max(steps, default=0) + 1.0)

    def _make_folder(self, _id: Any) -> Any:
        """Make the run's folder, and return its id."""
        try:
            folder, number = make_numbered_folder(Path(self.basedir), _id)
        except OSError as error:
            # Somewhere else is better than nowhere, and nothing of this may stop the run.
            wanted, elsewhere = self.basedir, Path(tempfile.mkdtemp(prefix="sacristan-"))
            self.basedir = str(elsewhere)
            self.source_dir, self.resource_dir = elsewhere / "_sources", elsewhere / "_resources"
            folder, number = make_numbered_folder(elsewhere)
            number = number if _id is None else _id
            _log.error("%s cannot be written (%s); this run is recorded in %s", wanted, error.strerror, folder)
        self.dir = str(folder)
        return number

    def _save_sources(self) -> None:
        """Keep every source of the lab that is imported by now; modules imported later come with later beats."""
        if self._sources.look():
            self.run_entry["experiment"]["sources"] = self._sources.pairs
            if self.is_continued:
                self.run_entry["sessions"][-1]["changed_sources"] = self._sources.changed
            self._write_run()

    # ------------------------------------------------------------------ a run goes on

    @guarded
    def heartbeat_event(self, info: dict, captured_out: str, beat_time: datetime, result: Any) -> None:
        """Write down what is new: output, info, result, and that the run is alive."""
        self.journal.flush()
        self._add_output(captured_out)
        self._live_info = info
        if time.monotonic() >= self._info_due:
            self._write_info(info)
        self._save_sources()
        if self._gathering is not None:
            self._gathering.look()
        changed = self.run_entry.get("result") != result
        self.run_entry["result"] = _plain(result)
        self.run_entry["heartbeat"] = beat_time.isoformat()
        self._write_lease()
        if changed:
            self._write_run()

    def _add_output(self, captured_out: str) -> None:
        if len(captured_out) > self._output_done:
            self.journal.add_output(captured_out[self._output_done :].encode("utf-8", "replace"))
            self._output_done = len(captured_out)

    def _write_info(self, info: dict) -> None:
        """Write the info if it changed; a large one is looked at so rarely that it takes 5 % of the time at most."""
        began = time.monotonic()
        plain = _plain(info)
        text = json.dumps(plain, sort_keys=True)
        if text != self._info:
            self._info = text
            self.journal.write(INFO, plain)
        ended = time.monotonic()
        self._info_due = ended + 19 * (ended - began)

    def _write_lease(self) -> None:
        self.journal.write(LEASE, lease(1.0), durable=False)

    def _write_run(self) -> bool:
        return self.journal.write(RUN, _plain(self.run_entry))

    @guarded
    def log_metrics(self, metrics_by_name: dict[str, dict], info: dict) -> None:
        """Append new points."""
        for name, new in metrics_by_name.items():
            self.journal.add_points(name, new["steps"], new["values"], self._ticks(new["timestamps"]))
        if metrics_by_name:
            self.journal.write_summary()
        if "stop_time" in self.run_entry:
            # Sacred's own run waits two seconds for its last beat, which may come after the end.
            self.journal.close()

    @guarded
    def media_event(self, entries: list[MediaEntry]) -> None:
        """Write down images, figures, histograms, texts and tables."""
        for entry in entries:
            self.journal.media.add(entry, entry.time - self._start.timestamp())

    @guarded
    def flush_event(self) -> None:
        """Wait until all points and media so far are on the disk."""
        if self.is_recording:
            self.journal.sync()

    def rewind_event(self, position: Position, step: int | None = None) -> Position | None:
        """Take back what was recorded beyond a position; returns the one that is reached.

        Args:
            position: See `observers.rewinding`.
            step: The training's step there, by default one above the greatest of a metric.

        Raises:
            ResumeError: If it cannot be written. It can be done again.
        """
        with self._lock:
            if not self.is_recording:
                return None
            try:
                # Said before, so that whoever delivers the run sees that what it sent may not be there any more.
                self.run_entry["rewinding"] = True
                if not self._write_run():
                    raise OSError("run.json cannot be written")
                reached = self.journal.rewind(position)
            except OSError as error:
                raise ResumeError(f"the record in {self.dir} cannot be taken back to where it was: {error}") from error
            self.run_entry["revision"] = self.run_entry.get("revision", 0) + 1
            del self.run_entry["rewinding"]
            if self.is_continued:
                self.run_entry["sessions"][-1]["step"] = next_step(position) if step is None else step
            self._write_run()
            for name, there, expected in missing_from(reached, position):
                _log.warning(
                    "%s: %s is there %d times, expected %d; the others are lost", self.dir, name, there, expected
                )
            return reached

    def _ticks(self, timestamps: list[datetime]) -> np.ndarray:
        start = self._start.replace(tzinfo=None)
        seconds = np.array([(at - start).total_seconds() for at in timestamps])
        return np.maximum(seconds * TICKS_PER_S, 0).astype(np.uint32)

    @guarded
    def resource_event(self, filename: str) -> None:
        """Keep the content of a file that the run read."""
        stored = keep(Path(filename), self.resource_dir, self.basedir)
        if [filename, stored] not in self.run_entry["resources"]:
            self.run_entry["resources"].append([filename, stored])
            self._write_run()

    @guarded
    def artifact_event(
        self, name: str, filename: str, metadata: dict | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file that the run made, under `name` in the run's folder."""
        target = (Path(self.dir) / name).resolve()
        if not target.is_relative_to(Path(self.dir).resolve()) or target.name in _OWN_FILES:
            raise ValueError(
                f"artifact name: got {name!r}, expected a name within the run's folder, none of its own files"
            )
        if self.copy_artifacts and Path(filename).resolve() != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(Path(filename), target)
        if name not in self.run_entry["artifacts"]:
            self.run_entry["artifacts"].append(name)
        if metadata or content_type:
            details = {"metadata": _plain(metadata), "content_type": content_type}
            self.run_entry.setdefault("artifact_details", {})[name] = details
        self._write_run()

    @property
    def is_recording(self) -> bool:
        """Whether a run has started and not ended."""
        return self.journal is not None and "stop_time" not in self.run_entry

    def note_artifact(self, key: str, entry: dict[str, Any]) -> None:
        """List under `key` of `run.json`, once, a version of an artifact that the run logged or used."""
        with self._lock:
            entries = self.run_entry.setdefault(key, [])
            if entry not in entries:
                entries.append(entry)
                self._write_run()

    # ------------------------------------------------------------------ a run ends

    @guarded
    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Write down that the run came to its end."""
        self._end("COMPLETED", stop_time, result=_plain(result))

    @guarded
    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Write down that the run was interrupted."""
        self._end(status, interrupt_time)

    @guarded
    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Write down that the run failed, and how."""
        self._end("FAILED", fail_time, fail_trace=fail_trace)

    def _end(self, status: str, at: datetime, **entries: Any) -> None:
        if self.journal is None:  # it was refused when it started
            return
        if self._gathering is not None:
            self._lock.release()
            self._gathering.join(20)
            self._lock.acquire()
            self._gathering.look()
        self.journal.flush()
        self._write_info(self._live_info)
        self.journal.media.give_up()
        self._save_sources()
        lost, lost_media = self.journal.num_lost_bytes, self.journal.media.num_lost
        if (lost or lost_media) and status == "COMPLETED":
            status = "COMPLETED_WITH_LOSS"
        self.run_entry |= {"stop_time": at.isoformat(), "heartbeat": at.isoformat(), "status": status, **entries}
        self.run_entry |= {"lost_bytes": lost} if lost else {}
        self.run_entry |= {"lost_media": lost_media} if lost_media else {}
        if self.is_continued:
            by = {"interrupted_by": self._meta["interrupted_by"]} if "interrupted_by" in self._meta else {}
            self.run_entry["meta"] |= by
            self.run_entry["sessions"][-1] |= {"stop_time": at.isoformat(), "status": status, **by}
        self.journal.write_summary()
        if 0 < sum(row["count"] for row in self.journal.summary.values()) <= MAX_SACRED_POINTS:
            self.journal.write(SACRED_METRICS, sacred_metrics(Path(self.dir), self._start))
        self._write_run()
        self.journal.close()
        _writers.pop(self.run_entry["uid"], None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileObserver) and self.basedir == other.basedir

    __hash__ = None


def _command_line() -> list[str]:
    return [redact(word) for word in sys.argv]


def _plain(value: Any) -> Any:
    """Return `value` as what JSON holds, by Sacred's serializer; text where that fails."""
    try:
        return flatten(value)
    except Exception:
        return json.loads(json.dumps(value, default=str))
