"""Importing past runs of other trackers.

A run keeps its times and steps. `imported` in its record names the tracker, the run's key there and the source; its uid
is computed from the key, so importing again adds nothing. A run whose source has changed is replaced by the new one,
which takes over its tags and note; the old one goes to the trash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from observers.record.media_files import MediaFiles
from observers.record.points.points import TICKS_PER_S, Series
from observers.record.safe_paths import relative_path
from observers.record.schema import CONFIG, FORMAT, INFO, MEDIA_FOLDER, NOTES, OUTPUT, RUN
from runs.errors import ForeignError, MissingExtraError, RunNotFoundError, StoreError
from runs.query.flattening import mapping_of
from runs.stores.changes import StagedRun
from runs.stores.notes import MOST_LETTERS, check_tags, one_line
from runs.stores.run import Run
from runs.stores.store import Store
from runs.transfer.metric_files import write_series
from runs.transfer.trackers import reader_for
from runs.transfer.trackers.foreign_run import Curve, ForeignRun, Found, as_plain

__all__ = ["FILES", "ImportedRun", "import_foreign"]

# The folder of an imported run's files, apart from those of the record.
FILES = "files"
_EPOCH = datetime(1970, 1, 1)
# The greatest time of a point after the start.
_MOST_S = (2**32 - 1) / TICKS_PER_S
# Before and after 1970, in seconds: 1,900 years, which is as far as records can tell times.
_FAR_S = 6e10


@dataclasses.dataclass(frozen=True)
class ImportedRun:
    """The outcome for one run of a source.

    Attributes:
        place: Where it was found.
        outcome: `new`; `completed`, if it replaces what an earlier import read; `present`, if nothing has changed; or
            `failed`.
        id: Its id in the store; None if it failed, or in a dry run.
        num_points: Number of its points.
        left_out: A sentence for each part that could not be imported, or the reason why it failed.
    """

    place: str
    outcome: Literal["new", "completed", "present", "failed"]
    id: str | None = None
    num_points: int = 0
    left_out: tuple[str, ...] = ()


def import_foreign(
    path: str | Path, store: Store, kind: str | None = None, tags: Collection[str] = (), *, dry: bool = False
) -> Iterator[ImportedRun]:
    """Import the runs of another tracker from a file or folder, one by one; a run that cannot be read hides no others.

    Nothing is written to the source, and nothing in it is executed. An interrupted import can be repeated.

    Args:
        path: The file or folder.
        store: The store to import into.
        kind: The tracker, see `runs.transfer.trackers.READERS`; None to look at the path.
        tags: Tags for the imported runs.
        dry: Whether to read everything and write nothing.

    Yields:
        The outcome for each run.

    Raises:
        ForeignError: If the path holds no runs of a known tracker.
        MissingExtraError: If the package that reads it is not installed.
        StoreError: If the store cannot be written; runs before stay imported.

    Example:
        with open_store("my_runs", create=True) as store:
            for imported in import_foreign("metrics.csv", store, tags=["old"]):
                print(imported.place, imported.outcome, imported.left_out)
    """
    check_tags(tags)
    path = Path(path)
    reader = reader_for(path, kind)
    discarded = frozenset(run.uid for run in store.trash())
    known = {run.uid for run in store.find(columns=["uid"])}  # asked once, as each question scans a folder of runs
    is_empty = True
    for found in reader.find(path):
        is_empty = False
        yield _import(found, reader.KIND, store, tags, known, discarded, dry=dry)
    if is_empty:
        raise ForeignError(f"{path} holds no runs of the kind {reader.KIND}")


def _import(
    found: Found,
    kind: str,
    store: Store,
    tags: Collection[str],
    known: set[str | None],
    discarded: Collection[str | None],
    *,
    dry: bool,
) -> ImportedRun:
    try:
        run = _read(found)
        digest = _digest(run)
    except ForeignError as error:
        return ImportedRun(found.place, "failed", left_out=(str(error),))
    except OSError as error:
        return ImportedRun(found.place, "failed", left_out=(f"{error.filename}: {error.strerror}",))
    uid = _uid(kind, found.key)
    present = store.backend.run_of_uid(uid) if uid in known else None
    if present is None and uid in discarded and not dry:
        # By a user; or by an import that was killed before the new run was added, which would lose tags and note.
        with contextlib.suppress(RunNotFoundError):
            present = store.restore(uid)
    if present is not None and mapping_of(present.document.get("imported")).get("digest") == digest:
        return ImportedRun(found.place, "present", present.id, run.num_points, tuple(run.left_out))
    outcome: Literal["new", "completed"] = "new" if present is None else "completed"
    if dry:
        return ImportedRun(found.place, outcome, None, run.num_points, tuple(run.left_out))
    imported = {"kind": kind, "key": found.key, "source": found.place, "digest": digest}
    with store.staging() as base:
        staged = _Staging(run, uid, imported, base / "1", tags, present).write()
        if present is not None:
            store.discard([present])
        id = store.add(staged).run.id
        known.add(uid)
    return ImportedRun(found.place, outcome, id, run.num_points, staged.left_out)


def _read(found: Found) -> ForeignRun:
    try:
        run = found.read()
        run.config, run.info = as_plain({"config": run.config, "info": run.info}).values()
    except (ForeignError, MissingExtraError, OSError):
        raise
    except Exception as error:  # parsers raise what they meet
        raise ForeignError(f"its content makes no sense ({type(error).__name__}: {error})") from error
    for time in (_start_of(run), run.stopped or 0.0):
        if not abs(time) < _FAR_S:
            raise ForeignError(f"got the time {time:g}, expected seconds since 1970")
    return run


def _start_of(run: ForeignRun) -> float:
    """Return when a run started; one without times when its last file was written."""
    first = min((float(np.nanmin(curve.times)) for curve in run.curves if _has_times(curve)), default=None)
    known = [time for time in (run.started, first) if time is not None]
    return min(known) if known else run.stopped or 0.0


def _uid(kind: str, key: str) -> str:
    """Return a uid for a run, always the same; its beginning is no time, unlike that of the lab's own runs."""
    return hashlib.sha256(f"{kind}\0{key}".encode()).hexdigest()[:32]


def _digest(run: ForeignRun) -> str:
    """Return a SHA-256 of everything that is imported of a run, but for the contents of its files."""
    digest = hashlib.sha256()
    plain = {
        field.name: getattr(run, field.name)
        for field in dataclasses.fields(run)
        if field.name not in ("curves", "media", "artifacts", "output")
    }
    digest.update(json.dumps(plain, sort_keys=True, default=str).encode())
    digest.update(run.output)
    for curve in run.curves:
        digest.update(curve.name.encode())
        for array in (curve.steps, curve.values, curve.times):
            digest.update(array.tobytes())
    for entry in run.media:
        digest.update(f"{entry.name}\0{entry.step}\0{entry.content and entry.content.sha256}".encode())
    for name, path in sorted(run.artifacts.items()):
        status = path.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()


class _Staging:
    """Writes a run in the layout of `observers.record.schema`.

    Args:
        run: The run.
        uid: Its uid.
        imported: What its record says about its origin.
        folder: The folder to write into.
        tags: Tags to add to its own.
        earlier: The run that it replaces, which hands on its notes; None for none.
    """

    def __init__(
        self,
        run: ForeignRun,
        uid: str,
        imported: dict[str, Any],
        folder: Path,
        tags: Collection[str],
        earlier: Run | None,
    ) -> None:
        self.run, self.uid, self.imported, self.folder = run, uid, imported, folder
        self.tags, self.earlier = tags, earlier
        self.left_out = list(run.left_out)
        self.started = _start_of(run)

    def write(self) -> StagedRun:
        """Write everything; `run.json` comes last, without which there is no run."""
        try:
            self.folder.mkdir(parents=True)
            self._write(CONFIG, self.run.config)
            self._write(INFO, self.run.info)
            (self.folder / OUTPUT).write_bytes(self.run.output)
            if self.run.curves:
                write_series(self.folder, self._each_series(), _EPOCH + timedelta(seconds=self.started))
            self._write_media()
            artifacts = self._copy_artifacts()
            self._write_notes()
            self._write(RUN, self._entry(artifacts))
        except OSError as error:
            raise StoreError(f"{self.folder.parent} cannot be written ({error.strerror or error})") from error
        return StagedRun(self.folder, self.uid, tuple(self.left_out))

    def _write(self, name: str, document: Any) -> None:
        (self.folder / name).write_text(json.dumps(document, indent=2, default=str))

    def _each_series(self) -> Iterator[tuple[str, Series]]:
        for curve in self.run.curves:
            times = np.where(np.isnan(curve.times), 0.0, curve.times - self.started)
            if times.max(initial=0.0) > _MOST_S:
                self.left_out.append(f"times of {curve.name!r} more than 497 days after the start")
            yield curve.name, Series(curve.steps, curve.values, np.minimum(times, _MOST_S))

    def _write_media(self) -> None:
        def fail(path: Path, error: OSError) -> None:
            raise error

        if not self.run.media:
            return
        (self.folder / MEDIA_FOLDER).mkdir()
        files = MediaFiles(self.folder, fail)
        for entry in self.run.media:
            files.add(entry, max(0.0, entry.time - self.started) if entry.time == entry.time else 0.0)
        files.entries.close()

    def _copy_artifacts(self) -> list[str]:
        names = []
        for name, path in self.run.artifacts.items():
            target = relative_path(f"{FILES}/{name}")
            if target is None:
                self.left_out.append(f"file {name!r}: no file of a run may be called so")
                continue
            (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
            try:
                source = path.open("rb")
            except OSError as error:
                self.left_out.append(f"file {name!r}: {error.strerror}")
                continue
            with source, (self.folder / target).open("wb") as stream:
                shutil.copyfileobj(source, stream, 2**20)
            names.append(target.as_posix())
        return names

    def _write_notes(self) -> None:
        notes: dict[str, Any] = {} if self.earlier is None else dict(self.earlier.notes())
        tags = [re.sub(r"[^\w-]+", "-", tag).strip("-") for tag in self.run.tags]
        notes["tags"] = {tag: True for tag in (*(notes.get("tags") or {}), *tags, *self.tags) if tag}
        notes["note"] = notes.get("note") or self.run.note
        if self.earlier is None:  # a person may have taken the name away since
            notes["display_name"] = one_line(self.run.title[:MOST_LETTERS])
        if any(notes.values()):
            self._write(NOTES, notes)

    def _entry(self, artifacts: list[str]) -> dict[str, Any]:
        run = self.run
        stopped = max(self.started, run.stopped if run.stopped is not None else self.started)
        title = {"comment": run.title} if run.title else {}
        return {
            "format": FORMAT,
            "uid": self.uid,
            "experiment": {
                "name": run.experiment,
                "base_dir": "",
                "sources": [],
                "dependencies": [],
                "repositories": [],
            },
            "command": "imported",
            "command_line": list(run.command),
            "host": run.host,
            "start_time": _text(self.started),
            "stop_time": _text(stopped),
            "heartbeat": _text(stopped),
            "status": run.status,
            "result": run.result,
            "meta": {"command": "imported", "options": {}, **title},
            "resources": [],
            "artifacts": artifacts,
            "imported": self.imported,
        }


def _has_times(curve: Curve) -> bool:
    return bool(len(curve)) and not np.isnan(curve.times).all()


def _text(seconds: float) -> str:
    """Return seconds since 1970 as records hold times: ISO 8601 in UTC, without a zone."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
