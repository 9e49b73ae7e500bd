"""`LabRun`: the run that captured functions receive as `_run`, composed of a recorder, signals, ranks and a trial."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import sacred
import wrapt
from sacred.host_info import get_host_info
from sacred.observers import RunObserver
from sacred.run import Run
from sacred.utils import IntervalTimer

from sacristan.configs.importing import resume_collection
from sacristan.configs.shielding import STOP, shielded
from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.experiments.running.captured_output import capturing_in_order
from sacristan.experiments.running.endings import is_refusal
from sacristan.experiments.running.logging_run import LoggingRun
from sacristan.experiments.running.notifying import Notifier
from sacristan.experiments.running.one_run import Owner, ending_children, watch
from sacristan.experiments.running.ranks import ending_together, printing_to_record, publish_record, reporting_end
from sacristan.experiments.running.recorder import Recorder
from sacristan.experiments.running.resuming import check_resumable, going_on_later, recorded_data
from sacristan.experiments.running.signals import Signals
from sacristan.experiments.running.trial import Pruned, ReportingBuffer, Trial
from sacristan.ingredients.ranks import Notices
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record import run_clock
from sacristan.observers.record.directions import note_better
from sacristan.observers.record.interface import HasFolder, LeasedObserver

if TYPE_CHECKING:
    from sacristan.experiments.running.computed_config import ComputedConfig
    from sacristan.ingredients.config.ingredient import Ingredient

__all__ = ["LabRun"]

_log = logging.getLogger(__name__)

BEAT_INTERVAL_S = 1.0


class _Heartbeat(IntervalTimer):
    """A timer with a name, so that it does not count among the threads of a script, `Thread-1` and so on."""

    def __init__(self, event: threading.Event, func: Callable[[], None], interval: float) -> None:
        # An error where Sacred ends a run, such as a user's own time limit, must not keep the process alive.
        threading.Thread.__init__(self, name="sacristan-heartbeat", daemon=True)
        self.stopped, self.func, self.interval = event, func, interval


class LabRun(LoggingRun):
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
    # A context around the main function of a recorded run: what other libraries log in it is recorded.
    watching: ClassVar[Callable[[LabRun], contextlib.AbstractContextManager[None]]] = lambda _: contextlib.nullcontext()

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
        with shielded(STOP):  # it starts programs
            host_info = get_host_info(experiment.additional_host_info)
        super().__init__(
            computed.values,
            computed.changes,
            computed.function,
            list(experiment.observers),
            computed.root_logger,
            computed.run_logger,
            experiment.get_experiment_info(),
            host_info,
            computed.pre_run_hooks,
            computed.post_run_hooks,
            experiment.captured_out_filter,
        )
        self._metrics = self._recorder.metrics
        self.legacy_defaults = computed.legacy_defaults
        self.unobserved = getattr(computed.function, "unobserved", False)
        if self.unobserved:
            from sacristan.experiments.running.commands import Unframed

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

    # ------------------------------------------------------------------ the record

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
        self._stop_heartbeat_event = threading.Event()
        self._heartbeat = _Heartbeat(self._stop_heartbeat_event, self._emit_heartbeat, self.beat_interval)
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
        _seed_torch_later(self)
        if self.observers and not self.unobserved:
            self.main_function = _within(partial(type(self).watching, self), self.main_function)
        self.main_function = _guarded_main(self, self._signals, self.notices, partial(setattr, self, "_exit"))
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
            self._keep_cells(self.executed_cells)
        if self.observers:
            self._notifier.begin()
            self._metrics.look_with(self._notifier.look)
        publish_record(self.notices, self.uid)
        self._print_to_record()
        if self._trial is not None:
            self._trial.begin(self.uid, None if self.folder is None else str(self.folder.absolute()))

    def _execute_pre_run_hooks(self) -> None:
        resume_collection()
        _guarded(super()._execute_pre_run_hooks, self._signals, self.notices)()

    def _execute_post_run_hooks(self) -> None:
        _guarded(super()._execute_post_run_hooks, self._signals, self.notices)()
        self.result = _printable(self.result)

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
        if not places or self._owner.is_child:
            return
        if losses := self._recorder.losses():
            text = "Recorded in %s, but not whole: it lacks %s"
            self.run_logger.warning(text, " and ".join(places), "; ".join(losses))
        else:
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


def _guarded(function: Callable, signals: Signals, notices: Notices | None) -> Callable:
    """Return a user's function such that signals may end it, and children and other ranks end with it."""
    return signals.interruptible(ending_children(ending_together(notices, function)))


def _guarded_main(
    run: Run, signals: Signals, notices: Notices | None, note_exit: Callable[[SystemExit], None]
) -> Callable:
    """Return the main function of a run, guarded; if it fails, it drops its variables.

    They would live as long as the error. Workers of a loader would be among them, which hold the output that Sacred
    waits for. A debugger needs them, and keeps them.

    After `sys.exit(0)`, the function returns None and calls `note_exit` with the error, which the run raises once it is
    completed.
    """
    function = run.main_function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        resume_collection()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, SystemExit) and (error.code in (None, 0)):
                note_exit(error)
                return None
            if not (run.pdb or run.debug):
                traceback.clear_frames(error.__traceback__)
            raise

    return _guarded(call, signals, notices)


def _within(context: Callable[[], contextlib.AbstractContextManager[None]], function: Callable) -> Callable:
    """Return a function whose calls are in a context of their own."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return call


def _printable(result: Any) -> Any:
    """Return a result that Sacred can print: the result itself or, with a warning, plain values if it has no text."""
    try:
        f"{result}"
    except Exception as error:
        plain_result = plain(result)
        _log.warning(
            "the result, a %s, has no text (%s: %s); it is noted as %.200r",
            type(result).__name__,
            type(error).__name__,
            error,
            plain_result,
        )
        return plain_result
    return result


def _seed_torch_later(run: Run) -> None:
    """Seed torch if the run imports it later; Sacred seeds only modules imported before. Stop when it ends."""
    if "torch" in sys.modules:
        return

    def seed(torch: Any) -> None:
        if run.stop_time is None:
            torch.manual_seed(run.config["seed"])

    wrapt.register_post_import_hook(seed, "torch")
