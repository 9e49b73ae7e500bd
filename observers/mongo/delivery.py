"""Delivery of a run from its journal to MongoDB: in pieces, in any order of retries, with the same database in the end.

Nothing here depends on the process that made the run: `Delivery` reads the run's folder, and asks the database for what
it has already. Sending something again changes nothing:

* a run has one document, found by its `uid`; its integer `_id` is the database's own;
* points are appended on the condition that as many are there as were counted on (`observers.mongo.points`);
* what was logged beside numbers has an entry each, under an id made from its place (`observers.mongo.media`);
* contents of files are stored once, under an id made from their SHA-256 (`observers.mongo.contents`);
* what is too large or too deep for a document is a file, with a stand-in in its place (`observers.mongo.documents`).

In the database, `runs`, `metrics` and `fs` have Sacred's schema; `metrics_chunks` holds what is beyond the cap of a
metric's document.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure

from observers.mongo.artifacts import ArtifactDelivery
from observers.mongo.contents import Contents
from observers.mongo.documents import ENTRY_BYTES, LIST_BYTES, Packer, files_in, object_id, storable_text
from observers.mongo.media import MediaDelivery, len_media
from observers.mongo.points import Behind, PointDelivery, len_points
from observers.record.atomic_file import replacing
from observers.record.identity import new_uid
from observers.record.schema import CONFIG, INFO, LEASE, OUTPUT, PROVENANCE, RUN, SUMMARY, VALUES

__all__ = ["MARKER", "REMOVED", "Delivery"]

OUTPUT_HEAD_BYTES = OUTPUT_TAIL_BYTES = 64 * 1024
# An entry of 20 MB that changes with each beat is not sent with each beat.
LARGE_FILES_EVERY_S = 30.0
MARKER = "delivered.json"
# The collection of uids of runs that were removed, so that nobody delivers them again.
REMOVED = "removed"
# What of the run's record comes into the document by itself, or not at all.
_LISTS = ("uid", "experiment", "resources", "artifacts", "artifact_details", "command_line", "fail_trace")
_LISTS += ("artifacts_logged", "artifacts_used")
# What a run has that has ended; one that goes on does not.
_OF_AN_END = ("stop_time", "fail_trace", "fail_trace_file", "lost_bytes", "lost_media", "lost_points")
_OF_AN_END += ("captured_out_file", "values_file")


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
        was_removed: Whether the run was removed from the database, and so is not delivered.
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
        self.removed = database[f"{prefix}{REMOVED}"]
        self.was_removed = False
        self._turn: Any = None
        self.contents = Contents(database)
        self.artifacts = ArtifactDelivery(self.base, database, prefix)
        self.wanted_id = wanted_id
        self.run_id: Any = None
        self._points: PointDelivery | None = None
        self._media: MediaDelivery | None = None
        self._sent: dict[str, Any] = {}
        self._packer = Packer("")
        self._entries: dict[str, tuple] = {}
        self._owned: set = set()
        self._gone: list[str] = []
        self._large_files_at = 0.0

    # ------------------------------------------------------------------ the run's document

    def advance(self, *, last: bool = False) -> None:
        """Deliver what is new in the folder.

        Args:
            last: Whether nobody will write to the folder any more, whatever its status says.

        Raises:
            pymongo.errors.PyMongoError: If the database cannot be reached or refuses; call again later.
        """
        run = self._read(RUN)
        if run is None:
            return
        if self._points is None:
            self._attach(run)
        if self.was_removed:
            return
        if not self._follow_rewinding(run):
            return
        # Points and media first: a document that says COMPLETED says so of what is there.
        try:
            while self._points.send():
                pass
        except Behind:
            self._points.restart()
            self._media.restart()
            return
        self._media.send()
        self.artifacts.advance(run, self.artifacts_slice_s if run["status"] == "RUNNING" else None)
        self._send_document(run, last)
        if run["status"] not in ("RUNNING", "QUEUED") and self.is_complete:
            self._write_marker(run)

    def _follow_rewinding(self, run: Mapping[str, Any]) -> bool:
        """Take points and media out of the database that the record was taken back behind; they are sent anew.

        Returns whether the folder is as new as the database: an older copy of a run that went on elsewhere is not.
        """
        key = {"_id": self.run_id, "uid": run["uid"]}
        known = self.runs.find_one(key, dict.fromkeys(("revision", "rewinding", "delivery_turn"), 1)) or {}
        state, there = _state(run), _state(known)
        if state < there:
            return False
        turn = known.get("delivery_turn")
        if state > there:
            # The turn is noted before and after: others that deliver the run begin anew with each.
            self.runs.update_one(key, {"$set": {"delivery_turn": new_uid()}})
            for collection in (self.metrics, self.chunks, self.media):
                collection.delete_many({"run_id": self.run_id})
            turn = new_uid()
            entries = {
                "revision": run.get("revision", 0),
                "rewinding": bool(run.get("rewinding")),
                "delivery_turn": turn,
            }
            self.runs.update_one(key, {"$set": entries})
        if turn != self._turn:
            self._turn = turn
            self._points.restart()
            self._media.restart()
        return True

    def was_completed(self) -> bool:
        """Tell whether an earlier delivery of the run as it is now was noted as complete."""
        marker = self._read(MARKER)
        run = self._read(RUN)
        if marker is None or marker["database"] != self._label() or marker["status"] != run["status"]:
            return False
        self.run_id = marker["run_id"]
        if marker.get("revision", 0) != run.get("revision", 0) or marker.get("sessions", 0) != _num_sessions(run):
            return False
        return marker["points"] == len_points(self.folder) and marker.get("media", 0) == len_media(self.folder)

    def _label(self) -> str:
        return f"{self.runs.database.name}.{self.runs.name}"

    def _write_marker(self, run: Mapping[str, Any]) -> None:
        """Note that all is delivered, so that nobody has to ask the database again."""
        marker = {"database": self._label(), "run_id": self.run_id, "status": run["status"], "points": self.num_points}
        marker |= {"media": self._media.num_sent, "revision": run.get("revision", 0), "sessions": _num_sessions(run)}
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
            and self._sent.get("revision", 0) == run.get("revision", 0)
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
        self._packer = Packer(run["uid"])
        make_indexes(self.runs, self.metrics, self.chunks, self.runs.database.fs)
        found = self.runs.find_one({"uid": run["uid"]}, {"_id": 1})
        self.was_removed = found is None and self._is_noted_as_removed(run["uid"])
        if self.was_removed:
            return
        self.run_id = found["_id"] if found else self._insert(run)
        start = datetime.fromisoformat(run.get("start_time") or run["queue_time"])
        self._points = PointDelivery(self.folder, self.metrics, self.chunks, self.run_id, run["uid"], start)
        self._media = MediaDelivery(self.folder, self.media, self.contents, self.run_id, run["uid"])

    def _is_noted_as_removed(self, uid: str) -> bool:
        try:
            return self.removed.find_one({"_id": uid}, {"_id": 1}) is not None
        except OperationFailure as error:
            if error.code != 13:  # a user of these collections alone
                raise
            return False

    def _insert(self, run: Mapping[str, Any]) -> Any:
        wanted = self.wanted_id
        while True:
            number = wanted
            if number is None:
                newest = self.runs.find_one({"_id": {"$type": "number"}}, {"_id": 1}, sort=[("_id", -1)])
                number = int(newest["_id"]) + 1 if newest else 1
            try:
                document = self._document(run)
                self._store_entries(document)
                self.runs.insert_one({"_id": number, "uid": run["uid"], **document})
            except DuplicateKeyError:
                found = self.runs.find_one({"uid": run["uid"]}, {"_id": 1})
                if found:
                    return found["_id"]
                wanted = None  # taken by another run
            else:
                return number

    def _document(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's document within MongoDB's bounds, but for the lists of its files."""
        packer = self._packer
        packer.files.clear()
        document = {key: value for key, value in run.items() if key not in _LISTS and key != "rewinding"}
        for key in ("start_time", "stop_time", "heartbeat", "queue_time"):
            if isinstance(document.get(key), str):
                document[key] = datetime.fromisoformat(document[key])
            else:
                document.pop(key, None)
        times = {key: value for key, value in document.items() if isinstance(value, datetime)}
        document = {key: packer.entry(value) for key, value in document.items()} | times
        lease = self._read(LEASE)
        if lease is not None:
            document["lease"] = packer.entry(lease)
            if document.get("status") == "RUNNING":
                document["heartbeat"] = datetime.fromtimestamp(lease["heartbeat"], UTC).replace(tzinfo=None)
        for key in ("command_line", "fail_trace"):
            if isinstance(run.get(key), list):
                document |= packer.listed(key, run[key], ENTRY_BYTES)
        document |= {"config": self._entry(CONFIG), "info": self._info(run["uid"]), "summary": self._entry(SUMMARY)}
        document["captured_out"] = self._output()
        document.setdefault("result", None)
        if (self.folder / PROVENANCE).exists():
            document["provenance"] = self._entry(PROVENANCE)
        experiment = {key: value for key, value in run["experiment"].items() if key != "sources"}
        document["experiment"] = {**packer.entry(experiment), "sources": []}
        return {**document, "resources": [], "artifacts": []}

    def _entry(self, name: str) -> Any:
        """Return what the JSON file `name` holds, packed; one that did not change is not read again."""
        path = self.folder / name
        try:
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._entries.get(name, (None,))[0] != stamp:
                # The summary is what runs are sorted by, also with thousands of metrics.
                limit = LIST_BYTES if name == SUMMARY else ENTRY_BYTES
                self._entries[name] = (stamp, *self._pack_file(path.read_bytes(), limit))
        except FileNotFoundError:
            return {}
        _, packed, files = self._entries[name]
        self._packer.files |= files
        return packed

    def _pack_file(self, raw: bytes, limit: int) -> tuple[Any, dict]:
        packer = Packer(self._packer.uid, limit)
        try:
            packed = packer.entry(json.loads(raw) or {})
        except (RecursionError, ValueError):  # more levels or digits than Python reads
            packed = packer.whole_file(raw)
        kept = set(files_in(packed))
        return packed, {key: content for key, content in packer.files.items() if key in kept}

    def _info(self, uid: str) -> dict[str, Any]:
        """Return the run's info with Sacred's list of its metrics, by which its readers find them."""
        names = sorted(self._points.counts) if self._points is not None else []
        listed = [{"name": name, "id": str(object_id(uid, name))} for name in names]
        return {**self._entry(INFO), **(self._packer.listed("metrics", listed) if listed else {})}

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

    def _send_document(self, run: Mapping[str, Any], last: bool) -> None:
        ended = last or run["status"] not in ("RUNNING", "QUEUED")
        document = self._document(run)
        document["experiment"] |= self._packer.listed("sources", self._shared(run["experiment"]["sources"]))
        document |= self._packer.listed("resources", self._shared(run.get("resources", ())))
        artifacts = self._artifacts(run)
        document |= self._packer.listed("artifacts", artifacts)
        for name, entries in self.artifacts.listed(run).items():
            document |= self._packer.listed(name, entries)
        size = self._output_size()
        if ended and size > OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
            document["captured_out_file"] = self.contents.store(self.folder / OUTPUT, OUTPUT, owner=run["uid"])
        if ended and (self.folder / VALUES).exists():
            document["values_file"] = self.contents.store(self.folder / VALUES, VALUES, owner=run["uid"])
        changed = {key: value for key, value in document.items() if self._sent.get(key, document) != value}
        if not ended:
            changed = self._without_early(changed)
        self._store_entries(changed)
        owned = {file["file_id"] for file in artifacts} | set(files_in({**self._sent, **changed}))
        owned |= {document.get("captured_out_file"), document.get("values_file")}
        gone = [name for name in _OF_AN_END if name not in document and name not in self._gone]
        if changed or gone:
            change = {"$set": changed, "$unset": dict.fromkeys(gone, "")}
            change = {operator: entries for operator, entries in change.items() if entries}
            self.runs.update_one({"_id": self.run_id, "uid": run["uid"]}, change)
            self._gone = [*(name for name in self._gone if name not in document), *gone]
        self._sent |= changed
        self._sent["_output"] = size
        if owned != self._owned:
            self.contents.drop_others(run["uid"], owned)
            self._owned = owned

    def _without_early(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Return `changed` without what needs a new large file so soon after another: it has to wait for its turn."""
        if time.monotonic() >= self._large_files_at:
            return changed
        return {key: value for key, value in changed.items() if all(map(self.contents.holds, files_in(value)))}

    def _store_entries(self, document: Mapping[str, Any]) -> None:
        """Store the files that stand-ins in `document` stand for."""
        for file_id in set(files_in(document)) & self._packer.files.keys():
            if not self.contents.holds(file_id):
                self.contents.put(file_id, self._packer.files[file_id], "entry.json", self._packer.uid)
                self._large_files_at = time.monotonic() + LARGE_FILES_EVERY_S

    def _shared(self, named: Iterable[Sequence[str]]) -> list[list[Any]]:
        stored = [[name, self.contents.store(self.base / where, name)] for name, where in named]
        # Omniboard ends with an error where a file has no id.
        return [[name, file_id] for name, file_id in stored if file_id is not None]

    def _artifacts(self, run: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return name and file of each artifact, also of those that are in the database only by now."""
        there, found = None, []
        for name in run.get("artifacts", ()):
            details = run.get("artifact_details", {}).get(name, {})
            fields = {"metadata": self._packer.entry(details.get("metadata"))}
            if details.get("content_type"):
                fields["contentType"] = str(details["content_type"])
            # Sacred's name, which incense takes apart.
            filename = f"artifact://{self.runs.name}/{self.run_id}/{name}"
            file_id = self.contents.store(self.folder / name, filename, owner=run["uid"], **fields)
            if file_id is None:
                if there is None:
                    known = self.runs.find_one({"_id": self.run_id}, {"artifacts": 1}) or {}
                    there = {file["name"]: file["file_id"] for file in known.get("artifacts", ())}
                file_id = there.get(storable_text(name))
            if file_id is not None:
                found.append({"name": name, "file_id": file_id})
        return found


def _state(run: Mapping[str, Any]) -> tuple[int, bool]:
    """Return how often the record of a run was taken back, and whether that is done; what is greater is newer."""
    is_rewinding = bool(run.get("rewinding"))
    return run.get("revision", 0) + is_rewinding, not is_rewinding


def _num_sessions(run: Mapping[str, Any]) -> int:
    return len(run.get("sessions", ()))


def make_indexes(runs: Any, metrics: Any, chunks: Any, fs: Any) -> None:
    """Make the indexes that reading and delivering go by, if the user may make any; those that are there stay."""
    up, down = pymongo.ASCENDING, pymongo.DESCENDING
    with_uid = {"partialFilterExpression": {"uid": {"$exists": True}}}
    for collection, keys, options in (
        (runs, [("uid", up)], {"unique": True, **with_uid}),
        (runs, [("start_time", down)], {}),
        (runs, [("status", up), ("start_time", down)], {}),
        # By these a question for the best runs, or for those of a certain config, looks at no other run.
        (runs, [("summary.$**", up)], {}),
        (runs, [("config.$**", up)], {}),
        (metrics, [("run_id", up), ("name", up)], {}),
        (chunks, [("run_id", up), ("name", up), ("index", up)], {}),
        (fs.files, [("filename", up), ("uploadDate", up)], {}),
        (fs.files, [("uid", up)], with_uid),
        (fs.chunks, [("files_id", up), ("n", up)], {"unique": True}),
    ):
        try:
            collection.create_index(keys, **options)
        except OperationFailure as error:
            # Not allowed to; or somebody made one with other options, or documents that are not unique.
            if error.code not in (13, 85, 86, 11000):
                raise
