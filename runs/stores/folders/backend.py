"""Runs in a folder, the lab's and those of Sacred's FileStorageObserver."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.notifying.messages import SentMessages
from sacristan.observers.record.files import read_regular, replacing
from sacristan.observers.record.locking import claimed
from sacristan.observers.record.schema import NOTES, RUN
from sacristan.observers.record.stored_files import make_shared, share
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.query.filters import Filter, Question
from sacristan.runs.query.index.folders import has_record, require_folder
from sacristan.runs.query.index.index import Index
from sacristan.runs.query.index.values import NOT_HELD
from sacristan.runs.query.names import full_name, is_searchable
from sacristan.runs.stores.backend import Backend
from sacristan.runs.stores.changes import Copied, Discarded, Removed, StagedRun, staging_folder
from sacristan.runs.stores.folders.adding import move_in
from sacristan.runs.stores.folders.leftovers import INCOMING
from sacristan.runs.stores.folders.removing import discard_folder, in_trash, reclaim, remove_folder, restore_folder
from sacristan.runs.stores.folders.run import FolderRun, version_of_points
from sacristan.runs.stores.folders.uids import Uids
from sacristan.runs.stores.run import PARTS, Run

if TYPE_CHECKING:
    from sacristan.observers.artifacts.store import Lineage as ArtifactLineage
    from sacristan.runs.stores.content import StoredArtifact

__all__ = ["FolderBackend"]

_TAGS = "tags"
# The folder of named views. A larger file is none.
_VIEWS, _MAX_VIEW_BYTES = ".views", 2**20
# A page asks several questions in a row, and one scan of thousands of folders is enough for them.
_FRESH_S = 1.0


class FolderBackend(Backend):
    """All runs below a folder.

    Args:
        is_read_only: Whether questions leave the folder as it is; its index then lies in the user's cache.

    Raises:
        StoreError: If there is no such folder, or it cannot be read.
    """

    def __init__(self, where: str | Path, *, is_read_only: bool = False) -> None:
        self.folder = Path(where)
        self.where = str(where)
        require_folder(self.folder)
        self.index = Index(self.folder, is_read_only=is_read_only)
        self._uids = Uids(self.index)
        self._is_read_only = is_read_only
        self._updated = -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        reopen = functools.partial(FolderBackend, is_read_only=self._is_read_only)
        return reopen, (self.folder.absolute(),), {"where": self.where}

    def close(self) -> None:
        self.index.close()

    def _update(self, fresh_s: float = 0.0) -> None:
        """Update the index unless it was updated in the last `fresh_s` seconds; ended runs may be `max_age_s` old."""
        if time.monotonic() - self._updated >= fresh_s:
            self.index.on_progress = self.store.on_progress
            self.index.update(self.store.max_age_s)
            self._updated = time.monotonic()

    @property
    def look_s(self) -> float:
        return self.index.look_s

    # ------------------------------------------------------------------ finding

    def find(self, question: Question) -> list[Run]:
        self._update()
        names = [full_name(name) for name in question.columns]
        # A part such as `config` is read from the run's own file, and so is provenance.
        flat = [name for name in names if name not in (*PARTS, "_id", _TAGS) and is_searchable(name)]
        mappings = {name for name in flat if self.index.entries(name)}
        # Reading all existing tags costs less than opening a file of every run.
        tags = self.index.entries(_TAGS) if _TAGS in names else []
        rows = self.index.answer(dataclasses.replace(question, columns=(*flat, *tags)))
        problems = dict(self.index.problems())
        found: list[Run] = []
        for row in rows:
            run = FolderRun(self.store, self.folder, row.pop("name"))
            run.hold({name: value for name, value in row.items() if _is_known(name, value, mappings)})
            if _TAGS in names:
                run.hold({_TAGS: {name.removeprefix(f"{_TAGS}."): True for name in tags if row[name] is True}})
            run.problem = problems.get(run.id)
            found.append(run)
        return found

    def run_of_uid(self, uid: str) -> Run | None:
        id = self._uids.id_of(uid)
        return None if id is None else self.store.get(id)

    def count(self, tree: Filter, limit: int | None) -> int:
        self._update(_FRESH_S)
        return self.index.count(tree, limit)

    def by_id(self, ids: Iterable[str]) -> dict[str, Run]:
        return {id: FolderRun(self.store, self.folder, id) for id in ids if self._has_run(id)}

    def _has_run(self, id: str) -> bool:
        # An id that would leave the folder is none.
        if not id or id.startswith(("/", ".")) or "\0" in id or ".." in Path(id).parts:
            return False
        try:
            (self.folder / id / RUN).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            why = f"{self.folder / id} cannot be read ({error.strerror}); check its permissions"
            raise StoreError(why) from error
        return True

    def has_field(self, name: str) -> bool:
        return self.index.has_field(name)

    def fields(self) -> list[str]:
        self._update()
        return self.index.fields()

    def unreadable(self, max_age_s: float) -> list[tuple[str, str]]:
        self._update(max(_FRESH_S, max_age_s))
        return self.index.problems()

    def points_versions(self, runs: Sequence[Run], metric: str) -> list[Hashable | None]:
        return [version_of_points(self.folder / run.id) for run in runs]

    # ------------------------------------------------------------------ versions of artifacts

    def artifacts(self) -> list[str]:
        from sacristan.observers.artifacts.store import ArtifactStore

        with naming_os_errors(f"{self.folder} cannot be read"):
            return ArtifactStore(self.folder).names()

    def artifact_versions(self, name: str) -> list[StoredArtifact]:
        from sacristan.runs.stores.folders.artifacts import versions_in_folder

        return versions_in_folder(self.folder, name)

    def artifact_lineage(self, name: str, version: int) -> ArtifactLineage:
        from sacristan.runs.stores.folders.artifacts import lineage_in_folder

        return lineage_in_folder(self.folder, name, version)

    # ------------------------------------------------------------------ changing

    def change_notes(self, run: Run, change: Callable[[Run], Mapping[str, Any]]) -> None:
        self._change_notes(self.folder, run.id, change)
        self.index.expire()

    def _change_notes(self, place: Path, id: str, change: Callable[[Run], Mapping[str, Any]]) -> None:
        folder = place / id
        with naming_os_errors(f"{folder} cannot be written"), claimed(folder):
            now = FolderRun(self.store, place, id)
            content = json.dumps({**now.notes(), **change(now)}, indent=2).encode()
            with replacing(folder / NOTES) as stream:
                stream.write(content)

    def claim_message(self, run: Run, event: str) -> bool:
        with naming_os_errors(f"{self.folder / run.id} cannot be written"):
            try:
                return SentMessages(self.folder / run.id).claim(event)
            except FileNotFoundError:  # it was removed
                return False

    def confirm_message(self, run: Run, event: str) -> None:
        with naming_os_errors(f"{self.folder / run.id} cannot be written"):
            SentMessages(self.folder / run.id).confirm(event)

    def release_message(self, run: Run, event: str) -> None:
        with naming_os_errors(f"{self.folder / run.id} cannot be written"):
            SentMessages(self.folder / run.id).release(event)

    def is_unsent(self, run: Run, event: str) -> bool:
        return SentMessages(self.folder / run.id).is_unsent(event)

    def views(self) -> list[Any]:
        found: list[Any] = []
        with naming_os_errors(f"{self.folder / _VIEWS} cannot be read"):
            for path in sorted((self.folder / _VIEWS).glob("*.json")):
                with contextlib.suppress(OSError):  # it is no file, or another user's
                    found.append(_view_at(path))
        return found

    def write_view(self, key: str, document: Mapping[str, Any] | None, check: Callable[[Any], None]) -> None:
        path = self.folder / _VIEWS / f"{key}.json"
        with naming_os_errors(f"{path} cannot be written"):
            make_shared(path.parent, self.folder)
            with claimed(path.parent):
                check(_view_at(path))
                if document is None:
                    path.unlink(missing_ok=True)
                    return
                with replacing(path) as stream:
                    stream.write(json.dumps(document, indent=2).encode())
                if not document.get("owner"):
                    share(path)

    def remove(self, run: Run) -> None:
        remove_folder(self.folder, self.folder / run.id)

    def discard(self, run: Run, change: Callable[[Run], Mapping[str, Any]]) -> None:
        place = discard_folder(self.folder, self.folder / run.id)
        with contextlib.suppress(StoreError):  # of a damaged record, or of one that may not be written
            self._change_notes(place, run.id, change)

    def trash(self) -> list[tuple[Discarded, tuple[Path, Path]]]:
        listed = []
        for place, folder, time_ns in in_trash(self.folder):
            run = FolderRun(self.store, place, folder.relative_to(place).as_posix())
            at = datetime.fromtimestamp(time_ns / 1e9, UTC)
            try:
                discarded = Discarded(run.id, run.uid, run.name, run.status, at)
            except StoreError:
                if not has_record(folder):
                    continue  # another process has just taken it
                discarded = Discarded(run.id, None, "", "cannot be read", at)
            listed.append((discarded, (place, folder)))
        return listed

    def restore(self, place: tuple[Path, Path]) -> str:
        return restore_folder(self.folder, *place)

    def reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        reclaim(self.folder, removed, grace_s, empties_trash=empties_trash)

    # ------------------------------------------------------------------ adding

    @property
    def recording_folder(self) -> Path | None:
        return self.folder.resolve()

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        return staging_folder(self.folder / INCOMING)

    def add(self, staged: StagedRun) -> Copied:
        # One at a time, so that no other process adds the same run in between.
        with claimed(self.folder):
            present = self.run_of_uid(staged.uid)
            if present is not None:
                return Copied(present, is_new=False)
            id = move_in(staged, self.folder, self._uids.next_number)
            self._uids.add(staged.uid, id)
        return Copied(self.store.get(id), is_new=True, left_out=staged.left_out)


def _is_known(name: str, value: Any, mappings: set[str]) -> bool:
    """Tell whether the index holds a run's field; where it has None, the run's file may hold a mapping."""
    return value is not NOT_HELD and (value is not None or name not in mappings)


def _view_at(path: Path) -> Any:
    """Return the document of a saved view; None if there is none, and a text if it is damaged."""
    try:
        return json.loads(read_regular(path, _MAX_VIEW_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        return str(error)
