"""Options that choose runs, and the groups and curves to make of them, for commands that take several runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.commands.terminal.arguments import number
from sacristan.runs.errors import RunsError

if TYPE_CHECKING:
    from sacristan.runs.query.filters import Filter
    from sacristan.runs.stores.run import Run
    from sacristan.runs.stores.store import Store

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
    """Add `--where`, `--tag`, `--mine` and `--sweep`."""
    help = (
        "a condition, such as 'lr<1e-3', 'lr in (0.1, 0.2)' or 'lr=1 and seed=2 or lr=2'; a run must match all of them"
    )
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--tag", action="append", default=[], help="only runs with this tag; may be repeated")
    parser.add_argument("--mine", action="store_true", help="only your own runs: --where user=me")
    parser.add_argument("--sweep", metavar="ID", help="only trials of this sweep")


def add_direction(parser: argparse.ArgumentParser, help: str) -> None:
    """Add `--mode`, and its short forms `--max` and `--min`."""
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--mode", choices=("auto", "max", "min"), default="auto", help=help)
    for mode, word in (("max", "greater"), ("min", "less")):
        modes.add_argument(f"--{mode}", action="store_const", const=mode, dest="mode", help=f"{word} is better")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--where`, `--tag`, `--mine`, `--sweep` and `--sort`."""
    add_conditions(parser)
    parser.add_argument(
        "--sort", default="-start", metavar="FIELD", help="sort by this field; -FIELD for descending order (-start)"
    )


def add_groups(parser: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add `--by` and `--over`."""
    options: dict[str, Any] = {"required": True} if required else {}
    parser.add_argument("--by", action="append", default=[], metavar="FIELD,...", help=help, **options)
    help = "field that varies within a group, such as seed; runs with the same value count once"
    parser.add_argument("--over", action="append", default=[], metavar="FIELD,...", help=help)


def add_curves(parser: argparse.ArgumentParser) -> None:
    """Add the options of curves: `--smoothing`, `--x` and `--log-y`."""
    help = "weight of earlier points, from 0 to below 1, as in TensorBoard (0)"
    weight = number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1, such as 0.6")
    parser.add_argument("--smoothing", type=weight, default=0.0, metavar="W", help=help)
    help = "horizontal axis: step, epoch, time (seconds since the start) or wall (date and time, UTC) (step)"
    parser.add_argument("--x", choices=("step", "epoch", "time", "wall"), default="step", help=help)
    parser.add_argument("--log-y", action="store_true", help="logarithmic values")


def conditions_in(arguments: argparse.Namespace) -> list[Filter]:
    """Return the filter for `--where`, `--tag`, `--mine` and `--sweep`; FilterError if a condition is invalid."""
    from sacristan.runs.query.conditions import ME
    from sacristan.runs.query.filters import Condition, condition, parse_words
    from sacristan.runs.query.names import SWEEP, USER

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
    """Return the runs that match the options; damaged ones do not hide the others, see `Run.listed`.

    The order is that of `--sort`, newest first without it.
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
    """Return the named runs, or those that match the options, and a sentence about runs beyond the limit.

    `limit` counts without `--limit`; 0 means all. With `may_be_all`, a command without any choice means all runs. With
    `lists`, a named damaged run is returned as far as it can be read; see `Run.listed`. Raises RunsError if runs were
    both named and chosen, or neither, or if none matches.
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
    """Return the maximum number of runs, None for all; `default` applies without `--limit`."""
    return (default if arguments.limit is None else arguments.limit) or None


def names_in(*texts: str) -> tuple[str, ...]:
    """Return the names in the values of an option, each with commas between its names."""
    from sacristan.runs.query.names import split_names

    return tuple(name for text in texts for name in split_names(text))
