"""How writes to a database are confirmed: nothing counts as delivered, claimed or noted while one server may lose it.

An acknowledged write can still be lost. A server that is killed loses the writes of the last tenth of a second, which
are not in its journal yet. A replica set that elects another primary rolls back the writes that no majority has, and
with `w=1` in the URL, or an arbiter, the server acknowledges such writes. Whatever the URL says, there are three ways
to use a database:

    sent        Writes return when the primary has them: the data of a run, which are still on the local disk.
    confirmed   Writes return when the journals of a majority have them, with everything that was sent before.
    committed   Reads see only what a majority has.

A run is delivered once a confirmed write followed everything that was sent, and a committed read found all of it: if
another primary was elected in between, the read finds what was rolled back. See `Delivery`.
"""

from __future__ import annotations

from typing import Any

import bson
from pymongo import ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

__all__ = ["PATIENCE_S", "committed", "confirmed", "lacks_majority_reads", "sent"]

# How long a majority may take, unless `wtimeoutMS` in the URL says otherwise.
PATIENCE_S = 10.0
_BAD_VALUE, _UNAUTHORIZED, _NO_MAJORITY_READS = 2, 13, 148

_Database = Database[dict[str, Any]]


def sent(database: _Database) -> _Database:
    """Return a database whose writes return when the primary has them, or as many members as `w` in the URL says."""
    asked = {name: value for name, value in database.write_concern.document.items() if (name, value) != ("w", 0)}
    return _at_primary(database, WriteConcern(**{"w": 1, "wtimeout": _bound_ms(database, PATIENCE_S), **asked}))


def confirmed(database: _Database, collection: str, patience_s: float = PATIENCE_S) -> _Database:
    """Return a database whose writes return when the journals of a majority have them.

    The server is asked whether it has a journal: `--nojournal` and engines in memory have none, and reject `j`. With
    `fsync`, such a server writes its files instead, if it has any.

    `collection` must be one that the user may change. Writes raise WTimeoutError after `patience_s`, unless the URL
    sets `wtimeoutMS`.
    """
    sync = {"j": True} if _has_journal(database, collection) else {"fsync": True}
    return _at_primary(database, WriteConcern("majority", _bound_ms(database, patience_s), **sync))


def committed(database: _Database) -> _Database:
    """Return a database whose reads see only what a majority has; see `lacks_majority_reads`."""
    return database.with_options(read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("majority"))


def lacks_majority_reads(error: OperationFailure) -> bool:
    """Tell whether the server has no committed reads: engines in memory, and up to 4.4 if it was set to have none."""
    return error.code == _NO_MAJORITY_READS


def _at_primary(database: _Database, concern: WriteConcern) -> _Database:
    return database.with_options(
        read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("local"), write_concern=concern
    )


def _bound_ms(database: _Database, patience_s: float) -> int:
    return database.write_concern.document.get("wtimeout") or int(1000 * patience_s)


def _has_journal(database: _Database, collection: str) -> bool:
    documents: Collection[dict[str, Any]] = _at_primary(database, WriteConcern(1, j=True))[collection]
    try:
        documents.update_one({"_id": bson.ObjectId()}, {"$set": {"uid": ""}})  # there is no such document
    except OperationFailure as error:
        if error.code == _BAD_VALUE and "journal" in str(error):
            return False
        if error.code != _UNAUTHORIZED:
            raise
    return True
