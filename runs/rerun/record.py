"""How a run was started: read once from its record, ours or stock Sacred's, and handed on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from observers.record.redaction import is_hidden
from runs.errors import LaunchError
from runs.query.flattening import dotted
from runs.stores.run import Run

__all__ = ["RESUME_SETTING", "Record", "fingerprint_of", "is_written_by", "mapping", "read_record"]

# The setting that names the state an experiment starts from.
RESUME_SETTING = "checkpoint.resume"


@dataclasses.dataclass(frozen=True)
class Record:
    """How a run was started. Whatever its record does not say is None or empty.

    Attributes:
        run: The run.
        recorded_mainfile: The experiment's main file as the record names it; see `mainfile`.
        recorded_module: The main module as the record names it, of `python -m package.module`; see `module`.
        base: The folder that the main file and the sources are below.
        cwd: The folder that the process was started in.
        command: The command of the experiment.
        options: Options of the command line by their long names, such as `--force`; None if the record has none.
        flags: The environment variables that decide whether a run repeats bit for bit, as they were when it started;
            those that were not set are empty texts.
        fingerprint: Of the data that it was trained on.
        starts_from: What `checkpoint.resume` was set to; `auto` lets an experiment look for an unfinished run.
        num_ranks: How many processes it had.
        ranks_per_node: How many of them ran on each machine.
    """

    run: Run
    recorded_mainfile: str
    recorded_module: str
    base: Path | None
    cwd: Path | None
    command: str
    options: Mapping[str, Any] | None
    flags: dict[str, str]
    fingerprint: str | None
    starts_from: str | None
    num_ranks: int = 1
    ranks_per_node: int = 1

    @property
    def mainfile(self) -> PurePath:
        """The experiment's main file, as a path below its base folder.

        Raises:
            LaunchError: If the record names none, or one that lies elsewhere.
        """
        if not self.recorded_mainfile:
            raise LaunchError(
                f"run {self.run.id} names no main file, so it was started in a notebook or an interpreter; start it "
                f"there again with its config: python -m runs config {self.run.id}"
            )
        path = PurePath(self.recorded_mainfile)
        if path.is_absolute() or ".." in path.parts:
            raise LaunchError(
                f"run {self.run.id} names the main file {self.recorded_mainfile!r}, expected one within the "
                "experiment's folder"
            )
        return path

    @property
    def hidden_settings(self) -> dict[str, Any]:
        """Entries of the config, by their dotted names, that hold URLs whose passwords were not recorded."""
        entries = dotted(self.run.config.to_dict())
        return {name: value for name, value in entries.items() if is_hidden(json.dumps(value, default=str))}

    @property
    def module(self) -> str | None:
        """The main module, if the run was started as `python -m package.module`; its file is the main file."""
        parts = tuple(self.recorded_module.split("."))
        return self.recorded_module if self.mainfile.with_suffix("").parts == parts else None

    @property
    def script(self) -> Path:
        """The main file where the run was started.

        Raises:
            LaunchError: If it is not there.
        """
        script = None if self.base is None else self.base / self.mainfile
        if script is None or not script.is_file():
            raise LaunchError(
                f"run {self.run.id} was made by {script or self.mainfile}, which is not there; name the script"
            )
        return script

    @property
    def is_of_lab(self) -> bool:
        """Whether the experiment was one of the lab, and not stock Sacred's."""
        return "--tensorboard" in (self.options or {})


def read_record(run: Run) -> Record:
    """Return how a run was started.

    Raises:
        StoreError: If its record cannot be read.
    """
    options = run["meta.options"]
    base, cwd = _text(run["experiment.base_dir"]), _text(run.document.get("cwd"))
    return Record(
        run,
        recorded_mainfile=_text(run["experiment.mainfile"]),
        recorded_module=_text(run["experiment.module"]),
        base=Path(base) if base else None,
        cwd=Path(cwd) if cwd else None,
        command=run.command,
        options=options if isinstance(options, Mapping) else None,
        flags=_flags(run),
        fingerprint=fingerprint_of(run),
        starts_from=_text(run.get(f"config.{RESUME_SETTING}")) or None,
        num_ranks=_count(run["meta.ranks.size"]),
        ranks_per_node=_count(run["meta.ranks.per_node"]),
    )


def is_written_by(run: Run, pid: int) -> bool:
    """Tell whether a process, or one that it started as one of several ranks, wrote a run last."""
    lease = run.lease or {}
    return pid in (lease.get("pid"), lease.get("ppid"))


def fingerprint_of(run: Run) -> str | None:
    """Return the fingerprint of the data that a run was trained on; None if its record has none."""
    return _text(run["info.data.fingerprint"]) or None


def _flags(run: Run) -> dict[str, str]:
    # A run may set them itself while it goes on, and will do so again.
    before = {
        **mapping(run.provenance.get("determinism")),
        **mapping(run.provenance.get("determinism_before")),
    }
    names = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")
    found: dict[str, str] = {name: str(before[name] or "") for name in names if name in before}
    threads = before.get("num_threads")
    if isinstance(threads, int) and threads > 0:
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an entry that is to be a mapping; an empty one for anything else, which a foreign record may hold."""
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
