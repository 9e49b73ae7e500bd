"""The subcommands of `sacristan` for past runs.

A command is a module, or a class in a module of related short commands. It has `add_arguments(parser)`, which declares
the arguments, and `main(arguments)`, which does the work and returns the exit code. It also has `JSON`, the type of the
document that `--json` prints, or `NO_JSON`, the reason why there is none. Modules import what their work needs when
they run, so that a shell's completion and `--help` start fast. Commands parse, call and print; the library computes
what they print, and `sacristan.runs.commands.terminal` holds what they share. No command imports another.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["COMMANDS", "GROUPS", "load", "name_of", "reasons_without_json", "schemas"]

# The home of each command by purpose, and its line in `sacristan --help`: a module, or a module and a class. The last
# part of the home is the name of the command.
GROUPS = {
    "look at runs": {
        "ls": "list runs, newest first",
        "show": "show one run: times, config, result, metrics, and why it failed",
        "run_parts.Config": "print the config of a run as YAML, for `with FILE.yaml`",
        "run_parts.Log": "print the output of a run",
        "run_parts.Metrics": "show the metrics of a run, or the points of some",
        "artifacts": "list a run's artifacts and checkpoints, or copy them to a folder",
        "run_parts.Sources": "list a run's source files, or copy them to a folder",
        "board.Board": "show runs in the browser",
        "upkeep.Watch": "report runs that failed, died or finished, as lines or notifications",
    },
    "comparisons and reports": {
        "comparisons.Diff": "show the differences between two runs: config, sources, packages, git, results, metrics",
        "comparisons.Compare": "compare groups of runs by a metric, with tests",
        "plot": "draw curves, on the terminal or as a picture",
        "comparisons.Report": "write runs as one HTML file to send to somebody",
        "comparisons.Card": "write a model card, a Markdown page, from the record of a run",
    },
    "run again": {
        "run_again.Resume": "resume an interrupted run in its own record, from its newest state",
        "run_again.Fork": "start a new run from the state of another run, with a changed config",
        "reproduce": "run a past run again from its record, and judge the result",
        "run_again.Work": "start queued runs, on any number of machines",
        "sweep": "try settings of a script, and find the best: sacristan sweep train.py --over ...",
        "run_again.Check": "compare a script of stock Sacred with itself under this lab, before you move",
    },
    "describe and remove": {
        "changing.Tag": "add tags to a run, for ls --tag",
        "changing.Rename": "give a run a display name, which lists and legends show",
        "changing.Note": "show the note of a run, or replace it",
        "changing.Rm": "move runs to the trash, or delete them",
        "changing.Restore": "list the trash, or restore runs from it",
        "changing.Gc": "empty the trash; delete leftovers of crashes, and files that no run uses",
    },
    "move between stores": {
        "export": "write whole runs into one archive, or a table of runs or metrics",
        "moving.Import": "import the runs of an archive",
        "moving.Copy": "copy whole runs to another folder or database",
        "moving.Sync": "send runs to MongoDB that outages and killed processes left behind",
    },
    "look after stores": {
        "upkeep.Reap": "mark runs as DEAD whose process is gone",
        "upkeep.Reindex": "rebuild the index of the runs, and name unreadable ones",
        "upkeep.Mongod": "start a local MongoDB, until Ctrl-C",
        "board.Tokens": "add, list and revoke tokens for the board",
    },
    "tools": {
        "tools.Docs": "open the documentation, or the page that fits some words",
        "tools.Mcp": "answer a coding agent's questions about runs, over the Model Context Protocol",
        "tools.Schema": "print the JSON Schema of a command's --json",
        "tools.Completion": "print the completion script of a shell",
    },
}
COMMANDS = {home: help for group in GROUPS.values() for home, help in group.items()}


def name_of(home: str) -> str:
    """Return the name of the command in a module (`ls`) or a class (`changing.Tag`)."""
    return home.rpartition(".")[2].lower()


def load(home: str) -> Any:
    """Import the module or class of a command."""
    module, _, name = home.partition(".")
    loaded = importlib.import_module(f"{__name__}.{module}")
    return getattr(loaded, name) if name else loaded


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each command that takes `--json`, by its name."""
    from sacristan.runs.documents import schema_of

    return {name: schema_of(name, kind) for name, kind in _values("JSON").items()}


def reasons_without_json() -> dict[str, str]:
    """Return why each of the other commands has no `--json`, by its name."""
    return _values("NO_JSON")


def _values(attribute: str) -> dict[str, Any]:
    """Return an attribute of the commands that have it, by their names."""
    commands = {name_of(home): load(home) for home in COMMANDS}
    return {name: getattr(command, attribute) for name, command in commands.items() if hasattr(command, attribute)}
