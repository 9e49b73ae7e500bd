"""`FileObserver`: records a run in a folder, so that a process that is killed loses no point.

It takes the place of Sacred's FileStorageObserver: the same arguments, the same layout of a run's folder, and more
beside it (see `observers.record.schema`). It never raises into a run: what cannot be written is said once, tried again,
and counted.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacred.observers import RunObserver

from observers.errors import ResumeError
from observers.file.info_file import InfoFile
from observers.file.run_file import RunFile, command_line, new_entry
from observers.file.sacred_form import plain, sacred_metrics, to_ticks
from observers.provenance.gathering import Gathering
from observers.provenance.lab_sources import LabSources
from observers.record.guarding import guarded
from observers.record.identity import RECORD_TO_VARIABLE, lease
from observers.record.journal import Journal
from observers.record.locking import RecordLock
from observers.record.media_entry import MediaEntry
from observers.record.numbered_folder import artifact_path, make_run_folder
from observers.record.point_log import PointLog
from observers.record.resuming import continued_entry, open_for_continuing
from observers.record.rewinding import Position, held, is_rewound, missing_from, next_step, num_missing
from observers.record.schema import CONFIG, FORMAT, LEASE, MAX_SACRED_POINTS, RUN, SACRED_METRICS
from observers.record.stored_files import copy_file, keep

__all__ = ["FileObserver", "recorder_of"]

_log = logging.getLogger(__name__)

SACREDS_BEAT_INTERVAL_S = 10.0
# Series that are named where points of them are lost.
_SHOWN = 10

# The observer that writes each run of this process down, by uid: what else delivers a run reads its journal.
_writers: dict[str, FileObserver] = {}


def recorder_of(uid: str | None) -> FileObserver | None:
    """Return the observer that writes the run `uid` down in this process, if there is one."""
    return _writers.get(uid)


class FileObserver(RunObserver):
    """Records runs below a folder, each in a numbered folder of its own.

    A run whose `meta_info["resume"]` is the folder of an earlier run below `basedir` goes on there: the same record,
    with one more session (see `observers.record.resuming`).

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
        num_errors: Events that failed.
        beat_interval_s: Seconds between two heartbeats, told by a run of the lab before it starts; None is what Sacred
            was told on its command line, or its own ten seconds. The lease goes by it.
        record_lock: Held on the run's folder while the run is recorded; None before.
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
        self.journal: Journal | None = None
        self.num_errors = 0
        self.beat_interval_s: float | None = None
        self.record_lock: RecordLock | None = None
        self._lock = threading.RLock()
        self._start: datetime | None = None
        self._output_done = 0
        # The summary that was written last, and when the next one may be.
        self._summary: dict[str, Any] | None = None
        self._summary_due = self._lease_due = 0.0
        self._info: InfoFile | None = None
        self._run: RunFile | None = None
        self._sources: LabSources | None = None
        self._gathering: Gathering | None = None

    def _elsewhere(self) -> str | None:
        """Return the folder to record below in the place of the one given."""
        return os.environ.get(RECORD_TO_VARIABLE) or None

    @property
    def run_entry(self) -> dict[str, Any]:
        """What stands in `run.json`; nothing before a run starts."""
        return {} if self._run is None else self._run.entry

    @property
    def is_resumed(self) -> bool:
        """Whether the run goes on in the record of an earlier session."""
        return self._run is not None and self._run.session is not None

    @property
    def is_recording(self) -> bool:
        """Whether a run has started and not ended."""
        return self._run is not None and not self._run.has_ended

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
            entry = new_entry(ex_info, command, host_info, queue_time, meta_info, "QUEUED")
            number = self._begin(entry, ex_info, queue_time, config, _id)
            self._release()
            return number

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
            resume = meta_info.pop("resume", None) or self._folder_beside(recorder_of(meta_info.get("uid")))
            if resume is not None:
                number = self._continue(Path(resume), ex_info, host_info, start_time, config, meta_info)
            else:
                entry = new_entry(ex_info, command, host_info, start_time, meta_info, "RUNNING")
                number = self._begin(entry, ex_info, start_time, config, _id)
            note_changes = self._run.note_environment if self.is_resumed else None
            self._gathering = Gathering(self.journal, self._lock, ex_info["base_dir"], note_changes)
            return number

    def _folder_beside(self, first: FileObserver | None) -> Path | None:
        """Return where the run that another observer continues is recorded below this one's folder, too."""
        if first is None or not first.is_resumed:
            return None
        uid = first.run_entry["uid"]
        for path in Path(self.basedir).glob(f"*/{RUN}"):
            try:
                if json.loads(path.read_bytes())["uid"] == uid:
                    return path.parent
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.debug("%s: passed over, it cannot be read (%s)", path, error)
        _log.warning("%s holds no record of this run, which goes on; the one there begins here", self.basedir)
        return None

    def _begin(self, entry: dict, ex_info: dict, at: datetime, config: dict, _id: Any) -> Any:
        """Make the record of a new run; returns its id."""
        number = self._make_folder(_id)
        self.record_lock = RecordLock(Path(self.dir))
        self.record_lock.acquire()
        self.journal = Journal(Path(self.dir))
        self._start = at.replace(tzinfo=UTC)
        self._run = RunFile(self.journal, entry, entry["meta"])
        self._begin_session(ex_info)
        self._save_sources()
        self.journal.write(CONFIG, plain(config))
        self._write_lease()
        self._run.write()
        return number

    def _begin_session(self, ex_info: dict, sources: Sequence = ()) -> None:
        """Begin with what counts for one session."""
        self._output_done, self._info = 0, InfoFile(self.journal)
        self._sources = LabSources(ex_info, self.source_dir if self.copy_sources else None, self.basedir, sources)
        _writers[self.run_entry["uid"]] = self

    def _continue(
        self, folder: Path, ex_info: dict, host_info: dict, at: datetime, config: dict, meta_info: dict
    ) -> str:
        """Go on with the record of an earlier session; returns its id.

        Raises:
            ResumeError: If that cannot be; then nothing of it is changed.
        """
        with open_for_continuing(folder, Path(self.basedir)) as (run, journal, lock):
            self.dir, self.journal, self.record_lock = str(journal.folder), journal, lock
            self._run = RunFile(journal, continued_entry(run, folder, at, host_info, command_line()), meta_info)
            # With both, others see that the run is taken, whatever it said before.
            self._write_lease()
            self._run.write()
            journal.clear()
        self._start = datetime.fromisoformat(run["start_time"]).replace(tzinfo=UTC)
        meta_info["uid"] = run["uid"]
        self._begin_session(ex_info, run["experiment"]["sources"])
        self._save_sources()
        # What the end of an earlier session wrote is made anew at the end of this one.
        (journal.folder / SACRED_METRICS).unlink(missing_ok=True)
        self.journal.write(CONFIG, plain(config))
        self.journal.end_line()
        line = f"--- session {len(self.run_entry['sessions'])}, {at.isoformat(' ', 'seconds')} UTC ---\n"
        self.journal.add_output(line.encode())
        return journal.folder.name

    @property
    def elapsed_s(self) -> float:
        """Seconds that a continued run has behind it: no sample of the machine was taken at a later step."""
        if not self.is_resumed:
            return 0.0
        steps = [row["last_step"] for name, row in self.journal.summary.items() if not is_rewound(name)]
        return max((datetime.now(UTC) - self._start).total_seconds(), max(steps, default=0) + 1.0)

    def position(self) -> Position:
        """Return how much the record holds of each metric and each series of media."""
        return self.journal.position()

    def held(self, position: Position) -> Position:
        """Return the part of a position that the record has; less where points or media were lost."""
        return held(self.journal.folder, position)

    def _make_folder(self, _id: Any) -> Any:
        """Make the run's folder, and return its id."""
        base, folder, number = make_run_folder(Path(self.basedir), _id)
        if base != Path(self.basedir):
            self.basedir = str(base)
            self.source_dir, self.resource_dir = base / "_sources", base / "_resources"
        self.dir = str(folder)
        return number

    def _save_sources(self) -> None:
        """Keep every source of the lab that is imported by now; modules imported later come with later beats."""
        if self._sources.look():
            self._run.note_sources(self._sources.pairs, self._sources.changed)

    # ------------------------------------------------------------------ a run goes on

    def open_points(self) -> PointLog:
        """Return the log that points go to from now on; what came is moved away without this observer, too."""
        with self._lock:
            self.journal.points.begin(self._start.timestamp())
            return self.journal.points

    @guarded
    def heartbeat_event(self, info: dict, captured_out: str, beat_time: datetime, result: Any) -> None:
        """Write down what is new: points, output, info, result, and that the run is alive."""
        self.journal.flush()
        self._write_summary()
        self._add_output(captured_out)
        self._info.beat(info)
        self._save_sources()
        if self._gathering is not None:
            self._gathering.look()
        if time.monotonic() >= self._lease_due:
            self._write_lease()
        self._run.beat(beat_time, result)

    def _add_output(self, captured_out: str) -> None:
        if len(captured_out) > self._output_done:
            self.journal.add_output(captured_out[self._output_done :].encode("utf-8", "replace"))
            self._output_done = len(captured_out)

    def _write_summary(self) -> None:
        """Write a summary that is new; a large one so rarely that it takes 5 % of the time at most."""
        began = time.monotonic()
        if self.journal.summary is not self._summary and began >= self._summary_due:
            self._summary = self.journal.summary
            self.journal.write_summary()
            ended = time.monotonic()
            self._summary_due = ended + 19 * (ended - began)

    def _write_lease(self) -> None:
        locked = self.record_lock is not None and self.record_lock.is_held
        self.journal.write(LEASE, lease(self._beat_interval_s(), locked=locked), durable=False)
        # Beats may come more often than the lease needs.
        self._lease_due = time.monotonic() + 0.5

    def _beat_interval_s(self) -> float:
        if self.beat_interval_s is not None:
            return self.beat_interval_s
        given = (self.run_entry["meta"].get("options") or {}).get("--beat-interval")
        return float(given) if given else SACREDS_BEAT_INTERVAL_S

    def _release(self) -> None:
        """Let others write the record, which is as it should be."""
        if self.record_lock is not None:
            self.record_lock.release()

    @guarded
    def log_metrics(self, metrics_by_name: dict[str, dict], info: dict) -> None:
        """Append new points."""
        for name, new in metrics_by_name.items():
            self.journal.add_points(name, new["steps"], new["values"], to_ticks(new["timestamps"], self._start))
        self._write_summary()
        if self._run.has_ended:
            # Sacred's own run waits two seconds for its last beat, which may come after the end.
            self.journal.close()

    @guarded
    def media_event(self, entries: Sequence[MediaEntry]) -> None:
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
            position: See `observers.record.rewinding`.
            step: The training's step there, by default one above the greatest of a metric.

        Raises:
            ResumeError: If it cannot be written. It can be done again.
        """
        with self._lock:
            if not self.is_recording:
                return None
            try:
                with self._run.rewinding(next_step(position) if step is None else step):
                    reached = self.journal.rewind(position)
            except OSError as error:
                raise ResumeError(f"the record in {self.dir} cannot be taken back to where it was: {error}") from error
            if not any(position.values()):
                self._run.entry.pop("lost_points", None)  # all of it is recorded anew
            self._note_lost_points(reached, position)
            return reached

    def _note_lost_points(self, reached: Position, wanted: Position) -> None:
        missing = list(missing_from(reached, wanted))
        for name, there, expected in missing[:_SHOWN]:
            _log.warning("%s: %s is there %d times, expected %d; the others are lost", self.dir, name, there, expected)
        if missing:
            count = num_missing(reached, wanted)
            _log.error(
                "%s: %d points of %d series are lost; the run cannot end as COMPLETED", self.dir, count, len(missing)
            )
            self._run.note_lost_points(count)

    @guarded
    def resource_event(self, filename: str) -> None:
        """Keep the content of a file that the run read."""
        self._run.add_resource(filename, keep(Path(filename), self.resource_dir, self.basedir))

    @guarded
    def artifact_event(
        self, name: str, filename: str, metadata: dict | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file that the run made, under `name` in the run's folder."""
        target = artifact_path(Path(self.dir), name)
        if self.copy_artifacts and Path(filename).resolve() != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(Path(filename), target)
        self._run.add_artifact(name, metadata, content_type)

    def note_artifact(self, key: str, entry: dict[str, Any]) -> None:
        """List under `key` of `run.json`, once, a version of an artifact that the run logged or used."""
        with self._lock:
            self._run.add_once(key, entry)

    # ------------------------------------------------------------------ a run ends

    @guarded
    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Write down that the run came to its end."""
        self._end("COMPLETED", stop_time, result=plain(result))

    @guarded
    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Write down that the run was interrupted."""
        self._end(status, interrupt_time)

    @guarded
    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Write down that the run failed, and how."""
        self._end("FAILED", fail_time, fail_trace=fail_trace)

    def _end(self, status: str, at: datetime, **entries: Any) -> None:
        if not self.is_recording:  # the run was refused when it started
            return
        try:
            if self._gathering is not None:
                self._lock.release()
                self._gathering.join(20)
                self._lock.acquire()
                self._gathering.look()
            self.journal.flush()
            self._info.write()
            self.journal.media.give_up()
            self._save_sources()
            lost = {"lost_bytes": self.journal.num_lost_bytes, "lost_media": self.journal.media.num_lost}
            self._run.end(status, at, lost, **entries)
            self.journal.write_summary()
            if 0 < sum(row["count"] for row in self.journal.summary.values()) <= MAX_SACRED_POINTS:
                self.journal.write(SACRED_METRICS, sacred_metrics(Path(self.dir), self._start))
            self._run.write()
            self.journal.close()
        finally:
            _writers.pop(self.run_entry["uid"], None)
            self._release()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileObserver) and self.basedir == other.basedir

    __hash__ = None
