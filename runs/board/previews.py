"""Previews of files: the beginning of a text, a table, a picture, highlighted code."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os
from typing import Any

from markupsafe import Markup, escape

from sacristan.runs.board.content_page import FRAMED, kind_of
from sacristan.runs.errors import StoreError
from sacristan.runs.query.strict_json import strict
from sacristan.runs.stores.content import Content

__all__ = ["Preview", "highlighted", "preview_of", "read_text", "size_of"]

_MAX_BYTES = 2**19
_MAX_ROWS, _MAX_CELLS = 500, 60
_MAX_HIGHLIGHTED = 2**18
# The beginning of a file identifies its version.
_MAX_DIGESTED = 2**22


@dataclasses.dataclass(frozen=True)
class Preview:
    """Preview of a file.

    Attributes:
        how: image, audio, video, frame, table, text, or empty for a file that can only be downloaded.
        rows: Rows of a table, the first with the names of the columns.
        is_cut: Whether there is more of it.
        version: For a file that the browser loads itself: changes with the content.
    """

    how: str
    text: str = ""
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    is_cut: bool = False
    problem: str = ""
    version: str = ""


def size_of(content: Content) -> int | None:
    """Return the length of a file in bytes without reading it; None if it cannot be opened."""
    try:
        with content.open() as stream:
            return stream.seek(0, os.SEEK_END) or stream.tell()
    except (StoreError, OSError):
        return None


def _version(content: Content) -> str:
    try:
        with content.open() as stream:
            return hashlib.blake2b(stream.read(_MAX_DIGESTED), digest_size=8).hexdigest()
    except (StoreError, OSError):
        return ""


def preview_of(content: Content) -> Preview:
    """Return the preview of a file; only the shown part is read.

    The kind of preview depends on the file's name; a binary file with the name of a text has none.
    """
    mime = kind_of(content.name)
    if mime in FRAMED:
        return Preview("frame", version=_version(content))
    if mime.partition("/")[0] in ("image", "audio", "video"):
        return Preview(mime.partition("/")[0], version=_version(content))
    try:
        text, is_cut = read_text(content)
    except StoreError as error:
        return Preview("", problem=str(error))
    if text is None:
        return Preview("")
    if content.name.lower().endswith((".csv", ".tsv")):
        return _table(text, is_cut, "\t" if content.name.lower().endswith(".tsv") else ",")
    if content.name.lower().endswith(".json") and not is_cut:
        text = _indented(text)
    return Preview("text", text, is_cut=is_cut)


def read_text(content: Content) -> tuple[str | None, bool]:
    """Return the beginning of a text, and whether there is more; None if it is not text."""
    with content.open() as stream:
        try:
            data = stream.read(_MAX_BYTES + 1)
        except OSError as error:
            raise StoreError(f"{content.name!r} cannot be read ({error.strerror})") from error
    if b"\0" in data[:8192]:
        return None, False
    return data[:_MAX_BYTES].decode("utf-8", "replace"), len(data) > _MAX_BYTES


def _indented(text: str) -> str:
    try:
        return json.dumps(strict(json.loads(text)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _table(text: str, is_cut: bool, delimiter: str) -> Preview:
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text), delimiter=delimiter):
            if len(rows) > _MAX_ROWS:
                return Preview("table", rows=rows, is_cut=True)
            rows.append(row[:_MAX_CELLS])
    except csv.Error:
        return Preview("text", text, is_cut=is_cut)
    return Preview("table", rows=rows, is_cut=is_cut)


def highlighted(content: Content) -> Markup:
    """Return source code as HTML, highlighted if pygments is installed; long code is cut and has no colours."""
    text, is_cut = read_text(content)
    if text is None:
        return Markup('<span class="dim">This is not a text file.</span>')
    more = "\n… (the rest is not shown; download the file)" if is_cut else ""
    found = _in_colours(content.name, text) if len(text) <= _MAX_HIGHLIGHTED else None
    return (found if found is not None else escape(text)) + more


def _in_colours(name: str, text: str) -> Markup | None:
    try:
        import pygments
        from pygments.formatters.html import HtmlFormatter
        from pygments.lexers import get_lexer_for_filename
        from pygments.util import ClassNotFound
    except ImportError:
        return None
    try:
        lexer: Any = get_lexer_for_filename(name.rpartition("/")[2], stripnl=False)
    except ClassNotFound:
        return None
    return Markup(pygments.highlight(text, lexer, HtmlFormatter(nowrap=True)))  # escapes
