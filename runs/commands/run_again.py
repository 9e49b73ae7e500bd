"""Commands that run scripts again: `resume`, `fork`, `work`, `check`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from sacristan.runs.commands.terminal import Parser, add_json, add_run, number, open_given, split_rest
from sacristan.runs.commands.terminal.outcomes import begin
from sacristan.runs.commands.terminal.text import Progress, print_json, print_text, print_to_stderr
from sacristan.runs.errors import LaunchError, naming_os_errors
from sacristan.runs.query.texts import count_text, list_text
from sacristan.runs.rerun.checking import CheckedLine, Difference, check_lines, command_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sacristan.runs.rerun.checking import CommandLine

_RESUME_EPILOG = """\
The process is replaced by the experiment's. Its exit code is the run's: 75 if a signal ended it and its
state is saved, so that a scheduler's requeue can resume it again. Give options for the experiment, such as -m URL,
after --. If the password of a URL was not recorded, give the URL as a setting."""
_STEPS = number(int, lambda value: value > 0, "a number of steps, at least 1")
_FORK_EPILOG = """\
Give settings and recipes after `with`, as on the experiment's own command line, and options for the
experiment after --. A script gets the words after -- behind its own; it starts from the beginning if it keeps no
states."""
_WORK_EPILOG = """\
Starts queued runs (python exp.py -q with ..., sacristan run -q train.py ...), each in its own record. Any
number of workers share a queue, on all machines that can reach the store. Give options for the experiments after
--, such as -m URL with the password, and URLs of the config that were recorded without their passwords after
with."""
_CHECK_EPILOG = """\
In SCRIPT, Sacred's Experiment, Ingredient and observers are replaced; no file is changed, and nothing is
recorded. What the script does before its experiment starts, it does twice for each line. The exit code is 0 if all
lines are the same, 1 if some differ, and 2 if the script cannot be checked."""


class Resume:
    """`resume`: resume an interrupted run in its own record."""

    NO_JSON = "it becomes the experiment's process; its record has the result: `show --json`"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.usage = "%(prog)s [--store WHERE] [--verify K] [--dry] RUN [with SETTING ...] [-- OPTION ...]"
        parser.epilog = _RESUME_EPILOG
        parser.rest_begins = ("with", "--")
        add_run(parser)
        help = "first replay at least the last K recorded steps from an earlier state; resume only if they are the same"
        parser.add_argument("--verify", type=_STEPS, metavar="K", help=help)
        parser.add_argument("--dry", action="store_true", help="show the plan, and do nothing")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.rerun import Record
        from sacristan.runs.rerun.resuming import changed_sources, resume_launch, states_of, with_folder

        settings, options = split_rest(arguments.rest)
        with open_given(arguments) as store:
            run, _ = with_folder(store.get(arguments.run))
            launch = resume_launch(run, options, settings)
            changed = changed_sources(Record(run))
            if changed:
                names = list_text(changed)
                print_to_stderr(f"{len(changed)} of its sources have changed, so it may end differently: {names}")
            if arguments.verify is not None and not arguments.dry:
                from sacristan.runs.rerun.replaying import replay

                print_to_stderr(f"replaying the last {arguments.verify} recorded steps of run {run.id} ...")
                replayed = replay(run, arguments.verify, settings)
                print_text(replayed.text)
                if replayed.first is not None:
                    return 1
            newest = next((state for state in states_of(run) if not state.fault), None)
            where = (
                "its beginning, as no state was saved" if newest is None else f"{newest.path.name}, step {newest.step}"
            )
        return begin(launch, f"run {run.id} is resumed from {where}", dry=arguments.dry)


class Fork:
    """`fork`: start a new run from a saved state of another one."""

    NO_JSON = "it becomes the experiment's process; its record has the result: `show --json`"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.usage = (
            "%(prog)s [--store WHERE] [--state FILE] [--without OPTION] [--dry] RUN [with SETTING ...] [-- OPTION ...]"
        )
        parser.epilog = _FORK_EPILOG
        parser.rest_begins = ("with", "--")
        add_run(parser)
        parser.add_argument("--state", metavar="FILE", help="one of its states, such as step-000000120.pt (the newest)")
        help = "drop an option that the run was started with, such as tensorboard; may be repeated"
        parser.add_argument("--without", action="append", default=[], metavar="OPTION", help=help)
        parser.add_argument("--dry", action="store_true", help="check the settings, show the plan, and do nothing")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.observers.record.identity import FORK_VARIABLE
        from sacristan.runs.rerun.launching import check_settings
        from sacristan.runs.rerun.resuming import fork_launch, with_folder

        updates, options = split_rest(arguments.rest)
        with open_given(arguments) as store:
            run, _ = with_folder(store.get(arguments.run))
            state = None if arguments.state is None else Path(arguments.state)
            launch = fork_launch(run, updates, options, state, arguments.without)
            if arguments.dry and run["meta.script"] is None:  # a script has no settings that could be checked
                check_settings(fork_launch(run, updates, options, state, arguments.without, prints_config=True))
        is_forked = run["meta.script"] is None or FORK_VARIABLE in launch.environment
        origin = f"from a state of run {run.id}" if is_forked else f"as run {run.id} did"
        return begin(launch, f"a new run starts {origin}", dry=arguments.dry)


class Work:
    """`work`: start the runs of the queue one after the other."""

    NO_JSON = "it starts runs until it is stopped; `ls --follow --json` reports them"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.usage = (
            "%(prog)s [--store WHERE] [--workers N] [--until-empty] [--held ID] [with SETTING ...] [-- OPTION ...]"
        )
        parser.epilog = _WORK_EPILOG
        parser.rest_begins = ("with", "--")
        help = "number of concurrent runs (1); they share CPU threads and GPUs"
        parser.add_argument(
            "--workers",
            type=number(int, lambda value: value > 0, "a whole number, at least 1"),
            default=1,
            metavar="N",
            help=help,
        )
        parser.add_argument(
            "--until-empty", action="store_true", help="end when the queue is empty and all runs have ended"
        )
        help = "how often an interrupted run is resumed, except after Ctrl-C (3)"
        parser.add_argument(
            "--retries",
            type=number(int, lambda value: value >= 0, "a whole number of at least 0"),
            default=3,
            metavar="N",
            help=help,
        )
        parser.add_argument("--any-sources", action="store_true", help="also start runs whose sources have changed")
        help = "also start this run, which was queued elsewhere and copied or imported; it brings its own code"
        parser.add_argument("--held", action="append", default=[], metavar="ID", help=help)
        help = "folder for runs of a database without a folder on this machine (my_runs)"
        parser.add_argument("--record-to", type=Path, default=Path("my_runs"), metavar="FOLDER", help=help)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.work import Worker
        from sacristan.runs.work.run_queue import Queue

        settings, options = split_rest(arguments.rest)
        with open_given(arguments) as store:
            queue = Queue(
                store,
                print_to_stderr,
                retries=arguments.retries,
                any_sources=arguments.any_sources,
                record_to=arguments.record_to,
                settings=settings,
                options=options,
            )
            for key in arguments.held:
                queue.enqueue(store.get(key))
            queue.tell_waiting()
            worker = Worker(queue, print_to_stderr, num_places=arguments.workers)
            try:
                worker.work(until_empty=arguments.until_empty)
            finally:
                queue.close()
        if queue.num_skipped:
            number = "1 run waits" if queue.num_skipped == 1 else f"{queue.num_skipped} runs wait"
            print_text(f"{number} in {store.where} and cannot be started here, for the reasons above")
        elif worker.num_started == 0:
            print_text(f"no run waits in {store.where}")
        return 1 if worker.num_failed else 0


class Checked(TypedDict):
    """A script under stock Sacred and under this lab."""

    script: Annotated[str, "The script."]
    lines: Annotated[list[CheckedLine], "Its command lines; the first one is the script alone."]
    num_differing: Annotated[int, "How many of them differ."]


class Check:
    """`check`: run a script of stock Sacred under stock Sacred and under this lab, and compare."""

    JSON = Checked

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _CHECK_EPILOG
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

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        arguments.error_code = 2
        lines = _lines(arguments)
        progress = Progress()
        checked: list[CheckedLine] = []
        for line in check_lines(arguments.script, lines, is_run=arguments.run):
            checked.append(line)
            progress("command lines", len(checked), len(lines) + 1)
            if not arguments.json:
                _print_checked(line)
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


def _print_checked(line: CheckedLine) -> None:
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
