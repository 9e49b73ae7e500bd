"""`Recorder`: carries what a run logs and prints to its observers, with each heartbeat."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from sacred.observers import RunObserver
from sacred.run import Run
from sacred.stdout_capturing import CapturedStdout
from sacred.utils import SacredInterrupt

from sacristan.experiments.running.added_settings import merge, note_origins
from sacristan.experiments.running.buffers import MediaBuffer, MetricsBuffer
from sacristan.experiments.running.captured_output import Spill, read_parts, record_replaced, take_from_memory
from sacristan.experiments.running.one_run import Owner
from sacristan.experiments.running.system_metrics import Sampler
from sacristan.observers.errors import MediaError, MetricError
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.media.kinds import Media
from sacristan.observers.record import interface, run_clock
from sacristan.observers.record.points.rewinding import Position, num_missing

_log = logging.getLogger(__name__)
# Changes of the config that are sent at once.
_MOST_CONFIGS = 100


class Recorder:
    """Buffers metrics, media and output of a run, and writes them to its observers; these may change until `begin`.

    Any thread may log; writing is for the one that holds `lock`. Forked children of the `owner` write nothing.
    """

    def __init__(self, run: Run, metrics: MetricsBuffer, owner: Owner) -> None:
        self.metrics = metrics
        self.media = MediaBuffer()
        self.lock = threading.RLock()
        self.was_rewound = False
        self._run = run
        self._owner = owner
        self._output = Spill()
        self._sampler: Sampler | None = None
        self._has_begun = False
        # Whether the observers have not seen the config yet, and how many of them they have seen.
        self._has_new_config, self._num_configs = False, 0
        # Ids of the observers that were reported to keep no media.
        self._without_media: set[int] = set()

    def after_fork_in_child(self) -> None:
        """Release the parent's record. Its threads are gone in a child, and their locks would never be released."""
        self.metrics.after_fork_in_child()
        self._sampler = None
        self.lock = threading.RLock()

    # ------------------------------------------------------------------ beginning and end

    def begin(self) -> None:
        """Write metrics to the logs of the started observers; counts continue from a resumed record."""
        opened = (
            observer.open_points() for observer in self._run.observers if isinstance(observer, interface.PointObserver)
        )
        logs = [log for log in opened if log is not None]
        self.metrics.write_to(logs, keeps_new=any(map(_takes_sacreds_metrics, self._run.observers)))
        self._has_begun = True
        resumed = self._resumed()
        if resumed:
            position = resumed[0].position()
            self._count_from(position, position)

    def start_sampling(self, folder: Path | None, interval_s: float) -> None:
        """Log metrics of the machine in a thread, until `end`; `folder` selects the disk, None the working folder."""
        earlier = (observer.elapsed_s for observer in self._run.observers if isinstance(observer, FileObserver))
        try:
            elapsed_s = max(earlier, default=0.0)
            sampler = Sampler(self.metrics.log_scalar_metric, folder or ".", interval_s, elapsed_s=elapsed_s)
            sampler.start()
        except Exception as error:
            _log.warning("system metrics: got %s: %s; the run continues without them", type(error).__name__, error)
        else:
            self._sampler = sampler

    def stop_sampling(self) -> None:
        """Take the last sample of the machine."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def end(self) -> None:
        """Write everything that is left after the last heartbeat."""
        with self.lock:
            if self._has_begun:
                self._write_down(last=True)

    # ------------------------------------------------------------------ logging

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Log numbers and media; see `LabRun.log`."""
        values = self.metrics.log_quickly(values, step)
        if not values:
            return
        errors: list[MetricError | MediaError] = []
        pruned = None
        for name, value in values.items():
            try:
                if isinstance(value, Media):
                    self.log_media(name, value, step)
                else:
                    self.metrics.log_scalar_metric(name, value, step)
            except (MetricError, MediaError) as error:
                errors.append(error)
            except SacredInterrupt as end:
                pruned = end
        if errors:
            raise type(errors[0])("; ".join(map(str, errors))) from errors[0].__cause__
        if pruned is not None:
            raise pruned

    def log_media(self, name: str, media: Media, step: int | float | None) -> None:
        """Log an image, a table, ...; see `LabRun.log_media`."""
        if not self._owner.leaves_out(f"the {type(media).__name__} {name!r}"):
            self.media.add(name, media, step)

    def update_config(self, values: Mapping[str, Any], typed: Iterable[str]) -> None:
        """Merge settings into the config, and send it to the observers, by heartbeats if it changes very often."""
        if self._owner.leaves_out("a change of the config"):
            return
        with self.lock:
            typed = list(typed)
            changed = merge(self._run.config, values)
            note_origins(self._run.meta_info, self._run.config, typed, changed)
            self._has_new_config |= bool(changed or typed)
            if self._num_configs < _MOST_CONFIGS:
                self._send_config()

    def _send_config(self) -> None:
        if not (self._has_new_config and self._has_begun):
            return
        self._has_new_config, self._num_configs = False, self._num_configs + 1
        for observer in self._run.observers:
            if isinstance(observer, interface.ConfigObserver):
                with reported(observer, "config_event"):
                    observer.config_event(self._run.config)

    def draw_graph(self, model: Any, inputs: Any) -> None:
        """Give a graph to the observers that draw graphs; see `LabRun.log_graph`."""
        for observer in self._run.observers:
            if isinstance(observer, interface.GraphObserver):
                with reported(observer, "graph_event"):
                    observer.graph_event(model, inputs)

    def places(self) -> list[str]:
        """Return the locations of the record that observers name, each once."""
        places = [observer.place for observer in self._run.observers if isinstance(observer, interface.HasPlace)]
        return list(dict.fromkeys(filter(None, places)))

    def losses(self) -> list[str]:
        """Return what the observers' records of the ended run lack, each once; empty if they are whole."""
        losses = [observer.loss for observer in self._run.observers if isinstance(observer, interface.HasLoss)]
        return list(dict.fromkeys(filter(None, losses)))

    # ------------------------------------------------------------------ heartbeats

    def beat(self, interval_s: float) -> None:
        """Write new data and log errors; media that take longer than `interval_s` to encode are written later."""
        with self.lock:
            try:
                self._send_heartbeat()
                self._send_media(time.monotonic() + interval_s)
            except Exception:
                # An error would end the heartbeat's thread, and the record with it.
                _log.exception("a heartbeat failed; the run continues, and so does its record")

    def flush(self) -> None:
        """Write everything that was logged, and wait until it is on the disk."""
        if self._owner.is_child:  # each of its points is written when it is logged
            return
        with self.lock:
            self._write_down()
            for observer in self._run.observers:
                if isinstance(observer, interface.BufferedObserver):
                    with reported(observer, "flush_event"):
                        observer.flush_event()

    def _write_down(self, *, last: bool = False) -> None:
        self._send_heartbeat(last=last)
        self._send_media(math.inf)

    def _send_heartbeat(self, *, last: bool = False) -> None:
        """Send Sacred's heartbeat to the observers; each with a log of points writes it then."""
        if self._owner.is_child:
            return
        run, beat_time = self._run, run_clock.utc_now()
        self.read_output()
        self._send_config()
        metrics = self.metrics.take(last=last)
        whole = "" if all(map(_takes_parts, run.observers)) else self.text()
        for observer in run.observers:
            if _takes_sacreds_metrics(observer):
                run._safe_call(observer, "log_metrics", metrics_by_name=metrics, info=run.info)
            run._safe_call(
                observer,
                "heartbeat_event",
                info=run.info,
                captured_out="" if _takes_parts(observer) else whole,
                beat_time=beat_time,
                result=run.result,
            )

    def _send_media(self, until: float) -> None:
        """Encode the logged media, none after `until` (monotonic clock), and send them to observers that keep media."""
        if not self._run.observers:
            self.media.clear()
        entries = self.media.take(until)
        if not entries:
            return
        unable = {}
        for observer in self._run.observers:
            if isinstance(observer, interface.MediaObserver):
                with reported(observer, "media_event"):
                    observer.media_event(entries)
            else:
                unable[id(observer)] = type(observer).__name__
        if unable.keys() - self._without_media:
            self._without_media |= unable.keys()
            names = ", ".join(unable.values())
            _log.warning("media are not recorded by %s; attach an observers.FileObserver", names)

    # ------------------------------------------------------------------ output

    def text(self) -> str:
        """Return the run's output so far, which is kept in a file."""
        with self.lock:
            return self._output.text()

    def replace_text(self, text: str) -> None:
        """Replace the output so far, as Sacred does when it creates a run."""
        with self.lock:
            self._output = Spill()
            self._output.append(text)

    def capture(self, out: CapturedStdout | None) -> None:
        """Read the run's output from Sacred's capture from now on; None if nothing is captured."""
        if out is None:
            return
        # Output that is no UTF-8 would end the run where Sacred decodes it.
        with contextlib.suppress(AttributeError, OSError):
            out.buffer.reconfigure(errors="replace")
        take_from_memory(out)
        out.finalize = self._after_reading(out, record_replaced(out))  # type: ignore[method-assign]  # Sacred calls it when the run ends

    def _after_reading(self, out: CapturedStdout, stop: Callable[[], None]) -> Callable[[], None]:
        """Return a function that reads the rest in parts, after any heartbeat, and closes the output as Sacred does."""
        finalize = out.finalize

        def close() -> None:
            with self.lock:
                stop()
                out.flush()
                self.read_output()
                finalize()

        return close

    def read_output(self) -> None:
        """Read the output since the last call, and pass it to the observers that take output in parts."""
        if self._owner.is_child:  # it has the parent's files
            return
        run = self._run
        with self.lock:
            for part in () if run._output_file is None else read_parts(run._output_file):
                if part:
                    self._add_output(part if run.captured_out_filter is None else run.captured_out_filter(part))

    def _add_output(self, text: str) -> None:
        for observer in filter(_takes_parts, self._run.observers if text else ()):
            with reported(observer, "output_event"):
                observer.output_event(text)
        self._output.append(text)

    # ------------------------------------------------------------------ positions, rewinding

    def position(self) -> Position:
        """Return how much was logged so far, in all sessions of the run; see `LabRun.position`."""
        return {"metrics": self.metrics.position(), "media": self.media.position()}

    def num_missing(self, position: Position) -> int:
        """Return how many points and media up to a position the record lacks; see `LabRun.num_missing`."""
        return max((num_missing(observer.held(position), position) for observer in self._resumed()), default=0)

    def rewind(self, position: Position | None, step: int | None) -> None:
        """Take the record back to a position; see `LabRun.rewind`."""
        position = position or {"metrics": {}, "media": {}}
        self.was_rewound = True
        with self.lock:
            self._write_down()
            reached, unable = position, []
            for observer in self._run.observers:
                if isinstance(observer, interface.RewindableObserver):
                    reached = observer.rewind_event(position, step) or reached
                elif _takes_sacreds_metrics(observer):
                    unable.append(type(observer).__name__)
            if unable:
                _log.warning("the record of %s cannot be rewound; it keeps what was logged beyond", ", ".join(unable))
            self._count_from(position, reached)

    def warn_unless_rewound(self) -> None:
        """Warn if a resumed run ends without having loaded a checkpoint."""
        if not self.was_rewound:
            _log.warning(
                "this run was resumed, but no checkpoint was loaded, so its points follow those of the earlier session;"
                " give the run to the checkpointer: make_checkpointer(folder, _config, run=_run)"
            )

    def _resumed(self) -> list[FileObserver]:
        return [o for o in self._run.observers if isinstance(o, FileObserver) and o.is_resumed]

    def _count_from(self, position: Position, reached: Position) -> None:
        """Continue the counts from what the record has, and the steps from what it should have."""
        counts = {kind: {name: entry[0] for name, entry in reached[kind].items()} for kind in ("metrics", "media")}
        for kind, buffer in (("metrics", self.metrics), ("media", self.media)):
            buffer.count_from({name: [counts[kind].get(name, 0), step] for name, (_, step) in position[kind].items()})


def _takes_sacreds_metrics(observer: RunObserver) -> bool:
    """Return whether an observer takes points in Sacred's form, through `log_metrics`."""
    return _has_sacreds_metrics(type(observer))  # type: ignore[arg-type]  # mypy asks the instance for its hash


def _takes_parts(observer: RunObserver) -> TypeGuard[interface.OutputObserver]:
    """Return whether an observer takes output in parts."""
    return _has_parts(type(observer))  # type: ignore[arg-type]  # mypy asks the instance for its hash


# Kept, because each heartbeat asks, and `isinstance` of a protocol goes through all of its members each time.
@functools.cache
def _has_parts(kind: type) -> bool:
    return issubclass(kind, interface.OutputObserver)


@functools.cache
def _has_sacreds_metrics(kind: type) -> bool:
    overrides = getattr(kind, "log_metrics", RunObserver.log_metrics) is not RunObserver.log_metrics
    return overrides and not issubclass(kind, interface.PointObserver)


@contextlib.contextmanager
def reported(observer: Any, event: str) -> Iterator[None]:
    """Log an error of an observer in the block; the run continues."""
    try:
        yield
    except Exception:
        _log.exception("%s: %s failed; the run continues", type(observer).__name__, event)
