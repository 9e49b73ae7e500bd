"""Options that choose runs by what they hold, for commands that take more than one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runs.stores.selection import Selection

__all__ = ["add_conditions", "add_selection", "names_in", "selection_of"]


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add `--where` and `--tag`."""
    help = "a condition, such as 'optimizer.lr<1e-3'; may be repeated"
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--tag", action="append", default=[], help="only runs with this tag; may be repeated")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag` and `--sort`."""
    add_conditions(parser)
    parser.add_argument("--sort", default="-start", metavar="FIELD", help="-FIELD for the greatest first (-start)")


def selection_of(arguments: argparse.Namespace, columns: Sequence[str], limit: int | None = None) -> Selection:
    """Return which runs the options mean.

    Raises:
        FilterError: If they make no sense.
    """
    from runs.stores.selection import Selection, conditions

    sort = getattr(arguments, "sort", "-start")
    return Selection(conditions(arguments.where, arguments.tag), sort, limit, columns)


def names_in(*given: str) -> tuple[str, ...]:
    """Return the names of options that may hold several, with commas between."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())
