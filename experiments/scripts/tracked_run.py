"""`TrackedRun`: the run that `sacristan.init` starts, with the names that scripts know from W&B."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sacristan.experiments.scripts.history import History, LogWriter, MetricRule, flat
from sacristan.experiments.scripts.settings import Settings, Summary

if TYPE_CHECKING:
    from sacristan.experiments.running import LabRun
    from sacristan.experiments.scripts.artifact import Artifact, UsedArtifact
    from sacristan.experiments.scripts.own_loop import LoopState
    from sacristan.experiments.scripts.session import Session

_log = logging.getLogger(__name__)

_TEXT = frozenset((str,))
_LEVELS = {"INFO": "info", "WARN": "warning", "WARNING": "warning", "ERROR": "error"}
# Names of W&B's run that are not here, and what to use.
_ADVICE = {
    "code_dir": "the sources of a run are recorded by themselves",
    "config_static": "settings of a script are in run.config",
    "display": "open the board: sacristan board",
    "entity": "the runs in a folder belong to nobody",
    "finish_artifact": "log the artifact when it is whole: run.log_artifact(artifact)",
    "get_project_url": "open the board: sacristan board",
    "get_sweep_url": "open the board: sacristan board",
    "get_url": "use run.url",
    "link_artifact": "give it a name of its own: run.log_artifact(artifact)",
    "link_model": "give it a name of its own: run.log_artifact(artifact)",
    "log_code": "the sources of a run are recorded by themselves",
    "offline": "nothing is sent anywhere, unless SACRISTAN_STORE names a MongoDB",
    "pin_config_keys": "the board has the columns that you choose there",
    "project_name": "use run.project",
    "project_url": "open the board: sacristan board",
    "restore": "use an artifact: run.use_artifact(name)",
    "settings": "settings of a script are in run.config",
    "start_time": "use run.lab_run.start_time",
    "starting_step": "use run.step, before anything is logged",
    "status": "use run.lab_run.status",
    "sweep_id": "use run.lab_run.meta_info.get('sweep')",
    "sweep_url": "open the board: sacristan board",
    "sync_dir": "use run.folder",
    "to_html": "open the board: sacristan board",
    "upsert_artifact": "log the artifact when it is whole: run.log_artifact(artifact)",
    "write_logs": "print them: output is recorded",
}


class TrackedRun:
    """A run that a script has started by `sacristan.init`; see there.

    Attributes:
        lab_run: The `LabRun`, for all that the lab offers beyond this class; None if nothing is recorded.
        config: The settings: `run.config.lr`, `run.config["lr"]`, `run.config.update(vars(args))`.
        summary: The last value of each metric, and entries of your own.
        group, job_type, project: As they were given to `init`.
    """

    def __init__(
        self,
        session: Session | None,
        *,
        config: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
        project: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        id: str | None = None,
        is_adopted: bool = False,
        locked: Container[str] = (),
        on_finish: Callable[[TrackedRun], None] | None = None,
    ) -> None:
        self._session = session
        self.lab_run: LabRun | None = None if session is None else session.run
        self._notes = {"tags": {}, "note": "", "display_name": "", **(notes or {})}
        self.project, self.group, self.job_type = project, group, job_type
        self._id = id
        # The run is that of a whole script, which goes on after `finish`.
        self._is_adopted = is_adopted
        self._on_finish = on_finish
        self._is_finished = False
        self._loop: LoopState | None = None
        self._closing = contextlib.ExitStack()
        self._history = History(self._ignore if self.lab_run is None else LogWriter(self.lab_run).write)
        self.config = Settings(self._write_config, config, locked)
        info = {} if self.lab_run is None else self.lab_run.info
        if session is not None:
            session.before_end(self._write_rest)
            steps = [last for _, last in session.run.position()["metrics"].values()]
            self._history.step = 1 + int(max(steps)) if steps else 0
        self.summary = Summary(info, self._history.summarized, self._history.summary_of)

    def send_through(self, sink: Any) -> None:
        """Log through another object than the run, which has its `log` and `info`; before anything is logged."""
        self._history.write = LogWriter(sink).write

    def _write_config(self, values: Mapping[str, Any]) -> None:
        if self.lab_run is not None and not self._is_finished:
            self.lab_run.update_config(values)

    @staticmethod
    def _ignore(values: Mapping[str, Any], step: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name in _ADVICE:
            raise AttributeError(f"a run has no {name!r}: {_ADVICE[name]}")
        raise AttributeError(
            f"a run has no {name!r}; it has {', '.join(each for each in dir(type(self)) if each[0] != '_')}, and as "
            "lab_run what the lab offers beyond W&B"
        )

    # ------------------------------------------------------------------ who it is

    @property
    def id(self) -> str:
        """The id that was given to `init`, or the globally unique one of its record; empty if it has none."""
        return self._id or (self.lab_run.uid if self.lab_run is not None else "") or ""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._notes["display_name"]) or self.id[:8]

    @name.setter
    def name(self, name: str) -> None:
        self.describe(display_name=str(name))

    @property
    def notes(self) -> str:
        """The note on it."""
        return str(self._notes["note"])

    @notes.setter
    def notes(self, notes: str) -> None:
        self.describe(note=str(notes))

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return tuple(self._notes["tags"])

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        self.describe(tags=as_tags(tags))

    def describe(self, **changes: Any) -> None:
        """Change what is noted on the run: `display_name`, `note` and `tags`, as keys of a dict."""
        from sacristan.observers.file.recording import recordings_of

        self._notes |= changes
        for recording in recordings_of(None if self.lab_run is None else self.lab_run.uid):
            recording.change_notes(changes)

    @property
    def folder(self) -> Path | None:
        """The folder of its record, where you may keep files of your own; None if it has none."""
        return None if self.lab_run is None else self.lab_run.folder

    @property
    def dir(self) -> str:
        """The folder of its record as text; the working folder if it has none."""
        return str(self.folder or Path.cwd())

    @property
    def url(self) -> str | None:
        """The address of its folder, `file://...`; None if it has none."""
        return None if self.folder is None else self.folder.absolute().as_uri()

    @property
    def path(self) -> str:
        """The place of its record, such as `my_runs/3`; empty if it has none."""
        return "" if self.folder is None else str(self.folder)

    @property
    def step(self) -> int:
        """The step of the next `log` without a `step`."""
        return self._history.step

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, also because its process is another one now."""
        return self._is_finished or (self._session is not None and self._session.has_ended)

    @property
    def disabled(self) -> bool:
        """Whether nothing is recorded."""
        return self.lab_run is None

    @property
    def resumed(self) -> bool:
        """Whether it continues an earlier record."""
        return self.lab_run is not None and self.lab_run.is_resumed

    # ------------------------------------------------------------------ logging

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Log numbers, texts and media.

            run.log({"train/loss": loss, "samples": [sacristan.Image(x) for x in batch]})

        Steps count as in W&B: a call without `step` has a step of its own; with one, or with `commit=False`, the next
        call without one belongs to it; a step below the current one is dropped, with a warning. A value that cannot be
        logged is left out with a warning, once for each name. The points are safe when this returns.

        Args:
            data: Values by name: numbers, scalars of numpy and torch, texts, media, lists of media, figures, arrays;
                those of nested dicts have names joined by dots.
            step: The step; by default the one after that of the last call.
            commit: Whether the next call has another step.
            sync: W&B's, without a meaning.

        Raises:
            TypeError: If `data` is no mapping, or a name is no text.
            Terminated: If a signal has asked the run to end, and its state is saved; see `checkpoint`.
            Pruned: If the sweep of this run ends it here.
        """
        if self._is_finished:
            _warn_once(self, "log", "the run has ended; what is logged from here on is lost")
            return
        if not isinstance(data, (dict, Mapping)):
            raise TypeError(f"log: got {type(data).__name__}, expected a dict of values by name: log({{'loss': loss}})")
        if not (_TEXT.issuperset(map(type, data)) or all(isinstance(name, str) for name in data)):
            name = next(name for name in data if not isinstance(name, str))
            raise TypeError(f"log: got the name {name!r}, expected a text; write log({{{str(name)!r}: value}})")
        self._history.log(flat(data), step, commit)
        if self._loop is not None:
            self._loop.stop_at_log()

    def define_metric(
        self,
        name: str,
        step_metric: str | MetricRule | None = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> MetricRule:
        """Say over which metric another one is drawn, and what of it is in the summary.

            run.define_metric("val/*", step_metric="epoch")
            run.define_metric("val/accuracy", summary="max")

        Args:
            name: A metric, or `val/*` for all whose names begin so.
            step_metric: The metric whose value is its step.
            step_sync: Whether the last value of `step_metric` counts where a call has none; by default it does.
            hidden: W&B's, without a meaning.
            summary: Of `min`, `max`, `mean`, `first`, `last`, `best` and `none`, separated by commas.
            goal: `minimize` or `maximize`: which values are better, which the lab's tables and sweeps use.
            overwrite: Whether arguments that are not given are reset.

        Raises:
            ConfigError: If an argument is invalid.
        """
        if isinstance(step_metric, MetricRule):
            step_metric = step_metric.name
        rule = self._history.define(name, step_metric, step_sync, summary, goal, overwrite=bool(overwrite))
        if self.lab_run is not None and rule.better and not name.endswith("*"):
            self.lab_run.note_better({name: rule.better})
        return rule

    def alert(self, title: str, text: str = "", level: Any = None, wait_duration: Any = None) -> None:
        """Record a text that deserves attention, and send it as a notification, where addresses are set.

        Args:
            title: Its first words.
            text: The rest.
            level: `info`, `warning` or `error`; W&B's `INFO`, `WARN` and `ERROR`.
            wait_duration: W&B's, without a meaning: a run keeps 5 alerts a minute.

        Raises:
            ValueError: If the level is another one.
        """
        if self.lab_run is not None:
            named = str(getattr(level, "value", level or "info"))
            words = f"{title}: {text}" if text and text != title else title
            self.lab_run.alert(words, _LEVELS.get(named.upper(), named))

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Log histograms of the gradients, the parameters, or both, of a model; see `watching.watch`."""
        from sacristan.experiments.scripts.watching import watch

        if self.lab_run is not None and log is not None:
            watch(self, models, log, log_freq, idx)

    def unwatch(self, models: Any = None) -> None:
        """Stop logging what `watch` logs; None for all models."""
        from sacristan.experiments.scripts.watching import unwatch

        unwatch(self, models)

    # ------------------------------------------------------------------ files

    def log_artifact(
        self,
        artifact_or_path: Any,
        name: str | None = None,
        type: str | None = None,
        aliases: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Artifact:
        """Keep files as a version of an artifact, beside the runs.

        Args:
            artifact_or_path: An `Artifact`, or the path of a file or folder.
            name: Its name; by default that of the artifact, or of the file.
            type: Its type, such as dataset or model; by default that of the artifact.
            aliases: Names that move to this version, such as `best`; `latest` does so by itself.
            metadata: Facts about it, by name.
            **options: W&B's other ones, without a meaning.

        Returns:
            The artifact, with its version.

        Raises:
            ArtifactError: If it cannot be read or kept.
        """
        from sacristan.experiments.scripts.artifact import log_artifact

        return log_artifact(self.lab_run, artifact_or_path, name, type, aliases, metadata)

    def use_artifact(
        self, artifact_or_name: Any, type: str | None = None, aliases: Any = None, use_as: Any = None
    ) -> UsedArtifact:
        """Return a version of an artifact, and note that this run uses it: `run.use_artifact("digits:latest")`.

        Args:
            artifact_or_name: `name`, `name:latest`, `name:v3`; or an `Artifact`, which is logged first.
            type: W&B's, without a meaning.
            aliases: W&B's, without a meaning.
            use_as: W&B's, without a meaning.

        Raises:
            ArtifactError: If there is no such version, or it is damaged.
        """
        from sacristan.experiments.scripts.artifact import use_artifact

        return use_artifact(self.lab_run, artifact_or_name)

    def log_model(self, path: str | Path, name: str | None = None, aliases: Sequence[str] | None = None) -> Artifact:
        """Keep the file or folder of a model as a version of an artifact of the type `model`; see `log_artifact`."""
        return self.log_artifact(path, name or f"model-{self.id}", "model", aliases)

    def use_model(self, name: str) -> str:
        """Return the path of the file or folder of a model; see `use_artifact`."""
        return self.use_artifact(name).file_or_folder()

    def save(
        self, glob_str: str | Path | None = None, base_path: str | Path | None = None, policy: str = "live"
    ) -> list[str]:
        """Keep files with the run, as they are now.

        Args:
            glob_str: A path, perhaps with `*` and `?`.
            base_path: The folder whose part of the path is not in the names of the kept files; by default the name of
                a file alone is.
            policy: W&B's, without a meaning.

        Returns:
            The paths of the files.

        Raises:
            ArtifactError: If one cannot be read or kept.
        """
        from sacristan.experiments.scripts.artifact import matching

        paths = [] if glob_str is None else matching(glob_str)
        for path in paths if self.lab_run is not None else ():
            name = path.name if base_path is None else path.absolute().relative_to(Path(base_path).absolute())
            self.lab_run.add_artifact(str(path), str(name))  # type: ignore[union-attr]  # not in a run without record
        return [str(path) for path in paths]

    # ------------------------------------------------------------------ resuming

    def checkpoint(self, **options: Any) -> LoopState:
        """Save the whole state of your own loop, and resume it from there, to the same bits; see `LoopState`.

        Args:
            **options: Those of `LoopState`: the parts of the training by name, such as `model`, `optimizer`,
                `scheduler`, and `loader`, `every`, `every_s`, `keep`.

        Raises:
            CheckpointError: If there is a state, and it cannot be read or does not fit; or if the run has a loop
                already.
        """
        from sacristan.experiments.scripts.own_loop import LoopState

        self._loop = LoopState(self._session, self._history, self._end, **options)
        self._closing.callback(self._loop.close)
        return self._loop

    # ------------------------------------------------------------------ its end

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run; one that has ended stays as it is.

        Args:
            exit_code: 0 or None for COMPLETED, another one for FAILED.
            quiet: W&B's, without a meaning.
        """
        self._end(SystemExit(exit_code) if exit_code else None)

    def _end(self, error: BaseException | None) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        try:
            if self._session is not None and not self._is_adopted:
                self._session.end(error)
            else:
                self._write_rest()
        finally:
            if self._on_finish is not None:
                self._on_finish(self)

    def _write_rest(self) -> None:
        """Write what waits for the end of the run."""
        self._history.flush()
        self._closing.close()

    def mark_preempting(self) -> None:
        """Do nothing: a run that is ended by a signal is INTERRUPTED, and `resume` continues it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def __repr__(self) -> str:
        return f"<run {self.name}{f' in {self.path}' if self.path else ', not recorded'}>"


def as_tags(tags: Iterable[str] | None) -> dict[str, bool]:
    """Return tags as they are noted: other characters than letters, digits, `_` and `-` become hyphens."""
    import re

    named = [tags] if isinstance(tags, str) else tags or ()
    cleaned = (re.sub(r"[^\w-]+", "-", str(tag)).strip("-") for tag in named)
    return {tag: True for tag in cleaned if tag}


def _warn_once(run: TrackedRun, key: str, text: str) -> None:
    warned = vars(run).setdefault("_warned", set())
    if key not in warned:
        warned.add(key)
        _log.warning("%s: %s", key, text)
