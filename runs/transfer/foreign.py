"""Importing past runs of other trackers.

A run keeps its times and steps. `imported` in its record names the tracker, the run's key there, the source and what is
missing; its uid is computed from the key, so importing again adds nothing, and neither does a copy of the source. A run
whose source has changed is replaced by the new one, which takes over its tags and note; the old one goes to the trash.
A part of it, such as a backup made in between, replaces nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.files import relative_path
from sacristan.observers.record.media_files import MediaFiles
from sacristan.observers.record.points import TICKS_PER_S, Series
from sacristan.observers.record.schema import CONFIG, FORMAT, INFO, MEDIA_FOLDER, NOTES, OUTPUT, RUN
from sacristan.runs.errors import ForeignError, MissingExtraError, RunNotFoundError, StoreError
from sacristan.runs.query import mapping_of
from sacristan.runs.query.filters import Question
from sacristan.runs.stores import Run, StagedRun, Store, runs_by
from sacristan.runs.stores.operations import MOST_LETTERS, check_tags, one_line
from sacristan.runs.transfer.copying import write_series
from sacristan.runs.transfer.trackers import reader_for
from sacristan.runs.transfer.trackers.foreign_run import Curve, ForeignRun, Found, as_json
from sacristan.runs.transfer.trackers.source_files import is_incomplete

# Before and after 1970, in seconds: 1,900 years, which is as far as records can tell times.
_FAR_S = 6e10
_ORIGIN = ("imported.kind", "imported.key", "imported.content")
# The folder of an imported run's files, apart from those of the record.
_FILES = "files"
_EPOCH = datetime(1970, 1, 1)
# The greatest time of a point after the start.
_MOST_S = (2**32 - 1) / TICKS_PER_S


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
        kind: The tracker, see `sacristan.runs.transfer.trackers.READERS`; None to look at the path.
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
    is_empty = True
    with contextlib.ExitStack() as stack:
        # One folder for all, as making and removing one takes longer than adding a run; none if all are there.
        staging = functools.cache(lambda: stack.enter_context(store.staging()))
        importing = _Import(store, reader.KIND, path, tags, None if dry else staging)
        for found in reader.find(path):
            is_empty = False
            yield importing.take(found)
    if is_empty:
        raise ForeignError(f"{path} holds no runs of the kind {reader.KIND}")


class _Import:
    """One call of `import_foreign`; without `staging`, it writes nothing."""

    def __init__(
        self, store: Store, kind: str, path: Path, tags: Collection[str], staging: Callable[[], Path] | None
    ) -> None:
        self.store, self.kind, self.path, self.tags, self.staging = store, kind, path, tags, staging
        self.discarded = frozenset(run.uid for run in store.trash())

    def take(self, found: Found) -> ImportedRun:
        try:
            run = _read(found)
            digest = _digest(run)
        except ForeignError as error:
            return ImportedRun(found.place, "failed", left_out=(str(error),))
        except OSError as error:
            return ImportedRun(found.place, "failed", left_out=(f"{error.filename}: {error.strerror}",))
        uid = _uid(self.kind, found.key)
        present = self._present(uid, found, digest)
        if present is not None and digest == mapping_of(present.document.get("imported")).get("digest"):
            return ImportedRun(found.place, "present", present.id, run.num_points, tuple(run.left_out))
        content = _content_digest(run, by_place=found.by_place)
        same, reasons = self._same(run, found, present, content)
        if same is not None:
            return ImportedRun(found.place, "present", same, run.num_points, (*run.left_out, *reasons))
        outcome: Literal["new", "completed", "present"] = "new" if present is None else "completed"
        if self.staging is None:
            return ImportedRun(found.place, outcome, None, run.num_points, tuple(run.left_out))
        imported = {"kind": self.kind, "key": found.key, "source": found.place, "digest": digest, "content": content}
        folder = self.staging() / uid
        staged = StagedImport(run, uid, imported, folder, self.tags, present).write()
        if present is not None:
            self.store.discard([present])
        added = self.store.add(staged)
        shutil.rmtree(folder, ignore_errors=True)  # unless it was moved
        if not added.is_new:  # another process was faster
            return ImportedRun(found.place, "present", added.run.id, run.num_points, staged.left_out)
        num_points = _num_points(added.run)
        if num_points != run.num_points:
            raise StoreError(
                f"{self.store.where}: {num_points} of the {run.num_points} points of {found.place} were written, as "
                f"run {added.run.id}; check the disk, and import again"
            )
        return ImportedRun(found.place, outcome, added.run.id, num_points, staged.left_out)

    def _added(self, uid: str) -> Run | None:
        return runs_by(self.store, [uid]).get(uid)

    def _present(self, uid: str, found: Found, digest: str) -> Run | None:
        """Return the run in the store that an earlier import, also of an earlier version, has made."""
        present = self._added(uid)
        if present is None and uid in self.discarded and self.staging is not None:
            # A user put it into the trash, or an import was killed before it added the new one.
            with contextlib.suppress(RunNotFoundError):
                present = self.store.restore(uid)  # else tags and note would be lost
        if present is None and found.former:
            present = self._added(_uid(self.kind, found.former))
            former = {} if present is None else mapping_of(present.document.get("imported"))
            if former.get("key") != found.former or not (
                former.get("digest") == digest or former.get("source") == found.place
            ):
                return None
        return present

    def _same(
        self, run: ForeignRun, found: Found, present: Run | None, content: str
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return the id of the run in the store that contains all of a run, or None; and a remark on it."""
        if present is not None:
            imported = mapping_of(present.document.get("imported"))
            if content == imported.get("content"):
                return present.id, ()
            if imported.get("key") == found.key and _is_part(run, found, present):
                return present.id, (f"a part of run {present.id}, which stays as it is",)
        elif found.by_place and content in self._copies:
            id, key = self._copies[content]
            if not Path(key).is_relative_to(self.path.resolve()):  # two files of one folder are two runs
                return id, (f"a copy of what was imported as run {id}",)
        return None, ()

    @functools.cached_property
    def _copies(self) -> dict[str, tuple[str, str]]:
        """Id and key of each run of this kind that earlier imports have made, by the digest of its content."""
        question = Question.of("command=imported", None, None, _ORIGIN, 0)
        rows = [[run.id, *(run.get(name) for name in _ORIGIN)] for run in self.store.answer(question)]
        return {str(content): (id, str(key)) for id, kind, key, content in rows if kind == self.kind and content}


def _num_points(run: Run) -> int:
    return sum(len(run.metric(name)) for name in run.metrics)


def _is_part(run: ForeignRun, found: Found, present: Run) -> bool:
    """Tell whether the store has all points of a run and more, as when a backup or a damaged copy is imported."""
    names = set(present.metrics)
    for curve in run.curves:
        series = present.metric(curve.name) if curve.name in names else None
        if series is None or not _counts(curve.steps, curve.values) <= _counts(series.steps, series.values):
            return False
    if run.num_points < _num_points(present):
        return True
    stopped = run.stopped if run.stopped is not None else _start_of(run)
    return not found.by_place and present.stop_time is not None and stopped < present.stop_time.timestamp() - 1e-3


def _counts(steps: np.ndarray, values: np.ndarray) -> Counter[tuple[float, int]]:
    return Counter(zip(steps.tolist(), values.astype(np.float64).view(np.int64).tolist(), strict=True))


def _read(found: Found) -> ForeignRun:
    if is_incomplete(Path(found.place)):
        raise ForeignError("its export was interrupted; export the run again, then import the result")
    try:
        run = found.read()
        run.config, run.info = as_json({"config": run.config, "info": run.info}).values()
        run.curves = _called_apart(run.curves, run.left_out)
    except (ForeignError, MissingExtraError, OSError):
        raise
    except Exception as error:  # parsers raise what they meet
        raise ForeignError(f"its content is invalid ({type(error).__name__}: {error})") from error
    for time in (_start_of(run), run.stopped or 0.0):
        if not abs(time) < _FAR_S:
            raise ForeignError(f"got the time {time:g}, expected seconds since 1970")
    return run


def _called_apart(curves: list[Curve], left_out: list[str]) -> list[Curve]:
    """Return the curves with distinct names, so that none overwrites another."""
    taken = {curve.name for curve in curves}
    seen: set[str] = set()
    apart = []
    for curve in curves:
        if curve.name in seen:
            names = (f"{curve.name}_{number}" for number in itertools.count(2))
            name = next(name for name in names if name not in taken)
            taken.add(name)
            left_out.append(f"the name of another metric {curve.name!r}, which is {name!r} here")
            curve = dataclasses.replace(curve, name=name)
        seen.add(curve.name)
        apart.append(curve)
    return apart


def _uid(kind: str, key: str) -> str:
    """Return a uid that is always the same for a run; unlike that of the lab's own runs, it begins with no time."""
    return hashlib.sha256(f"{kind}\0{key}".encode()).hexdigest()[:32]


def _digest(run: ForeignRun) -> str:
    """Return a SHA-256 of all that is imported of a run except the contents of its files."""
    digest = _digest_without(run, ())
    for name, path in sorted(run.artifacts.items()):
        status = path.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _content_digest(run: ForeignRun, *, by_place: bool) -> str:
    """Return a SHA-256, including the contents of files, that a run shares with its copies elsewhere."""
    digest = _digest_without(run, ("left_out", *(("experiment", "title", "stopped") if by_place else ())))
    for name, path in sorted(run.artifacts.items()):
        digest.update(f"{name}\0".encode())
        with contextlib.suppress(OSError), path.open("rb") as stream:  # one that cannot be read is left out
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _digest_without(run: ForeignRun, names: Collection[str]) -> Any:
    """Return a SHA-256 of a run without its files and some fields."""
    digest = hashlib.sha256()
    others = {"curves", "media", "artifacts", "output", *names}
    others |= set() if run.used else {"used"}  # a later field: digests of earlier versions lack it
    plain = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name not in others}
    digest.update(json.dumps(plain, sort_keys=True, default=str).encode())
    digest.update(run.output)
    for curve in run.curves:
        digest.update(curve.name.encode())
        for array in (curve.steps, curve.values, curve.times):
            digest.update(array.tobytes())
    for entry in run.media:
        digest.update(f"{entry.name}\0{entry.step}\0{entry.content and entry.content.sha256}".encode())
    return digest


def _start_of(run: ForeignRun) -> float:
    """Return the earlier of a run's start and its first point, in seconds since 1970; without them, its end, or 0."""
    times = [float(np.nanmin(curve.times)) for curve in run.curves if not np.isnan(curve.times).all()]
    times += [] if run.started is None else [run.started]
    return min(times) if times else run.stopped or 0.0


@dataclasses.dataclass
class StagedImport:
    """Writes a run to a folder in the layout of `sacristan.observers.record.schema`."""

    run: ForeignRun
    uid: str
    imported: dict[str, Any]  # the entry of its record about its origin
    folder: Path
    tags: Collection[str]
    earlier: Run | None  # the run that it replaces, which hands on its notes; None for none

    def __post_init__(self) -> None:
        self.left_out = list(self.run.left_out)
        self.started = _start_of(self.run)

    def write(self) -> StagedRun:
        """Write everything; `run.json` comes last, as there is no run without it."""
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
            self._write(RUN, self._entry(artifacts, self._keep_used()))
        except ArtifactError as error:
            raise StoreError(str(error)) from error
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
            target = relative_path(f"{_FILES}/{name}")
            if target is None:
                self.left_out.append(f"file {name!r}: no file of a run may be called so")
                continue
            try:
                (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
                if (self.folder / target).exists():
                    raise FileExistsError
                source = path.open("rb")
            except (FileExistsError, NotADirectoryError):
                self.left_out.append(f"file {name!r}: another file or folder of the run has that name")
                continue
            except OSError as error:
                self.left_out.append(f"file {name!r}: {error.strerror}")
                continue
            with source, (self.folder / target).open("wb") as stream:
                shutil.copyfileobj(source, stream, 2**20)
            names.append(target.as_posix())
        return names

    def _keep_used(self) -> list[dict[str, Any]]:
        """Keep the description of each data set as a version of an artifact, which other runs may have used, too."""
        store = ArtifactStore(self.folder.parent)
        versions = {}
        for name, description in self.run.used.items():
            path = self.folder / "dataset.json"
            path.write_text(json.dumps(description, indent=2, sort_keys=True, default=str))
            version = store.log(re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", name).strip("-")[:128] or "data", path)
            versions[str(version)] = version
            path.unlink()
        for version in versions.values():
            store.note_run("used", version, self.uid)
        return [version.entry() for version in versions.values()]

    def _write_notes(self) -> None:
        notes: dict[str, Any] = {} if self.earlier is None else dict(self.earlier.notes())
        tags = [re.sub(r"[^\w-]+", "-", tag).strip("-") for tag in self.run.tags]
        notes["tags"] = {tag: True for tag in (*(notes.get("tags") or {}), *tags, *self.tags) if tag}
        notes["note"] = notes.get("note") or self.run.note
        if self.earlier is None:  # a person may have taken the name away since
            notes["display_name"] = one_line(self.run.title[:MOST_LETTERS])
        if any(notes.values()):
            self._write(NOTES, notes)

    def _entry(self, artifacts: list[str], used: list[dict[str, Any]]) -> dict[str, Any]:
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
            "imported": {**self.imported, **({"left_out": self.left_out} if self.left_out else {})},
            **({"artifacts_used": used} if used else {}),
        }


def _text(seconds: float) -> str:
    """Return seconds since 1970 as records hold times: ISO 8601 in UTC, without a zone."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
