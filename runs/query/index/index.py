"""An index over all runs of a folder: SQLite, built from the folders, and never the truth.

Runs that train never touch it. Whoever reads brings it up to date first, and whatever is wrong with it (damaged,
deleted, of another version) is made good by building it again. Processes may do that at once: each batch is one
transaction in which every run is looked at anew, so that none takes an older state for a newer one.

    run    name and stamp of each run (see `runs.query.index.scanning`), a hash of its documents, which of them have
           their fields here, what could not be read
    key    a number for every name of a field
    field  kind and value by (key, run): what a condition or a sort looks at lies side by side
    wanted_origin  config, summary, info: whether questions have asked for fields of theirs

A list of runs needs what stands in run.json, and is there in a third of the time that all fields take. Those of the
config, of the summary and of the info are taken in when a question first asks for one of them, and from then on.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from observers.record.identity import read_lease, true_status
from observers.record.schema import RUN
from runs.query.filters import names_in, parse_filter
from runs.query.index import questions, scanning
from runs.query.index.batch import Batch
from runs.query.index.fields import OF_RUN, ORIGINS, TEXT
from runs.query.index.file import IndexFile, clear, transaction
from runs.query.index.folders import read_json
from runs.query.names import full_name
from runs.query.times import DURATION, duration_s, last_sign

__all__ = ["Index", "Update"]

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class Update:
    """Result of an update.

    Attributes:
        num_runs: Runs in the index now, those that cannot be read among them.
        num_read: Runs that were new or had changed.
        num_removed: Runs that are gone.
        num_problems: Runs of which something cannot be read.
    """

    num_runs: int
    num_read: int
    num_removed: int
    num_problems: int


class Index:
    """The index over the runs in a folder; it serves one thread.

    It lies in the folder itself, or where that cannot be written in the user's cache, or else in memory.

    Args:
        store: The folder of runs.
        on_progress: Told from time to time, in long updates, what is done, how much of it, and of how much.
    """

    def __init__(self, store: str | Path, on_progress: Callable[[str, int, int], None] | None = None) -> None:
        self.store = Path(store)
        self.on_progress = on_progress
        self._file = IndexFile(self.store)
        self._stamps: dict[str, str] = {}
        # The connection of the last update, and SQLite's count of what others have written over it.
        self._updated: sqlite3.Connection | None = None
        self._loaded: tuple[sqlite3.Connection, int] | None = None

    @property
    def path(self) -> Path | None:
        """The file it lies in; None in memory."""
        return self._file.path

    def update(self) -> Update:
        """Take in what changed in the folder.

        Raises:
            StoreError: If the folder cannot be listed.
        """
        return self._file.reliably(self._update)

    def rebuild(self) -> Update:
        """Build it anew from the folders.

        Raises:
            StoreError: If the folder cannot be listed.
        """

        def build(connection: sqlite3.Connection) -> Update:
            with transaction(connection):
                clear(connection)
                _want(connection, ORIGINS)
            self._loaded = None
            update = self._update(connection)
            self._complete(connection, ORIGINS)
            return update

        return self._file.reliably(build)

    def find(
        self,
        filter: Any = None,
        sort: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] = (),
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Return the runs that a filter is true of, as of the last update (the first time it is made here).

        Args:
            filter: See `runs.query.filters`.
            sort: A field, with a `-` ahead for the greatest first; runs without it come last. By default the name.
            limit: How many at most.
            offset: How many are passed over before.
            columns: Fields to return; None stands for what a run does not have.

        Returns:
            A mapping for each run: `name`, the path of its folder below the store, and the columns. RUNNING is
            judged by the lease, now.

        Raises:
            FilterError: If the filter makes no sense.
        """
        # All that a question can have wrong shows here, so that what goes wrong below is the file's fault.
        tree = parse_filter(filter)
        bound = -1 if limit is None else int(limit)
        names = names_in(tree) | {full_name(name.removeprefix("-")) for name in (sort or "_id", *columns)}

        def ask(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            with transaction(connection, "DEFERRED"):
                if names & {"status", DURATION}:
                    self._judge(connection)
                return questions.find(connection, tree, sort, bound, columns, offset)

        return self._asked(ask, questions.origins_in(tree, names))

    def count(self, filter: Any = None, limit: int | None = None) -> int:
        """Return how many runs a filter is true of, `limit` at most, as of the last update; see `find`."""
        tree = parse_filter(filter)

        def ask(connection: sqlite3.Connection) -> int:
            with transaction(connection, "DEFERRED"):
                if names_in(tree) & {"status", DURATION}:
                    self._judge(connection)
                return questions.count(connection, tree, limit)

        return self._asked(ask, questions.origins_in(tree))

    def fields(self) -> list[str]:
        """Return the full names of all fields that runs have."""
        return self._asked(questions.fields, ORIGINS)

    def entries(self, name: str) -> list[str]:
        """Return the full names of the fields below `name`, a full name: of a mapping in some run."""
        return self._asked(lambda connection: questions.entries(connection, name), {questions.origin_of(name)})

    def has_field(self, name: str) -> bool:
        """Tell whether a run has the field `name`, a full name, or fields below it."""
        return self._asked(lambda connection: questions.has_field(connection, name), {questions.origin_of(name)})

    def problems(self) -> list[tuple[str, str]]:
        """Return name and reason for every run of which something could not be read."""
        query = "SELECT name, problems FROM run WHERE problems IS NOT NULL ORDER BY length(name), name"

        def ask(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            return [(os.fsdecode(name), problems) for name, problems in connection.execute(query)]

        return self._asked(ask)

    def close(self) -> None:
        """Let go of the file; the next question opens it again."""
        self._file.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ what changed

    def _asked(self, question: Callable[[sqlite3.Connection], Answer], origins: Collection[int] = ()) -> Answer:
        """Return the answer to a question, after an update of a file that was opened or made since the last one.

        Args:
            question: Asks.
            origins: Whose fields it needs.
        """

        def ask(connection: sqlite3.Connection) -> Answer:
            if self._updated is not connection:
                self._update(connection)
            self._complete(connection, origins)
            return question(connection)

        return self._file.reliably(ask)

    def _update(self, connection: sqlite3.Connection) -> Update:
        self._load_stamps(connection)
        found = dict(scanning.scan(self.store))
        if found == self._stamps:  # as most often; what finds out which differ would take as long as the looks
            changed, removed = [], []
        else:
            changed = [name for name, stamp in found.items() if self._stamps.get(name) != stamp]
            removed = [name for name in self._stamps if name not in found]
        # In the order of their making, so that runs made together lie together.
        todo = sorted(changed, key=lambda name: (len(name), name)) + removed
        num_read, num_removed = self._take(connection, todo)
        self._updated = connection
        num_problems = connection.execute("SELECT count(*) FROM run WHERE problems IS NOT NULL").fetchone()[0]
        return Update(len(self._stamps), num_read, num_removed, num_problems)

    def _take(self, connection: sqlite3.Connection, todo: list[str]) -> tuple[int, int]:
        """Look at runs anew; return how many were new or had changed, and how many are gone."""
        num_read = num_removed = 0
        total = len(todo)
        while todo:
            with transaction(connection):
                self._load_stamps(connection)
                batch = Batch(connection, self.store)
                todo = batch.take(todo)
            # Only what is committed is known.
            self._stamps.update(batch.taken)
            for name in batch.gone:
                del self._stamps[name]
            num_read += batch.num_read
            num_removed += len(batch.gone)
            if self.on_progress is not None:
                self.on_progress("reading runs", total - len(todo), total)
        return num_read, num_removed

    def _complete(self, connection: sqlite3.Connection, origins: Collection[int]) -> None:
        """See to it that all runs have the fields of these origins."""
        complete = {
            OF_RUN,
            *(row[0] for row in connection.execute("SELECT origin FROM wanted_origin WHERE is_complete")),
        }
        if complete.issuperset(origins):
            return
        with transaction(connection):
            _want(connection, origins)
        # Whoever takes in a run from now on takes in their fields, too.
        query = "SELECT name FROM run WHERE EXISTS (SELECT 1 FROM wanted_origin WHERE NOT origins >> origin & 1)"
        names = [os.fsdecode(name) for (name,) in connection.execute(query)]
        self._take(connection, sorted(names, key=lambda name: (len(name), name)))
        with transaction(connection):
            if connection.execute(f"{query} LIMIT 1").fetchone() is None:
                connection.execute("UPDATE wanted_origin SET is_complete = 1")

    def _load_stamps(self, connection: sqlite3.Connection) -> None:
        """Load the stamps of all runs, unless nobody else has written since."""
        loaded = (connection, connection.execute("PRAGMA data_version").fetchone()[0])
        if loaded != self._loaded:
            # Names that are texts are taken as they come: of thousands, calls cost what the looks at their folders do.
            self._stamps = dict(connection.execute("SELECT name, stamp FROM run WHERE typeof(name) = 'text'"))
            others = connection.execute("SELECT name, stamp FROM run WHERE typeof(name) != 'text'")
            self._stamps.update((os.fsdecode(name), stamp) for name, stamp in others)
            self._loaded = loaded

    def _judge(self, connection: sqlite3.Connection) -> None:
        """Note which of the runs that say RUNNING have no process any more, and how long each has lasted."""
        query = """SELECT run.id, run.name FROM key JOIN field ON field.key = key.id JOIN run ON run.id = field.run
            WHERE key.name = 'status' AND key.origin = ? AND kind = ? AND value = 'RUNNING'"""
        dead, lasting = [], []
        for number, name in connection.execute(query, (OF_RUN, TEXT)).fetchall():
            folder = self.store / os.fsdecode(name)
            lease = read_lease(folder)
            found = read_json(folder / RUN)
            document = found if isinstance(found, dict) else {}
            status = true_status({**document, "status": "RUNNING"}, lease)
            if status == "DEAD":
                dead.append((number,))
            lasting.append((number, duration_s(document, last_sign(status, lease))))
        connection.execute("DELETE FROM temp.dead")
        connection.executemany("INSERT INTO temp.dead VALUES (?)", dead)
        connection.execute("DELETE FROM temp.lasting")
        connection.executemany("INSERT INTO temp.lasting VALUES (?, ?)", lasting)


def _want(connection: sqlite3.Connection, origins: Collection[int]) -> None:
    """Have the fields of these origins taken in with each run that is new or has changed."""
    rows = [(origin,) for origin in origins if origin != OF_RUN]
    connection.executemany("INSERT OR IGNORE INTO wanted_origin VALUES (?, FALSE)", rows)
