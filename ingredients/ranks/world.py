"""Rank of this process, from the environment that `torchrun` or `srun` sets. Torch is not imported for it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from sacristan.ingredients.errors import ConfigError

__all__ = ["World", "world_of"]

# Variables that torch reads to connect processes; `torchrun` sets them, and so may any other launcher.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables of a task of `srun`.
_OF_STEP = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
)


@dataclasses.dataclass(frozen=True)
class World:
    """The processes of one launch, and the rank of this one.

    Attributes:
        rank: Number of this process, from 0.
        local_rank: Number of this process on its node.
        local_size: Number of processes on its node.
        launch: Name of the launch, the same after a restart of its processes; empty for a single process.
        restarts: How often the launcher has restarted its processes.
        node: Number that the processes of a node have in common.
        meeting: Where tasks of `srun` meet, `host:port`; empty where torch reads that from the environment.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launch: str = ""
    restarts: int = 0
    node: int = 0
    meeting: str = ""

    @property
    def note(self) -> dict[str, Any]:
        """Entry about the launch for the run's record."""
        return {"size": self.size, "per_node": self.local_size, "launch": self.launch}

    @property
    def way_out(self) -> str:
        """End of a message for users who did not want ranks; empty if only `torchrun` starts any."""
        return "; to have a run of each task of srun, start them with: env -u SLURM_PROCID" if self.meeting else ""


def world_of(environ: Mapping[str, str] | None = None) -> World:
    """Return the world that the environment describes; that of a single process if it describes none."""
    environ = os.environ if environ is None else environ
    if not all(environ.get(name) for name in _NEEDED):
        return _of_step(environ)
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank, local_size = _number(environ, "LOCAL_RANK", rank), _number(environ, "LOCAL_WORLD_SIZE", size)
    if not 0 <= rank < size or not 0 <= local_rank < local_size:
        raise ConfigError(
            f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank}, LOCAL_WORLD_SIZE={local_size}: expected ranks "
            "from 0 to one below the size; start the processes with torchrun"
        )
    if size == 1:
        return World()
    restarts = _number(environ, "TORCHELASTIC_RESTART_COUNT", 0)
    return World(rank, size, local_rank, local_size, _launch(environ), restarts, node=rank - local_rank)


def _of_step(environ: Mapping[str, str]) -> World:
    """Return the world of the tasks that one `srun` has started; a batch script is not such a task."""
    if not all(environ.get(name) for name in _OF_STEP) or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return World()
    job, step, restarts = (_number(environ, f"SLURM_{name}", 0) for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    node = _number(environ, "SLURM_NODEID", 0)
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"])
        for _ in range(int(times or 1))
    ]
    host = "127.0.0.1" if len(counts) == 1 else _first_host(environ["SLURM_STEP_NODELIST"])
    port = 20_000 + (job + 101 * step) % 10_000  # steps that share a node do not meet
    return World(
        _number(environ, "SLURM_PROCID"),
        _number(environ, "SLURM_STEP_NUM_TASKS"),
        _number(environ, "SLURM_LOCALID"),
        counts[node],
        f"slurm-{job}.{step}-{restarts}",
        node=node,
        meeting=f"{environ.get('MASTER_ADDR') or host}:{environ.get('MASTER_PORT') or port}",
    )


def _first_host(nodes: str) -> str:
    """Return the first host of a Slurm host list, such as `gpu[03-05,07],login`."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^\[,]*))?", nodes)
    return "".join(filter(None, found.groups())) if found else nodes


def _launch(environ: Mapping[str, str]) -> str:
    """Return the id of the launch, or without one a digest of host and pid of the parent process."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return run_id
    return hashlib.sha256(f"{socket.gethostname()}/{os.getppid()}".encode()).hexdigest()[:16]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name) or default
    try:
        return int(text)  # type: ignore[arg-type]  # those without a default are there
    except ValueError as error:
        by = "srun" if name.startswith("SLURM") else "torchrun"
        raise ConfigError(f"{name}: got {text!r}, expected a number; start the processes with {by}") from error
