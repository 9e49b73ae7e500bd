"""The commands of `python -m runs`, one module a command.

A module has `add_arguments(parser)`, which says what may be typed behind the command, and `main(arguments)`, which does
the work and returns the exit code. What it needs for that it imports when it runs, so that a shell's completion and
`--help` start fast. Commands parse, call and print; what they print is found by the library, and what they share lies
in `runs.commands.terminal`. No command imports another.
"""

from __future__ import annotations

__all__ = ["COMMANDS"]

# The module of each command, and its line in `runs --help`. A command is called like its module, less the underscore
# (PEP 8's) where the name is a keyword or a module of the standard library.
COMMANDS = {
    "ls": "list runs, newest first",
    "show": "show one run: times, config, result, metrics, and why it failed",
    "config": "print the config of a run as YAML, for `with FILE.yaml`",
    "log": "print what a run wrote to its terminal",
    "metrics": "show the metrics of a run, or the points of some",
    "diff": "show what differs between two runs: config, sources, packages, git, results, metrics",
    "compare": "compare groups of runs by a metric, with tests",
    "plot": "draw curves, on the terminal or as a picture",
    "report": "write runs as one HTML file to send to somebody",
    "board": "look at runs in the browser",
    "tag": "attach words to a run, by which ls --tag finds it",
    "note": "show what is written about a run, or replace it",
    "rm": "move runs into the trash, or remove them for good",
    "restore": "bring runs back out of the trash, or list it",
    "gc_": "empty the trash; remove what crashes left behind, and files that no run uses",
    "export": "write whole runs into one archive, or a table of runs or metrics",
    "card": "write what a model is, from the record of its run, as a page of Markdown",
    "import_": "import the runs of an archive",
    "copy_": "copy runs into another folder or database, with all that they hold",
    "artifacts": "list or get the files that a run made",
    "sources": "list or get the sources that a run was made of",
    "work": "start the runs that were queued, on any number of machines",
    "resume": "resume a run that was cut off, in its own record, from its newest state",
    "fork": "start a new run from a state of a run, with a changed config",
    "reproduce": "run a past run again from its record, and judge whether the same comes out",
    "sync": "deliver to MongoDB what outages and killed processes left behind",
    "reap": "write DEAD into runs whose process is gone",
    "reindex": "build the index over the runs anew, and name what cannot be read",
    "mongod": "start a local MongoDB, until Ctrl-C",
    "completion": "print what makes a shell complete `runs`",
}
