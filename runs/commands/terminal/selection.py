"""Options that choose runs, and the groups and curves to make of them, for commands that take several runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runs.commands.terminal.arguments import number
from runs.errors import RunsError

if TYPE_CHECKING:
    from runs.query.filters import Filter
    from runs.stores.run import Run
    from runs.stores.store import Store

__all__ = [
    "add_conditions",
    "add_curves",
    "add_direction",
    "add_groups",
    "add_selection",
    "choose_runs",
    "conditions_in",
    "find_chosen",
    "limit_in",
    "names_in",
]


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag`, `--mine` and `--sweep`.

    Args:
        parser: The command's parser.
    """
    help = (
        "a condition, such as 'lr<1e-3', 'lr in (0.1, 0.2)' or 'lr=1 and seed=2 or lr=2'; a run must match all of them"
    )
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--tag", action="append", default=[], help="only runs with this tag; may be repeated")
    parser.add_argument("--mine", action="store_true", help="only your own runs: --where user=me")
    parser.add_argument("--sweep", metavar="ID", help="only trials of this sweep")


def add_direction(parser: argparse.ArgumentParser, help: str) -> None:
    """Add `--mode`, and its short forms `--max` and `--min`.

    Args:
        parser: The command's parser.
        help: The help of `--mode`.
    """
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--mode", choices=("auto", "max", "min"), default="auto", help=help)
    for mode, word in (("max", "greater"), ("min", "less")):
        modes.add_argument(f"--{mode}", action="store_const", const=mode, dest="mode", help=f"{word} is better")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag`, `--mine`, `--sweep` and `--sort`.

    Args:
        parser: The command's parser.
    """
    add_conditions(parser)
    parser.add_argument(
        "--sort", default="-start", metavar="FIELD", help="sort by this field; -FIELD for descending order (-start)"
    )


def add_groups(parser: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add `--by` and `--over`.

    Args:
        parser: The command's parser.
        help: The help of `--by`.
        required: Whether the command needs groups.
    """
    options: dict[str, Any] = {"required": True} if required else {}
    parser.add_argument("--by", action="append", default=[], metavar="FIELD,...", help=help, **options)
    help = "field that varies within a group, such as seed; runs with the same value count once"
    parser.add_argument("--over", action="append", default=[], metavar="FIELD,...", help=help)


def add_curves(parser: argparse.ArgumentParser) -> None:
    """Add the options of curves: `--smoothing`, `--x` and `--log-y`.

    Args:
        parser: The command's parser.
    """
    help = "weight of earlier points, from 0 to below 1, as in TensorBoard (0)"
    weight = number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1, such as 0.6")
    parser.add_argument("--smoothing", type=weight, default=0.0, metavar="W", help=help)
    help = "horizontal axis: step, epoch, time (seconds since the start) or wall (date and time, UTC) (step)"
    parser.add_argument("--x", choices=("step", "epoch", "time", "wall"), default="step", help=help)
    parser.add_argument("--log-y", action="store_true", help="logarithmic values")


def conditions_in(arguments: argparse.Namespace) -> list[Filter]:
    """Return the filter that `--where`, `--tag`, `--mine` and `--sweep` stand for.

    Args:
        arguments: The parsed arguments of a command with `add_conditions`.

    Raises:
        FilterError: If a condition is invalid.
    """
    from runs.query.conditions import ME
    from runs.query.filters import Condition, condition, parse_words
    from runs.query.names import SWEEP, USER

    tags = (Condition(f"tags.{tag}", "==", True) for tag in arguments.tag)
    sweep = [] if arguments.sweep is None else [Condition(SWEEP, "==", arguments.sweep)]
    mine = [condition(USER, "==", ME)] if arguments.mine else []
    return [*map(parse_words, arguments.where), *tags, *mine, *sweep]


def find_chosen(
    store: Store,
    arguments: argparse.Namespace,
    columns: Sequence[str],
    limit: int | None = None,
) -> list[Run]:
    """Return the runs that match the options; a damaged one hides no others, see `Run.listed`.

    Args:
        store: The store.
        arguments: The parsed arguments of a command with `add_conditions`, or with `add_selection` for an order.
        columns: Fields to fetch along.
        limit: The maximum number of runs.

    Raises:
        FilterError: If an option is invalid.
    """
    runs = store.find(conditions_in(arguments), getattr(arguments, "sort", "-start"), limit, columns)
    for run in runs:
        run.is_listed = True
    return runs


def choose_runs(
    store: Store,
    arguments: argparse.Namespace,
    columns: Sequence[str],
    limit: int = 0,
    *,
    may_be_all: bool = False,
    lists: bool = True,
) -> tuple[list[Run], str]:
    """Return the named runs, or those that match the options.

    Args:
        store: The store.
        arguments: The parsed arguments, with `runs`, those of `add_conditions` and perhaps `limit`.
        columns: Fields to fetch along.
        limit: The maximum number of runs without `--limit`; 0 for all.
        may_be_all: Whether a command without any choice means all runs.
        lists: Whether a damaged run that is named is returned as far as it can be read, see `Run.listed`.

    Returns:
        The runs, and a sentence about those beyond the limit.

    Raises:
        RunsError: If runs are both named and chosen, or neither, or no run matches.
        FilterError: If an option is invalid.
    """
    is_conditional = bool(arguments.where or arguments.tag or arguments.mine or arguments.sweep)
    if arguments.runs:
        if is_conditional:
            raise RunsError(
                "got runs and conditions, expected either; leave out the ids, or --where, --tag, --mine and --sweep"
            )
        named = dict.fromkeys(map(store.get, arguments.runs))
        return [run.listed() if lists else run for run in named], ""
    return _matching_runs(store, arguments, columns, limit, may_be_all=may_be_all or is_conditional)


def _matching_runs(
    store: Store, arguments: argparse.Namespace, columns: Sequence[str], limit: int, *, may_be_all: bool
) -> tuple[list[Run], str]:
    has_limit = getattr(arguments, "limit", None) is not None
    if not (has_limit or may_be_all):
        more = " or --limit" if "limit" in arguments else ""
        raise RunsError(f"got no run; name some, such as latest, or choose with --where{more}")
    most = limit_in(arguments, limit) if "limit" in arguments else None
    # One more tells whether there are more.
    runs = find_chosen(store, arguments, columns, most + 1 if most else None)
    if not runs:
        raise RunsError("no run matches the conditions")
    if most and len(runs) > most:
        return runs[:most], f"{most} runs; there are more: --limit 0 takes all"
    return runs, ""


def limit_in(arguments: argparse.Namespace, default: int = 0) -> int | None:
    """Return the maximum number of runs; None for all.

    Args:
        arguments: The parsed arguments, with `limit`.
        default: The number without `--limit`; 0 for all.
    """
    return (default if arguments.limit is None else arguments.limit) or None


def names_in(*texts: str) -> tuple[str, ...]:
    """Return the names in the values of an option.

    Args:
        texts: The values, each with several names and commas between them.
    """
    from runs.query.names import split_names

    return tuple(name for text in texts for name in split_names(text))
