"""`MongoHome`: a sweep in a database, beside the runs that its trials are delivered to."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from sacristan.observers.mongo.destination import Destination
from sacristan.observers.mongo.layout import Collections, Document
from sacristan.observers.record.identity import lease
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.definition import Definition
from sacristan.runs.sweeps.study.home import BEAT_S, Home
from sacristan.runs.sweeps.study.outages import Outages
from sacristan.runs.work.claims import Claim, Claims

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from sacristan.runs.sweeps.study.mongo_storage import MongoStorage

__all__ = ["MongoHome", "sweep_ids"]

# How long a server may be away until it is said so.
_ANSWER_MS = 5_000


class MongoHome(Home):
    """A sweep in the collections `sweeps`, `sweep_claims`, `sweep_agents` and `sweep_trials` of a database.

    Raises:
        StoreError: If the server refuses.
    """

    def __init__(self, destination: Destination, id: str) -> None:
        self.id = id
        self.where = f"{destination.label}, sweep {id}"
        self._place = destination.label
        self._outages = Outages(destination.label)
        try:
            self._client = destination.connect(serverSelectionTimeoutMS=_ANSWER_MS, connectTimeoutMS=_ANSWER_MS)
        except PyMongoError as error:
            raise self._outages.error(error) from error
        database = self._client[destination.db_name]
        self._parts = Collections(database, destination.prefix, destination.collection).sent
        self._storage: MongoStorage | None = None

    def ids(self) -> list[str]:
        """Return the ids of all sweeps in the database."""
        return self._outages.ask(lambda: sorted(map(str, self._parts.sweeps.distinct("_id"))))

    def create(self, definition: Definition) -> bool:
        is_new = self._outages.insert(lambda: self._parts.confirmed.sweeps, {"_id": self.id, **definition.document()})
        if is_new:
            self._outages.ask(lambda: self._parts.sweep_claims.create_index([("sweep", 1), ("trial", 1)]))
        return is_new

    def replace(self, definition: Definition, expected: Definition) -> bool:
        fields = [field.name for field in dataclasses.fields(Definition)]
        present = dict.fromkeys(fields) | expected.document()  # what a document lacks equals None
        del present["format"]
        change = {"$set": definition.document()}

        def replaced() -> bool:
            changed = self._parts.confirmed.sweeps.update_one({"_id": self.id, **present}, change)
            # The answer to a first try may have been lost.
            return bool(changed.matched_count) or self.definition() == definition

        return self._outages.ask(replaced)

    def definition(self) -> Definition:
        document = self._outages.ask(lambda: self._parts.sweeps.find_one({"_id": self.id}))
        if document is None:
            others = ", ".join(self.ids()) or "none"
            raise SweepError(f"there is no sweep {self.id} in {self._place}; there are: {others}")
        return Definition.of(document, self.where)

    def storage(self, *, is_read_only: bool = False) -> BaseStorage:
        from sacristan.runs.sweeps.study.mongo_storage import MongoStorage, convert_journal, journal_storage

        storage = MongoStorage(self._parts, self.id, self._outages)
        if not storage.get_all_studies():
            journal = journal_storage(self._parts.sweep_journal, self.id, self._outages)
            if journal is not None and is_read_only:
                return journal
            if journal is not None:
                convert_journal(journal, storage, self.id)
        self._storage = storage
        return storage

    def expire(self) -> None:
        if self._storage is not None:
            self._storage.expire()

    def next_number(self, start: int, limit: float) -> int | None:
        if start >= limit:
            return None
        following = {"$add": [{"$max": [{"$ifNull": ["$next", 0]}, start]}, 1]}
        below = {"$expr": {"$lt": [{"$ifNull": ["$next", 0]}, limit]}}

        def count() -> Document | None:
            # Not confirmed: of two agents that count the same point, after a rollback, one claims it.
            return self._parts.sweeps.find_one_and_update(
                {"_id": self.id, **below},
                [{"$set": {"next": following}}],
                projection={"next": 1},
                return_document=ReturnDocument.AFTER,
            )

        counted = self._outages.ask(count)
        return None if counted is None else int(counted["next"]) - 1

    def claims(self, number: int, agent: str = "") -> Claims:
        return _PointClaims(self._parts, self._outages, self.id, number, agent)

    def last_claims(self, numbers: Iterable[int]) -> dict[int, Claim]:
        wanted = {"sweep": self.id, "trial": {"$in": list(numbers)}}
        entries = self._outages.ask(lambda: list(self._parts.sweep_claims.find(wanted).sort("attempt", 1)))
        return {entry["trial"]: _claim(entry) for entry in entries}

    def beat(self, agent: str) -> None:
        self._outages.ask(
            lambda: self._parts.sweep_agents.update_one(
                {"_id": f"{self.id}/{agent}"}, {"$set": {"agent": agent, "lease": lease(BEAT_S)}}, upsert=True
            )
        )

    def leases(self) -> dict[str, dict[str, Any]]:
        self._outages.let_others_beat(2 * BEAT_S)
        wanted = {"_id": {"$gte": f"{self.id}/", "$lt": f"{self.id}0"}}
        entries = self._outages.ask(lambda: list(self._parts.sweep_agents.find(wanted)))
        return {entry["agent"]: entry["lease"] for entry in entries}

    def leave(self, agent: str) -> None:
        self._outages.ask(lambda: self._parts.sweep_agents.delete_one({"_id": f"{self.id}/{agent}"}))

    def hurry(self) -> None:
        self._outages.hurry()

    def stop(self, wanted: bool = True) -> None:
        change = {"$set": {"stopped": wanted}}
        self._outages.ask(lambda: self._parts.confirmed.sweeps.update_one({"_id": self.id}, change))

    @property
    def is_stopped(self) -> bool:
        document: Document | None = self._outages.ask(
            lambda: self._parts.sweeps.find_one({"_id": self.id}, {"stopped": 1})
        )
        return bool(document and document.get("stopped"))

    def close(self) -> None:
        self._client.close()


class _PointClaims(Claims):
    """The claims on a point of a sweep: a document for each, named by sweep, point and attempt."""

    def __init__(self, parts: Collections, outages: Outages, sweep: str, number: int, agent: str) -> None:
        self._parts, self._documents, self._outages = parts, parts.sweep_claims, outages
        self._sweep, self._number, self._agent = sweep, number, agent

    def listed(self) -> list[Claim]:
        wanted = {"sweep": self._sweep, "trial": self._number}
        return [
            _claim(entry) for entry in self._outages.ask(lambda: list(self._documents.find(wanted).sort("attempt", 1)))
        ]

    def add(self, attempt: int) -> bool:
        names = {"sweep": self._sweep, "trial": self._number, "attempt": attempt, "agent": self._agent}
        if self._outages.insert(lambda: self._parts.confirmed.sweep_claims, {"_id": self._id(attempt), **names}):
            return True
        # An insert that was sent again, because its answer was lost, is this agent's all the same.
        entry = self._outages.ask(lambda: self._documents.find_one({"_id": self._id(attempt)}))
        return entry is not None and entry["agent"] == self._agent

    def release(self, attempt: int) -> None:
        self._outages.ask(lambda: self._parts.confirmed.sweep_claims.delete_one({"_id": self._id(attempt)}))

    def _note_process(self, attempt: int, process: Mapping[str, Any]) -> None:
        change = {"$set": {"lease": dict(process)}}
        self._outages.ask(lambda: self._parts.confirmed.sweep_claims.update_one({"_id": self._id(attempt)}, change))

    def _id(self, attempt: int) -> str:
        return f"{self._sweep}/{self._number}/{attempt}"


def _claim(entry: Document) -> Claim:
    return Claim(entry["attempt"], entry["agent"], process=entry.get("lease"))


def sweep_ids(destination: Destination) -> list[str]:
    """Return the ids of all sweeps in a database."""
    with contextlib.closing(MongoHome(destination, "")) as home:
        return home.ids()
