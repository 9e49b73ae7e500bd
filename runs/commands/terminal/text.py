"""Everything that commands print: lines, JSON, progress and tables; coloured on terminals only, and fitted to them."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.query.texts import strict

if TYPE_CHECKING:
    from rich.console import Console

# Controls of ASCII and of Latin-1, characters that reverse or end a line, and code points that are no characters.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
# A sequence that moves the cursor, names the window, or asks the terminal a question; and one that only colours.
_SEQUENCE = re.compile(
    "(?P<colour>\x1b\\[[0-9;:]*m)|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)"
    "|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\\\`-~]"
)
_UNFINISHED = re.compile("\x1b(?:\\[[0-?]*[ -/]*|[\\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)$")
_MAX_HELD = 4096
_GAP, _LEAST = 2, 8


def harmless(text: str) -> str:
    r"""Return a text with all control characters made visible: `\x1b` for the escape character."""
    return _HARMFUL.sub(lambda match: _SHORT.get(match[0]) or _escaped(ord(match[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """Tell whether stdout may be coloured; see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(text: str, style: str = "") -> None:
    """Print one line, made harmless, in a style of rich such as `bold red`."""
    text = harmless(text)
    if style and is_coloured():
        from rich.text import Text

        console().print(Text(text, style), soft_wrap=True)
    else:
        print(text)


def print_unified(text: str) -> None:
    """Print a unified diff with coloured additions and removals."""
    for line in text.splitlines():
        print_text(f"  {line}", _DIFF_STYLES.get(line[:1], ""))


def print_sources(diffs: Mapping[str, str]) -> None:
    """Print how sources differ, from a unified diff by name."""
    for name, text in diffs.items():
        print_text(f"source {name}", "bold")
        print_unified(text)


def print_to_stderr(text: str) -> None:
    """Print one line to stderr, made harmless; it is lost if stderr cannot be written."""
    with contextlib.suppress(OSError):  # a full disk, which nothing else could report either
        print(harmless(text), file=sys.stderr)


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a document as strict JSON in ASCII; one in one line is flushed, for readers of a stream."""
    indent = None if in_one_line else 2
    print(json.dumps(strict(value), indent=indent, allow_nan=False), flush=in_one_line)


class Progress:
    """A line on the terminal that shows the progress of long work and disappears when it is done."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Update the line; work that is finished at once never shows one."""
        if not sys.stderr.isatty() or (done >= total and not self._is_shown):
            return
        self._is_shown = done < total
        line = f"{harmless(what)}: {done:,} of {total:,}" if self._is_shown else ""
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


@functools.cache
def console() -> Console:
    """Return the console that prints in colours; it does not interpret markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


class OutputFilter:
    """Makes output harmless for a terminal, piece by piece."""

    def __init__(self, *, colours: bool = True) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_coloured = False

    def take(self, data: bytes, *, is_last: bool = False) -> str:
        """Filter the next bytes; an unfinished sequence at their end is held back for the next call."""
        text = self._held + self._decoder.decode(data, is_last)
        self._held = ""
        match = _UNFINISHED.search(text)
        if match and not is_last and len(match[0]) < _MAX_HELD:
            text, self._held = text[: match.start()], match[0]
        return self._clean(text) + ("\x1b[0m" if is_last and self._is_coloured else "")

    def _clean(self, text: str) -> str:
        parts = []
        end = 0
        for match in _SEQUENCE.finditer(text):
            parts.append(_visible(text[end : match.start()]))
            end = match.end()
            if match["colour"] and self._colours:
                self._is_coloured = True
                parts.append(match[0])
        return "".join([*parts, _visible(text[end:])])


def _visible(text: str) -> str:
    # A line's end, a tab, and what progress bars go back with.
    return "".join(part if part in "\n\t\r" else harmless(part) for part in re.split("([\n\t\r])", text) if part)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table; printing makes its text harmless."""

    text: str
    style: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """Layout of a column."""

    title: str = ""  # its heading; a table whose columns all lack one has no head
    is_number: bool = False  # whether to align it right and never cut it: half a number is a wrong number
    is_kept: bool = False  # whether to never cut or drop it
    is_whole: bool = False  # whether to drop it rather than cut it: half a time is a wrong time
    is_spare: bool = False  # whether to drop it before any cell is cut


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
    """Print one more row of a table with the widths of the last call; return those for the next row."""
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
