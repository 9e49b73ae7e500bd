"""A store of runs in one SQLite file, written against `sacristan.runs.stores.contract` alone: `sqlite:///path/to/file`.

It shows what a package of your own has to write. It is as simple as it can be: it reads all runs to answer a question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sqlite3
import tempfile
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers import ArtifactStore, ArtifactVersion, Series
from sacristan.observers.record.identity import last_sign, true_status
from sacristan.runs import Content, Removed, StoreAwayError, StoreError, Words, open_store
from sacristan.runs.query import DURATION, LEFT_OUT, dotted, duration_s, entry_at, full_name, is_searchable, mapping_of
from sacristan.runs.query.filters import AllOf, Condition, Filter, Not, Question, holds, in_order, texts_to_search
from sacristan.runs.stores.changes import Added, Discarded, StagedRun, discarder
from sacristan.runs.stores.content import StoredArtifact
from sacristan.runs.stores.contract import NOTED, PARTS, Backend, Change, Documents, R, RunRow, StoredRun

KINDS = ("sources", "resources", "artifacts", "checkpoints", "ranks")
# Kinds of documents that belong to a run, and the states of a run that workers have not begun.
OF_RUNS, WAITING = ("notes", "messages", "status", "claims"), ("QUEUED", "HELD")
# What `part` returns for a run that lacks it.
EMPTY = {"values": "", "metrics": [], "artifact_details": {}, "damage": []}

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (
    number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT, output BLOB NOT NULL DEFAULT x'', discarded TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS run_uid ON run (uid) WHERE discarded IS NULL;
CREATE TABLE IF NOT EXISTS part (run INTEGER, name TEXT, json TEXT, PRIMARY KEY (run, name));
CREATE TABLE IF NOT EXISTS file (run INTEGER, kind TEXT, position INTEGER, name TEXT, md5 TEXT, content BLOB);
CREATE TABLE IF NOT EXISTS series (run INTEGER, name TEXT, steps BLOB, kind TEXT, points BLOB, PRIMARY KEY (run, name));
CREATE TABLE IF NOT EXISTS version (name TEXT, number INTEGER, digest TEXT, json TEXT, PRIMARY KEY (name, number));
CREATE TABLE IF NOT EXISTS relation (
    name TEXT, number INTEGER, relation TEXT, uid TEXT, UNIQUE (name, number, relation, uid));
CREATE TABLE IF NOT EXISTS document (kind TEXT, owner TEXT, name TEXT, json TEXT, PRIMARY KEY (kind, owner, name));
"""


def open_backend(url: str, *, create: bool, is_read_only: bool) -> SqliteBackend:
    """Open the store of a URL: the entry point of the group `sacristan.stores`."""
    path = Path(url.removeprefix("sqlite://"))
    if not path.exists() and not create:
        raise StoreAwayError(f"there is no file {path}; copy runs into it, which makes it")
    return SqliteBackend(path)


class Connection:
    """A file that is opened, and errors of it that are turned into StoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.errors():
            self.sql = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            self.sql.executescript(f"PRAGMA journal_mode=WAL; {SCHEMA}")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be read or written ({error})") from error

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the file in the block, completely or not at all, while no other process does."""
        with self.errors():
            self.sql.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.sql.execute("ROLLBACK")
                raise
            self.sql.execute("COMMIT")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.errors():
            return self.sql.execute(query, values).fetchall()


class SqliteDocuments(Documents):
    """The small documents of a file; the notes on a run lie beside its parts."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

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
        if kind == "status":
            return {"": self._status(owner)[0]}
        rows = self.connection.rows(
            "SELECT name, json FROM document WHERE kind = ? AND owner = ? ORDER BY name", kind, str(owner)
        )
        is_wanted = [
            (names is None and after is None) or name in (names or ()) or (after is not None and name > after)
            for name, _ in rows
        ]
        found = {name: json.loads(text) for (name, text), wanted in zip(rows, is_wanted, strict=True) if wanted}
        return {
            name: one
            for name, one in found.items()
            if all(one.get(entry) in values for entry, values in (where or {}).items())
        }

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        place = (kind, str(owner), name)
        with self.connection.changing():
            if kind in OF_RUNS and not self.connection.rows("SELECT 1 FROM run WHERE number = ?", owner):
                if kind == "messages":
                    return False
                raise StoreError(f"run {owner} is no longer in {self.connection.path}")
            if kind == "status":
                return self._change_status(change, owner)
            now = self.read(kind, owner, [name]).get(name)
            new = change(now)
            if new == now:
                return False
            self.connection.sql.execute("DELETE FROM document WHERE kind = ? AND owner = ? AND name = ?", place)
            if new is not None:
                self.connection.sql.execute("INSERT INTO document VALUES (?, ?, ?, ?)", (*place, json.dumps(new)))
        return True

    def _status(self, run: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the status of a run, and its whole document."""
        rows = self.connection.rows("SELECT json FROM part WHERE run = ? AND name = 'document'", run)
        if not rows:
            raise StoreError(f"run {run} is no longer in {self.connection.path}")
        document = json.loads(rows[0][0])
        return {name: document[name] for name in ("status", "stop_time", "fail_trace") if name in document}, document

    def _change_status(self, change: Change, run: int) -> bool:
        now, document = self._status(run)
        new = change(now)
        row = (json.dumps({**document, **(new or {})}), run)
        self.connection.sql.execute("UPDATE part SET json = ? WHERE run = ? AND name = 'document'", row)
        return new != now

    def count(self, kind: str, name: str, start: int, limit: float) -> int | None:
        with self.connection.changing():
            query = "SELECT json FROM document WHERE kind = 'count' AND owner = ? AND name = ?"
            rows = self.connection.rows(query, kind, name)
            number = max(start, int(rows[0][0]) if rows else 0)
            if number >= limit:
                return None
            row = ("count", kind, name, str(number + 1))
            self.connection.sql.execute("INSERT OR REPLACE INTO document VALUES (?, ?, ?, ?)", row)
        return number


class SqliteBackend(Backend):
    """All runs of a file; a run's `key` is its number."""

    def __init__(self, path: Path) -> None:
        self.where = self.address = f"sqlite://{path.absolute()}"
        self.connection = Connection(path)
        self.documents = SqliteDocuments(self.connection)

    def __reduce__(self) -> tuple[Any, ...]:
        return SqliteBackend, (self.connection.path.absolute(),)

    def close(self) -> None:
        self.connection.sql.close()

    # ------------------------------------------------------------------ questions

    def _records(self, numbers: Iterable[int] | None = None) -> list[Record]:
        """Return the runs outside the trash, by number."""
        chosen = None if numbers is None else set(numbers)
        known = {number for (number,) in self.connection.rows("SELECT number FROM run WHERE discarded IS NULL")}
        parts: dict[int, dict[str, Any]] = {
            number: {} for number in sorted(known) if chosen is None or number in chosen
        }
        for number, name, text in self.connection.rows("SELECT run, name, json FROM part"):
            if number in parts:
                parts[number][name] = json.loads(text)
        notes = self.connection.rows("SELECT owner, json FROM document WHERE kind = 'notes'")
        for owner, text in notes:
            if int(owner) in parts:
                parts[int(owner)]["document"] |= json.loads(text)
        return [Record(number, of_run) for number, of_run in parts.items()]

    def find(self, question: Question) -> list[RunRow]:
        found = [record for record in self._records() if meets(question.tree, record)]
        if question.by == "_id":
            found.sort(key=lambda record: record.number, reverse=question.descending)
        else:
            found = in_order(found, lambda record: record.field(question.by), descending=question.descending)
        end = None if question.limit is None else question.offset + question.limit
        return [
            RunRow(str(record.number), record.number, {name: record.field(name) for name in question.names - {"_id"}})
            for record in found[question.offset : end]
        ]

    def count(self, tree: Filter, limit: int | None) -> int:
        return len(self.find(Question(tree, limit=limit)))

    def get(self, ids: Iterable[str]) -> dict[str, RunRow]:
        rows = self.connection.rows("SELECT number, uid FROM run WHERE discarded IS NULL")
        known = {uid: number for number, uid in rows} | {str(number): number for number, _ in rows}
        return {id: RunRow(str(known[id]), known[id]) for id in ids if id in known}

    def fields(self, name: str | None = None) -> list[str]:
        found = sorted({each for record in self._records() for each in record.names()})
        return found if name is None else [name] * any(f"{each}.".startswith(f"{name}.") for each in found)

    def unreadable(self, max_age_s: float) -> list[tuple[str, str]]:
        return []

    # ------------------------------------------------------------------ parts of a run

    def part(self, run: StoredRun, name: str, entries: Sequence[str] | None = None) -> Any:
        [record] = self._records([run.key]) or [None]
        if record is None and not self.connection.rows("SELECT 1 FROM run WHERE number = ?", run.key):
            raise StoreError(f"run {run.id} is no longer in {self.where}")
        parts = {} if record is None else record.parts
        if name == "status":
            return true_status(parts["document"], parts.get("lease")) or ""
        if name == "metrics":
            return [name for (name,) in self.connection.rows("SELECT name FROM series WHERE run = ?", run.key)]
        if name == "values":
            return str(parts.get("values", "")).encode()
        return parts.get(name, {} if name in PARTS else EMPTY.get(name))

    def files(self, run: StoredRun, kind: str) -> list[Content]:
        query = "SELECT rowid, name, md5 FROM file WHERE run = ? AND kind = ? ORDER BY position"
        return [self._content(*row) for row in self.connection.rows(query, run.key, kind)]

    def _content(self, row: int, name: str, md5: str | None = None) -> Content:
        def open_() -> io.BytesIO:
            found = self.connection.rows("SELECT content FROM file WHERE rowid = ?", row)
            if not found or found[0][0] is None:
                raise StoreError(f"{name!r} is not in {self.connection.path}")
            return io.BytesIO(found[0][0])

        return Content(name, open_, md5)

    def media(self, run: StoredRun, *, skips_damaged: bool = False) -> list[tuple[dict[str, Any], list[Content]]]:
        files: dict[int, list[Content]] = {}
        query = "SELECT rowid, name, position FROM file WHERE run = ? AND kind = 'media' ORDER BY rowid"
        for row, name, position in self.connection.rows(query, run.key):
            files.setdefault(position, []).append(self._content(row, name))
        return list(zip(self.part(run, "media") or [], files.values(), strict=True))

    def output(self, run: StoredRun, start: int, max_bytes: int | None) -> tuple[bytes, int]:
        [(text,)] = self.connection.rows("SELECT output FROM run WHERE number = ?", run.key) or [(b"",)]
        start = max(len(text) + start, 0) if start < 0 else start
        data = text[start:][:max_bytes]
        return data, start + len(data)

    def series(self, runs: Sequence[R], metric: str) -> Iterator[tuple[R, Series | None]]:
        query = "SELECT steps, kind, points FROM series WHERE run = ? AND name = ?"
        for run in runs:
            found = self.connection.rows(query, run.key, metric)
            yield run, series_of(*found[0]) if found else None

    def points_versions(self, runs: Sequence[StoredRun], metric: str) -> list[Hashable | None]:
        return [run.get("uid") for run in runs]  # a run is added when it has ended

    # ------------------------------------------------------------------ versions of artifacts

    def artifacts(self) -> list[str]:
        return [name for (name,) in self.connection.rows("SELECT DISTINCT name FROM version ORDER BY name")]

    def artifact_versions(self, name: str, version: int | None = None) -> list[StoredArtifact]:
        rows = self.connection.rows("SELECT number, digest, json FROM version WHERE name = ? ORDER BY number", name)
        return [self._stored(name, *row) for row in rows if version in (None, row[0])]

    def _stored(self, name: str, number: int, digest: str, text: str) -> StoredArtifact:
        about = json.loads(text)
        query = "SELECT relation, uid FROM relation WHERE name = ? AND number = ? ORDER BY uid"
        relations = self.connection.rows(query, name, number)
        made, used = (tuple(uid for relation, uid in relations if relation == one) for one in ("made", "used"))
        files = self.connection.rows("SELECT rowid, name FROM file WHERE kind = ?", f"version {digest}")
        return StoredArtifact(
            name,
            number,
            about["type"],
            digest,
            datetime.fromisoformat(about["created"]),
            sum(about["sizes"].values()),
            len(about["sizes"]),
            about["metadata"],
            made,
            used,
            {path: self._content(row, path) for row, path in files},
            about["sizes"],
        )

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        found = [each for each in self.artifact_versions(entry["name"]) if each.digest == entry["digest"]]
        if not found:
            raise StoreError(f"{entry['name']}@{entry['digest']} is not in {self.connection.path}")
        with tempfile.TemporaryDirectory() as folder:
            for path, content in found[0].files.items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
            made_by = found[0].made_by[0] if found[0].made_by else None
            return ArtifactStore(into).log(entry["name"], folder, found[0].type, found[0].metadata, made_by)

    # ------------------------------------------------------------------ whole runs

    def add(self, staged: StagedRun) -> Added:
        with open_store(staged.folder.parent) as store, self.connection.changing():
            run, present = store.get(staged.folder.name), self.get([staged.uid]).get(staged.uid)
            if present is not None and not self._has_begun(present.key, run.status):
                return Added(present.id, is_new=False)
            if present is not None:
                self._delete_parts(present.key)
            number = self._insert(run, store.backend, staged.folder, None if present is None else present.key)
        return Added(str(number), is_new=True, left_out=staged.left_out)

    def _has_begun(self, number: int, status: str) -> bool:
        """Tell whether a run that waits here has begun elsewhere since."""
        return self.documents.read("status", number)[""]["status"] in WAITING and status not in WAITING

    def _insert(self, run: Any, origin: Backend, folder: Path, number: int | None) -> int:
        sql = self.connection.sql
        values = (number, run.uid, run.read_output()[0])
        number = sql.execute("INSERT OR REPLACE INTO run (number, uid, output) VALUES (?, ?, ?)", values).lastrowid
        document = {name: value for name, value in run.document.items() if name not in NOTED}
        document |= self._take_versions(run, folder)
        parts = {name: origin.part(run, name) for name in (*PARTS, "lease", "artifact_details")}
        media = run.media_entries()
        parts |= {"document": document, "values": run.odd_values().decode(), "media": [entry for entry, _ in media]}
        sql.executemany("INSERT INTO part VALUES (?, ?, ?)", [(number, *each) for each in dumped(parts)])
        for position, (entry, contents) in enumerate(media):
            names = (entry["file"], *entry.get("images", ()))
            for name, content in zip(names, contents, strict=True):
                self._insert_file(number, "media", position, dataclasses.replace(content, name=name))
        for kind in KINDS:
            for position, content in enumerate(run.stored(kind)):
                self._insert_file(number, kind, position, content)
        for name in run.logged_metrics:
            series = run.metric(name)
            points = np.stack([series.values, series.times]).tobytes()
            row = (number, name, series.steps.tobytes(), series.steps.dtype.str, points)
            sql.execute("INSERT INTO series VALUES (?, ?, ?, ?, ?)", row)
        if any(run.notes().values()):
            row = (str(number), json.dumps(run.notes()))
            sql.execute("INSERT OR IGNORE INTO document VALUES ('notes', ?, '', ?)", row)
        return number

    def _insert_file(self, run: int | None, kind: str, position: int, content: Content) -> None:
        try:
            data: bytes | None = content.read()
        except StoreError:
            data = None
        row = (run, kind, position, content.name, content.md5, data)
        self.connection.sql.execute("INSERT INTO file VALUES (?, ?, ?, ?, ?, ?)", row)

    def _take_versions(self, run: Any, folder: Path) -> dict[str, Any]:
        """Take the versions of artifacts that a run names; return its entries with the numbers that they have here."""
        taken: dict[str, Any] = {}
        for relation, mark in (("artifacts_logged", "made"), ("artifacts_used", "used")):
            for entry in run.document.get(relation, ()):
                version = ArtifactStore(folder.parent).resolve(f"{entry['name']}@{entry['digest']}")
                number = self._take_version(version)
                values = (version.name, number, mark, run.uid)
                self.connection.sql.execute("INSERT OR IGNORE INTO relation VALUES (?, ?, ?, ?)", values)
                taken.setdefault(relation, []).append({**entry, "version": number})
        return taken

    def _take_version(self, version: ArtifactVersion) -> int:
        known = {each.digest: each.version for each in self.artifact_versions(version.name)}
        if version.digest in known:
            return known[version.digest]
        number = len(known) + 1
        about = {
            "type": version.type,
            "created": version.created.isoformat(),
            "metadata": dict(version.metadata),
            "sizes": {file.path: file.bytes for file in version.files},
        }
        row = (version.name, number, version.digest, json.dumps(about))
        self.connection.sql.execute("INSERT INTO version VALUES (?, ?, ?, ?)", row)
        for position, file in enumerate(version.files):
            content = Content(file.path, lambda file=file: version.stored(file))
            self._insert_file(None, f"version {version.digest}", position, content)
        return number

    def remove(self, run: StoredRun, *, to_trash: bool = False) -> Any:
        with self.connection.changing():
            if not self.connection.rows("SELECT 1 FROM run WHERE number = ? AND discarded IS NULL", run.key):
                raise StoreError(f"run {run.id} is no longer in {self.where}; another process removed it")
            if to_trash:
                at = datetime.now(UTC).isoformat()
                self.connection.sql.execute("UPDATE run SET discarded = ? WHERE number = ?", (at, run.key))
            else:
                self._delete(run.key)
        return run.key

    def _delete(self, number: int) -> None:
        self._delete_parts(number)
        self.connection.sql.execute("DELETE FROM run WHERE number = ?", (number,))
        for kind in OF_RUNS:
            self.connection.sql.execute("DELETE FROM document WHERE kind = ? AND owner = ?", (kind, str(number)))

    def _delete_parts(self, number: int) -> None:
        for table in ("part", "file", "series"):
            self.connection.sql.execute(f"DELETE FROM {table} WHERE run = ?", (number,))

    def trash(self) -> list[tuple[Discarded, Any]]:
        query = """SELECT number, uid, discarded, json FROM run JOIN part ON run = number AND name = 'document'
            WHERE discarded IS NOT NULL ORDER BY discarded DESC"""
        listed = []
        for number, uid, at, text in self.connection.rows(query):
            document = json.loads(text)
            name = str(mapping_of(document.get("experiment")).get("name") or "")
            status = str(document.get("status"))
            by = discarder(self.documents.read("notes", number).get("", {}).get("changes"))
            listed.append((Discarded(str(number), uid, name, status, datetime.fromisoformat(at), by), number))
        return listed

    def restore(self, place: Any) -> str:
        with self.connection.changing():
            query = "UPDATE run SET discarded = NULL WHERE number = ? AND discarded IS NOT NULL"
            if not self.connection.sql.execute(query, (place,)).rowcount:
                raise StoreError(f"run {place} is no longer in the trash of {self.where}; another process took it")
        return str(place)

    def reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        with self.connection.changing():
            for (number,) in self.connection.rows("SELECT number FROM run WHERE discarded IS NOT NULL"):
                if empties_trash:
                    self._delete(number)
                    removed.runs.append(str(number))


class Record:
    """A run as the file has it, with its fields by full name."""

    def __init__(self, number: int, parts: dict[str, Any]) -> None:
        self.number, self.parts = number, parts

    def field(self, name: str) -> Any:
        name = full_name(name)
        document = self.parts.get("document", {})
        if name == "_id":
            return str(self.number)
        if name in ("status", DURATION):
            lease = self.parts.get("lease")
            status = true_status(document, lease)
            return status if name == "status" else duration_s(document, last_sign(status, lease))
        part, _, rest = name.partition(".")
        if part == "summary" and rest:
            metric, _, statistic = rest.rpartition(".")
            return mapping_of(self.parts["summary"].get(metric)).get(statistic)
        return entry_at(self.parts.get(part), rest) if part in PARTS else entry_at(document, name)

    def names(self) -> Iterator[str]:
        yield from ("_id", DURATION)
        document = {name: value for name, value in self.parts.get("document", {}).items() if name not in LEFT_OUT}
        yield from filter(is_searchable, dotted(document))
        for part in ("config", "info"):
            yield from dotted(self.parts.get(part, {}), f"{part}.")
        for metric, statistics in self.parts.get("summary", {}).items():
            yield from (f"summary.{metric}.{name}" for name in mapping_of(statistics))


def meets(tree: Filter, record: Record) -> bool:
    """Tell whether a run meets a filter."""
    if isinstance(tree, Words):
        document = {**record.parts.get("document", {}), "config": record.parts.get("config")}
        texts = [text.lower() for text in texts_to_search(document, mapping_of(document.get("tags")))]
        return all(any(word.lower() in text for text in texts) for word in tree.words)
    if isinstance(tree, Condition):
        return holds(tree, record.field(tree.name))
    if isinstance(tree, Not):
        return not meets(tree.part, record)
    return (all if isinstance(tree, AllOf) else any)(meets(part, record) for part in tree.parts)


def series_of(steps: bytes, kind: str, points: bytes) -> Series:
    values, times = np.frombuffer(points, np.float64).reshape(2, -1)
    return Series(np.frombuffer(steps, kind), values, times)


def dumped(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, json.dumps(part)) for name, part in parts.items()]
