"""What a page of runs shows, as its URL says it."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from runs.stores.store import NEWEST_FIRST

__all__ = ["RunsView"]

_SIZES = (50, 200)


@dataclasses.dataclass(frozen=True)
class RunsView:
    """Which runs, in what order, with what columns; a page of it is a URL that others can open.

    Attributes:
        where: Conditions, as `runs ls --where` takes them.
        sort: A field, with a `-` ahead for the greatest first.
        columns: Fields; empty for the usual ones.
        size: How many runs a page has.
    """

    where: tuple[str, ...] = ()
    sort: str = NEWEST_FIRST
    columns: tuple[str, ...] = ()
    size: int = _SIZES[0]

    @classmethod
    def of(cls, query: QueryParams) -> RunsView:
        """Return what a URL asks for; what makes no sense is as if it were not there."""
        columns = [name.strip() for text in query.getlist("columns") for name in text.split(",")]
        return cls(
            where=tuple(filter(str.strip, query.getlist("where"))),
            sort=query.get("sort") or NEWEST_FIRST,
            columns=tuple(dict.fromkeys(filter(None, columns))),
        )

    def url(self, **changes: Any) -> str:
        """Return the URL of this view, or of one that is otherwise."""
        view = dataclasses.replace(self, **changes)
        pairs = [("where", one) for one in view.where]
        if view.sort != NEWEST_FIRST:
            pairs.append(("sort", view.sort))
        if view.columns:
            pairs.append(("columns", ",".join(view.columns)))
        return "/runs" + (f"?{urlencode(pairs)}" if pairs else "")
