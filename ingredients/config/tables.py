"""Results of commands: tables for the terminal, plain text if stdout is no terminal, and pictures beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sacristan.ingredients.errors import MissingDependencyError

__all__ = ["print_drawn", "print_table"]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table with numbers aligned to the right; lines are not truncated if stdout is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for position, column in enumerate(columns):
        is_numeric = _are_numbers([row[position] for row in rows])
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{cell:,}" if type(cell) is int else str(cell)) for cell in row))
    is_terminal = getattr(sys.stdout, "isatty", bool)()
    options: dict[str, Any] = {} if is_terminal else {"width": 200, "no_color": True}
    Console(highlight=False, **options).print(table)


def _are_numbers(cells: Sequence[Any]) -> bool:
    return bool(cells) and all(map(_is_number, cells))


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def print_drawn(draw: Callable[[Any, Path], None], result: Any, path: Path) -> None:
    """Draw the result of a command, already printed, to a file; print its path, or why drawing failed."""
    try:
        draw(result, path)
    except (MissingDependencyError, OSError) as error:
        print(f"no picture: {error}")
    else:
        print(f"drawn in {path}")
