"""Rank of this process, from the environment that `torchrun` sets. Torch is not imported for it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from ingredients.errors import ConfigError

__all__ = ["World", "world_of"]

# Variables that torch reads to connect processes; `torchrun` sets them, and so may any other launcher.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclasses.dataclass(frozen=True)
class World:
    """The processes of one launch, and the rank of this one.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        local_rank: Number of this process on its node.
        local_size: Number of processes on its node.
        launch: Name of the launch, the same after a restart of its processes; empty for a single process.
        restarts: How often the launcher has restarted its processes.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launch: str = ""
    restarts: int = 0

    @property
    def note(self) -> dict[str, Any]:
        """Entry about the launch for the run's record."""
        return {"size": self.size, "per_node": self.local_size, "launch": self.launch}


def world_of(environ: Mapping[str, str] | None = None) -> World:
    """Return the world that the environment describes; that of a single process, if it describes none.

    Args:
        environ: The environment; by default that of this process.

    Raises:
        ConfigError: If a variable holds no number, or a rank is out of range.
    """
    environ = os.environ if environ is None else environ
    if not all(environ.get(name) for name in _NEEDED):
        return World()
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank, local_size = _number(environ, "LOCAL_RANK", rank), _number(environ, "LOCAL_WORLD_SIZE", size)
    if not 0 <= rank < size or not 0 <= local_rank < local_size:
        raise ConfigError(
            f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank}, LOCAL_WORLD_SIZE={local_size}: expected ranks "
            "from 0 to one below the size; start the processes with torchrun"
        )
    if size == 1:
        return World()
    return World(
        rank, size, local_rank, local_size, _launch(environ), _number(environ, "TORCHELASTIC_RESTART_COUNT", 0)
    )


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
        raise ConfigError(f"{name}: got {text!r}, expected a number; start the processes with torchrun") from error
