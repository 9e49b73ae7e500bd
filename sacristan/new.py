"""`sacristan new`: write an experiment, or a project, to start from."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from sacristan.runs.errors import RunsError

__all__ = ["add_arguments", "main"]

_NEXT = """\
Train, look at the settings, follow the recipe, look at the runs, test:
  python {script}
  python {script} print_config
  python {script} with {recipe}
  sacristan ls
  {test}
"""
_NEXT_OF_PROJECT = """\
Go there and commit it; README.md says how to install it elsewhere.
  cd {name} && git add . && git commit -m 'Start {name}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="its name: letters, digits and underscores")
    parser.add_argument(
        "--project", action="store_true", help="create a folder NAME: a git repository with its own package"
    )


def main(arguments: argparse.Namespace) -> int:
    """Write the files, and print what to do with them."""
    from sacristan.experiments.new import write_experiment, write_project
    from sacristan.ingredients.errors import LabError
    from sacristan.runs.commands.terminal.text import print_to_stderr

    write = write_project if arguments.project else write_experiment
    try:
        paths = write(arguments.name, Path.cwd())
    except LabError as error:
        raise RunsError(str(error)) from error
    except KeyboardInterrupt:
        print_to_stderr("error: interrupted; nothing was written")
        return 130
    _print_next(arguments.name, paths, is_project=arguments.project)
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
