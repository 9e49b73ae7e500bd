"""Ids of a folder's runs by uid, and the next free number, which adding a run needs.

The index answers first. Afterwards only runs that are new in the folder are read. The folder need not even be listed
while its time shows that nothing has changed. A process that adds many runs leaves a time of its own on it after each,
so that adding a run takes as long in a large store as in an empty one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacristan.observers.record.run_folder import as_number
from sacristan.observers.record.schema import RUN, read_json_if_whole
from sacristan.runs.query.filters import Question
from sacristan.runs.query.flattening import mapping_of
from sacristan.runs.query.index import scanning
from sacristan.runs.query.index.index import Index

__all__ = ["Uids"]

# How long the folder's time is trusted: a run that came without a claim while this process added one does not show in
# it, nor does a spooled one.
_TRUSTED_S = 1.0


class Uids:
    """The uids of the runs in a folder, for one thread."""

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
        is_settled = mark is not None and mark < time.time_ns() - scanning.COARSE_NS
        self._looked, self._mark = time.monotonic(), mark if is_settled else None
        found = dict(scanning.scan(self._folder, self._names))
        self._greatest = max((as_number(name) or 0 for name in found), default=0)
        if gone := self._names.keys() - found.keys():
            self._names = {name: stamp for name, stamp in self._names.items() if name not in gone}
            self._ids = {uid: id for uid, id in self._ids.items() if id not in gone}
        for name in found.keys() - self._names.keys():
            if record := self._record(name):  # else it is being made, or cannot be read now
                self._note(name, record.get("uid"))

    def _note(self, name: str, uid: Any) -> None:
        self._names[name] = scanning.UNSETTLED
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
