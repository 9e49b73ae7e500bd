"""Options that choose runs by what they hold, for commands that take more than one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runs.query.filters import Filter
    from runs.stores.run import Run
    from runs.stores.store import Store

__all__ = [
    "add_conditions",
    "add_direction",
    "add_selection",
    "conditions_in",
    "find_chosen",
    "find_named_or_chosen",
    "has_conditions",
    "limit_in",
    "names_in",
]


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag` and `--sweep`."""
    help = (
        "a condition, such as 'lr<1e-3', 'lr in (0.1, 0.2)' or 'lr=1 and seed=2 or lr=2'; a run must match all of them"
    )
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--tag", action="append", default=[], help="only runs with this tag; may be repeated")
    parser.add_argument("--sweep", metavar="ID", help="only trials of this sweep")


def add_direction(parser: argparse.ArgumentParser, help: str) -> None:
    """Add `--mode`, and `--max` and `--min`, which are short for it."""
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--mode", choices=("auto", "max", "min"), default="auto", help=help)
    for mode, word in (("max", "greater"), ("min", "less")):
        modes.add_argument(f"--{mode}", action="store_const", const=mode, dest="mode", help=f"{word} is better")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag`, `--sweep` and `--sort`."""
    add_conditions(parser)
    parser.add_argument(
        "--sort", default="-start", metavar="FIELD", help="sort by this field; -FIELD for descending order (-start)"
    )


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
    store: Store,
    arguments: argparse.Namespace,
    columns: Sequence[str],
    limit: int | None = None,
    also: Sequence[Mapping[str, Any]] = (),
) -> list[Run]:
    """Return the runs that the options, and `also`, mean, none of which hides others; see `Run.listed`, `Store.find`.

    Raises:
        FilterError: If they make no sense.
    """
    found = store.find([*conditions_in(arguments), *also], getattr(arguments, "sort", "-start"), limit, columns)
    for run in found:
        run.is_listed = True
    return found


def find_named_or_chosen(
    store: Store, arguments: argparse.Namespace, columns: Sequence[str], limit: int
) -> tuple[list[Run], str]:
    """Return the runs that were named, or those that the options mean, and a sentence on those that are left out.

    Args:
        store: Where they are.
        arguments: With `runs`, `limit`, and what `add_selection` adds.
        columns: Fields to fetch along.
        limit: How many at most where `--limit` says nothing; 0 for all, which need not be chosen, then.

    Raises:
        RunsError: If runs are named and chosen, or neither.
        FilterError: If the options make no sense.
    """
    from runs.errors import RunsError

    if arguments.runs:
        if has_conditions(arguments):
            raise RunsError(
                "got runs and conditions, expected either; leave out the ids, or --where, --tag and --sweep"
            )
        return list(dict.fromkeys(store.get(key).listed() for key in arguments.runs)), ""
    if not (has_conditions(arguments) or not limit or arguments.limit is not None):
        raise RunsError("got no run; name some, such as latest, or choose with --where or --limit")
    most = limit_in(arguments, limit)
    # One more tells whether there are more.
    found = find_chosen(store, arguments, columns, most + 1 if most else None)
    if most and len(found) > most:
        return found[:most], f"{most} runs; there are more: --limit 0 takes all"
    return found, ""


def limit_in(arguments: argparse.Namespace, default: int = 0) -> int | None:
    """Return how many runs `--limit` asks for at most; None for all."""
    return (default if arguments.limit is None else arguments.limit) or None


def names_in(*given: str) -> tuple[str, ...]:
    """Return the names of options that may hold several, with commas between."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())
