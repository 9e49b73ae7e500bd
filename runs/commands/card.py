"""`card`: what a model is and how good it is, as a page of Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path

from runs.commands.terminal.arguments import add_run, open_given
from runs.commands.terminal.text import print_text
from runs.errors import RunsError, StoreError

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to; to stdout without it")
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


def main(arguments: argparse.Namespace) -> int:
    """Print the card, or write it to a file."""
    from observers.record.atomic_file import replacing
    from runs.comparison.model_card import model_card

    output = arguments.output
    if output is not None and output.exists() and not arguments.force:
        raise RunsError(f"{output} is there already; choose another name, or say --force")
    with open_given(arguments) as store:
        card = model_card(store.get(arguments.run))
    if output is None:
        for line in card.splitlines():
            print_text(line)
        return 0
    try:
        with replacing(output) as stream:
            stream.write(card.encode(errors="backslashreplace"))
    except OSError as error:
        raise StoreError(f"{output} cannot be written ({error.strerror or error})") from error
    return 0
