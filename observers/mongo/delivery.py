"""Delivery of a run from its journal to MongoDB: in pieces that may be retried in any order, with the same result.

Nothing here depends on the process that made the run: `Delivery` reads the run's folder, and asks the database what it
already has. Resending something changes nothing:

* a run has one document, found by its `uid`; the database assigns its integer `_id`
  (`sacristan.observers.mongo.documents`), or the run takes over a document that another program has staged
  (`DocumentDelivery.take_over`);
* points are appended on the condition that the database has exactly the points before them
  (`sacristan.observers.mongo.series`);
* each medium has an entry, under an id made from its place in the record (`sacristan.observers.mongo.series`);
* contents of files are stored once, under an id made from their SHA-256 (`sacristan.observers.mongo.contents`);
* values too large or too deep for a document are files, with a stand-in in their place
  (`sacristan.observers.mongo.documents`).

A run counts as delivered once the database has confirmed all of it (`sacristan.observers.mongo.layout`).
`sacristan.observers.mongo.layout` has the names of the collections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from sacristan.observers.mongo import layout
from sacristan.observers.mongo.contents import ArtifactDelivery, Shipment, StoredContents
from sacristan.observers.mongo.document_delivery import DocumentDelivery, NotTakenOverError, is_running
from sacristan.observers.mongo.series import Behind, MediaDelivery, PointDelivery, len_media, len_points
from sacristan.observers.mongo.verification import Lost, find_lost
from sacristan.observers.record.files import replacing
from sacristan.observers.record.identity import new_uid
from sacristan.observers.record.schema import DELIVERED, DESTINATION, RUN, read_json, read_json_if_whole

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Deliveries of the parts of a run whose document is in the database."""

    shipment: Shipment
    document: DocumentDelivery
    points: PointDelivery
    media: MediaDelivery

    def restart(self) -> None:
        """Start again with points and media."""
        self.points.restart()
        self.media.restart()


class Delivery:
    """Delivers one run's folder to a database, as it is whenever `advance` is called.

    Paths of stored sources and resources are relative to `base`. `wanted_id` is used if it is free; `overwrite` is the
    `_id` of a document to take over, see `Destination`. Checkpoints are delivered once the run has ended. Confirming
    everything may take `patience_s`; contents of artifacts delay the document of an active run by `artifacts_slice_s`.

    `run_id` is None until the document is there. A run that `was_removed` from the database is not delivered, and of a
    queued run that `was_started` elsewhere the folder is out of date.
    """

    artifacts_slice_s: float | None = None

    def __init__(
        self,
        folder: Path,
        base: Path,
        database: Database[layout.Document],
        prefix: str = "",
        wanted_id: int | str | None = None,
        collection: str = "",
        *,
        overwrite: str = "",
        with_checkpoints: bool = False,
        patience_s: float = layout.PATIENCE_S,
    ) -> None:
        self.with_checkpoints = with_checkpoints
        self.folder = Path(folder)
        self.base = Path(base)
        self._database, self._patience_s = database, patience_s
        self.collections = layout.Collections(database, prefix, collection).sent
        self.artifacts = ArtifactDelivery(self.base, self.collections)
        self.run_id: Any = None
        self.was_removed = self.was_started = False
        self._contents = StoredContents(self.collections)
        self._wanted_id = wanted_id
        self._overwrite = overwrite
        self._turn: Any = None
        self._parts: _Parts | None = None
        self._is_verified = False
        # The names of the parts to send again.
        self._lost: list[str] = []

    def advance(self, *, last: bool = False) -> None:
        """Deliver what is new in the folder. After a PyMongoError, call this again later.

        Once everything is sent and no process writes to the folder (as `last` says, whatever its status), the database
        is asked for all of it, and the next call resends what it has lost.
        """
        self._is_verified = False
        run = read_json(self.folder / RUN)
        parts = None if run is None else self._attached(run)
        if run is None or parts is None:
            return
        # Points and media first: a document that says COMPLETED describes what is there.
        try:
            while parts.points.send():
                pass
        except Behind:
            parts.restart()
            return
        parts.media.send()
        self.artifacts.advance(run, self.artifacts_slice_s if run["status"] == "RUNNING" else None)
        parts.document.send(run, parts.points.counts, self.artifacts.delivered(run), last=last)
        if (last or not is_running(run)) and self.is_sent:
            self._verify(parts, run)

    # ------------------------------------------------------------------ the run in the database

    def _attached(self, run: Mapping[str, Any]) -> _Parts | None:
        """Return the deliveries of the parts, with the document in the database; None if nothing is to be sent."""
        self._parts = self._parts or self._attach(run)
        stored = self._known(run["uid"])
        if self._parts is not None and stored is None:
            self._start_again(Lost(["the run's document"], set(), set()))
            self._parts = self._attach(run)
            stored = self._known(run["uid"])
        if self._parts is None or stored is None:
            return None
        if self._lost:
            names, self._lost = ", ".join(self._lost), []
            _log.warning("MongoDB has lost %s; sent again from %s, as run %s", names, self.folder, self.run_id)
        return self._parts if self._follow_rewinding(self._parts, run, stored) else None

    def _attach(self, run: Mapping[str, Any]) -> _Parts | None:
        """Find the run's document by its uid, or insert it; None if the run was removed."""
        uid = run["uid"]
        layout.make_run_indexes(self.collections)
        shipment = Shipment(self.folder, self.base, self.collections, self._contents, uid)
        document = DocumentDelivery(shipment, with_checkpoints=self.with_checkpoints)
        is_there = document.find()
        if not is_there:
            self.was_removed = self._is_noted_as_removed(uid) or self._was_overwritten(uid)
            if self.was_removed:
                return None
            self._insert(document, run, shipment)
        self._note_overwritten(shipment.run_id)
        self.run_id = shipment.run_id
        points = PointDelivery(shipment, datetime.fromisoformat(run.get("start_time") or run["queue_time"]))
        if not is_there:
            points.adopt()
        return _Parts(shipment, document, points, MediaDelivery(shipment))

    def _insert(self, document: DocumentDelivery, run: Mapping[str, Any], shipment: Shipment) -> None:
        """Insert the document, or take over the one that the run is to overwrite."""
        wanted = self._wanted_id if self.run_id is None else self.run_id
        if not self._overwrite or "overwrote" in self._noted_destination():
            document.insert(run, wanted)
            return
        number = int(self._overwrite)
        try:
            if document.take_over(run, number):
                return
            document.insert(run, number)
            reason = "does not exist"
        except NotTakenOverError as error:
            document.insert(run, wanted)
            reason = f"is not overwritten, because {error}"
        _log.warning("MongoDB: run %d %s; this run is recorded there as run %s", number, reason, shipment.run_id)

    def _note_overwritten(self, run_id: Any) -> None:
        """Note in the folder that the run has a document, so that it never takes over one again."""
        noted = self._noted_destination()
        if self._overwrite and noted.get("overwrite") == self._overwrite:
            del noted["overwrite"]
            noted |= {"overwrote": self._overwrite} if str(run_id) == self._overwrite else {}
            with contextlib.suppress(OSError), replacing(self.folder / DESTINATION) as stream:
                stream.write(json.dumps(noted).encode())
        self._overwrite = ""

    def _noted_destination(self) -> dict[str, Any]:
        noted = read_json_if_whole(self.folder / DESTINATION)
        return noted if isinstance(noted, dict) else {}

    def _was_overwritten(self, uid: str) -> bool:
        """Tell whether another run has the document that this run had taken over, and delivered."""
        overwrote, delivered = self._noted_destination().get("overwrote"), noted_delivery(self.folder)
        if delivered is None or str(delivered["run_id"]) != overwrote:
            return False
        other = {"_id": delivered["run_id"], "uid": {"$exists": True, "$ne": uid}}
        return self.collections.runs.find_one(other, {"_id": 1}) is not None

    def _is_noted_as_removed(self, uid: str) -> bool:
        try:
            return self.collections.removed.find_one({"_id": uid}, {"_id": 1}) is not None
        except OperationFailure as error:
            if error.code != 13:  # the user may only read the other collections
                raise
            return False

    def _known(self, uid: str) -> layout.Document | None:
        """Return how often the database's record was rewound; None if the run's document is gone."""
        wanted = dict.fromkeys(("revision", "rewinding", "delivery_turn", "status"), 1)
        return self.collections.runs.find_one({"_id": self.run_id, "uid": uid}, wanted)

    def _follow_rewinding(self, parts: _Parts, run: Mapping[str, Any], stored: layout.Document) -> bool:
        """Remove what the record was rewound behind; return whether the folder is as new as the database."""
        runs, key = self.collections.runs, {"_id": self.run_id, "uid": run["uid"]}
        state, there = _state(run), _state(stored)
        self.was_started = run["status"] == "QUEUED" and stored.get("status", "QUEUED") != "QUEUED"
        if state < there or self.was_started:
            return False
        turn = stored.get("delivery_turn")
        if state > there:
            # The turn changes before and after: other deliveries of the run start again each time.
            runs.update_one(key, {"$set": {"delivery_turn": new_uid()}})
            for collection in (self.collections.metrics, self.collections.chunks, self.collections.media):
                collection.delete_many({"run_id": self.run_id})
            turn = new_uid()
            entries = {"revision": run.get("revision", 0), "rewinding": bool(run.get("rewinding"))}
            runs.update_one(key, {"$set": {**entries, "delivery_turn": turn}})
        if turn != self._turn:
            self._turn = turn
            parts.restart()
        return True

    # ------------------------------------------------------------------ what the database has lost

    def _verify(self, parts: _Parts, run: Mapping[str, Any]) -> None:
        """Have all that was sent confirmed, and ask for it; the next `advance` resends what the database has lost."""
        key = {"_id": self.run_id, "uid": run["uid"]}
        self._confirmed_runs.update_one(key, {"$set": key})
        lost = self._find_lost(run, parts.document.sent)
        if lost.parts:
            self._start_again(lost)
            return
        self._is_verified = True
        if not is_running(run):
            self._write_marker(parts, run)

    @functools.cached_property
    def _confirmed_runs(self) -> Collection[layout.Document]:
        """The collection of runs, in which even a write that changes nothing waits until everything before it lasts."""
        name = self.collections.runs.name
        return layout.confirmed(self._database, name, self._patience_s)[name]

    def _find_lost(self, run: Mapping[str, Any], sent: Mapping[str, Any]) -> Lost:
        where = run, self.run_id, sent, self._contents.stored
        try:
            return find_lost(self.folder, self.collections.committed, *where)
        except OperationFailure as error:
            if not layout.lacks_majority_reads(error):
                raise
            return find_lost(self.folder, self.collections, *where)

    def _start_again(self, lost: Lost) -> None:
        """Forget what was sent, so that it is sent again; existing data does not change."""
        self._lost = lost.parts
        if lost.metrics:
            self.collections.metrics.delete_many({"_id": {"$in": list(lost.metrics)}})
        self.artifacts.restart(lost.files - set(self._contents.stored))
        self._contents.forget(lost.files)
        if self._parts is not None:
            self._parts.restart()
            self._parts.document.restart()
            self._parts.points.adopt()

    # ------------------------------------------------------------------ how far it got

    @property
    def is_complete(self) -> bool:
        """True if everything in the folder is in the database, according to the database."""
        return self.was_started or (self._is_verified and self.is_sent)

    @property
    def is_sent(self) -> bool:
        """True if everything in the folder was sent."""
        run = read_json(self.folder / RUN)
        return (
            run is not None
            and self._parts is not None
            and self.num_points == len_points(self.folder)
            and self.artifacts.is_complete(run)
            and self.num_missing_media() == 0
            and self._parts.document.is_sent(run)
        )

    def follow(self, folder: Path) -> None:
        self.folder = folder
        if self._parts is not None:
            self._parts.shipment.folder = folder

    def num_missing(self) -> int:
        """Return the number of points in the folder that are not delivered."""
        return max(0, len_points(self.folder) - self.num_points)

    def num_missing_media(self) -> int:
        return len_media(self.folder) if self._parts is None else self._parts.media.num_missing()

    @property
    def num_points(self) -> int:
        return self._parts.points.num_sent if self._parts is not None else 0

    # ------------------------------------------------------------------ the note of it in the folder

    def was_completed(self) -> bool:
        """Tell whether the run as it is now was completely delivered before, and the database still has all of it."""
        noted, run = noted_delivery(self.folder), read_json(self.folder / RUN)
        if noted is None or run is None or noted["database"] != self._place:
            return False
        self.run_id = noted["run_id"]
        lost = self._find_lost(run, {"status": run["status"]})
        if lost.parts:
            self._start_again(lost)
        return not lost.parts

    def _write_marker(self, parts: _Parts, run: Mapping[str, Any]) -> None:
        """Note that everything is delivered, so no process sends it again."""
        state = _state_noted(run, parts.points.num_sent, parts.media.num_sent)
        note = {"database": self._place, "run_id": self.run_id, **state}
        if read_json(self.folder / DELIVERED) != note:
            with contextlib.suppress(OSError), replacing(self.folder / DELIVERED) as stream:
                stream.write(json.dumps(note).encode())

    @property
    def _place(self) -> str:
        return f"{self.collections.database.name}.{self.collections.runs.name}"


def noted_delivery(folder: Path) -> dict[str, Any] | None:
    """Return `run_id`, `database` and state of a complete delivery; None without one, or if the run has changed."""
    noted, run = read_json(folder / DELIVERED), read_json(folder / RUN)
    if noted is None or run is None:
        return None
    # Notes of earlier versions of this program have fewer entries.
    noted = {"media": 0, "revision": 0, "sessions": 0, **noted}
    state = _state_noted(run, len_points(folder), len_media(folder))
    return noted if all(noted[name] == value for name, value in state.items()) else None


def _state_noted(run: Mapping[str, Any], num_points: int, num_media: int) -> dict[str, Any]:
    return {
        "status": run["status"],
        "points": num_points,
        "media": num_media,
        "revision": run.get("revision", 0),
        "sessions": len(run.get("sessions", ())),
    }


def _state(run: Mapping[str, Any]) -> tuple[int, bool]:
    """Return how often the record of a run was rewound, and whether that is finished; greater is newer."""
    is_rewinding = bool(run.get("rewinding"))
    return run.get("revision", 0) + is_rewinding, not is_rewinding
