"""`Ranks`: the processes of one training, and their exchanges; a single process is the one rank of `ALONE`.

All ranks run the same code with the same config. Each works on its share of every batch, and they exchange gradients,
metrics, and whether to stop. Rank 0 alone writes.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from sacristan.ingredients.ranks import Notices, World

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T")
# Words in torch's errors about connections to other ranks.
_OF_CONNECTION = ("gloo", "NCCL", "c10d", "ProcessGroup", "TCPStore", "Connection closed by peer", "Connection reset")


class Ranks:
    """The ranks of a training, one of which is this process; all call the methods, except `share`, in the same order.

    `notices` are None for a single process. `group` is for objects and signals, which are tensors on the CPU.
    """

    def __init__(
        self,
        world: World,
        notices: Notices | None = None,
        options: Mapping[str, Any] | None = None,
        group: Any = None,
    ) -> None:
        self.world = world
        self.rank = world.rank
        self.size = world.size
        self.options = dict(options or {})
        self._notices, self._group = notices, group
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
        """Return this rank's share of a batch: consecutive rows. Shares differ by at most one row."""
        if self.size == 1:
            return batch
        count = len(batch)
        return batch[count * self.rank // self.size : count * (self.rank + 1) // self.size]

    # ------------------------------------------------------------------ exchange

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order; they are pickled, with tensors on the CPU. All ranks wait."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Return a picklable value of rank 0 on all ranks; only rank 0 calls `make`, the others wait."""
        if self.size == 1:
            return make()
        import torch.distributed as dist

        values = [make() if self.is_first else None]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]  # type: ignore[return-value]  # what rank 0 made

    def send_tensors(self, module: nn.Module, *, buffers_alone: bool = False) -> None:
        """Copy the parameters and buffers of a module, of the same structure on each rank, from rank 0 to all."""
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
        """Return the sum of a number over all ranks; a scalar tensor stays on its device, without waiting for it."""
        import torch
        import torch.distributed as dist

        summed = value.clone() if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(summed)
        return summed if isinstance(value, torch.Tensor) else summed.item()

    def have_same(self, digest: bytes) -> bool:
        """Tell whether all ranks pass the same digest; ranks wait for each other."""
        import torch
        import torch.distributed as dist

        number = int.from_bytes(digest[:7], "big")
        bounds = torch.tensor([number, -number])
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
        return int(bounds[0]) == -int(bounds[1])

    def poll(self, number: int) -> int:
        """Return the greatest number that ranks passed to the last call, and begin to exchange those of this call.

        No rank waits, and all get the same number after the same step. Raises `RankError` if another rank has failed.
        """
        if self._notices is not None:
            self._notices.check()
        pending, self._pending = self._pending, self._begin(number)
        return 0 if pending is None else self._end(pending)

    def agree(self, number: int) -> int:
        """Return the greatest number that ranks pass here or to the last `poll`; 0 for none. Ranks wait for all."""
        if self.size == 1:
            return number
        return max(self.poll(number), self.poll(number))

    def _begin(self, number: int) -> tuple[torch.Tensor, Any]:
        import torch
        import torch.distributed as dist

        greatest = torch.tensor([number])
        return greatest, dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

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
    """Join the other ranks, which all call this; `current` returns them from now on. RankError after `timeout_s`.

    A process that does not call `leave` leaves when Python ends, before torch's threads would abort it.
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
    atexit.register(_leave_at_exit, os.getpid())
    _current = Ranks(world, notices, options)
    try:
        dist.init_process_group(
            backend_of(options["backend"]),
            store=dist.PrefixStore("group", notices.store),
            rank=world.rank,
            world_size=world.size,
            timeout=datetime.timedelta(seconds=options["timeout_s"]),
        )
    except BaseException:
        leave(well=False)
        raise
    return _current


def backend_of(name: str) -> str:
    """Return torch's name of a backend: `gloo` as set or without a GPU, else NCCL for GPUs and gloo for the CPU."""
    import torch

    if name == "gloo" or not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def leave(*, well: bool) -> None:
    """Leave the other ranks; NCCL's connections are closed only if all is `well`: that waits for each rank."""
    global _current
    if _current is ALONE:
        return
    import torch.distributed as dist

    if dist.is_initialized() and (well or dist.get_backend() == "gloo"):  # a user may have destroyed it
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    atexit.unregister(_leave_at_exit)
    _current = ALONE


def _leave_at_exit(pid: int) -> None:
    if os.getpid() == pid:  # a forked child has none of the threads
        leave(well=False)


def is_of_connection(error: BaseException) -> bool:
    """Return whether another rank is to blame; torch raises such errors as RuntimeError with a message."""
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OF_CONNECTION)
