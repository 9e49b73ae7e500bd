"""Runs in a folder, the lab's and those of Sacred's FileStorageObserver."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.record.folders import as_number, claimed
from sacristan.observers.record.schema import RUN, read_json_if_whole
from sacristan.runs.errors import StoreError
from sacristan.runs.query import full_name, is_searchable, mapping_of
from sacristan.runs.query.filters import Filter, Question
from sacristan.runs.query.index import Index
from sacristan.runs.query.index.fields import NOT_HELD
from sacristan.runs.query.index.scanning import COARSE_NS, UNSETTLED, has_record, require_folder, scan
from sacristan.runs.stores import PARTS, Added, Change, Discarded, Removed, RunRow, StagedRun, StoredRun, discarder
from sacristan.runs.stores.folders.documents import FolderDocuments
from sacristan.runs.stores.folders.records import FolderRecords, read_document, status_of
from sacristan.runs.stores.folders.whole_runs import (
    INCOMING,
    discard_folder,
    in_trash,
    move_in,
    reclaim,
    remove_folder,
    restore_folder,
)

__all__ = ["FolderBackend"]

_TAGS = "tags"
_UID = re.compile("[0-9a-f]{32}")
# A page asks several questions in a row, and one scan of thousands of folders is enough for them.
_FRESH_S = 1.0
# How long the folder's time is trusted: a run that came without a claim while this process added one does not show in
# it, nor does a spooled one.
_TRUSTED_S = 1.0


class FolderBackend(FolderRecords):
    """All runs below a folder, which is left as it is if `is_read_only`."""

    def __init__(self, where: str | Path, *, is_read_only: bool = False) -> None:
        super().__init__(Path(where))
        self.where, self.address = str(where), str(self.folder.absolute())
        require_folder(self.folder)
        self.index = Index(self.folder, is_read_only=is_read_only)
        self.documents = _ExpiringDocuments(self.folder, self.index)
        self.staging_home = self.folder / INCOMING
        self._uids = _Uids(self.index)
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
            self.index.on_progress = self.on_progress
            self.index.update(self.max_age_s)
            self._updated = time.monotonic()

    @property
    def look_s(self) -> float:  # type: ignore[override]  # it is only read
        return self.index.look_s

    # ------------------------------------------------------------------ finding

    def find(self, question: Question) -> list[RunRow]:
        self._update()
        names = [full_name(name) for name in question.columns]
        # A part such as `config` is read from the run's own file, and so is provenance.
        flat = [name for name in names if name not in (*PARTS, "_id", _TAGS) and is_searchable(name)]
        mappings = {name for name in flat if self.index.entries(name)}
        # Reading all existing tags costs less than opening a file of every run.
        tags = self.index.entries(_TAGS) if _TAGS in names else []
        rows = self.index.answer(dataclasses.replace(question, columns=(*flat, *tags)))
        problems = dict(self.index.problems())
        run_rows = []
        for row in rows:
            name = row.pop("name")
            values = {each: value for each, value in row.items() if _is_known(each, value, mappings)}
            if _TAGS in names:
                values[_TAGS] = {each.removeprefix(f"{_TAGS}."): True for each in tags if row[each] is True}
            run_rows.append(RunRow(name, name, values, problems.get(name)))
        return run_rows

    def count(self, tree: Filter, limit: int | None) -> int:
        self._update(_FRESH_S)
        return self.index.count(tree, limit)

    def get(self, ids: Iterable[str]) -> dict[str, RunRow]:
        run_rows = {}
        for asked in ids:
            id = asked if self._has_run(asked) else self._uids.id_of(asked) if _UID.fullmatch(asked) else None
            if id is not None:
                run_rows[asked] = RunRow(id, id)
        return run_rows

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

    def fields(self, name: str | None = None) -> list[str]:
        if name is not None:
            return [name] if self.index.has_field(name) else []
        self._update()
        return self.index.fields()

    def unreadable(self, max_age_s: float) -> list[tuple[str, str]]:
        self._update(max(_FRESH_S, max_age_s))
        return self.index.problems()

    # ------------------------------------------------------------------ whole runs

    def remove(self, run: StoredRun, *, to_trash: bool = False) -> str | None:
        if not to_trash:
            remove_folder(self.folder, self.folder / run.key)
            return None
        place = discard_folder(self.folder, self.folder / run.key)
        return (place / run.key).relative_to(self.folder).as_posix()

    def trash(self) -> list[tuple[Discarded, tuple[Path, Path]]]:
        listed = []
        for place, folder, time_ns in in_trash(self.folder):
            id, at = folder.relative_to(place).as_posix(), datetime.fromtimestamp(time_ns / 1e9, UTC)
            try:
                document = read_document(folder)
            except StoreError:
                if not has_record(folder):
                    continue  # another process has just taken it
                discarded = Discarded(id, None, "", "cannot be read", at)
            else:
                uid, name = document.get("uid"), mapping_of(document.get("experiment")).get("name")
                texts = [text if isinstance(text, str) else "" for text in (uid, name)]
                status, by = status_of(document, folder), discarder(document.get("changes"))
                discarded = Discarded(id, texts[0] or None, texts[1], status, at, by)
            listed.append((discarded, (place, folder)))
        return listed

    def restore(self, place: tuple[Path, Path]) -> str:
        return restore_folder(self.folder, *place)

    def reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        reclaim(self.folder, removed, grace_s, empties_trash=empties_trash)

    def add(self, staged: StagedRun) -> Added:
        # One at a time, so that no other process adds the same run in between.
        with claimed(self.folder):
            if present := self._uids.id_of(staged.uid):
                return Added(present, is_new=False)
            id = move_in(staged, self.folder, self._uids.next_number)
            self._uids.add(staged.uid, id)
        return Added(id, is_new=True, left_out=staged.left_out)


class _ExpiringDocuments(FolderDocuments):
    """Documents whose changes the next question to an index sees, although the run has ended."""

    def __init__(self, folder: Path, index: Index) -> None:
        super().__init__(folder)
        self._index = index

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        is_changed = super().change(kind, name, change, owner)
        if kind == "notes":
            self._index.expire()
        return is_changed


def _is_known(name: str, value: Any, mappings: set[str]) -> bool:
    """Tell whether the index holds a run's field; where it has None, the run's file may hold a mapping."""
    return value is not NOT_HELD and (value is not None or name not in mappings)


class _Uids:
    """Ids of a folder's runs by uid, and the next free number, which adding a run needs, for one thread.

    The index answers first. Afterwards only runs that are new in the folder are read. The folder need not even be
    listed while its time shows that nothing has changed. A process that adds many runs leaves a time of its own on it
    after each, so that adding a run takes as long in a large store as in an empty one.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._folder = index.store
        # Runs that have no uid, or whose uid is known, with stamps that stand for any.
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._greatest = 0
        # When the folder was last listed; and its time of then or after the last addition, in nanoseconds, if that will
        # show any change.
        self._looked = -math.inf
        self._mark: int | None = None

    def id_of(self, uid: str) -> str | None:
        """Return the id of the run with a uid; None if there is none."""
        if self._looked == -math.inf:
            self._load()
        elif time.monotonic() - self._looked > _TRUSTED_S or self._mark is None or self._mark != _time_of(self._folder):
            self._look()
        id = self._ids.get(uid)
        if id is not None and self._record(id).get("uid") != uid:  # another run has its number now
            self._load()
            id = self._ids.get(uid)
        return id

    @property
    def next_number(self) -> int:
        """The number after the greatest one, as of the last question."""
        return self._greatest + 1

    def add(self, uid: str, id: str) -> None:
        """Note a run that was added; the caller has claimed the folder since the last question."""
        self._note(id, uid)
        self._greatest = max(self._greatest, as_number(id) or 0)
        self._mark = _marked(self._folder)

    def _load(self) -> None:
        """Ask the index for all runs."""
        self._index.update()
        unreadable = dict(self._index.problems())
        self._names, self._ids = {}, {}
        for row in self._index.answer(Question(columns=("uid",))):
            if row["name"] not in unreadable:
                self._note(row["name"], row["uid"])
        self._look()

    def _look(self) -> None:
        """Read runs that are new in the folder, and forget those that are gone."""
        mark = _time_of(self._folder)
        # A change of just now might be followed by another one in the same tick of the clock.
        is_settled = mark is not None and mark < time.time_ns() - COARSE_NS
        self._looked, self._mark = time.monotonic(), mark if is_settled else None
        stamps = dict(scan(self._folder, self._names))
        self._greatest = max((as_number(name) or 0 for name in stamps), default=0)
        if gone := self._names.keys() - stamps.keys():
            self._names = {name: stamp for name, stamp in self._names.items() if name not in gone}
            self._ids = {uid: id for uid, id in self._ids.items() if id not in gone}
        for name in stamps.keys() - self._names.keys():
            if record := self._record(name):  # else it is being made, or cannot be read now
                self._note(name, record.get("uid"))

    def _note(self, name: str, uid: Any) -> None:
        self._names[name] = UNSETTLED
        if isinstance(uid, str):
            self._ids[uid] = name

    def _record(self, name: str) -> Mapping[str, Any]:
        return mapping_of(read_json_if_whole(self._folder / name / RUN))


def _marked(folder: Path) -> int | None:
    """Set a time on a folder that no change sets, as changes use a coarser clock; None if that fails."""
    now = time.time_ns()
    try:
        os.utime(folder, ns=(now, now))
    except OSError:  # it belongs to another user
        return None
    return now if _time_of(folder) == now else None  # some file systems round


def _time_of(folder: Path) -> int | None:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None
