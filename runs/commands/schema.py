"""`schema`: the JSON Schema of a command's `--json`."""

from __future__ import annotations

import argparse
import json

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.commands import reasons_without_json, schemas
from sacristan.runs.errors import RunsError

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it prints a schema"

_EPILOG = "Without COMMAND, all keys of all commands are printed as a page of Markdown."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("name", nargs="?", metavar="COMMAND", help="a command that takes --json")


def main(arguments: argparse.Namespace) -> int:
    """Print one schema, or the reference of all."""
    from sacristan.runs.documents.schemas import reference_page

    by_command = schemas()
    if arguments.name is None:
        print(reference_page(by_command, reasons_without_json()), end="")
        return 0
    if reason := reasons_without_json().get(arguments.name):
        raise RunsError(f"schema: {arguments.name} has no --json: {reason}")
    if arguments.name not in by_command:
        hint = word_suggestion(arguments.name, by_command)
        raise RunsError(f"schema: got {arguments.name!r}, which is no command with --json; {hint}")
    print(json.dumps(by_command[arguments.name], indent=2))
    return 0
