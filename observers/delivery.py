"""Delivery of a run from its journal to MongoDB: in pieces, in any order of retries, with the same database in the end.

Nothing here depends on the process that made the run: `Delivery` reads the run's folder, and asks the database for what
it has already. Sending something again changes nothing:

* a run has one document, found by its `uid`; its integer `_id` is the database's own;
* points are appended on the condition that as many are there as were counted on (`observers.point_delivery`);
* what was logged beside numbers has an entry each, under an id made from its place (`observers.media_delivery`);
* contents of files are stored once, under an id made from their SHA-256 (`observers.contents`).

In the database, `runs`, `metrics` and `fs` have Sacred's schema; `metrics_chunks` holds what is beyond the cap of a
metric's document.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure

from configs.atomic_file import replacing
from observers.artifact_delivery import ArtifactDelivery
from observers.contents import Contents, object_id
from observers.media_delivery import MediaDelivery, len_media
from observers.point_delivery import Behind, PointDelivery, len_points
from observers.schema import CONFIG, INFO, LEASE, OUTPUT, RUN, SUMMARY
from observers.storable import storable

__all__ = ["Delivery"]

OUTPUT_HEAD_BYTES = OUTPUT_TAIL_BYTES = 64 * 1024
MARKER = "delivered.json"
_PROVENANCE = "provenance.json"
_LISTS = ("uid", "resources", "artifacts", "artifacts_logged", "artifacts_used")


class Delivery:
    """Brings one run's folder into a database, as far as the folder goes, each time `advance` is called.

    Args:
        folder: The run's folder.
        base: The folder that stored sources and resources are named from.
        database: The database.
        prefix: Put before the names of the collections, with an underscore.
        wanted_id: The `_id` to take if it is free.

    Attributes:
        artifacts_slice_s: How long contents of artifacts may hold up the document of a run that still runs.
    """

    artifacts_slice_s: float | None = None

    def __init__(
        self, folder: Path, base: Path, database: Database, prefix: str = "", wanted_id: int | str | None = None
    ) -> None:
        prefix = f"{prefix}_" if prefix else ""
        self.folder = Path(folder)
        self.base = Path(base)
        self.runs = database[f"{prefix}runs"]
        self.metrics = database[f"{prefix}metrics"]
        self.chunks = database[f"{prefix}metrics_chunks"]
        self.media = database[f"{prefix}media"]
        self.contents = Contents(database)
        self.artifacts = ArtifactDelivery(self.base, database, prefix)
        self.wanted_id = wanted_id
        self.run_id: Any = None
        self._points: PointDelivery | None = None
        self._media: MediaDelivery | None = None
        self._sent: dict[str, Any] = {}

    # ------------------------------------------------------------------ the run's document

    def advance(self) -> None:
        """Deliver what is new in the folder.

        Raises:
            pymongo.errors.PyMongoError: If the database cannot be reached or refuses; call again later.
        """
        run = self._read(RUN)
        if run is None:
            return
        if self._points is None:
            self._attach(run)
        # Points and media first: a document that says COMPLETED says so of what is there.
        try:
            while self._points.send():
                pass
        except Behind:
            self._points.restart()
            self._media.restart()
            return
        self.artifacts.advance(run, self.artifacts_slice_s if run["status"] == "RUNNING" else None)
        self._media.send()
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
        return marker["points"] == len_points(self.folder) and marker.get("media", 0) == len_media(self.folder)

    def _label(self) -> str:
        return f"{self.runs.database.name}.{self.runs.name}"

    def _write_marker(self, run: Mapping[str, Any]) -> None:
        """Note that all is delivered, so that nobody has to ask the database again."""
        marker = {"database": self._label(), "run_id": self.run_id, "status": run["status"], "points": self.num_points}
        marker["media"] = self._media.num_sent
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
            and self.artifacts.is_complete(run)
            and self.num_missing_media() == 0
            and self._sent.get("status") == run["status"]
            and self._sent.get("_output") == self._output_size()
        )

    def num_missing(self) -> int:
        """Return how many points of the folder are not delivered."""
        return len_points(self.folder) - self.num_points

    def num_missing_media(self) -> int:
        """Return how many entries of media are not delivered."""
        return len_media(self.folder) if self._media is None else self._media.num_missing()

    @property
    def num_points(self) -> int:
        """How many points of the folder are delivered."""
        return self._points.num_sent if self._points is not None else 0

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
        start = datetime.fromisoformat(run.get("start_time") or run["queue_time"])
        self._points = PointDelivery(self.folder, self.metrics, self.chunks, self.run_id, run["uid"], start)
        self._media = MediaDelivery(self.folder, self.media, self.contents, self.run_id, run["uid"])

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
        document = {key: value for key, value in run.items() if key not in _LISTS}
        for key in ("start_time", "stop_time", "heartbeat", "queue_time"):
            if isinstance(document.get(key), str):
                document[key] = datetime.fromisoformat(document[key])
        lease = self._read(LEASE)
        if lease is not None:
            document["lease"] = lease
            if document.get("status") == "RUNNING":
                document["heartbeat"] = datetime.fromtimestamp(lease["heartbeat"], UTC).replace(tzinfo=None)
        document["config"] = self._read(CONFIG) or {}
        document["info"] = self._info(run["uid"])
        document["summary"] = self._read(SUMMARY) or {}
        document["captured_out"] = self._output()
        document.setdefault("result", None)
        found = self._read(_PROVENANCE)
        if found is not None:
            document["provenance"] = found
        document["experiment"] = {**document["experiment"], "sources": []}
        return storable({**document, "resources": [], "artifacts": []})

    def _info(self, uid: str) -> dict[str, Any]:
        """Return the run's info with Sacred's list of its metrics, by which its readers find them."""
        names = sorted(self._points.counts) if self._points is not None else []
        listed = [{"name": name, "id": str(object_id(uid, name))} for name in names]
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
            [name, self.contents.store(self.base / stored, name)] for name, stored in run["experiment"]["sources"]
        ]
        document["resources"] = [
            [name, self.contents.store(self.base / stored, name)] for name, stored in run.get("resources", ())
        ]
        document["artifacts"] = [
            {"name": name, "file_id": self.contents.store(self.folder / name, name)}
            for name in run.get("artifacts", ())
        ]
        document |= self.artifacts.listed(run)
        size = self._output_size()
        if ended and size > OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
            document["captured_out_file"] = self.contents.store(self.folder / OUTPUT, OUTPUT)
        changed = {key: value for key, value in document.items() if self._sent.get(key, document) != value}
        if changed:
            self.runs.update_one({"_id": self.run_id, "uid": run["uid"]}, {"$set": changed})
        self._sent |= changed
        self._sent["_output"] = size


def make_indexes(runs: Any, metrics: Any, chunks: Any) -> None:
    """Make the indexes that reading and delivering go by, if the user may make any; those that are there stay."""
    try:
        runs.create_index("uid", unique=True, partialFilterExpression={"uid": {"$exists": True}})
        runs.create_index([("start_time", pymongo.DESCENDING)])
        runs.create_index([("status", pymongo.ASCENDING), ("start_time", pymongo.DESCENDING)])
        # By these a question for the best runs, or for those of a certain config, looks at no other run.
        runs.create_index([("summary.$**", pymongo.ASCENDING)])
        runs.create_index([("config.$**", pymongo.ASCENDING)])
        metrics.create_index([("run_id", pymongo.ASCENDING), ("name", pymongo.ASCENDING)])
        chunks.create_index([("run_id", pymongo.ASCENDING), ("name", pymongo.ASCENDING), ("index", pymongo.ASCENDING)])
    except OperationFailure as error:
        # Not allowed to, or somebody made one with other options.
        if error.code not in (13, 85, 86):
            raise
