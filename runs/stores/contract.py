"""The contract of a store: what a folder, a database or a store of your own implements for `sacristan.runs.Store`.

A store differs from others in five things; everything else is written once above them:

* it answers questions about its runs (`find`, `count`, `get`, `fields`, ...);
* it reads parts of a run (`part`, `files`, `media`, `output`, `series`, ...);
* it keeps versions of artifacts (`artifacts`, `artifact_versions`, `fetch_version`);
* it adds and removes whole runs (`add`, `remove`, `trash`, `restore`, `reclaim`);
* it keeps `documents`: notes on runs, saved views, reports, claims on work, sweeps. A change of one is atomic.

A package of your own adds a store for the URLs of a scheme by an entry point of the group `sacristan.stores` that names
the scheme, and leads to a function of the URL that returns a `Backend`; see `sacristan.runs.stores.opening`. The tests
in `tests/integration/test_store_contract.py` must pass.

**Guarantees.** All stores give the same answers, which `sacristan.runs.query.filters` defines.

* Atomic: adding, removing, discarding and restoring a run, and changing a document, happen completely or not at all,
  even if the process is killed. A reader sees the state before or after; `Run.is_whole` is False for a run in between.
* Ordered: ids are numbers in the order in which runs arrive. `find` sorts numbers before booleans before texts before
  the rest, and ties by id. Files, media and points come in the order in which they were recorded.
* Idempotent: adding a run whose uid is there, and writing or removing a document again, change nothing.
* Visible: what one process has changed, the next question of any other sees; `count`, `fields` and `unreadable` may be
  a second older, and answers about runs that have ended as old as `Store.max_age_s`.
* Safe: nothing that is read is executed, and no name leads out of the store.
* Errors: a StoreError says that something cannot be read or written, a StoreAwayError that the store is away and may
  come back, and a DamagedError that content differs from its record. After an error nothing has changed.
* Slow may be `reclaim`, `unreadable`, the first `find` after many changes, and reading points and files; `get`, `part`
  of one run and the claims on work may not. A store serves one thread; many processes open it at once.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from sacristan.runs.errors import StoreError
from sacristan.runs.query.filters import Filter, Question
from sacristan.runs.stores.changes import Added, Discarded, Removed, StagedRun
from sacristan.runs.stores.content import Content

if TYPE_CHECKING:
    from sacristan.observers.artifacts import ArtifactVersion
    from sacristan.observers.record.points import Series
    from sacristan.runs.stores.content import StoredArtifact

__all__ = ["NOTED", "PARTS", "UNSENT", "Backend", "Change", "Documents", "RunRow", "StoredRun"]

# Parts of a record that are mappings and read on their own.
PARTS = ("config", "info", "summary", "provenance")
# Entries of the notes on a run.
NOTED = ("tags", "note", "display_name", "display_colour", "reproductions", "changes")
# The state of a message that no receiver took.
UNSENT = "unsent"

# Returns what a document becomes, given what it is, None if there is none; None removes it.
Change = Callable[[Any], Mapping[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class RunRow:
    """A run as a store finds it, which becomes a `Run`.

    Attributes:
        id: Its id, as text.
        key: What the store itself calls it, such as an `_id` of a database, or its path below a folder.
        values: Fields that are known, by full name.
        problem: Why a part of its record cannot be read, if the store knows of one.
    """

    id: str
    key: Any
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str | None = None


class StoredRun(Protocol):
    """A run that a store is asked about, with what is known of it: a `sacristan.runs.stores.run.Run`."""

    id: str
    key: Any

    @property
    def document(self) -> dict[str, Any]: ...

    @property
    def summary(self) -> dict[str, dict[str, Any]]: ...

    @property
    def lease(self) -> dict[str, Any] | None: ...

    @property
    def is_living(self) -> bool: ...

    def get(self, name: str) -> Any: ...

    def hold(self, values: Mapping[str, Any]) -> None: ...

    def holds(self, name: str) -> bool: ...

    def readable(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]: ...


R = TypeVar("R", bound=StoredRun)


class Documents(abc.ABC):
    """Small documents of a store by kind, owner and name, each changed atomically.

    | kind | owner | name | document |
    | --- | --- | --- | --- |
    | `notes` | a run | empty | `Run.notes`: tags, note, display name, reproductions, changes |
    | `messages` | a run | an event | `state`: `sent`, `unsent`, or when somebody began to send it, in ISO 8601 |
    | `status` | a run | empty | `status`, `stop_time`, `fail_trace`, and `lease`, which nobody changes |
    | `claims` | a run | 1, 2, ... | the attempt's claim: the lease of its worker, and `process`, the lease of the run |
    | `views` | empty | letters and digits | a saved view |
    | `reports` | empty | letters and digits | a report, as it is now |
    | `report_versions` | empty | REPORTvNUMBER | an earlier version of a report |
    | `aliases` | an artifact | alias and number | a move of an alias of it; written once |
    | `removed_versions` | an artifact | `v` and number | who removed that version: `by`, `via`, `time`, `digest` |
    | `sweeps` | empty | a sweep | its definition, and `stopped` |
    | `sweep_claims` | a sweep | POINT/ATTEMPT | `sweep`, `trial`, `attempt`, `agent`, and `lease`, that of the run |
    | `sweep_agents` | a sweep | an agent | `agent`, and its `lease` |
    | `sweep_trials` | a sweep, or empty | digits, or a sweep | a trial of its study; the study |

    The owner of a run's documents is its `Run.key`; they go with the run, and the others need no owner. The status of a
    run in a folder changes only while no process holds its record; `reap` writes into folders by itself, because it
    also recovers their last points. Runs of a store that no observer delivers to have ended, and need no lease. Claims
    are made for good: of many processes that claim an attempt, `change` succeeds for one, and no attempt is left out. A
    lease says when it was renewed by the clock of its writer, and who reads it compares it with his own, so that clocks
    may differ by less than ten times the lease's interval; on one machine processes are compared, not clocks.
    """

    @abc.abstractmethod
    def read(
        self,
        kind: str,
        owner: Any = "",
        names: Collection[str] | None = None,
        *,
        after: str | None = None,
        where: Mapping[str, Collection[Any]] | None = None,
        entries: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return the documents of an owner by name; a damaged one may be anything.

        Args:
            kind: See the table.
            owner: See the table.
            names: Only these documents, and those `after` a name.
            after: Only documents whose names come after this one, as texts, and those that `names` names.
            where: Only documents each of whose entries has one of the values here.
            entries: The entries that the caller reads; others may be missing.
        """

    @abc.abstractmethod
    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        """Replace a document by what `change` returns for it, atomically and durably.

        `change` is called again if another process wrote first; its errors are raised, and the document stays.

        Returns:
            Whether the document differs from before. After an outage, a first try may have been written although its
            answer was lost: then the second one finds what it wanted to write, and returns False.
        """

    @abc.abstractmethod
    def count(self, kind: str, name: str, start: int, limit: float) -> int | None:
        """Return the next number of a document without owner, at least `start`; None if it is not below `limit`.

        Each caller gets another number, however many ask at once; after a power cut, a number may come again.
        """


class Backend(abc.ABC):
    """A folder, a database or another place of runs; see the guarantees of `sacristan.runs.stores.contract`.

    Attributes:
        where: The folder, or the URL without credentials.
        address: What `open_store` opens it by again, with credentials: never print or write it.
        documents: Its small documents.
        folder: The folder that its runs lie in, each at its `key`, and in which a process of this machine records runs;
            None if runs do not lie in folders.
        staging_home: The folder from which `add` takes runs without copying them; None for that of temporary files.
        look_s: Duration of the last scan of all runs in seconds; 0 for a store that needs none.
        on_progress, max_age_s: Those of the store that it serves.
    """

    where: str
    address: str
    documents: Documents
    folder: Path | None = None
    staging_home: Path | None = None
    look_s: float = 0.0
    on_progress: Callable[[str, int, int], None] | None = None
    max_age_s: float = 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @abc.abstractmethod
    def close(self) -> None:
        """Close files and connections."""

    # ------------------------------------------------------------------ questions

    @abc.abstractmethod
    def find(self, question: Question) -> list[RunRow]:
        """Return the runs that match a question, even if no run has its fields.

        The question is parsed and checked. The rows have its columns, without those that only the record has.
        """

    @abc.abstractmethod
    def count(self, tree: Filter, limit: int | None) -> int:
        """Return the number of runs that match a filter, counting up to `limit`."""

    @abc.abstractmethod
    def get(self, ids: Iterable[str]) -> dict[str, RunRow]:
        """Return runs by their ids or whole uids, as they were asked for; unknown ones are left out."""

    @abc.abstractmethod
    def fields(self, name: str | None = None) -> list[str]:
        """Return the full names of the runs' fields, those of the newest runs at least.

        With a full `name`, return it alone if any run has that field or one below it, and nothing otherwise.
        """

    @abc.abstractmethod
    def unreadable(self, max_age_s: float) -> list[tuple[str, str]]:
        """Return id and reason for each run that cannot be read completely, as of at most `max_age_s` ago."""

    # ------------------------------------------------------------------ parts of a run

    @abc.abstractmethod
    def part(self, run: StoredRun, name: str, entries: Sequence[str] | None = None) -> Any:
        """Return a part of a run's record, as it is now.

        Args:
            run: The run.
            name: One of
                `document`: its own fields with its notes, without the next four; times are texts in ISO 8601;
                `config`, `info`, `summary`, `provenance`: mappings, empty if the run lacks them;
                `status`: the recorded status, with DEAD instead of RUNNING if the process is gone;
                `lease`: host, process and last heartbeat of its writer; None for a run of stock Sacred;
                `metrics`: the names of the metrics that it logged, in any order;
                `values`: logged values that are no numbers, lines of JSON as `sacristan.observers.record.schema` says;
                `artifact_details`: `metadata` and `content_type` of the artifacts that have any, by name;
                `damage`: sentences on what is missing or damaged; may read all points, so that it is for one run.
            entries: The entries of the part that the caller reads, by name; others may be missing.

        Raises:
            StoreError: If it cannot be read, or the run is gone.
        """

    @abc.abstractmethod
    def files(self, run: StoredRun, kind: str) -> list[Content]:
        """Return the files of one kind, in the order of the record.

        `kind` is `sources`, `resources`, `artifacts`, `checkpoints`, or `ranks`: the outputs of the further processes
        of a distributed run, named by rank. Sources and resources may contain a name more than once.
        """

    @abc.abstractmethod
    def media(self, run: StoredRun, *, skips_damaged: bool = False) -> list[tuple[dict[str, Any], list[Content]]]:
        """Return the media as recorded: each entry of `sacristan.observers.record.schema` with its files.

        A damaged entry is a StoreError, or with `skips_damaged` is left out.
        """

    @abc.abstractmethod
    def output(self, run: StoredRun, start: int, max_bytes: int | None) -> tuple[bytes, int]:
        """Return a part of what a run wrote to its terminal, and the position after it; see `Run.read_output`."""

    @abc.abstractmethod
    def series(self, runs: Sequence[R], metric: str) -> Iterator[tuple[R, Series | None]]:
        """Yield each run, in order, with the points of a metric, None where it logged none of that name."""

    @abc.abstractmethod
    def points_versions(self, runs: Sequence[StoredRun], metric: str) -> list[Hashable | None]:
        """Return for each run a value that changes with the points of a metric; see `Store.points_versions`."""

    def read_ahead(self, runs: Sequence[StoredRun], names: Sequence[str]) -> Iterator[tuple[StoredRun, dict[str, Any]]]:
        """Yield runs with fields and parts that were read for many of them at once, by full name or name.

        Names are those of fields, `PARTS`, and `metrics`, which may come with `curves`, the names of the curves in
        `info`. What a run lacks is None; what cannot be read is left out, and the run reports it when asked. By default
        nothing is read ahead, as in a folder, which gains nothing.
        """
        return iter(())

    # ------------------------------------------------------------------ versions of artifacts

    @abc.abstractmethod
    def artifacts(self) -> list[str]:
        """Return the names of the versioned artifacts, sorted."""

    @abc.abstractmethod
    def artifact_versions(self, name: str, version: int | None = None) -> list[StoredArtifact]:
        """Return all readable versions of an artifact, oldest first, or one `version`; none for unknown ones."""

    @abc.abstractmethod
    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        """Return the version of an artifact that an entry of a run's `artifacts_logged` or `artifacts_used` names.

        Its contents may be stored in `into`, a folder of runs. A StoreError means that it is missing or damaged.
        """

    def remove_version(self, name: str, version: int) -> None:
        """Remove a version of an artifact; `reclaim` deletes its contents.

        A StoreError means that there is none, or an alias names it, or, by default, that the store keeps all versions.
        """
        raise StoreError(f"{self.where} keeps all versions of artifacts")

    # ------------------------------------------------------------------ whole runs

    @abc.abstractmethod
    def add(self, staged: StagedRun) -> Added:
        """Add a staged run, unless a run with its uid is there; a second call finishes a killed one.

        In a store that no observer delivers to, a run that is QUEUED or HELD there, and has begun elsewhere since, is
        replaced by the staged one, and keeps its id and its documents.

        Errors of the disk and of damaged records are raised unchanged; `Store.add` turns them into StoreError.
        """

    @abc.abstractmethod
    def remove(self, run: StoredRun, *, to_trash: bool = False) -> Any:
        """Remove a run, or move it to the trash, completely or not at all.

        Returns:
            What the store calls the run in the trash, where its notes can be changed.
        """

    @abc.abstractmethod
    def trash(self) -> list[tuple[Discarded, Any]]:
        """Return the runs in the trash, last discarded first, each with the place that `restore` needs."""

    @abc.abstractmethod
    def restore(self, place: Any) -> str:
        """Restore a run from its place in the trash, as `trash` returned it; return its id, which may differ.

        A StoreError also means that the run is no longer there.
        """

    @abc.abstractmethod
    def reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        """Delete leftovers of killed processes, and contents that no run names.

        Contents touched in the last `grace_s` seconds stay. `removed` receives what was deleted. `empties_trash`
        deletes the runs in the trash first.
        """
