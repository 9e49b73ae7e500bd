"""Delivery of a run from its journal to MongoDB: in pieces, in any order of retries, with the same database in the end.

Nothing here depends on the process that made the run: `Delivery` reads the run's folder, and asks the database for what
it has already. Sending something again changes nothing:

* a run has one document, found by its `uid`; its integer `_id` is the database's own;
* a metric's points are appended on the condition that as many are there as were counted on;
* what goes beyond `POINTS_PER_DOCUMENT` goes into chunks of fixed bounds, each replaced by a longer self;
* contents of files are stored once, under an id made from their SHA-256.

In the database, `runs`, `metrics` and `fs` have Sacred's schema. `metrics_chunks` holds the points beyond the cap:
`data` is a run of `observers.schema.POINT` records, `index` counts the chunks of a metric.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import gridfs
import numpy as np
import pymongo
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure

from configs.atomic_file import replacing
from observers.schema import (
    CONFIG,
    INFO,
    LEASE,
    OUTPUT,
    POINT,
    POINTS,
    RUN,
    SUMMARY,
    TICKS_PER_S,
    read_names,
    read_points,
    to_steps,
)

__all__ = ["POINTS_PER_CHUNK", "POINTS_PER_DOCUMENT", "Delivery", "object_id"]

POINTS_PER_DOCUMENT = 20_000
POINTS_PER_CHUNK = 4_096
OUTPUT_HEAD_BYTES = OUTPUT_TAIL_BYTES = 64 * 1024
_BATCH_POINTS = 100_000
MARKER = "delivered.json"
_PROVENANCE = "provenance.json"


def object_id(*parts: str | int) -> bson.ObjectId:
    """Return the ObjectId that stands for `parts`: the first 12 bytes of their SHA-256."""
    return bson.ObjectId(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:12])


class _Behind(Exception):  # noqa: N818 - a turn of events, no error
    """The database has fewer points than were counted on."""


class Delivery:
    """Brings one run's folder into a database, as far as the folder goes, each time `advance` is called.

    Args:
        folder: The run's folder.
        base: The folder that stored sources and resources are named from.
        database: The database.
        prefix: Put before the names of the collections, with an underscore.
        wanted_id: The `_id` to take if it is free.
    """

    def __init__(
        self, folder: Path, base: Path, database: Database, prefix: str = "", wanted_id: int | str | None = None
    ) -> None:
        prefix = f"{prefix}_" if prefix else ""
        self.folder = Path(folder)
        self.base = Path(base)
        self.runs = database[f"{prefix}runs"]
        self.metrics = database[f"{prefix}metrics"]
        self.chunks = database[f"{prefix}metrics_chunks"]
        self.fs = gridfs.GridFS(database)
        self.wanted_id = wanted_id
        self.run_id: Any = None
        self.num_points = 0
        self._uid = ""
        self._start = datetime.min
        self._counts: dict[str, int] = {}
        self._tails: dict[str, np.ndarray] = {}
        self._sent: dict[str, Any] = {}
        self._files: dict[str, Any] = {}

    # ------------------------------------------------------------------ the run's document

    def advance(self) -> None:
        """Deliver what is new in the folder.

        Raises:
            pymongo.errors.PyMongoError: If the database cannot be reached or refuses; call again later.
        """
        run = self._read(RUN)
        if run is None:
            return
        self._uid, self._start = run["uid"], datetime.fromisoformat(run.get("start_time") or run["queue_time"])
        if self.run_id is None:
            self._attach(run)
        # The points first: a document that says COMPLETED says so of points that are there.
        try:
            while self._send_points():
                pass
        except _Behind:
            # Somebody else delivers the same run, or took something away: ask the database anew, from the start.
            self.num_points, self._counts, self._tails = 0, {}, {}
            return
        self._send_document(run)
        if run["status"] not in ("RUNNING", "QUEUED") and self.is_complete:
            self._write_marker(run)

    def was_completed(self) -> bool:
        """Tell whether an earlier delivery of the run as it is now was noted as complete."""
        marker = self._read(MARKER)
        run = self._read(RUN)
        if marker is None or marker["database"] != self._label() or marker["status"] != run["status"]:
            return False
        self.run_id = marker["run_id"]
        return marker["points"] == len_points(self.folder)

    def _label(self) -> str:
        return f"{self.runs.database.name}.{self.runs.name}"

    def _write_marker(self, run: Mapping[str, Any]) -> None:
        """Note that all is delivered, so that nobody has to ask the database again."""
        marker = {"database": self._label(), "run_id": self.run_id, "status": run["status"], "points": self.num_points}
        if self._read(MARKER) != marker:
            with contextlib.suppress(OSError), replacing(self.folder / MARKER) as stream:
                stream.write(json.dumps(marker).encode())

    @property
    def is_complete(self) -> bool:
        """Whether all that is in the folder now is delivered."""
        run = self._read(RUN)
        return (
            run is not None
            and self.run_id is not None
            and self.num_points == len_points(self.folder)
            and self._sent.get("status") == run["status"]
            and self._sent.get("_output") == self._output_size()
        )

    def num_missing(self) -> int:
        """Return how many points of the folder are not delivered."""
        return len_points(self.folder) - self.num_points

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None

    def _attach(self, run: Mapping[str, Any]) -> None:
        """Find the run's document by its uid, or make it."""
        make_indexes(self.runs, self.metrics, self.chunks)
        found = self.runs.find_one({"uid": run["uid"]}, {"_id": 1})
        self.run_id = found["_id"] if found else self._insert(run)

    def _insert(self, run: Mapping[str, Any]) -> Any:
        wanted = self.wanted_id
        while True:
            number = wanted
            if number is None:
                newest = self.runs.find_one({"_id": {"$type": "number"}}, {"_id": 1}, sort=[("_id", -1)])
                number = int(newest["_id"]) + 1 if newest else 1
            try:
                self.runs.insert_one({"_id": number, "uid": run["uid"], **self._document(run)})
            except DuplicateKeyError:
                found = self.runs.find_one({"uid": run["uid"]}, {"_id": 1})
                if found:
                    return found["_id"]
                wanted = None  # taken by another run
            else:
                return number

    def _document(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's document, but for what is stored as files."""
        document = {key: value for key, value in run.items() if key not in ("uid", "resources", "artifacts")}
        for key in ("start_time", "stop_time", "heartbeat", "queue_time"):
            if isinstance(document.get(key), str):
                document[key] = datetime.fromisoformat(document[key])
        lease = self._read(LEASE)
        if lease is not None:
            document["lease"] = lease
            if document.get("status") == "RUNNING":
                document["heartbeat"] = datetime.fromtimestamp(lease["heartbeat"], UTC).replace(tzinfo=None)
        document["config"] = self._read(CONFIG) or {}
        document["info"] = self._info()
        document["summary"] = self._read(SUMMARY) or {}
        document["captured_out"] = self._output()
        document.setdefault("result", None)
        found = self._read(_PROVENANCE)
        if found is not None:
            document["provenance"] = found
        document["experiment"] = {**document["experiment"], "sources": []}
        return storable({**document, "resources": [], "artifacts": []})

    def _info(self) -> dict[str, Any]:
        """Return the run's info with Sacred's list of its metrics, by which its readers find them."""
        names = sorted(set(self._counts))
        listed = [{"name": name, "id": str(object_id(self._uid, name))} for name in names] if names else []
        return {**(self._read(INFO) or {}), **({"metrics": listed} if listed else {})}

    def _output_size(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / OUTPUT).stat().st_size
        return 0

    def _output(self) -> str:
        """Return the output, of a long one the head and the tail."""
        size = self._output_size()
        if not size:
            return ""
        with (self.folder / OUTPUT).open("rb") as stream:
            if size <= OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
                return stream.read().decode("utf-8", "replace")
            head = stream.read(OUTPUT_HEAD_BYTES).decode("utf-8", "replace")
            stream.seek(size - OUTPUT_TAIL_BYTES)
            tail = stream.read().decode("utf-8", "replace")
        left_out = size - OUTPUT_HEAD_BYTES - OUTPUT_TAIL_BYTES
        return (
            f"{head}\n... {left_out} bytes left out here; all of it is stored as a file when the run ends ...\n{tail}"
        )

    def _send_document(self, run: Mapping[str, Any]) -> None:
        ended = run["status"] not in ("RUNNING", "QUEUED")
        document = self._document(run)
        document["experiment"]["sources"] = [
            [name, self._store(self.base / stored, name)] for name, stored in run["experiment"]["sources"]
        ]
        document["resources"] = [
            [name, self._store(self.base / stored, name)] for name, stored in run.get("resources", ())
        ]
        document["artifacts"] = [
            {"name": name, "file_id": self._store(self.folder / name, name)} for name in run.get("artifacts", ())
        ]
        size = self._output_size()
        if ended and size > OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
            document["captured_out_file"] = self._store(self.folder / OUTPUT, OUTPUT)
        changed = {key: value for key, value in document.items() if self._sent.get(key, document) != value}
        if changed:
            self.runs.update_one({"_id": self.run_id, "uid": run["uid"]}, {"$set": changed})
        self._sent |= changed
        self._sent["_output"] = size

    # ------------------------------------------------------------------ files

    def _store(self, path: Path, name: str) -> Any:
        """Store the content of a file once, and return its id; None if the file is not there."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        key = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}"
        if key not in self._files:
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
                stream.seek(0)
                md5 = hashlib.file_digest(stream, "md5").hexdigest()
                stream.seek(0)
                self._files[key] = self._put(stream, sha256, filename=name, md5=md5)
        return self._files[key]

    def _put(self, stream: Any, sha256: str, **fields: Any) -> bson.ObjectId:
        file_id = object_id("sha256", sha256)
        if not self.fs.exists(file_id):
            # What an upload that was broken off has left would stand in the way.
            self.fs.delete(file_id)
            with contextlib.suppress(gridfs.errors.FileExists, DuplicateKeyError):
                self.fs.put(stream, _id=file_id, sha256=sha256, **fields)
        return file_id

    # ------------------------------------------------------------------ points

    def _send_points(self) -> bool:
        """Send a batch of points, and return whether there may be more."""
        points = read_points(self.folder, self.num_points, self.num_points + _BATCH_POINTS)
        if not len(points):
            return False
        names = read_names(self.folder)
        by_name: dict[str, np.ndarray] = {}
        for number in np.unique(points["metric"]).tolist():
            if number not in names:
                return False  # its name is not on the disk yet
            by_name.setdefault(names[number][0], points["metric"] == number)
            by_name[names[number][0]] = by_name[names[number][0]] | (points["metric"] == number)
        floats = np.array([names.get(n, ("", False))[1] for n in range(max(names) + 1)])
        counts, tails = dict(self._counts), dict(self._tails)
        for name, chosen in by_name.items():
            new, start = points[chosen], self._counts.get(name, 0)
            inside = max(0, POINTS_PER_DOCUMENT - start)
            if inside:
                self._push(name, start, new[:inside], floats)
            if len(new) > inside:
                tails[name] = self._send_chunks(name, max(start - POINTS_PER_DOCUMENT, 0), new[inside:])
            counts[name] = start + len(new)
        # Only now, so that a batch that was broken off is sent again as it was.
        self._counts, self._tails = counts, tails
        self.num_points += len(points)
        return True

    def _push(self, name: str, start: int, points: np.ndarray, floats: np.ndarray) -> None:
        """Append points `start` and on to the metric's document, unless they are there."""
        metric_id = object_id(self._uid, name)
        new = {"steps": _steps(points, floats), "values": points["value"].tolist(), "timestamps": self._times(points)}
        if start == 0:
            document = {"_id": metric_id, "run_id": self.run_id, "name": name, **new, "count": len(points)}
            with contextlib.suppress(DuplicateKeyError):
                self.metrics.insert_one(document)
                return
        found = self.metrics.find_one({"_id": metric_id}, {"count": 1})
        if found is None or found["count"] < start:
            raise _Behind
        there, end = found["count"], start + len(points)
        if there >= end:
            return
        push = {key: {"$each": values[there - start :]} for key, values in new.items()}
        change = {"$push": push, "$set": {"count": end}}
        if not self.metrics.update_one({"_id": metric_id, "count": there}, change).matched_count:
            raise _Behind

    def _times(self, points: np.ndarray) -> list[datetime]:
        return [self._start + timedelta(seconds=tick / TICKS_PER_S) for tick in points["time"].tolist()]

    def _send_chunks(self, name: str, start: int, points: np.ndarray) -> np.ndarray:
        """Write the chunks that points `start` and on beyond the cap belong to, and return those of an open chunk."""
        uid = self._uid
        open_points = self._tails.get(name, np.empty(0, POINT))
        index = (start - len(open_points)) // POINTS_PER_CHUNK
        waiting = np.concatenate([open_points, points])
        while len(waiting):
            chunk, waiting = waiting[:POINTS_PER_CHUNK], waiting[POINTS_PER_CHUNK:]
            fields = {"run_id": self.run_id, "uid": uid, "name": name, "index": index}
            fields |= {"count": len(chunk), "data": chunk.tobytes()}
            key = {"_id": object_id(uid, name, index)}
            with contextlib.suppress(DuplicateKeyError):  # as long or longer already
                self.chunks.update_one({**key, "count": {"$lt": len(chunk)}}, {"$set": fields}, upsert=True)
            index += 1
        return chunk if len(chunk) < POINTS_PER_CHUNK else np.empty(0, POINT)


def _steps(points: np.ndarray, floats: np.ndarray) -> list:
    """Return steps as ints, or as floats where they were logged so."""
    steps = points["step"].tolist()
    as_float = floats[points["metric"]]
    if not as_float.any():
        return steps
    decoded = to_steps(np.ascontiguousarray(points["step"]), True).tolist()
    return [b if f else a for a, b, f in zip(steps, decoded, as_float.tolist(), strict=True)]


def len_points(folder: Path) -> int:
    """Return the number of points in a run's folder."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / POINTS).stat().st_size // POINT.itemsize
    return 0


def make_indexes(runs: Any, metrics: Any, chunks: Any) -> None:
    """Make the indexes that reading and delivering go by, if the user may make any; those that are there stay."""
    try:
        runs.create_index("uid", unique=True, partialFilterExpression={"uid": {"$exists": True}})
        runs.create_index([("start_time", pymongo.DESCENDING)])
        runs.create_index([("status", pymongo.ASCENDING), ("start_time", pymongo.DESCENDING)])
        metrics.create_index([("run_id", pymongo.ASCENDING), ("name", pymongo.ASCENDING)])
        chunks.create_index([("run_id", pymongo.ASCENDING), ("name", pymongo.ASCENDING), ("index", pymongo.ASCENDING)])
    except OperationFailure as error:
        # Not allowed to, or somebody made one with other options.
        if error.code not in (13, 85, 86):
            raise


def storable(value: Any) -> Any:
    """Return `value` as BSON holds it: keys as Sacred writes them, without dots and dollars, huge ints as text."""
    if isinstance(value, Mapping):
        return {_key(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def _key(key: Any) -> str:
    text = str(key).replace(".", ",").replace("\0", "")
    return f"@{text[1:]}" if text.startswith("$") else text
