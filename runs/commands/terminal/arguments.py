"""Arguments that commands share: the store, runs, `--json`; and errors of one line."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from runs.errors import RunsError, StoreError

if TYPE_CHECKING:
    from runs.stores.store import Store

__all__ = [
    "Parser",
    "add_json",
    "add_metrics",
    "add_run",
    "add_runs",
    "add_store",
    "add_store_place",
    "bound",
    "confidence",
    "folder_of",
    "is_url",
    "number",
    "open_given",
    "place",
    "port",
    "smoothing",
    "split_rest",
    "where_of",
]

_STORE_HELP = "folder of runs, or mongodb:// URL (by default $SACRISTAN_STORE, else my_runs)"

_EXPECTED: dict[Any, str] = {int: "a whole number", float: "a number"}

Number = TypeVar("Number", int, float)


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line.

    Attributes:
        rest_begins: Words of which the first one begins what is not parsed, but becomes the argument `rest`.
    """

    rest_begins: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Take `--sort -start`, too, where argparse wants `--sort=-start`, and keep the rest apart."""
        given = list(sys.argv[1:] if args is None else args)
        if self.rest_begins:
            end = next((place for place, word in enumerate(given) if word in self.rest_begins), len(given))
            self.set_defaults(rest=given[end:])
            given = given[:end]
        for position in range(len(given) - 1, 0, -1):
            if given[position - 1] == "--sort" and given[position].startswith("-"):
                given[position - 1 : position + 1] = [f"--sort={given[position]}"]
        return super().parse_known_args(given, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all words; of one that no argument takes, name the nearest option of the command."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser: Parser = getattr(arguments, "parser", self)
            options = [option for action in parser._actions for option in action.option_strings]
            name = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(name, options, 1) if name.startswith("-") else []
            parser.error(f"got {unknown[0]!r}{f'; did you mean {near[0]}?' if near else ', which no argument takes'}")
        return arguments

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Say of what is no number what was got, and what was expected."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type not in _EXPECTED:
                raise
            raise argparse.ArgumentError(action, f"got {arg_string!r}, expected {_EXPECTED[action.type]}") from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is no choice, and name the nearest one, where argparse lists all of them."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = difflib.get_close_matches(str(value), choices, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"got {value!r}; {hint}")

    def error(self, message: str) -> NoReturn:
        """Print the error, and end with exit code 2."""
        from runs.commands.terminal.text import harmless

        self.exit(2, f"error: {harmless(message)}; see {self.prog} --help\n")


# ---------------------------------------------------------------------- what is typed


def number(kind: type[Number], is_right: Callable[[Number], bool], expected: str) -> Callable[[str], Number]:
    """Return a type of arguments: numbers that pass a test.

    Args:
        kind: Of the numbers.
        is_right: The test.
        expected: What passes it, in words.
    """

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {_EXPECTED[kind]}") from None
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return value

    read.__doc__ = f"Return the number in a text: {expected}."
    return read


# How many at most.
bound = number(int, lambda value: value >= 0, "a whole number of at least 0, 0 for all")
port = number(int, lambda value: 0 <= value < 2**16, "0 to 65535")
# Of an interval.
confidence = number(float, lambda value: 0 < value < 1, "a number between 0 and 1, such as 0.95")
# Weight of earlier points.
smoothing = number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1, such as 0.6")


def place(text: str) -> str:
    """Return the folder or URL that was typed; the type of such arguments."""
    if not text:
        raise argparse.ArgumentTypeError("got '', expected a folder of runs or a mongodb:// URL")
    return text


def add_store(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """Add `--store`; without a default of its own, so that what stands ahead of the command holds."""
    parser.add_argument("--store", type=place, default=default, metavar="WHERE", help=_STORE_HELP)


def add_store_place(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the store as an argument that needs no `--store`.

    Args:
        parser: Of the command.
        what: Which stores the command takes.
    """
    help = f"{what}; the same as --store"
    parser.add_argument("store", nargs="?", type=place, default=argparse.SUPPRESS, metavar="STORE", help=help)


def add_run(parser: argparse.ArgumentParser, name: str = "run", help: str = "") -> None:
    """Add the argument for a run."""
    help = help or "id, uid, beginning of a uid, or latest"
    _complete(parser.add_argument(name, metavar=name.upper(), help=help), _run_ids)


def add_runs(parser: argparse.ArgumentParser, nargs: str = "+", help: str = "") -> None:
    """Add the argument for several runs."""
    help = help or "ids, uids, beginnings of uids, or latest"
    _complete(parser.add_argument("runs", nargs=nargs, metavar="RUN", help=help), _run_ids)


def add_metrics(parser: argparse.ArgumentParser, help: str) -> None:
    """Add the argument for names of metrics of the run that is named before."""
    _complete(parser.add_argument("names", nargs="*", metavar="NAME", help=help), _metric_names)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add `--json`, to a parser or to a group of options that exclude each other."""
    help = 'print strict JSON; NaN and infinities are the texts "NaN", "Infinity", "-Infinity"'
    parser.add_argument("--json", action="store_true", help=help)


# ---------------------------------------------------------------------- what is meant


def split_rest(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return settings and options of `with SETTING ... -- OPTION ...`, either of which may be left out."""
    end = words.index("--") if "--" in words else len(words)
    return list(words[1:end]), list(words[end + 1 :])


def where_of(arguments: argparse.Namespace) -> str:
    """Return the folder or URL that is meant."""
    return str(arguments.store or os.environ.get("SACRISTAN_STORE") or "my_runs")


def is_url(where: str) -> bool:
    """Tell whether a store is a database."""
    return where.startswith(("mongodb://", "mongodb+srv://"))


def folder_of(arguments: argparse.Namespace) -> Path:
    """Return the folder that is meant.

    Raises:
        StoreError: If it is a database that is meant.
    """
    where = where_of(arguments)
    if "://" in where:
        from observers.record.redaction import redact

        raise StoreError(f"got the store {redact(where)}, but this command needs a folder of runs")
    return Path(where)


def open_given(arguments: argparse.Namespace) -> Store:
    """Return the store that is meant, which says on the terminal how far long work is."""
    from runs.commands.terminal.progress import Progress
    from runs.stores.opening import open_store

    store = open_store(where_of(arguments))
    store.on_progress = Progress()
    return store


# ---------------------------------------------------------------------- for a shell


def _complete(action: argparse.Action, completer: Callable[..., list[str]]) -> None:
    action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it


def _metric_names(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the metrics of the run that is named."""
    from runs.stores.opening import open_store

    try:
        with open_store(where_of(parsed_args)) as store:
            return store.get(parsed_args.run).metrics
    except RunsError:
        return []


def _run_ids(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the ids of the newest runs."""
    from runs.stores.opening import open_store

    try:
        with open_store(where_of(parsed_args)) as store:
            return ["latest", *(run.id for run in store.find(limit=200, columns=()))]
    except RunsError:
        return []
