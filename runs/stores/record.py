"""`RunRecord`: the record of a past run, read from its store a part at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, Self

from sacristan.runs.errors import RemovedError, StoreAwayError, StoreError
from sacristan.runs.query.filters import Question
from sacristan.runs.stores.content import Content, Medium
from sacristan.runs.stores.contract import PARTS, Backend, StoredRun

if TYPE_CHECKING:
    from sacristan.observers.artifacts import ArtifactVersion
    from sacristan.observers.record.points import Series
    from sacristan.runs.stores.changes import Author


class RunStore(Protocol):
    """The methods of `sacristan.runs.stores.Store` that runs and backends call; `Store` itself imports both."""

    where: str
    on_progress: Callable[[str, int, int], None] | None
    max_age_s: float
    author: Author
    backend: Backend

    def find(
        self,
        filter: Any = None,
        sort: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Any]: ...

    def answer(self, question: Question) -> list[Any]: ...

    def get(self, key: str | int) -> Any: ...

    def check_field(self, name: str) -> None: ...

    def prefetch(self, runs: Sequence[Any], names: Sequence[str]) -> None: ...

    def each_series(self, runs: Sequence[Any], metric: str) -> Iterator[tuple[Any, Series | None]]: ...

    def recorded_in(self, folder: Path) -> Any: ...

    def tell(self, task: str, done: int, total: int) -> None: ...


class RunRecord(StoredRun):
    """The record of a run. A part is read when it is asked for, fields and `PARTS` once, everything else each time.

    Attributes:
        store: The store that it was found in.
        id: Its id in the store, as text.
        key: What the store itself calls it; see `sacristan.runs.stores.contract.RunRow`.
        problem: Why a part of its record cannot be read, as far as is known; None if nothing is wrong.
    """

    problem: str | None = None
    is_listed = False  # shown among others, which its damaged parts must not hide

    def __init__(self, store: RunStore, id: str, row: Mapping[str, Any] | None = None, key: Any = None) -> None:
        self.store = store
        self.id = id
        self.key = id if key is None else key
        self._row = dict(row or {})  # known fields by full name
        self._parts: dict[str, dict[str, Any]] = {}  # that have been read

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.store.where!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunRecord) and (self.store.where, self.id) == (other.store.where, other.id)

    def __hash__(self) -> int:
        return hash((self.store.where, self.id))

    def listed(self) -> Self:
        """Return a copy to show among others: damaged parts of its record are missing, and `problem` says why."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, is_listed=True, _parts=dict(self._parts))
        return copied

    @property
    def folder(self) -> Path | None:
        """The folder that it lies in; None in a database."""
        base = self.store.backend.folder
        return None if base is None else base / self.key

    def original(self) -> Self | None:
        """Return the run in the folder that it was recorded in, which has its states.

        Returns:
            The run; None if that folder is not on this machine, or holds another run.
        """
        if self.folder is not None:
            return self
        folder, uid = (self.document.get(name) for name in ("folder", "uid"))
        if not (folder and uid and Path(str(folder)).is_dir()):
            return None
        with contextlib.suppress(StoreError):  # a folder without a readable record holds another run
            run: Self | None = self.store.recorded_in(Path(str(folder)))
            return run if run is not None and run.document.get("uid") == uid else None
        return None

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """The run's own fields, without config, info and summary; times are texts in ISO 8601.

        Raises:
            StoreError: If it cannot be read, or is gone.
        """
        return self._ask("document")

    def _ask(self, name: str, entries: Sequence[str] | None = None) -> Any:
        """Return a part of the record as it is now; see `Backend.part`."""
        return self.store.backend.part(self, name, entries)

    def _read_part(self, name: str) -> dict[str, Any]:
        """Return one of `PARTS`, which is read once."""
        if name not in self._parts:
            self._parts[name] = self.readable(lambda: self._ask(name))
        return self._parts[name]

    def readable(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a part of the record; if it is damaged and the run is listed, an empty one."""
        try:
            return read()
        except StoreAwayError:
            raise
        except StoreError as error:
            if not self.is_listed:
                raise
            if not self.store.backend.get([self.id]):
                raise RemovedError(f"run {self.id} is no longer in {self.store.where}; it was removed") from error
            self.problem = self.problem or str(error)
            return {}

    def hold(self, values: Mapping[str, Any]) -> None:
        """Remember fields and parts, which `Backend.read_ahead` yields, so that reading them costs nothing."""
        self._row |= {name: value for name, value in values.items() if name not in PARTS}
        self._parts |= {name: values[name] for name in PARTS if name in values}

    def holds(self, name: str) -> bool:
        """Tell whether a field, a part or `metrics` is known."""
        return name in self._row or name in self._parts

    @property
    def lease(self) -> dict[str, Any] | None:
        """Host, process and last heartbeat of the run's writer; None for a run of stock Sacred."""
        return self._ask("lease")

    def damage(self) -> list[str]:
        """Return what is missing or damaged in the record, in sentences that name the file; a database has no files.

        Reads all points, so that it is for one run at a time.
        """
        return self._ask("damage")

    def odd_values(self) -> bytes:
        """Return logged values that are no numbers, as lines of JSON; see `sacristan.observers.record.schema`."""
        return self._ask("values")

    def stored(self, kind: str) -> list[Content]:
        """Return all files of one kind.

        Args:
            kind: `sources`, `resources`, `artifacts`, `checkpoints` or `ranks`. A database without copies of the last
                two reads them from the run's folder, if that is on this machine.

        Returns:
            The files, in the order of the record; sources and resources may contain a name more than once.
        """
        contents = self.store.backend.files(self, kind)
        original = self.original() if not contents and kind in ("checkpoints", "ranks") else self
        return contents if original is self or original is None else original.stored(kind)

    @property
    def rank_outputs(self) -> dict[int, Content]:
        """Outputs of the processes of a distributed run, by rank; rank 0 wrote the run's own output."""
        return {int(PurePosixPath(content.name).stem): content for content in self.stored("ranks")}

    @property
    def media(self) -> list[Medium]:
        """Images, tables, sounds and so on, in the order of logging."""
        found = self.store.backend.media(self, skips_damaged=True)
        return [Medium.of(entry, contents) for entry, contents in found]

    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        """Return the media as recorded: each entry of `sacristan.observers.record.schema` with its files.

        Raises:
            StoreError: If an entry cannot be read.
        """
        return [
            (entry, [dataclasses.replace(content, name=content.name.rpartition("/")[2]) for content in contents])
            for entry, contents in self.store.backend.media(self)
        ]

    def artifact_details(self) -> dict[str, dict[str, Any]]:
        """Return `metadata` and `content_type` of the artifacts that have any, by name."""
        return self._ask("artifact_details")

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        """Return a version of an artifact that the run logged or used.

        Args:
            entry: An entry of `artifacts_logged` or `artifacts_used`.
            into: The folder of runs that will receive the version; its contents may be stored there.

        Raises:
            StoreError: If the version is missing or damaged.
        """
        return self.store.backend.fetch_version(entry, into)

    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        """Return a part of what the run wrote to its terminal.

        Args:
            start: First byte; a negative number counts from the end.
            max_bytes: Maximum number of bytes; by default everything there is now.

        Returns:
            The bytes, and the position after them. While the run continues, a database lacks the middle of a long
            output; one line says so.
        """
        return self.store.backend.output(self, start, max_bytes)
