"""The commands of `sacristan` and their parser; `sacristan run` does without, so that scripts start at once."""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

from sacristan.configs.nearest import word_suggestion
from sacristan.configs.standard_streams import OutputError, checked_output, hold_standard_descriptors
from sacristan.runs.commands import COMMANDS, GROUPS, load, name_of
from sacristan.runs.commands.terminal import Parser, add_store
from sacristan.runs.errors import RunsError

__all__ = ["make_parser", "run_command"]

_START = "start experiments"
_RUN = "run a Python script as it is, and record it: sacristan run train.py --lr 3e-4"
_NEW = "create an experiment in this folder, with an ingredient, a recipe and a test; or a project"
# Experiments that need no file of the user's: the module of each in `sacristan.experiments`, and its line in --help.
READY = {
    "text": "classify texts, or predict a number from them",
    "tabular": "learn from a CSV file with columns of numbers and categories",
    "segment": "segment images",
    "finetune": "train a network further that was trained before",
    "language_model": "train a GPT on the characters of a text",
    "gan": "train a generative adversarial network on images",
    "lightning": "train a LightningModule",
}

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


def run_command(words: Sequence[str]) -> int:
    """Run the command that the words name, unless it is `run`, and return its exit code."""
    if words[:1] and words[0] in READY:
        return _run_experiment(*words)
    hold_standard_descriptors()
    try:
        with checked_output():
            return _run(words)
    except KeyboardInterrupt:
        return 130
    except OutputError as error:
        error.tell()
        return error.code


def _run_experiment(name: str, *words: str) -> int:
    """Become `python -m sacristan.experiments.NAME`, which finds the user's modules in the working folder."""
    sys.argv[1:] = words
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # noqa: PTH109 - as Python does for -m
    runpy.run_module(f"sacristan.experiments.{name}", run_name="__main__", alter_sys=True)
    return 0


def _run(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(make_parser())
    if note := _other_lab():
        sys.stderr.write(f"{note}\n")
    parser = make_parser(words)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    for stream in (sys.stdout, sys.stderr):
        # Names of files may be no text, and terminals may lack characters.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return arguments.command(arguments)
    except RunsError as error:
        from sacristan.runs.commands.terminal.text import print_to_stderr

        print_to_stderr(f"error: {error}")
        return arguments.error_code


def _other_lab() -> str | None:
    """Return a sentence that names this lab, if the working folder is a checkout of another one; else None."""
    root = Path(__file__).parents[1]
    is_lab = all(Path(file).is_file() for file in ("configs/map.py", "experiments/experiment.py", "runs/__main__.py"))
    if not is_lab or Path().samefile(root):
        return None
    return f"note: this is the lab in {root}; for the one in this folder, write python -m sacristan"


class _GroupingParser(Parser):
    """A parser whose help lists its commands by purpose."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject an unknown command, and name the nearest ones: all of them would fill a terminal."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            hint = word_suggestion(value, action.choices, "", most=3)
            near = f"{hint}; " if hint else ""
            self.exit(2, f"error: got {value!r}, which is no command; {near}{self.prog} --help lists all\n")
        super()._check_value(action, value)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        [commands] = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        listed = {action.dest: action for action in commands._choices_actions}
        for title, homes in {_START: ["run", "new", *READY], **GROUPS}.items():
            formatter.start_section(title)
            formatter.add_arguments([listed[name_of(home)] for home in homes])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not commands])
        formatter.end_section()
        return formatter.format_help()


def make_parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    A command that is not among `words` is only listed, and its module not imported; without any words, all commands are
    there.
    """
    prog = "runs" if Path(sys.argv[0]).stem == "runs" else "sacristan"
    parser = _GroupingParser(prog=prog, description="Start experiments; find, compare, resume and reproduce past runs.")
    add_store(parser, default=None)
    parser.set_defaults(command=None, error_code=1)
    listed = Parser(add_help=False)  # one for all that are only listed: to make it takes longer than to parse

    def parser_of(*, is_listed: bool, **options: Any) -> Parser:
        return listed if is_listed else Parser(**options)

    commands = parser.add_subparsers(metavar="COMMAND", parser_class=cast("type[Parser]", parser_of))
    for home, help in {"new": _NEW, **COMMANDS}.items():
        name = name_of(home)
        is_listed = words is not None and name not in words
        description = f"{help[0].upper()}{help[1:]}."
        command = commands.add_parser(name, help=help, description=description, is_listed=is_listed)
        if not is_listed:
            loaded: Any = _New if name == "new" else load(home)
            if name != "new":
                add_store(command)
            loaded.add_arguments(command)
            command.set_defaults(command=loaded.main, parser=command)
    for name, help in {"run": _RUN, **READY}.items():  # run before anything is parsed
        commands.add_parser(name, help=help, is_listed=True)
    return parser


class _New:
    """`sacristan new`: write an experiment, or a project, to start from."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command."""
        parser.add_argument("name", metavar="NAME", help="its name: letters, digits and underscores")
        parser.add_argument(
            "--project", action="store_true", help="create a folder NAME: a git repository with its own package"
        )

    @staticmethod
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
