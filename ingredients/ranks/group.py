"""`Ranks`: the processes of one training, and their exchanges; a single process is the one rank of `ALONE`.

All ranks run the same code with the same config. Each works on its share of every batch, and they exchange gradients,
metrics, and whether to stop. Rank 0 alone writes.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ingredients.ranks.notices import Notices
from ingredients.ranks.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["ALONE", "Ranks", "backend_of", "current", "is_of_connection", "join", "leave"]

T = TypeVar("T")
# Words in torch's errors about connections to other ranks.
_OF_CONNECTION = ("gloo", "NCCL", "c10d", "ProcessGroup", "TCPStore", "Connection closed by peer", "Connection reset")


class Ranks:
    """The ranks of a training, one of which is this process.

    All ranks call the methods, except `share`, in the same order.

    Args:
        world: The rank of this process.
        notices: Their messages beside the training; None for a single process.
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
        # The exchange of `poll` under way: the future greatest number, and the work to wait for.
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
        """Return this rank's share of a batch.

        Args:
            batch: Anything with a length and slices.

        Returns:
            Consecutive rows; the shares of two ranks differ by one row at most.
        """
        if self.size == 1:
            return batch
        count = len(batch)
        return batch[count * self.rank // self.size : count * (self.rank + 1) // self.size]

    # ------------------------------------------------------------------ exchange

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks.

        Args:
            value: Anything that can be pickled; tensors must be on the CPU. Ranks wait for each other.
        """
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Return a value of rank 0 on all ranks.

        Args:
            make: Returns the value, anything that can be pickled; called on rank 0 alone. The others wait for it.
        """
        if self.size == 1:
            return make()
        import torch.distributed as dist

        values = [make() if self.is_first else None]
        dist.broadcast_object_list(values, src=0)
        return values[0]  # type: ignore[return-value]  # what rank 0 made

    def send_tensors(self, module: nn.Module, *, buffers_alone: bool = False) -> None:
        """Copy the parameters and buffers of a module from rank 0 to all ranks.

        Args:
            module: A module with the same structure on each rank.
            buffers_alone: Whether to copy buffers only, such as the statistics of normalisation layers.
        """
        if self.size == 1:
            return
        import torch
        import torch.distributed as dist

        for parameter in () if buffers_alone else module.parameters():
            dist.broadcast(parameter.detach(), src=0)
        kinds: dict[Any, list[torch.Tensor]] = {}
        for buffer in module.buffers():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
        for buffers in kinds.values():  # at once, as a step sends them all
            sent = torch.cat([buffer.flatten() for buffer in buffers])
            dist.broadcast(sent, src=0)
            for buffer, part in zip(buffers, sent.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(part.view_as(buffer))

    def total(self, value: torch.Tensor | float) -> torch.Tensor | float:
        """Return the sum of a number over all ranks.

        Args:
            value: A number, or a scalar on any device.

        Returns:
            A number; for a scalar a scalar on its device, without waiting for it.
        """
        import torch
        import torch.distributed as dist

        summed = value.clone() if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(summed)
        return summed if isinstance(value, torch.Tensor) else summed.item()

    def poll(self, number: int) -> int:
        """Return the greatest number that ranks passed to the last call, and begin to exchange those of this call.

        No rank waits, and all know the same after the same step.

        Args:
            number: The number of this rank, such as that of a signal; 0 for none.

        Raises:
            RankError: If another rank is known to have failed, as exchanges with it since are not reliable.
        """
        if self._notices is not None:
            self._notices.check()
        pending, self._pending = self._pending, self._begin(number)
        return 0 if pending is None else self._end(pending)

    def agree(self, number: int) -> int:
        """Return the greatest number that ranks pass, here or to the last `poll`; ranks wait for each other.

        Args:
            number: The number of this rank; 0 for none.

        Raises:
            RankError: If another rank is known to have failed.
        """
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
        """Run the block on the first rank of each node first, such as to fill a cache; the others wait for it."""
        if self._notices is None:
            yield
            return
        self._num_turns += 1
        turn = f"turn/{self._num_turns}/{self.world.node}"
        if self.world.local_rank:
            self._notices.take(turn)
        yield
        if not self.world.local_rank:
            self._notices.put(turn, True)


ALONE = Ranks(World())
_current = ALONE


def current() -> Ranks:
    """Return the ranks that this process has joined; `ALONE` for a single process."""
    return _current


def join(notices: Notices, options: Mapping[str, Any]) -> Ranks:
    """Join the other ranks, which all call it; afterwards they can exchange tensors.

    Args:
        notices: The notices of the launch.
        options: Settings of the ingredient `distributed`.

    Returns:
        The ranks, which `current` returns from now on.

    Raises:
        RankError: If a rank does not come within `timeout_s`.
    """
    global _current
    import torch.distributed as dist

    world = notices.world
    # A rank that does not come is reported here, by its name.
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
    """Return torch's name of a backend.

    Args:
        name: The setting: `auto`, `gloo` or `nccl`.

    Returns:
        `gloo` if that is the setting, or there is no GPU; else NCCL for tensors on GPUs, gloo for those on the CPU.
    """
    import torch

    if name == "gloo" or not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def leave(*, well: bool) -> None:
    """Leave the other ranks.

    Args:
        well: Whether this rank has ended normally. Otherwise connections of NCCL stay open until the process ends,
            because closing them would wait for a rank that is gone.
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
    """Tell whether an error is about the connection to other ranks, so that another rank is to blame.

    Args:
        error: Any error; torch raises those of connections as RuntimeError, and only the message tells them apart.
    """
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OF_CONNECTION)
