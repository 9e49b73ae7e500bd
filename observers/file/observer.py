"""`FileObserver`: records a run in a folder, so that a killed process loses no point.

It is a subclass of Sacred's FileStorageObserver, for scripts that find their folder with `isinstance`. It has the same
arguments and the same layout of a run's folder, with additional files (see `sacristan.observers.record.schema`). It
never raises into a run: data that cannot be written is reported once, retried, and counted if it is lost.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sacred.observers import FileStorageObserver

from sacristan.observers.errors import ArtifactError
from sacristan.observers.file import sessions
from sacristan.observers.file.recording import Recording, SacredsInterface, recording_of
from sacristan.observers.file.run_file import Beginning
from sacristan.observers.record.copies import copy_file, keep, open_file, path_below
from sacristan.observers.record.files import file_name, lasting_path
from sacristan.observers.record.folders import artifact_path, make_numbered_folder
from sacristan.observers.record.identity import RECORD_TO_VARIABLE
from sacristan.observers.record.interface import guarded, guarded_without_lock
from sacristan.observers.record.media_files import MediaEntry
from sacristan.observers.record.points.point_log import PointLog
from sacristan.observers.record.points.rewinding import Position, held, read_position
from sacristan.observers.record.schema import DESTINATION, EARLIER_FOLDER

_log = logging.getLogger(__name__)

# How long the end of a run waits for git, packages and machine.
_PROVENANCE_BOUND_S = 20.0


class FileObserver(SacredsInterface):
    """Records runs in a folder, each in a numbered folder of its own.

    If `meta_info["resume"]` is the folder of an earlier run in `basedir`, the run continues that record, with one more
    session (see `sacristan.observers.file.sessions`).

        ex.observers.append(FileObserver("my_runs"))

    Args:
        basedir: The folder of runs; created if necessary. The environment variable `SACRISTAN_RECORD_TO` replaces it,
            together with the next two folders.
        resource_dir: Where contents of resources are kept; by default `basedir/_resources`.
        source_dir: Where contents of sources are kept; by default `basedir/_sources`.
        template: Accepted for compatibility with Sacred; reports are not rendered.
        priority: Observers with a higher priority receive events first.
        copy_artifacts: Whether to copy artifacts into the run's folder, and resources below `basedir` into
            `resource_dir`. Otherwise a MongoObserver reads them where they are, with the content they have then.
        copy_sources: Whether to copy sources into `source_dir`.

    Attributes:
        recording: The recording of the run; None before it starts.
        num_errors: Events that failed.
        beat_interval_s: Seconds between two heartbeats, which the lease depends on. A run of the lab sets it before it
            starts; if it is None, Sacred's option `--beat-interval`, or its default of 10 seconds, applies.
    """

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
        """Return the folder that replaces `basedir`, if any."""
        return os.environ.get(RECORD_TO_VARIABLE) or None

    @property
    def place(self) -> str | None:
        """The run's folder, relative to the working folder if it is below that; None before the run starts."""
        return None if self.recording is None else self.recording.place

    @property
    def loss(self) -> str:
        """What the record of an ended run lacks, in words; empty if it is whole, or nothing has started."""
        return "" if self.recording is None else self.recording.loss

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
        """Seconds of the run's earlier sessions; 0 if it was not resumed."""
        return 0.0 if self.recording is None else self.recording.elapsed_s

    def position(self) -> Position:
        """Return how much the record has of each metric and each series of media."""
        return read_position(self._started().folder)

    def held(self, position: Position) -> Position:
        """Return the part of a position that the record has; less if points or media were lost.

        Args:
            position: See `sacristan.observers.record.points.rewinding`.
        """
        return held(self._started().folder, position)

    # ------------------------------------------------------------------ a run begins

    def begin_run(self, beginning: Beginning) -> Any:
        """Start to record a run, or record that it is queued.

        Args:
            beginning: What Sacred passes.

        Returns:
            The run's id in this folder.

        Raises:
            ResumeError: If the run to resume cannot be resumed, or the queued run to start cannot be started.
        """
        with self._lock:
            session = self._session(beginning)
            self._record(session, beginning)
            if beginning.is_queued:
                self._release()
            else:
                with_reads = not beginning.options.get("--no_reads")
                self._started().provenance.gather(self._lock, beginning.ex_info, with_reads=with_reads)
            return session.run_id

    def _session(self, beginning: Beginning) -> sessions.OpenRecord:
        """Open the record that the run continues, or a new one."""
        where = (
            beginning,
            Path(self.basedir),
            beginning.beat_interval_s if self.beat_interval_s is None else self.beat_interval_s,
        )
        if beginning.is_queued:
            return sessions.new_session(*where)
        meta_info = beginning.meta_info
        first = recording_of(meta_info.get("uid"))
        queued = self._own_of(meta_info.pop("queued", None)) or self._queued_beside(first)
        resume = self._own_of(meta_info.pop("resume", None)) or self._folder_beside(first)
        if queued is not None:
            return sessions.started_session(queued, *where)
        if resume is not None:
            return sessions.resumed_session(resume, *where)
        return sessions.new_session(*where, None if first is None else first.folder)

    def _own_of(self, folder: str | Path | None) -> Path | None:
        """Return this observer's record of the run in `folder`, if it has one; else `folder`."""
        if folder is None:
            return None
        folder = Path(folder)
        if folder.resolve().parent != Path(self.basedir).resolve():
            uid = sessions.uid_in(folder)
            return (sessions.folder_of(Path(self.basedir), uid) if uid else None) or folder
        return folder

    def _folder_beside(self, first: Recording | None) -> Path | None:
        """Return this observer's record of the run that another observer resumes."""
        if first is None or not first.is_resumed:
            return None
        folder = sessions.folder_of(Path(self.basedir), first.uid)
        if folder is None:
            _log.warning("%s holds no record of the run that is resumed; one begins there now", self.basedir)
        return folder

    def _queued_beside(self, first: Recording | None) -> Path | None:
        """Return this observer's record of the queued run that another observer starts."""
        if first is None or "queue_time" not in first.run.entry or first.is_resumed:
            return None
        return sessions.folder_of(Path(self.basedir), first.uid)

    def _record(self, session: sessions.OpenRecord, beginning: Beginning) -> None:
        """Begin to record a session."""
        self._own()
        if session.base != Path(self.basedir):  # nothing can be written there
            self.basedir = str(session.base)
            self.source_dir, self.resource_dir = session.base / "_sources", session.base / "_resources"
        # The working folder may be changed, or deleted, while the run is active.
        self.resource_dir = lasting_path(self.resource_dir)
        store = lasting_path(self.source_dir) if self.copy_sources else None
        base = lasting_path(self.basedir)
        sources = sessions.LabSources(beginning.ex_info, store, base, session.earlier_sources)
        self.recording = Recording(session, sources, self._lock, is_spool=self._is_spool)
        self.recording.begin(beginning.config)

    # ------------------------------------------------------------------ while a run is active

    def open_points(self) -> PointLog:
        """Return the log that takes the run's points from now on."""
        with self._lock:
            recording = self._started()
            recording.journal.points.begin(recording.start.timestamp())
            return recording.journal.points

    @guarded
    def heartbeat_event(self, info: dict[str, Any], captured_out: str, beat_time: datetime, result: Any) -> None:
        """Write what is new: points, output, info, result, and that the run is alive."""
        self._started().heartbeat(info, captured_out, beat_time, result)

    @guarded
    def output_event(self, text: str) -> None:
        """Append captured output; a stock Sacred run passes all of it with each heartbeat instead."""
        self._started().add_output(text)

    @guarded
    def log_metrics(self, metrics_by_name: dict[str, dict[str, Any]], info: dict[str, Any]) -> None:
        """Append points of a stock Sacred run."""
        self._started().add_metrics(metrics_by_name)

    @guarded
    def media_event(self, entries: Sequence[MediaEntry]) -> None:
        """Write media: images, sounds, tables and so on."""
        self._started().add_media(entries)

    @guarded
    def config_event(self, config: Mapping[str, Any]) -> None:
        """Write a config that has changed since the run began."""
        if self.is_recording:
            self._started().update_config(config)

    @guarded
    def flush_event(self) -> None:
        """Wait until all points and media so far are on the disk."""
        if self.is_recording:
            self._started().stay_in_folder()
            self._started().journal.sync()

    def rewind_event(self, position: Position, step: int | None = None) -> Position | None:
        """Remove what was recorded beyond a position; see `Recording.rewind`."""
        if self._is_copy():
            return None
        with self._lock:
            return self._started().rewind(position, step) if self.is_recording else None

    @guarded_without_lock
    def resource_event(self, filename: str) -> None:
        """Keep the content of a file that the run read."""
        keep_resource(self._started(), filename, self.resource_dir, copy=self.copy_artifacts)

    @guarded_without_lock
    def artifact_event(
        self, name: str, filename: str, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Do what `keep_artifact` does without raising; Sacred passes no more events to an observer that raises."""
        self.keep_artifact(name, filename, metadata, content_type)

    def keep_artifact(
        self, name: str, filename: str | Path, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        keep_artifact(self._started(), name, filename, metadata, content_type, copy=self.copy_artifacts)

    # ------------------------------------------------------------------ a run ends

    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Record that the run is completed."""
        self._end("COMPLETED", stop_time, result=result)

    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Record that the run was interrupted."""
        self._end(status, interrupt_time)

    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Record that the run failed, with its traceback."""
        self._end("FAILED", fail_time, fail_trace=fail_trace)

    def _end(self, status: str, at: datetime, **entries: Any) -> None:
        if self._is_copy() or not self.is_recording:  # the run was rejected when it started
            return
        self._started().provenance.wait(_PROVENANCE_BOUND_S)
        try:
            self._write_end(status, at, entries)
        finally:
            self._release()

    @guarded
    def _write_end(self, status: str, at: datetime, entries: dict[str, Any]) -> None:
        self._started().end(status, at, **entries)

    def _release(self) -> None:
        """Let other processes write the record."""
        if self.recording is not None:
            self.recording.release()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileObserver) and self.basedir == other.basedir

    __hash__ = None  # type: ignore[assignment]  # `basedir` may change


def file_observer(folder: str | Path = "my_runs") -> FileObserver:
    """Return an observer that records runs in a folder, each in a numbered folder of its own.

    Args:
        folder: The folder of runs.
    """
    return FileObserver(folder)


@contextlib.contextmanager
def run_folder(run: Any) -> Iterator[Path]:
    """Give the folder that a run is recorded in; for an unobserved run, a temporary one that is removed afterwards.

    Args:
        run: The active run, `_run`.
    """
    recorded = next((Path(o.dir) for o in run.observers if isinstance(o, FileStorageObserver) and o.dir), None)
    if recorded is not None:
        yield recorded
        return
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        yield Path(folder)


# ---------------------------------------------------------------------- files that the run reads or makes


def keep_resource(recording: Recording, filename: str, store: Path, *, copy: bool) -> None:
    """Keep the content of a file that the run read; without `copy`, list one below the folder of runs where it is."""
    try:
        stored = None if copy else path_below(recording.base, Path(filename))
        stored = stored or keep(Path(filename), store, recording.base)
    except OSError as error:
        with recording.lock:
            recording.run.add_once("lost_resources", str(filename))
        reason = f"{store} cannot be written ({error.strerror})"
        raise ArtifactError(f"{filename} cannot be kept as a resource: {reason}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{filename} cannot be kept as a resource: {error}") from error
    with recording.lock:
        recording.journal.note_file(recording.base / stored)
        recording.run.add_resource(filename, stored)


def keep_artifact(
    recording: Recording,
    name: str,
    filename: str | Path,
    metadata: dict[str, Any] | None,
    content_type: str | None,
    *,
    copy: bool,
) -> None:
    """Keep a file that the run made, in the run's folder under `name`; without `copy`, list it where it is."""
    file = Path(filename).absolute()
    with recording.lock:
        recording.stay_in_folder()
    name = file_name(file) if name == file.name else name
    target = artifact_path(recording.folder, name)
    is_there = file.resolve() == target
    if is_there or not copy:
        open_file(file).close()
    else:
        _copy(recording, name, Path(filename), target)
    left_at = None if is_there or copy else file
    with recording.lock:
        if left_at is None:
            recording.journal.note_file(target)
        recording.add_artifact(name, metadata, content_type, left_at)


def _copy(recording: Recording, name: str, file: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _keep_earlier(recording, name, target, file)
        copy_file(file, target)
    except OSError as error:
        raise ArtifactError(
            f"{file}: it cannot be kept in {recording.folder} ({error.strerror}); make room or check its "
            "permissions, and add it again"
        ) from error


def _keep_earlier(recording: Recording, name: str, target: Path, new: Path) -> None:
    """Keep an artifact whose name another file gets: as with Sacred, a database that gets the run has both."""
    if name not in recording.run.entry["artifacts"] or not (recording.folder / DESTINATION).exists():
        return
    filecmp.clear_cache()
    if not target.is_file() or filecmp.cmp(new, target, shallow=False):
        return
    folder, _ = make_numbered_folder(recording.folder / EARLIER_FOLDER)
    kept = folder / target.name
    try:
        kept.hardlink_to(target)
    except OSError:  # the file system has no hard links
        copy_file(target, kept)
    with recording.lock:
        recording.journal.note_file(kept)
        recording.run.add_earlier_artifact(name, kept.relative_to(recording.folder).as_posix())
