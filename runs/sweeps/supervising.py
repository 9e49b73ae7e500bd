"""Agents on this machine, as processes: started, shown, started again when they are killed, and ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from runs.errors import SweepError
from runs.rerun.ending import EndsWithUs
from runs.rerun.wording import end_text
from runs.sweeps.agent import Means
from runs.sweeps.place import Place
from runs.sweeps.status import Status, Watcher, parameters_text, status_lines

__all__ = ["divided_threads", "supervise"]

_LOOK_S = 0.5
# An agent that is interrupted waits for its run, which saves its state.
_END_BOUND_S = 90
# After so many ends of agents without a point that has ended between them, no other one will do better: by an error of
# their own, and by a signal.
_MOST_ERRORS, _MOST_KILLS = 3, 20


class _Worker:
    """An agent's process, and the end that it has with this one."""

    def __init__(self, request: dict[str, Any], log: IO[bytes]) -> None:
        root = Path(__file__).parents[2]
        search = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runs.sweeps.worker"],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,  # a Ctrl-C reaches it once, from here
        )
        self._bond = EndsWithUs(self.process.pid, _END_BOUND_S)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.close()

    def interrupt(self, number: int) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def release(self) -> None:
        self._bond.release()


def divided_threads(workers: int) -> dict[str, str]:
    """Return the variables that divide the CPU's threads among workers, unless the user has divided them.

    Two trainings that each take both cores of two are 5 to 10 times slower than with one each.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(cores // workers, 1))}


def supervise(
    place: Place,
    id: str,
    means: Means,
    workers: Sequence[dict[str, str]],
    log: Path,
    show: Callable[[str], None] = print,
) -> Status:
    """Let agents work on a sweep until it is done, and show how it stands; return that.

    Args:
        place: Where the sweep is kept.
        id: The sweep's.
        means: What the agents work with.
        workers: For each agent, the variables to set for its runs.
        log: A file for what the runs print.
        show: Takes lines.

    Raises:
        SweepError: If the agents end as soon as they are started.
        KeyboardInterrupt: When the agents have ended, after a Ctrl-C.
    """
    home = place.home(id)
    watcher = Watcher(home)
    names = tuple(objective.name for objective in watcher.spec.objectives)

    def start(variables: dict[str, str]) -> _Worker:
        own = dataclasses.replace(means, environment={**means.environment, **variables})
        settings = {**dataclasses.asdict(own), "base": str(means.base.absolute()), "output": None}
        return _Worker({"place": place.document(), "id": id, "means": settings}, stream)

    before = watcher.look()
    if before.is_done:
        home.close()
        return before
    with log.open("ab") as stream, _display(show, before) as display:
        running = [(variables, start(variables)) for variables in workers]
        errors = kills = finished = 0
        try:
            while running:
                for entry in list(running):
                    variables, worker = entry
                    code = worker.process.poll()
                    if code is None:
                        continue
                    worker.release()
                    running.remove(entry)
                    if code == 0:
                        continue
                    errors, kills = errors + (code > 0), kills + (code < 0)
                    if errors >= _MOST_ERRORS or kills >= _MOST_KILLS:
                        raise SweepError(
                            f"agents end before they get anything done, the last one by {end_text(code)}; see {log}"
                        )
                    running.append((variables, start(variables)))
                status = watcher.look()
                if status.num_finished > finished:
                    errors, kills, finished = 0, 0, status.num_finished
                display.look(status, names)
                time.sleep(_LOOK_S)
        except BaseException:
            _end([worker for _, worker in running])
            raise
        status = watcher.look()
        display.look(status, names)
    home.close()
    return status


def _end(workers: Sequence[_Worker]) -> None:
    """Interrupt agents, and wait for them; kill them after a second Ctrl-C, or when they take too long."""
    for worker in workers:
        worker.interrupt(signal.SIGINT)
    deadline = time.monotonic() + _END_BOUND_S
    for worker in workers:
        try:
            worker.process.wait(max(deadline - time.monotonic(), 0.1))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            worker.interrupt(signal.SIGKILL)
            worker.process.wait()
        worker.release()


class _Lines:
    """Shows a line for each point that has ended."""

    def __init__(self, show: Callable[[str], None], before: Status) -> None:
        self._show = show
        self._known = {number for number, point in before.points.items() if point.is_finished}

    def look(self, status: Status, names: tuple[str, ...]) -> None:
        for number, point in status.points.items():
            if not point.is_finished or number in self._known:
                continue
            self._known.add(number)
            values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, point.values, strict=False))
            ended = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}[point.state]
            said = values if point.state != "FAIL" else point.notes.get("reason", "")
            of = "" if status.limit is None else f"/{status.limit}"
            self._show(f"[{len(self._known)}{of}] trial {number} {ended}: {said}  {parameters_text(point)}")


class _Table:
    """Draws how a sweep stands, over and over in the same place of a terminal."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def look(self, status: Status, names: tuple[str, ...]) -> None:
        from rich.text import Text

        self._live.update(Text("\n".join(status_lines(status, names)), no_wrap=True, overflow="ellipsis"))


@contextlib.contextmanager
def _display(show: Callable[[str], None], before: Status) -> Iterator[_Lines | _Table]:
    if not sys.stdout.isatty():
        yield _Lines(show, before)
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        yield _Table(live)
