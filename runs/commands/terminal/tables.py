"""Tables: fitted to a terminal, complete in pipes and files."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterable, Sequence

from sacristan.runs.commands.terminal.text import console, harmless, is_coloured, is_terminal, print_text

__all__ = ["Cell", "Column", "fit", "print_row", "print_table"]

_GAP, _LEAST = 2, 8


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table; printing makes its text harmless."""

    text: str
    style: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """Layout of a column.

    Attributes:
        title: Its heading; a table whose columns all lack one has no head.
        is_number: Whether to align it right and never cut it: half a number is a wrong number.
        is_kept: Whether to never cut or drop it.
        is_whole: Whether to drop it rather than cut it: half a time is a wrong time.
        is_spare: Whether to drop it before any cell is cut.
    """

    title: str = ""
    is_number: bool = False
    is_kept: bool = False
    is_whole: bool = False
    is_spare: bool = False


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], indent: int = 0, *, are_chosen: bool = False
) -> list[int]:
    """Print a table; on a terminal, drop spare columns and cut cells to fit, then drop the last columns.

    Returns the widths of the columns for `print_row`, 0 for a dropped one. `are_chosen` means that the command has
    `--columns`.
    """
    shown = [_harmless_row(row) for row in rows]
    titles = [harmless(column.title) for column in columns]
    texts = [[row[i].text for row in shown] for i in range(len(columns))]
    widths = [max(map(_width, [title, *of_column])) for title, of_column in zip(titles, texts, strict=True)]
    left_out: list[int] = []
    if is_terminal():
        room = max(20, shutil.get_terminal_size().columns) - indent
        widths, left_out = fit(columns, widths, list(map(_least, columns, texts)), room)
    head = [[Cell(title, "bold") for title in titles]] if any(titles) else []
    for row in (*head, *shown):
        _print_row(columns, row, widths, indent)
    if left_out:
        names = ", ".join(titles[i] for i in left_out)
        choice = ", or choose with --columns" if are_chosen else ""
        print_text(f"(no room for {names}: widen the terminal{choice})", "dim")
    return widths


def print_row(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int]) -> list[int]:
    """Print one more row of a table, with the widths that the last call returned.

    Returns the widths for the next row; outside a terminal they grow with long cells.
    """
    row = _harmless_row(row)
    if not is_terminal():
        widths = [max(width, _width(cell.text)) for width, cell in zip(widths, row, strict=True)]
    _print_row(columns, row, widths, 0)
    sys.stdout.flush()
    return list(widths)


def _harmless_row(row: Sequence[Cell]) -> list[Cell]:
    return [Cell(harmless(cell.text), cell.style) for cell in row]


def _least(column: Column, texts: Sequence[str]) -> int:
    widest = max(map(_width, texts), default=0)
    is_whole = column.is_number or column.is_kept or column.is_whole
    least = widest if is_whole else min(widest, _LEAST)
    return max(least, _width(harmless(column.title)))


def fit(
    columns: Sequence[Column], widths: Sequence[int], least: Sequence[int], room: int
) -> tuple[list[int], list[int]]:
    """Fit columns into a terminal: drop spare ones, shrink the widest, and drop the last ones if that is not enough.

    Returns the widths, 0 for dropped columns, and the indices of the dropped ones.
    """
    there = list(range(len(columns)))
    _drop(there, [i for i in there if columns[i].is_spare], widths, room)
    _drop(there, [i for i in there if not columns[i].is_kept], least, room)
    fitted = [width if i in there else 0 for i, width in enumerate(widths)]
    _shrink(fitted, least, there, room)
    return fitted, [i for i in range(len(widths)) if i not in there]


def _shrink(widths: list[int], least: Sequence[int], there: Sequence[int], room: int) -> None:
    while (excess := sum(widths) + _GAP * (len(there) - 1) - room) > 0:
        can_give = [i for i in there if widths[i] > least[i]]
        if not can_give:
            break
        widest = max(can_give, key=lambda i: widths[i])
        # Down to the next in width, and one by one from there.
        next_ = max([least[widest], *(widths[i] for i in can_give if i != widest)])
        widths[widest] -= min(max(1, widths[widest] - next_), excess)


def _drop(there: list[int], droppable: list[int], widths: Sequence[int], room: int) -> None:
    """Drop columns, the last one first, until the others fit."""
    while droppable and sum(widths[i] for i in there) + _GAP * (len(there) - 1) > room:
        there.remove(droppable.pop())


def _print_row(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], indent: int) -> None:
    parts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        if width:
            text = _cut(cell.text, width)
            blank = " " * (width - _width(text))
            parts.append((blank + text if column.is_number else text + blank, cell.style))
    if not is_coloured():
        print((" " * indent + (" " * _GAP).join(text for text, _ in parts)).rstrip())
        return
    from rich.text import Text

    line = Text(" " * indent)
    for position, (text, style) in enumerate(parts):
        line.append(text if position == len(parts) - 1 else text + " " * _GAP, style)
    line.rstrip()
    console().print(line, soft_wrap=True)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"
