"""Media of a run: series of images, histograms, tables and so on, a step at a time."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.responses import Response

from sacristan.observers.media.point_clouds import read_header, read_points
from sacristan.runs.board.contents import FRAMED, kind_of, medium_at, read_text
from sacristan.runs.board.rendering import content_url
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.drawing.curve import ticks
from sacristan.runs.errors import StoreError
from sacristan.runs.query.texts import is_number, short_text
from sacristan.runs.stores import Content, Medium, Run

SIZE = 100
_MAX_COLUMNS, _MAX_TEXT, _MAX_PARTS = 60, 400, 20
_CONDITION = re.compile(r"(.+?)\s*(<=|>=|!=|=|<|>)\s*(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip

Row = Sequence[Any]
_MAX_SERIES, _MAX_STEPS = 200, 5_000
_MAX_DOCUMENT, _MAX_PAGE = 2**25, 1_000_000
_MAX_BINS = 512
# So many points of a cloud are drawn at most, out of so many.
_MAX_POINTS, _MAX_CLOUD = 100_000, 4_000_000
_FARTHEST = 1e30


@dataclasses.dataclass(frozen=True)
class TableView:
    """The part of a table to show, and its order."""

    find: str = ""  # words, and conditions such as `p<0.5`, with commas between; a row must meet all of them
    group: str = ""  # column whose values define groups: a row for each, with the means of the columns of numbers
    sort: str = ""  # column, with a `-` before it for descending order
    page: int = 1


@dataclasses.dataclass(frozen=True)
class TablePage:
    """A page of a table: its cells as recorded, and the numbers of rows (or groups) that were found on all pages."""

    columns: list[str]
    rows: list[Row]
    all_columns: list[str]
    num_found: int
    num_rows: int
    page: int
    num_pages: int


def table_page(document: Any, view: TableView) -> TablePage:
    """Return the page of a table that a view shows; columns that the table lacks are ignored."""
    rows = document.get("rows") if isinstance(document, dict) else None
    names = document.get("columns") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not isinstance(names, list) or not all(isinstance(row, list) for row in rows):
        raise StoreError("this is not a table: expected columns, and rows of cells")
    columns = [str(name) for name in names]
    matching: Sequence[Row] = _found(columns, rows, view.find)
    shown = columns
    if view.group in columns:
        shown, matching = _grouped(columns, matching, columns.index(view.group))
    name = view.sort.removeprefix("-")
    if name in shown:
        matching = _sorted(matching, shown.index(name), is_down=view.sort.startswith("-"))
    num_pages = max(1, -(-len(matching) // SIZE))
    page = min(max(view.page, 1), num_pages)
    part = [row[:_MAX_COLUMNS] for row in matching[(page - 1) * SIZE : page * SIZE]]
    return TablePage(shown[:_MAX_COLUMNS], part, columns[:_MAX_COLUMNS], len(matching), len(rows), page, num_pages)


def number_of(cell: Any) -> float | None:
    """Return a cell as a number; None for anything else and for NaN."""
    try:
        value = float(cell["$number"]) if isinstance(cell, Mapping) and "$number" in cell else cell
        return float(value) if is_number(value) and not math.isnan(value) else None
    except (OverflowError, ValueError, TypeError):
        return None


def text_of(cell: Any) -> str:
    """Return a cell as the text that searches match; an image has no text."""
    if isinstance(cell, Mapping):
        return str(cell.get("$number", ""))
    return "" if cell is None else str(cell)


# ---------------------------------------------------------------------- rows


def _found(columns: Sequence[str], rows: Sequence[Row], text: str) -> Sequence[Row]:
    for part in [part.strip() for part in text[:_MAX_TEXT].split(",")][:_MAX_PARTS]:
        match = _CONDITION.fullmatch(part)
        if match and match[1] in columns:
            meets = _condition(match[2], match[3])
            column = columns.index(match[1])
            rows = [row for row in rows if column < len(row) and meets(row[column])]
        elif part:
            words = part.lower().split()
            rows = [row for row in rows if _has_words(row, words)]
    return rows


def _has_words(row: Row, words: Sequence[str]) -> bool:
    text = "\n".join(map(text_of, row)).lower()
    return all(word in text for word in words)


def _condition(name: str, text: str) -> Callable[[Any], bool]:
    """Return the test of a cell: numeric if the text is a number, otherwise textual."""
    compare = _OPERATORS[name]
    try:
        number = float(text)
    except ValueError:
        return lambda cell: compare(text_of(cell), text)

    def meets(cell: Any) -> bool:
        value = number_of(cell)
        return name == "!=" if value is None else compare(value, number)

    return meets


def _sorted(rows: Sequence[Row], column: int, *, is_down: bool) -> list[Row]:
    """Sort rows by a column: numbers before texts in either order, rows without a value last."""

    def cell(row: Row) -> Any:
        return row[column] if column < len(row) else None

    numbers = [(number, row) for row in rows if (number := number_of(cell(row))) is not None]
    others = [(text_of(cell(row)), row) for row in rows if number_of(cell(row)) is None]
    texts = [pair for pair in others if isinstance(cell(pair[1]), str)]
    without = [row for _, row in others if not isinstance(cell(row), str)]
    first = operator.itemgetter(0)
    ordered = [*sorted(numbers, key=first, reverse=is_down), *sorted(texts, key=first, reverse=is_down)]
    return [row for _, row in ordered] + without


def _grouped(columns: Sequence[str], rows: Sequence[Row], column: int) -> tuple[list[str], list[Row]]:
    """Return a row for each value of a column: the value, the number of its rows, and the means of its numbers."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        cell = row[column] if column < len(row) else None
        groups.setdefault((isinstance(cell, str), text_of(cell)), []).append(row)
    others = [number for number in range(min(len(columns), _MAX_COLUMNS)) if number != column]
    means = {number: [_mean(members, number) for members in groups.values()] for number in others}
    shown = [number for number in others if any(mean is not None for mean in means[number])]
    head = [columns[column], "rows", *(f"mean {columns[number]}" for number in shown)]
    values = [members[0][column] if column < len(members[0]) else None for members in groups.values()]
    counts = [len(members) for members in groups.values()]
    return head, list(zip(values, counts, *(means[number] for number in shown), strict=True))


def _mean(rows: Sequence[Row], column: int) -> float | None:
    numbers = [number for row in rows if column < len(row) and (number := number_of(row[column])) is not None]
    finite = [number / len(numbers) for number in numbers if math.isfinite(number)]
    return sum(finite) * len(numbers) / len(finite) if finite else None


def series_of_media(media: Sequence[Medium]) -> list[dict[str, Any]]:
    """Group media into series: name, kind, newest entries (number and step), and the `count` of all."""
    by_series: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, medium in enumerate(media):
        entry = number, short_text(medium.step, 20)
        by_series.setdefault((str(medium.name), str(medium.kind)), []).append(entry)
    return [
        {"name": name, "kind": kind, "entries": entries[-_MAX_STEPS:], "count": len(entries)}
        for (name, kind), entries in list(by_series.items())[:_MAX_SERIES]
    ]


def _medium(visit: Visit) -> Response:
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
    """Return the bars of a histogram in a box of 100 by 100, the ticks of its axes, and its numbers."""
    document = document if isinstance(document, dict) else {}
    edges, counts = document.get("edges") or [0], document.get("counts") or []
    are_lists = isinstance(edges, list) and isinstance(counts, list)
    is_finite = are_lists and all(is_number(value) and math.isfinite(value) for value in [*edges, *counts])
    if not is_finite or len(edges) != len(counts) + 1:
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
    axes = {
        "across": [
            (f"{100 * (value / 2 - halves[0]) / width:.4f}", text) for value, text in _ticks(2 * halves[0], width)
        ],
        "down": [(f"{100 - 100 * value / most:.4f}", text) for value, text in _ticks(0.0, most / 2)],
    }
    return {"bars": bars, "axes": axes, "numbers": {name: value for name, value in numbers.items() if value}}


def _ticks(low: float, half: float) -> list[tuple[float, str]]:
    """Return about four ticks of an axis of twice the length `half`; none where that is no float."""
    length = 2.0 * half
    return ticks(low, low + length, 4) if math.isfinite(low + length) and low + length > low else []


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
