"""`check`: run a script of stock Sacred under stock Sacred and under this lab, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sacristan.runs.commands.terminal.arguments import add_json
from sacristan.runs.commands.terminal.text import Progress, print_json, print_text
from sacristan.runs.errors import LaunchError, naming_os_errors
from sacristan.runs.query.texts import count_text
from sacristan.runs.rerun.checking import CheckedLine, Difference, check_lines, command_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sacristan.runs.rerun.checking import CommandLine

__all__ = ["JSON", "add_arguments", "main"]

_EPILOG = """In SCRIPT, Sacred's Experiment, Ingredient and observers are replaced; no file is changed, and nothing is
recorded. What the script does before its experiment starts, it does twice for each line. The exit code is 0 if all
lines are the same, 1 if some differ, and 2 if the script cannot be checked."""


class Checked(TypedDict):
    """A script under stock Sacred and under this lab.

    Attributes:
        script: The script.
        lines: Its command lines; the first one is the script alone.
        num_differing: How many of them differ.
    """

    script: str
    lines: list[CheckedLine]
    num_differing: int


JSON = Checked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "script",
        type=Path,
        metavar="SCRIPT",
        help="the Python file that runs the experiment, or its module, as after `python -m`",
    )
    help = "a file with one command line a line, as in a README: `with lr=0.1`, or `python SCRIPT with lr=0.1`"
    parser.add_argument("--commands", type=Path, metavar="FILE", help=help)
    help = "run the commands of FILE to their end, and compare results and exit codes, too"
    parser.add_argument("--run", action="store_true", help=help)
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print what differs."""
    arguments.error_code = 2
    lines = _lines(arguments)
    progress = Progress()
    checked: list[CheckedLine] = []
    for line in check_lines(arguments.script, lines, is_run=arguments.run):
        checked.append(line)
        progress("command lines", len(checked), len(lines) + 1)
        if not arguments.json:
            _print(line)
    num_differing = sum(bool(line.differences) for line in checked)
    if arguments.json:
        print_json(Checked(script=str(arguments.script), lines=checked, num_differing=num_differing))
    else:
        total = count_text(len(checked), "command line")
        print_text(f"{num_differing} of {total} {'differs' if num_differing == 1 else 'differ'} from stock Sacred")
    return 1 if num_differing else 0


def _lines(arguments: argparse.Namespace) -> Sequence[CommandLine]:
    path = arguments.commands
    if path is None:
        if arguments.run:
            raise LaunchError("--run: got no command lines to run; give a file of them with --commands")
        return ()
    with naming_os_errors(f"{path} cannot be read", "; give a file of command lines to --commands", LaunchError):
        text = path.read_text(encoding="utf-8", errors="replace")
    return command_lines(text, arguments.script)


def _print(line: CheckedLine) -> None:
    print_text(
        f"{'differs' if line.differences else 'same   '}  {line.text or '(no words)'}",
        "red" if line.differences else "",
    )
    for difference in line.differences:
        print_text(f"         {_sentence(difference)}")
    if line.varying:
        print_text(f"         differs from run to run, and is not compared: {', '.join(line.varying)}")
    if not line.differences and line.here.error:
        print_text(f"         both fail: {line.here.error}")


def _sentence(difference: Difference) -> str:
    if difference.kind == "accepted":
        where, error = ("here", difference.here) if difference.here else ("by stock Sacred", difference.sacred)
        return f"rejected {where}: {error}"
    name = difference.name or difference.kind
    sacred, here = (text or "nothing" for text in (difference.sacred, difference.here))
    return f"{name}: {sacred} under stock Sacred, {here} here"
