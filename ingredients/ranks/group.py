"""`Ranks`: the processes of one training as its parts see them; a process alone is the one rank of `ALONE`.

All ranks go through the same code with the same config. Each works on its share of every batch, and they exchange
gradients, what was measured, and whether to stop. Rank 0 alone writes.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ingredients.ranks.notices import Notices
from ingredients.ranks.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["ALONE", "Ranks", "backend_of", "current", "is_of_connection", "join", "leave"]

T = TypeVar("T")
# What torch's own errors of connections to other ranks say.
_OF_CONNECTION = ("gloo", "NCCL", "c10d", "ProcessGroup", "TCPStore", "Connection closed by peer", "Connection reset")


class Ranks:
    """The ranks of a training, and which of them this process is.

    Every method but `share` is called by all ranks, in the same order.

    Args:
        world: Which rank this one is.
        notices: What they tell each other beside the training; None for a process alone.
        options: Settings of the ingredient `distributed`.

    Attributes:
        rank: Number of this one.
        size: Number of ranks.
    """

    def __init__(self, world: World, notices: Notices | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.world = world
        self.rank = world.rank
        self.size = world.size
        self.options = dict(options or {})
        self._notices = notices
        self._num_turns = 0
        # The exchange of `poll` that is under way: what will be the greatest number, and what to wait for.
        self._pending: tuple[torch.Tensor, Any] | None = None

    @property
    def is_first(self) -> bool:
        """True if this is rank 0, which writes."""
        return self.rank == 0

    @property
    def stream(self) -> tuple[int, ...]:
        """Suffix for the name of a random stream that each rank draws separately."""
        return () if self.rank == 0 else (self.rank,)

    def share(self, batch: Any) -> Any:
        """Return this rank's rows of what has a length and slices: consecutive, as many as others' but for one."""
        if self.size == 1:
            return batch
        count = len(batch)
        return batch[count * self.rank // self.size : count * (self.rank + 1) // self.size]

    # ------------------------------------------------------------------ exchange

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order; anything that pickle takes, tensors on the CPU."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what `make` returns on rank 0, where alone it is called; on all ranks."""
        if self.size == 1:
            return make()
        import torch.distributed as dist

        found = [make() if self.is_first else None]
        dist.broadcast_object_list(found, src=0)
        return found[0]  # type: ignore[return-value]  # what rank 0 made

    def send_tensors(self, module: nn.Module, *, buffers_alone: bool = False) -> None:
        """Give the parameters and buffers of a module of rank 0 to all."""
        if self.size == 1:
            return
        import torch.distributed as dist

        tensors = [*module.buffers(), *(() if buffers_alone else module.parameters())]
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def mean(self, values: Sequence[float]) -> list[float]:
        """Return the means of numbers over all ranks, the same on each."""
        return [sum(column) / self.size for column in zip(*self.gather(list(values)), strict=True)]

    def total(self, value: torch.Tensor | float) -> torch.Tensor | float:
        """Return the sum over all ranks: of a scalar on a device there, without waiting for it."""
        import torch
        import torch.distributed as dist

        summed = value.clone() if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(summed)
        return summed if isinstance(value, torch.Tensor) else summed.item()

    def poll(self, number: int) -> int:
        """Return the greatest of the numbers that ranks gave to the last call, and begin to exchange those of this one.

        So nobody waits for it, and all ranks know the same after the same step.

        Raises:
            RankError: If another rank is known to have failed: what was exchanged with it since may be anything.
        """
        if self._notices is not None:
            self._notices.check()
        pending, self._pending = self._pending, self._begin(number)
        return 0 if pending is None else self._end(pending)

    def agree(self, number: int) -> int:
        """Return the greatest of the numbers that ranks give, here or to the last `poll`; it is waited for."""
        if self.size == 1:
            return number
        return max(self.poll(number), self.poll(number))

    def _begin(self, number: int) -> tuple[torch.Tensor, Any]:
        import torch
        import torch.distributed as dist

        greatest = torch.tensor([number])
        return greatest, dist.all_reduce(greatest, op=dist.ReduceOp.MAX, async_op=True)

    def _end(self, pending: tuple[torch.Tensor, Any]) -> int:
        greatest, work = pending
        work.wait()
        return int(greatest.item())

    @contextlib.contextmanager
    def first_on_node(self) -> Iterator[None]:
        """Let the first rank of each node go ahead, such as to fill a cache; the others wait, however long it takes."""
        if self._notices is None:
            yield
            return
        self._num_turns += 1
        node = self.rank - self.world.local_rank
        turn = f"turn/{self._num_turns}/{node}"
        if self.world.local_rank:
            self._notices.take(turn)
        yield
        if not self.world.local_rank:
            self._notices.put(turn, True)


ALONE = Ranks(World())
_current = ALONE


def current() -> Ranks:
    """Return the ranks that this process has joined; `ALONE` if it is alone."""
    return _current


def join(notices: Notices, options: Mapping[str, Any]) -> Ranks:
    """Join the other ranks, which all do so: from here on they can exchange tensors.

    Args:
        notices: Of the launch.
        options: Settings of the ingredient `distributed`.
    """
    global _current
    import torch.distributed as dist

    world = notices.world
    # So that one that does not come is missed here, and by its name.
    notices.put(f"joining/{world.rank}", True)
    for rank in range(world.size):
        notices.take(f"joining/{rank}", options["timeout_s"])
    notices.know_all()
    notices.watch()
    dist.init_process_group(
        backend_of(options["backend"]),
        store=dist.PrefixStore("group", notices.store),
        rank=world.rank,
        world_size=world.size,
        timeout=datetime.timedelta(seconds=options["timeout_s"]),
    )
    _current = Ranks(world, notices, options)
    return _current


def backend_of(name: str) -> str:
    """Return torch's name of a backend: on GPUs nccl for tensors there, and gloo for what lies on the CPU."""
    import torch

    if name == "gloo" or not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def leave(*, well: bool) -> None:
    """Leave the other ranks.

    Args:
        well: Whether this one has come to its end; else the connections are left to the end of the process, because
            closing those of NCCL would wait for a rank that is gone.
    """
    global _current
    if _current is ALONE:
        return
    import torch.distributed as dist

    if well or dist.get_backend() == "gloo":
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    _current = ALONE


def is_of_connection(error: BaseException) -> bool:
    """Tell whether an error is one of the connection to other ranks, which torch raises as RuntimeError."""
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OF_CONNECTION)
