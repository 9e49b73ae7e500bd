"""`artifacts`: the files that a run made, and the checkpoints that it keeps."""

from __future__ import annotations

import argparse

from sacristan.runs.commands.terminal.outcomes import CONTENTS, add_contents, list_or_get

__all__ = ["JSON", "add_arguments", "main"]

JSON = CONTENTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_contents(parser, "files that a run made, and the checkpoints that it keeps")


def main(arguments: argparse.Namespace) -> int:
    """List them, or write them into a folder."""
    return list_or_get(arguments, "artifacts", lambda run: {**run.checkpoints, **run.artifacts})
