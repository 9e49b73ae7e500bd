# PYTHON_ARGCOMPLETE_OK
"""The command line of past runs: `python -m runs COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runs.commands import (
    compare,
    completing,
    continuing,
    differing,
    fetching,
    keeping,
    listing,
    logs,
    moving,
    plot,
    points,
    reproducing,
    showing,
    upkeep,
)
from runs.commands.arguments import STORE_HELP, Parser
from runs.errors import RunsError

__all__ = ["main"]

_GROUPS = (
    listing,
    showing,
    logs,
    points,
    differing,
    compare,
    plot,
    keeping,
    moving,
    fetching,
    continuing,
    reproducing,
    upkeep,
    completing,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # Names of files may be no text, and terminals may lack characters.
        stream.reconfigure(errors="backslashreplace")
    try:
        return arguments.command(arguments)
    except RunsError as error:
        from runs.commands.terminal import harmless

        print(f"error: {harmless(str(error))}", file=sys.stderr)
        return arguments.error_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    prog = "python -m runs" if Path(sys.argv[0]).stem in ("__main__", "-m") else "runs"
    parser = Parser(prog=prog, description="Find, look at and look after past runs.")
    parser.add_argument("--store", metavar="WHERE", help=STORE_HELP)
    parser.set_defaults(error_code=1)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
