"""Sources of two runs, line by line."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping
from typing import NamedTuple

from sacristan.runs.errors import StoreError
from sacristan.runs.stores.content import Content

__all__ = ["Line", "changed_sources", "side_by_side"]

# Bytes of a source that are read, lines that are compared (the time grows with their square), and lines around changes.
_MAX_BYTES, _MAX_LINES, _CONTEXT = 2**19, 3_000, 4
_MAX_SOURCES = 1_000


class Line(NamedTuple):
    """A line of two texts side by side.

    Attributes:
        kind: `same`, `changed`, `added`, `removed`, or `gap` for omitted lines.
        left, right: Number and text on either side; None if that side has no line.
    """

    kind: str
    left: tuple[int, str] | None = None
    right: tuple[int, str] | None = None


def changed_sources(first: Mapping[str, Content], second: Mapping[str, Content]) -> dict[str, str]:
    """Return `changed`, `added` or `removed` for each source that differs, among the first thousand names."""
    found = {}
    for name in sorted({*first, *second})[:_MAX_SOURCES]:
        if name not in second:
            found[name] = "removed"
        elif name not in first:
            found[name] = "added"
        elif not _are_equal(first[name], second[name]):
            found[name] = "changed"
    return found


def _are_equal(first: Content, second: Content) -> bool:
    if first.md5 and second.md5:
        return first.md5 == second.md5
    try:
        return first.sha256() == second.sha256()
    except StoreError:
        return False


def side_by_side(first: Content | None, second: Content | None) -> list[Line]:
    """Compare two texts line by line, None for a missing one; most of the equal lines are omitted.

    A text that is too long raises StoreError, as one that cannot be read.
    """
    left, right = _lines(first), _lines(second)
    found: list[Line] = []
    for group in difflib.SequenceMatcher(None, left, right).get_grouped_opcodes(_CONTEXT):
        if found:
            found.append(Line("gap"))
        for kind, a, b, c, d in group:
            pairs = itertools.zip_longest(enumerate(left[a:b], a + 1), enumerate(right[c:d], c + 1))
            found += [Line("same" if kind == "equal" else _change(*pair), *pair) for pair in pairs]
    return found


def _change(left: object, right: object) -> str:
    return "added" if left is None else "removed" if right is None else "changed"


def _lines(content: Content | None) -> list[str]:
    if content is None:
        return []
    with content.open() as stream:
        data = stream.read(_MAX_BYTES + 1)
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) > _MAX_BYTES or len(lines) > _MAX_LINES:
        raise StoreError(f"{content.name!r} is too long to compare here; see: sacristan diff")
    return lines
