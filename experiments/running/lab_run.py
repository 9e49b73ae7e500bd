"""`LabRun`: the run that captured functions take as `_run`; signals end it truthfully, and it can be resumed."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import wrapt
from sacred.run import Run

from configs import collection
from experiments.running import artifacts as run_artifacts
from experiments.running.captured_output import capturing_in_order
from experiments.running.forking import ending_children
from experiments.running.ranks import ending_together, printing_to_record
from experiments.running.recorded_run import RecordedRun, reported
from experiments.running.resuming import check_resource, recorded_data
from experiments.running.signals import Signals
from experiments.running.trial import Pruned, ReportingBuffer, Trial
from ingredients.checkpoints.record import TrainingRecord
from ingredients.config.ingredient import Ingredient
from ingredients.errors import LabError, RankError, TrainingError
from ingredients.ranks.group import leave
from ingredients.ranks.notices import Notices
from observers.artifacts.version import ArtifactVersion
from observers.errors import ArtifactError, MediaError, MetricError, ResumeError
from observers.file.recording import recording_of
from observers.file.sacred_form import plain
from observers.media.kinds import Media
from observers.record import run_clock
from observers.record.directions import note_better
from observers.record.protocols import GraphObserver, HasPlace, LeasedObserver, ResumableObserver

__all__ = ["LabRun"]

_log = logging.getLogger(__name__)


class LabRun(RecordedRun):
    """A run of Sacred as the lab runs it, which captured functions take as `_run`.

    Made from a `sacred.run.Run` by `LabRun.adopt`, because Sacred builds its runs itself.

    Attributes:
        is_resumed: Whether the run was resumed: it is recorded with an earlier session.
        expected_data: Fingerprint of the data that the earlier session was trained on, where it is known.
        launch_options: Options of the command line as they were given, passwords included; they are never recorded.
        recorders: The observers that a recorded run would have; those of commands that are not recorded go away.
        check_settings: Refuses settings that a run of the experiment's main function could not have: takes words as
            behind `with`, and further settings by dotted key; raises a LabError.
        ingredients: Those that the experiment is composed of, by name.
        notices: What the ranks of the run tell each other, if it is one of several processes.
    """

    is_resumed: bool
    expected_data: str | None
    launch_options: dict[str, Any]
    recorders: tuple[Any, ...]
    check_settings: Callable[[Sequence[str], Mapping[str, Any]], None]
    ingredients: Mapping[str, Ingredient]
    notices: Notices | None
    _print_to_record: Callable[[], None]
    _signals: Signals
    _trial: Trial | None
    _num_trainings: int

    @classmethod
    def adopt(
        cls,
        run: Run,
        beat_interval_s: float | None = None,
        system_metrics_s: float | None = None,
        resumed: Path | None = None,
        trial: Trial | None = None,
    ) -> LabRun:
        """Turn Sacred's `run`, which has not started, into one of the lab's.

        Args:
            run: The run.
            beat_interval_s: Time between two heartbeats; None is one second.
            system_metrics_s: Time between two samples of the machine's load; None takes none.
            resumed: Folder of the run that is to be resumed; None for a run of its own.
            trial: The trial that it is of a sweep, or what waits for it to begin; None outside of any.
        """
        run.__class__ = cls
        adopted = cast(LabRun, run)  # mypy does not follow an assignment to a class
        adopted._set_up(beat_interval_s, system_metrics_s, None if trial is None else ReportingBuffer(trial))
        adopted._trial = trial
        if trial is not None and trial.note is not None:
            adopted.meta_info["sweep"] = trial.note
            note_better(adopted.info, trial.goals)
        adopted.is_resumed = resumed is not None
        adopted.expected_data = None
        adopted.launch_options, adopted.recorders, adopted.notices = {}, (), None
        adopted.ingredients = {}
        if resumed is not None:
            adopted.meta_info["resume"] = str(resumed)
            adopted.expected_data = recorded_data(resumed)
        adopted._signals = Signals()
        adopted._num_trainings = 0
        return adopted

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log many metrics, and media, at one step.

            _run.log({"train/loss": loss, "weights": Histogram(model.weight)}, step)

        Args:
            values: By name; numbers, or scalars of numpy and torch; or media, see `log_media`.
            step: The step of all; without one, each metric and each series of media counts by itself.

        Raises:
            MetricError: If some of it is no metric; the rest is logged.
            MediaError: As `log_media`; the rest is logged.
            Pruned: If the sweep that it is a trial of ends the run here; all is logged.
        """
        errors: list[MetricError | MediaError] = []
        pruned = None
        for name, value in values.items():
            try:
                if isinstance(value, Media):
                    self.log_media(name, value, step)
                else:
                    self._metrics.log_scalar_metric(name, value, step)
            except (MetricError, MediaError) as error:
                errors.append(error)
            except Pruned as end:
                pruned = end
        if errors:
            raise type(errors[0])("; ".join(map(str, errors))) from errors[0].__cause__
        if pruned is not None:
            raise pruned

    def log_media(self, name: str, media: Media, step: int | float | None = None) -> None:
        """Log an `Image`, a `Table`, a `Video` or another of the `Media` of the package `observers`.

        Its file is made and written with the run's heartbeats. Media and metrics may have the same names.

        Args:
            name: The series it belongs to.
            media: What to log.
            step: Its step; without one, one above the last of that name.

        Raises:
            MediaError: If it is something else, the name no string, or the step no number.
        """
        if not self._is_left_to_parent(f"the {type(media).__name__} {name!r}"):
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
        self._refuse_in_child("log artifacts", ArtifactError)
        return run_artifacts.log_artifact(self, name, path, type, metadata)

    def use_artifact(self, reference: str) -> ArtifactVersion:
        """Return a version of an artifact, and note that this run used it.

        The folder of runs is looked into first, then MongoDB, from which contents are downloaded.

        Args:
            reference: `name` or `name:latest`, `name:v3`, or `name@` and the start of its digest.

        Raises:
            ArtifactError: If there is no such version, it is damaged, or the run is not recorded.
        """
        self._refuse_in_child("use artifacts", ArtifactError)
        return run_artifacts.use_artifact(self, reference)

    def note_better(self, directions: Mapping[str, str]) -> None:
        """Record which way metrics, or the run's `result`, are better, for those that compare runs.

            _run.note_better({"result": "max", "val/f1": "max"})

        Args:
            directions: `max` or `min` by name; a metric's holds for `train/`, `val/` and `test/` alike.

        Raises:
            ValueError: If a direction is neither.
        """
        note_better(self.info, directions)

    def log_graph(self, model: Any, inputs: Any) -> None:
        """Give a model to the observers that draw its graph, such as a TensorBoardObserver; without any it is free.

        A copy of the model takes one step forward, here and now; the training is not touched by it.

        Args:
            model: A module of torch.
            inputs: What it is called with: a tensor, or a tuple of them.
        """
        for observer in self.observers:
            if isinstance(observer, GraphObserver):
                with reported(observer, "graph_event"):
                    observer.graph_event(model, inputs)

    # ------------------------------------------------------------------ how it begins and ends

    def after_fork_in_child(self) -> None:
        """Let go of what is the parent's."""
        super().after_fork_in_child()
        self._signals.after_fork_in_child()

    def _emit_started(self) -> None:
        wanted = self.meta_info.get("resume") or self.meta_info.get("queued")
        if wanted is not None and not any(isinstance(observer, ResumableObserver) for observer in self.observers):
            what = "started" if "queued" in self.meta_info else "resumed"
            raise ResumeError(
                f"{wanted} cannot be {what}: that is done in the folder of its record, and nothing here records in one;"
                f" attach a FileObserver (-F {Path(wanted).parent}). A run in MongoDB alone cannot be resumed"
            )
        for observer in self.observers:
            if isinstance(observer, LeasedObserver):
                observer.beat_interval_s = self.beat_interval
        run_clock.start()
        super()._emit_started()
        resumed = self._resumed()
        if resumed:
            position = resumed[0].position()
            self._count_from(position, position)
        if self.notices is not None and self.notices.world.rank == 0:
            recording = recording_of(self.uid)  # one for MongoDB alone has a folder, too
            self.notices.put("record", None if recording is None else str(recording.folder.absolute()))
        self._print_to_record()
        if self._trial is not None:
            self._trial.begin(self.uid, None if self.folder is None else str(self.folder.absolute()))

    def __call__(self, *args: Any) -> Any:
        """Start the run; signals end it as INTERRUPTED, with the signal's name in its meta entry.

        Raises:
            ConcurrentRunError: If it is a trial that another agent of its sweep has taken over; nothing is recorded.
        """
        if self._trial is not None:
            self._trial.wait_for_begin()
        self._signals.is_patient = self.notices is not None
        self._seed_torch_later()
        main = ending_together(self.notices, self._freeing(self.main_function))
        self.main_function = self._signals.interruptible(ending_children(main))
        has_ended_well = False
        printing = printing_to_record(self.notices)
        with self._signals.handled(), capturing_in_order(), printing as self._print_to_record:
            try:
                result = super().__call__(*args)
                if self.notices is not None:
                    self.notices.tell_end("COMPLETED", "")
                has_ended_well = True
            finally:
                leave(well=has_ended_well)
                if self.notices is not None:
                    self.notices.leave(well=has_ended_well)
            if self.queue_only:
                self._wait_for_observers()  # which Sacred leaves out
        if self.is_resumed and not self._was_rewound:
            _log.warning(
                "this run was resumed, but no checkpoint was loaded, so its points follow those of the earlier session;"
                " give the run to the checkpointer: make_checkpointer(folder, _config, run=_run)"
            )
        return result

    def _seed_torch_later(self) -> None:
        """Seed torch when the run imports it, as Sacred seeds what is imported before the run."""
        if "torch" in sys.modules:
            return

        def seed(torch: Any) -> None:
            if self.stop_time is None:
                torch.manual_seed(self.config["seed"])

        wrapt.register_post_import_hook(seed, "torch")

    def _freeing(self, function: Callable) -> Callable:
        """Return a function that lets go of its variables where it fails, but for a debugger.

        They would live as long as the error, workers of a loader among them, which hold the output that Sacred waits
        for.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            collection.resume()
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

    def hold_back(self, number: int) -> None:
        """Take a signal that another rank was sent as if it had come here, and been held back."""
        self._signals.stopping = self._signals.stopping or number

    def stop(self, step: int | None = None) -> NoReturn:
        """End the run by the signal that was held back.

        Args:
            step: The optimizer step that a checkpoint was saved after, if one was.
        """
        self._signals.stop(step)

    def _emit_failed(self, exc_type: Any, exc_value: Any, trace: Any) -> None:
        if self._is_refused(exc_value):
            self.meta_info["refused"] = True
        super()._emit_failed(exc_type, exc_value, trace)

    def _is_refused(self, error: BaseException) -> bool:
        """Tell whether the lab refused what was asked for before the run, one of its own, came to anything."""
        is_started_elsewhere = self.is_resumed or self._trial is not None or "queued" in self.meta_info
        is_refusal = isinstance(error, LabError) and not isinstance(error, TrainingError | RankError)
        return is_refusal and not is_started_elsewhere and not any(self.position().values())

    def _emit_interrupted(self, status: str) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, Pruned):
            name = "SIGINT" if isinstance(error, KeyboardInterrupt) else status
            self.meta_info["interrupted_by"] = getattr(error, "signal", name)
        super()._emit_interrupted(status)

    def _emit_resource_added(self, filename: str) -> None:
        check_resource(filename)
        super()._emit_resource_added(filename)

    def _execute_pre_run_hooks(self) -> None:
        collection.resume()
        hooks = ending_together(self.notices, super()._execute_pre_run_hooks)
        self._signals.interruptible(ending_children(hooks))()

    def _execute_post_run_hooks(self) -> None:
        hooks = ending_together(self.notices, super()._execute_post_run_hooks)
        self._signals.interruptible(ending_children(hooks))()
        try:
            f"{self.result}"
        except Exception as error:
            # Sacred prints it, and would fail with it.
            kind = type(self.result).__name__
            self.result = plain(self.result)
            _log.warning(
                "the result, a %s, has no text (%s: %s); it is noted as %.200r",
                kind,
                type(error).__name__,
                error,
                self.result,
            )

    def _wait_for_observers(self) -> None:
        super()._wait_for_observers()
        places = [observer.place for observer in self.observers if isinstance(observer, HasPlace)]
        found = list(dict.fromkeys(filter(None, places)))
        if found and not self._is_child:
            self.run_logger.info("Recorded in %s", " and ".join(found))

    def _stop_time(self) -> timedelta:
        # What fails before the run has begun, such as a temporary folder without room, is to be seen as it is.
        self.start_time = self.start_time or run_clock.utc_now()
        self.stop_time = run_clock.utc_now()
        return timedelta(seconds=round(run_clock.elapsed_s()))


if TYPE_CHECKING:

    def _as_record(run: LabRun) -> TrainingRecord:
        """A run is what a Checkpointer wants of a record: a type checker says so here."""
        return run
