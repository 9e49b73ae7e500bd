"""`RecordedRun`: Sacred's Run, whose heartbeats carry metrics, media and output to its observers; it can be rewound."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from sacred.observers import RunObserver
from sacred.stdout_capturing import CapturedStdout
from sacred.utils import IntervalTimer

from experiments.running.captured_output import Spill, read_parts, record_replaced, take_from_memory
from experiments.running.media_buffer import MediaBuffer
from experiments.running.metrics_buffer import MetricsBuffer
from experiments.running.owned_run import OwnedRun
from experiments.running.system_metrics import Sampler
from observers.errors import ArtifactError, ResumeError
from observers.record import run_clock
from observers.record.points.rewinding import Position, num_missing
from observers.record.protocols import (
    ArtifactObserver,
    BufferedObserver,
    HasFolder,
    MediaObserver,
    OutputObserver,
    PointObserver,
    ResumableObserver,
    RewindableObserver,
)

__all__ = ["RecordedRun", "reported"]

_log = logging.getLogger(__name__)

BEAT_INTERVAL_S = 1.0


class RecordedRun(OwnedRun):
    """A run as its observers see it.

    Attributes:
        config: The whole config.
        info: What is worth noting of the run, by name; JSON. It is recorded with each heartbeat.
        meta_info: What is told of the run from outside, such as its `uid`, its parent, a comment.
        observers: What records it.
        status: RUNNING, COMPLETED, INTERRUPTED, FAILED, ...; None before it starts.
        start_time, stop_time: In UTC, without a time zone.
        result: What the command returned.
        beat_interval: Seconds between two heartbeats.
        system_metrics_s: Seconds between two samples of the machine's load; None takes none.
    """

    # Sacred's own, with the types that they have once a run is made.
    config: dict[str, Any]
    info: dict[str, Any]
    meta_info: dict[str, Any]
    status: str | None
    start_time: datetime | None
    stop_time: datetime | None
    result: Any
    beat_interval: float
    _heartbeat: IntervalTimer | None

    system_metrics_s: float | None
    _media: MediaBuffer
    _output: Spill
    _sampler: Sampler | None
    _was_rewound: bool
    # Whether all observers have begun.
    _is_begun: bool
    # Held by each heartbeat, and by what may not happen meanwhile.
    _heartbeat_lock: threading.RLock
    # Ids of the observers that were said to keep no media.
    _deaf: set[int]

    def _set_up(
        self, beat_interval_s: float | None, system_metrics_s: float | None, metrics: MetricsBuffer | None = None
    ) -> None:
        """Set what Sacred's constructor does not; see `LabRun.adopt`."""
        # Of two that record in the same place, as SACRISTAN_RECORD_TO can make them, one is enough.
        self.observers = [o for place, o in enumerate(self.observers) if o not in self.observers[:place]]
        self.beat_interval = BEAT_INTERVAL_S if beat_interval_s is None else beat_interval_s
        self.system_metrics_s = system_metrics_s
        self._metrics = metrics or MetricsBuffer()
        self._media = MediaBuffer()
        self._output = Spill()
        self._sampler = None
        self._was_rewound = self._is_begun = False
        self._heartbeat_lock = threading.RLock()
        self._deaf = set()

    def after_fork_in_child(self) -> None:
        """Let go of the record, which is the parent's; threads are gone, and what they held is not to be waited for."""
        super().after_fork_in_child()
        self._heartbeat = self._sampler = None
        self._heartbeat_lock = threading.RLock()

    @property
    def captured_out(self) -> str:
        """What the run printed; it is kept in a file, and read from there."""
        with self._heartbeat_lock:
            return self._output.text()

    @captured_out.setter
    def captured_out(self, text: str) -> None:
        with self._heartbeat_lock:
            self._output = Spill()
            self._output.append(text)

    @property
    def folder(self) -> Path | None:
        """The folder of its record; None before it starts, and where no observer has one."""
        folders = (observer.dir for observer in self.observers if isinstance(observer, HasFolder))
        return next((Path(folder) for folder in folders if folder), None)

    # ------------------------------------------------------------------ positions, rewinding

    def position(self) -> Position:
        """Return how much was logged so far, in all sessions of the run: what `rewind` goes back to.

        It holds dicts, lists, strings and numbers alone: `{"metrics": {name: [count, last step]}, "media": {...}}`.
        Metrics of the machine, `system/...`, are no part of it. Nothing is waited for.
        """
        return {"metrics": self._metrics.position(), "media": self._media.position()}

    def num_missing(self, position: Position) -> int:
        """Return how many points and media up to a position are missing from the record that earlier sessions left.

        Of a run that is recorded in several places, that is the number for the worst of them.
        """
        return max((num_missing(observer.held(position), position) for observer in self._resumed()), default=0)

    def _resumed(self) -> list[ResumableObserver]:
        return [o for o in self.observers if isinstance(o, ResumableObserver) and o.is_resumed]

    def flush(self) -> None:
        """Write down all that was logged up to now; it is in the observers' files, on the disk, when this returns.

        Any thread may call it. What cannot be written is said, and tried again with each heartbeat.
        """
        if self._is_child:  # each of its points is written when it is logged
            return
        with self._heartbeat_lock:
            self._write_down()
            for observer in self.observers:
                if isinstance(observer, BufferedObserver):
                    with reported(observer, "flush_event"):
                        observer.flush_event()

    def rewind(self, position: Position | None = None, step: int | None = None) -> None:
        """Take the record back to a position: what was logged beyond it, in this session or an earlier one, is gone.

        Counts and automatic steps continue from there. `system/...` stays.

        Args:
            position: What `position` returned; None is the beginning, where nothing is logged.
            step: The training's step that goes with it, noted in the run's history; by default one above the greatest
                step of a metric there.

        Raises:
            ResumeError: If the record cannot be written. It is whole, and can be rewound again.
        """
        self._refuse_in_child("rewind its record", ResumeError)
        position = position or {"metrics": {}, "media": {}}
        self._was_rewound = True
        with self._heartbeat_lock:
            self._write_down()
            reached, deaf = position, []
            for observer in self.observers:
                if isinstance(observer, RewindableObserver):
                    reached = observer.rewind_event(position, step) or reached
                elif _takes_sacreds_metrics(observer):
                    deaf.append(type(observer).__name__)
            if deaf:
                _log.warning("the record of %s cannot be rewound; it keeps what was logged beyond", ", ".join(deaf))
            self._count_from(position, reached)

    def _count_from(self, position: Position, reached: Position) -> None:
        """Count on from what the record has, and step on from what it should have."""
        counts = {kind: {name: entry[0] for name, entry in reached[kind].items()} for kind in ("metrics", "media")}
        for kind, buffer in (("metrics", self._metrics), ("media", self._media)):
            buffer.count_from({name: [counts[kind].get(name, 0), step] for name, (_, step) in position[kind].items()})

    # ------------------------------------------------------------------ files

    def _emit_artifact_added(
        self, name: str, filename: str, metadata: dict[str, Any] | None, content_type: str | None
    ) -> None:
        """Give a file to all observers.

        Raises:
            ArtifactError: If one of them cannot keep it; the others have it.
        """
        if self._is_left_to_parent(f"the artifact {name!r}"):
            return
        errors = []
        for observer in self.observers:
            if not isinstance(observer, ArtifactObserver):
                event = {"name": name, "filename": filename, "metadata": metadata, "content_type": content_type}
                self._safe_call(observer, "artifact_event", **event)
                continue
            try:
                observer.keep_artifact(name, filename, metadata, content_type)
            except ArtifactError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # ------------------------------------------------------------------ heartbeats

    def _emit_started(self) -> None:
        super()._emit_started()
        found = (observer.open_points() for observer in self.observers if isinstance(observer, PointObserver))
        logs = [log for log in found if log is not None]
        self._metrics.write_to(logs, keeps_new=any(map(_takes_sacreds_metrics, self.observers)))
        self._is_begun = True

    def _start_heartbeat(self) -> None:
        out = self._output_file
        if out is not None:
            # Output that is no UTF-8 would end the run where Sacred decodes it.
            with contextlib.suppress(AttributeError, OSError):
                out.buffer.reconfigure(errors="replace")
            take_from_memory(out)
            out.finalize = self._after_reading(out, record_replaced(out))  # type: ignore[method-assign]  # Sacred makes it by itself
        if self.beat_interval > 0:
            self._stop_heartbeat_event, self._heartbeat = IntervalTimer.create(self._emit_heartbeat, self.beat_interval)
            # What raises where Sacred ends a run, such as somebody's own time limit, is not to keep the process alive.
            self._heartbeat.daemon = True
            self._heartbeat.start()
        if self.system_metrics_s is not None and self.observers and self._heartbeat is not None:
            self._start_sampler(self.system_metrics_s)

    def _start_sampler(self, interval_s: float) -> None:
        earlier = (observer.elapsed_s for observer in self.observers if isinstance(observer, ResumableObserver))
        try:
            elapsed_s = max(earlier, default=0.0)
            sampler = Sampler(self._metrics.log_scalar_metric, self.folder or ".", interval_s, elapsed_s=elapsed_s)
            sampler.start()
        except Exception as error:
            _log.warning("system metrics: got %s: %s; the run goes on without them", type(error).__name__, error)
        else:
            self._sampler = sampler

    def _write_down(self, *, last: bool = False) -> None:
        """Give the observers all that was logged up to now."""
        self._send_heartbeat(last=last)
        self._emit_media(math.inf)

    def _emit_heartbeat(self) -> None:
        with self._heartbeat_lock:
            try:
                self._send_heartbeat()
                # After the heartbeat, and for no longer than one, so that the run is seen to live.
                self._emit_media(time.monotonic() + self.beat_interval)
            except Exception:
                # Sacred's thread would end with it, and the record with that thread.
                _log.exception("a heartbeat failed; the run goes on, and so does its record")

    def _send_heartbeat(self, *, last: bool = False) -> None:
        """Do what Sacred's heartbeat does, but for points: the logs of the observers that have one write them."""
        if self._is_child:
            return
        beat_time = run_clock.utc_now()
        self._get_captured_output()
        metrics = self._metrics.take(last=last)
        whole = "" if all(map(_takes_parts, self.observers)) else self.captured_out
        for observer in self.observers:
            if _takes_sacreds_metrics(observer):
                self._safe_call(observer, "log_metrics", metrics_by_name=metrics, info=self.info)
            self._safe_call(
                observer,
                "heartbeat_event",
                info=self.info,
                captured_out="" if _takes_parts(observer) else whole,
                beat_time=beat_time,
                result=self.result,
            )

    def _emit_media(self, until: float) -> None:
        """Make the files of logged media, and give them to the observers that take any."""
        if not self.observers:
            self._media.clear()
        entries = self._media.take(until)
        if not entries:
            return
        deaf = []
        for observer in self.observers:
            if isinstance(observer, MediaObserver):
                with reported(observer, "media_event"):
                    observer.media_event(entries)
            elif id(observer) not in self._deaf:
                deaf.append(observer)
        if deaf:
            self._deaf |= {id(observer) for observer in deaf}
            names = ", ".join(type(observer).__name__ for observer in deaf)
            _log.warning("media are not recorded by %s; attach an observers.FileObserver", names)

    def _stop_heartbeat(self) -> None:
        # Its last sample goes with the last heartbeat.
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        # Sacred gives the last heartbeat two seconds, and then ends the record without what it still had to write.
        if self._heartbeat is not None:
            self._stop_heartbeat_event.set()
            self._heartbeat.join()
            self._heartbeat = None
        with self._heartbeat_lock:
            if self._is_begun:
                self._write_down(last=True)  # Without a heartbeat all of it; one that failed has left what came since.

    def _after_reading(self, out: CapturedStdout, stop: Callable[[], None]) -> Callable[[], None]:
        """Return Sacred's closing of the output, which reads all that is left at once, for when nothing is.

        It waits for a heartbeat that is under way, which may be reading.
        """
        finalize = out.finalize

        def close() -> None:
            with self._heartbeat_lock:
                stop()
                out.flush()
                self._get_captured_output()
                finalize()

        return close

    def _get_captured_output(self) -> None:
        if self._is_child:  # it has the parent's files
            return
        with self._heartbeat_lock:
            for part in () if self._output_file is None else read_parts(self._output_file):
                new = part if self.captured_out_filter is None or not part else self.captured_out_filter(part)
                for observer in self.observers if new else ():
                    if _takes_parts(observer):
                        with reported(observer, "output_event"):
                            observer.output_event(new)
                self._output.append(new)


def _takes_sacreds_metrics(observer: RunObserver) -> bool:
    """Tell whether points are given to an observer as Sacred gives them."""
    return _has_sacreds_metrics(type(observer))  # type: ignore[arg-type]  # mypy asks the instance for its hash


def _takes_parts(observer: RunObserver) -> TypeGuard[OutputObserver]:
    """Tell whether output is given to an observer in parts."""
    return _has_parts(type(observer))  # type: ignore[arg-type]  # mypy asks the instance for its hash


# With each heartbeat; and `isinstance` of a protocol goes through all of its members each time.
@functools.cache
def _has_parts(kind: type) -> bool:
    return issubclass(kind, OutputObserver)


@functools.cache
def _has_sacreds_metrics(kind: type) -> bool:
    takes = getattr(kind, "log_metrics", RunObserver.log_metrics) is not RunObserver.log_metrics
    return takes and not issubclass(kind, PointObserver)


@contextlib.contextmanager
def reported(observer: Any, event: str) -> Iterator[None]:
    """Log what an observer raises; the run goes on."""
    try:
        yield
    except Exception:
        _log.exception("%s: %s failed; the run goes on", type(observer).__name__, event)
