"""Options that choose runs by what they hold, for commands that take more than one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runs.query.filters import Filter
    from runs.stores.run import Run
    from runs.stores.store import Store

__all__ = ["add_conditions", "add_selection", "conditions_in", "find_chosen", "has_conditions", "limit_in", "names_in"]


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag` and `--sweep`."""
    help = "a condition, such as 'lr<1e-3', 'lr in (0.1, 0.2)' or 'lr=1 or lr=2'; all of several must hold"
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--tag", action="append", default=[], help="only runs with this tag; may be repeated")
    parser.add_argument("--sweep", metavar="ID", help="only trials of this sweep")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag`, `--sweep` and `--sort`."""
    add_conditions(parser)
    parser.add_argument("--sort", default="-start", metavar="FIELD", help="-FIELD for the greatest first (-start)")


def conditions_in(arguments: argparse.Namespace) -> list[Filter]:
    """Return the filter that `--where`, `--tag` and `--sweep` stand for.

    Raises:
        FilterError: If a condition makes no sense.
    """
    from runs.query.filters import Condition, parse_words
    from runs.query.names import SWEEP

    tags = (Condition(f"tags.{tag}", "==", True) for tag in arguments.tag)
    sweep = [] if arguments.sweep is None else [Condition(SWEEP, "==", arguments.sweep)]
    return [*map(parse_words, arguments.where), *tags, *sweep]


def has_conditions(arguments: argparse.Namespace) -> bool:
    """Tell whether `--where`, `--tag` or `--sweep` chooses runs."""
    return bool(arguments.where or arguments.tag or arguments.sweep)


def find_chosen(
    store: Store, arguments: argparse.Namespace, columns: Sequence[str], limit: int | None = None
) -> list[Run]:
    """Return the runs that the options mean; see `runs.stores.store.Store.find`.

    Raises:
        FilterError: If they make no sense.
    """
    return store.find(conditions_in(arguments), getattr(arguments, "sort", "-start"), limit, columns)


def limit_in(arguments: argparse.Namespace, default: int = 0) -> int | None:
    """Return how many runs `--limit` asks for at most; None for all.

    Raises:
        FilterError: If it is below 0.
    """
    from runs.errors import FilterError

    limit = default if arguments.limit is None else arguments.limit
    if limit < 0:
        raise FilterError(f"--limit: got {limit}, expected the number of runs, or 0 for all")
    return limit or None


def names_in(*given: str) -> tuple[str, ...]:
    """Return the names of options that may hold several, with commas between."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())
