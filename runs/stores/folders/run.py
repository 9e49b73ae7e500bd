"""`FolderRun`: one past run in a folder of its own, ours or one of Sacred's FileStorageObserver."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from observers.artifacts.store import ArtifactStore
from observers.errors import ArtifactError
from observers.record.atomic_file import replacing
from observers.record.identity import read_lease, true_status
from observers.record.json_text import parse_json
from observers.record.locking import claimed
from observers.record.media_files import media_path
from observers.record.regular_file import open_regular, read_regular
from observers.record.schema import (
    CONFIG,
    INFO,
    MEDIA,
    MEDIA_FOLDER,
    NOTES,
    OUTPUT,
    POINTS,
    PROVENANCE,
    RANKS_FOLDER,
    RUN,
    SACRED_METRICS,
    SUMMARY,
    VALUES,
    checkpoint_files,
    rank_files,
    read_json_lines,
    read_names,
)
from observers.record.stored_files import md5_in
from runs.errors import StoreError
from runs.query.index.fields import summary_of
from runs.query.index.folders import has_record
from runs.query.serialized import without_pickles
from runs.query.times import without_zone
from runs.stores.content import Content, missing_content
from runs.stores.folders.removing import discard_folder, remove_folder
from runs.stores.media import Medium
from runs.stores.run import Run, RunStore

if TYPE_CHECKING:
    from observers.artifacts.version import ArtifactVersion
    from observers.record.points.points import Series

__all__ = ["PARTS", "FolderRun"]

# The parts of a record that have files of their own.
PARTS = {"config": CONFIG, "info": INFO, "summary": SUMMARY, "provenance": PROVENANCE}


class FolderRun(Run):
    """A run in a folder of its own.

    Attributes:
        base: The folder of runs that it lies in.
        folder: Its own folder.
    """

    folder: Path

    def __init__(self, store: RunStore, base: Path, id: str, row: Mapping[str, Any] | None = None) -> None:
        super().__init__(store, id, row)
        self.base = base
        self.folder = base / id

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "base": self.base.absolute(), "folder": self.folder.absolute()}

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """See `Run.document`."""
        document = {**_read(self.folder / RUN), **self._readable(lambda: _read(self.folder / NOTES))}
        return without_pickles(document, twice=True)

    def _part(self, name: str) -> dict[str, Any]:
        found = without_pickles(_read(self.folder / PARTS[name]))
        if name == "summary" and not found and (self.folder / SACRED_METRICS).exists():
            return summary_of(_read(self.folder / SACRED_METRICS)) or {}
        return found

    @property
    def status(self) -> str:
        """See `Run.status`."""
        known = self._row.get("status")
        return str(known) if known else true_status(self.document, read_lease(self.folder)) or ""

    def _check_is_there(self) -> None:
        require_run(self.folder)

    def _metric_names(self) -> list[str]:
        if (self.folder / POINTS).exists():
            with self._damage_to("metrics"):
                return list({str(name) for name, _ in read_names(self.folder).values()})
        return list(_read(self.folder / SACRED_METRICS))

    def _series(self, name: str) -> Series | None:
        # With numpy, which lists of runs do without.
        if (self.folder / POINTS).exists():
            from observers.record.points.intact_points import read_metric

            with self._damage_to("metrics"):
                return read_metric(self.folder, name)
        from runs.stores.stock_sacred import series_of

        return series_of(_read(self.folder / SACRED_METRICS).get(name), without_zone(self.start_time))

    @contextlib.contextmanager
    def _damage_to(self, what: str) -> Iterator[None]:
        """Turn what reading a damaged file raises into a StoreError."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"the {what} in {self.folder} cannot be read ({error.strerror})") from error
        except MemoryError as error:
            raise StoreError(f"the {what} in {self.folder} are larger than the memory that is free") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"the {what} in {self.folder} are damaged ({type(error).__name__}: {error})") from error

    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        """See `Run.read_output`."""
        try:
            with open_regular(self.folder / OUTPUT) as stream:
                start = max(stream.seek(0, os.SEEK_END) + start, 0) if start < 0 else start
                stream.seek(start)
                data = stream.read(max_bytes)
                return data, start + len(data)
        except FileNotFoundError:
            require_run(self.folder)
            return b"", max(start, 0)
        except OSError as error:
            raise StoreError(f"{self.folder / OUTPUT} cannot be read ({error.strerror})") from error
        except MemoryError as error:
            raise StoreError(f"{self.folder / OUTPUT} is larger than the memory that is free") from error

    @property
    def rank_outputs(self) -> dict[int, Content]:
        """See `Run.rank_outputs`."""
        names = {rank: f"{RANKS_FOLDER}/{path.name}" for rank, path in rank_files(self.folder).items()}
        if not names:
            require_run(self.folder)
        return {rank: self._content(name, self.folder, name) for rank, name in names.items()}

    @property
    def artifacts(self) -> dict[str, Content]:
        """See `Run.artifacts`."""
        names = self.document.get("artifacts")
        names = names if isinstance(names, list) else []
        return {name: self._content(name, self.folder, name) for name in names if isinstance(name, str)}

    @property
    def checkpoints(self) -> dict[str, Content]:
        """See `Run.checkpoints`."""
        names = [name for name, _ in checkpoint_files(self.folder)]
        if not names:
            require_run(self.folder)
        return {name: self._content(name, self.folder, name) for name in names}

    @property
    def lease(self) -> dict[str, Any] | None:
        """See `Run.lease`."""
        return read_lease(self.folder)

    @property
    def media(self) -> list[Medium]:
        """See `Run.media`."""
        return [medium for line in lines_of(self.folder / MEDIA) if (medium := self._medium(line)) is not None]

    def _medium(self, line: bytes) -> Medium | None:
        try:
            entry = parse_json(line)
            fields = {key: entry[key] for key in ("name", "kind", "step", "content_type", "meta")}
            files = [entry["file"], *entry.get("images", ())]
            contents = [self._content(str(file), self.folder, str(file)) for file in files]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None  # a line that was damaged hides no other
        images = {content.name.rpartition("/")[2]: content for content in contents[1:]}
        return Medium(**fields, time_s=entry.get("time"), content=contents[0], images=images)

    def stored(self, kind: str) -> list[Content]:
        """See `Run.stored`."""
        experiment = self.document.get("experiment") if kind == "sources" else self.document
        # Pairs of a name and a path below the store.
        pairs = experiment.get(kind) if isinstance(experiment, dict) else None
        return [
            self._content(pair[0], self.folder.parent, self._below_the_store(pair[1], f"_{kind}"), md5_in(pair[1]))
            for pair in (pairs if isinstance(pairs, list) else ())
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(item, str) for item in pair)
        ]

    def _below_the_store(self, path: str, kept_in: str) -> str:
        """Return a stored path as one below the store.

        Stock Sacred names resources from the folder that the run was started in, which no record tells.
        """
        *_, folder, name = ("", "", *Path(path).parts)
        kept = f"{kept_in}/{name}"
        is_other = folder == kept_in and path != kept and not (self.folder.parent / path).exists()
        return kept if is_other else path

    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        """See `Run.media_entries`."""
        found = []
        with self._damage_to("media"):
            for entry in read_json_lines(self.folder / MEDIA):
                files = [entry["file"], *entry.get("images", ())]
                paths = [media_path(self.folder, file) for file in files]
                found.append((entry, [self._content(p.name, self.folder, f"{MEDIA_FOLDER}/{p.name}") for p in paths]))
        if not found:
            require_run(self.folder)
        return found

    def artifact_details(self) -> dict[str, dict[str, Any]]:
        """See `Run.artifact_details`."""
        details = self.document.get("artifact_details")
        details = details if isinstance(details, dict) else {}
        return {name: one for name, one in details.items() if isinstance(one, dict)}

    def odd_values(self) -> bytes:
        """See `Run.odd_values`."""
        try:
            return read_regular(self.folder / VALUES)
        except OSError:
            return b""

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        """See `Run.fetch_version`."""
        try:
            return ArtifactStore(self.folder.parent).resolve(f"{entry['name']}@{entry['digest']}")
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    def original(self) -> Run | None:
        """See `Run.original`."""
        return self

    def _change_notes(self, change: Callable[[Run], Mapping[str, Any]]) -> None:
        try:
            with claimed(self.folder):
                now = FolderRun(self.store, self.base, self.id)
                content = json.dumps({**now.notes(), **change(now)}, indent=2).encode()
                with replacing(self.folder / NOTES) as stream:
                    stream.write(content)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be written ({error.strerror})") from error

    def _remove(self) -> None:
        remove_folder(self.base, self.folder)

    def _discard(self) -> None:
        discard_folder(self.base, self.folder)

    def _content(self, name: str, base: Path, path: str, md5: str | None = None) -> Content:
        if "\0" in path:
            return missing_content(name, "its record names a path that there cannot be")
        target, inside = (base / path).resolve(), base.resolve()
        if not target.is_relative_to(inside):
            return missing_content(name, "its record names a path outside of the store")

        def open_() -> BinaryIO:
            try:
                return open_regular(target)
            except OSError as error:
                raise StoreError(f"{name!r} of run {self.id} cannot be read ({error.strerror})") from error

        return Content(name, open_, md5)


def lines_of(path: Path) -> list[bytes]:
    """Return the whole lines of an append-only file; none if there is no file."""
    try:
        return read_regular(path).split(b"\n")[:-1]
    except FileNotFoundError:
        require_run(path.parent)
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror})") from error


def require_run(folder: Path) -> None:
    """Check that there is a run in a folder, whatever it lacks.

    Raises:
        StoreError: If it was removed since it was found.
    """
    if not has_record(folder):
        raise StoreError(f"{folder / RUN} does not exist; the run was removed, or is being created")


def _read(path: Path) -> dict[str, Any]:
    """Return the document in a file; an empty one if the run has none.

    Raises:
        StoreError: If it cannot be read, or the run is gone.
    """
    try:
        document = parse_json(read_regular(path))
    except FileNotFoundError:
        if path.name != RUN:
            require_run(path.parent)
            return {}
        raise StoreError(f"{path} does not exist; the run was removed, or is being created") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({error}); the rest of the run may still be read") from error
    if not isinstance(document, dict):
        raise StoreError(
            f"{path} holds {type(document).__name__}, expected an object; the rest of the run may still be read"
        )
    return document
