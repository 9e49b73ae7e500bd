"""`LabRun`: Sacred's Run, with metrics that are cheap to log, and signals that end it truthfully."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from sacred.observers import RunObserver
from sacred.run import Run

from experiments.running import artifacts as run_artifacts
from experiments.running.captured_output import read_new
from experiments.running.media_buffer import MediaBuffer
from experiments.running.metrics_buffer import MetricsBuffer
from experiments.running.signals import Signals
from experiments.running.system_metrics import Sampler
from observers.artifacts.version import ArtifactVersion
from observers.media.kinds import Media
from observers.record.point_log import PointLog
from observers.record.resuming import ResumeError

__all__ = ["LabRun"]

_log = logging.getLogger(__name__)

BEAT_INTERVAL_S = 1.0


class LabRun(Run):
    """A run of Sacred as the lab runs it.

    Made from a `sacred.run.Run` by `LabRun.adopt`, because Sacred builds its runs itself.
    """

    @classmethod
    def adopt(cls, run: Run, beat_interval_s: float | None = None, system_metrics_s: float | None = None) -> LabRun:
        """Turn Sacred's `run`, which has not started, into one of the lab's.

        Args:
            run: The run.
            beat_interval_s: Time between two beats; None is one second.
            system_metrics_s: Time between two samples of the machine's load; None takes none.
        """
        run.__class__ = cls
        # Of two that record in the same place, as SACRISTAN_RECORD_TO can make them, one is enough.
        run.observers = [o for place, o in enumerate(run.observers) if o not in run.observers[:place]]
        run._metrics = MetricsBuffer()
        run.system_metrics_s = system_metrics_s
        run._sampler = None
        run._media = MediaBuffer()
        run._deaf = set()
        run._beating = threading.RLock()
        run._signals = Signals()
        run._num_trainings = 0
        run.is_continued = run._was_rewound = False
        run.beat_interval = BEAT_INTERVAL_S if beat_interval_s is None else beat_interval_s
        return run

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log many metrics, and media, at one step.

        Args:
            values: By name; numbers, or scalars of numpy and torch; or media, see `log_media`.
            step: The step of all; without one, each metric goes on by itself.

        Raises:
            TypeError, ValueError: If some of it cannot be logged; the rest is.
        """
        errors: list[Exception] = []
        for name, value in values.items():
            try:
                if isinstance(value, Media):
                    self.log_media(name, value, step)
                else:
                    self._metrics.log_scalar_metric(name, value, step)
            except (TypeError, ValueError) as error:
                errors.append(error)
        if errors:
            raise type(errors[0])("; ".join(map(str, errors))) from errors[0].__cause__

    def log_media(self, name: str, media: Media, step: int | float | None = None) -> None:
        """Log an `Image`, `Figure`, `Histogram`, `Text` or `Table` of the package `observers`.

        Its file is made and written with the run's beats. Names of media and of metrics do not get in each other's way.

        Args:
            name: The series it belongs to.
            media: What to log.
            step: Its step; without one, one above the last of that name.

        Raises:
            TypeError: If it is something else, or the step no number.
        """
        self._media.add(name, media, step)

    def log_artifact(
        self, name: str, path: str | Path, type: str = "dataset", metadata: Mapping[str, Any] | None = None
    ) -> ArtifactVersion:
        """Keep a file or folder as a version of an artifact, beside the runs; its files are copied by their content.

        The same content under the same name gives the version that is there. The work is done here, by the caller's
        thread, before this returns; MongoDB gets it later. Other than what else is recorded, it raises when it cannot
        be kept, as on a full disk, because its outcome matters; then nothing half-written stays.

        Args:
            name: Of the artifact: letters, digits, dots, underscores, hyphens.
            path: The file or folder. Links that leave the folder are refused.
            type: Such as dataset, model, code.
            metadata: What JSON holds, by name.

        Raises:
            ArtifactError: If the run is not recorded, or the artifact cannot be read or kept.
        """
        return run_artifacts.log_artifact(self, name, path, type, metadata)

    def use_artifact(self, reference: str) -> ArtifactVersion:
        """Return a version of an artifact, and note that this run used it.

        The folder of runs is looked into first, then MongoDB, from which contents are downloaded.

        Args:
            reference: `name` or `name:latest`, `name:v3`, or `name@` and the start of its digest.

        Raises:
            ArtifactError: If there is no such version, it is damaged, or the run is not recorded.
        """
        return run_artifacts.use_artifact(self, reference)

    def log_graph(self, model: Any, inputs: Any) -> None:
        """Give a model to the observers that draw its graph, such as a TensorBoardObserver; without any it is free.

        A copy of the model takes one step forward, here and now; the training is not touched by it.

        Args:
            model: A module of torch.
            inputs: What it is called with: a tensor, or a tuple of them.
        """
        self._emit("graph_event", model=model, inputs=inputs)

    # ------------------------------------------------------------------ going back, and going on

    def position(self) -> dict[str, dict[str, list]]:
        """Return how much was logged so far, in all sessions of the run: what `rewind` goes back to.

        It holds dicts, lists, strings and numbers alone: `{"metrics": {name: [count, last step]}, "media": {...}}`.
        Metrics of the machine, `system/...`, are no part of it. Nothing is waited for.
        """
        return {"metrics": self._metrics.position(), "media": self._media.position()}

    def flush(self) -> None:
        """Write down all that was logged up to now; it is in the observers' files, on the disk, when this returns.

        Any thread may call it. What cannot be written is said, and tried again with each beat.
        """
        with self._beating:
            self._write_down()
            self._emit("flush_event")

    def rewind(self, position: Mapping[str, Mapping[str, list]] | None = None, step: int | None = None) -> None:
        """Take the record back to a position: what was logged beyond it, in this session or an earlier one, is gone.

        Counts and automatic steps go on from there. `system/...` stays.

        Args:
            position: What `position` returned; None is the beginning, where nothing is logged.
            step: The training's step that goes with it, noted in the run's history; by default one above the greatest
                step of a metric there.

        Raises:
            ResumeError: If the record cannot be written. It is whole, and can be rewound again.
        """
        position = position or {"metrics": {}, "media": {}}
        self._was_rewound = True
        with self._beating:
            self._write_down()
            deaf = [type(o).__name__ for o in self.observers if not hasattr(o, "rewind_event") and _takes_metrics(o)]
            if deaf:
                _log.warning("what is taken back of this run stays where %s put it", ", ".join(deaf))
            reached = position
            for observer in self.observers:
                if hasattr(observer, "rewind_event"):
                    reached = observer.rewind_event(position, step) or reached
            self._go_on_from(position, reached)

    def _go_on_from(self, position: Mapping[str, Mapping[str, list]], reached: Mapping) -> None:
        """Count on from what the record has, and step on from what it should have."""
        for kind, buffer in (("metrics", self._metrics), ("media", self._media)):
            counts = {name: entry[0] for name, entry in reached[kind].items()}
            buffer.go_on_from({name: [counts.get(name, 0), step] for name, (_, step) in position[kind].items()})

    def _write_down(self) -> None:
        """Give the observers all that was logged up to now."""
        self._beat()
        self._emit_media(math.inf)

    def _beat(self) -> None:
        """Do what Sacred's heartbeat does; points go to the logs of the observers that have one, as they are."""
        beat_time = datetime.now(UTC).replace(tzinfo=None)
        self._get_captured_output()
        metrics = self._metrics.take()
        for observer in self.observers:
            if _takes_sacreds_metrics(observer):
                self._safe_call(observer, "log_metrics", metrics_by_name=metrics, info=self.info)
            self._safe_call(
                observer,
                "heartbeat_event",
                info=self.info,
                captured_out=self.captured_out,
                beat_time=beat_time,
                result=self.result,
            )

    def _emit_started(self) -> None:
        wanted = self.meta_info.get("resume")
        if wanted is not None and not any(hasattr(observer, "is_continued") for observer in self.observers):
            self.start_time = datetime.now(UTC).replace(tzinfo=None)  # Sacred counts from it how long it took to fail
            raise ResumeError(
                f"{wanted} cannot be continued: a run goes on in the folder of its record, and nothing here records in "
                f"one; attach a FileObserver (-F {Path(wanted).parent}). A run in MongoDB alone cannot be continued"
            )
        super()._emit_started()
        logs = [log for observer in self.observers if (log := _open_points(observer)) is not None]
        self._metrics.write_to(logs, keeps_new=any(map(_takes_sacreds_metrics, self.observers)))
        continued = next((observer for observer in self.observers if getattr(observer, "is_continued", False)), None)
        if continued is not None:
            position = continued.journal.position()
            self._go_on_from(position, position)

    def __call__(self, *args: Any) -> Any:
        """Start the run; signals end it as INTERRUPTED, with the signal's name in its meta entry."""
        self.main_function = self._freeing(self.main_function)
        with self._signals.handled():
            result = super().__call__(*args)
        if self.is_continued and not self._was_rewound:
            _log.warning(
                "this run was continued, but nothing took up its checkpoint, so that its points follow those of "
                "before; give the run to the checkpointer: make_checkpointer(folder, _config, run=_run)"
            )
        return result

    def _freeing(self, function: Callable) -> Callable:
        """Return a function that lets go of its variables where it fails, but for a debugger.

        They would live as long as the error, workers of a loader among them, which hold the output that Sacred waits
        for.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                if not (self.pdb or self.debug):
                    traceback.clear_frames(error.__traceback__)
                raise

        return call

    @property
    def uid(self) -> str | None:
        """Its id over all stores; None of a run that is not recorded."""
        return self.meta_info.get("uid")

    def count_training(self) -> int:
        """Return the number of the training that begins now: 1 for the run's first one."""
        self._num_trainings += 1
        return self._num_trainings

    def signals_deferred(self) -> contextlib.AbstractContextManager[None]:
        """Hold back the first signal that would end the run; see `stopping`."""
        return self._signals.deferred()

    @property
    def stopping(self) -> int | None:
        """Number of the signal that was held back; None before one came."""
        return self._signals.stopping

    def stop(self, step: int | None = None) -> NoReturn:
        """End the run by the signal that was held back.

        Args:
            step: The optimizer step that a checkpoint was saved after, if one was.
        """
        self._signals.stop(step)

    def _emit_interrupted(self, status: str) -> None:
        error = sys.exc_info()[1]
        self.meta_info["interrupted_by"] = getattr(
            error, "signal", "SIGINT" if isinstance(error, KeyboardInterrupt) else status
        )
        # Another signal is not to leave a record that says RUNNING.
        with self._signals.shielded():
            super()._emit_interrupted(status)

    def _start_heartbeat(self) -> None:
        # Output that is no UTF-8 would end the run where Sacred decodes it.
        with contextlib.suppress(AttributeError, OSError):
            self._output_file.buffer.reconfigure(errors="replace")
        self._output_file.finalize = self._alone(self._output_file.finalize)
        super()._start_heartbeat()
        if self.system_metrics_s is not None and self.observers and self._heartbeat is not None:
            self._start_sampler()

    def _start_sampler(self) -> None:
        folder = next((observer.dir for observer in self.observers if getattr(observer, "dir", None)), ".")
        try:
            elapsed_s = max((getattr(observer, "elapsed_s", 0.0) for observer in self.observers), default=0.0)
            sampler = Sampler(self._metrics.log_scalar_metric, folder, self.system_metrics_s, elapsed_s=elapsed_s)
            sampler.start()
        except Exception as error:
            _log.warning("system metrics: got %s: %s; the run goes on without them", type(error).__name__, error)
        else:
            self._sampler = sampler

    def _emit_heartbeat(self) -> None:
        with self._beating:
            try:
                self._beat()
                # After the beat, and for no longer than one, so that the run is seen to live.
                self._emit_media(time.monotonic() + self.beat_interval)
            except Exception:
                # Sacred's thread would end with it, and with that thread the record.
                _log.exception("a heartbeat failed; the run goes on, and so does its record")

    def _emit_media(self, until: float) -> None:
        """Make the files of logged media, and give them to the observers that take any."""
        if not self.observers:
            self._media.clear()
        entries = self._media.take(until)
        if not entries:
            return
        self._warn_of_deaf("media_event", "what is logged as media")
        self._emit("media_event", entries=entries)

    def _emit(self, event: str, **arguments: Any) -> None:
        """Tell the observers that take it of an event; what they raise is logged."""
        for observer in self.observers:
            if hasattr(observer, event):
                try:
                    getattr(observer, event)(**arguments)
                except Exception:
                    _log.exception("%s: %s failed; the run goes on", type(observer).__name__, event)

    def _warn_of_deaf(self, event: str, what: str) -> None:
        """Say once which observers do not take an event."""
        deaf = [o for o in self.observers if not hasattr(o, event) and (id(o), event) not in self._deaf]
        if deaf:
            self._deaf |= {(id(observer), event) for observer in deaf}
            names = ", ".join(type(observer).__name__ for observer in deaf)
            _log.warning("%s: not kept by %s; attach an observers.FileObserver", what, names)

    def _stop_heartbeat(self) -> None:
        # Its last sample goes with the last beat.
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        # Sacred gives the last beat two seconds, and then ends the record without what it still had to write.
        if self._heartbeat is not None:
            self._stop_heartbeat_event.set()
            self._heartbeat.join()
            self._heartbeat = None
            with self._beating:
                self._write_down()  # The thread is gone where a beat failed, with all that was logged since.
        with self._beating:
            self._emit_media(math.inf)

    def _alone(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return `function`, which waits for a beat that is under way: Sacred closes what that may be reading."""

        def alone() -> None:
            with self._beating:
                function()

        return alone

    def _get_captured_output(self) -> None:
        with self._beating:
            new = "" if self._output_file is None else read_new(self._output_file)
            if new:
                self.captured_out += new if self.captured_out_filter is None else self.captured_out_filter(new)


def _open_points(observer: Any) -> PointLog | None:
    """Return the log that an observer keeps of the run's points, if it keeps one."""
    return observer.open_points() if hasattr(observer, "open_points") else None


def _takes_sacreds_metrics(observer: Any) -> bool:
    """Tell whether an observer is given points as Sacred gives them."""
    return not hasattr(observer, "open_points") and _takes_metrics(observer)


def _takes_metrics(observer: Any) -> bool:
    return getattr(type(observer), "log_metrics", None) not in (None, RunObserver.log_metrics)
