"""What commands share: arguments here, such as the store, runs and conditions; and beside them results and texts.

Errors of arguments are one line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import RunsError, StoreError

if TYPE_CHECKING:
    from sacristan.runs.query.filters import Filter
    from sacristan.runs.stores import Run, Store

__all__ = [
    "Parser",
    "add_conditions",
    "add_curves",
    "add_direction",
    "add_groups",
    "add_json",
    "add_metrics",
    "add_output",
    "add_run",
    "add_runs",
    "add_selection",
    "add_store",
    "add_store_place",
    "bound",
    "choose_runs",
    "conditions_in",
    "confidence",
    "find_chosen",
    "folder_of",
    "is_url",
    "limit_in",
    "names_in",
    "number",
    "open_given",
    "open_place",
    "output_of",
    "port",
    "split_rest",
    "store_address",
    "typed_store",
    "where_of",
]

_CONDITION = re.compile("[=<>~]")
_STORE_HELP = "folder of runs, or mongodb:// URL (by default $SACRISTAN_STORE, else my_runs)"

Number = TypeVar("Number", int, float)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and name the nearest option; `rest_begins` are words that start `rest`."""

    rest_begins: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, accepting `--sort -start`, for which argparse itself requires `--sort=-start`."""
        words = list(sys.argv[1:] if args is None else args)
        if self.rest_begins:
            end = next((index for index, word in enumerate(words) if word in self.rest_begins), len(words))
            self.set_defaults(rest=words[end:])
            words = words[:end]
        for position in range(len(words) - 1, 0, -1):
            if words[position - 1] == "--sort" and words[position].startswith("-"):
                words[position - 1 : position + 1] = [f"--sort={words[position]}"]
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all words, or end with an error that names the nearest option."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser: Parser = getattr(arguments, "parser", self)
            options = [option for action in parser._actions for option in action.option_strings]
            hint = _hint(unknown[0], options, bool(parser.rest_begins))
            parser.error(f"got {unknown[0]!r}{f'; {hint}' if hint else ', which no argument takes'}")
        return arguments

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject invalid choices, and name the nearest one; argparse lists all of them."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = word_suggestion(str(value), choices, f"expected one of {', '.join(choices)}")
            raise argparse.ArgumentError(action, f"got {value!r}; {hint}")

    def error(self, message: str) -> NoReturn:
        from sacristan.runs.commands.terminal.text import harmless

        self.exit(2, f"error: {harmless(message)}; see {self.prog} --help\n")


# ---------------------------------------------------------------------- what is typed


def _hint(word: str, options: Sequence[str], takes_settings: bool) -> str:
    """Return a suggestion for a word that no argument takes; empty if there is none."""
    if word == "-F":
        return "a store is written --store FOLDER"
    if word.startswith("-"):
        return word_suggestion(word.partition("=")[0], options, "")
    if is_url(word) or Path(word).is_dir():
        return f"a store is written --store {shlex.quote(word)}"
    if "--where" in options and _CONDITION.search(word):
        return f"a condition is written --where {shlex.quote(word)}"
    if takes_settings and "=" in word:
        return f"a setting is written after `with`: with {shlex.quote(word)}"
    return "quote a condition: --where 'NAME=VALUE'" if "--where" in options else ""


def number(kind: type[Number], is_valid: Callable[[Number], bool], expected: str) -> Callable[[str], Number]:
    """Return an argument type for numbers that pass a test; the error says which were expected."""

    def read(text: str) -> Number:
        with contextlib.suppress(ValueError):
            if is_valid(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")

    read.__doc__ = f"Return the number in a text: {expected}."
    return read


bound = number(int, lambda value: value >= 0, "a whole number of at least 0, 0 for all")
port = number(int, lambda value: 0 <= value < 2**16, "0 to 65535")
confidence = number(float, lambda value: 0 < value < 1, "a number between 0 and 1, such as 0.95")


def store_address(text: str) -> str:
    """Argument type of a store: a folder of runs, or the URL of a database."""
    if not text:
        raise argparse.ArgumentTypeError("got '', expected a folder of runs or a mongodb:// URL")
    return text


def add_store(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """Add `--store`; subcommands suppress its default, so that a `--store` before the command is kept."""
    parser.add_argument("--store", type=store_address, default=default, metavar="WHERE", help=_STORE_HELP)


def add_store_place(parser: argparse.ArgumentParser, kinds: str) -> None:
    """Add the store as a positional argument, an alternative to `--store`."""
    help = f"{kinds}; the same as --store"
    parser.add_argument("store", nargs="?", type=store_address, default=argparse.SUPPRESS, metavar="STORE", help=help)


def add_run(parser: argparse.ArgumentParser, name: str = "run", help: str = "") -> None:
    """Add an argument for a run, with shell completion."""
    help = help or "id, uid, beginning of a uid, or latest"
    _complete(parser.add_argument(name, metavar=name.upper(), help=help), _run_ids)


def add_runs(parser: argparse.ArgumentParser, nargs: str = "+", help: str = "") -> None:
    """Add the argument `runs` for several runs, with shell completion."""
    help = help or "ids, uids, beginnings of uids, or latest"
    _complete(parser.add_argument("runs", nargs=nargs, metavar="RUN", help=help), _run_ids)


def add_metrics(parser: argparse.ArgumentParser, help: str) -> None:
    """Add the argument `names` for metrics of the run named before it, with shell completion."""
    _complete(parser.add_argument("names", nargs="*", metavar="NAME", help=help), _metric_names)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add `--json`."""
    help = 'print strict JSON; NaN and infinities are the texts "NaN", "Infinity", "-Infinity"'
    parser.add_argument("--json", action="store_true", help=help)


def add_output(
    parser: argparse.ArgumentParser,
    help: str = "output file; stdout without it",
    *,
    required: bool = False,
    group: argparse._ActionsContainer | None = None,
    type: Callable[[str], Path | str] = Path,
) -> None:
    """Add `--output` and `--force`; see `output_of`. The options in `group` exclude `--output`."""
    options: dict[str, Any] = {"required": True} if required else {}
    (group or parser).add_argument("-o", "--output", type=type, metavar="FILE", help=help, **options)
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")


# ---------------------------------------------------------------------- what is meant


def split_rest(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words `with SETTING ... -- OPTION ...` into settings and options; either part may be missing."""
    end = words.index("--") if "--" in words else len(words)
    return list(words[1:end]), list(words[end + 1 :])


def where_of(arguments: argparse.Namespace) -> str:
    """Return the chosen store: `--store`, else that of the environment, else `my_runs`."""
    return str(arguments.store or os.environ.get("SACRISTAN_STORE") or "my_runs")


def typed_store(arguments: argparse.Namespace) -> str:
    """Return the chosen store quoted for a shell, without passwords."""
    from sacristan.observers.record.redaction import redact

    return shlex.quote(redact(where_of(arguments)))


def is_url(where: str) -> bool:
    """Tell whether a store is no folder."""
    return "://" in where


def folder_of(arguments: argparse.Namespace) -> Path:
    """Return the chosen folder of runs; StoreError if the store is a database."""
    where = where_of(arguments)
    if "://" in where:
        from sacristan.observers.record.redaction import redact

        raise StoreError(f"got the store {redact(where)}, but this command needs a folder of runs")
    return Path(where)


def open_given(arguments: argparse.Namespace) -> Store:
    """Open the chosen store; it shows the progress of long work on the terminal."""
    return open_place(where_of(arguments))


def open_place(where: str, *, create: bool = False) -> Store:
    """Open a store that shows the progress of long work on the terminal."""
    from sacristan.runs.commands.terminal.text import Progress
    from sacristan.runs.stores.opening import open_store

    store = open_store(where, create=create)
    store.on_progress = Progress()
    return store


def output_of(arguments: argparse.Namespace) -> Path | None:
    """Return the output file, None for stdout; StoreError if it exists without `--force` or is not writable."""
    from sacristan.runs.drawing.output_file import check_output

    output: Path | None = arguments.output
    if output is not None:
        check_output(output, overwrite=arguments.force, how="--force")
    return output


# ---------------------------------------------------------------------- for a shell


def _complete(action: argparse.Action, words_in: Callable[[Store, argparse.Namespace], list[str]]) -> None:
    """Complete an argument with words from the store; an unreadable store yields none."""

    def completer(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
        from sacristan.runs.stores.opening import open_store

        try:
            with open_store(where_of(parsed_args)) as store:
                return words_in(store, parsed_args)
        except RunsError:
            return []

    action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it


def _metric_names(store: Store, parsed_args: argparse.Namespace) -> list[str]:
    return store.get(parsed_args.run).metrics


def _run_ids(store: Store, parsed_args: argparse.Namespace) -> list[str]:
    return ["latest", *(run.id for run in store.find(limit=200, columns=()))]


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
    from sacristan.runs.query import SWEEP, USER
    from sacristan.runs.query.conditions import ME
    from sacristan.runs.query.filters import Condition, condition, parse_words

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
    """Return the runs that match the options, in the order of `--sort`; damaged ones do not hide the others."""
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
    from sacristan.runs.query import split_names

    return tuple(name for text in texts for name in split_names(text))
