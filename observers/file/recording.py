"""`Recording`: one run that this process records, from its first file to its last."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sacred.observers import FileStorageObserver

from sacristan.observers.errors import ResumeError
from sacristan.observers.file.run_file import Beginning, InfoFile
from sacristan.observers.file.sacred_form import plain, sacred_metrics, to_ticks
from sacristan.observers.file.sessions import LabSources, OpenRecord, Provenance
from sacristan.observers.record import run_clock, schema
from sacristan.observers.record.files import shown_path
from sacristan.observers.record.folders import RunFolder, artifact_path
from sacristan.observers.record.interface import Apart, Owned, Pace
from sacristan.observers.record.media_files import MediaEntry
from sacristan.observers.record.points import is_rewound
from sacristan.observers.record.points.rewinding import Position, missing_from, next_step, num_missing

_log = logging.getLogger(__name__)

# Series named in messages about lost points.
_SHOWN = 10

# The recordings of this process by the run's uid; for each run, in the order in which they began.
_recordings: dict[str, list[Recording]] = {}


def recordings_of(uid: str | None) -> list[Recording]:
    """Return the recordings of a run in this process, in the order in which they began."""
    return list(_recordings.get(uid or "", ()))


def recording_of(uid: str | None) -> Recording | None:
    """Return the recording of a run that began first in this process; its folder has the training's states."""
    return next(iter(recordings_of(uid)), None)


class Recording:
    """One run that this process records. Hold `lock` while calling a method, unless it says otherwise.

    `start` is when the run started, in UTC. The folder of runs of a spool (`is_spool`) belongs to this run alone, and
    is removed once the run is delivered.
    """

    def __init__(
        self, session: OpenRecord, sources: LabSources, lock: threading.RLock, *, is_spool: bool = False
    ) -> None:
        self.base = sources.base
        self.is_spool = is_spool
        self.lock = lock
        self.journal = session.journal
        self.lease = session.lease
        self.run = session.run
        self.start = session.start.replace(tzinfo=UTC)
        self.provenance = Provenance(self.journal, self.run, sources)
        self._info = InfoFile(self.journal, self.run.odd)
        self._apart = Apart()
        self._num_output = 0
        # `num_changes` of the points when the summary was written last.
        self._num_changes = -1
        self._summary_pace, self._folder_pace = Pace(), Pace()
        self._run_folder = RunFolder(self.journal.folder)
        # Artifacts whose files are in the folder.
        self._artifacts: set[str] = set()

    @property
    def uid(self) -> str:
        return self.run.entry["uid"]

    @property
    def folder(self) -> Path:
        return self.journal.folder

    @property
    def place(self) -> str:
        """The run's folder, relative to the working folder if it is below that."""
        return shown_path(self.folder)

    @property
    def loss(self) -> str:
        """What the record of an ended run lacks, in words; empty if it is whole."""
        has_end = self.run.entry["status"] != "RUNNING" and self.journal.is_written(schema.RUN)
        return " and ".join(self.run.losses() + ([] if has_end else ["its end, so that it reads as DEAD"]))

    @property
    def is_resumed(self) -> bool:
        """True if the record has an earlier session."""
        return self.run.session is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds of the earlier sessions, at least the last step of `system/...` metrics; 0 without any."""
        if not self.is_resumed:
            return 0.0
        steps = [row["last_step"] for name, row in self.journal.points.summary.items() if not is_rewound(name)]
        return max(run_clock.now() - self.start.timestamp(), max(steps, default=0) + 1.0)

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write sources, config, lease and `run.json`, in this order; warn of config values that become text."""
        _recordings.setdefault(self.uid, []).append(self)
        with self._apart.part("sources"):
            self.provenance.save_sources()
        self.journal.write(schema.CONFIG, self.run.odd.plain("config", config))
        if not self.is_resumed:
            if notes := self.run.notes:
                self.change_notes(notes)
            self.lease.write()
            self.run.write()
            return
        self.run.write()
        # From the end of an earlier session; the end of this one writes it again.
        (self.folder / schema.SACRED_METRICS).unlink(missing_ok=True)
        self.journal.end_line()
        sessions = self.run.entry["sessions"]
        at = datetime.fromisoformat(sessions[-1]["start_time"]).isoformat(" ", "seconds")
        self.journal.add_output(f"--- session {len(sessions)}, {at} UTC ---\n".encode())

    # ------------------------------------------------------------------ while a run is active

    def heartbeat(self, info: dict[str, Any], captured_out: str, at: datetime, result: Any) -> None:
        """Write what is new, and that the run is alive; `captured_out` is all output, or empty if it comes in parts."""
        if self._folder_pace.is_due:
            with self._apart.part("following the folder"), self._folder_pace:
                self.stay_in_folder()
        with self._apart.part("points"):
            self.journal.points.drain()
            self.journal.retry()
            self._write_summary()
        if len(captured_out) > self._num_output:
            self.add_output(captured_out[self._num_output :])
            self._num_output = len(captured_out)
        with self._apart.part("info"):
            self._info.heartbeat(info)
        with self._apart.part("sources"):
            if self.provenance.save_sources():
                self.run.write()
        with self._apart.part("provenance"):
            self.provenance.look()
        self.lease.renew()
        self.run.heartbeat(at, result)

    def update_config(self, config: Mapping[str, Any]) -> None:
        """Write a config that has changed since the session began, and which settings were typed."""
        self.journal.write(schema.CONFIG, self.run.odd.plain("config", config))
        self.run.note_settings()

    def change_notes(self, changes: Mapping[str, Any]) -> None:
        """Change what is noted on the run: `tags` as keys, `note`, `display_name`."""
        notes = schema.read_json_if_whole(self.folder / schema.NOTES)
        self.journal.write(schema.NOTES, {**(notes if isinstance(notes, dict) else {}), **changes})

    def add_output(self, text: str) -> None:
        """Append captured output, without lone surrogates; if it cannot be written, retry with the next heartbeat."""
        self.journal.add_output(text.encode("utf-8", "replace"))

    def _write_summary(self) -> None:
        num_changes = self.journal.points.num_changes
        if num_changes != self._num_changes and self._summary_pace.is_due:
            with self._summary_pace:
                self._num_changes = num_changes
                self.journal.write_summary()

    def stay_in_folder(self) -> None:
        """If the folder was moved or deleted, report it, and continue where it is now, or in a new one."""
        if self.run.has_ended or not self.journal.is_gone():
            return
        before = self.folder
        there = self._run_folder.moved_to(before)
        if there is not None:
            self.journal.follow(there)
            self.run.follow()
            _log.warning("%s was moved to %s during the run; recording continues there", before, there)
            return
        self._start_again(before)

    def _start_again(self, before: Path) -> None:
        """Create the record again, after its folder was deleted."""
        self.lease.release()
        try:
            folder, lock = self._run_folder.renew(self.base)
        except OSError as error:
            _log.error("%s was deleted during the run, and no other can be made (%s)", before, error.strerror)
            return
        self.lease.move_to(lock)
        lost = self.journal.recreate(folder)
        gone = sorted(name for name in self._artifacts if not (folder / name).exists())
        if gone:
            self.run.entry["lost_artifacts"] = gone
        self.lease.write()
        self.run.follow()
        without = ", ".join(f"{number} {kind}" for kind, number in {**lost, "artifacts": len(gone)}.items() if number)
        _log.error(
            "%s was deleted during the run, or files in it; recording continues in %s, %s",
            before,
            folder,
            f"without {without}" if without else "with all that was recorded before",
        )

    def add_artifact(self, name: str, metadata: Any, content_type: str | None, left_at: Path | None) -> None:
        """List a file that the run made; `left_at` is its place if it was not copied into the folder."""
        if left_at is None:
            self._artifacts.add(name)
        self.run.add_artifact(name, metadata, content_type, left_at)

    def add_metrics(self, metrics_by_name: Mapping[Any, Mapping[str, list[Any]]]) -> None:
        """Append points of a stock Sacred run: `steps`, `values` and `timestamps` by metric, with any name."""
        for name, new in metrics_by_name.items():
            ticks = to_ticks(new["timestamps"], self.start)
            self.journal.points.add_batch(name, new["steps"], new["values"], ticks)
        self._write_summary()
        if self.run.has_ended:
            # Stock Sacred waits two seconds for its last heartbeat, which may come after the end.
            self.journal.close()

    def add_media(self, entries: Sequence[MediaEntry]) -> None:
        """Write media in order, each content before its entry; retry those that a full disk rejects."""
        for entry in entries:
            self.journal.media.add(entry, entry.time - self.start.timestamp())

    def note_artifact(self, key: str, entry: dict[str, Any]) -> None:
        """List a version under `artifacts_logged` or `artifacts_used` in `run.json`, once. It takes the lock."""
        with self.lock:
            self.run.add_once(key, entry)

    def rewind(self, position: Position, step: int | None = None) -> Position:
        """Remove everything recorded beyond a position; return the record's, which has less where something was lost.

        `step` is the training's, by default one above the greatest of a metric. After a ResumeError, repeat this.
        """
        try:
            with self.run.rewinding(next_step(position) if step is None else step):
                reached = self.journal.rewind(position)
                # Points that could not be written are recorded again, or are missing from the position.
                self.run.forget_lost_points(all_of_them=not any(position.values()))
        except OSError as error:
            raise ResumeError(f"the record in {self.folder} cannot be rewound: {error}") from error
        self._note_lost_points(reached, position)
        return reached

    def _note_lost_points(self, reached: Position, wanted: Position) -> None:
        missing = list(missing_from(reached, wanted))
        for name, there, expected in missing[:_SHOWN]:
            _log.warning("%s: %s has %d points, expected %d; the others are lost", self.folder, name, there, expected)
        if missing:
            count = num_missing(reached, wanted)
            _log.error(
                "%s: %d points of %d series are lost; the run cannot end as COMPLETED", self.folder, count, len(missing)
            )
            self.run.note_lost_points(count)

    # ------------------------------------------------------------------ a run ends

    def release(self) -> None:
        """Let other processes write the record, and close its folder."""
        self._run_folder.close()
        self.lease.release()

    def end(self, status: str, at: datetime, **entries: Any) -> None:
        """Write how the run ended, and close its files."""
        try:
            lost = self._write_rest()
            self.run.end(status, at, lost, **entries)
            # Last: once a run says how it ended, everything else is on the disk.
            self.journal.sync_all()
            self.run.write()
            self.journal.close()
        finally:
            others = [each for each in recordings_of(self.uid) if each is not self]
            if others:
                _recordings[self.uid] = others
            else:
                _recordings.pop(self.uid, None)

    def _write_rest(self) -> dict[str, int | list[str]]:
        """Write everything but `run.json`, each part even if others fail; return the lost parts."""
        part = self._apart.part
        with part("following the folder"):
            self.stay_in_folder()
        with part("provenance"):
            self.provenance.look(last=True)
        with part("info"):
            self._info.write()
        with part("sources"):
            self.provenance.save_sources(last=True)
        lost: dict[str, int | list[str]] = {"lost_sources": sorted(self.provenance.sources.missing)}
        with part("points"):
            self.journal.give_up()
            self.run.note_unwritten_points(self.journal.points.num_lost_points)
            if self.is_resumed:
                # Points of earlier sessions that the disk has damaged since, and that were not rewound.
                lost["damaged_points"] = self.journal.points.num_damaged()
            self.journal.write_summary(durable=True)
        with part(schema.SACRED_METRICS):
            if 0 < sum(row["count"] for row in self.journal.points.summary.values()) <= schema.MAX_SACRED_POINTS:
                self.journal.write(schema.SACRED_METRICS, sacred_metrics(self.folder, self.start))
        lost |= {"lost_bytes": self.journal.num_lost_bytes, "lost_media": self.journal.media.num_lost}
        return lost | {"lost_parts": sorted(self._apart.failed)}


class BeginningObserver(Owned):
    """Base of observers that handle both ways in which a run begins in one method."""

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an observer, like the constructor; for scripts written for Sacred's observers."""
        return cls(*args, **kwargs)

    def queued_event(
        self,
        ex_info: dict[str, Any],
        command: str,
        host_info: dict[str, Any],
        queue_time: datetime,
        config: dict[str, Any],
        meta_info: dict[str, Any],
        _id: Any,
    ) -> Any:
        """Handle Sacred's event for a run that another process will start; see `begin_run`."""
        return self.begin_run(Beginning(ex_info, command, host_info, queue_time, config, meta_info, _id, True))

    def started_event(
        self,
        ex_info: dict[str, Any],
        command: str,
        host_info: dict[str, Any],
        start_time: datetime,
        config: dict[str, Any],
        meta_info: dict[str, Any],
        _id: Any,
    ) -> Any:
        """Handle Sacred's event for a run that starts now; see `begin_run`."""
        return self.begin_run(Beginning(ex_info, command, host_info, start_time, config, meta_info, _id))

    @abstractmethod
    def begin_run(self, beginning: Beginning) -> Any:
        """Start to record a run, or record that it is queued; return its id in the observer's store."""


class SacredsInterface(BeginningObserver, FileStorageObserver):
    """Has the methods and attributes of Sacred's observer, all overridden, and passes `isinstance`."""

    VERSION = schema.FORMAT

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self._lock = threading.RLock()

    create_from = BeginningObserver.create

    @property
    def dir(self) -> str | None:  # type: ignore[override]  # Sacred assigns it
        """The run's folder as text, relative to the working folder if `basedir` is; None before the run starts."""
        if self.recording is None:
            return None
        return str(self.recording.folder) if Path(self.basedir).is_absolute() else self.recording.place

    @property
    def run_entry(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The content of `run.json`, which scripts change and pass to `save_json`; None before the run starts."""
        return None if self.recording is None else self.recording.run.entry

    def save_file(self, filename: str | Path, target_name: str | None = None) -> None:
        """Copy a file into the run's folder, as an artifact, by default under its own name."""
        self.keep_artifact(target_name or Path(filename).name, filename)

    def save_json(self, obj: Mapping[str, Any], filename: str) -> None:
        """Write a JSON file into the run's folder, or merge it into `run_entry`; reject other files of the record."""
        if self._is_copy():
            return
        with self._lock:
            recording = self._started()
            if filename == schema.RUN:
                recording.run.update(obj)
            else:
                target = artifact_path(recording.folder, filename)
                recording.journal.write(target.relative_to(recording.folder.resolve()).as_posix(), plain(obj))

    def _started(self) -> Recording:
        if self.recording is None:
            raise RuntimeError("this observer has no run yet: started_event comes first")
        return self.recording

    @abstractmethod
    def keep_artifact(
        self, name: str, filename: str | Path, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file that the run made; recording continues while it is copied."""
