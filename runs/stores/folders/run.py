"""`FolderRun`: one past run in a folder, recorded by the lab or by Sacred's FileStorageObserver."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.identity import read_lease, true_status
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.media_files import media_path
from sacristan.observers.record.schema import (
    CHILD_POINTS,
    CONFIG,
    INFO,
    LIVE,
    MEDIA,
    MEDIA_FOLDER,
    NAMES,
    NOTES,
    OUTPUT,
    POINTS,
    PROVENANCE,
    RANKS_FOLDER,
    RUN,
    SACRED_METRICS,
    SUMMARY,
    SUMS,
    VALUES,
    MetricNames,
    checkpoint_files,
    newer_format,
    rank_files,
    read_json_lines,
)
from sacristan.observers.record.stored_files import md5_in
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.query.flattening import list_of, mapping_of
from sacristan.runs.query.index.fields import summary_of
from sacristan.runs.query.index.folders import has_record
from sacristan.runs.query.index.scanning import COARSE_NS
from sacristan.runs.query.serialized import without_pickles
from sacristan.runs.query.times import without_zone
from sacristan.runs.stores.content import Content, Medium, missing_content
from sacristan.runs.stores.run import Run, RunStore

if TYPE_CHECKING:
    from sacristan.observers.artifacts.version import ArtifactVersion
    from sacristan.observers.record.points.points import Series

__all__ = ["FolderRun", "version_of_points"]

# Files of the parts of a record.
_FILES = {"config": CONFIG, "info": INFO, "summary": SUMMARY, "provenance": PROVENANCE}


class FolderRun(Run):
    """A run in a folder.

    Args:
        id: Its path below `base`.
    """

    folder: Path

    def __init__(self, store: RunStore, base: Path, id: str) -> None:
        super().__init__(store, id)
        self.base = base
        self.folder = base / id

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("_files", "_names")}
        return {**state, "base": self.base.absolute(), "folder": self.folder.absolute()}

    @functools.cached_property
    def _files(self) -> Path:
        """The folder of the run's files; a format of a later version is rejected with a StoreError."""
        with contextlib.suppress(OSError, ValueError, RecursionError):  # the rest of a damaged record may be read
            _check_format(self.folder, parse_json(read_regular(self.folder / RUN)))
        return self.folder

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        document = {**_read(self.folder / RUN), **self._readable(lambda: _read(self.folder / NOTES))}
        return without_pickles(document, twice=True)

    def _part(self, name: str) -> dict[str, Any]:
        part = without_pickles(_read(self._files / _FILES[name]))
        if name == "summary" and not part and (self.folder / SACRED_METRICS).exists():
            return summary_of(_read(self.folder / SACRED_METRICS)) or {}
        return part

    def _true_status(self) -> str:
        lease = self.lease if self.document.get("status", "RUNNING") == "RUNNING" else None
        return true_status(self.document, lease) or ""

    @property
    def lease(self) -> dict[str, Any] | None:
        return read_lease(self.folder)

    def _check_is_there(self) -> None:
        _require_run(self.folder)

    def damage(self) -> list[str]:
        is_of_lab = "format" in self.document
        found = [f"{CONFIG} is missing"] if is_of_lab and not (self._files / CONFIG).exists() else []
        if is_of_lab and not self.is_living:
            from sacristan.observers.record.points.intact_points import damage_in

            with self._damage_to("metrics"):
                found += damage_in(self._files, [name for name in self.summary if not name.startswith("system/")])
        return found

    def original(self) -> Run | None:
        return self

    # ------------------------------------------------------------------ points

    @functools.cached_property
    def _names(self) -> MetricNames:
        return MetricNames(self.folder)

    def _metric_names(self) -> list[str]:
        if (self._files / POINTS).exists():
            with self._damage_to("metrics"):
                return list({str(name) for name, _ in self._names.by_id.values()})
        return list(_read(self.folder / SACRED_METRICS))

    def _series(self, name: str) -> Series | None:
        # Lists of runs do without numpy, which these modules import.
        if (self._files / POINTS).exists():
            from sacristan.observers.record.points.intact_points import read_metric

            with self._damage_to("metrics"):
                return read_metric(self.folder, name, self._names, version_of_points(self.folder))
        from sacristan.runs.stores.stock_sacred import series_of

        return series_of(_read(self.folder / SACRED_METRICS).get(name), without_zone(self.start_time))

    @contextlib.contextmanager
    def _damage_to(self, part: str) -> Iterator[None]:
        """Turn the errors of reading a damaged file into a StoreError."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"the {part} in {self.folder} cannot be read ({error.strerror})") from error
        except MemoryError as error:
            raise StoreError(f"the {part} in {self.folder} are larger than the memory that is free") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"the {part} in {self.folder} are damaged ({type(error).__name__}: {error})") from error

    # ------------------------------------------------------------------ files

    def stored(self, kind: str) -> list[Content]:
        if kind == "artifacts":
            return [self._own_file(name) for name in list_of(self.document.get("artifacts")) if isinstance(name, str)]
        if kind == "checkpoints":
            found = [self._own_file(name) for name, _ in checkpoint_files(self.folder)]
            if not found:
                _require_run(self.folder)
            return found
        return self._shared_files(kind)

    def _shared_files(self, kind: str) -> list[Content]:
        """Return sources or resources, which runs share beside their folders."""
        holder = mapping_of(self.document.get("experiment")) if kind == "sources" else self.document
        return [
            self._content(pair[0], self.folder.parent, self._below_the_store(pair[1], f"_{kind}"), md5_in(pair[1]))
            for pair in list_of(holder.get(kind))
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(item, str) for item in pair)
        ]

    def _below_the_store(self, path: str, kept_in: str) -> str:
        """Return a recorded path as one below the store.

        Stock Sacred records resources relative to the working directory of the run, which no record tells.
        """
        *_, folder, name = ("", "", *Path(path).parts)
        kept = f"{kept_in}/{name}"
        is_other = folder == kept_in and path != kept and not (self.folder.parent / path).exists()
        return kept if is_other else path

    @property
    def rank_outputs(self) -> dict[int, Content]:
        names = {rank: f"{RANKS_FOLDER}/{path.name}" for rank, path in rank_files(self.folder).items()}
        if not names:
            _require_run(self.folder)
        return {rank: self._own_file(name) for rank, name in names.items()}

    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        try:
            with open_regular(self.folder / OUTPUT) as stream:
                start = max(stream.seek(0, os.SEEK_END) + start, 0) if start < 0 else start
                stream.seek(start)
                data = stream.read(max_bytes)
                return data, start + len(data)
        except FileNotFoundError:
            _require_run(self.folder)
            return b"", max(start, 0)
        except OSError as error:
            raise StoreError(f"{self.folder / OUTPUT} cannot be read ({error.strerror})") from error
        except MemoryError as error:
            raise StoreError(f"{self.folder / OUTPUT} is larger than the memory that is free") from error

    @property
    def media(self) -> list[Medium]:
        return [medium for line in _lines_of(self._files / MEDIA) if (medium := self._medium(line)) is not None]

    def _medium(self, line: bytes) -> Medium | None:
        """Return the medium that a line records; None for a damaged line, which must not hide the others."""
        try:
            entry = parse_json(line)
            return Medium.of(entry, [self._own_file(str(file)) for file in (entry["file"], *entry.get("images", ()))])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        entries = []
        with self._damage_to("media"):
            for entry in read_json_lines(self._files / MEDIA):
                paths = [media_path(self.folder, file) for file in (entry["file"], *entry.get("images", ()))]
                contents = [self._content(path.name, self.folder, f"{MEDIA_FOLDER}/{path.name}") for path in paths]
                entries.append((entry, contents))
        if not entries:
            _require_run(self.folder)
        return entries

    def artifact_details(self) -> dict[str, dict[str, Any]]:
        details = mapping_of(self.document.get("artifact_details"))
        return {name: one for name, one in details.items() if isinstance(one, dict)}

    def odd_values(self) -> bytes:
        path = self.folder / VALUES
        try:
            return read_regular(path)
        except FileNotFoundError:
            return b"" if (self._files / POINTS).exists() else self._other_values_of_sacred()
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror})") from error

    def _other_values_of_sacred(self) -> bytes:
        if not (metrics := _read(self.folder / SACRED_METRICS)):
            return b""
        from sacristan.runs.stores.stock_sacred import other_values

        return other_values(metrics, without_zone(self.start_time))

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        try:
            return ArtifactStore(self.folder.parent).resolve(f"{entry['name']}@{entry['digest']}")
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    def _own_file(self, name: str) -> Content:
        return self._content(name, self.folder, name)

    def _content(self, name: str, base: Path, path: str, md5: str | None = None) -> Content:
        if "\0" in path:
            return missing_content(name, "its record names an impossible path")
        target, inside = (base / path).resolve(), base.resolve()
        if not target.is_relative_to(inside):
            return missing_content(name, "its record names a path outside of the store")

        def open_() -> BinaryIO:
            with naming_os_errors(f"{name!r} of run {self.id} cannot be read"):
                return open_regular(target)

        return Content(name, open_, md5)


def version_of_points(folder: Path) -> Hashable | None:
    """Return a value that changes with the points in a run's folder.

    None means that points may change unnoticed: in a file mapped into memory, or one changed just now.
    """
    # Plain texts: making pathlib's objects takes longer than looking.
    if any(os.path.lexists(f"{folder}/{name}") for name in (LIVE, CHILD_POINTS)):
        return None
    stats = []
    for name in (POINTS, NAMES, SUMS, SACRED_METRICS, INFO):
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
    """Raise a StoreError if the run in a folder was removed since it was found."""
    if not has_record(folder):
        raise _gone(folder / RUN)


def _gone(path: Path) -> StoreError:
    return StoreError(f"{path} does not exist; the run was removed, or is being created")


def _check_format(folder: Path, run: Any) -> None:
    if newer := newer_format(run):
        raise StoreError(f"{folder} cannot be read: {newer}")


def _read(path: Path) -> dict[str, Any]:
    """Return the document in a file; an empty one if the run lacks the file."""
    try:
        document = parse_json(read_regular(path))
    except FileNotFoundError:
        if path.name == RUN:
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
    if path.name == RUN:
        _check_format(path.parent, document)
    return document
