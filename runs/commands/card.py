"""`card`: a model card in Markdown."""

from __future__ import annotations

import argparse

from sacristan.runs.commands.terminal.arguments import add_output, add_run, open_given, output_of
from sacristan.runs.commands.terminal.text import print_text

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it writes a page to read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    add_output(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the card, or write it to a file."""
    from sacristan.runs.comparison.model_card import model_card
    from sacristan.runs.drawing.output_file import writing

    output = output_of(arguments)
    with open_given(arguments) as store:
        card = model_card(store.get(arguments.run))
    if output is None:
        for line in card.splitlines():
            print_text(line)
        return 0
    with writing(output, overwrite=arguments.force) as stream:
        stream.write(card.encode(errors="backslashreplace"))
    return 0
