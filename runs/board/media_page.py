"""Media of a run: series of images, histograms, tables and so on, a step at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.responses import Response

from sacristan.observers.media.point_clouds import read_header, read_points
from sacristan.runs.board.content_page import FRAMED, kind_of, medium_at
from sacristan.runs.board.medium_tables import TableView, table_page
from sacristan.runs.board.previews import read_text
from sacristan.runs.board.rendering import content_url
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.errors import StoreError
from sacristan.runs.query.texts import is_number, short_text
from sacristan.runs.stores.content import Content, Medium
from sacristan.runs.stores.run import Run

__all__ = ["ROUTES", "series_of_media"]

_MAX_SERIES, _MAX_STEPS = 200, 5_000
_MAX_DOCUMENT, _MAX_PAGE = 2**25, 1_000_000
_MAX_BINS = 512
# So many points of a cloud are drawn at most, out of so many.
_MAX_POINTS, _MAX_CLOUD = 100_000, 4_000_000
_FARTHEST = 1e30


def series_of_media(media: Sequence[Medium]) -> list[dict[str, Any]]:
    """Group media, in the order of logging, into series.

    Each series has its name, its kind, its newest entries (number and step) and the `count` of all entries.
    """
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, medium in enumerate(media):
        entry = number, short_text(medium.step, 20)
        found.setdefault((str(medium.name), str(medium.kind)), []).append(entry)
    return [
        {"name": name, "kind": kind, "entries": entries[-_MAX_STEPS:], "count": len(entries)}
        for (name, kind), entries in list(found.items())[:_MAX_SERIES]
    ]


def _medium(visit: Visit) -> Response:
    """Answer with one medium, as a part of a page."""
    run = visit.store.get(visit.asked("run"))
    number = visit.asked("number")
    medium = medium_at(run, number)
    try:
        values = _shown(visit, run, medium, number)
    except (StoreError, RecursionError) as error:
        values = {"how": "problem", "problem": str(error)}
    caption = medium.meta.get("caption") if isinstance(medium.meta, Mapping) else None
    return visit.render("medium.html", run=run, medium=medium, number=number, caption=caption, **values)


def _shown(visit: Visit, run: Run, medium: Medium, number: str) -> dict[str, Any]:
    """Return how a medium is shown, and its content."""
    mime = kind_of(str(medium.content.name), str(medium.content_type))
    if medium.kind == "histogram":
        return {"how": "histogram", **_histogram(_document(medium))}
    if medium.kind == "table":
        return {"how": "table", **_table(visit, run, medium, number)}
    if medium.kind == "point_cloud":
        return {"how": "points", **_cloud(medium)}
    if medium.kind == "video" and mime == "image/png":
        return {"how": "animation"}
    if mime in FRAMED:
        return {"how": "frame"}
    if mime.partition("/")[0] in ("image", "audio", "video"):
        return {"how": mime.partition("/")[0]}
    text, is_cut = read_text(medium.content)
    return {"how": "download"} if text is None else {"how": "text", "text": text, "is_cut": is_cut}


def _document(medium: Medium) -> Any:
    """Return the content of a table or a histogram, unless it is too large for a page."""
    with medium.content.open() as stream:
        if len(stream.read(_MAX_DOCUMENT + 1)) > _MAX_DOCUMENT:
            raise StoreError(f"{medium.name!r} is larger than {_MAX_DOCUMENT} bytes; download it")
    return medium.document()


def _histogram(document: Any) -> dict[str, Any]:
    """Return the bars of a histogram in a box of 100 by 100, and its numbers."""
    document = document if isinstance(document, dict) else {}
    edges, counts = document.get("edges") or [0], document.get("counts") or []
    are_lists = isinstance(edges, list) and isinstance(counts, list)
    if not are_lists or len(edges) != len(counts) + 1 or not all(map(_is_finite, [*edges, *counts])):
        raise StoreError("this is not a histogram: expected edges, and one count less")
    # By halves, as the greatest floats are further apart than the greatest float.
    halves = [edge / 2 for edge in edges[: _MAX_BINS + 1]]
    width = (halves[-1] - halves[0] or 1.0) if halves else 1.0
    most = max(counts, default=0) or 1
    bars = [
        {
            "x": f"{100 * (halves[index] - halves[0]) / width:.4f}",
            "width": f"{100 * (halves[index + 1] - halves[index]) / width:.4f}",
            "y": f"{100 - 100 * count / most:.3f}",
            "height": f"{100 * count / most:.3f}",
            "title": f"{edges[index]:.5g} to {edges[index + 1]:.5g}: {count:g}",
        }
        for index, count in enumerate(counts[:_MAX_BINS])
    ]
    numbers = {name: document.get(name) for name in ("num", "min", "max", "mean", "nan", "inf", "-inf")}
    return {"bars": bars, "numbers": {name: value for name, value in numbers.items() if value}}


def _cloud(medium: Medium) -> dict[str, Any]:
    """Return the number of points, whether they have colours, and the stride between drawn points."""
    try:
        with medium.content.open() as stream:
            header = read_header(stream)
    except (ValueError, OSError) as error:
        raise StoreError(f"this is not a point cloud: {error}") from error
    if header.num_points > _MAX_CLOUD:
        raise StoreError(f"{medium.name!r} has {header.num_points} points, and a page takes {_MAX_CLOUD}; download it")
    stride = max(1, -(-header.num_points // _MAX_POINTS))
    return {"num_points": header.num_points, "has_colors": header.has_colors, "stride": stride}


def _points(visit: Visit) -> Response:
    """Answer with the drawn points: all x, all y and all z as 32-bit floats, then the colours of each."""
    medium = medium_at(visit.store.get(visit.asked("run")), visit.asked("number"))
    stride = _cloud(medium)["stride"]
    try:
        with medium.content.open() as stream:
            points, colors = read_points(stream, stride)
    except (ValueError, OSError) as error:
        raise StoreError(f"this is not a point cloud: {error}") from error
    # What comes near the greatest number of 32 bits has no place in a plot either.
    good = (np.abs(points) < _FARTHEST).all(axis=1)
    body = points[good].T.astype("<f4").tobytes() + (b"" if colors is None else colors[good].tobytes())
    return Response(body, media_type="application/octet-stream")


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _table(visit: Visit, run: Run, medium: Medium, number: str) -> dict[str, Any]:
    texts = {name: visit.asked(name) for name in ("find", "group", "sort")}
    view = TableView(**texts, page=visit.number("page", 1, 1, _MAX_PAGE))
    page = table_page(_document(medium), view)
    rows = [[_cell(run, number, medium.cell(cell)) for cell in row] for row in page.rows]
    return {"table": page, "table_view": view, "rows": rows}


def _cell(run: Run, number: str, cell: Any) -> dict[str, Any]:
    if isinstance(cell, Content):
        return {"image": content_url(run, "media", number, cell.name.rpartition("/")[2])}
    return {"value": cell}


ROUTES = [page("/medium", _medium), page("/medium/points", _points)]
