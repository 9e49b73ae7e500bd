"""Curves as SVG, files and text; and HTML: all but `Markup` is escaped, as the texts of runs are untrusted."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

__all__ = ["Markup", "element", "escape", "harmless", "table"]

# Controls, characters that reverse the order of a line, and code points that are no characters: HTML cannot hold some,
# and others mislead people. Line ends and tabs stay.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)


class Markup(str):
    """HTML that is complete and safe; Jinja2 inserts it without escaping."""

    def __html__(self) -> str:
        return str(self)


def escape(value: object) -> Markup:
    """Return HTML that shows the text of a value; `Markup` is unchanged, and harmful characters become U+FFFD."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(harmless(str(value))))


def harmless(text: str) -> str:
    """Replace characters that HTML cannot contain or that mislead people by U+FFFD."""
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", text)


def element(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element, with its children and the values of its attributes escaped.

    In attribute names, a trailing underscore is dropped (`class_`), and others become hyphens. Attributes that are None
    are omitted.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{''.join(map(escape, children))}</{name}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> Markup:
    """Return a table with inline styles; `numbers` are columns to align right."""

    def cells(kind: str, row: Sequence[object], **scope: str) -> list[Markup]:
        right = {"style": "text-align:right;padding:2px 8px", **scope}
        left = {"style": "text-align:left;padding:2px 8px", **scope}
        return [element(kind, cell, **(right if column in numbers else left)) for column, cell in enumerate(row)]

    body = element("tbody", *(element("tr", *cells("td", row)) for row in rows))
    first = [element("thead", element("tr", *cells("th", head, scope="col")))] if head else []
    return element("table", *first, body)
