"""Every option of every command appears in the tests, beside its command."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from sacristan.command_line import make_parser

WORDS = [set(re.findall(r"[\w-]+", path.read_text())) for path in Path(__file__).parents[3].rglob("*.py")]


def appear(*words):
    """Tell whether one module of the tests has all these words."""
    return any(words_of_module.issuperset(words) for words_of_module in WORDS)


def commands_of(parser):
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found[0] if found else {}


def options_of(parser):
    """Return the names of each option by its attribute; --max and --mode share one."""
    options: dict[str, list[str]] = {}
    for each in (parser, *commands_of(parser).values()):
        for action in each._actions:
            options.setdefault(action.dest, []).extend(action.option_strings)
    return {dest: names for dest, names in options.items() if names and dest != "help"}


def test_every_option_is_tested():
    commands = {name: options_of(parser) for name, parser in commands_of(make_parser()).items()}
    assert sum(map(len, commands.values())) > 150
    untested = [
        (command, names)
        for command, options in commands.items()
        for names in options.values()
        if not any(appear(command, name) for name in names)
    ]
    assert untested == []
