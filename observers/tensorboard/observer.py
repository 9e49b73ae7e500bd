"""`TensorBoardObserver`: writes a run's metrics, media, model graph and hyper-parameters as TensorBoard's event files.

    tensorboard --logdir my_runs

It needs the extra `tensorboard`, which is loaded when a run starts. The files are for looking at: the run's own record
is whole without them, and numbers are in TensorBoard's 32 bits.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacred.observers import RunObserver

from observers.errors import MissingExtraError
from observers.file.recording import recording_of
from observers.record.guarding import Owned, guarded
from observers.record.identity import new_uid
from observers.record.media_entry import MediaEntry
from observers.record.rewinding import Position
from observers.record.schema import read_metrics
from observers.tensorboard.event_file import EventFile
from observers.tensorboard.recorded_media import recorded_media

__all__ = ["TensorBoardObserver"]

_log = logging.getLogger(__name__)


class TensorBoardObserver(Owned, RunObserver):
    """Writes event files, one for each run.

    It hears of a run after the `FileObserver`, whose folder it writes to, and before the `MongoObserver`, whose spool
    is no place to keep anything.

    Args:
        logdir: Folder of the event files, in which each run has one called by its uid. By default they are in the run's
            own folder, as `tensorboard`; without a `FileObserver`, below `my_runs/_tensorboard`.
        priority: Observers of higher priority hear of events first.

    Attributes:
        dir: The folder of the run's event file; None before it starts.
        num_errors: Events that failed.

    Raises:
        MissingExtraError: If TensorBoard is not installed.
    """

    def __init__(self, logdir: str | Path | None = None, priority: int = 35) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingExtraError(
                "TensorBoardObserver needs the package 'tensorboard', which is not installed; "
                "write pip install -e '.[tensorboard]'"
            )
        self.logdir = None if logdir is None else Path(logdir)
        self.priority = priority
        self.dir: Path | None = None
        self.num_errors = 0
        self._lock = threading.RLock()
        self._file: EventFile | None = None
        self._kinds: dict[str, str] = {}
        self._last_step = 0
        self._uid = ""
        self._head: list[bytes] = []
        self._graph: bytes | None = None

    # ------------------------------------------------------------------ a run begins

    def queued_event(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing of a run that is to be started by somebody else."""

    def started_event(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        start_time: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
    ) -> None:
        """Begin the event file of a run, with its hyper-parameters."""
        self._own()
        self._begin_run(start_time, config, meta_info)

    @guarded
    def _begin_run(self, start_time: datetime, config: dict, meta_info: dict) -> None:
        from observers.tensorboard import events

        uid = meta_info.setdefault("uid", new_uid())
        self.dir = self._folder(uid)
        self._uid, self._graph = uid, None
        start = start_time.replace(tzinfo=UTC).timestamp()
        # TensorBoard takes the first of these for the start of a run, and only those after it for a restart.
        begun = events.restart(events.LAST_STEP, start)
        self._head = [events.file_version(start), begun, events.session_start(config, start)]
        self._begin(EventFile(self._new_path(start)))
        self._file.flush()

    def _new_path(self, at: float) -> Path:
        """Return a file that is not there, behind those of earlier sessions."""
        earlier = len(list(self.dir.glob("*tfevents*")))
        return self.dir / f"events.out.tfevents.{int(at)}.{self._uid}{f'.{earlier}' if earlier else ''}"

    def _begin(self, file: EventFile) -> None:
        self._file, self._kinds, self._last_step = file, {}, 0
        for event in self._head:
            file.add(event)

    def _folder(self, uid: str) -> Path:
        if self.logdir is not None:
            return self.logdir / uid
        recording = recording_of(uid)
        return Path("my_runs") / "_tensorboard" / uid if recording is None else recording.folder / "tensorboard"

    # ------------------------------------------------------------------ a run goes on

    @guarded
    def log_metrics(self, metrics_by_name: dict[str, dict[str, Sequence]], info: dict) -> None:
        """Write new points."""
        if self._file is None:
            return
        for name, new in metrics_by_name.items():
            tag = self._tag(name, "scalar")
            for step, value, at in zip(new["steps"], new["values"], new["timestamps"], strict=True):
                self._add_scalar(tag, value, step, at.replace(tzinfo=UTC).timestamp())
        self._file.flush()

    def _add_scalar(self, tag: str, value: Any, step: Any, at: float) -> None:
        from observers.tensorboard import events

        event = events.scalar_event(tag, value, step, at)
        if event is not None:
            self._file.add(event)
            if not tag.startswith("system/"):  # their steps are seconds
                self._last_step = max(self._last_step, events.as_step(step))

    @guarded
    def media_event(self, entries: Sequence[MediaEntry]) -> None:
        """Write images, figures, histograms, texts and tables."""
        from observers.tensorboard import events

        if self._file is None:
            return
        for entry in entries:
            if entry.content is not None:
                for event in events.media_events(self._tag(entry.name, entry.kind), entry):
                    self._file.add(event)
        self._file.flush()

    @guarded
    def rewind_event(self, position: Position, step: int | None = None) -> None:
        """Write the record, which the `FileObserver` has rewound, to a new file in the place of all others."""
        from observers.tensorboard import events

        recording = recording_of(self._uid)
        if self._file is None or recording is None:
            _log.warning(
                "%s: the event files keep what was rewound; attach a FileObserver, whose record makes them anew",
                self.dir,
            )
            return
        self._file.close()
        earlier, path = list(self.dir.glob("*tfevents*")), self._new_path(time.time())
        temporary = self.dir / "rewinding.tmp"
        temporary.unlink(missing_ok=True)
        self._begin(EventFile(temporary))
        # A TensorBoard that looks on forgets what it has read so far.
        self._file.add(events.restart(-events.LAST_STEP, time.time()))
        if self._graph is not None:
            self._file.add(self._graph)
        self._add_recorded(recording.folder, recording.start)
        self._file.close()
        temporary.rename(path)
        for file in earlier:
            os.truncate(file, 0)  # where one is gone, TensorBoard does not go on to the next
        self._file = EventFile(path)

    def _add_recorded(self, folder: Path, start: datetime) -> None:
        """Write all points and media of a record."""
        from observers.tensorboard import events

        began = start.replace(tzinfo=UTC).timestamp()
        for name, series in read_metrics(folder).items():
            tag = self._tag(name, "scalar")
            rows = zip(series.steps.tolist(), series.values.tolist(), series.times.tolist(), strict=True)
            for step, value, seconds in rows:
                self._add_scalar(tag, value, step, began + seconds)
            self._file.flush()
        for entry in recorded_media(folder, began):
            for event in events.media_events(self._tag(entry.name, entry.kind), entry):
                self._file.add(event)
            self._file.flush()

    def _tag(self, name: str, kind: str) -> str:
        """Return the tag of a series; TensorBoard shows one kind a tag, so that a second one gets a tag of its own."""
        return name if self._kinds.setdefault(name, kind) == kind else f"{name}/{kind}"

    @guarded
    def graph_event(self, model: Any, inputs: Any) -> None:
        """Write the graph of a model; one that cannot be traced is told of, and left out."""
        from observers.tensorboard import events
        from observers.tensorboard.model_graph import graph_of

        if self._file is None:
            return
        try:
            graph = graph_of(model, inputs)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            _log.warning("the graph of %s cannot be drawn: %s: %s", type(model).__name__, type(error).__name__, reason)
            return
        self._graph = events.graph_event(graph, time.time())
        self._file.add(self._graph)

    @guarded
    def heartbeat_event(self, info: dict, captured_out: str, beat_time: datetime, result: Any) -> None:
        """Try again what could not be written."""
        if self._file is not None:
            self._file.flush()

    # ------------------------------------------------------------------ a run ends

    @guarded
    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Write that the run came to its end, and a result that is a number as the metric `result`."""
        if self._file is not None and isinstance(result, int | float):
            at = stop_time.replace(tzinfo=UTC).timestamp()
            self._add_scalar(self._tag("result", "scalar"), result, self._last_step, at)
        self._end(stop_time, completed=True)

    @guarded
    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Write that the run was interrupted."""
        self._end(interrupt_time, completed=False)

    @guarded
    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Write that the run failed."""
        self._end(fail_time, completed=False)

    def _end(self, at: datetime, *, completed: bool) -> None:
        from observers.tensorboard import events

        if self._file is not None:
            self._file.add(events.session_end(completed, at.replace(tzinfo=UTC).timestamp()))
            self._file.close()
