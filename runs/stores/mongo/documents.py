"""Small documents of a database: entries of the runs' documents, and documents of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from sacristan.observers.mongo.aliases import alias_document
from sacristan.observers.mongo.layout import make_alias_indexes, make_sweep_indexes
from sacristan.runs.errors import RemovedError, StoreError
from sacristan.runs.query import mappings_in
from sacristan.runs.stores import NOTED, Change, Documents
from sacristan.runs.stores.mongo.database import Document, MongoDatabase
from sacristan.runs.stores.mongo.queries import OMNIBOARD_NOTES, OMNIBOARD_TAGS, from_bson, note_in, tags_in
from sacristan.runs.stores.run import notes_in

if TYPE_CHECKING:
    from pymongo.collection import Collection as Collection_

# How often to try again when others write at the same time.
_MOST_TRIES = 100
_STATUS = ("status", "stop_time", "fail_trace", "format", "lease")
# The entry of a document that `count` counts, which nobody else reads or changes.
_COUNTED = "next"
# Kinds of which a write may be lost: it comes again some seconds later.
_UNCONFIRMED = ("sweep_agents",)


class MongoDocuments(Documents):
    """The documents of a database.

    Notes, `notified.EVENT`, the status and the list `claims` are entries of a run's document; aliases are those of
    `sacristan.observers.mongo.aliases`. The others have documents
    of their own in the collection of their kind, whose `_id` is OWNER/NAME; a sweep's also has `next`, which `count`
    counts.
    """

    def __init__(self, mongo: MongoDatabase) -> None:
        self._mongo = mongo

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
        with self._mongo.errors():
            if kind in _OWNED:
                owned = self._owned(kind, owner, names, entries)
                return {name: one for name, one in owned.items() if one is not None}
            start = f"{owner}/" if owner else ""
            wanted: list[Document] = []
            if names is not None:
                wanted.append({"_id": {"$in": [f"{start}{name}" for name in names]}})
            if after is not None or (owner and names is None):
                wanted.append({"_id": {"$gt": f"{start}{after or ''}", **({"$lt": f"{owner}0"} if owner else {})}})
            query: Document = {name: {"$in": list(values)} for name, values in (where or {}).items()}
            query |= {"$or": wanted} if len(wanted) > 1 else wanted[0] if wanted else {}
            documents = self._mongo.collections.sent.named(
                kind
            )  # at the primary, which has what others have just written
            found = documents.find(query, None if entries is None else dict.fromkeys(("_id", *entries), 1))
            named = {str(document.pop("_id")).removeprefix(start): _shown(kind, document) for document in found}
        return {name: named[name] for name in sorted(named)}

    def _owned(
        self, kind: str, key: Any, names: Collection[str] | None, entries: Collection[str] | None
    ) -> dict[str, Any]:
        if kind == "notes":
            return {"": _notes_in(self._noted(key))}
        if kind == "aliases":
            wanted = {"artifact": key} if names is None else {"_id": {"$in": [f"{key}:{name}" for name in names]}}
            shown = None if entries is None else dict.fromkeys(("_id", *entries), 1)
            moves = list(self._mongo.collections.artifact_aliases.find(wanted, shown))
            return {str(move.pop("_id")).partition(":")[2]: move for move in moves}
        fields = dict.fromkeys(_STATUS if kind == "status" else ("notified", "claims"), 1)
        run = self._mongo.runs.find_one({"_id": key}, fields)
        if kind == "messages":
            return {name: _message(run or {}, name) for name in names or ()}
        if run is None:
            raise RemovedError(f"run {key} is no longer in {self._mongo.where}")
        if kind == "status":
            return {"": _status_in(run)}
        claims = {str(number): claim for number, claim in enumerate(mappings_in(run.get("claims")), 1)}
        return claims if names is None else {name: claims[name] for name in names if name in claims}

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        with self._mongo.errors():
            for _ in range(_MOST_TRIES):
                changed = (
                    _OWNED[kind](self, owner, name, change)
                    if kind in _OWNED
                    else self._change_own(kind, f"{owner}/{name}" if owner else name, change)
                )
                if changed is not None:
                    return changed
        what = f"the notes of run {owner} are" if kind == "notes" else f"{name!r} of the {kind} is"
        raise StoreError(f"{what} changed by others all the time; try again")

    def count(self, kind: str, name: str, start: int, limit: float) -> int | None:
        if start >= limit:
            return None
        following = {"$add": [{"$max": [{"$ifNull": [f"${_COUNTED}", 0]}, start]}, 1]}
        below = {"$expr": {"$lt": [{"$ifNull": [f"${_COUNTED}", 0]}, limit]}}
        with self._mongo.errors():
            # Not confirmed: of two processes that have the same number, after a rollback, one claims it.
            counted = self._mongo.collections.sent.named(kind).find_one_and_update(
                {"_id": name, **below},
                [{"$set": {_COUNTED: following}}],
                projection={_COUNTED: 1},
                return_document=ReturnDocument.AFTER,
            )
        return None if counted is None else int(counted[_COUNTED]) - 1

    # Each of the following returns None if another process wrote first.

    def _change_own(self, kind: str, id: str, change: Change) -> bool | None:
        is_beat = kind in _UNCONFIRMED
        collections = self._mongo.collections
        documents = (collections.sent if is_beat else collections.confirmed).named(kind)
        stored = documents.find_one({"_id": id})
        now = None if stored is None else _shown(kind, {name: one for name, one in stored.items() if name != "_id"})
        new = change(now)
        if new == now:
            if now is not None and not is_beat:  # what an earlier try has written may not be confirmed yet
                documents.update_one({"_id": id}, {"$set": {"_id": id}})
            return False
        if now is None:
            if kind in ("sweeps", "sweep_trials") and "/" not in id:  # a new sweep, or its study
                make_sweep_indexes(collections)
            return _inserted(documents, {"_id": id, **(new or {})}) or None
        assert stored is not None
        same = {"_id": id, **{name: {"$eq": one} for name, one in stored.items() if name not in ("_id", _COUNTED)}}
        if new is None:
            return bool(documents.delete_one(same).deleted_count) or None
        same |= {name: {"$exists": False} for name in new if name not in stored}
        return bool(documents.update_one(same, _difference(now, new)).matched_count) or None

    def _add_move(self, owner: Any, name: str, change: Change) -> bool | None:
        aliases = self._mongo.confirmed.artifact_aliases
        now = aliases.find_one({"_id": f"{owner}:{name}"})
        new = change(now and from_bson(now))
        make_alias_indexes(self._mongo.confirmed)
        return _inserted(aliases, alias_document(owner, name, new or {})) or None

    def _change_message(self, owner: Any, name: str, change: Change) -> bool | None:
        runs, field = self._mongo.confirmed.runs, f"notified.{name}"
        document = runs.find_one({"_id": owner}, {field: 1})
        now = _message(document or {}, name)
        new = change(now)
        if document is None or new is None or new == now:
            return False
        same = {"$exists": False} if now is None else {"$eq": now["state"]}
        return bool(runs.update_one({"_id": owner, field: same}, {"$set": {field: new["state"]}}).matched_count) or None

    def _change_status(self, owner: Any, _: str, change: Change) -> bool | None:
        runs = self._mongo.confirmed.runs
        stored = runs.find_one({"_id": owner}, dict.fromkeys(_STATUS, 1)) or {}
        now = _status_in(stored)
        new = dict(change(now) or {})
        if new == now:
            return False
        same = {"_id": owner, **{name: {"$eq": stored.get(name)} for name in ("status", "lease")}}
        changed = {name: value for name, value in new.items() if value != now.get(name)}
        if changed.get("stop_time") is not None:
            changed["stop_time"] = datetime.fromisoformat(changed["stop_time"])
        return bool(runs.update_one(same, {"$set": changed}).matched_count) or None

    def _change_claim(self, owner: Any, name: str, change: Change) -> bool | None:
        """Change an entry of a run's list of claims: append it, take it back as the last one, or note its process."""
        runs, number = self._mongo.confirmed.runs, int(name)
        claims = list(mappings_in((runs.find_one({"_id": owner}, {"claims": 1}) or {}).get("claims")))
        now = claims[number - 1] if number <= len(claims) else None
        new = change(now)
        if new == now:
            return False
        size = {"claims": {"$size": len(claims)}} if claims else {"claims.0": {"$exists": False}}
        entry = f"claims.{number - 1}"
        if now is None:
            if number != len(claims) + 1:
                return False
            changed = runs.update_one({"_id": owner, **size}, {"$push": {"claims": new}})
        elif new is None:
            if number != len(claims):
                return False
            changed = runs.update_one({"_id": owner, **size, entry: {"$eq": now}}, {"$pop": {"claims": 1}})
        else:
            changed = runs.update_one({"_id": owner, entry: {"$eq": now}}, {"$set": {entry: new}})
        return bool(changed.modified_count) or None

    def _change_notes(self, owner: Any, _: str, change: Change) -> bool | None:
        runs, known = self._mongo.confirmed.runs, self._noted(owner)
        now = _notes_in(known)
        before, after = notes_in(now), change(now) or {}
        notes = {name: value for name, value in after.items() if value != before.get(name)}
        if not notes:
            return False
        same = {name: {"$eq": known.get(name)} for name in notes}  # false if others wrote since
        if not runs.update_one({"_id": owner, **same}, {"$set": notes}).matched_count:
            return None
        if "note" in notes:
            has_note = {"_id": owner, OMNIBOARD_NOTES: {"$type": "string"}}
            runs.update_one(has_note, {"$set": {OMNIBOARD_NOTES: notes["note"]}})
        if removed := [tag for tag in now.get("tags") or () if tag not in notes.get("tags", now["tags"])]:
            has_tags = {"_id": owner, OMNIBOARD_TAGS: {"$type": "array"}}
            runs.update_one(has_tags, {"$pull": {OMNIBOARD_TAGS: {"$in": removed}}})
        return True

    def _noted(self, key: Any) -> Document:
        """Return the entries of a run's document that people write, from the primary, as changes depend on them."""
        wanted = dict.fromkeys((*NOTED, OMNIBOARD_TAGS, OMNIBOARD_NOTES), 1)
        document = self._mongo.confirmed.runs.find_one({"_id": key}, wanted)
        if document is None:
            raise RemovedError(f"run {key} is no longer in {self._mongo.where}")
        return document


_OWNED = {
    "messages": MongoDocuments._change_message,
    "notes": MongoDocuments._change_notes,
    "status": MongoDocuments._change_status,
    "claims": MongoDocuments._change_claim,
    "aliases": MongoDocuments._add_move,
}


def _shown(kind: str, document: Document) -> Document:
    """Return a document of its own as it is read; those that people share may be of other programs."""
    document.pop(_COUNTED, None)
    return document if kind.startswith("sweep") else from_bson(document)


def _difference(now: Mapping[str, Any], new: Mapping[str, Any]) -> Document:
    """Return the update that makes one document of another; lists that grew have their new items appended."""
    update: Document = {}
    for name, value in new.items():
        before = now.get(name)
        if isinstance(before, list) and isinstance(value, list) and before and value[: len(before)] == before:
            if value[len(before) :]:
                update.setdefault("$push", {})[name] = {"$each": value[len(before) :]}
        elif name not in now or value != before:
            update.setdefault("$set", {})[name] = value
    if gone := dict.fromkeys(now.keys() - new.keys(), ""):
        update["$unset"] = gone
    return update


def _status_in(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_bson(document[name]) for name in _STATUS if name in document}


def _notes_in(document: Mapping[str, Any]) -> dict[str, Any]:
    notes = {name: from_bson(document[name]) for name in NOTED if name in document}
    both = {"tags": from_bson(tags_in(document)), "note": from_bson(note_in(document))}
    return notes | {name: value for name, value in both.items() if value is not None}


def _message(document: Mapping[str, Any], event: str) -> dict[str, Any] | None:
    state = (document.get("notified") or {}).get(event)
    return None if state is None else {"state": state}


def _inserted(collection: Collection_[Document], document: Document) -> bool:
    """Insert a document; return False if another process was first."""
    try:
        collection.insert_one(document)
    except DuplicateKeyError:
        return False
    return True
