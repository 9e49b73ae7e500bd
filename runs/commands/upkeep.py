"""Commands that look after stores: `reap`, `reindex`, `watch`, `mongod`."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from sacristan.runs.commands import terminal
from sacristan.runs.commands.terminal.text import Progress, print_json, print_text, print_to_stderr

if TYPE_CHECKING:
    from sacristan.runs.work.watching import Notice

_WATCH_EPILOG = """\
Addresses are read from $SACRISTAN_NOTIFY, or from ~/.config/sacristan/notify with mode 0600. Runs that
have addresses send their own messages; watch --notify sends those of the others, and of killed runs. Any number of
watchers send a message once."""


class Reaped(TypedDict):
    """A run that was marked as DEAD."""

    run: Annotated[str, "Its folder, or its id in the database."]
    uid: Annotated[str | None, "Globally unique id; null for a run of stock Sacred."]
    status: Annotated[str, "DEAD."]


class Reap:
    """`reap`: mark runs whose process is gone as DEAD."""

    JSON = list[Reaped]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        terminal.add_store_place(parser, "folder of runs, or mongodb:// URL")
        terminal.add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.transfer.syncing import reap

        reaped = reap(terminal.where_of(arguments))
        if arguments.json:
            print_json([Reaped(run=str(run), uid=uid, status="DEAD") for run, uid in reaped])
            return 0
        for run, uid in reaped:
            print_text(f"{run}: DEAD ({uid})")
        return 0


class Problem(TypedDict):
    """A run that cannot be read completely."""

    id: Annotated[str, "Its id."]
    reason: Annotated[str, "Why it cannot be read."]


class Reindexed(TypedDict):
    """A new index."""

    num_runs: Annotated[int, "Number of runs in the index, including unreadable ones."]
    seconds: Annotated[float, "Seconds that it took."]
    index: Annotated[str | None, "The file; null in memory."]
    problems: Annotated[list[Problem], "Runs that cannot be read completely."]


class Reindex:
    """`reindex`: rebuild the index over a folder of runs."""

    JSON = Reindexed

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        terminal.add_store_place(parser, "folder of runs")
        terminal.add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.query.index import Index

        store = terminal.folder_of(arguments)
        with Index(store, Progress()) as index:
            began = time.monotonic()
            done = index.rebuild()
            seconds, problems = time.monotonic() - began, index.problems()
            if arguments.json:
                named = [Problem(id=name, reason=reason) for name, reason in problems]
                path = None if index.path is None else str(index.path)
                print_json(Reindexed(num_runs=done.num_runs, seconds=seconds, index=path, problems=named))
                return 0
            for name, reason in problems:
                print_text(f"{store / name}: {reason}")
            where = index.path or "memory, as neither the folder nor a cache can be written"
            print_text(f"{done.num_runs} runs in {seconds:.1f} s, {done.num_problems} with problems ({where})")
        return 0


class Watched(TypedDict):
    """Something that happened; one a line."""

    run: Annotated[str, "The run, or the last one of the queue or the sweep."]
    uid: Annotated[str | None, "The run, or the last one of the queue or the sweep."]
    event: Annotated[
        str,
        "`failed`, `dead`, `finished` or `queue_empty`, after a resume with the number of the session; `sweep_done`; "
        "or an alert.",
    ]
    level: Annotated[str, "`info`, `success`, `warning` or `error`."]
    text: Annotated[str, "What happened, in a line or more."]


class Watch:
    """`watch`: report failed, dead and finished runs, an empty queue and finished sweeps, as lines or notifications."""

    JSON = Watched

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _WATCH_EPILOG
        terminal.add_store_place(parser, "folder of runs, or mongodb:// URL")
        parser.add_argument("--notify", action="store_true", help="send what is printed to the addresses")
        seconds = terminal.number(float, lambda value: 0.1 <= value < math.inf, "a number of seconds of at least 0.1")
        parser.add_argument(
            "--interval", type=seconds, default=10.0, metavar="S", help="seconds between two looks (10)"
        )
        hours = terminal.number(float, lambda value: 0 < value <= 24 * 365, "a number of hours above 0")
        help = "how many hours to look back (24)"
        parser.add_argument("--back", type=hours, default=24.0, metavar="HOURS", help=help)
        parser.add_argument("--once", action="store_true", help="look once, such as from cron")
        group = parser.add_mutually_exclusive_group()
        help = "send a test message to each address, and say which ones took it"
        group.add_argument("--test", action="store_true", help=help)
        terminal.add_json(group)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.observers.errors import MissingExtraError, NotifyError
        from sacristan.observers.notifying import finished_after_s, read_addresses

        try:
            after_s = finished_after_s()
            addresses = read_addresses() if arguments.notify or arguments.test else []
        except (NotifyError, MissingExtraError) as error:
            print_to_stderr(f"error: {error}")
            return 2
        if (arguments.notify or arguments.test) and not addresses:
            print_to_stderr("error: no addresses; set SACRISTAN_NOTIFY, for example to mailto://USER:PASSWORD@HOST")
            return 2
        return _test(addresses) if arguments.test else _watch(arguments, addresses, after_s)


def _watch(arguments: argparse.Namespace, addresses: list[str], after_s: float) -> int:
    from sacristan.runs.errors import StoreError
    from sacristan.runs.sweeps.views import Digests
    from sacristan.runs.work.watching import Outbox, RecentRuns

    back = timedelta(hours=arguments.back)
    with terminal.open_given(arguments) as store:
        recent = RecentRuns(store, back)
        outbox, digests = Outbox(store, addresses, print_to_stderr), Digests(store, print_to_stderr)
        try:
            while True:
                try:
                    recent.look()
                    notices = [
                        *recent.notices(after_s, outbox.done, is_sending=bool(addresses)),
                        *digests.notices(recent, outbox.done),
                    ]
                    for notice in outbox.send(notices):
                        _print(notice, in_json=arguments.json)
                    sys.stdout.flush()
                except StoreError as error:
                    if arguments.once:
                        raise
                    print_to_stderr(f"note: {error}; trying again")
                if arguments.once:
                    return int(outbox.has_untaken)
                time.sleep(arguments.interval)
        finally:
            digests.close()


def _print(notice: Notice, *, in_json: bool) -> None:
    if in_json:
        run = notice.run
        document = Watched(run=run.id, uid=run.uid, event=notice.event, level=notice.level, text=notice.text)
        print_json(document, in_one_line=True)
        return
    for line in notice.text.splitlines():
        print_text(line)


def _test(addresses: list[str]) -> int:
    from sacristan.observers.notifying import Message, Sending

    problems = Sending(Message("test of Sacristan", "Notifications arrive here."), addresses).problems()
    for problem in problems:
        print_to_stderr(f"not sent: {problem}")
    print_text(f"{len(addresses) - len(problems)} of {len(addresses)} addresses took the message")
    return 1 if problems else 0


class Mongod:
    """`mongod`: your own database server."""

    NO_JSON = "it is a server"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--folder", type=Path, help="its data (_mongod in the folder of runs)")
        parser.add_argument("--port", type=terminal.port, default=27017, help="its port; 0 takes a free one (27017)")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        """Start the server, and stop it on Ctrl-C or SIGTERM."""
        from sacristan.runs.work.mongod import Mongod

        def stop(signal_number: int, frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        # Where runs go to a database, there is no folder of runs, and the usual one is taken.
        usual = Path("my_runs") if terminal.is_url(terminal.where_of(arguments)) else terminal.folder_of(arguments)
        with Mongod(arguments.folder or usual / "_mongod", arguments.port) as server:
            print(f"{server.url}  (data in {server.folder}; Ctrl-C stops it)", flush=True)
            try:
                return server.wait()
            except KeyboardInterrupt:
                return 0
