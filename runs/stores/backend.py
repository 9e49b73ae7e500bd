"""`Backend`: the operations that a folder or a database of runs implements for `sacristan.runs.stores.store.Store`."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sacristan.runs.query.filters import Condition, Filter, Question
from sacristan.runs.stores.changes import Copied, Discarded, Removed, StagedRun, staging_folder
from sacristan.runs.stores.run import Run, RunStore

if TYPE_CHECKING:
    from sacristan.observers.artifacts.store import Lineage as ArtifactLineage
    from sacristan.observers.record.points.points import Series
    from sacristan.runs.stores.content import StoredArtifact

__all__ = ["Backend"]


class Backend(abc.ABC):
    """A folder or a database of runs.

    Every backend gives the same answer to the same question. A method raises StoreError if the folder or the database
    cannot be read or written, unless it says otherwise. Questions arrive parsed and checked.

    Attributes:
        where: The folder, or the URL without credentials.
        store: The store that it serves, to which its runs belong; `Store` sets it.
    """

    where: str
    store: RunStore

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @abc.abstractmethod
    def close(self) -> None:
        """Close the index or the connection."""

    # ------------------------------------------------------------------ finding

    @abc.abstractmethod
    def find(self, question: Question) -> list[Run]:
        """Return the runs that match a question, even if no run has its fields.

        The question is parsed and checked. The runs hold its columns, so that reading them costs nothing.
        """

    @abc.abstractmethod
    def count(self, tree: Filter, limit: int | None) -> int:
        """Return the number of runs that match a filter, as of now or a second ago, counting up to `limit`."""

    @abc.abstractmethod
    def by_id(self, ids: Iterable[str]) -> dict[str, Run]:
        """Return the runs with these ids, by id; unknown ids are left out."""

    @abc.abstractmethod
    def has_field(self, name: str) -> bool:
        """Tell whether any run has the field of this full name, or one below it."""

    @abc.abstractmethod
    def fields(self) -> list[str]:
        """Return the full names of the runs' fields; a database reads its newest runs only."""

    @property
    def look_s(self) -> float:
        """Duration of the last scan of all runs in seconds; 0 for a database, which needs none."""
        return 0.0

    @abc.abstractmethod
    def unreadable(self, max_age_s: float) -> list[tuple[str, str]]:
        """Return id and reason for each run that cannot be read completely, as of at most `max_age_s` ago."""

    def run_of_uid(self, uid: str) -> Run | None:
        """Return the run with this uid, if there is one."""
        found = self.find(Question(Condition("uid", "==", uid), limit=1))
        return self.store.get(found[0].id) if found else None

    # ------------------------------------------------------------------ reading ahead

    def prefetch(self, runs: Sequence[Run], names: Sequence[str]) -> None:  # noqa: B027
        """Fetch fields of runs in as few queries as possible (see `Store.prefetch`); a folder gains nothing."""

    def each_series(self, runs: Sequence[Run], metric: str) -> Iterator[tuple[Run, Series | None]]:
        """Yield each run with the points of a metric, None where it lacks the metric."""
        for run in runs:
            yield run, run._series(metric)

    @abc.abstractmethod
    def points_versions(self, runs: Sequence[Run], metric: str) -> list[Hashable | None]:
        """Return for each run a value that changes with the points of a metric; see `Store.points_versions`."""

    # ------------------------------------------------------------------ versions of artifacts

    @abc.abstractmethod
    def artifacts(self) -> list[str]:
        """Return the names of the versioned artifacts, sorted."""

    @abc.abstractmethod
    def artifact_versions(self, name: str) -> list[StoredArtifact]:
        """Return all readable versions of an artifact, oldest first; none for an unknown name."""

    @abc.abstractmethod
    def artifact_lineage(self, name: str, version: int) -> ArtifactLineage:
        """Return the runs that made and used a version, read without the others; none if it is missing or damaged."""

    # ------------------------------------------------------------------ changing

    @abc.abstractmethod
    def change_notes(self, run: Run, change: Callable[[Run], Mapping[str, Any]]) -> None:
        """Change the notes on a run without losing concurrent changes.

        `change` receives the run as it is now and returns new values of `Run.notes` by name. It is called again if
        another process wrote first. Its errors are raised unchanged.
        """

    @abc.abstractmethod
    def claim_message(self, run: Run, event: str) -> bool:
        """Claim a message about a run, beside its notes; return False if it was sent or is being sent."""

    @abc.abstractmethod
    def confirm_message(self, run: Run, event: str) -> None:
        """Note that a receiver took a message that the caller claimed. A claim without an outcome expires."""

    @abc.abstractmethod
    def release_message(self, run: Run, event: str) -> None:
        """Note that no receiver took a message that the caller claimed, so that it can be claimed again."""

    @abc.abstractmethod
    def is_unsent(self, run: Run, event: str) -> bool:
        """Tell whether a message was tried, and no receiver took it."""

    @abc.abstractmethod
    def views(self) -> list[Any]:
        """Return the documents of the saved views, in any order; a damaged one may hold anything."""

    @abc.abstractmethod
    def write_view(self, key: str, document: Mapping[str, Any] | None, check: Callable[[Any], None]) -> None:
        """Write the document of a saved view atomically; None removes it.

        The key consists of letters and digits. `check` receives the present document, None if there is none, and raises
        an error if it must stay. It is called again if another process wrote first.
        """

    @abc.abstractmethod
    def remove(self, run: Run) -> None:
        """Remove a run completely or not at all."""

    @abc.abstractmethod
    def discard(self, run: Run, change: Callable[[Run], Mapping[str, Any]]) -> None:
        """Move a run to the trash, completely or not at all.

        Then change its notes as `change_notes` does; if that fails, the run stays in the trash.
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

    # ------------------------------------------------------------------ adding

    @property
    def recording_folder(self) -> Path | None:
        """The folder whose runs belong to this backend when a process of this machine records there; None if none."""
        return None

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """Return an empty folder, for a `with` block, from which `add` can move runs without copying them."""
        return staging_folder()

    @abc.abstractmethod
    def add(self, staged: StagedRun) -> Copied:
        """Add a staged run, unless a run with its uid is there.

        Errors of the disk and of damaged records are raised unchanged; `Store.add` turns them into StoreError.
        """
