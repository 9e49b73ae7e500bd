"""Tables that a run logged; the server searches, groups, sorts and paginates them."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sacristan.runs.errors import StoreError
from sacristan.runs.query.texts import is_number

__all__ = ["TablePage", "TableView", "table_page"]

SIZE = 100
_MAX_COLUMNS, _MAX_TEXT, _MAX_PARTS = 60, 400, 20
_CONDITION = re.compile(r"(.+?)\s*(<=|>=|!=|=|<|>)\s*(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip

Row = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class TableView:
    """The part of a table to show, and its order.

    Attributes:
        find: Words, and conditions such as `p<0.5`, with commas between; a row must meet all of them.
        group: Column whose values define groups: a row for each, with the means of the columns of numbers.
        sort: Column, with a `-` before it for descending order.
        page: Number of the page, from 1.
    """

    find: str = ""
    group: str = ""
    sort: str = ""
    page: int = 1


@dataclasses.dataclass(frozen=True)
class TablePage:
    """A page of a table.

    Attributes:
        rows: Its cells as recorded.
        all_columns: Names of the columns of the whole table.
        num_found: Number of rows, or of groups, on all pages.
        num_rows: Number of rows of the table.
        num_pages: Number of pages, at least 1.
    """

    columns: list[str]
    rows: list[Row]
    all_columns: list[str]
    num_found: int
    num_rows: int
    page: int
    num_pages: int


def table_page(document: Any, view: TableView) -> TablePage:
    """Return the page of a table that a view shows.

    Columns that the table lacks are ignored. A document that is not a table raises StoreError.
    """
    rows = document.get("rows") if isinstance(document, dict) else None
    names = document.get("columns") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not isinstance(names, list) or not all(isinstance(row, list) for row in rows):
        raise StoreError("this is not a table: expected columns, and rows of cells")
    columns = [str(name) for name in names]
    found: Sequence[Row] = _found(columns, rows, view.find)
    shown = columns
    if view.group in columns:
        shown, found = _grouped(columns, found, columns.index(view.group))
    name = view.sort.removeprefix("-")
    if name in shown:
        found = _sorted(found, shown.index(name), is_down=view.sort.startswith("-"))
    num_pages = max(1, -(-len(found) // SIZE))
    page = min(max(view.page, 1), num_pages)
    part = [row[:_MAX_COLUMNS] for row in found[(page - 1) * SIZE : page * SIZE]]
    return TablePage(shown[:_MAX_COLUMNS], part, columns[:_MAX_COLUMNS], len(found), len(rows), page, num_pages)


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
            place = columns.index(match[1])
            rows = [row for row in rows if place < len(row) and meets(row[place])]
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


def _sorted(rows: Sequence[Row], place: int, *, is_down: bool) -> list[Row]:
    """Sort rows by a column: numbers before texts in either order, rows without a value last."""

    def cell(row: Row) -> Any:
        return row[place] if place < len(row) else None

    numbers = [(number, row) for row in rows if (number := number_of(cell(row))) is not None]
    others = [(text_of(cell(row)), row) for row in rows if number_of(cell(row)) is None]
    texts = [pair for pair in others if isinstance(cell(pair[1]), str)]
    without = [row for _, row in others if not isinstance(cell(row), str)]
    first = operator.itemgetter(0)
    ordered = [*sorted(numbers, key=first, reverse=is_down), *sorted(texts, key=first, reverse=is_down)]
    return [row for _, row in ordered] + without


def _grouped(columns: Sequence[str], rows: Sequence[Row], place: int) -> tuple[list[str], list[Row]]:
    """Return a row for each value of a column: the value, the number of its rows, and the means of its numbers."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        cell = row[place] if place < len(row) else None
        groups.setdefault((isinstance(cell, str), text_of(cell)), []).append(row)
    others = [number for number in range(min(len(columns), _MAX_COLUMNS)) if number != place]
    means = {number: [_mean(members, number) for members in groups.values()] for number in others}
    shown = [number for number in others if any(mean is not None for mean in means[number])]
    head = [columns[place], "rows", *(f"mean {columns[number]}" for number in shown)]
    values = [members[0][place] if place < len(members[0]) else None for members in groups.values()]
    counts = [len(members) for members in groups.values()]
    return head, list(zip(values, counts, *(means[number] for number in shown), strict=True))


def _mean(rows: Sequence[Row], place: int) -> float | None:
    numbers = [number for row in rows if place < len(row) and (number := number_of(row[place])) is not None]
    finite = [number / len(numbers) for number in numbers if math.isfinite(number)]
    return sum(finite) * len(numbers) / len(finite) if finite else None
