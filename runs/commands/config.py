"""`config`: the config of a run, as YAML."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

from sacristan.runs.commands.terminal.arguments import add_json, add_run, open_given
from sacristan.runs.commands.terminal.text import harmless, print_json, print_text
from sacristan.runs.errors import RunsError
from sacristan.runs.query.texts import value_text

__all__ = ["JSON", "add_arguments", "main"]

JSON = Annotated[Any, "The config, an object; with NAME that entry, of any type."]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this entry, such as optimizer.lr")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the config, or one entry of it."""
    from sacristan.runs.query.flattening import dotted

    with open_given(arguments) as store:
        run = store.get(arguments.run)
        value: Any = run.config.to_dict()
        if arguments.name:
            value = run.get(f"config.{arguments.name}")
            if value is None and arguments.name not in dotted(run.config):
                raise RunsError(f"the config of run {run.id} has no {arguments.name!r}; see: sacristan config {run.id}")
    if arguments.json:
        print_json(value)
    elif isinstance(value, dict):
        print(_yaml(value), end="")
    else:
        print_text(value_text(value, exact=True))
    return 0


def _yaml(document: dict[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    if any(harmless(line) != line for line in text.splitlines()):
        text = yaml.safe_dump(document, sort_keys=False, width=120)
    return text
