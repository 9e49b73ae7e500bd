"""`LoggingRun`: what the code of a run calls to log metrics, media and artifacts, and to rewind its record."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacred.run import Run

from sacristan.experiments.running.artifacts import keep_artifact, log_artifact, use_artifact
from sacristan.experiments.running.notifying import Notifier
from sacristan.experiments.running.one_run import Owner
from sacristan.experiments.running.recorder import Recorder
from sacristan.experiments.running.resuming import check_resource
from sacristan.observers.errors import ArtifactError, ResumeError
from sacristan.observers.media.kinds import Media
from sacristan.observers.record.directions import note_better
from sacristan.observers.record.points.rewinding import Position
from sacristan.observers.record.schema import EXECUTED_CELLS

if TYPE_CHECKING:
    from sacristan.observers.artifacts import ArtifactVersion

_log = logging.getLogger(__name__)


class LoggingRun(Run):
    """The part of a `LabRun` that the code of the run calls; its parts carry out the calls."""

    _owner: Owner
    _recorder: Recorder
    _notifier: Notifier

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

    def log_quickly(self, values: Mapping[str, Any], step: int | None = None) -> Mapping[str, Any]:
        """Log those of many values that are plain numbers of metrics which were logged before; return the others.

        Args:
            values: As for `log`, and anything else.
            step: As for `log`.

        Returns:
            The others, by name, for `log`: new names, media, tensors on a GPU, what is no number. All of them in a
            trial of a sweep.
        """
        return self._recorder.metrics.log_quickly(values, step)

    @property
    def log_number(self) -> Callable[[str, Any, Any], None]:
        """Function behind `log_scalar`, of name, value and step; without the call in between."""
        return self._recorder.metrics.log_scalar_metric

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
            The version; `version.alias("champion")` gives it a name that moves.

        Raises:
            ArtifactError: If the run is not recorded, or the artifact cannot be read or kept.
        """
        self._owner.check("log artifacts", ArtifactError)
        return log_artifact(self, name, path, type, metadata)

    def use_artifact(self, reference: str) -> ArtifactVersion:
        """Return a version of an artifact, and note that this run used it.

        It is looked up in the folder of runs first, then in MongoDB, from which its contents are downloaded.

        The record keeps the version, not the name: if an alias moves, `sacristan reproduce` and a resumed run use the
        version that the run got.

        Args:
            reference: `name` or `name:latest`, `name:champion` with an alias, `name:v3`, or `name@` and the start of
                its digest.

        Raises:
            ArtifactError: If there is no such version, it is damaged, or the run is not recorded.
        """
        self._owner.check("use artifacts", ArtifactError)
        return use_artifact(self, reference)

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
            keep_artifact(self, name, filename, metadata, content_type)

    def _keep_cells(self, cells: str) -> None:
        """Keep the executed cells of a notebook, as a script, as an artifact of its run, which has no main file."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, EXECUTED_CELLS)
                path.write_text(cells, encoding="utf-8", errors="surrogateescape")
                self.add_artifact(str(path))
        except (OSError, ArtifactError) as error:  # the run itself goes on
            _log.warning("the executed cells of the notebook are not kept: %s", error)

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
