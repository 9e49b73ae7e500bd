"""The subcommands of `sacristan` for past runs, one module each.

A module has `add_arguments(parser)`, which declares the arguments, and `main(arguments)`, which does the work and
returns the exit code. It also has `JSON`, the type of the document that `--json` prints, or `NO_JSON`, the reason why
there is none. Modules import what their work needs when they run, so that a shell's completion and `--help` start fast.
Commands parse, call and print; the library computes what they print, and `sacristan.runs.commands.terminal` holds what
they share. No command imports another.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["COMMANDS", "GROUPS", "reasons_without_json", "schemas"]

# The module of each command by purpose, and its line in `sacristan --help`. A command is called like its module, less
# the underscore (PEP 8's) where the name is a keyword or a module of the standard library.
GROUPS = {
    "look at runs": {
        "ls": "list runs, newest first",
        "show": "show one run: times, config, result, metrics, and why it failed",
        "config": "print the config of a run as YAML, for `with FILE.yaml`",
        "log": "print the output of a run",
        "metrics": "show the metrics of a run, or the points of some",
        "artifacts": "list a run's artifacts and checkpoints, or copy them to a folder",
        "sources": "list a run's source files, or copy them to a folder",
        "board": "show runs in the browser",
        "watch": "report runs that failed, died or finished, as lines or notifications",
    },
    "comparisons and reports": {
        "diff": "show the differences between two runs: config, sources, packages, git, results, metrics",
        "compare": "compare groups of runs by a metric, with tests",
        "plot": "draw curves, on the terminal or as a picture",
        "report": "write runs as one HTML file to send to somebody",
        "card": "write a model card, a Markdown page, from the record of a run",
    },
    "run again": {
        "resume": "resume an interrupted run in its own record, from its newest state",
        "fork": "start a new run from the state of another run, with a changed config",
        "reproduce": "run a past run again from its record, and judge the result",
        "work": "start queued runs, on any number of machines",
        "sweep": "try settings of a script, and find the best: sacristan sweep train.py --over ...",
        "check": "compare a script of stock Sacred with itself under this lab, before you move",
    },
    "describe and remove": {
        "tag": "add tags to a run, for ls --tag",
        "rename": "give a run a display name, which lists and legends show",
        "note": "show the note of a run, or replace it",
        "rm": "move runs to the trash, or delete them",
        "restore": "list the trash, or restore runs from it",
        "gc_": "empty the trash; delete leftovers of crashes, and files that no run uses",
    },
    "move between stores": {
        "export": "write whole runs into one archive, or a table of runs or metrics",
        "import_": "import the runs of an archive",
        "copy_": "copy whole runs to another folder or database",
        "sync": "send runs to MongoDB that outages and killed processes left behind",
    },
    "look after stores": {
        "reap": "mark runs as DEAD whose process is gone",
        "reindex": "rebuild the index of the runs, and name unreadable ones",
        "mongod": "start a local MongoDB, until Ctrl-C",
        "tokens": "add, list and revoke tokens for the board",
    },
    "tools": {
        "docs": "open the documentation, or the page that fits some words",
        "mcp": "answer a coding agent's questions about runs, over the Model Context Protocol",
        "schema": "print the JSON Schema of a command's --json",
        "completion": "print the completion script of a shell",
    },
}
COMMANDS = {module: help for group in GROUPS.values() for module, help in group.items()}


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each command that takes `--json`, by its name."""
    from sacristan.runs.documents.schemas import schema_of

    return {name: schema_of(name, kind) for name, kind in _values("JSON").items()}


def reasons_without_json() -> dict[str, str]:
    """Return why each of the other commands has no `--json`, by its name."""
    return _values("NO_JSON")


def _values(attribute: str) -> dict[str, Any]:
    """Return an attribute of the modules that have it, by the names of their commands."""
    modules = {name.rstrip("_"): importlib.import_module(f"sacristan.runs.commands.{name}") for name in COMMANDS}
    return {name: getattr(module, attribute) for name, module in modules.items() if hasattr(module, attribute)}
