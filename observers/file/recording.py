"""`Recording`: one run that this process records, from its first file to its last."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from observers.errors import ResumeError
from observers.file.info_file import InfoFile
from observers.file.lease_file import LeaseFile
from observers.file.run_file import RunFile
from observers.file.sacred_form import sacred_metrics, to_ticks
from observers.file.whereabouts import Whereabouts
from observers.provenance.gathering import Gathering
from observers.provenance.lab_sources import LabSources
from observers.record import run_clock
from observers.record.guarding import Apart, Pace
from observers.record.journal import Journal
from observers.record.json_text import parse_json
from observers.record.media_entry import MediaEntry
from observers.record.points.point_log import PointLog
from observers.record.points.points import is_rewound
from observers.record.points.rewinding import Position, missing_from, next_step, num_missing
from observers.record.regular_file import read_regular
from observers.record.schema import CONFIG, MAX_SACRED_POINTS, RUN, SACRED_METRICS
from observers.record.storable import as_text

__all__ = ["Recording", "folder_of", "recording_of", "recordings_of", "uid_in"]

_log = logging.getLogger(__name__)

# Series that are named where points of them are lost.
_SHOWN = 10
# What of the machine may change what is computed.
_OF_MACHINE = ("python", "cpu", "gpus", "cuda", "cudnn")

# What this process records, by the run's uid; of each run the one that began first comes first.
_recordings: dict[str, list[Recording]] = {}


def recordings_of(uid: str | None) -> list[Recording]:
    """Return the recordings of the run `uid` in this process, in the order in which they began."""
    return [] if uid is None else list(_recordings.get(uid, ()))


def recording_of(uid: str | None) -> Recording | None:
    """Return the recording of the run `uid` that began first; None if this process does not record it."""
    return next(iter(recordings_of(uid)), None)


def folder_of(base: Path, uid: str) -> Path | None:
    """Return the folder below `base` that holds the record of the run `uid`; None if there is none."""
    return next((path.parent for path in base.glob(f"*/{RUN}") if uid_in(path.parent) == uid), None)


def uid_in(folder: Path) -> str | None:
    """Return the uid of the run that a folder holds; None if it cannot be read."""
    try:
        return parse_json(read_regular(folder / RUN))["uid"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.debug("%s: skipped, it cannot be read (%s)", folder, error)
        return None


class Recording:
    """One run that this process records. Call its methods under `lock`, but for those that say otherwise.

    Args:
        base: The folder of runs.
        journal: The journal in the run's folder.
        lease: What says that this process writes the record, which is locked.
        run: What writes `run.json`.
        start: When the run started, or was queued, in UTC without a time zone; of a resumed run its first session.
        sources: What keeps sources.
        lock: Held by every event of the observer.
        is_spool: Whether the folder is removed once it is delivered: its base is the run's alone.

    Attributes:
        base: The folder of runs.
        is_spool: Whether the folder is removed once it is delivered.
        journal: Writes the files.
        lease: Writes `lease.json`, and has the lock on the record.
        run: Writes `run.json`.
        start: When the run started, in UTC.
    """

    def __init__(
        self,
        base: Path,
        journal: Journal,
        lease: LeaseFile,
        run: RunFile,
        start: datetime,
        sources: LabSources,
        lock: threading.RLock,
        *,
        is_spool: bool = False,
    ) -> None:
        self.base = base
        self.is_spool = is_spool
        self.journal = journal
        self.lease = lease
        self.run = run
        self.start = start.replace(tzinfo=UTC)
        self._sources = sources
        self._lock = lock
        self._info = InfoFile(journal, run.odd)
        self._apart = Apart()
        self._has_told_missing = False
        self._output_done = 0
        # What was said to have changed since the first session: pairs of the kind and the name.
        self._told: set[tuple[str, str]] = set()
        # Changes of the summary up to the one that was written last.
        self._num_changes = -1
        self._summary_pace, self._folder_pace, self._gathering_pace = Pace(), Pace(), Pace()
        self._gathering: Gathering | None = None
        self._whereabouts = Whereabouts(journal.folder)
        # Artifacts whose files are in the folder.
        self._artifacts: set[str] = set()

    @property
    def uid(self) -> str:
        """The run's uid."""
        return self.run.entry["uid"]

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.journal.folder

    @property
    def is_resumed(self) -> bool:
        """True if the run continues the record of an earlier session."""
        return self.run.session is not None

    @property
    def was_queued(self) -> bool:
        """True if the run waited in a queue before it started."""
        return "queue_time" in self.run.entry

    @property
    def elapsed_s(self) -> float:
        """Seconds of the earlier sessions: no sample of the machine was taken at a later step; 0 without any."""
        if not self.is_resumed:
            return 0.0
        steps = [row["last_step"] for name, row in self.journal.points.summary.items() if not is_rewound(name)]
        return max(run_clock.now() - self.start.timestamp(), max(steps, default=0) + 1.0)

    # ------------------------------------------------------------------ a session begins

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write down what is known when a session begins."""
        _recordings.setdefault(self.uid, []).append(self)
        with self._apart.part("sources"):
            self._save_sources()
        self.journal.write(CONFIG, self.run.odd.plain("config", config))
        if not self.is_resumed:
            self.lease.write()
            self.run.write()
            return
        # The end of an earlier session wrote it; the end of this one writes it anew.
        (self.folder / SACRED_METRICS).unlink(missing_ok=True)
        self.journal.end_line()
        sessions = self.run.entry["sessions"]
        at = datetime.fromisoformat(sessions[-1]["start_time"]).isoformat(" ", "seconds")
        self.journal.add_output(f"--- session {len(sessions)}, {at} UTC ---\n".encode())

    def gather_provenance(self, experiment: Mapping[str, Any], *, with_reads: bool) -> None:
        """Begin to gather git, packages, machine, and what the run reads; `experiment` is what Sacred tells of it."""
        note_changes = self._note_environment if self.is_resumed else None
        self._gathering = Gathering(self.journal, self._lock, experiment, note_changes, with_reads=with_reads)

    def _save_sources(self, *, last: bool = False) -> None:
        """Keep every source of the lab that is imported by now; modules imported later come with later heartbeats."""
        if self._sources.look(last=last):
            for _, stored in self._sources.pairs:
                self.journal.note_file(self.base / stored)
            self.run.note_sources(self._sources.pairs, self._sources.changed)
            self._tell_changes({"sources": dict.fromkeys(self._sources.changed)} if self.is_resumed else {})
        missing = self._sources.missing
        if missing and (last or not self._has_told_missing):
            self._has_told_missing = True
            _log.log(
                logging.ERROR if last else logging.WARNING,
                "%s: %d sources are not stored, %s: %s%s",
                self.folder,
                len(missing),
                "and are lost" if last else "which is retried with each heartbeat",
                ", ".join(list(missing)[:_SHOWN]),
                f" ({next(iter(missing.values()))}; make room, or get the right to write there)",
            )

    def _note_environment(self, changes: dict[str, dict[str, list[Any]]]) -> None:
        self.run.note_environment(changes)
        machine = {name: pair for name, pair in changes.get("machine", {}).items() if name in _OF_MACHINE}
        self._tell_changes({**changes, "git": {}, "machine": machine})

    def _tell_changes(self, changes: Mapping[str, Mapping[str, Sequence[Any] | None]]) -> None:
        """Warn once of each thing that is not as in the run's first session, and may change what is computed."""
        for part, found in changes.items():
            new = [name for name in found if (part, name) not in self._told]
            self._told |= {(part, name) for name in new}
            if new and "states_folder" not in self.run.entry:  # the observer of that one says it
                texts = [
                    name if (pair := found[name]) is None else f"{name} was {pair[0]}, is {pair[1]}" for name in new
                ]
                more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
                _log.warning(
                    "%s is resumed, but not as it began, so it may end differently: %s: %s%s",
                    self.folder,
                    part,
                    ", ".join(texts[:_SHOWN]),
                    more,
                )

    # ------------------------------------------------------------------ a run goes on

    def open_points(self) -> PointLog:
        """Return the log that points go to from now on."""
        self.journal.points.begin(self.start.timestamp())
        return self.journal.points

    def heartbeat(self, info: dict[str, Any], captured_out: str, at: datetime, result: Any) -> None:
        """Write down what is new: points, output, info, result, and that the run is alive."""
        if self._folder_pace.is_due:
            with self._apart.part("following the folder"), self._folder_pace:
                self.stay_in_folder()
        with self._apart.part("points"):
            self.journal.retry()
            self._write_summary()
        if len(captured_out) > self._output_done:
            self.add_output(captured_out[self._output_done :])
            self._output_done = len(captured_out)
        with self._apart.part("info"):
            self._info.heartbeat(info)
        with self._apart.part("sources"):
            self._save_sources()
        if self._gathering is not None and self._gathering_pace.is_due:
            with self._apart.part("provenance"), self._gathering_pace:
                self._gathering.look()
        self.lease.renew()
        self.run.heartbeat(at, result)

    def add_output(self, text: str) -> None:
        """Append what was printed."""
        self.journal.add_output(text.encode("utf-8", "replace"))

    def _write_summary(self) -> None:
        """Write a summary that is new."""
        num_changes = self.journal.points.num_changes
        if num_changes != self._num_changes and self._summary_pace.is_due:
            with self._summary_pace:
                self._num_changes = num_changes
                self.journal.write_summary()

    def stay_in_folder(self) -> None:
        """Notice that the folder was moved or deleted, say so, and go on where it is now, or in a new one."""
        if self.run.has_ended or not self.journal.is_gone():
            return
        before = self.folder
        there = self._whereabouts.moved_to(before)
        if there is not None:
            self.journal.follow(there)
            self.run.follow()
            _log.warning("%s was moved to %s during the run; recording continues there", before, there)
            return
        self.lease.release()
        try:
            folder, lock = self._whereabouts.renew(self.base)
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
        """List a file that the run made, whose content is in the folder, or `left_at` where it was made."""
        if left_at is None:
            self._artifacts.add(name)
        self.run.add_artifact(name, metadata, content_type, left_at)

    def add_metrics(self, metrics_by_name: Mapping[str, Mapping[str, list[Any]]]) -> None:
        """Append points: Sacred's `steps`, `values` and `timestamps` of each metric."""
        for name, new in metrics_by_name.items():
            # A name of Sacred's own Experiment may be anything; the lab's refuses it where it is logged.
            ticks = to_ticks(new["timestamps"], self.start)
            self.journal.points.add_batch(as_text(name), new["steps"], new["values"], ticks)
        self._write_summary()
        if self.run.has_ended:
            # Sacred's own run waits two seconds for its last heartbeat, which may come after the end.
            self.journal.close()

    def add_media(self, entries: Sequence[MediaEntry]) -> None:
        """Write down media: images, sounds, tables and so on."""
        for entry in entries:
            self.journal.media.add(entry, entry.time - self.start.timestamp())

    def note_artifact(self, key: str, entry: dict[str, Any]) -> None:
        """List a version of an artifact under `key` of `run.json`, once. It takes the lock."""
        with self._lock:
            self.run.add_once(key, entry)

    def rewind(self, position: Position, step: int | None = None) -> Position:
        """Take back what was recorded beyond a position; return the one that is reached.

        Args:
            position: See `observers.record.points.rewinding`.
            step: The training's step there, by default one above the greatest of a metric.

        Raises:
            ResumeError: If it cannot be written. It can be done again.
        """
        try:
            with self.run.rewinding(next_step(position) if step is None else step):
                reached = self.journal.rewind(position)
                # What an earlier session could not write is recorded anew, or is missing now.
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
        """Let others write the record, and hold its folder no longer."""
        self._whereabouts.close()
        self.lease.release()

    def wait_for_provenance(self, timeout_s: float) -> None:
        """Wait until git, packages and machine are written down; not to be called under the lock, which that takes."""
        if self._gathering is not None:
            self._gathering.join(timeout_s)

    def end(self, status: str, at: datetime, **entries: Any) -> None:
        """Write down how the run ended, and close its files.

        Args:
            status: COMPLETED, INTERRUPTED, FAILED, or what Sacred calls an interruption.
            at: When.
            **entries: What else to tell of it.
        """
        try:
            lost = self._write_rest()
            self.run.end(status, at, lost, **entries)
            # Last: a run that says how it ended has all else on the disk by then.
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
        """Write what is left but for `run.json`, each part whatever becomes of the others; return what is lost."""
        part = self._apart.part
        with part("following the folder"):
            self.stay_in_folder()
        with part("provenance"):
            if self._gathering is not None:
                self._gathering.look()
        with part("info"):
            self._info.write()
        with part("sources"):
            self._save_sources(last=True)
        lost: dict[str, int | list[str]] = {"lost_sources": sorted(self._sources.missing)}
        with part("points"):
            self.journal.give_up()
            self.run.note_unwritten_points(self.journal.points.num_lost_points)
            if self.is_resumed:
                # A disk takes its time to damage what it holds: these are of earlier sessions, and were not rewound.
                lost["damaged_points"] = self.journal.points.num_damaged()
            self.journal.write_summary(durable=True)
        with part(SACRED_METRICS):
            if 0 < sum(row["count"] for row in self.journal.points.summary.values()) <= MAX_SACRED_POINTS:
                self.journal.write(SACRED_METRICS, sacred_metrics(self.folder, self.start))
        lost |= {"lost_bytes": self.journal.num_lost_bytes, "lost_media": self.journal.media.num_lost}
        return lost | {"lost_parts": sorted(self._apart.failed)}
