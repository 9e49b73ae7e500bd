"""What commands print: tables that fit, colours on a terminal only, JSON, and nothing that a terminal would obey."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "Cell",
    "Column",
    "harmless",
    "is_terminal",
    "print_json",
    "print_row",
    "print_table",
    "print_text",
    "show_progress",
    "strict",
]

# What a terminal obeys (controls of ASCII and of Latin-1), what turns the order of a line round, what ends a line, and
# what is no character at all.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
_GAP, _LEAST = 2, 8


def harmless(text: str) -> str:
    r"""Return a text with all that a terminal would obey made visible: `\x1b` for the escape character."""
    return _HARMFUL.sub(lambda match: _SHORT.get(match[0]) or _escaped(ord(match[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_terminal() -> bool:
    """Tell whether what is printed goes to a terminal."""
    return sys.stdout.isatty()


# ---------------------------------------------------------------------- JSON


def strict(value: Any) -> Any:
    """Return a document as strict JSON can hold it; what is no finite number becomes a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a document as strict JSON, in ASCII."""
    indent = None if in_one_line else 2
    print(json.dumps(strict(value), indent=indent, allow_nan=False), flush=in_one_line)


# ---------------------------------------------------------------------- text and tables


@dataclasses.dataclass(frozen=True)
class Cell:
    """What stands in a table.

    Attributes:
        text: As it came; it is made harmless when it is printed.
        style: Colour on a terminal, as rich names it.
    """

    text: str
    style: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """How a column looks.

    Attributes:
        title: Its heading; none at all if no column of the table has one.
        is_number: Aligned right, and never cut: half a number is a wrong number.
        is_kept: Never cut, never left out.
    """

    title: str = ""
    is_number: bool = False
    is_kept: bool = False


def print_text(text: str, style: str = "") -> None:
    """Print one line, made harmless."""
    text = harmless(text)
    if style and is_terminal():
        _console().print(_styled(text, style), soft_wrap=True)
    else:
        print(text)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], indent: int = 0) -> list[int]:
    """Print a table; on a terminal cut to its width, and without the last columns where that is not enough.

    Returns:
        The widths of the columns, for `print_row`; 0 of those that were left out.
    """
    shown = [_harmless_row(row) for row in rows]
    titles = [harmless(column.title) for column in columns]
    widths = [
        max([_width(title), *(_width(row[i].text) for row in shown)]) if shown else _width(title)
        for i, title in enumerate(titles)
    ]
    left_out: list[int] = []
    if is_terminal():
        least = [_least(column, [row[i].text for row in shown]) for i, column in enumerate(columns)]
        widths, left_out = fit(widths, least, [c.is_kept for c in columns], _terminal_width() - indent)
    if any(titles):
        _print_row(columns, [Cell(title, "bold") for title in titles], widths, indent)
    for row in shown:
        _print_row(columns, row, widths, indent)
    if left_out:
        names = ", ".join(titles[i] for i in left_out)
        print_text(f"(no room for {names}: widen the terminal, or choose with --columns)", "dim")
    return widths


def print_row(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int]) -> list[int]:
    """Print one more row of a table, and return the widths, which grow where nothing must fit into a terminal."""
    row = _harmless_row(row)
    if not is_terminal():
        widths = [max(width, _width(cell.text)) for width, cell in zip(widths, row, strict=True)]
    _print_row(columns, row, widths, 0)
    sys.stdout.flush()
    return list(widths)


def _harmless_row(row: Sequence[Cell]) -> list[Cell]:
    return [Cell(harmless(cell.text), cell.style) for cell in row]


def _least(column: Column, texts: Sequence[str]) -> int:
    widest = max((_width(text) for text in texts), default=0)
    return widest if column.is_number or column.is_kept else min(widest, _LEAST)


def fit(widths: Sequence[int], least: Sequence[int], is_kept: Sequence[bool], room: int) -> tuple[list[int], list[int]]:
    """Return widths of columns that fit into `room`, and the columns that do not; these have width 0.

    The widest give first. What cannot give any more goes, from the right.

    Args:
        widths: What the columns would like.
        least: What they must have.
        is_kept: Which never go.
        room: Of the terminal.
    """
    widths = [min(width, max(room, low)) for width, low in zip(widths, least, strict=True)]
    left_out: list[int] = []
    while True:
        there = [i for i, width in enumerate(widths) if width and i not in left_out]
        excess = sum(widths[i] for i in there) + _GAP * (len(there) - 1) - room
        if excess <= 0:
            break
        can_give = [i for i in there if widths[i] > least[i]]
        if can_give:
            widest = max(can_give, key=lambda i: widths[i])
            others = [widths[i] for i in can_give if i != widest]
            step = max(1, widths[widest] - max([least[widest], *others]))
            widths[widest] -= min(step, excess, widths[widest] - least[widest])
            continue
        can_go = [i for i in there if not is_kept[i]]
        if not can_go:
            break
        left_out.append(can_go[-1])
    return [0 if i in left_out else width for i, width in enumerate(widths)], sorted(left_out)


def _print_row(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], indent: int) -> None:
    parts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        if width:
            text = _cut(cell.text, width)
            blank = " " * (width - _width(text))
            parts.append((blank + text if column.is_number else text + blank, cell.style))
    if not is_terminal():
        print((" " * indent + (" " * _GAP).join(text for text, _ in parts)).rstrip())
        return
    from rich.text import Text

    line = Text(" " * indent)
    for position, (text, style) in enumerate(parts):
        line.append(text if position == len(parts) - 1 else text + " " * _GAP, style)
    line.rstrip()
    _console().print(line, soft_wrap=True)


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


def _terminal_width() -> int:
    return max(20, shutil.get_terminal_size().columns)


@functools.cache
def _console() -> Any:
    from rich.console import Console

    # Nothing is read as markup, and no text is coloured for what it looks like.
    return Console(highlight=False, markup=False, emoji=False)


def _styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(text, style)


def show_progress(what: str, done: int, total: int) -> None:
    """Say on the terminal how far long work is; the line goes when it is done."""
    if not sys.stderr.isatty():
        return
    line = f"{harmless(what)}: {done:,} of {total:,}"
    sys.stderr.write("\r\x1b[K" if done >= total else f"\r\x1b[K{line}")
    sys.stderr.flush()
