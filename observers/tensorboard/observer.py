"""`TensorBoardObserver`: writes a run's metrics, media, model graph and hyper-parameters as TensorBoard's event files.

    tensorboard --logdir my_runs

It needs the extra `tensorboard`, which is loaded when a run starts. The files are only for display: the run's own
record is complete without them, and their numbers have TensorBoard's 32 bits.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacred.observers import RunObserver

from sacristan.configs.packages import missing_package
from sacristan.observers.errors import MissingExtraError
from sacristan.observers.file.recording import BeginningObserver, Recording, recording_of
from sacristan.observers.file.run_file import Beginning
from sacristan.observers.record.identity import new_uid
from sacristan.observers.record.interface import guarded
from sacristan.observers.record.media_files import MediaEntry
from sacristan.observers.record.points.rewinding import Position

if TYPE_CHECKING:
    from sacristan.observers.tensorboard.run_events import RunEvents

_log = logging.getLogger(__name__)

# The packages of the extra.
_NEEDED = ("tensorboard", "google_crc32c")


class TensorBoardObserver(BeginningObserver, RunObserver):
    """Writes event files, one for each session of a run.

    It gets events after the `FileObserver`, whose folder it writes to, and before the `MongoObserver`, whose spool is
    temporary.

        ex.observers.append(TensorBoardObserver())

    Args:
        logdir: Folder of the event files, with a subfolder for each run, named by its uid. By default, the subfolder
            `tensorboard` of the run's own folder; without a `FileObserver`, below `my_runs/_tensorboard`.
        priority: Observers of higher priority get events first.

    Attributes:
        dir: The folder of the run's event files; None before it starts.
        num_errors: Number of events that failed.

    Raises:
        MissingExtraError: If the extra `tensorboard` is not installed.
    """

    def __init__(self, logdir: str | Path | None = None, priority: int = 35) -> None:
        for name in _NEEDED:
            if importlib.util.find_spec(name) is None:
                raise MissingExtraError(missing_package("TensorBoardObserver needs", name, "tensorboard"))
        self.logdir = None if logdir is None else Path(logdir)
        self.priority = priority
        self.dir: Path | None = None
        self.num_errors = 0
        self._lock = threading.RLock()
        self._uid = ""
        self._recording: Recording | None = None
        self._events: RunEvents | None = None

    def begin_run(self, beginning: Beginning) -> None:
        """Begin the event files of a run that starts; a queued run gets none."""
        if not beginning.is_queued:
            self._own()
            self._begin(beginning)

    @guarded
    def _begin(self, beginning: Beginning) -> None:
        from sacristan.observers.tensorboard.run_events import RunEvents

        self._uid = beginning.meta_info.setdefault("uid", new_uid())
        self._recording = recording_of(self._uid) if self.logdir is None else None
        self.dir = self._folder()
        self._events = RunEvents(self.dir, self._uid, beginning.config, beginning.at.replace(tzinfo=UTC))

    def _folder(self) -> Path:
        if self._recording is not None:
            return self._recording.folder / "tensorboard"
        return (self.logdir or Path("my_runs") / "_tensorboard") / self._uid

    def _flush(self, run_events: RunEvents) -> None:
        """Write the added events, after the run's folder if it was moved."""
        if self.dir != self._folder():
            self.dir = self._folder()
            run_events.follow(self.dir)
        run_events.flush()

    @guarded
    def log_metrics(self, metrics_by_name: Mapping[str, Mapping[str, Sequence[Any]]], info: dict[str, Any]) -> None:
        if self._events is None:
            return
        for name, new in metrics_by_name.items():
            times = (at.replace(tzinfo=UTC).timestamp() for at in new["timestamps"])
            self._events.add_scalars(name, zip(new["steps"], new["values"], times, strict=True))
        self._flush(self._events)

    @guarded
    def media_event(self, entries: Sequence[MediaEntry]) -> None:
        """Write the media that TensorBoard can show.

        Args:
            entries: New media of the run, in the order of logging; others are left to the run's own record.
        """
        if self._events is not None:
            self._events.add_media(entries)
            self._flush(self._events)

    @guarded
    def rewind_event(self, position: Position, step: int | None = None) -> None:
        """Replace the event files by one with the content of the record, which the `FileObserver` has rewound.

        Without a `FileObserver` they stay as they are, and a warning says so.

        Args:
            position: The position that the record was rewound to; the record itself decides.
            step: The step of that position.
        """
        recording = recording_of(self._uid)
        if self._events is None or recording is None:
            _log.warning(
                "%s: the event files keep what was rewound; attach a FileObserver to have them rewound",
                self.dir,
            )
            return
        self._events.rewrite(recording.folder, recording.start)

    @guarded
    def graph_event(self, model: Any, inputs: Any) -> None:
        """Write the graph of a model; if the model cannot be traced, log a warning instead.

        Args:
            model: A module of torch.
            inputs: A tensor, or a tuple of them, that the model takes.
        """
        if self._events is not None:
            self._events.add_graph(model, inputs)

    @guarded
    def heartbeat_event(self, info: dict[str, Any], captured_out: str, beat_time: datetime, result: Any) -> None:
        # Retries writes that failed.
        if self._events is not None:
            self._flush(self._events)

    def output_event(self, text: str) -> None:
        """Ignore output; with this method, heartbeats come without it."""

    @guarded
    def completed_event(self, stop_time: datetime, result: Any) -> None:
        if self._events is not None and isinstance(result, int | float):
            self._events.add_result(result, stop_time.replace(tzinfo=UTC))
        self._end(stop_time, completed=True)

    @guarded
    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        self._end(interrupt_time, completed=False)

    @guarded
    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        self._end(fail_time, completed=False)

    def _end(self, at: datetime, *, completed: bool) -> None:
        if self._events is not None:
            self._flush(self._events)
            self._events.end(at.replace(tzinfo=UTC), completed=completed)
