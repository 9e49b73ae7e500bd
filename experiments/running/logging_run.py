"""`LoggingRun`: what the code of a run calls to log metrics, media and artifacts, and to rewind its record."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacred.run import Run

from sacristan.experiments.running.notifying import Notifier
from sacristan.experiments.running.one_run import Owner
from sacristan.experiments.running.recorder import Recorder
from sacristan.experiments.running.resuming import check_resource
from sacristan.observers.errors import ArtifactError, ArtifactNotFoundError, ResumeError
from sacristan.observers.file.recording import Recording, recordings_of
from sacristan.observers.media.kinds import Media
from sacristan.observers.record.directions import note_better
from sacristan.observers.record.identity import USED_ARTIFACTS_VARIABLE
from sacristan.observers.record.interface import ArtifactObserver, ArtifactSource
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.points.rewinding import Position
from sacristan.observers.record.schema import EXECUTED_CELLS

if TYPE_CHECKING:
    from sacristan.observers.artifacts import ArtifactVersion
    from sacristan.observers.artifacts.store import ArtifactStore

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
        return _log_artifact(self, name, path, type, metadata)

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
        return _use_artifact(self, reference)

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
            _keep_artifact(self, name, filename, metadata, content_type)

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


# ---------------------------------------------------------------------- artifacts


def _keep_artifact(
    run: Run, name: str, filename: str, metadata: dict[str, Any] | None, content_type: str | None
) -> None:
    """Give a file to all observers, as Sacred's `Run.add_artifact`; then raise if one could not keep it."""
    errors = []
    for observer in run.observers:
        if not isinstance(observer, ArtifactObserver):
            event = {"name": name, "filename": filename, "metadata": metadata, "content_type": content_type}
            run._safe_call(observer, "artifact_event", **event)
            continue
        try:
            observer.keep_artifact(name, filename, metadata, content_type)
        except ArtifactError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _log_artifact(
    run: Run, name: str, path: str | Path, type: str, metadata: Mapping[str, Any] | None
) -> ArtifactVersion:
    """Log an artifact in every folder that records the run; return the version in the first."""
    versions = []
    for recording in _recordings(run):
        version = _store(recording.base).log(name, path, type, metadata, recording.uid)
        recording.note_artifact("artifacts_logged", version.entry())
        versions.append(version)
    return _with_keeper(run, versions[0])


def _use_artifact(run: Run, reference: str) -> ArtifactVersion:
    """Return a version of an artifact, and note that a run used it; see `LabRun.use_artifact`."""
    recordings = _recordings(run)
    from sacristan.observers.artifacts import parse_reference

    moves = parse_reference(reference).moves
    version = _find(run, _used_before(reference, recordings) if moves else reference, recordings)
    for recording in recordings:
        _store(recording.base).note_use(version, recording.uid)
        recording.note_artifact("artifacts_used", version.entry() | ({"reference": reference} if moves else {}))
    return _with_keeper(run, version)


def _used_before(reference: str, recordings: list[Recording]) -> str:
    """Return the version that a run, or the run that it reproduces, got for a reference; otherwise the reference.

    So an alias names one version for the whole run, unless the run moves it itself; not `latest`, which it may log.
    """
    from sacristan.observers.artifacts import parse_reference

    reproduced = parse_json(os.environ.get(USED_ARTIFACTS_VARIABLE) or "{}")
    if reference in reproduced:
        _log.info("%s is %s, as in the run that is reproduced", reference, reproduced[reference])
        return str(reproduced[reference])
    wanted, record = parse_reference(reference), recordings[0].run.entry
    moved = [(entry["name"], entry["alias"]) for entry in record.get("artifacts_aliased", ())]
    if wanted.alias is None or (wanted.name, wanted.alias) in moved:
        return reference
    used = [entry for entry in record.get("artifacts_used", ()) if entry.get("reference") == reference]
    return f"{wanted.name}@{used[0]['digest']}" if used else reference


def _with_keeper(run: Run, version: ArtifactVersion) -> ArtifactVersion:
    """Return a version whose aliases are moved wherever the run is recorded."""
    return dataclasses.replace(version, keeper=_RunAliases(run))


class _RunAliases:
    """Keeps the aliases of versions in every folder that a run is recorded in; the database follows."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def move_alias(self, version: ArtifactVersion, alias: str, was: int | str | None) -> None:
        self._note(version, alias, was, is_removed=False)

    def remove_alias(self, version: ArtifactVersion, alias: str) -> None:
        self._note(version, alias, None, is_removed=True)

    def aliases_of(self, version: ArtifactVersion) -> list[str]:
        from sacristan.observers.artifacts.aliases import named_by

        recording = _recordings(self._run)[0]
        moved = [each for each in recording.run.entry.get("artifacts_aliased", ()) if each["name"] == version.name]
        places = [_store(recording.base).named(version.name)]
        places += [{each["alias"]: (each["time"], None if "removed" in each else each["digest"])} for each in moved]
        if recording.is_spool or _stored(recording, version) is None:
            for source in _sources(self._run):
                try:
                    places.append(dict(source.artifact_aliases(version.name)))
                except ArtifactError as error:  # an outage does not end a training
                    _log.warning("the aliases of %s there are not known: %s", version, error)
        return named_by(places, version.digest)

    def _note(self, version: ArtifactVersion, alias: str, was: int | str | None, *, is_removed: bool) -> None:
        from sacristan.observers.artifacts.aliases import check_alias, next_move

        self._run._owner.check("move aliases", ArtifactError)
        check_alias(alias)
        recordings = _recordings(self._run)
        if was is not None and recordings[0].is_spool:
            raise ArtifactError(
                f"{version.name}:{alias}: got was={was!r}, but this run is recorded in a database alone, which gets "
                "the move later; leave it out, or use: sacristan artifacts alias --was"
            )
        for recording in recordings:
            store, stored = _store(recording.base), _stored(recording, version)
            if stored is None and not _sources(self._run):
                stored = store.resolve(f"{version.name}@{version.digest}")  # which says what is wrong
            if stored is None or (recording.is_spool and is_removed):  # the database alone has it
                move = next_move(None, version.name, alias, (version.version, version.digest))
            elif is_removed:
                move = store.alias(stored.name, alias, None, stored.version, run=recording.uid)
            else:
                move = store.alias(stored.name, alias, stored.version, was, run=recording.uid)
            entry = {"name": version.name, "digest": version.digest, "alias": alias, "by": move.by, "time": move.time}
            recording.note_artifact("artifacts_aliased", entry | ({"removed": True} if is_removed else {}))


def _stored(recording: Recording, version: ArtifactVersion) -> ArtifactVersion | None:
    """Return a version with its number in the folder of a recording; None if only a database has it."""
    try:
        return _store(recording.base).resolve(f"{version.name}@{version.digest}")
    except ArtifactNotFoundError:
        return None


def _sources(run: Run) -> list[ArtifactSource]:
    return [observer for observer in run.observers if isinstance(observer, ArtifactSource)]


def _recordings(run: Run) -> list[Recording]:
    """Return the recordings of a run in folders, or else the one in the spool of a MongoObserver."""
    recordings = recordings_of(run.meta_info.get("uid"))
    if not recordings:
        raise ArtifactError(
            "artifacts: this run is not recorded, or is over; attach a FileObserver (-F my_runs) or a MongoObserver "
            "(-m db_name), and log and use artifacts while the run runs"
        )
    return recordings


def _find(run: Run, reference: str, recordings: list[Recording]) -> ArtifactVersion:
    from sacristan.observers.artifacts import parse_reference

    wanted = parse_reference(reference)
    stores = [_store(recording.base) for recording in recordings]
    sources = _sources(run)
    # A spool belongs to one run, and its numbers mean nothing to others.
    if recordings[0].is_spool and (wanted.number is not None or wanted.alias is not None):
        version = _fetch(sources, reference, stores[0])
        if version is not None:
            return version
    not_there = []
    for store in stores:
        try:
            return store.resolve(reference)
        except ArtifactNotFoundError as error:
            not_there.append(error)
    version = _fetch(sources, reference, stores[0])
    if version is None:
        where = "".join(f"; neither is it at {source.label}" for source in sources)
        raise ArtifactNotFoundError(f"{not_there[0]}{where}") from not_there[0]
    return version


def _fetch(sources: list[ArtifactSource], reference: str, store: ArtifactStore) -> ArtifactVersion | None:
    versions = (source.fetch_artifact(reference, store.root) for source in sources)
    return next((version for version in versions if version is not None), None)


@functools.cache
def _store(basedir: Path) -> ArtifactStore:
    from sacristan.observers.artifacts.store import ArtifactStore

    return ArtifactStore(basedir)
