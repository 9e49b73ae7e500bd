"""Resume, fork and reproduce past runs, as processes; all of it reads the `Record` of a run.

    record = Record(store.get("3"))
    launch = recorded_launch(record, config=Path("config.json"), updates=["lr=0.1"])

Planning, launching, comparing environments and judging take a `Record` and leave the run's own documents alone.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, cast

from sacristan.observers.record.files import read_regular
from sacristan.observers.record.redaction import is_hidden, typed_command
from sacristan.observers.record.schema import CONFIG, EXECUTED_CELLS
from sacristan.runs.errors import LaunchError, StoreError
from sacristan.runs.query import dotted, list_of, mapping_of, mappings_in
from sacristan.runs.stores import Content, Run, Store

__all__ = [
    "RESUME_SETTING",
    "GitState",
    "Record",
    "ScriptStart",
    "check_has_config",
    "check_whole",
    "digest_of",
    "is_content_of",
    "is_written_by",
]

# The setting that names the state an experiment starts from.
RESUME_SETTING = "checkpoint.resume"


@dataclasses.dataclass(frozen=True)
class GitState:
    """The recorded state of git, without diff and root for stock Sacred; `problem` says why git could not be read."""

    commit: str | None
    root: str | None
    diff: str | None
    is_dirty: bool
    untracked: Mapping[str, str]
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class ScriptStart:
    """How a script was started."""

    kind: str  # `file`, `module`, `notebook` or `command`
    program: str  # the file as it was typed, the module, or the command
    args: tuple[str, ...]  # the words after it
    options: tuple[str, ...]  # the options of `sacristan run` before it
    is_captured: bool  # whether `sacristan run` started it, rather than Python
    number: int  # which of the runs of its process it is, from 1
    num_processes: int  # number of processes that a launcher started
    per_node: int  # number of those that torchrun started on one machine; 1 if another launcher did
    reads_pipe: bool  # whether its standard input was a pipe or a file

    @property
    def text(self) -> str:
        """The command as one types it."""
        words = {"module": ["-m"], "command": ["--"]}.get(self.kind, [])
        start = ["sacristan", "run", *self.options] if self.is_captured else ["python"]
        return shlex.join([*start, *words, self.program, *self.args])


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of a run's start, its code and its environment; written by this lab or by stock Sacred.

    Each entry is read when it is first used, and once. An entry that the record lacks is None or empty. Reading raises
    `StoreError` if the record is damaged.
    """

    run: Run

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def store(self) -> Store:
        return cast(Store, self.run.store)  # a run itself only needs the protocol

    def typed_command(self, *words: str) -> str:
        """Return a command about its store, as messages name it."""
        return typed_command(self.run.store.where, *words)

    # ------------------------------------------------------------------ code

    @functools.cached_property
    def mainfile_text(self) -> str:
        """The experiment's main file as the record names it; see `mainfile`."""
        return _text(self.run["experiment.mainfile"])

    @property
    def mainfile(self) -> PurePath:
        """The experiment's main file, as a path below its base folder; LaunchError if none is recorded there."""
        if imported := mapping_of(self.run.document.get("imported")):
            raise LaunchError(
                f"run {self.id} was imported from {imported.get('kind')}, without its code; start it where it was made"
            )
        if self.script_start is not None and self.script_start.kind == "command":
            raise LaunchError(
                f"run {self.id} is of a program without Python, so there is no code to restore and no point to "
                f"compare; start it again: {self.script_start.text}"
            )
        if not self.mainfile_text and EXECUTED_CELLS in self.run.artifacts:
            command = self.typed_command("artifacts", "get", self.id, EXECUTED_CELLS, "-o", "FOLDER")
            raise LaunchError(
                f"run {self.id} was started in a notebook; its executed cells are an artifact, which runs as a script, "
                f"with all runs that they start: {command}"
            )
        if not self.mainfile_text:
            raise LaunchError(
                f"run {self.id} names no main file, so it was started in a notebook or an interpreter; start it there "
                f"again with its config: {self.typed_command('config', self.id)}"
            )
        path = PurePath(self.mainfile_text)
        if path.is_absolute() or ".." in path.parts:
            raise LaunchError(
                f"run {self.id} names the main file {self.mainfile_text!r}, expected one within the experiment's folder"
            )
        return path

    @property
    def module(self) -> str | None:
        """The main module, if the run was started as `python -m package.module`; its file is the main file."""
        name = _text(self.run["experiment.module"])
        return name if self.mainfile.with_suffix("").parts == tuple(name.split(".")) else None

    @functools.cached_property
    def base(self) -> Path | None:
        """The folder above the main file and the sources."""
        return _path(self.run["experiment.base_dir"])

    @property
    def script(self) -> Path:
        """The main file where the run was started; LaunchError if it is gone."""
        script = None if self.base is None else self.base / self.mainfile
        if script is None or not script.is_file():
            raise LaunchError(
                f"run {self.id} was made by {script or self.mainfile}, which does not exist; name the script"
            )
        return script

    @functools.cached_property
    def sources(self) -> dict[str, Content]:
        return self.run.sources

    @functools.cached_property
    def resources(self) -> list[Content]:
        return self.run.stored("resources")

    @functools.cached_property
    def git(self) -> GitState:
        state = self.provenance.get("git")
        if not isinstance(state, Mapping):
            state = mapping_of(next(iter(list_of(self.run["experiment.repositories"])), None))
        commit, root, diff = (state.get(name) for name in ("commit", "root", "diff"))
        return GitState(
            commit if isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", commit) else None,
            root if isinstance(root, str) else None,
            diff if isinstance(diff, str) else None,
            bool(state.get("dirty")),
            {str(name): str(text) for name, text in mapping_of(state.get("untracked")).items()},
            _text(state.get("problem")),
        )

    @property
    def changed_between_sessions(self) -> list[str]:
        """Names of sources that changed between the sessions of the run."""
        sessions = mappings_in(self.run.document.get("sessions"))
        return [name for session in sessions for name in session.get("changed_sources") or ()]

    # ------------------------------------------------------------------ command line

    @functools.cached_property
    def script_start(self) -> ScriptStart | None:
        """How the script was started, if the run is of a script; None for an experiment."""
        start = mapping_of(self.run["meta.script"])
        if not start:
            return None
        return ScriptStart(
            kind=_text(start.get("kind")),
            program=_text(start.get("program")),
            args=tuple(map(str, list_of(start.get("args")))),
            options=tuple(map(str, list_of(start.get("options")))),
            is_captured=bool(start.get("captured")),
            number=_count(start.get("number")),
            num_processes=_count(start.get("num_processes")),
            per_node=_count(start.get("per_node")),
            reads_pipe=bool(start.get("reads_pipe")),
        )

    @functools.cached_property
    def cwd(self) -> Path | None:
        return _path(self.run.document.get("cwd"))

    @property
    def command(self) -> str:
        return self.run.command

    @functools.cached_property
    def options(self) -> Mapping[str, Any] | None:
        """Options of the command line by their long names, such as `--force`; None if the record has none."""
        options = self.run["meta.options"]
        return options if isinstance(options, Mapping) else None

    @property
    def is_of_lab(self) -> bool:
        """True if the lab recorded the run, False if stock Sacred did."""
        return "--tensorboard" in (self.options or {})

    @functools.cached_property
    def num_ranks(self) -> int:
        return _count(self.run["meta.ranks.size"])

    @functools.cached_property
    def ranks_per_node(self) -> int:
        return _count(self.run["meta.ranks.per_node"])

    # ------------------------------------------------------------------ config and data

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        return self.run.config.to_dict()

    @functools.cached_property
    def config_text(self) -> str:
        """The config in JSON, as it was recorded: of tuples within sets and arrays, `config` has lists."""
        if self.run.folder is not None and isinstance(self.run.config, Mapping):
            return read_regular(self.run.folder / CONFIG).decode()
        return json.dumps(self.config, indent=2)

    @property
    def hidden_settings(self) -> dict[str, Any]:
        """Config entries, by dotted name, with URLs whose passwords were not recorded."""
        return {name: value for name, value in dotted(self.config).items() if is_hidden(json.dumps(value, default=str))}

    @property
    def starts_from(self) -> str | None:
        """The value of `checkpoint.resume`; `auto` lets an experiment look for an unfinished run."""
        if self.script_start is not None:  # its settings are its own
            return None
        return _text(self.run.get(f"config.{RESUME_SETTING}")) or None

    @functools.cached_property
    def fingerprint(self) -> str | None:
        return _text(self.run["info.data.fingerprint"]) or None

    # ------------------------------------------------------------------ environment

    @functools.cached_property
    def provenance(self) -> Mapping[str, Any]:
        return self.run.provenance

    def part(self, name: str) -> Mapping[str, Any]:
        """Return a part of the provenance, such as `determinism` or `reads`; empty if it is missing or no mapping."""
        return mapping_of(self.provenance.get(name))

    @property
    def named_configs(self) -> list[str]:
        """The named configs and config files that it was started with."""
        return list(map(str, list_of(self.run["meta.named_configs"])))

    @functools.cached_property
    def flags(self) -> dict[str, str]:
        """Environment variables that decide whether a run repeats bit for bit, as they were when it started.

        Variables that were not set are empty texts.
        """
        # The run may have set them itself, and will do so again.
        before = {**self.part("determinism"), **self.part("determinism_before")}
        names = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")
        flags = {name: str(before[name] or "") for name in names if name in before}
        threads = before.get("num_threads")
        return flags | ({"OMP_NUM_THREADS": str(threads)} if isinstance(threads, int) and threads > 0 else {})

    @functools.cached_property
    def python(self) -> str | None:
        return _text(self.part("machine").get("python") or self.run["host.python_version"]) or None

    @property
    def cpu(self) -> Any:
        return self.part("machine").get("cpu") or self.run["host.cpu"]

    @property
    def operating_system(self) -> Any:
        return self.part("machine").get("os") or next(iter(reversed(self.run["host.os"] or [])), None)

    @property
    def variables(self) -> Mapping[str, Any]:
        """Environment variables that were recorded by `-E`."""
        return mapping_of(self.run["meta.environment"])

    @property
    def has_all_packages(self) -> bool:
        """True if `packages` lists every installed package."""
        return bool(self.part("packages"))

    @functools.cached_property
    def packages(self) -> dict[str, str]:
        """Versions of packages by name; for a run of stock Sacred, only of those that its sources import."""
        if self.has_all_packages:
            return {str(name): str(version) for name, version in self.part("packages").items()}
        pairs = [str(entry).partition("==") for entry in list_of(self.run["experiment.dependencies"])]
        return {name: version for name, sign, version in pairs if sign and version and not version.startswith("<")}

    @functools.cached_property
    def libraries(self) -> dict[str, Mapping[str, Any]] | None:
        """Libraries that the run imported from folders, by name; None in older records."""
        if not isinstance(self.provenance.get("libraries"), Mapping):
            return None
        return {str(name): mapping_of(entry) for name, entry in self.part("libraries").items()}


def check_has_config(run: Run) -> None:
    """Reject a run in a folder whose config is gone: it would run with the defaults."""
    if run.folder is not None and not (run.folder / CONFIG).exists():
        raise LaunchError(f"run {run.id} lacks {run.folder / CONFIG}, so its settings are unknown; restore the file")


def check_whole(record: Record) -> None:
    """Reject a record with files that are missing or damaged, of which a new run would differ."""
    if damage := record.run.damage():
        raise LaunchError(
            f"the record of run {record.id} is damaged, so nothing could be compared with it: {'; '.join(damage)}; "
            "restore it from a copy"
        )


def is_written_by(run: Run, pid: int) -> bool:
    """Tell whether a process, or a rank that it started, was the last to write a run, by the run's lease."""
    lease = run.lease or {}
    return pid in (lease.get("pid"), lease.get("ppid"))


def is_content_of(path: Path, content: Content) -> bool:
    """Tell whether a file has a recorded content; False if one of them cannot be read."""
    try:
        return read_regular(path) == content.read()
    except (StoreError, OSError):
        return False


def digest_of(content: Content) -> str | None:
    """Return the SHA-256 of a recorded content; None if it cannot be read."""
    try:
        return content.sha256()
    except (StoreError, OSError):
        return None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _path(value: Any) -> Path | None:
    return Path(value) if isinstance(value, str) and value else None
