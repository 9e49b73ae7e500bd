"""Agents of a sweep as Ray actors: on the nodes of a cluster, or on this machine.

An actor starts the agent's process, an `AgentProcess` as on this machine, and lives until that ends. The agent and its
runs inherit the GPUs (CUDA_VISIBLE_DEVICES) and threads (OMP_NUM_THREADS) that Ray assigns to the actor.

The experiment's folder is shipped to an existing cluster, and runs start from that copy. Their records go to the same
path on each node, or to the database.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from runs.errors import SweepError, needing_extra
from runs.sweeps.agents.agent_process import ROOT, StartedAgent
from runs.sweeps.spec.definition import Definition
from runs.sweeps.study.home import FolderHome
from runs.sweeps.study.place import Place

__all__ = ["ray_agents"]

# Never shipped, in the syntax of .gitignore; Ray also leaves out what the lab's own .gitignore names.
_EXCLUDES = ["my_runs/", ".venv/", ".git/", "__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/"]
# Agents keep nothing in Ray's shared memory.
_OBJECT_STORE_BYTES = 100 * 2**20
_PROBE_S = 120


@contextlib.contextmanager
def ray_agents(
    place: Place, definition: Definition, address: str | None, resources: Mapping[str, float]
) -> Iterator[Callable[[dict[str, Any], IO[bytes]], StartedAgent]]:
    """Connect to a cluster, and yield a function that starts agents on it, for `supervise`.

    Args:
        place: Where the sweep is kept.
        definition: The sweep.
        address: Address of an existing cluster; None uses the cluster that this process is connected to, or starts Ray
            on this machine.
        resources: Resources of each agent: `cpus`, `gpus`, `memory_gb`, and others that nodes of the cluster name.

    Raises:
        MissingExtraError: If Ray is not installed.
        SweepError: If there is no such cluster, the sources cannot be shipped, or a node does not see the sweep.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # which keeps Ray's ports to this machine
    with needing_extra("ray", "sweep.engine=ray"):
        import ray
    was_connected = ray.is_initialized()
    if not was_connected:
        _connect(ray, address, place, Path(definition.base))
    try:
        if address is not None and place.destination is None:
            _check_seen(ray, place, definition.id)
        options = _actor_options(resources)
        _check_fits(ray, options, is_ours=address is None)
        host: Any = ray.remote(_host_class()).options(max_concurrency=4, **options)

        def start(request: dict[str, Any], log: IO[bytes]) -> StartedAgent:
            is_shipped = address is not None and not was_connected
            return _Actor(ray, host.remote(str(ROOT), request, str(Path(log.name).absolute()), is_shipped))

        yield start
    finally:
        if not was_connected:
            ray.shutdown()


def _connect(ray: Any, address: str | None, place: Place, lab: Path) -> None:
    quiet = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        try:
            ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **quiet)
        except Exception as error:  # of any kind
            ray.shutdown()
            raise SweepError(
                f"sweep.engine=ray: Ray does not start on this machine ({_first_line(error)}); its logs are in"
                " /tmp/ray; sweep.workers=N does without it"
            ) from error
        return
    excludes = list(_EXCLUDES)
    if place.base.absolute().is_relative_to(lab):
        excludes.append(f"/{place.base.absolute().relative_to(lab)}/")
    try:
        ray.init(address, runtime_env={"working_dir": str(lab), "excludes": excludes}, **quiet)
    except ConnectionError as error:
        raise SweepError(
            f"sweep.address: got {address!r}, where no cluster of Ray answers; start one by: ray start --head"
        ) from error
    except (RuntimeError, ValueError) as error:  # such as a folder that is too large
        ray.shutdown()
        raise SweepError(f"sweep.address: {lab} cannot be shipped to {address} ({_first_line(error)})") from error


def _check_seen(ray: Any, place: Place, id: str) -> None:
    """Reject a sweep in a folder that a node of the cluster does not see.

    Raises:
        SweepError: If there is such a node.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    home = place.home(id)
    if not isinstance(home, FolderHome):
        return
    path = home.folder / "sweep.json"

    def reads(path: str) -> bytes | None:
        from pathlib import Path

        try:
            return Path(path).read_bytes()
        except OSError:
            return None

    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    probe = ray.remote(reads)
    asked = {
        name: probe.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        ).remote(str(path.absolute()))
        for name, node in nodes.items()
    }
    try:
        read = ray.get(list(asked.values()), timeout=_PROBE_S)
    except ray.exceptions.RayError as error:
        raise SweepError(f"sweep.engine=ray: the cluster does not start a process ({_first_line(error)})") from error
    blind = [name for name, content in zip(asked, read, strict=True) if content != path.read_bytes()]
    if blind:
        raise SweepError(
            f"sweep.engine=ray: the node {blind[0]} does not see {place.base.absolute()}, where the sweep is kept; "
            "record to a folder that all nodes share (-F FOLDER), or to a database (-m URL)"
        )


def _actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return Ray's options for resources; by default an agent has one CPU."""
    named = {"cpus": "num_cpus", "gpus": "num_gpus"}
    options: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0}
    options.update({named[name]: value for name, value in resources.items() if name in named})
    if "memory_gb" in resources:
        options["memory"] = int(resources["memory_gb"] * 2**30)
    others = {name: value for name, value in resources.items() if name not in {*named, "memory_gb"}}
    return {**options, "resources": others} if others else options


def _check_fits(ray: Any, options: Mapping[str, Any], *, is_ours: bool) -> None:
    """Reject resources that no node has, unless nodes can join.

    Raises:
        SweepError: If an agent would wait for ever.
    """
    if not is_ours:
        return
    wanted = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options.get("resources", {})}
    wanted["memory"] = options.get("memory", 0)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= number for name, number in wanted.items()) for node in nodes):
        has = ", ".join(f"{name} {nodes[0].get(name, 0):g}" for name, number in wanted.items() if number)
        asked = ", ".join(f"{name} {number:g}" for name, number in wanted.items() if number)
        raise SweepError(f"sweep.resources: got {asked} for each agent, but this machine has {has}; ask for less")


def _host_class() -> type:
    """Return the class of the actors: a local one, which Ray pickles whole, for nodes that cannot import `runs`."""

    class Host:
        """Runs an agent's process on a node."""

        def __init__(self, root: str, request: dict[str, Any], log: str, is_shipped: bool) -> None:
            self.root, self.request, self.log, self.is_shipped = root, request, log, is_shipped
            self.process: Any = None
            self.is_unwanted = False

        def begin(self) -> None:
            """Return at once: an actor answers as soon as it has its place."""

        def work(self) -> int:
            """Start the agent, wait for its end, and return its exit code."""
            import sys
            from pathlib import Path

            if self.is_shipped:
                self.request["means"]["lab"] = str(Path.cwd())
                sys.path.insert(0, str(Path.cwd()))
            sys.path.append(self.root)
            from runs.sweeps.agents.agent_process import AgentProcess

            Path(self.log).parent.mkdir(parents=True, exist_ok=True)
            with Path(self.log).open("ab") as stream:
                self.process = AgentProcess(self.request, stream)
            if self.is_unwanted:
                self.process.interrupt()
            self.process.wait()
            self.process.release()
            return self.process.poll()

        def interrupt(self, number: int) -> None:
            """Send the agent a signal."""
            self.is_unwanted = True
            if self.process is not None:
                self.process.interrupt(number)

    return Host


class _Actor:
    """An agent on a node, as a `StartedAgent`."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self._handle = ray, handle
        self._begun, self._code = handle.begin.remote(), handle.work.remote()

    @property
    def is_waiting(self) -> bool:
        return not self._ray.wait([self._begun], timeout=0)[0]

    def poll(self) -> int | None:
        if not self._ray.wait([self._code], timeout=0)[0]:
            return None
        try:
            return self._ray.get(self._code)
        except self._ray.exceptions.RayActorError:  # lost with its node, or killed
            return -signal.SIGKILL
        except self._ray.exceptions.RayError as error:
            raise SweepError(f"sweep.engine=ray: an agent cannot be started ({_last_line(error)})") from error

    def interrupt(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._ray.kill(self._handle)
        else:
            self._handle.interrupt.remote(number)

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._ray.wait([self._code], timeout=timeout)[0])

    def release(self) -> None:
        self._ray.kill(self._handle)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return next(iter(reversed(str(error).strip().splitlines())), type(error).__name__)
