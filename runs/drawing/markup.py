"""HTML of plain data. Everything that is no `Markup` is escaped: what a run wrote is untrusted."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

__all__ = ["Markup", "element", "escape", "table"]

# Controls, what turns the order of a line round, and what is no character: HTML cannot hold some, and people are led
# astray by others. Line ends and tabs stay.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)


class Markup(str):
    """HTML that is whole and safe; pages of Jinja2 take it as it is."""

    def __html__(self) -> str:
        return str(self)


def escape(value: object) -> Markup:
    """Return a value as HTML that shows its text; `Markup` stays as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_HARMFUL.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element, its children and the values of its attributes escaped.

    Args:
        name: Of the element.
        children: Texts, and `Markup`.
        attributes: An underscore at the end is left out (`class_`), others become hyphens; None leaves one out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{''.join(map(escape, children))}</{name}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> Markup:
    """Return a table.

    Args:
        head: Headings; of none, there is no head.
        rows: Cells, texts or `Markup`.
        numbers: Columns that are aligned to the right.
    """

    def cells(kind: str, row: Sequence[object], **scope: str) -> list[Markup]:
        right = {"style": "text-align:right;padding:2px 8px", **scope}
        left = {"style": "text-align:left;padding:2px 8px", **scope}
        return [element(kind, cell, **(right if place in numbers else left)) for place, cell in enumerate(row)]

    body = element("tbody", *(element("tr", *cells("td", row)) for row in rows))
    first = [element("thead", element("tr", *cells("th", head, scope="col")))] if head else []
    return element("table", *first, body)
