"""An index over the runs of a folder: an SQLite file that is built from the folders and can always be rebuilt.

Training runs never touch it. Readers update it first. A damaged, deleted or outdated index is rebuilt. Several
processes may update it at once: each batch is one transaction that checks every run again, so that no older state
replaces a newer one.

    run    name and stamp of each run (see `scanning.py`), a hash of its documents, the origins whose fields are
           indexed, and what could not be read
    key    a number for every field name
    field  kind and value by (key, run), so that the values of one field lie side by side
    wanted_origin  config, summary, info: whether any question has read their fields

A list of runs needs only run.json, which takes a third of the time of all fields. Config, summary and info are indexed
once a question first reads one of their fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sacristan.observers.record.identity import last_sign, read_lease, true_status
from sacristan.observers.record.schema import RUN, read_json_if_whole
from sacristan.runs.query import DURATION, duration_s, mapping_of
from sacristan.runs.query.filters import Filter, Question, names_in
from sacristan.runs.query.index import questions, scanning
from sacristan.runs.query.index.fields import OF_RUN, ORIGINS, TEXT
from sacristan.runs.query.index.file import Batch, IndexFile, clear, transaction
from sacristan.runs.query.index.questions import origin_of

__all__ = ["Index", "Update"]

Answer = TypeVar("Answer")

# By the file of an index, which several threads may have open: when this process began its last look at all runs, by
# `time.monotonic`, and how long that took.
_LOOKS: dict[Hashable, tuple[float, float]] = {}
# When it last changed a run that has ended, by the same.
_CHANGES: dict[Hashable, float] = {}
_ENDED = ("COMPLETED", "FAILED", "INTERRUPTED", "PRUNED", "TIMEOUT")
# Runs that may change without a person's doing: all but those that have ended, and those that have just changed.
_CHANGING = f"""SELECT name FROM run
    WHERE NOT is_readable OR stamp = '{scanning.UNSETTLED}' OR stamp LIKE 'error%' UNION
    SELECT run.name FROM key JOIN field ON field.key = key.id JOIN run ON run.id = field.run
    WHERE key.name = 'status' AND key.origin = {OF_RUN} AND coalesce(value, '') NOT IN {_ENDED}"""


@dataclasses.dataclass(frozen=True)
class Update:
    """The result of an update."""

    num_runs: int  # number of runs in the index, including unreadable ones
    num_read: int
    num_removed: int
    num_problems: int  # number of runs that cannot be read completely


class Index(contextlib.AbstractContextManager["Index"]):
    """The index over the runs of a folder, for one thread.

    Its file lies in the folder; if that is not writable or `is_read_only`, in the user's cache; else in memory. Long
    updates call `on_progress` with the task, the amount done and the total.
    """

    def __init__(
        self,
        store: str | Path,
        on_progress: Callable[[str, int, int], None] | None = None,
        *,
        is_read_only: bool = False,
    ) -> None:
        self.store = Path(store)
        self.on_progress = on_progress
        self._file = IndexFile(self.store, is_read_only=is_read_only)
        self._stamps: dict[str, str] = {}
        # The connection of the last update, and SQLite's count of what others have written over it.
        self._updated: sqlite3.Connection | None = None
        self._loaded: tuple[sqlite3.Connection, int] | None = None
        # The times of the folder at the last listing of its runs.
        self._listed = ""

    @property
    def path(self) -> Path | None:
        """The index's file; None in memory."""
        return self._file.path

    def update(self, max_age_s: float = 0.0) -> Update:
        """Read what has changed in the folder.

        If any thread of this process looked at all runs less than `max_age_s` ago, only runs that are new, removed or
        have not ended are looked at.
        """
        return self._file.reliably(functools.partial(self._update, max_age_s=max_age_s))

    @property
    def look_s(self) -> float:
        """Duration of the last scan of all runs in seconds; 0 before the first."""
        return _LOOKS.get(self._key, (0.0, 0.0))[1]

    def expire(self) -> None:
        """Let the next update look at all runs, because one that has ended was changed."""
        _CHANGES[self._key] = time.monotonic()

    @property
    def _key(self) -> Hashable:
        return self._file.inode or id(self)

    def rebuild(self) -> Update:
        """Build the index from scratch, with all fields."""

        def build(connection: sqlite3.Connection) -> Update:
            with transaction(connection):
                clear(connection)
                _want(connection, ORIGINS)
            self._loaded = None
            update = self._update(connection)
            self._complete(connection, ORIGINS)
            return update

        return self._file.reliably(build)

    def answer(self, question: Question) -> list[dict[str, Any]]:
        """Return the runs that a question asks for, as of the last update; the first question makes one.

        Each is a mapping of `name`, its path below the store, and the columns, None where the run lacks one. Leases
        decide now whether a run is RUNNING. The question must be checked, so that any later error is the file's fault.
        """

        def ask(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            with self._reading(connection, question.names):
                return questions.find(connection, question)

        return self._asked(ask, questions.origins_in(question))

    def count(self, tree: Filter, limit: int | None = None) -> int:
        """Return the number of runs that a filter chooses, as of the last update, counting at most to `limit`."""

        def ask(connection: sqlite3.Connection) -> int:
            with self._reading(connection, names_in(tree)):
                return questions.count(connection, tree, limit)

        return self._asked(ask, questions.origins_in(Question(tree)))

    @contextlib.contextmanager
    def _reading(self, connection: sqlite3.Connection, names: Collection[str]) -> Iterator[None]:
        """Hold a reader's lock; judge which runs live if fields of these names depend on that."""
        with transaction(connection, "DEFERRED"):
            if "status" in names or DURATION in names:
                self._judge(connection)
            yield

    def fields(self) -> list[str]:
        """Return the full names of all fields, sorted."""
        return self._asked(questions.fields, ORIGINS)

    def entries(self, name: str) -> list[str]:
        """Return the full names of the fields below a mapping, sorted."""
        return self._asked(lambda connection: questions.entries(connection, name), {origin_of(name)})

    def has_field(self, name: str) -> bool:
        """Tell whether any run has a field, or one below it."""
        return self._asked(lambda connection: questions.has_field(connection, name), {origin_of(name)})

    def problems(self) -> list[tuple[str, str]]:
        """Return name and reason for every run that could not be read completely."""
        query = "SELECT name, problems FROM run WHERE problems IS NOT NULL ORDER BY length(name), name"

        def ask(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            return [(os.fsdecode(name), problems) for name, problems in connection.execute(query)]

        return self._asked(ask)

    def close(self) -> None:
        """Close the file; the next question opens it again."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ updating

    def _asked(self, question: Callable[[sqlite3.Connection], Answer], origins: Collection[int] = ()) -> Answer:
        """Return the answer to a question that reads `origins`, updating first if the file was opened since."""

        def ask(connection: sqlite3.Connection) -> Answer:
            if self._updated is not connection:
                self._update(connection)
            self._complete(connection, origins)
            return question(connection)

        return self._file.reliably(ask)

    def _update(self, connection: sqlite3.Connection, max_age_s: float = 0.0) -> Update:
        self._load_stamps(connection)
        started = time.monotonic()
        is_partial = self._updated is connection and started - self._last_look() < max_age_s
        changing = [os.fsdecode(name) for (name,) in connection.execute(_CHANGING)] if is_partial else []
        listed = scanning.listing_of(self.store)
        if is_partial and listed and listed == self._listed:
            changed = [name for name in changing if scanning.look(self.store, name) != self._stamps.get(name)]
            removed: list[str] = []
        else:
            trusted = {**self._stamps, **dict.fromkeys(changing, "")} if is_partial else {}
            changed, removed = self._differences(trusted)
            self._listed = listed
        # By age, so that runs made together lie together.
        todo = sorted(changed, key=lambda name: (len(name), name)) + removed
        num_read, num_removed = self._take(connection, todo)
        self._updated = connection
        if not is_partial:
            _LOOKS[self._key] = (started, time.monotonic() - started)
        num_problems = connection.execute("SELECT count(*) FROM run WHERE problems IS NOT NULL").fetchone()[0]
        return Update(len(self._stamps), num_read, num_removed, num_problems)

    def _last_look(self) -> float:
        """Return when the last look at all runs began, if it saw all that this process has changed."""
        last, changed = _LOOKS.get(self._key, (-math.inf, 0.0))[0], _CHANGES.get(self._key, -math.inf)
        return last if last > changed else -math.inf

    def _differences(self, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Return the runs that are new or have changed, and those that are gone; see `scanning.scan`."""
        stamps = dict(scanning.scan(self.store, known))
        if stamps == self._stamps:  # the usual case; finding the differences would take as long as the scan
            return [], []
        changed = [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp]
        return changed, [name for name in self._stamps if name not in stamps]

    def _take(self, connection: sqlite3.Connection, todo: list[str]) -> tuple[int, int]:
        """Read runs again; return how many were new or had changed, and how many are gone."""
        num_read = num_removed = 0
        total = len(todo)
        while todo:
            with transaction(connection):
                self._load_stamps(connection)
                batch = Batch(connection, self.store)
                todo = batch.take(todo)
            # Committed by now.
            self._stamps.update(batch.taken)
            for name in batch.gone:
                del self._stamps[name]
            num_read += batch.num_read
            num_removed += len(batch.gone)
            if self.on_progress is not None:
                self.on_progress("reading runs", total - len(todo), total)
        return num_read, num_removed

    def _complete(self, connection: sqlite3.Connection, origins: Collection[int]) -> None:
        """Index the fields of these origins, unless they are indexed."""
        complete = {
            OF_RUN,
            *(row[0] for row in connection.execute("SELECT origin FROM wanted_origin WHERE is_complete")),
        }
        if complete.issuperset(origins):
            return
        with transaction(connection):
            _want(connection, origins)
        # From now on every update includes them.
        query = "SELECT name FROM run WHERE EXISTS (SELECT 1 FROM wanted_origin WHERE NOT origins >> origin & 1)"
        names = [os.fsdecode(name) for (name,) in connection.execute(query)]
        self._take(connection, sorted(names, key=lambda name: (len(name), name)))
        with transaction(connection):
            if connection.execute(f"{query} LIMIT 1").fetchone() is None:
                connection.execute("UPDATE wanted_origin SET is_complete = 1")

    def _load_stamps(self, connection: sqlite3.Connection) -> None:
        """Load the stamps of all runs, if another process has written since."""
        loaded = (connection, connection.execute("PRAGMA data_version").fetchone()[0])
        if loaded != self._loaded:
            # Text names need no conversion: thousands of calls would take as long as the stats of their folders.
            self._stamps = dict(connection.execute("SELECT name, stamp FROM run WHERE typeof(name) = 'text'"))
            others = connection.execute("SELECT name, stamp FROM run WHERE typeof(name) != 'text'")
            self._stamps.update((os.fsdecode(name), stamp) for name, stamp in others)
            self._loaded = loaded

    def _judge(self, connection: sqlite3.Connection) -> None:
        """Store which RUNNING runs have lost their process, and how long each has lasted."""
        query = """SELECT run.id, run.name FROM key JOIN field ON field.key = key.id JOIN run ON run.id = field.run
            WHERE key.name = 'status' AND key.origin = ? AND kind = ? AND value = 'RUNNING'"""
        dead, lasting = [], []
        for number, name in connection.execute(query, (OF_RUN, TEXT)).fetchall():
            folder = self.store / os.fsdecode(name)
            lease = read_lease(folder)
            document = mapping_of(read_json_if_whole(folder / RUN))
            status = true_status({**document, "status": "RUNNING"}, lease)
            if status == "DEAD":
                dead.append((number,))
            lasting.append((number, duration_s(document, last_sign(status, lease))))
        connection.execute("DELETE FROM temp.dead")
        connection.executemany("INSERT INTO temp.dead VALUES (?)", dead)
        connection.execute("DELETE FROM temp.lasting")
        connection.executemany("INSERT INTO temp.lasting VALUES (?, ?)", lasting)


def _want(connection: sqlite3.Connection, origins: Collection[int]) -> None:
    """Let updates include the fields of these origins."""
    rows = [(origin,) for origin in origins if origin != OF_RUN]
    connection.executemany("INSERT OR IGNORE INTO wanted_origin VALUES (?, FALSE)", rows)
