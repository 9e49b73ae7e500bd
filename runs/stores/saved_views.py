"""Saved views of the runs of a store, private or shared."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sacristan.runs.errors import ChangedError, FilterError

if TYPE_CHECKING:
    from sacristan.runs.stores.contract import Documents

__all__ = ["SavedView", "SavedViews"]

_MAX_NAME, _MAX_QUERY, _MAX_VIEWS = 80, 20_000, 500


@dataclasses.dataclass(frozen=True)
class SavedView:
    """A view with a name.

    Attributes:
        query: The query of its URL on the board.
        owner: The user whose private view it is; empty for a shared one.
        default_since: When it became the default one, in ISO 8601; empty if it is not. The last one counts.
    """

    name: str
    query: str
    owner: str = ""
    default_since: str = ""

    @property
    def key(self) -> str:
        """Its identity in the store: one view for each owner and name."""
        return hashlib.blake2b(json.dumps([self.owner, self.name]).encode(), digest_size=16).hexdigest()

    @property
    def version(self) -> str:
        """A digest that changes with the view."""
        return hashlib.blake2b(json.dumps(dataclasses.astuple(self)).encode(), digest_size=12).hexdigest()

    @classmethod
    def of(cls, document: Any) -> SavedView | None:
        """Return the view of a document; None if it is damaged."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(document, Mapping) or not all(isinstance(document.get(name), str) for name in names):
            return None
        return cls(**{name: document[name] for name in names})


class SavedViews:
    """The named views of a store.

    Every method raises StoreError if the folder or the database cannot be read or written.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def visible(self, user: str) -> list[SavedView]:
        """Return the shared views and those of a user, by name."""
        found = [
            view
            for view in map(SavedView.of, self._documents.read("views").values())
            if view and view.owner in ("", user)
        ]
        return sorted(found, key=lambda view: (view.name.casefold(), view.owner))[:_MAX_VIEWS]

    def default(self, user: str) -> SavedView | None:
        """Return the view that opens first: the user's own default, else the shared one, else None."""
        chosen = [view for view in self.visible(user) if view.default_since]
        return max(chosen, key=lambda view: (view.owner != "", view.default_since), default=None)

    def save(self, view: SavedView, seen: str = "") -> None:
        """Save a view in place of the version `seen`; empty for a new view.

        ChangedError means that another version is stored under its name; it stays.
        """
        if not 0 < len(view.name) <= _MAX_NAME or not view.name.isprintable() or view.name != view.name.strip():
            raise FilterError(f"got the name {view.name[:100]!r}, expected 1 to {_MAX_NAME} printable characters")
        if len(view.query) > _MAX_QUERY:
            raise FilterError(f"got a view of {len(view.query)} characters, expected {_MAX_QUERY} at most")
        self._write(view, dataclasses.asdict(view), seen)

    def remove(self, view: SavedView) -> None:
        """Remove a view; ChangedError means that it has changed since it was read, and stays."""
        self._write(view, None, view.version)

    def _write(self, view: SavedView, document: dict[str, Any] | None, seen: str) -> None:
        def written(now: Any) -> dict[str, Any] | None:
            _check(view, now, seen)
            return document

        self._documents.change("views", view.key, written)


def _check(view: SavedView, now: Any, seen: str) -> None:
    present = SavedView.of(now)
    if now is None and not seen:
        return
    if present is None and now is not None:
        return  # a damaged one is replaced
    if present is None:
        raise ChangedError(f"the view {view.name!r} has been removed; save it under its name again")
    if present.version != seen:
        raise ChangedError(f"there is a view {view.name!r} already, perhaps saved by others; open it first")
