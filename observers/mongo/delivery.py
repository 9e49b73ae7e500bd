"""Delivery of a run from its journal to MongoDB: in pieces, in any order of retries, with the same database in the end.

Nothing here depends on the process that made the run: `Delivery` reads the run's folder, and asks the database for what
it has already. Sending something again changes nothing:

* a run has one document, found by its `uid`; its integer `_id` is the database's own (`observers.mongo.run_document`);
* points are appended on the condition that as many are there as were counted on (`observers.mongo.points`);
* what was logged beside numbers has an entry each, under an id made from its place (`observers.mongo.media`);
* contents of files are stored once, under an id made from their SHA-256 (`observers.mongo.contents`);
* what is too large or too deep for a document is a file, with a stand-in in its place (`observers.mongo.documents`).

`observers.mongo.layout` says where all that is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pymongo.database import Database
from pymongo.errors import OperationFailure

from observers.mongo.artifacts import ArtifactDelivery
from observers.mongo.contents import Contents
from observers.mongo.indexes import make_run_indexes
from observers.mongo.layout import Collections, Document
from observers.mongo.media import MediaDelivery, len_media
from observers.mongo.points import Behind, PointDelivery, len_points
from observers.mongo.run_document import DocumentDelivery, is_running
from observers.mongo.verification import Lost, find_lost
from observers.record.atomic_file import replacing
from observers.record.identity import new_uid
from observers.record.schema import DELIVERED, RUN, read_json

__all__ = ["Delivery", "noted_delivery"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Senders for the parts of a run whose document is in the database."""

    document: DocumentDelivery
    points: PointDelivery
    media: MediaDelivery

    def restart(self) -> None:
        """Begin anew with points and media."""
        self.points.restart()
        self.media.restart()

    def restart_all(self) -> None:
        """Begin anew with everything."""
        self.restart()
        self.document.restart()


class Delivery:
    """Brings one run's folder into a database, as far as the folder goes, each time `advance` is called.

    Args:
        folder: The run's folder.
        base: The folder that stored sources and resources are named from.
        database: The database.
        prefix: Put before the names of the collections, with an underscore.
        wanted_id: The `_id` to take if it is free.
        collection: Name of the collection of runs; empty for what the prefix makes it.
        with_checkpoints: Whether the checkpoints that the run keeps are delivered, too, once it has ended.

    Attributes:
        collections: Where to.
        artifacts: What sends artifacts.
        artifacts_slice_s: How long contents of artifacts may hold up the document of a run that still runs.
        run_id: The `_id` of the run's document; None before it is there.
        was_removed: Whether the run was removed from the database, and so is not delivered.
        was_started: Whether a queued run was started elsewhere, so that what the folder has is older.
    """

    artifacts_slice_s: float | None = None

    def __init__(
        self,
        folder: Path,
        base: Path,
        database: Database[Document],
        prefix: str = "",
        wanted_id: int | str | None = None,
        collection: str = "",
        *,
        with_checkpoints: bool = False,
    ) -> None:
        self.with_checkpoints = with_checkpoints
        self.folder = Path(folder)
        self.base = Path(base)
        self.collections = Collections(database, prefix, collection)
        self.artifacts = ArtifactDelivery(self.base, self.collections)
        self.run_id: Any = None
        self.was_removed = self.was_started = False
        self._contents = Contents(self.collections)
        self._wanted_id = wanted_id
        self._turn: Any = None
        self._parts: _Parts | None = None
        self._is_verified = False
        # In words, until it is sent again.
        self._lost: list[str] = []

    def advance(self, *, last: bool = False) -> None:
        """Deliver what is new in the folder.

        Once nobody writes to it any more, and all of it is sent, the database is asked for it. What it has lost is sent
        again by the next call.

        Args:
            last: Whether nobody will write to the folder any more, whatever its status says.

        Raises:
            pymongo.errors.PyMongoError: If the database cannot be reached or refuses; call again later.
        """
        self._is_verified = False
        run = read_json(self.folder / RUN)
        parts = None if run is None else self._attached(run)
        if run is None or parts is None:
            return
        # Points and media first: a document that says COMPLETED says so of what is there.
        try:
            while parts.points.send():
                pass
        except Behind:
            parts.restart()
            return
        parts.media.send()
        self.artifacts.advance(run, self.artifacts_slice_s if run["status"] == "RUNNING" else None)
        parts.document.send(run, parts.points.counts, self.artifacts.listed(run), last=last)
        if (last or not is_running(run)) and self._is_sent():
            self._verify(parts, run)

    # ------------------------------------------------------------------ the run in the database

    def _attached(self, run: Mapping[str, Any]) -> _Parts | None:
        """Return what sends the parts of the run, whose document is there; None if they are not to be sent."""
        self._parts = self._parts or self._attach(run)
        known = self._known(run["uid"])
        if self._parts is not None and known is None:
            self._begin_anew(Lost(["the run's document"], set(), set()))
            self._parts = self._attach(run)
            known = self._known(run["uid"])
        if self._parts is None or known is None:
            return None
        if self._lost:
            what, self._lost = ", ".join(self._lost), []
            _log.warning("MongoDB has lost %s; sent again from %s, as run %s", what, self.folder, self.run_id)
        return self._parts if self._follow_rewinding(self._parts, run, known) else None

    def _attach(self, run: Mapping[str, Any]) -> _Parts | None:
        """Find the run's document by its uid, or insert it; None if the run was removed."""
        uid = run["uid"]
        make_run_indexes(self.collections)
        document = DocumentDelivery(
            *(self.folder, self.base, self.collections, self._contents, uid), with_checkpoints=self.with_checkpoints
        )
        is_there = document.find()
        if not is_there:
            self.was_removed = self._is_noted_as_removed(uid)
            if self.was_removed:
                return None
            document.insert(run, self._wanted_id if self.run_id is None else self.run_id)
        self.run_id = document.run_id
        start = datetime.fromisoformat(run.get("start_time") or run["queue_time"])
        points = PointDelivery(self.folder, self.collections, self.run_id, uid, start)
        if not is_there:
            points.adopt()
        return _Parts(document, points, MediaDelivery(self.folder, self.collections, self._contents, self.run_id, uid))

    def _is_noted_as_removed(self, uid: str) -> bool:
        try:
            return self.collections.removed.find_one({"_id": uid}, {"_id": 1}) is not None
        except OperationFailure as error:
            if error.code != 13:  # the user may read the other collections alone
                raise
            return False

    def _known(self, uid: str) -> Document | None:
        """Return how far the database's record was rewound; None if the run's document is gone."""
        wanted = dict.fromkeys(("revision", "rewinding", "delivery_turn", "status"), 1)
        return self.collections.runs.find_one({"_id": self.run_id, "uid": uid}, wanted)

    def _follow_rewinding(self, parts: _Parts, run: Mapping[str, Any], known: Document) -> bool:
        """Take points and media out of the database that the record was rewound behind; they are sent anew.

        Returns whether the folder is as new as the database: an older copy of a run that went on elsewhere is not.
        """
        runs, key = self.collections.runs, {"_id": self.run_id, "uid": run["uid"]}
        state, there = _state(run), _state(known)
        self.was_started = run["status"] == "QUEUED" and known.get("status", "QUEUED") != "QUEUED"
        if state < there or self.was_started:
            return False
        turn = known.get("delivery_turn")
        if state > there:
            # The turn is noted before and after: others that deliver the run begin anew with each.
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
        """Ask the database for all that was sent; what it has lost is sent again by the next `advance`."""
        lost = self._find_lost(run, parts.document.sent)
        if lost.parts:
            self._begin_anew(lost)
            return
        self._is_verified = True
        if not is_running(run):
            self._write_marker(parts, run)

    def _find_lost(self, run: Mapping[str, Any], sent: Mapping[str, Any]) -> Lost:
        return find_lost(self.folder, self.collections, run, self.run_id, sent, self._contents.stored)

    def _begin_anew(self, lost: Lost) -> None:
        """Forget what was sent, so that it is sent again; that changes nothing of what is there."""
        self._lost = lost.parts
        if lost.metrics:
            self.collections.metrics.delete_many({"_id": {"$in": list(lost.metrics)}})
        self.artifacts.restart(lost.files - set(self._contents.stored))
        self._contents.forget(lost.files)
        if self._parts is not None:
            self._parts.restart_all()
            self._parts.points.adopt()

    # ------------------------------------------------------------------ how far it got

    @property
    def is_complete(self) -> bool:
        """True if everything in the folder now is in the database, which was asked for it."""
        return self.was_started or (self._is_verified and self._is_sent())

    def _is_sent(self) -> bool:
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
        """Go on with the same record, which is in `folder` now."""
        self.folder = folder
        if self._parts is not None:
            self._parts.document.follow(folder)
            self._parts.points.folder = self._parts.media.folder = folder

    def num_missing(self) -> int:
        """Return how many points of the folder are not delivered."""
        return max(0, len_points(self.folder) - self.num_points)

    def num_missing_media(self) -> int:
        """Return how many entries of media are not delivered."""
        return len_media(self.folder) if self._parts is None else self._parts.media.num_missing()

    @property
    def num_points(self) -> int:
        """Number of points of the folder that are delivered."""
        return self._parts.points.num_sent if self._parts is not None else 0

    # ------------------------------------------------------------------ the note of it in the folder

    def was_completed(self) -> bool:
        """Tell whether a delivery of the run as it is now was noted as complete, and the database still has it.

        Raises:
            pymongo.errors.PyMongoError: If the database cannot be reached or refuses.
        """
        noted, run = noted_delivery(self.folder), read_json(self.folder / RUN)
        if noted is None or run is None or noted["database"] != self._place:
            return False
        self.run_id = noted["run_id"]
        return not self._has_lost_what_was_noted(run)

    def _has_lost_what_was_noted(self, run: Mapping[str, Any]) -> bool:
        lost = self._find_lost(run, {"status": run["status"]})
        if lost.parts:
            self._begin_anew(lost)
        return bool(lost.parts)

    def _write_marker(self, parts: _Parts, run: Mapping[str, Any]) -> None:
        """Note that all is delivered, so that nobody has to send it again."""
        state = _state_noted(run, parts.points.num_sent, parts.media.num_sent)
        note = {"database": self._place, "run_id": self.run_id, **state}
        if read_json(self.folder / DELIVERED) != note:
            with contextlib.suppress(OSError), replacing(self.folder / DELIVERED) as stream:
                stream.write(json.dumps(note).encode())

    @property
    def _place(self) -> str:
        return f"{self.collections.database.name}.{self.collections.runs.name}"


def noted_delivery(folder: Path) -> dict[str, Any] | None:
    """Return the note that all of a run was delivered: its `run_id` and `database`; None if it has changed since."""
    noted, run = read_json(folder / DELIVERED), read_json(folder / RUN)
    if noted is None or run is None:
        return None
    # What was noted by earlier versions of this program has fewer entries.
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
    """Return how often the record of a run was rewound, and whether that is done; what is greater is newer."""
    is_rewinding = bool(run.get("rewinding"))
    return run.get("revision", 0) + is_rewinding, not is_rewinding
