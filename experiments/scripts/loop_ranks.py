"""Loops of several processes that train together, such as those of torchrun: rank 0 writes states, for all of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sacristan.experiments.running.signals import Terminated
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.ranks.group import ALONE, Ranks
from sacristan.ingredients.ranks.world import World, world_of

__all__ = ["Follower", "OfEachRank", "joined_ranks"]

# What ends a process by default, and is sent to all ranks of a job.
_SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT")


def joined_ranks() -> Ranks:
    """Return the ranks that torch has connected with this process; `ALONE` if it is the only one.

    Raises:
        CheckpointError: If this process is one of several, and they are not connected yet.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size == 1:
            return ALONE
        # Of its own, so that it takes tensors on the CPU, and disturbs no exchange of the training.
        group = distributed.new_group(backend="gloo")
        return Ranks(World(rank=distributed.get_rank(), size=size), group=group)
    world = world_of()
    if world.size > 1 and not world.meeting:
        raise CheckpointError(
            f"checkpoint: this process is one of {world.size}, which are not connected; call "
            "torch.distributed.init_process_group before run.checkpoint"
        )
    return ALONE


class OfEachRank:
    """A part of a loop that differs from rank to rank, such as the place of its loader.

    Args:
        part: This rank's.
        ranks: All of them, which save together.
    """

    def __init__(self, part: Any, ranks: Ranks) -> None:
        self._part, self._ranks = part, ranks

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": self._ranks.gather(self._part.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = state.get("ranks", [state])
        if len(states) != self._ranks.size:
            raise CheckpointError(
                f"checkpoint: the state is one of {len(states)} processes, and this loop has {self._ranks.size}; start "
                "as many"
            )
        self._part.load_state_dict(states[self._ranks.rank])


class Follower:
    """Stands for the record in a process that has none: it knows of a signal that this or another rank has got.

    Attributes:
        stopping: The number of that signal; None before there is one.
    """

    uid = None
    info: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.stopping: int | None = None

    def position(self) -> dict[str, Any]:
        return {}

    def flush(self) -> None:
        """Do nothing: there are no points."""

    def hold_back(self, number: int) -> None:
        self.stopping = self.stopping or number

    def stop(self, saved_step: int | None) -> None:
        raise Terminated(self.stopping or signal.SIGTERM, saved_step)

    def hold_signals(self) -> Callable[[], None]:
        """Hold back the first signal that would end the process; return what gives signals back."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        numbers = [getattr(signal, name) for name in _SIGNALS]
        before = {number: signal.getsignal(number) for number in numbers}
        held = [number for number in numbers if before[number] in (signal.SIG_DFL, signal.default_int_handler)]
        for number in held:
            signal.signal(number, self._receive)

        def give_back() -> None:
            for number in held:
                signal.signal(number, before[number])

        return give_back

    def _receive(self, number: int, _: Any) -> None:
        if self.stopping is None:
            self.stopping = number
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
