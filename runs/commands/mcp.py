"""`mcp`: a server of the Model Context Protocol, for coding agents."""

from __future__ import annotations

import argparse
import os
import sys

from sacristan.runs.commands.terminal.arguments import add_store_place, where_of
from sacristan.runs.errors import needing_extra

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it is a server"

_EPILOG = """The client starts this command, and speaks with it over stdin and stdout. It only reads the store, and
ends when stdin is closed. docs/howto/let_an_agent_read_runs.md shows the configuration of clients."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_store_place(parser, "folder of runs, or mongodb:// URL")


def main(arguments: argparse.Namespace) -> int:
    """Answer requests until stdin is closed."""
    with needing_extra("mcp", "the server"):
        import mcp  # noqa: F401

        from sacristan.runs.documents.mcp.serving import serve

    serve(where_of(arguments))
    # A thread may still read an answer that nobody awaits any more.
    sys.stderr.flush()
    os._exit(0)
