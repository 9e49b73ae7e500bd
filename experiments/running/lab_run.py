"""`LabRun`: the run that captured functions receive as `_run`, composed of a recorder, signals, ranks and a trial."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import sacred
from sacred.host_info import get_host_info
from sacred.observers import RunObserver
from sacred.run import Run
from sacred.utils import IntervalTimer

from sacristan.configs.importing import resume_collection
from sacristan.experiments.running import artifacts as run_artifacts
from sacristan.experiments.running.captured_output import capturing_in_order
from sacristan.experiments.running.computed_config import ComputedConfig
from sacristan.experiments.running.failures import is_refusal
from sacristan.experiments.running.forking import Owner, watch
from sacristan.experiments.running.log_lines import Unframed
from sacristan.experiments.running.metrics_buffer import MetricsBuffer
from sacristan.experiments.running.notifying import Notifier
from sacristan.experiments.running.ranks import printing_to_record, publish_record, reporting_end
from sacristan.experiments.running.recorder import Recorder
from sacristan.experiments.running.resuming import check_resource, check_resumable, going_on_later, recorded_data
from sacristan.experiments.running.signals import Signals
from sacristan.experiments.running.trial import Pruned, ReportingBuffer, Trial
from sacristan.experiments.running.user_functions import guarded, guarded_main, printable, seed_torch_later
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.ranks.world import Notices
from sacristan.observers.artifacts.version import ArtifactVersion
from sacristan.observers.errors import ArtifactError, ResumeError
from sacristan.observers.media.kinds import Media
from sacristan.observers.record import run_clock
from sacristan.observers.record.directions import note_better
from sacristan.observers.record.points.rewinding import Position
from sacristan.observers.record.protocols import HasFolder, LeasedObserver

__all__ = ["LabRun"]

BEAT_INTERVAL_S = 1.0


class LabRun(Run):
    """A run of an `Experiment`, which captured functions receive as `_run`.

    Sacred's `Run` calls the main function and its observers. The rest is in the parts that this one holds: a `Recorder`
    carries logged values and output to the observers, `Signals` end the run truthfully, an `Owner` keeps forked
    children away from the record, `Notices` join the ranks of a launch, a `Trial` reports to a sweep, a `Notifier`
    sends messages.

    Args:
        computed: The config to run with, seeds included.
        experiment: The experiment that the run is of.
        trial: The trial of a sweep, or the entry of a queue, that the run is; None if it is neither.
        notices: Notices between the ranks of the run; None in a process alone.

    Attributes:
        config: The whole config.
        info: Facts about the run, by name; JSON. Recorded with each heartbeat.
        legacy_defaults: What settings meant before they existed, nested; see `Scope.legacy`.
        meta_info: Facts from outside of the run, such as its `uid`, its parent, a comment.
        observers: The observers that record it; none in a forked child.
        status: RUNNING, COMPLETED, INTERRUPTED, FAILED, ...; None before it starts.
        start_time, stop_time: In UTC, without a time zone.
        result: The return value of the command.
        beat_interval: Seconds between two heartbeats; 0 for none.
        system_metrics_s: Seconds between two samples of the machine's load; None for no samples.
        executed_cells: The cells of the notebook that starts it, as a script; empty without a notebook.
        is_resumed: Whether the run continues the record of an earlier session.
        expected_data: Fingerprint of the earlier session's training data; None if it is not known.
        launch_options: Options of the command line as they were typed, passwords included; never recorded.
        recorders: The observers that a recorded run would have, also for commands that are not recorded.
        check_settings: Function that rejects settings which a run of the experiment's main function cannot have. It
            takes the words after `with`, and further settings by dotted name, and raises a LabError.
        ingredients: The ingredients of the experiment, by name.
        notices: See above.
    """

    # Sacred's own, with the types that they have once a run is made.
    config: dict[str, Any]
    info: dict[str, Any]
    meta_info: dict[str, Any]
    observers: list[RunObserver]
    status: str | None
    start_time: datetime | None
    stop_time: datetime | None
    result: Any
    beat_interval: float
    _heartbeat: IntervalTimer | None
    _metrics: MetricsBuffer  # type: ignore[assignment]  # replaces Sacred's, which is slow and cannot be rewound

    check_settings: Callable[[Sequence[str], Mapping[str, Any]], None]

    def __init__(
        self,
        computed: ComputedConfig,
        experiment: sacred.Experiment,
        *,
        trial: Trial | None = None,
        notices: Notices | None = None,
    ) -> None:
        self._owner = Owner()
        self._recorder = Recorder(self, MetricsBuffer() if trial is None else ReportingBuffer(trial), self._owner)
        self._signals = Signals()
        self._notifier = Notifier(self)
        super().__init__(
            computed.values,
            computed.changes,
            computed.function,
            list(experiment.observers),
            computed.root_logger,
            computed.run_logger,
            experiment.get_experiment_info(),
            get_host_info(experiment.additional_host_info),
            computed.pre_run_hooks,
            computed.post_run_hooks,
            experiment.captured_out_filter,
        )
        self._metrics = self._recorder.metrics
        self.legacy_defaults = computed.legacy_defaults
        self.unobserved = getattr(computed.function, "unobserved", False)
        if self.unobserved:
            self.run_logger = Unframed(self.run_logger)
        self.beat_interval = BEAT_INTERVAL_S
        self.system_metrics_s: float | None = None
        self.executed_cells = ""
        self.is_resumed = False
        self._exit: SystemExit | None = None
        self.expected_data: str | None = None
        self.launch_options: dict[str, Any] = {}
        self.recorders: tuple[Any, ...] = ()
        self.ingredients: Mapping[str, Ingredient] = {
            part.path: part for part, _ in list(experiment.traverse_ingredients()) if part is not experiment
        }
        self.notices = notices
        self._print_to_record: Callable[[], None] = lambda: None
        self._num_trainings = 0
        self._trial = trial
        if trial is not None and trial.note is not None:
            self.meta_info["sweep"] = trial.note
            note_better(self.info, trial.goals)

    def resume(self, folder: Path) -> None:
        """Continue the record of an earlier session; to be called before the run starts.

        Args:
            folder: The folder of that record.
        """
        self.is_resumed = True
        self.meta_info["resume"] = str(folder)
        self.expected_data = recorded_data(folder)
        self._notifier.resume(folder)

    @property
    def uid(self) -> str | None:
        """Globally unique id; None before the run starts, and of a run that is not recorded."""
        return self.meta_info.get("uid")

    @property
    def folder(self) -> Path | None:
        """The folder of its record; None before it starts, and where no observer has one."""
        folders = (observer.dir for observer in self.observers if isinstance(observer, HasFolder))
        return next((Path(folder) for folder in folders if folder), None)

    # ------------------------------------------------------------------ logging

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log many metrics, and media, at one step.

            _run.log({"train/loss": loss, "weights": Histogram(model.weight)}, step)

        Args:
            values: By name: numbers, scalars of numpy and torch, or media; see `log_media`.
            step: The step of all values; None counts each metric and each series of media on from its last step.

        Raises:
            MetricError: If a value is no metric; the others are logged.
            MediaError: As `log_media`; the others are logged.
            Pruned: If the sweep of this trial ends the run here; all values are logged.
        """
        self._recorder.log(values, step)

    def log_media(self, name: str, media: Media, step: int | float | None = None) -> None:
        """Log an `Image`, a `Table`, a `Video` or another of the `Media` of the package `observers`.

        The run's heartbeats encode and write its file. Media and metrics may have the same names.

        Args:
            name: Name of the series that it belongs to.
            media: The image, table, ...
            step: Its step; None is one above the last step of that series.

        Raises:
            MediaError: If `media` is of another type, the name is no string, or the step no number.
        """
        self._recorder.log_media(name, media, step)

    def log_artifact(
        self, name: str, path: str | Path, type: str = "dataset", metadata: Mapping[str, Any] | None = None
    ) -> ArtifactVersion:
        """Keep a file or folder as a version of an artifact, beside the runs.

        Files are copied by their content, in the caller's thread, before this returns; MongoDB gets them later. Content
        that is stored under the name already gives the version that has it. Unlike other logging, it raises where it
        fails, as on a full disk, because its outcome matters; nothing half-written stays.

        Args:
            name: Name of the artifact: letters, digits, dots, underscores, hyphens.
            path: The file or folder. Links that leave the folder are rejected.
            type: Its type, such as dataset, model, code.
            metadata: Facts about it, by name; JSON.

        Returns:
            The version.

        Raises:
            ArtifactError: If the run is not recorded, or the artifact cannot be read or kept.
        """
        self._owner.check("log artifacts", ArtifactError)
        return run_artifacts.log_artifact(self, name, path, type, metadata)

    def use_artifact(self, reference: str) -> ArtifactVersion:
        """Return a version of an artifact, and note that this run used it.

        It is looked up in the folder of runs first, then in MongoDB, from which its contents are downloaded.

        Args:
            reference: `name` or `name:latest`, `name:v3`, or `name@` and the start of its digest.

        Raises:
            ArtifactError: If there is no such version, it is damaged, or the run is not recorded.
        """
        self._owner.check("use artifacts", ArtifactError)
        return run_artifacts.use_artifact(self, reference)

    def log_graph(self, model: Any, inputs: Any) -> None:
        """Draw the graph of a model, where an observer such as `TensorBoardObserver` draws any.

        A copy of the model takes one step forward in this call; the training is not changed by it.

        Args:
            model: A `torch.nn.Module`.
            inputs: Arguments of its forward step: a tensor, or a tuple of them.
        """
        self._recorder.draw_graph(model, inputs)

    def update_config(self, values: Mapping[str, Any], typed: Iterable[str] = ()) -> None:
        """Add settings to the config of a run that has begun, such as those that a script has parsed.

            _run.update_config({"lr": 0.1, "model": {"width": 64}}, typed=["lr"])

        Objects are recorded as text, and texts with the name of a secret, such as `api_key`, are hidden.

        Args:
            values: Settings, nested or by dotted name; they are merged into `config`.
            typed: Dotted names of those that somebody typed; the others are defaults.
        """
        self._recorder.update_config(values, typed)

    def note_better(self, directions: Mapping[str, str]) -> None:
        """Record whether greater or smaller values of metrics, or of the run's `result`, are better.

            _run.note_better({"result": "max", "val/f1": "max"})

        Args:
            directions: `max` or `min` by name; a metric's holds for `train/`, `val/` and `test/` alike.

        Raises:
            ValueError: If a direction is neither.
        """
        note_better(self.info, directions)

    def alert(self, text: str, level: str = "warning") -> None:
        """Record a text that deserves attention, and send it as a notification, where addresses are set.

            _run.alert(f"loss jumped to {loss:.3g}", level="error")

        A run keeps 100 alerts, at most 5 a minute, of 1000 characters each; more are dropped. Nothing is waited for.

        Args:
            text: The text.
            level: `info`, `warning` or `error`.

        Raises:
            ValueError: If the level is another one.
        """
        if not self._owner.leaves_out("the alert"):
            self._notifier.alert(text, level)

    def _emit_resource_added(self, filename: str) -> None:
        check_resource(filename)
        if not self._owner.leaves_out(f"the resource {filename}"):
            super()._emit_resource_added(filename)

    def _emit_artifact_added(
        self, name: str, filename: str, metadata: dict[str, Any] | None, content_type: str | None
    ) -> None:
        if not self._owner.leaves_out(f"the artifact {name!r}"):
            run_artifacts.keep_artifact(self, name, filename, metadata, content_type)

    # ------------------------------------------------------------------ the record

    def position(self) -> Position:
        """Return how much was logged so far, in all sessions of the run; `rewind` goes back to it.

        It holds dicts, lists, strings and numbers alone: `{"metrics": {name: [count, last step]}, "media": {...}}`.
        Metrics of the machine, `system/...`, are no part of it. Nothing is waited for.
        """
        return self._recorder.position()

    def num_missing(self, position: Position) -> int:
        """Return how many points and media up to a position are missing from the record of earlier sessions.

        Args:
            position: A return value of `position`.

        Returns:
            The number; of a run that is recorded in several places, for the one that lacks most.
        """
        return self._recorder.num_missing(position)

    def flush(self) -> None:
        """Write all that was logged up to now; the observers' files have it, on the disk, when this returns.

        Any thread may call it. What cannot be written is logged, and tried again with each heartbeat.
        """
        self._recorder.flush()

    def rewind(self, position: Position | None = None, step: int | None = None) -> None:
        """Take the record back to a position; what was logged beyond it, in this or an earlier session, is deleted.

        Counts and automatic steps continue from there. `system/...` stays.

        Args:
            position: A return value of `position`; None is the beginning, where nothing is logged.
            step: The training's step at that position, for the run's history; None is one above the greatest step of
                a metric there.

        Raises:
            ResumeError: If the record cannot be written. It is whole, and can be rewound again.
        """
        self._owner.check("rewind its record", ResumeError)
        self._recorder.rewind(position, step)

    @property
    def captured_out(self) -> str:
        """The output of the run so far; it is kept in a file, and read from there."""
        return self._recorder.text()

    @captured_out.setter
    def captured_out(self, text: str) -> None:
        self._recorder.replace_text(text)

    def _start_heartbeat(self) -> None:
        self._recorder.capture(self._output_file)
        if self.beat_interval <= 0:
            return
        self._stop_heartbeat_event, self._heartbeat = IntervalTimer.create(self._emit_heartbeat, self.beat_interval)
        # An error where Sacred ends a run, such as a user's own time limit, must not keep the process alive.
        self._heartbeat.daemon = True
        self._heartbeat.start()
        if self.system_metrics_s is not None and self.observers:
            folder = None if self.folder is None else self.folder.absolute()  # the working folder may change
            self._recorder.start_sampling(folder, self.system_metrics_s)

    def _emit_heartbeat(self) -> None:
        self._recorder.beat(self.beat_interval)

    def _get_captured_output(self) -> None:
        self._recorder.read_output()

    def _stop_heartbeat(self) -> None:
        self._recorder.stop_sampling()  # its last sample goes with the last heartbeat
        # Sacred waits two seconds for the last heartbeat, and then ends the record without what is still to be written.
        if self._heartbeat is not None:
            self._stop_heartbeat_event.set()
            self._heartbeat.join()
            self._heartbeat = None
        self._recorder.end()

    # ------------------------------------------------------------------ how it begins and ends

    def before_fork(self) -> None:
        """Get ready for a forked child: make the file that it sends its points by."""
        self._metrics.before_fork()

    def after_fork_in_child(self) -> None:
        """Let go of everything that belongs to the parent."""
        self._owner.is_child = True
        self.observers = []
        self._heartbeat = None
        self._recorder.after_fork_in_child()
        self._notifier.after_fork_in_child()
        self._signals.after_fork_in_child()
        # The child's copy of the captured output must not delete the parent's file when it closes.
        with contextlib.suppress(AttributeError):
            self._output_file.buffer._closer.delete = False  # type: ignore[union-attr]  # None is suppressed, too

    def __call__(self, *args: Any) -> Any:
        """Start the run; signals end it as INTERRUPTED, with the signal's name in its meta entry.

        Raises `ConcurrentRunError`, and records nothing, if another agent of the sweep has taken over the trial.
        `SystemExit` after `sys.exit(0)` in the main function: the run is completed, without a result.
        """
        if self._trial is not None:
            self._trial.wait_for_begin()
        self._signals.is_patient = self.notices is not None or self._trial is not None
        seed_torch_later(self)
        self.main_function = guarded_main(self, self._signals, self.notices, partial(setattr, self, "_exit"))
        printing = printing_to_record(self.notices)
        with self._signals.handled(), capturing_in_order(), printing as self._print_to_record:
            with going_on_later(self, owns_job=self._trial is None), reporting_end(self.notices):
                result = super().__call__(*args)
            if self.queue_only:
                self._wait_for_observers()  # which Sacred leaves out
        if self.is_resumed:
            self._recorder.warn_unless_rewound()
        if self._exit is not None:
            raise self._exit
        return result

    def _emit_started(self) -> None:
        check_resumable(self)
        for observer in self.observers:
            if isinstance(observer, LeasedObserver):
                observer.beat_interval_s = self.beat_interval
        run_clock.start()
        super()._emit_started()
        watch(self)
        self._recorder.begin()
        if self.executed_cells and self.observers:
            run_artifacts.keep_cells(self, self.executed_cells)
        if self.observers:
            self._notifier.begin()
            self._metrics.look_with(self._notifier.look)
        publish_record(self.notices, self.uid)
        self._print_to_record()
        if self._trial is not None:
            self._trial.begin(self.uid, None if self.folder is None else str(self.folder.absolute()))

    def _execute_pre_run_hooks(self) -> None:
        resume_collection()
        guarded(super()._execute_pre_run_hooks, self._signals, self.notices)()

    def _execute_post_run_hooks(self) -> None:
        guarded(super()._execute_post_run_hooks, self._signals, self.notices)()
        self.result = printable(self.result)

    def _emit_completed(self, result: Any) -> None:
        super()._emit_completed(result)
        self._notifier.completed()

    def _emit_failed(self, exc_type: Any, exc_value: Any, trace: Any) -> None:
        is_started_elsewhere = self.is_resumed or self._trial is not None or "queued" in self.meta_info
        if is_refusal(exc_value) and not is_started_elsewhere and not any(self.position().values()):
            self.meta_info["refused"] = True
        super()._emit_failed(exc_type, exc_value, trace)
        self._notifier.failed()

    def _emit_interrupted(self, status: str) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, Pruned):
            name = "SIGINT" if isinstance(error, KeyboardInterrupt) else status
            self.meta_info["interrupted_by"] = getattr(error, "signal", name)
        super()._emit_interrupted(status)

    def _stop_time(self) -> timedelta:
        # An error before the run has begun, such as a temporary folder without room, must show as it is.
        self.start_time = self.start_time or run_clock.utc_now()
        self.stop_time = run_clock.utc_now()
        return timedelta(seconds=round(run_clock.elapsed_s()))

    def _wait_for_observers(self) -> None:
        self._notifier.wait_for_processes()
        super()._wait_for_observers()
        places = self._recorder.places()
        if places and not self._owner.is_child:
            self.run_logger.info("Recorded in %s", " and ".join(places))

    # ------------------------------------------------------------------ for the training

    def count_training(self) -> int:
        """Return the number of the training that begins now: 1 for the run's first one."""
        self._num_trainings += 1
        return self._num_trainings

    def signals_deferred(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the first signal that would end the run is held back; see `stopping`."""
        return self._signals.deferred()

    @property
    def stopping(self) -> int | None:
        """Number of the signal that was held back; None before one came."""
        return self._signals.stopping

    def hold_back(self, number: int) -> None:
        """Treat a signal that another rank received as one that came here and was held back.

        Args:
            number: Number of the signal.
        """
        self._signals.stopping = self._signals.stopping or number

    def stop(self, step: int | None = None) -> NoReturn:
        """End the run by the signal that was held back.

        Args:
            step: The optimizer step after which a checkpoint was saved; None if none was.

        Raises:
            Terminated: Always; it carries the signal and the step.
        """
        self._signals.stop(step)
