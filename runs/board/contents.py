"""Files of runs: as bytes, shown where that is safe and otherwise downloaded; and their previews."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import mimetypes
import os
import re
import weakref
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import quote

from markupsafe import Markup, escape
from starlette.responses import Response, StreamingResponse

from sacristan.runs.board.security import sandboxed
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.errors import RunNotFoundError, StoreError
from sacristan.runs.query.texts import strict
from sacristan.runs.stores import Content, Medium, Run

_PIECE = 2**18
_RANGE = re.compile(r"bytes=(?:(?=\d)|(?=-\d))(\d{0,15})-(\d{0,15})")
# Kinds of files of a run; those of media are known by their number.
KINDS = ("artifact", "checkpoint", "source", "resource")
# What a browser shows by itself; a page that a run wrote, in a sandbox.
FRAMED = frozenset(("text/html", "image/svg+xml"))
SHOWN = FRAMED | {
    "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp",
    "audio/mpeg", "audio/ogg", "audio/wav", "audio/x-wav", "audio/flac", "audio/mp4", "audio/webm", "audio/aac",
    "video/mp4", "video/webm", "video/ogg",
}  # fmt: skip
_MAX_BYTES = 2**19
_MAX_ROWS, _MAX_CELLS = 500, 60
_MAX_HIGHLIGHTED = 2**18
# The beginning of a file identifies its version.
_MAX_DIGESTED = 2**22


def kind_of(name: str, declared: str | None = None) -> str:
    """Return the MIME type to serve a file as; `application/octet-stream` for kinds that browsers must not show."""
    mime = (declared or mimetypes.guess_type(name)[0] or "").partition(";")[0].strip().lower()
    return mime if mime in SHOWN else "application/octet-stream"


def _content(visit: Visit) -> Response:
    run = visit.store.get(visit.asked("run"))
    kind, name = visit.asked("kind"), visit.asked("name")
    if kind == "media":
        content, declared = _of_medium(run, name, visit.asked("image"))
    else:
        content, declared = _of_run(run, kind, name), None
    return file_response(visit, content, declared)


def file_response(visit: Visit, content: Content, declared: str | None = None) -> Response:
    """Return a file as a sandboxed response, or the range of it that a media player requests."""
    stream = content.open()
    mime = kind_of(content.name, declared)
    # Of what is packed on its way, a range would be another one. Sounds and videos are asked for as they are.
    is_packed = "gzip" in visit.request.headers.get("accept-encoding", "")
    part = None if is_packed else _RANGE.fullmatch(visit.request.headers.get("range", "").strip())
    response = _part(stream, part, mime) if part else StreamingResponse(_pieces(stream), media_type=mime)
    response.headers["accept-ranges"] = "bytes"
    weakref.finalize(response, stream.close)  # of an answer that nobody waits for, no piece is asked for
    if visit.asked("download") or mime not in SHOWN:
        last = content.name.rpartition("/")[2] or "file"
        response.headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(last, safe='')}"
    return sandboxed(response)


def _of_run(run: Run, kind: str, name: str) -> Content:
    content: Content | None = getattr(run, f"{kind}s").get(name) if kind in KINDS else None
    if content is None:
        raise RunNotFoundError(f"run {run.id} has no {kind} {name!r}")
    if kind in ("source", "resource"):
        for _ in content.pieces():
            pass  # a damaged one raises before any of it is sent
    return content


def _of_medium(run: Run, number: str, image: str) -> tuple[Content, str | None]:
    """Return the file of the medium with this number, or an image in its table, and the MIME type."""
    medium = medium_at(run, number)
    if not image:
        return medium.content, str(medium.content_type)
    if image not in medium.images:
        raise RunNotFoundError(f"{medium.name!r} of run {run.id} has no image {image!r}")
    return medium.images[image], None


def medium_at(run: Run, number: str) -> Medium:
    """Return a medium by its number, a text, counted from 0 in the order of logging."""
    media = run.media
    if not number.isascii() or not number.isdecimal() or len(number) > 9 or int(number) >= len(media):
        raise RunNotFoundError(f"run {run.id} has {len(media)} media, and none of number {number!r}")
    return media[int(number)]


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while piece := stream.read(_PIECE):
            yield piece


def _part(stream: BinaryIO, part: re.Match[str], mime: str) -> Response:
    size = stream.seek(0, os.SEEK_END) or stream.tell()
    first, last = (int(text) if text else None for text in part.groups())
    if first is None:
        first, last = max(0, size - (last or 0)), None
    end = size if last is None else min(last + 1, size)
    if first >= end:
        stream.close()
        return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
    headers = {"content-range": f"bytes {first}-{end - 1}/{size}", "content-length": str(end - first)}
    stream.seek(first)
    return StreamingResponse(_pieces_of(stream, end - first), 206, headers, mime)


def _pieces_of(stream: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    with stream:
        while num_bytes and (piece := stream.read(min(_PIECE, num_bytes))):
            num_bytes -= len(piece)
            yield piece


ROUTES = [page("/content", _content)]


@dataclasses.dataclass(frozen=True)
class Preview:
    """Preview of a file."""

    how: str  # image, audio, video, frame, table, text, or empty for a file that can only be downloaded
    text: str = ""
    # Rows of a table, the first with the names of the columns.
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    is_cut: bool = False
    problem: str = ""
    version: str = ""  # for a file that the browser loads itself: changes with the content


def _version(content: Content) -> str:
    try:
        with content.open() as stream:
            return hashlib.blake2b(stream.read(_MAX_DIGESTED), digest_size=8).hexdigest()
    except (StoreError, OSError):
        return ""


def preview_of(content: Content) -> Preview:
    """Return the preview of a file, whose kind depends on its name; only the shown part is read."""
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
        delimiter = "\t" if content.name.lower().endswith(".tsv") else ","
        rows: list[list[str]] = []
        try:
            for row in csv.reader(io.StringIO(text), delimiter=delimiter):
                if len(rows) > _MAX_ROWS:
                    return Preview("table", rows=rows, is_cut=True)
                rows.append(row[:_MAX_CELLS])
        except csv.Error:
            return Preview("text", text, is_cut=is_cut)
        return Preview("table", rows=rows, is_cut=is_cut)
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


def highlighted(content: Content) -> Markup:
    """Return source code as HTML, highlighted if pygments is installed; long code is cut and has no colours."""
    text, is_cut = read_text(content)
    if text is None:
        return Markup('<span class="dim">This is not a text file.</span>')
    more = "\n… (the rest is not shown; download the file)" if is_cut else ""
    code = _in_colours(content.name, text) if len(text) <= _MAX_HIGHLIGHTED else None
    return (code if code is not None else escape(text)) + more


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
