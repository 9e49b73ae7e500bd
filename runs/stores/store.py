"""`open_store` and `Store`: all runs of a folder or of a database, behind one API."""

from __future__ import annotations

import abc
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from runs.errors import FilterError, RunNotFoundError, StoreError

if TYPE_CHECKING:
    import pandas

    from runs.stores.removing import Removed
    from runs.stores.run import Run

__all__ = ["DEFAULT_COLUMNS", "Store", "flat_row", "open_store"]

NEWEST_FIRST = "-start_time"
DEFAULT_COLUMNS = ("name", "command", "status", "start_time", "stop_time", "heartbeat", "result", "uid")
_WATCHED = ("status", "start_time", "stop_time", "heartbeat", "result")
_MAX_WATCHED = 200


def open_store(where: str | Path | None = None) -> Store:
    """Return the runs in a folder or a database, for reading.

    Args:
        where: A folder, or a `mongodb://` or `mongodb+srv://` URL with the database's name (`sacred` if it has none);
            by default what `SACRISTAN_STORE` names, else `my_runs`. A prefix of the collections' names, as in
            `MongoObserver(collection_prefix="lab")`, goes behind it: `mongodb://host/database#lab`.

    Raises:
        StoreError: If there is no such folder, or the database cannot be reached or refuses.
    """
    where = str(where if where is not None else os.environ.get("SACRISTAN_STORE") or "my_runs")
    if where.startswith(("mongodb://", "mongodb+srv://")):
        from runs.stores.mongo import MongoStore

        url, _, prefix = where.partition("#")
        return MongoStore(url, prefix)
    if "://" in where:
        raise StoreError(f"got the store {where!r}, expected a folder or a mongodb:// URL")
    from runs.stores.folder import FolderStore

    return FolderStore(where)


class Store(abc.ABC):
    """All runs of one place; of the same filter every store makes the same.

    Attributes:
        where: The folder, or the URL without credentials.
    """

    where: str
    # Told from time to time, in long work, what is done, how much of it, and of how much.
    on_progress: Callable[[str, int, int], None] | None = None

    @abc.abstractmethod
    def find(
        self,
        filter: Any = None,
        sort: str | None = NEWEST_FIRST,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Run]:
        """Return the runs that a filter is true of.

        Args:
            filter: A filter document, conditions, or None for all runs; see `runs.query.filters`.
            sort: A field, with a `-` ahead for the greatest first. Numbers come before texts, and runs without the
                field, or with a NaN, last in either direction.
            limit: How many at most.
            columns: Fields to fetch along, so that `run[name]` asks nobody again; by default `DEFAULT_COLUMNS`.

        Raises:
            FilterError: If the filter makes no sense.
            StoreError: If the store cannot be read.
        """

    @abc.abstractmethod
    def fields(self) -> list[str]:
        """Return the full names of fields that runs have; of a database those of its newest runs."""

    @abc.abstractmethod
    def _by_id(self, key: str) -> Run | None:
        """Return the run of that id, if there is one."""

    @abc.abstractmethod
    def unreadable(self) -> list[tuple[str, str]]:
        """Return id and reason for every run of which something cannot be read."""

    @abc.abstractmethod
    def _write_notes(self, run: Run, notes: Mapping[str, Any]) -> None:
        """Write down all that is noted about a run: tags, note, reproductions."""

    def tag(self, run: Run, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Run:
        """Attach words to a run, and take others away; return the run as it is now.

        A tag is found as the field `tags.WORD`: `find("tags.best=True")`.

        Raises:
            FilterError: If a tag is no word of letters, digits, `-` and `_`.
            StoreError: If the store cannot be written.
        """
        run = self.get(run.id)
        add, remove = list(add), set(remove)
        for tag in add:
            if not re.fullmatch(r"[\w-]+", tag):
                raise FilterError(f"got the tag {tag!r}, expected letters, digits, - and _ only")
        kept = [tag for tag in (*run.tags, *add) if tag not in remove]
        self._write_notes(run, {**run.notes(), "tags": dict.fromkeys(kept, True)})
        return self.get(run.id)

    def write_note(self, run: Run, text: str) -> Run:
        """Replace what is written about a run; return the run as it is now.

        Raises:
            StoreError: If the store cannot be written.
        """
        run = self.get(run.id)
        self._write_notes(run, {**run.notes(), "note": text})
        return self.get(run.id)

    def note_reproduction(self, run: Run, entry: Mapping[str, Any]) -> Run:
        """Note that a run was reproduced, or is a reproduction; return the run as it is now.

        Args:
            run: The run.
            entry: Of the form that `runs.rerun.reproducing` makes.

        Raises:
            StoreError: If the store cannot be written.
        """
        run = self.get(run.id)
        self._write_notes(run, {**run.notes(), "reproductions": [*run.reproductions, dict(entry)]})
        return self.get(run.id)

    @abc.abstractmethod
    def remove_run(self, run: Run) -> None:
        """Remove one run, at once or not at all; see `runs.stores.removing`."""

    @abc.abstractmethod
    def reclaim(self, removed: Removed, grace_s: float) -> None:
        """Take away what is of no use any more, and add to `removed` what was; see `runs.stores.removing`."""

    def tell(self, what: str, done: int, total: int) -> None:
        """Say how far long work is, to whom it concerns."""
        if self.on_progress is not None:
            self.on_progress(what, done, total)

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what is open."""

    def get(self, key: str | int) -> Run:
        """Return one run, by its id, its uid, an unambiguous beginning of its uid, or `latest`.

        Raises:
            RunNotFoundError: If there is none, or more than one.
        """
        text = str(key).strip()
        if text == "latest":
            found = self.latest(1)
            if not found:
                raise RunNotFoundError(f"there is no run in {self.where} yet")
            return found[0]
        run = self._by_id(text)
        if run is not None:
            return run
        if text:
            # What begins with the text lies between it and the text with the greatest digit behind it.
            found = self.find([("uid", ">=", text), ("uid", "<", f"{text}g")], limit=6)
            if len(found) == 1:
                return found[0]
            if found:
                ids = ", ".join(f"{run.id} ({run.uid})" for run in found[:5])
                raise RunNotFoundError(f"{text!r} is the beginning of more than one uid: {ids}; give more of it")
        raise RunNotFoundError(f"there is no run {text!r} in {self.where}; list them with: python -m runs ls")

    def latest(self, n: int = 1) -> list[Run]:
        """Return the `n` runs that started last, the last one first."""
        return self.find(limit=n)

    def frame(
        self,
        filter: Any = None,
        sort: str | None = NEWEST_FIRST,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pandas.DataFrame:
        """Return runs as a pandas DataFrame, a row each, indexed by id.

        Args:
            filter, sort, limit: See `find`.
            columns: Fields; by default every entry of the configs, every statistic of the summaries, and the host.
        """
        import pandas

        runs = self.find(filter, sort, limit, columns or (*DEFAULT_COLUMNS, "config", "summary", "host"))
        if columns is None:
            rows = [flat_row(run) for run in runs]
        else:
            rows = [{name: run[name] for name in columns} for run in runs]
        return pandas.DataFrame(rows, index=pandas.Index([run.id for run in runs], name="id"))

    def watch(self, filter: Any = None, interval_s: float = 1.0) -> Iterator[Run]:
        """Yield every run that is new or has changed, for ever; at first the newest runs as they are.

        Runs that change long after they ended, and are none of the newest, are passed over.
        """
        seen: dict[str, tuple] = {}
        while True:
            for run in reversed(self.find(filter, limit=_MAX_WATCHED, columns=_WATCHED)):
                state = tuple(run[name] for name in _WATCHED)
                if seen.get(run.id) != state:
                    seen[run.id] = state
                    yield run
            time.sleep(interval_s)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def flat_row(run: Run) -> dict[str, Any]:
    """Return every entry of a run's config, every statistic of its summary, and what it is."""
    row = {name: run[name] for name in (*DEFAULT_COLUMNS, "host")}
    _flatten("config", run["config"] or {}, row)
    for metric, statistics in (run["summary"] or {}).items():
        row |= {f"summary.{metric}.{name}": value for name, value in statistics.items()}
    return row


def _flatten(prefix: str, document: dict[str, Any], into: dict[str, Any]) -> None:
    for key, value in document.items():
        if isinstance(value, dict) and value:
            _flatten(f"{prefix}.{key}", value, into)
        else:
            into[f"{prefix}.{key}"] = value
