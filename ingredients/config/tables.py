"""Tables for the terminal; plain text where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["print_table"]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print `rows` under `columns`, numbers to the right; no line is cut where stdout is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for position, column in enumerate(columns):
        numeric = all(isinstance(row[position], int | float) or _is_number(row[position]) for row in rows)
        table.add_column(column, justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{cell:,}" if type(cell) is int else str(cell)) for cell in row))
    console = (
        Console(highlight=False)
        if getattr(sys.stdout, "isatty", bool)()
        else Console(highlight=False, width=200, no_color=True)
    )
    console.print(table)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
