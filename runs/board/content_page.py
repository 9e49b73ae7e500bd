"""Files of runs as bytes: shown where that is safe, otherwise downloaded."""

from __future__ import annotations

import mimetypes
import os
import re
import weakref
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from sacristan.runs.board.security import sandboxed
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.errors import RunNotFoundError
from sacristan.runs.stores.content import Content, Medium
from sacristan.runs.stores.run import Run

__all__ = ["FRAMED", "KINDS", "ROUTES", "SHOWN", "file_response", "kind_of", "medium_at"]

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


def kind_of(name: str, declared: str | None = None) -> str:
    """Return the MIME type that a file is served as; `application/octet-stream` for kinds that browsers must not show.

    The MIME type in the record takes precedence over the name.
    """
    found = (declared or mimetypes.guess_type(name)[0] or "").partition(";")[0].strip().lower()
    return found if found in SHOWN else "application/octet-stream"


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
    files = {
        "artifact": lambda: run.artifacts,
        "checkpoint": lambda: run.checkpoints,
        "source": lambda: run.sources,
        "resource": lambda: run.resources,
    }
    found = files[kind]().get(name) if kind in files else None
    if found is None:
        raise RunNotFoundError(f"run {run.id} has no {kind} {name!r}")
    if kind in ("source", "resource"):
        for _ in found.pieces():
            pass  # a damaged one is told before any of it is sent
    return found


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
    """Return a part of a file as a response."""
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
