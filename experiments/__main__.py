"""The command line of this package: `python -m experiments new` writes experiments and projects."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.printing import OutputError, checked_output
from experiments.new import write_experiment, write_project
from ingredients.errors import LabError

__all__ = ["main"]

_NEXT = """\
Train, look at the settings, follow the recipe, look at the runs, test:
  python {script}
  python {script} print_config
  python {script} with {recipe}
  python -m runs ls
  {test}
"""
_NEXT_OF_PROJECT = """\
Go there and commit it; README.md says how to install it elsewhere.
  cd {name} && git add . && git commit -m 'Start {name}'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Start your own experiment.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    help = "create an experiment with its own ingredient, a recipe and a test in this folder; or a project of them"
    new = commands.add_parser("new", help=help, description=f"{help[0].upper()}{help[1:]}.")
    new.add_argument("name", metavar="NAME", help="its name: letters, digits and underscores")
    new.add_argument(
        "--project", action="store_true", help="create a folder NAME: a git repository with its own package"
    )
    arguments = parser.parse_args(argv)
    try:
        write = write_project if arguments.project else write_experiment
        paths = write(arguments.name, Path.cwd())
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written", file=sys.stderr)
        return 130
    try:
        with checked_output():
            _print_next(arguments.name, paths, is_project=arguments.project)
    except OutputError as error:
        error.tell()
        return error.code
    return 0


def _print_next(name: str, paths: Sequence[Path], *, is_project: bool) -> None:
    if is_project:
        print(f"Wrote {name}/, a git repository with {len(paths)} files.")
        print(_NEXT_OF_PROJECT.format(name=name), end="")
        print(_NEXT.format(script="exp.py", recipe=f"recipes/{name}.yaml", test=_test_command("")), end="")
    else:
        print(f"Wrote {', '.join(path.name for path in paths)}.")
        print(_NEXT.format(script=f"{name}.py", recipe=f"{name}.yaml", test=_test_command(f" test_{name}.py")), end="")


def _test_command(files: str) -> str:
    command = f"python -m pytest{files}"
    return command if importlib.util.find_spec("pytest") else f"pip install pytest && {command}"


if __name__ == "__main__":
    sys.exit(main())
