"""Exporting runs to other trackers, and what the writer of runs to another tracker is.

A writer is a module with three names:

    LACKS                   a sentence for each thing that the tracker cannot hold
    NEEDS                   packages that it imports, from the extra that is called like its kind
    open_target(output)     returns a `Target`, a folder or an address, which is created if it is missing

A run is new there, replaced if it has changed since an earlier export, or present. Runs are identified by uid, so
exporting again adds nothing; what a killed export left is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, cast

from sacristan.configs.nearest import word_suggestion
from sacristan.configs.packages import missing_package
from sacristan.observers.record.folders import claimed
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import FilterError, ForeignError, MissingExtraError, RunsError, StoreAwayError, StoreError
from sacristan.runs.stores import Run
from sacristan.runs.transfer.trackers.foreign_run import MARK
from sacristan.runs.transfer.trackers.source_files import INCOMPLETE

__all__ = [
    "TARGETS",
    "ExportedRun",
    "RunFolders",
    "Target",
    "TargetModule",
    "export_to",
    "media_of",
    "start_of",
    "target_of",
]


class Target(Protocol):
    """A place of another tracker that runs are written to."""

    def find(self, key: str) -> str | None:
        """Return the state that a run was exported in, by its key; empty if it is unfinished, None if it is absent."""

    def put(self, run: Run, key: str, state: str) -> tuple[int, list[str]]:
        """Write a run under its key (see `key_of`), in place of an earlier export.

        Return the number of points, and a sentence for each part that was left out. `find` returns `state` once the run
        is complete.
        """

    def forget_place(self) -> None:
        """Remove the path of the folder from the written files."""


class TargetModule(Protocol):
    """The module of a writer."""

    LACKS: tuple[str, ...]
    NEEDS: tuple[str, ...]

    def open_target(self, output: str) -> Target: ...


def _key_of(run: Run) -> str:
    """Return the key of a run at all places: its uid, or for a run of stock Sacred a digest of its store and id."""
    return run.uid or hashlib.sha256(f"{run.store.where}\n{run.id}".encode()).hexdigest()[:32]


def _state_of(run: Run) -> str:
    """Return a digest of the record, which changes when the run continues or its tags or note change."""
    document = {name: value for name, value in run.document.items() if name not in ("notified", "changes")}
    content = [document, dict(run.config), dict(run.info), run.summary, run.tags, run.note, run.display_name]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def start_of(run: Run) -> float:
    """Return when a run started, in seconds since 1970; 0 if that is unknown."""
    return run.start_time.timestamp() if run.start_time else 0.0


def media_of(run: Run, left_out: list[str]) -> Iterator[MediaEntry]:
    """Yield the media of a run with their contents; `left_out` gets a sentence for each unreadable one."""
    start = start_of(run)
    for row, (file, *images) in run.media_entries():
        try:
            suffix, cells = "." + row["file"].rpartition(".")[2], tuple(_image(image.read()) for image in images)
            content = Content(file.read(), suffix, row["content_type"], row["meta"], cells)
        except StoreError as error:
            left_out.append(f"medium {row['name']!r}: {error}")
        else:
            yield MediaEntry(row["name"], row["kind"], row["step"], start + row["time"], content)


def _image(data: bytes) -> Content:
    from sacristan.observers.media.arrays import png_size

    width, height = png_size(data)
    return Content(data, ".png", "image/png", {"width": width, "height": height})


class RunFolders:
    """A folder with a folder for each exported run, for trackers that are files; a `Target`.

    The file `sacristan.json` in a run's folder says which run it is, in which state it was exported, and its status and
    result. A folder with its final name is complete: it is written beside it under a hidden name, and renamed. The next
    export deletes what a killed one left there.

    Args:
        content: Noun for the content, for messages.
        write: Writes a run, with its key, into an empty folder; returns what `Target.put` returns.
        name_of: Returns the name of the folder of a run and its key.

    Raises:
        ForeignError: If the output is an address or a file.
    """

    def __init__(
        self,
        output: str,
        content: str,
        write: Callable[[Run, str, Path], tuple[int, list[str]]],
        name_of: Callable[[Run, str], str],
    ) -> None:
        self._folder = Path(output)
        if "://" in output or (self._folder.exists() and not self._folder.is_dir()):
            raise ForeignError(f"got {output}, expected a folder for {content}")
        self._write = write
        self._name_of = name_of
        for part in self._folder.glob(f".*{INCOMPLETE}"):
            with contextlib.suppress(BlockingIOError), claimed(part, wait=False):  # another export may be writing it
                shutil.rmtree(part, ignore_errors=True)
        self._run_folders = _exported(self._folder)

    def find(self, key: str) -> str | None:
        if key not in self._run_folders:
            return None
        try:
            return str(json.loads((self._run_folders[key] / MARK).read_text())["state"])
        except (OSError, ValueError, KeyError):
            return ""

    def put(self, run: Run, key: str, state: str) -> tuple[int, list[str]]:
        run_folder = self._run_folders.get(key) or self._free_folder(run, key)
        part = run_folder.with_name(f".{run_folder.name}{INCOMPLETE}")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            with claimed(part):
                written = self._write(run, key, part)
                mark = {"run": key, "id": run.id, "state": state, "status": run.status, "result": run.result}
                (part / MARK).write_text(json.dumps(mark, default=str))
                if run_folder.exists():
                    shutil.rmtree(run_folder)
                part.rename(run_folder)
        except OSError as error:
            raise ForeignError(f"{run_folder}: {error.strerror or error}") from error
        self._run_folders[key] = run_folder
        return written

    def forget_place(self) -> None:
        """Do nothing: no file names the folder."""

    def _free_folder(self, run: Run, key: str) -> Path:
        """Return the folder of a run, with its key in the name too if another run has that name."""
        name = self._name_of(run, key)
        run_folder = self._folder / name
        return run_folder.with_name(f"{name}_{key}") if run_folder.exists() else run_folder


def _exported(folder: Path) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for mark in folder.glob(f"*/{MARK}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            folders[json.loads(mark.read_text())["run"]] = mark.parent
    return {key: path for key, path in folders.items() if path.suffix != INCOMPLETE}


# The module of each kind.
TARGETS = {"tensorboard": "event_folders", "mlflow": "mlflow_client", "wandb": "wandb_folders"}


@dataclasses.dataclass(frozen=True)
class ExportedRun:
    """The outcome of exporting one run.

    Attributes:
        id: Its id in the store.
        outcome: `new`; `replaced`, if an earlier export of it has changed or was cut off; `present`, if nothing has
            changed; or `failed`.
        num_points: Number of points written.
        left_out: A sentence for each part that was left out, or the reason why it failed.
    """

    id: str
    outcome: Literal["new", "replaced", "present", "failed"]
    num_points: int = 0
    left_out: tuple[str, ...] = ()


def export_to(runs: Sequence[Run], output: str | Path, kind: str, *, is_moved: bool = False) -> Iterator[ExportedRun]:
    """Write runs to another tracker, one by one, with their original times and steps; one that fails hides no others.

    Exporting again adds nothing, and completes what was interrupted.

    Args:
        runs: Runs of any stores.
        output: A folder, or the address of a server.
        kind: `tensorboard`, `mlflow` or `wandb`.
        is_moved: Whether the folder will be moved, so that nothing in it may name its place.

    Yields:
        The outcome for each run.

    Raises:
        FilterError: If there is no such kind.
        ForeignError: If the output cannot be opened.
        MissingExtraError: If the package that writes it is not installed.

    Example:
        with open_store("my_runs") as store:
            for exported in export_to(store.find(), "logs", "tensorboard"):
                print(exported.id, exported.outcome, exported.left_out)
    """
    if kind not in TARGETS:
        kinds = ", ".join(TARGETS)
        hint = word_suggestion(kind, TARGETS, "choose one")
        raise FilterError(f"got the kind {kind!r}, expected one of {kinds}; {hint}")
    target = target_of(kind).open_target(str(output))
    for number, run in enumerate(runs):
        run.store.tell("exporting runs", number, len(runs))
        yield _export(run, target)
    if is_moved:
        target.forget_place()


def _export(run: Run, target: Target) -> ExportedRun:
    try:
        run = run.store.get(run.id)
        key, state = _key_of(run), _state_of(run)
        earlier = target.find(key)
        if earlier == state:
            return ExportedRun(run.id, "present")
        num_points, left_out = target.put(run, key, state)
    except StoreAwayError:
        raise
    except RunsError as error:
        return ExportedRun(run.id, "failed", left_out=(str(error),))
    return ExportedRun(run.id, "new" if earlier is None else "replaced", num_points, tuple(left_out))


def target_of(kind: str) -> TargetModule:
    """Return the writer of a kind of tracker; MissingExtraError means that its package is not installed."""
    module = cast(TargetModule, importlib.import_module(f"{__name__}.{TARGETS[kind]}"))
    for name in module.NEEDS:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(missing_package(f"export to {kind} needs", name, kind))
    return module
