"""State of the page of runs, as its URL encodes it."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from runs.errors import FilterError
from runs.query.filters import Filter, Words, condition, parse_words
from runs.query.names import full_name, short_name
from runs.stores.store import NEWEST_FIRST

__all__ = ["RunsView"]

_PAGE_SIZE = 50
# A URL may ask for no more.
_MAX_COLUMNS, _MAX_CONDITIONS, _MAX_PAGE = 60, 30, 100_000
_CONDITION = re.compile(r"[=<>~]|\s(not\s+)?in\s*[\[(]", re.I)


@dataclasses.dataclass(frozen=True)
class RunsView:
    """Runs to show, their order and columns: a URL that others can open.

    Attributes:
        where: Conditions, as `runs ls --where` takes them.
        words: Words that texts of the runs contain.
        sort: A field, with a `-` ahead for the greatest first.
        columns: Fields, as people type them; empty for the usual ones.
        group: A field; runs of equal values are shown as one row. Empty for single runs.
        page: Number of the page, from 1 on.
        size: How many runs a page has.
    """

    where: tuple[str, ...] = ()
    words: str = ""
    sort: str = NEWEST_FIRST
    columns: tuple[str, ...] = ()
    group: str = ""
    page: int = 1
    size: int = _PAGE_SIZE

    @classmethod
    def of(cls, query: QueryParams) -> RunsView:
        """Return what a URL asks for; what makes no sense is as if it were not there."""
        page, names = query.get("page", "1"), query.getlist("column")
        return cls(
            where=tuple(dict.fromkeys(filter(str.strip, query.getlist("where"))))[:_MAX_CONDITIONS],
            words=" ".join(query.get("words", "").split()),
            sort=query.get("sort") or NEWEST_FIRST,
            columns=tuple(dict.fromkeys(short_name(full_name(name)) for name in names if name))[:_MAX_COLUMNS],
            group=query.get("group", "").strip(),
            page=min(max(int(page), 1), _MAX_PAGE) if page.isascii() and page.isdecimal() and len(page) < 9 else 1,
        )

    def adding(self, text: str) -> RunsView:
        """Return the view with what somebody typed: a condition, or words to look for."""
        text = text.strip()
        if not text:
            return self
        if _CONDITION.search(text):
            return dataclasses.replace(self, where=tuple(dict.fromkeys((*self.where, text))), page=1)
        return dataclasses.replace(self, words=text, page=1)

    def filter(self) -> list[Filter]:
        """Return the filter of the runs.

        Raises:
            FilterError: If a condition makes no sense.
        """
        words: list[Filter] = [Words(self.words)] if self.words else []
        return [*map(parse_words, self.where), *words]

    def without(self, index: int) -> str:
        """Return the URL without one of the conditions."""
        return self.url(where=self.where[:index] + self.where[index + 1 :], page=1)

    def sorted_by(self, name: str) -> str:
        """Return the URL of a click on the head of a column: the greatest first, and then the least."""
        return self.url(sort=name if self.sort == f"-{name}" else f"-{name}", page=1)

    def direction(self, name: str) -> str:
        """Return how a column is sorted, as `aria-sort` has it; empty if it is not."""
        if full_name(self.sort.removeprefix("-")) != full_name(name):
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"

    def of_group(self, label: str, value: Any) -> str:
        """Return the URL of the runs of one group; empty if its label says not exactly which they are."""
        try:
            is_exact = parse_words(label) == condition(self.group, "==", value)
        except FilterError:
            return ""
        return self.url(where=(*self.where, label), group="", page=1) if is_exact else ""

    def url(self, path: str = "/runs", **changes: Any) -> str:
        """Return the URL of this view, or of one with changes."""
        view = dataclasses.replace(self, **changes)
        pairs = [("where", one) for one in view.where]
        pairs += [(name, getattr(view, name)) for name in ("words", "group") if getattr(view, name)]
        if view.sort != NEWEST_FIRST:
            pairs.append(("sort", view.sort))
        pairs += [("column", name) for name in view.columns]
        if view.page > 1:
            pairs.append(("page", str(view.page)))
        return path + (f"?{urlencode(pairs)}" if pairs else "")
