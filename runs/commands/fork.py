"""`fork`: start a new run from a saved state of another one."""

from __future__ import annotations

import argparse
from pathlib import Path

from sacristan.runs.commands.terminal.arguments import Parser, add_run, open_given, split_rest
from sacristan.runs.commands.terminal.outcomes import begin

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it becomes the experiment's process; its record has the result: `show --json`"

_EPILOG = """Give settings and recipes after `with`, as on the experiment's own command line, and options for the
experiment after --."""


def add_arguments(parser: Parser) -> None:
    """Add the arguments."""
    parser.usage = (
        "%(prog)s [--store WHERE] [--state FILE] [--without OPTION] [--dry] RUN [with SETTING ...] [-- OPTION ...]"
    )
    parser.epilog = _EPILOG
    parser.rest_begins = ("with", "--")
    add_run(parser)
    parser.add_argument("--state", metavar="FILE", help="one of its states, such as step-000000120.pt (the newest)")
    help = "drop an option that the run was started with, such as tensorboard; may be repeated"
    parser.add_argument("--without", action="append", default=[], metavar="OPTION", help=help)
    parser.add_argument("--dry", action="store_true", help="check the settings, show the plan, and do nothing")


def main(arguments: argparse.Namespace) -> int:
    """Replace this process with the new run."""
    from sacristan.runs.rerun.processes import check_settings
    from sacristan.runs.rerun.resuming import fork_launch, with_folder

    updates, options = split_rest(arguments.rest)
    with open_given(arguments) as store:
        run, _ = with_folder(store.get(arguments.run))
        state = None if arguments.state is None else Path(arguments.state)
        launch = fork_launch(run, updates, options, state, arguments.without)
        if arguments.dry:
            check_settings(fork_launch(run, updates, options, state, arguments.without, prints_config=True))
    return begin(launch, f"a new run starts from a state of run {run.id}", dry=arguments.dry)
