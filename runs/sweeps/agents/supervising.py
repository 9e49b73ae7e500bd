"""Agents of a sweep: started, shown, started again when they are killed, and ended; on this machine or a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from runs.errors import SweepError
from runs.rerun.processes import end_text
from runs.sweeps.agents.agent_process import END_BOUND_S, AgentProcess, Worker, agent_request
from runs.sweeps.agents.trials import Means
from runs.sweeps.study.place import Place
from runs.sweeps.views.status import Status, Watcher, parameters_text, say, status_lines
from runs.work.printed import printed_lines

__all__ = ["display", "supervise"]

_LOOK_S = 0.5
# After so many ends of agents without a point that has ended between them, no other one will do better: by an error of
# their own, and by a signal.
_MOST_ERRORS, _MOST_KILLS = 3, 20


def supervise(
    place: Place,
    id: str,
    means: Means,
    workers: Sequence[dict[str, str]],
    log: Path,
    show: Callable[[str], None] = say,
    start: Callable[[dict[str, Any], IO[bytes]], Worker] = AgentProcess,
) -> Status:
    """Let agents work on a sweep until it is done, and show how it stands; return that.

    Args:
        place: Where the sweep is kept.
        id: The sweep's.
        means: What the agents work with.
        workers: For each agent, the variables to set for its runs.
        log: A file for what the runs print.
        show: Takes lines.
        start: Starts an agent with a request and an open `log`; by default a process on this machine.

    Raises:
        SweepError: If the agents end as soon as they are started.
        KeyboardInterrupt: When the agents have ended, after a Ctrl-C.
    """
    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        before = watcher.look()
        if before.is_done:
            return before
        with log.open("ab") as stream, display(show, before, watcher) as look:

            def begin(variables: dict[str, str]) -> Worker:
                own = dataclasses.replace(means, environment={**means.environment, **variables})
                return start(agent_request(place, id, own), stream)

            crew = _Crew(begin, workers, log)
            try:
                status, is_waiting = before, False
                while crew.is_working or _is_unfinished(status, means):
                    status = watcher.look()
                    crew.look(status)
                    if not crew.is_working and _is_unfinished(status, means):
                        if not is_waiting:
                            show("no point is left; waiting for the points of other agents")
                        is_waiting = True
                        crew.reinforce(status)
                    look(status)
                    time.sleep(_LOOK_S)
            except BaseException:
                crew.end()
                raise
            status = watcher.look()
            look(status)
        return status


def _is_unfinished(status: Status, means: Means) -> bool:
    """Tell whether points are left, such as those that agents of others are at, or were when they were lost."""
    is_late = means.deadline is not None and time.time() >= means.deadline
    return not (status.is_done or status.is_stopped or is_late)


class _Crew:
    """The agents of one `supervise`.

    Args:
        begin: Starts an agent with these variables.
        workers: For each agent, its variables.
        log: Where the agents say what is wrong.
    """

    def __init__(self, begin: Callable[[dict[str, str]], Worker], workers: Sequence[dict[str, str]], log: Path) -> None:
        self._begin, self._log, self._log_start = begin, log, log.stat().st_size
        self._running: list[tuple[dict[str, str], Worker]] = []
        self._spare: dict[str, str] = dict(workers[0]) if workers else {}
        self._errors = self._kills = self._finished = 0
        try:
            for variables in workers:
                self._running.append((variables, begin(variables)))
        except BaseException:
            self.end()
            raise

    @property
    def is_working(self) -> bool:
        """True if an agent works or waits for a place."""
        return bool(self._running)

    def look(self, status: Status) -> None:
        """Start agents again that were killed.

        Raises:
            SweepError: If they end before they get anything done.
        """
        if status.num_finished > self._finished:
            self._errors, self._kills, self._finished = 0, 0, status.num_finished
        for variables, worker in list(self._running):
            code = worker.poll()
            if code is not None:
                self._remove(variables, worker)
                self._replace(variables, code)

    def reinforce(self, status: Status) -> None:
        """Start another agent for what one has left undone, once none is alive: a lease may run out some time later.

        Raises:
            SweepError: If that has been done often, and nothing came of it.
        """
        if status.num_agents == 0:
            self._replace(self._spare, -signal.SIGKILL)

    def _remove(self, variables: dict[str, str], worker: Worker) -> None:
        self._running.remove((variables, worker))
        worker.release()

    def _replace(self, variables: dict[str, str], code: int) -> None:
        if code == 0:  # nothing is left to take, for those that have not begun as well
            for entry in [entry for entry in self._running if entry[1].is_waiting]:
                entry[1].interrupt(signal.SIGKILL)
                self._remove(*entry)
            return
        self._errors, self._kills = self._errors + (code > 0), self._kills + (code < 0)
        if self._errors >= _MOST_ERRORS or self._kills >= _MOST_KILLS:
            lines = printed_lines(self._log, self._log_start) if code > 0 else []
            why = f": {lines[-1].strip()}" if lines else ""
            raise SweepError(
                f"agents end before they get anything done, the last one by {end_text(code)}{why}; see {self._log}"
            )
        self._running.append((variables, self._begin(variables)))

    def end(self) -> None:
        """Interrupt the agents, and wait for them; kill them after a second Ctrl-C, or when they take too long."""
        for _, worker in self._running:
            worker.interrupt(signal.SIGKILL if worker.is_waiting else signal.SIGINT)
        deadline = time.monotonic() + END_BOUND_S
        for _, worker in self._running:
            try:
                has_ended = worker.wait(max(deadline - time.monotonic(), 0.1))
            except KeyboardInterrupt:
                has_ended = False
            if not has_ended:
                worker.interrupt(signal.SIGKILL)
                worker.wait(None)
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

        self._live.update(Text("\n".join(status_lines(status, names)), no_wrap=True, overflow="ellipsis"), refresh=True)


@contextlib.contextmanager
def display(show: Callable[[str], None], before: Status, watcher: Watcher) -> Iterator[Callable[[Status], None]]:
    """Give a function that shows how a sweep stands: a table in a terminal, elsewhere a line for each point that ends.

    Args:
        show: Takes lines.
        before: How it stood before; of that nothing is said.
        watcher: Knows what the sweep is about.
    """
    names = tuple(objective.name for objective in watcher.spec.objectives)
    if not sys.stdout.isatty():
        lines = _Lines(show, before)
        yield lambda status: lines.look(status, names)
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live, _logging_above():
        table = _Table(live)
        yield lambda status: table.look(status, names)


@contextlib.contextmanager
def _logging_above() -> Iterator[None]:
    """Let what is logged go to where stderr is redirected to: above the table, not into its lines."""
    terminal = sys.__stderr__
    streaming = [one for one in logging.getLogger().handlers if isinstance(one, logging.StreamHandler)]
    handlers = [one for one in streaming if one.stream is terminal]
    for handler in handlers:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(terminal)
