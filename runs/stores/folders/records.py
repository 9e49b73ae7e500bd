"""Records of runs in a folder, made by the lab or by Sacred's FileStorageObserver."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sacristan.observers.artifacts import ArtifactFile, ArtifactVersion
from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError, ArtifactNotFoundError
from sacristan.observers.record import schema
from sacristan.observers.record.copies import md5_in
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.identity import read_lease, true_status
from sacristan.observers.record.json_text import load_json, parse_json
from sacristan.observers.record.media_files import media_path
from sacristan.runs.errors import RemovedError, StoreError, naming_os_errors
from sacristan.runs.query import in_utc, list_of, mapping_of, without_pickles, without_zone
from sacristan.runs.query.index.fields import summary_of, summary_of_killed
from sacristan.runs.query.index.scanning import COARSE_NS, has_record
from sacristan.runs.stores import Backend, Content, Medium, R, StoredArtifact, StoredRun, missing_content

if TYPE_CHECKING:
    from sacristan.observers.record.points import Series

# Records whose state is kept for the next question.
_MOST_KEPT = 4096
# Files of the parts of a record.
_FILES = {"config": schema.CONFIG, "info": schema.INFO, "summary": schema.SUMMARY, "provenance": schema.PROVENANCE}


class FolderRecords(Backend):
    """The part of the store that reads records below `folder`; a run's `key` is its path there."""

    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Of records: what was checked of their formats, and their metrics, which are expensive to read again.
        self._checked = functools.lru_cache(_MOST_KEPT)(_check_record)
        self._names = functools.lru_cache(_MOST_KEPT)(schema.MetricNames)

    def _of(self, run: StoredRun) -> Path:
        return self.folder / run.key

    def _files(self, run: StoredRun) -> Path:
        """Return a run's folder; a format of a later version is rejected with a StoreError."""
        folder = self._of(run)
        with contextlib.suppress(OSError):
            status = (folder / schema.RUN).stat()
            if newer := self._checked(folder, (status.st_ino, status.st_size, status.st_mtime_ns)):
                raise StoreError(newer)
        return folder

    def part(self, run: StoredRun, name: str, entries: Sequence[str] | None = None) -> Any:
        return _READERS[name](self, run) if name in _READERS else self._mapping(run, name)

    def _mapping(self, run: StoredRun, name: str) -> dict[str, Any]:
        folder = self._files(run)
        part = without_pickles(_read(folder / _FILES[name]))
        if name == "summary" and not part and (folder / schema.SACRED_METRICS).exists():
            return summary_of(_read(folder / schema.SACRED_METRICS)) or {}
        if name == "summary":
            return summary_of_killed(folder, part) or part
        return part

    def _damage(self, run: StoredRun) -> list[str]:
        folder, is_of_lab = self._files(run), "format" in run.document
        damage = [f"{schema.CONFIG} is missing"] if is_of_lab and not (folder / schema.CONFIG).exists() else []
        if is_of_lab and not run.is_living:
            from sacristan.observers.record.points.intact_points import damage_in

            with _damage_to("metrics", folder):
                damage += damage_in(folder, [name for name in run.summary if not name.startswith("system/")])
        return damage

    # ------------------------------------------------------------------ points

    def _metrics(self, run: StoredRun) -> list[str]:
        folder = self._files(run)
        if (folder / schema.POINTS).exists():
            with _damage_to("metrics", folder):
                return list({str(name) for name, _ in self._names(folder).by_id.values()})
        return list(_read(folder / schema.SACRED_METRICS))

    def series(self, runs: Sequence[R], metric: str) -> Iterator[tuple[R, Series | None]]:
        for run in runs:
            yield run, self._series(run, metric)

    def _series(self, run: StoredRun, metric: str) -> Series | None:
        folder = self._files(run)
        # Lists of runs do without numpy, which these modules import.
        if (folder / schema.POINTS).exists():
            from sacristan.observers.record.points.intact_points import read_metric

            with _damage_to("metrics", folder):
                return read_metric(folder, metric, self._names(folder), _version_of_points(folder))
        from sacristan.runs.stores.series import series_of

        return series_of(_read(folder / schema.SACRED_METRICS).get(metric), _start_of(run))

    def points_versions(self, runs: Sequence[StoredRun], metric: str) -> list[Hashable | None]:
        return [_version_of_points(self._of(run)) for run in runs]

    def _values(self, run: StoredRun) -> bytes:
        folder = self._files(run)
        try:
            return read_regular(folder / schema.VALUES)
        except FileNotFoundError:
            return b"" if (folder / schema.POINTS).exists() else _other_values_of_sacred(folder, _start_of(run))
        except OSError as error:
            raise StoreError(f"{folder / schema.VALUES} cannot be read ({error.strerror})") from error

    # ------------------------------------------------------------------ files

    def files(self, run: StoredRun, kind: str) -> list[Content]:
        if kind in ("sources", "resources"):
            return self._shared_files(run, kind)
        folder = self._of(run)
        if kind == "artifacts":
            names = [name for name in list_of(run.document.get("artifacts")) if isinstance(name, str)]
        elif kind == "checkpoints":
            names = [name for name, _ in schema.checkpoint_files(folder)]
        else:
            names = [f"{schema.RANKS_FOLDER}/{path.name}" for path in schema.rank_files(folder).values()]
        if not names and kind != "artifacts":
            _require_run(folder)
        return [_content(run, name, folder, name) for name in names]

    def _shared_files(self, run: StoredRun, kind: str) -> list[Content]:
        """Return sources or resources, which runs share beside their folders."""
        holder = mapping_of(run.document.get("experiment")) if kind == "sources" else run.document
        beside = self._of(run).parent
        return [
            _content(run, pair[0], beside, _below(beside, pair[1], f"_{kind}"), md5_in(pair[1]))
            for pair in list_of(holder.get(kind))
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(item, str) for item in pair)
        ]

    def output(self, run: StoredRun, start: int, max_bytes: int | None) -> tuple[bytes, int]:
        path = self._of(run) / schema.OUTPUT
        try:
            with open_regular(path) as stream:
                start = max(stream.seek(0, os.SEEK_END) + start, 0) if start < 0 else start
                stream.seek(start)
                data = stream.read(max_bytes)
                return data, start + len(data)
        except FileNotFoundError:
            _require_run(path.parent)
            return b"", max(start, 0)
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror})") from error
        except MemoryError as error:
            raise StoreError(f"{path} is larger than the memory that is free") from error

    def media(self, run: StoredRun, *, skips_damaged: bool = False) -> list[tuple[dict[str, Any], list[Content]]]:
        folder, entries = self._files(run), []
        if skips_damaged:
            for line in _lines_of(folder / schema.MEDIA):
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    entry, contents = _medium(run, folder, parse_json(line))
                    Medium.of(entry, contents)  # or it lacks a field
                    entries.append((entry, contents))
            return entries
        with _damage_to("media", folder):
            for entry in schema.read_json_lines(folder / schema.MEDIA):
                for file in (entry["file"], *entry.get("images", ())):
                    media_path(folder, file)  # rejects other names
                entries.append(_medium(run, folder, entry))
        if not entries:
            _require_run(folder)
        return entries

    # ------------------------------------------------------------------ versions of artifacts

    def artifacts(self) -> list[str]:
        with naming_os_errors(f"{self.folder} cannot be read"):
            return ArtifactStore(self.folder).names()

    def artifact_versions(self, name: str, version: int | None = None) -> list[StoredArtifact]:
        store = ArtifactStore(self.folder)
        if name not in store.names():  # other names might lead out of the folder
            return []
        try:
            versions = store.versions(name) if version is None else [store.resolve(f"{name}:v{version}")]
            return [_stored(store, each) for each in versions]
        except ArtifactNotFoundError:
            return []
        except ArtifactError as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            raise StoreError(f"{store.root} cannot be read ({error.strerror})") from error

    def remove_version(self, name: str, version: int) -> None:
        try:
            ArtifactStore(self.folder).remove(name, version)
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        try:
            return ArtifactStore(self.folder).resolve(f"{entry['name']}@{entry['digest']}")
        except ArtifactError as error:
            raise StoreError(str(error)) from error


_READERS: dict[str, Callable[[FolderRecords, StoredRun], Any]] = {
    "document": lambda records, run: read_document(records.folder / run.key, run.readable),
    "status": lambda records, run: status_of(run.document, records.folder / run.key),
    "lease": lambda records, run: read_lease(records.folder / run.key),
    "metrics": FolderRecords._metrics,
    "values": FolderRecords._values,
    "artifact_details": lambda _, run: {
        name: one for name, one in mapping_of(run.document.get("artifact_details")).items() if isinstance(one, dict)
    },
    "damage": FolderRecords._damage,
}


def read_document(
    folder: Path, readable: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]] = lambda read: read()
) -> dict[str, Any]:
    """Return a run's own fields with its notes; `readable` decides what becomes of damaged notes."""
    document = {**_read(folder / schema.RUN), **readable(lambda: _read(folder / schema.NOTES))}
    return without_pickles(document, twice=True)


def status_of(document: Mapping[str, Any], folder: Path) -> str:
    """Return the recorded status, with DEAD instead of RUNNING if the process is gone."""
    lease = read_lease(folder) if document.get("status", "RUNNING") == "RUNNING" else None
    return true_status(document, lease) or ""


@contextlib.contextmanager
def _damage_to(part: str, folder: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged file into a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the {part} in {folder} cannot be read ({error.strerror})") from error
    except MemoryError as error:
        raise StoreError(f"the {part} in {folder} are larger than the memory that is free") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the {part} in {folder} are damaged ({type(error).__name__}: {error})") from error


def _start_of(run: StoredRun) -> datetime | None:
    return without_zone(in_utc(run.get("start_time") or run.get("queue_time")))


def _other_values_of_sacred(folder: Path, start: datetime | None) -> bytes:
    if not (metrics := _read(folder / schema.SACRED_METRICS)):
        return b""
    from sacristan.runs.stores.series import other_values

    return other_values(metrics, start)


def _medium(run: StoredRun, folder: Path, entry: dict[str, Any]) -> tuple[dict[str, Any], list[Content]]:
    return entry, [_content(run, str(file), folder, str(file)) for file in (entry["file"], *entry.get("images", ()))]


def _below(beside: Path, path: str, kept_in: str) -> str:
    """Return a recorded path as one below the store.

    Stock Sacred records resources relative to the working directory of the run, which no record tells.
    """
    *_, folder, name = ("", "", *Path(path).parts)
    kept = f"{kept_in}/{name}"
    is_other = folder == kept_in and path != kept and not (beside / path).exists()
    return kept if is_other else path


def _content(run: StoredRun, name: str, base: Path, path: str, md5: str | None = None) -> Content:
    if "\0" in path:
        return missing_content(name, "its record names an impossible path")
    target, inside = (base / path).resolve(), base.resolve()
    if not target.is_relative_to(inside):
        return missing_content(name, "its record names a path outside of the store")

    def open_() -> BinaryIO:
        with naming_os_errors(f"{name!r} of run {run.id} cannot be read"):
            return open_regular(target)

    return Content(name, open_, md5)


def _stored(store: ArtifactStore, version: ArtifactVersion) -> StoredArtifact:
    lineage = store.lineage(version.name, version.version)
    return StoredArtifact(
        version.name,
        version.version,
        version.type,
        version.digest,
        version.created,
        version.bytes,
        len(version.files),
        version.metadata,
        lineage.made_by,
        lineage.used_by,
        {file.path: _version_file(version, file) for file in version.files},
        {file.path: file.bytes for file in version.files},
        {file.path: file.sha256 for file in version.files},
    )


def _version_file(version: ArtifactVersion, file: ArtifactFile) -> Content:
    def open_() -> BinaryIO:
        try:
            return version.stored(file)
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    return Content(file.path, open_)


def _version_of_points(folder: Path) -> Hashable | None:
    """Return a value that changes with the points in a run's folder; None if they may change unnoticed."""
    # Plain texts: making pathlib's objects takes longer than looking.
    if any(os.path.lexists(f"{folder}/{name}") for name in (schema.LIVE, schema.CHILD_POINTS)):
        return None
    stats = []
    for name in (schema.POINTS, schema.NAMES, schema.SUMS, schema.SACRED_METRICS, schema.INFO):
        with contextlib.suppress(OSError):
            status = os.stat(f"{folder}/{name}")  # noqa: PTH116
            if status.st_mtime_ns > time.time_ns() - COARSE_NS:
                return None
            stats.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(stats) or None


def _lines_of(path: Path) -> list[bytes]:
    """Return the complete lines of an append-only file; none if there is no file."""
    try:
        return read_regular(path).split(b"\n")[:-1]
    except FileNotFoundError:
        _require_run(path.parent)
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror})") from error


def _require_run(folder: Path) -> None:
    """Raise a RemovedError if the run in a folder was removed since it was found."""
    if not has_record(folder):
        raise _gone(folder / schema.RUN)


def _gone(path: Path) -> RemovedError:
    return RemovedError(f"{path} does not exist; the run was removed, or is being created")


def _check_record(folder: Path, _state: Hashable) -> str:
    """Return why a run cannot be read if it has the format of a later version."""
    try:
        newer = schema.newer_format(load_json(folder / schema.RUN))
    except (OSError, ValueError, RecursionError):  # the rest of a damaged record may be read
        return ""
    return f"{folder} cannot be read: {newer}" if newer else ""


def _read(path: Path) -> dict[str, Any]:
    """Return the document in a file; an empty one if the run lacks the file."""
    try:
        document = load_json(path)
    except FileNotFoundError:
        if path.name == schema.RUN:
            raise _gone(path) from None
        _require_run(path.parent)
        return {}
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({error}); the rest of the run may still be read") from error
    if not isinstance(document, dict):
        raise StoreError(
            f"{path} holds {type(document).__name__}, expected an object; the rest of the run may still be read"
        )
    if path.name == schema.RUN and (newer := schema.newer_format(document)):
        raise StoreError(f"{path.parent} cannot be read: {newer}")
    return document
