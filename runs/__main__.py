# PYTHON_ARGCOMPLETE_OK
"""The command line of past runs: `python -m runs COMMAND`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

from configs.packages import other_lab
from configs.printing import OutputError, checked_output
from configs.standard_streams import hold_standard_descriptors
from runs.commands import COMMANDS
from runs.commands.terminal.arguments import Parser, add_store
from runs.errors import RunsError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    hold_standard_descriptors()
    try:
        with checked_output():
            return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130
    except OutputError as error:
        error.tell()
        return error.code


def _run(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(make_parser())
    note = other_lab()
    if note is not None:
        sys.stderr.write(f"{note}\n")
    parser = make_parser(words)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    for stream in (sys.stdout, sys.stderr):
        # Names of files may be no text, and terminals may lack characters.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return arguments.command(arguments)
    except RunsError as error:
        from runs.commands.terminal.text import print_to_stderr

        print_to_stderr(f"error: {error}")
        return arguments.error_code


def make_parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        words: What it is going to parse. A command that is not among them is only listed, and its module not imported.
            Without any words all commands are there.
    """
    prog = "python -m runs" if Path(sys.argv[0]).stem in ("__main__", "-m") else "runs"
    parser = Parser(prog=prog, description="List, inspect, compare and manage past runs.")
    add_store(parser, default=None)
    parser.set_defaults(command=None, error_code=1)
    listed = Parser(add_help=False)  # one for all that are only listed: to make it takes longer than to parse

    def parser_of(*, is_listed: bool, **options: Any) -> Parser:
        return listed if is_listed else Parser(**options)

    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=cast("type[Parser]", parser_of))
    for module, help in COMMANDS.items():
        name = module.rstrip("_")
        is_listed = words is not None and name not in words
        description = f"{help[0].upper()}{help[1:]}."
        command = commands.add_parser(name, help=help, description=description, is_listed=is_listed)
        if not is_listed:
            add_store(command)
            loaded = importlib.import_module(f"runs.commands.{module}")
            loaded.add_arguments(command)
            command.set_defaults(command=loaded.main, parser=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
