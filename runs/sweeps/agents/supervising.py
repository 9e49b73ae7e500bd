"""`supervise`: starts the agents of a sweep, replaces those that are killed, shows progress, and ends them."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from sacristan.runs.errors import SweepError
from sacristan.runs.rerun.processes import end_text
from sacristan.runs.sweeps.agents.agent_process import END_BOUND_S, AgentProcess, StartedAgent, agent_request
from sacristan.runs.sweeps.agents.display import display
from sacristan.runs.sweeps.agents.trials import Means
from sacristan.runs.sweeps.study.place import Place
from sacristan.runs.sweeps.views.status import Status, Watcher, say
from sacristan.runs.work.worker import last_lines

__all__ = ["supervise"]

_LOOK_S = 0.5
# After so many agents in a row that ended without a finished point between them, no other one will do better: those
# that ended by an error of their own, and those that a signal killed.
_MOST_ERRORS, _MOST_KILLS = 3, 20


def supervise(
    place: Place,
    id: str,
    means: Means,
    workers: Sequence[dict[str, str]],
    log: Path,
    start: Callable[[dict[str, Any], IO[bytes]], StartedAgent] = AgentProcess,
) -> Status:
    """Run agents on a sweep until it is done, and show its progress.

    `workers` holds the variables of each agent's runs. Ctrl-C raises KeyboardInterrupt once the agents have ended.
    """
    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        before = watcher.look()
        if before.is_done:
            return before
        with log.open("ab") as stream, display(before, watcher) as look:

            def begin(variables: dict[str, str]) -> StartedAgent:
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
                            say("no point is left; waiting for the points of other agents")
                        is_waiting = True
                        crew.reinforce(status)
                    look(status)
                    time.sleep(_LOOK_S)
            except KeyboardInterrupt:
                say("interrupting the agents, whose runs save their states; once more kills them")
                crew.end()
                raise
            except BaseException:
                crew.end()
                raise
            status = watcher.look()
            look(status)
        return status


def _is_unfinished(status: Status, means: Means) -> bool:
    """Tell whether points are left that agents of others run, or ran when they were lost."""
    return not (status.is_done or status.is_stopped or means.is_late)


class _Crew:
    """The agents of one `supervise`.

    Args:
        begin: Starts an agent with these variables.
        workers: For each agent, its variables.
        log: Where the agents write their errors.
    """

    def __init__(
        self, begin: Callable[[dict[str, str]], StartedAgent], workers: Sequence[dict[str, str]], log: Path
    ) -> None:
        self._begin, self._log, self._log_start = begin, log, log.stat().st_size
        self._running: list[tuple[dict[str, str], StartedAgent]] = []
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
        """True if an agent works, or waits for a place."""
        return bool(self._running)

    def look(self, status: Status) -> None:
        """Replace agents that were killed; raise SweepError if they end before they get anything done."""
        if status.num_finished > self._finished:
            self._errors, self._kills, self._finished = 0, 0, status.num_finished
        ended = [(entry, code) for entry in self._running if (code := entry[1].poll()) is not None]
        for entry, _ in ended:
            self._remove(*entry)
        for (variables, _), code in ended:
            self._replace(variables, code)

    def reinforce(self, status: Status) -> None:
        """Start an agent for the points of a lost one once no agent is alive: its lease may expire some time later.

        If that happened often and no point was finished, this raises SweepError.
        """
        if status.num_agents == 0:
            self._replace(self._spare, -signal.SIGKILL)

    def _remove(self, variables: dict[str, str], agent: StartedAgent) -> None:
        self._running.remove((variables, agent))
        agent.release()

    def _replace(self, variables: dict[str, str], code: int) -> None:
        if code == 0:  # nothing is left to take, for agents that have not begun as well
            for entry in [entry for entry in self._running if entry[1].is_waiting]:
                entry[1].interrupt(signal.SIGKILL)
                self._remove(*entry)
            return
        self._errors, self._kills = self._errors + (code > 0), self._kills + (code < 0)
        if self._errors >= _MOST_ERRORS or self._kills >= _MOST_KILLS:
            lines = last_lines(self._log, self._log_start) if code > 0 else []
            why = f": {lines[-1].strip()}" if lines else ""
            raise SweepError(
                f"agents end before they get anything done, the last one by {end_text(code)}{why}; see {self._log}"
            )
        self._running.append((variables, self._begin(variables)))

    def end(self) -> None:
        """Interrupt the agents and wait for them; kill them after a second Ctrl-C, or when they take too long."""
        for _, agent in self._running:
            agent.interrupt(signal.SIGKILL if agent.is_waiting else signal.SIGINT)
        deadline = time.monotonic() + END_BOUND_S
        for _, agent in self._running:
            try:
                has_ended = agent.wait(max(deadline - time.monotonic(), 0.1))
            except KeyboardInterrupt:
                has_ended = False
            if not has_ended:
                agent.interrupt(signal.SIGKILL)
                agent.wait(None)
            agent.release()
