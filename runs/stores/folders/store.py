"""Runs in a folder, ours and those of Sacred's FileStorageObserver."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from observers.record.locking import claimed
from observers.record.schema import RUN
from runs.errors import StoreError
from runs.query.filters import Filter
from runs.query.index.fields import NOT_HELD, is_indexed
from runs.query.index.folders import has_record, require_folder
from runs.query.index.index import Index
from runs.query.names import full_name
from runs.stores.adding import Copied, StagedRun, staging_folder
from runs.stores.folders.adding import move_in
from runs.stores.folders.removing import in_trash, reclaim, restore_folder
from runs.stores.folders.run import PARTS, FolderRun
from runs.stores.leftovers import INCOMING
from runs.stores.removing import Discarded, Removed
from runs.stores.run import Run
from runs.stores.store import Store

if TYPE_CHECKING:
    from runs.stores.artifact_versions import StoredArtifact

__all__ = ["FolderStore"]

_TAGS = "tags"
# A list asks for more than its runs, and one look at thousands of folders is enough for it.
_FRESH_S = 1.0


class FolderStore(Store):
    """All runs below a folder.

    Attributes:
        folder: That folder.
        index: What answers questions about the runs.

    Raises:
        StoreError: If there is no such folder, or it cannot be read.
    """

    def __init__(self, where: str | Path) -> None:
        self.folder = Path(where)
        self.where = str(where)
        require_folder(self.folder)
        self.index = Index(self.folder)
        self._updated = -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where it is; what loads it opens it there."""
        return FolderStore, (self.folder.absolute(),), {"where": self.where, "max_age_s": self.max_age_s}

    def _update(self) -> None:
        self.index.on_progress = self.on_progress
        self.index.update()
        self._updated = time.monotonic()

    def _update_if_older(self, age_s: float) -> None:
        if time.monotonic() - self._updated > age_s:
            self._update()

    def _find(
        self, tree: Filter, sort: str | None, limit: int | None, columns: Sequence[str], offset: int = 0
    ) -> list[Run]:
        names = [full_name(name) for name in columns]
        self._update_if_older(self.max_age_s)
        # A mapping, such as `config`, is read from the run's own file when it is asked for, and so is provenance.
        flat = [name for name in names if name not in (*PARTS, "_id", _TAGS) and is_indexed(name)]
        mappings = {name for name in flat if self.index.entries(name)}
        # All tags there are cost less than a file for every run.
        tags = self.index.entries(_TAGS) if _TAGS in names else []
        found: list[Run] = []
        problems = dict(self.index.problems())
        for row in self.index.find(tree, sort, limit, [*flat, *tags], offset):
            known = ((name, value) for name, value in row.items() if value is not NOT_HELD)
            fields = {name: value for name, value in known if value is not None or name not in mappings}
            if _TAGS in names:
                fields[_TAGS] = {name.removeprefix(f"{_TAGS}."): True for name in tags if row[name] is True}
            run = FolderRun(self, self.folder, fields.pop("name"), fields)
            if run.id in problems:
                run.problem = problems[run.id]
            found.append(run)
        return found

    def _count(self, tree: Filter, limit: int | None) -> int:
        self._update_if_older(max(_FRESH_S, self.max_age_s))
        return self.index.count(tree, limit)

    def _has_field(self, name: str) -> bool:
        return self.index.has_field(name)

    def fields(self) -> list[str]:
        """See `Store.fields`."""
        self._update()
        return self.index.fields()

    def _run_of_id(self, key: str) -> Run | None:
        # Not by joining paths: an id that leaves the folder is none.
        if not key or key.startswith(("/", ".")) or "\0" in key or ".." in Path(key).parts:
            return None
        try:
            (self.folder / key / RUN).lstat()
            return FolderRun(self, self.folder, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            why = f"{self.folder / key} cannot be read ({error.strerror}); check its permissions"
            raise StoreError(why) from error

    def unreadable(self, max_age_s: float = 0.0) -> list[tuple[str, str]]:
        """See `Store.unreadable`."""
        self._update_if_older(max(_FRESH_S, self.max_age_s, max_age_s))
        return self.index.problems()

    def artifacts(self) -> list[str]:
        """See `Store.artifacts`."""
        from observers.artifacts.store import ArtifactStore

        try:
            return ArtifactStore(self.folder).names()
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read ({error.strerror})") from error

    def artifact_versions(self, name: str) -> list[StoredArtifact]:
        """See `Store.artifact_versions`."""
        from runs.stores.artifact_versions import versions_in_folder

        return versions_in_folder(self.folder, name)

    def _trash(self) -> list[tuple[Discarded, tuple[Path, Path]]]:
        found = []
        for place, folder, time_ns in in_trash(self.folder):
            run = FolderRun(self, place, folder.relative_to(place).as_posix())
            at = datetime.fromtimestamp(time_ns / 1e9, UTC)
            try:
                one = Discarded(run.id, run.uid, run.name, run.status, at)
            except StoreError:
                if not has_record(folder):
                    continue  # another process has just taken it
                one = Discarded(run.id, None, "", "cannot be read", at)
            found.append((one, (place, folder)))
        return found

    def _restore(self, place: tuple[Path, Path]) -> str:
        return restore_folder(self.folder, *place)

    def _reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        reclaim(self.folder, removed, grace_s, empties_trash=empties_trash)

    @property
    def recording_folder(self) -> Path | None:
        """See `Store.recording_folder`."""
        return self.folder.resolve()

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """See `Store.staging`."""
        return staging_folder(self.folder / INCOMING)

    def _add(self, staged: StagedRun) -> Copied:
        # One at a time, so that nobody adds the same run in between.
        with claimed(self.folder):
            there = self._run_of_uid(staged.uid)
            if there is not None:
                return Copied(there, is_new=False)
            id = move_in(staged, self.folder)
        return Copied(self.get(id), is_new=True, left_out=staged.left_out)

    def close(self) -> None:
        """Let go of the index."""
        self.index.close()
