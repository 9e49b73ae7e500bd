"""Arguments that commands share: the store, runs, output files, `--json`; and one-line errors."""

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
    from sacristan.runs.stores.store import Store

__all__ = [
    "Parser",
    "add_json",
    "add_metrics",
    "add_output",
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
    """A parser whose errors are one line and name the nearest option.

    `argparse` suggests names from Python 3.14 on, and then lists all choices as well.

    Attributes:
        rest_begins: Words that end the parsed part; from the first one on, all words become the argument `rest`.
    """

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
