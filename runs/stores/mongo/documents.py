"""Small documents of a database: entries of the runs' documents, and collections of saved views and of reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pymongo.errors import DuplicateKeyError

from sacristan.observers.mongo.aliases import alias_document
from sacristan.observers.mongo.layout import make_alias_indexes
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.contract import NOTED, Change, Documents
from sacristan.runs.stores.mongo.database import Document, MongoDatabase
from sacristan.runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS
from sacristan.runs.stores.mongo.rows import from_bson, note_in, tags_in
from sacristan.runs.stores.run import notes_in

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["MongoDocuments"]

# How often to try again when others write at the same time.
_MOST_TRIES = 100


class MongoDocuments(Documents):
    """Collections of the documents that people share, and in the document of a run its notes, and `notified.EVENT`."""

    def __init__(self, mongo: MongoDatabase) -> None:
        self._mongo = mongo

    def read(self, kind: str, owner: Any = "", name: str | None = None) -> dict[str, Any]:
        with self._mongo.errors():
            if kind == "aliases":
                moves = list(self._mongo.collections.artifact_aliases.find({"artifact": owner}))
                by_key = {str(move.pop("_id")).partition(":")[2]: move for move in moves}
                return {key: move for key, move in by_key.items() if name in (None, key)}
            if kind not in _OWNED:
                wanted = {} if name is None else {"_id": name}
                found = self._mongo.collections.named(kind).find(wanted)
                return {str(view.pop("_id")): from_bson(view) for view in found}
            assert name is not None
            if kind == "messages":
                noted = self._mongo.runs.find_one({"_id": owner}, {f"notified.{name}": 1}) or {}
                return {} if (message := _message(noted, name)) is None else {name: message}
            return {name: _notes_in(self._noted(owner))}

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        with self._mongo.errors():
            for _ in range(_MOST_TRIES):
                changed = (
                    _OWNED[kind](self, owner, name, change) if kind in _OWNED else self._change_own(kind, name, change)
                )
                if changed is not None:
                    return changed
        what = f"the notes of run {owner} are" if kind == "notes" else f"{name!r} of the {kind} is"
        raise StoreError(f"{what} changed by others all the time; try again")

    # Each of the following returns None if another process wrote first.

    def _change_own(self, kind: str, name: str, change: Change) -> bool | None:
        documents = self._mongo.confirmed.named(kind)
        now = documents.find_one({"_id": name})
        before = now and {key: value for key, value in now.items() if key != "_id"}
        new = change(before)
        if new == before:
            return False
        if new is None:
            return bool(documents.delete_one(now or {}).deleted_count) or None
        if now is None:
            return _inserted(documents, {"_id": name, **new}) or None
        return bool(documents.replace_one(now, {"_id": name, **new}).matched_count) or None

    def _add_move(self, owner: Any, name: str, change: Change) -> bool | None:
        aliases = self._mongo.confirmed.artifact_aliases
        now = aliases.find_one({"_id": f"{owner}:{name}"})
        new = change(now and from_bson(now))
        make_alias_indexes(self._mongo.confirmed)
        return _inserted(aliases, alias_document(owner, name, new or {})) or None

    def _change_message(self, owner: Any, name: str, change: Change) -> bool | None:
        runs, field = self._mongo.confirmed.runs, f"notified.{name}"
        found = runs.find_one({"_id": owner}, {field: 1})
        now = _message(found or {}, name)
        new = change(now)
        if found is None or new is None or new == now:
            return False
        same = {"$exists": False} if now is None else {"$eq": now["state"]}
        return bool(runs.update_one({"_id": owner, field: same}, {"$set": {field: new["state"]}}).matched_count) or None

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
        found = self._mongo.confirmed.runs.find_one({"_id": key}, wanted)
        if found is None:
            raise StoreError(f"run {key} is no longer in {self._mongo.where}")
        return found


_OWNED = {
    "messages": MongoDocuments._change_message,
    "notes": MongoDocuments._change_notes,
    "aliases": MongoDocuments._add_move,
}


def _notes_in(document: Mapping[str, Any]) -> dict[str, Any]:
    notes = {name: from_bson(document[name]) for name in NOTED if name in document}
    both = {"tags": from_bson(tags_in(document)), "note": from_bson(note_in(document))}
    return notes | {name: value for name, value in both.items() if value is not None}


def _message(document: Mapping[str, Any], event: str) -> dict[str, Any] | None:
    state = (document.get("notified") or {}).get(event)
    return None if state is None else {"state": state}


def _inserted(collection: Collection[Document], document: Document) -> bool:
    """Insert a document; return False if another process was first."""
    try:
        collection.insert_one(document)
    except DuplicateKeyError:
        return False
    return True
