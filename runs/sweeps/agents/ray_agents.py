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
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import urlsplit

from sacristan.runs.errors import SweepError, needing_extra
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents.agent_process import ROOT, StartedAgent
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import say

# Never shipped, in the syntax of .gitignore; Ray also leaves out what the lab's own .gitignore names.
_EXCLUDES = ["my_runs/", ".venv/", ".git/", "__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/"]
# Agents keep nothing in Ray's shared memory.
_OBJECT_STORE_BYTES = 100 * 2**20
_PROBE_S = 120
# Seconds that a server has to accept a connection, and that a head may be away: Ray ends this process, without a word
# about the sweep, after its own bound.
_CONNECT_S = 5
_AWAY_S = 0.75 * float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s") or 60)  # noqa: SIM112
# In a process of its own, because Ray aborts one that asks another cluster than it is connected to.
_KNOWS_NODE = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
sys.exit(sys.argv[2] not in {node["NodeID"] for node in ray.nodes() if node["Alive"]})
"""


@contextlib.contextmanager
def ray_agents(
    place: Place, definition: Definition, address: str | None, resources: Mapping[str, float]
) -> Iterator[Callable[[dict[str, Any], IO[bytes]], StartedAgent]]:
    """Connect to a cluster, or start Ray here, and yield a function that starts agents on it, for `supervise`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # which keeps Ray's ports to this machine
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # of half a minute each, by default 20
    with needing_extra("ray", "sweep.engine=ray"):
        import ray
    was_connected = ray.is_initialized()
    if not was_connected:
        _connect(ray, address, place, Path(definition.base))
    head = None
    try:
        if address is not None and not place.store:
            _check_seen(ray, place, definition.id)
        options = _actor_options(resources)
        _check_fits(ray, options, is_ours=address is None)
        if not options["num_gpus"] and ray.cluster_resources().get("GPU"):
            say("note: the cluster has GPUs, and agents get none; for one each: sweep.resources='{gpus: 1}'")
        host: Any = ray.remote(_host_class()).options(max_concurrency=4, **options)
        head = _Head(ray, address, definition.id)

        def start(request: dict[str, Any], log: IO[bytes]) -> StartedAgent:
            is_shipped = address is not None and not was_connected
            return _Actor(ray, host.remote(str(ROOT), request, str(Path(log.name).absolute()), is_shipped), head)

        yield start
    finally:
        if not was_connected:
            leaving = threading.Thread(target=ray.shutdown, daemon=True)
            leaving.start()
            leaving.join(_CONNECT_S if head is not None and head.is_lost else None)  # or it would wait for ever


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
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    server = None if where == "auto" else host_and_port(where)
    try:
        if server is not None:
            _call(*server)
        ray.init(address, runtime_env={"working_dir": str(lab), "excludes": excludes}, **quiet)
    except (ConnectionError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise SweepError(f"sweep.address: got {where!r}, {_why_closed(error, where)}") from error
    except (RuntimeError, ValueError) as error:  # such as a folder that is too large
        ray.shutdown()
        why = " ".join(str(error).split())
        raise SweepError(f"sweep.address: {lab} cannot be shipped to {where} ({why[:300]})") from error


def host_and_port(address: str) -> tuple[str, int]:
    """Return what `address` names, such as `head:6379` or `ray://head:10001`; one without a port raises SweepError."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        if parts.hostname and (parts.port or "://" in address):
            return parts.hostname, parts.port or 10001
    raise SweepError(f"sweep.address: got {address!r}, expected auto, HOST:6379 or ray://HOST:10001")


def _call(host: str, port: int) -> None:
    """Check that a server listens there, in seconds; Ray itself would try for minutes."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(error.strerror or _first_line(error)) from error


def _why_closed(error: BaseException, address: str) -> str:
    """Return why there is no connection to a cluster, and what to do."""
    token = "the cluster's token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)"
    if "Authentication" in f"{type(error).__name__} {error.__cause__}":
        return f"whose cluster does not accept this token, or gets none; set RAY_AUTH_MODE=token and {token}"
    if address.startswith("ray://") and "timeout" in str(error):  # of Ray's client, which keeps the reason to itself
        return f"where a server answers and does not let Ray's client in; check the port (10001) and {token}"
    return f"where no cluster of Ray answers ({_first_line(error)}); start one by: ray start --head"


class _Head:
    """The head of the cluster, watched from outside of Ray: a process that has lost it waits for ever, or is ended."""

    def __init__(self, ray: Any, address: str | None, id: str) -> None:
        self._ray, self._id = ray, id
        self._is_client = address is not None and "://" in address
        self._address = address if address is not None and self._is_client else ray.get_runtime_context().gcs_address
        self._away_since = self._next_look = 0.0
        self._asking: subprocess.Popen[bytes] | None = None
        self.is_lost = False

    def look(self) -> None:
        """Check that the head answers, and is the one that this process is connected to; otherwise lose it."""
        now = time.monotonic()
        if now < self._next_look:
            return
        try:
            _call(*host_and_port(self._address))
        except ConnectionError as error:
            self._away_since = self._away_since or now
            if now - self._away_since > _AWAY_S:
                self.lose(_first_line(error))
        else:
            if self._away_since and not self._is_client:
                self._ask()
        self._next_look = time.monotonic() + 1

    def _ask(self) -> None:
        """Ask whether the head that is back still knows the node of this process."""
        if self._asking is None:
            node = self._ray.get_runtime_context().get_node_id()
            words = [sys.executable, "-c", _KNOWS_NODE, self._address, node]
            self._asking = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        code = self._asking.poll()
        if code is not None:
            self._asking = None
            if code:
                self.lose("it was started again, and knows nothing of this sweep")
            self._away_since = 0.0

    def lose(self, why: str) -> NoReturn:
        """Give the cluster up, and raise SweepError."""
        self.is_lost = True
        raise SweepError(
            f"sweep.engine=ray: the head of the cluster at {self._address} was lost ({why}); runs save their states as "
            f"their agents end. Once the cluster runs, give the same command again to continue sweep {self._id}"
        )


def _check_seen(ray: Any, place: Place, id: str) -> None:
    """Reject a sweep in a folder that a node of the cluster cannot see."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    path = place.folder(id) / "sweep.json"

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
    """Reject resources that no node has, unless nodes can join: the agents would wait forever."""
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
            from sacristan.runs.sweeps.agents.agent_process import AgentProcess

            Path(self.log).parent.mkdir(parents=True, exist_ok=True)
            with Path(self.log).open("ab") as stream:
                self.process = AgentProcess(self.request, stream)
            if self.is_unwanted:
                self.process.interrupt()
            self.process.wait()
            self.process.release()
            return self.process.poll()

        def interrupt(self, number: int) -> None:
            self.is_unwanted = True
            if self.process is not None:
                self.process.interrupt(number)

    return Host


class _Actor:
    """An agent on a node, as a `StartedAgent`."""

    def __init__(self, ray: Any, handle: Any, head: _Head) -> None:
        self._ray, self._handle, self._head = ray, handle, head
        self._begun, self._code = handle.begin.remote(), handle.work.remote()

    @property
    def is_waiting(self) -> bool:
        return not self._head.is_lost and not self._ray.wait([self._begun], timeout=0)[0]

    def poll(self) -> int | None:
        self._head.look()
        try:
            if not self._ray.wait([self._code], timeout=0)[0]:
                return None
            return self._ray.get(self._code)
        except self._ray.exceptions.RayActorError:  # lost with its node, or killed
            return -signal.SIGKILL
        except self._ray.exceptions.RayError as error:
            raise SweepError(f"sweep.engine=ray: an agent cannot be started ({_last_line(error)})") from error
        except ConnectionError as error:  # of Ray's client
            self._head.lose(_first_line(error))

    def interrupt(self, number: int) -> None:
        if self._head.is_lost:
            return
        if number == signal.SIGKILL:
            self._ray.kill(self._handle)
        else:
            self._handle.interrupt.remote(number)

    def wait(self, timeout: float | None = None) -> bool:
        return self._head.is_lost or bool(self._ray.wait([self._code], timeout=timeout)[0])

    def release(self) -> None:
        if not self._head.is_lost:
            self._ray.kill(self._handle)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return next(iter(reversed(str(error).strip().splitlines())), type(error).__name__)
