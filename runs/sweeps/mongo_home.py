"""`MongoHome`: a sweep in a database, beside the runs that its trials are delivered to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pymongo.errors import DuplicateKeyError, PyMongoError

from observers.mongo.destination import Destination, explain
from observers.mongo.layout import Collections, Document
from observers.record.identity import lease
from runs.errors import StoreError, SweepError
from runs.sweeps.definition import Definition
from runs.sweeps.home import BEAT_S, Claim, Home

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["MongoHome", "sweep_ids"]


class MongoHome(Home):
    """A sweep in the collections `sweeps`, `sweep_claims`, `sweep_agents` and `sweep_journal` of a database.

    Args:
        destination: The database.
        id: The sweep's.

    Raises:
        StoreError: If the server refuses.
    """

    def __init__(self, destination: Destination, id: str) -> None:
        self.id = id
        self.where = f"{destination.label}, sweep {id}"
        self._place = destination.label
        with self._errors():
            # A sweep waits for its database as long as a training would take to notice: an outage is no end.
            self._client = destination.connect(serverSelectionTimeoutMS=10_000)
            self._parts = Collections(self._client[destination.db_name], destination.prefix, destination.collection)

    def ids(self) -> list[str]:
        """Return the ids of all sweeps in the database."""
        with self._errors():
            return sorted(map(str, self._parts.sweeps.distinct("_id")))

    def create(self, definition: Definition) -> bool:
        with self._errors():
            try:
                self._parts.sweeps.insert_one({"_id": self.id, **definition.document()})
            except DuplicateKeyError:
                return False
            self._parts.sweep_claims.create_index([("sweep", 1), ("trial", 1)])
        return True

    def replace(self, definition: Definition) -> None:
        with self._errors():
            self._parts.sweeps.replace_one({"_id": self.id}, {"_id": self.id, **definition.document()})

    def definition(self) -> Definition:
        with self._errors():
            document = self._parts.sweeps.find_one({"_id": self.id})
            if document is None:
                others = ", ".join(self.ids()) or "none"
                raise SweepError(f"there is no sweep {self.id} in {self._place}; there are: {others}")
        return Definition.of(document, self.where)

    def storage(self) -> BaseStorage:
        from runs.sweeps.journals import mongo_storage

        with self._errors():
            return mongo_storage(self._parts.sweep_journal, self.id)

    def claim(self, claim: Claim) -> bool:
        entry = {"_id": f"{self.id}/{claim.trial}/{claim.attempt}", "sweep": self.id, **claim._asdict()}
        with self._errors():
            try:
                self._parts.sweep_claims.insert_one(entry)
            except DuplicateKeyError:
                # An insert that was sent twice, because its answer was lost, is ours all the same.
                found = self._parts.sweep_claims.find_one({"_id": entry["_id"]})
                return found is not None and found["agent"] == claim.agent
        return True

    def last_claims(self, trials: Iterable[int]) -> dict[int, Claim]:
        with self._errors():
            entries = self._parts.sweep_claims.find({"sweep": self.id, "trial": {"$in": list(trials)}})
            found = sorted(Claim(entry["trial"], entry["attempt"], entry["agent"]) for entry in entries)
        return {claim.trial: claim for claim in found}

    def beat(self, agent: str) -> None:
        with self._errors():
            self._parts.sweep_agents.update_one(
                {"_id": f"{self.id}/{agent}"}, {"$set": {"agent": agent, "lease": lease(BEAT_S)}}, upsert=True
            )

    def leases(self) -> dict[str, dict[str, Any]]:
        with self._errors():
            entries = self._parts.sweep_agents.find({"_id": {"$gte": f"{self.id}/", "$lt": f"{self.id}0"}})
            return {entry["agent"]: entry["lease"] for entry in entries}

    def leave(self, agent: str) -> None:
        with self._errors():
            self._parts.sweep_agents.delete_one({"_id": f"{self.id}/{agent}"})

    def stop(self, wanted: bool = True) -> None:
        with self._errors():
            self._parts.sweeps.update_one({"_id": self.id}, {"$set": {"stopped": wanted}})

    @property
    def is_stopped(self) -> bool:
        with self._errors():
            document: Document | None = self._parts.sweeps.find_one({"_id": self.id}, {"stopped": 1})
        return bool(document and document.get("stopped"))

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PyMongoError as error:
            raise StoreError(f"MongoDB at {self._place}: {explain(error)}") from error


def sweep_ids(destination: Destination) -> list[str]:
    """Return the ids of all sweeps in a database.

    Raises:
        StoreError: If the server refuses.
    """
    with contextlib.closing(MongoHome(destination, "")) as home:
        return home.ids()
