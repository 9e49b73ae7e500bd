"""What the commands have in common: the store they look at, ids of runs, and errors of one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runs.errors import StoreError

if TYPE_CHECKING:
    from runs.stores.store import Store

__all__ = [
    "Commands",
    "Parser",
    "add_command",
    "add_json",
    "add_run",
    "complete_metric",
    "complete_run",
    "folder_of",
    "is_url",
    "open_given",
    "where_of",
]

Commands = Any  # what argparse's `add_subparsers` returns has no public name


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line.

    Attributes:
        rest_begins: Words of which the first one begins what is not parsed, but becomes the argument `rest`.
    """

    rest_begins: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
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

    def error(self, message: str) -> NoReturn:
        """Print the error, and end with exit code 2."""
        from runs.commands.terminal import harmless

        self.exit(2, f"error: {harmless(message)}; see {self.prog} --help\n")


def add_command(
    commands: Commands, name: str, help: str, run: Callable[[argparse.Namespace], int], **options: Any
) -> argparse.ArgumentParser:
    """Add a command, and return its parser.

    Args:
        commands: What `add_subparsers` returned.
        name: What people type.
        help: One line.
        run: Gets the arguments and returns the exit code.
        options: For the parser, such as `epilog`.
    """
    options = {"description": f"{help[0].upper()}{help[1:]}.", **options}
    parser = commands.add_parser(name, help=help, **options)
    # Without a default of its own: what stands ahead of the command holds.
    parser.add_argument("--store", default=argparse.SUPPRESS, metavar="WHERE", help=STORE_HELP)
    parser.set_defaults(command=run)
    return parser


STORE_HELP = "folder of runs, or mongodb:// URL (by default $SACRISTAN_STORE, else my_runs)"


def add_run(parser: argparse.ArgumentParser, name: str = "run", help: str = "") -> None:
    """Add the argument for a run."""
    help = help or "id, uid, the beginning of a uid, or latest"
    parser.add_argument(name, metavar=name.upper(), help=help).completer = complete_run  # type: ignore[attr-defined]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    help = 'print strict JSON; NaN and infinities are the texts "NaN", "Infinity", "-Infinity"'
    parser.add_argument("--json", action="store_true", help=help)


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
        from observers.mongo.destination import redact

        raise StoreError(f"got the store {redact(where)}, and this command wants a folder of runs")
    return Path(where)


def open_given(arguments: argparse.Namespace) -> Store:
    """Return the store that is meant, which says on the terminal how far long work is."""
    from runs.commands.terminal import Progress
    from runs.stores.store import open_store

    store = open_store(where_of(arguments))
    store.on_progress = Progress()
    return store


def complete_metric(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the metrics of the run that is named; for a shell."""
    from runs.errors import RunsError
    from runs.stores.store import open_store

    try:
        with open_store(where_of(parsed_args)) as store:
            return store.get(parsed_args.run).metrics
    except RunsError:
        return []


def complete_run(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the ids of the newest runs; for a shell."""
    from runs.errors import RunsError
    from runs.stores.store import open_store

    try:
        with open_store(where_of(parsed_args)) as store:
            return ["latest", *(run.id for run in store.find(limit=200, columns=()))]
    except RunsError:
        return []
