"""`FileObserver`: records a run in a folder, so that a process that is killed loses no point.

It is a subclass of Sacred's FileStorageObserver, for scripts that look for their folder with `isinstance`, and has the
same arguments and the same layout of a run's folder, with more beside it (see `observers.record.schema`). It never
raises into a run: what cannot be written is said once, tried again, and counted.
"""

from __future__ import annotations

import filecmp
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from observers.errors import ArtifactError, ResumeError
from observers.file.lease_file import LeaseFile
from observers.file.recording import Recording, folder_of, recording_of, uid_in
from observers.file.run_file import SACREDS_BEAT_INTERVAL, RunFile, command_line, new_entry
from observers.file.sacreds_interface import SacredsInterface
from observers.provenance.lab_sources import LabSources
from observers.record import run_clock
from observers.record.guarding import guarded, guarded_without_lock
from observers.record.identity import RECORD_TO_VARIABLE
from observers.record.journal import Journal
from observers.record.locking import RecordLock
from observers.record.media_entry import MediaEntry
from observers.record.numbered_folder import artifact_path, make_numbered_folder, make_run_folder
from observers.record.points.point_log import PointLog
from observers.record.points.rewinding import Position, held, read_position
from observers.record.resuming import open_for_resuming, resumed_entry, time_reached
from observers.record.safe_paths import lasting_path, shown_path
from observers.record.schema import DESTINATION, EARLIER_FOLDER, FORMAT
from observers.record.stored_files import copy_file, keep, open_file, path_below

__all__ = ["FileObserver"]

_log = logging.getLogger(__name__)

# How long the end of a run waits for git, packages and machine.
_PROVENANCE_BOUND_S = 20.0


class FileObserver(SacredsInterface):
    """Records runs below a folder, each in a numbered folder of its own.

    A run whose `meta_info["resume"]` is the folder of an earlier run below `basedir` is recorded there: in the same
    record, with one more session (see `observers.record.resuming`).

        ex.observers.append(FileObserver("my_runs"))

    Args:
        basedir: The folder of runs; made if it is not there. `SACRISTAN_RECORD_TO` in the environment stands in its
            place, and in that of the two folders below.
        resource_dir: Where contents of resources are kept, by default `basedir/_resources`.
        source_dir: Where contents of sources are kept, by default `basedir/_sources`.
        template: Taken for Sacred's sake; reports are not rendered.
        priority: Observers of higher priority hear of events first.
        copy_artifacts: Whether artifacts are copied into the run's folder, and resources that lie below `basedir` into
            `resource_dir`; else a MongoObserver delivers them from where they lie, as they are by then.
        copy_sources: Whether sources are copied into `source_dir`.

    Attributes:
        recording: The run; None before it starts.
        num_errors: Events that failed.
        beat_interval_s: Seconds between two heartbeats, told by a run of the lab before it starts; None is what Sacred
            was told on its command line, or its own ten seconds. The lease goes by it.
    """

    VERSION = FORMAT
    _is_spool = False

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
        super().__init__()
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
        self.num_errors = 0
        self.beat_interval_s: float | None = None

    def _elsewhere(self) -> str | None:
        """Return the folder to record below in the place of the one given."""
        return os.environ.get(RECORD_TO_VARIABLE) or None

    @property
    def place(self) -> str | None:
        """The folder of the run, from the working folder if it is below that; None before it starts."""
        return None if self.recording is None else shown_path(self.recording.folder)

    @property
    def is_resumed(self) -> bool:
        """True if the run continues the record of an earlier session."""
        return self.recording is not None and self.recording.is_resumed

    @property
    def is_recording(self) -> bool:
        """True if a run has started and not ended."""
        return self.recording is not None and not self.recording.run.has_ended

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run's earlier sessions; 0 for a run that was not resumed."""
        return 0.0 if self.recording is None else self.recording.elapsed_s

    def position(self) -> Position:
        """Return how much the record holds of each metric and each series of media."""
        return read_position(self._started().folder)

    def held(self, position: Position) -> Position:
        """Return the part of a position that the record has; less where points or media were lost."""
        return held(self._started().folder, position)

    # ------------------------------------------------------------------ a run begins

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
        """Write down a run that is to be started by somebody else; returns its id in this folder."""
        with self._lock:
            entry = new_entry(ex_info, command, host_info, queue_time, meta_info, "QUEUED")
            number = self._begin(entry, ex_info, queue_time, config, _id)
            self._release()
            return number

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
        """Write down a run that starts now; returns its id in this folder.

        Raises:
            ResumeError: If the run that it is to resume, or the queued one that it is to start, cannot be.
        """
        with self._lock:
            queued = self._own_of(meta_info.pop("queued", None)) or self._queued_beside(_first(meta_info))
            resume = self._own_of(meta_info.pop("resume", None)) or self._folder_beside(_first(meta_info))
            if queued is not None:
                number = self._start(Path(queued), ex_info, command, host_info, start_time, config, meta_info)
            elif resume is not None:
                number = self._resume(Path(resume), ex_info, host_info, start_time, config, meta_info)
            else:
                first = _first(meta_info)
                entry = new_entry(ex_info, command, host_info, start_time, meta_info, "RUNNING")
                entry |= {} if first is None else {"states_folder": str(first.folder.absolute())}
                number = self._begin(entry, ex_info, start_time, config, _id)
            options = meta_info.get("options") or {}
            self._started().gather_provenance(ex_info, with_reads=not options.get("--no_reads"))
            return number

    def _own_of(self, resume: str | Path | None) -> Path | None:
        """Return the record below this observer's folder of the run that is to be resumed; else what was given."""
        if resume is None:
            return None
        folder = Path(resume)
        if folder.resolve().parent != Path(self.basedir).resolve():
            uid = uid_in(folder)
            return (folder_of(Path(self.basedir), uid) if uid else None) or folder
        return folder

    def _folder_beside(self, first: Recording | None) -> Path | None:
        """Return where the run that another observer resumes is recorded below this one's folder, too."""
        if first is None or not first.is_resumed:
            return None
        folder = folder_of(Path(self.basedir), first.uid)
        if folder is None:
            _log.warning("%s holds no record of the run that is resumed; one begins there now", self.basedir)
        return folder

    def _queued_beside(self, first: Recording | None) -> Path | None:
        """Return where the queued run that another observer starts is recorded below this one's folder, too."""
        is_started = first is not None and first.was_queued and not first.is_resumed
        return folder_of(Path(self.basedir), first.uid) if first is not None and is_started else None

    def _start(
        self,
        folder: Path,
        ex_info: dict[str, Any],
        command: str,
        host_info: dict[str, Any],
        at: datetime,
        config: dict[str, Any],
        meta_info: dict[str, Any],
    ) -> str:
        """Begin the record of a run that was queued, in its folder; returns its id.

        Raises:
            ResumeError: If it is not queued any more, or somebody starts it just now.
        """
        with open_for_resuming(folder, Path(self.basedir)) as (before, journal, lock):
            if before["status"] != "QUEUED":
                raise ResumeError(f"{folder} cannot be started: got a run that is {before['status']}, expected QUEUED")
            for name, value in before["meta"].items():
                meta_info.setdefault(name, value)
            meta_info["uid"] = before["uid"]
            entry = new_entry(ex_info, command, host_info, at, meta_info, "RUNNING")
            entry |= {name: before[name] for name in ("queue_time", "parent", "states_folder") if name in before}
            lease = LeaseFile(journal, lock, self._beat_interval_s(meta_info))
            self._record(journal, lease, RunFile(journal, entry, meta_info), at, ex_info, config)
        return journal.folder.name

    def _begin(
        self, entry: dict[str, Any], ex_info: dict[str, Any], at: datetime, config: dict[str, Any], _id: Any
    ) -> Any:
        """Make the record of a new run; returns its id."""
        base, folder, number = make_run_folder(Path(self.basedir), _id)
        if base != Path(self.basedir):
            self.basedir = str(base)
            self.source_dir, self.resource_dir = base / "_sources", base / "_resources"
        lock = RecordLock(folder)
        lock.acquire()
        journal = Journal(folder)
        lease = LeaseFile(journal, lock, self._beat_interval_s(entry["meta"]))
        self._record(journal, lease, RunFile(journal, entry, entry["meta"]), at, ex_info, config)
        return number

    def _resume(
        self,
        folder: Path,
        ex_info: dict[str, Any],
        host_info: dict[str, Any],
        at: datetime,
        config: dict[str, Any],
        meta_info: dict[str, Any],
    ) -> str:
        """Go on with the record of an earlier session; returns its id.

        Raises:
            ResumeError: If that cannot be; then nothing of it is changed.
        """
        with open_for_resuming(folder, Path(self.basedir)) as (before, journal, lock):
            lease = LeaseFile(journal, lock, self._beat_interval_s(meta_info))
            run_clock.keep_above(time_reached(before, folder))
            at = max(at, run_clock.utc_now())
            run = RunFile(journal, resumed_entry(before, folder, at, host_info, command_line()), meta_info)
            if "sweep" in meta_info:  # which attempt at its trial this is
                run.entry["meta"]["sweep"] = meta_info["sweep"]
            # With both, others see that the run is taken, whatever it said before.
            lease.write()
            run.write()
            journal.clear()
        meta_info["uid"] = before["uid"]
        start = datetime.fromisoformat(before["start_time"])
        self._record(journal, lease, run, start, ex_info, config, before["experiment"]["sources"])
        return journal.folder.name

    def _beat_interval_s(self, meta_info: Mapping[str, Any]) -> float:
        if self.beat_interval_s is not None:
            return self.beat_interval_s
        given = (meta_info.get("options") or {}).get("--beat-interval")
        return SACREDS_BEAT_INTERVAL.total_seconds() if given is None else float(given)

    def _record(
        self,
        journal: Journal,
        lease: LeaseFile,
        run: RunFile,
        start: datetime,
        ex_info: dict[str, Any],
        config: dict[str, Any],
        earlier_sources: Sequence[Sequence[str]] = (),
    ) -> None:
        """Begin a session."""
        self._own()
        # The working folder may be changed, or deleted, in mid-run.
        base, self.resource_dir = lasting_path(self.basedir), lasting_path(self.resource_dir)
        store = lasting_path(self.source_dir) if self.copy_sources else None
        sources = LabSources(ex_info, store, base, earlier_sources)
        self.recording = Recording(base, journal, lease, run, start, sources, self._lock, is_spool=self._is_spool)
        self.recording.begin(config)

    # ------------------------------------------------------------------ a run goes on

    def open_points(self) -> PointLog:
        """Return the log that points go to from now on; what came is moved away without this observer, too."""
        with self._lock:
            return self._started().open_points()

    @guarded
    def heartbeat_event(self, info: dict[str, Any], captured_out: str, beat_time: datetime, result: Any) -> None:
        """Write down what is new: points, output, info, result, and that the run is alive."""
        self._started().heartbeat(info, captured_out, beat_time, result)

    @guarded
    def output_event(self, text: str) -> None:
        """Append what was printed; a run of Sacred's own gives all of it with each heartbeat."""
        self._started().add_output(text)

    @guarded
    def log_metrics(self, metrics_by_name: dict[str, dict[str, Any]], info: dict[str, Any]) -> None:
        """Append new points."""
        self._started().add_metrics(metrics_by_name)

    @guarded
    def media_event(self, entries: Sequence[MediaEntry]) -> None:
        """Write down media: images, sounds, tables and so on."""
        self._started().add_media(entries)

    @guarded
    def flush_event(self) -> None:
        """Wait until all points and media so far are on the disk."""
        if self.is_recording:
            self._started().stay_in_folder()
            self._started().journal.sync()

    def rewind_event(self, position: Position, step: int | None = None) -> Position | None:
        """Take back what was recorded beyond a position; returns the one that is reached.

        Args:
            position: See `observers.record.points.rewinding`.
            step: The training's step there, by default one above the greatest of a metric.

        Raises:
            ResumeError: If it cannot be written. It can be done again.
        """
        if self._is_copy():
            return None
        with self._lock:
            return self._started().rewind(position, step) if self.is_recording else None

    @guarded_without_lock
    def resource_event(self, filename: str) -> None:
        """Keep the content of a file that the run read."""
        recording = self._started()
        try:
            stored = None if self.copy_artifacts else path_below(recording.base, Path(filename))
            stored = stored or keep(Path(filename), self.resource_dir, recording.base)
        except OSError as error:
            with self._lock:
                recording.run.add_once("lost_resources", str(filename))
            reason = f"{self.resource_dir} cannot be written ({error.strerror})"
            raise ArtifactError(f"{filename} cannot be kept as a resource: {reason}") from error
        except ArtifactError as error:
            raise ArtifactError(f"{filename} cannot be kept as a resource: {error}") from error
        with self._lock:
            recording.journal.note_file(recording.base / stored)
            recording.run.add_resource(filename, stored)

    @guarded_without_lock
    def artifact_event(
        self, name: str, filename: str, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Do as `keep_artifact` does; Sacred would give no more events to an observer that raises."""
        self.keep_artifact(name, filename, metadata, content_type)

    def keep_artifact(
        self, name: str, filename: str | Path, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file that the run made, under `name` in the run's folder; recording goes on while it is copied.

        Raises:
            ArtifactError: If it is no file that can be read, the name is none, or the folder cannot be written.
        """
        recording, path = self._started(), Path(filename).absolute()
        with self._lock:
            recording.stay_in_folder()
        target = artifact_path(recording.folder, name)
        is_there = path.resolve() == target
        if is_there or not self.copy_artifacts:
            open_file(path).close()
        else:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._keep_earlier(name, target, path)
                copy_file(path, target)
            except OSError as error:
                raise ArtifactError(
                    f"{filename}: it cannot be kept in {recording.folder} ({error.strerror}); make room or check its "
                    "permissions, and add it again"
                ) from error
        left_at = None if is_there or self.copy_artifacts else path
        with self._lock:
            if left_at is None:
                recording.journal.note_file(target)
            recording.add_artifact(name, metadata, content_type, left_at)

    def _keep_earlier(self, name: str, target: Path, new: Path) -> None:
        """Keep the content of an artifact whose name another one gets, if a database is to have both, as Sacred's has.

        In the folder, the name is that of the last one, as with Sacred.
        """
        recording = self._started()
        if name not in recording.run.entry["artifacts"] or not (recording.folder / DESTINATION).exists():
            return
        filecmp.clear_cache()
        if not target.is_file() or filecmp.cmp(new, target, shallow=False):
            return
        folder, _ = make_numbered_folder(recording.folder / EARLIER_FOLDER)
        kept = folder / target.name
        try:
            kept.hardlink_to(target)
        except OSError:  # there are file systems without
            copy_file(target, kept)
        with self._lock:
            recording.journal.note_file(kept)
            recording.run.add_earlier_artifact(name, kept.relative_to(recording.folder).as_posix())

    # ------------------------------------------------------------------ a run ends

    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Write down that the run came to its end."""
        self._end("COMPLETED", stop_time, result=result)

    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Write down that the run was interrupted."""
        self._end(status, interrupt_time)

    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Write down that the run failed, and how."""
        self._end("FAILED", fail_time, fail_trace=fail_trace)

    def _end(self, status: str, at: datetime, **entries: Any) -> None:
        if self._is_copy() or not self.is_recording:  # the run was refused when it started
            return
        self._started().wait_for_provenance(_PROVENANCE_BOUND_S)
        try:
            self._write_end(status, at, entries)
        finally:
            self._release()

    @guarded
    def _write_end(self, status: str, at: datetime, entries: dict[str, Any]) -> None:
        self._started().end(status, at, **entries)

    def _release(self) -> None:
        """Let others write the record, which is as it should be."""
        if self.recording is not None:
            self.recording.release()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileObserver) and self.basedir == other.basedir

    __hash__ = None  # type: ignore[assignment]  # `basedir` may change


def _first(meta_info: Mapping[str, Any]) -> Recording | None:
    """Return the recording of the run that another observer began before; None if there is none."""
    return recording_of(meta_info.get("uid"))
