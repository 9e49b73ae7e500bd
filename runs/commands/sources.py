"""`sources`: the source files of a run."""

from __future__ import annotations

import argparse

from sacristan.runs.commands.terminal.outcomes import CONTENTS, add_contents, list_or_get

__all__ = ["JSON", "add_arguments", "main"]

JSON = CONTENTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_contents(parser, "sources that a run was made of")


def main(arguments: argparse.Namespace) -> int:
    """List them, or write them into a folder."""
    return list_or_get(arguments, "sources", lambda run: run.sources)
