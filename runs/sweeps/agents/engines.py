"""`Engine`: where the agents of a sweep run, with which resources; `supervise` starts, replaces and ends them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sacristan.runs.errors import SweepError, needing_extra
from sacristan.runs.rerun.launching import end_text
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.agent_process import END_BOUND_S, AgentProcess, StartedAgent, agent_request
from sacristan.runs.sweeps.agents.ray_agents import host_and_port, ray_agents
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import Status, Watcher, display, say
from sacristan.runs.work import divided_threads, last_lines

_RESOURCES = ("cpus", "gpus", "memory_gb")
_CLUSTERS = ("slurm", "local", "debug")


@dataclasses.dataclass(frozen=True)
class Engine:
    """Runs agents on this machine (`local`), on the nodes of a cluster (`ray`), or as an array job (`slurm`).

    `resources` are those of each agent on a cluster: `cpus`, `gpus`, `memory_gb`; with Ray also others that its nodes
    name. `slurm` has options of the job, and the `cluster`: slurm, local or debug.
    """

    name: str = "local"
    address: str | None = None
    resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slurm: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Reject options that the engine does not take."""
        if self.address is not None and self.name != "ray":
            raise SweepError(f"sweep.address: got {self.address!r} with sweep.engine={self.name}, expected engine=ray")
        if self.address not in (None, "auto"):
            host_and_port(self.address)
        if self.slurm and self.name != "slurm":
            raise SweepError(f"sweep.slurm: got options with sweep.engine={self.name}, expected sweep.engine=slurm")
        if self.resources and self.name == "local":
            raise SweepError(
                "sweep.resources: got some with sweep.engine=local, expected engine ray or slurm; on this machine CPUs"
                " and GPUs are divided among sweep.workers"
            )
        for name, value in self.resources.items():
            self._check_resource(name, value)
        cluster = self.slurm.get("cluster", "slurm")
        if cluster not in _CLUSTERS:
            raise SweepError(f"sweep.slurm: got the cluster {cluster!r}, expected one of: {', '.join(_CLUSTERS)}")

    def check_extras(self) -> None:
        """Reject an engine whose package is not installed."""
        package = {"ray": "ray", "slurm": "submitit"}.get(self.name)
        if package is not None:
            with needing_extra(self.name, f"sweep.engine={self.name}"):
                importlib.import_module(package)

    def _check_resource(self, name: str, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value < 0:
            raise SweepError(f"sweep.resources.{name}: got {value!r}, expected a number that is not negative")
        if self.name != "slurm":
            return
        if name not in _RESOURCES:
            raise SweepError(
                f"sweep.resources.{name}: Slurm knows {', '.join(_RESOURCES)}; options of the job go to sweep.slurm"
            )
        if name != "memory_gb" and value != int(value):
            raise SweepError(f"sweep.resources.{name}: got {value}, but Slurm shares none; expected a whole number")

    def run(
        self,
        place: Place,
        definition: Definition,
        agent_options: AgentOptions,
        workers: Sequence[dict[str, str]],
        log: Path,
    ) -> Status:
        """Run agents on a sweep until it is done, and show its progress; `workers` is for runs on this machine."""
        if self.name == "slurm":
            from sacristan.runs.sweeps.agents.slurm_agents import run_array

            threads = {"OMP_NUM_THREADS": str(int(self.resources.get("cpus", 1)) or 1)}
            own = dataclasses.replace(agent_options, environment={**threads, **agent_options.environment})
            return run_array(place, definition.id, own, len(workers), self.resources, self.slurm)
        if self.name == "ray":
            # Of recent versions, Ray lets agents without GPUs see all of their node.
            variables = {} if self.resources.get("gpus") else {"CUDA_VISIBLE_DEVICES": "-1"}
            with ray_agents(place, definition, self.address, self.resources) as start:
                return supervise(place, definition.id, agent_options, [variables for _ in workers], log, start=start)
        own = dataclasses.replace(
            agent_options, environment={**divided_threads(len(workers)), **agent_options.environment}
        )
        return supervise(place, definition.id, own, workers, log)


# ---------------------------------------------------------------------- supervision


_LOOK_S = 0.5
# After so many agents in a row that ended without a finished point between them, no other one will do better: those
# that ended by an error of their own, and those that a signal killed.
_MOST_ERRORS, _MOST_KILLS = 3, 20


def supervise(
    place: Place,
    id: str,
    agent_options: AgentOptions,
    workers: Sequence[dict[str, str]],
    log: Path,
    start: Callable[[dict[str, Any], IO[bytes]], StartedAgent] = AgentProcess,
) -> Status:
    """Run agents on a sweep until it is done, each with variables of `workers` for its runs, and show its progress."""
    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        before = watcher.look()
        if before.is_done:
            return before
        with log.open("ab") as stream, display(before, watcher) as look:

            def begin(variables: dict[str, str]) -> StartedAgent:
                own = dataclasses.replace(agent_options, environment={**agent_options.environment, **variables})
                return start(agent_request(place, id, own), stream)

            crew = _Crew(begin, workers, log)
            try:
                status, is_waiting = before, False
                while crew.is_working or _is_unfinished(status, agent_options):
                    status = watcher.look()
                    crew.look(status)
                    if not crew.is_working and _is_unfinished(status, agent_options):
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


def _is_unfinished(status: Status, agent_options: AgentOptions) -> bool:
    """Tell whether points are left that agents of others run, or ran when they were lost."""
    return not (status.is_done or status.is_stopped or agent_options.is_late)


class _Crew:
    """The agents of one `supervise`, which write their errors to `log`."""

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
        """Start an agent for the points of a lost one once no agent is alive: its lease may expire some time later."""
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
