"""`card`: what a model is and how good it is, as a page of Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path

from runs.commands.terminal.arguments import add_run, open_given
from runs.commands.terminal.text import print_text

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="output file; stdout without it")
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")


def main(arguments: argparse.Namespace) -> int:
    """Print the card, or write it to a file."""
    from runs.comparison.model_card import model_card
    from runs.drawing.output_file import check_output, writing

    output = arguments.output
    if output is not None:
        check_output(output, overwrite=arguments.force, how="--force")
    with open_given(arguments) as store:
        card = model_card(store.get(arguments.run))
    if output is None:
        for line in card.splitlines():
            print_text(line)
        return 0
    with writing(output, overwrite=arguments.force) as stream:
        stream.write(card.encode(errors="backslashreplace"))
    return 0
