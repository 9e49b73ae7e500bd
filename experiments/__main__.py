"""The command line of this package: `python -m experiments new NAME` writes an experiment to start from."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.printing import OutputError, checked_output
from experiments.new import write_experiment
from ingredients.errors import LabError

__all__ = ["main"]

_NEXT = """\
Train, look at the settings, follow the recipe, look at the runs, test:
  python {name}.py
  python {name}.py print_config
  python {name}.py with {name}.yaml
  python -m runs ls
  {test}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Start your own experiment.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    help = "create an experiment with its own ingredient, a recipe and a test in this folder"
    new = commands.add_parser("new", help=help, description=f"{help[0].upper()}{help[1:]}.")
    new.add_argument("name", metavar="NAME", help="its name: letters, digits and underscores")
    arguments = parser.parse_args(argv)
    try:
        paths = write_experiment(arguments.name, Path.cwd())
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        with checked_output():
            print(f"Wrote {', '.join(path.name for path in paths)}.")
            print(_NEXT.format(name=arguments.name, test=_test_command(arguments.name)), end="")
    except OutputError as error:
        error.tell()
        return error.code
    return 0


def _test_command(name: str) -> str:
    command = f"python -m pytest test_{name}.py"
    return command if importlib.util.find_spec("pytest") else f"pip install pytest && {command}"


if __name__ == "__main__":
    sys.exit(main())
