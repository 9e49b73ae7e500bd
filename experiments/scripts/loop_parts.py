"""Parts of the state of a loop: the place in its loader, one state for all ranks, and the state of another run.

A loader continues in the middle of an epoch with the batches that it would have had: the epoch is begun again with the
random streams that it began with, so that sampler and workers draw what they drew; the batches that are done are passed
over; and the streams are set to where they were after them. Nothing of the loader is replaced, so this holds for each
loader whose batches depend on random streams alone: those of Python, numpy and torch, and the generators that loader,
sampler, data set and `collate_fn` have as attributes.

In loops of several processes that train together, such as those of torchrun, rank 0 writes states, for all of them.
`sacristan fork` starts a script from the state of another run, with other words.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from sacristan.experiments.running.signals import Terminated
from sacristan.ingredients.checkpoints import Checkpointer
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.checkpoints.training_state import Place, check_whole, of_rank, resume
from sacristan.ingredients.config.seed import global_states, set_global_states
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.ranks import World, world_of
from sacristan.ingredients.ranks.group import ALONE, Ranks
from sacristan.observers.record.identity import FORK_VARIABLE

_log = logging.getLogger(__name__)

# Where loaders keep what draws random numbers.
_PARTS_OF_LOADER = (
    "", "sampler", "batch_sampler", "batch_sampler.sampler", "batch_sampler.batch_sampler",
    "batch_sampler.batch_sampler.sampler", "sampler.sampler", "dataset", "collate_fn",
)  # fmt: skip
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class LoopLoader:
    """Iterates over a loader, and tells `state`, a `LoopState`, where it is; everything else is the loader's own."""

    def __init__(self, loader: Any, state: Any) -> None:
        if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
            raise CheckpointError(
                f"checkpoint: got a {type(loader).__name__} as loader, expected one that can be iterated over again, "
                "such as a DataLoader; iterate over a stream of your own in state.steps(total)"
            )
        self._loader = loader
        self._state = state
        # Of the current epoch, as it began; and of the state to resume from.
        self._began: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None
        if getattr(loader, "num_workers", 0) and getattr(loader, "persistent_workers", False):
            _log.warning(
                "checkpoint: the workers of this loader persist (persistent_workers=True); random numbers that they "
                "draw themselves, as for augmentation, differ after a resume within a later epoch than the first"
            )

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        state = self._state
        state.begin_epoch()
        is_whole = False
        try:
            for item in self._items():
                yield item
                state.end_batch()
            is_whole = True
        finally:
            state.end_epoch(is_whole=is_whole)

    def _items(self) -> Iterator[Any]:
        """Yield the batches that are left of the epoch."""
        resumed, self._resumed = self._resumed, None
        if resumed is None or not resumed["began"]:
            self._state.restore_streams("loader")
            if resumed is not None:
                _set_generators(self._loader, resumed["generators"])
                _set_iteration(self._loader, resumed["iteration"])
            self._began = self._now()
            yield from self._state.until_stopped(self._loader)
            return
        self._began = resumed["began"]
        set_global_states(self._began["streams"])
        _set_generators(self._loader, self._began["generators"])
        _set_iteration(self._loader, self._began["iteration"])
        _log.info("checkpoint: passing over %d batches of epoch %d", self._state.batch, self._state.epoch + 1)
        items = iter(self._loader)
        _pass_over(self._loader, items, self._state.batch)
        self._state.restore_streams("loader")
        _set_generators(self._loader, resumed["generators"])
        yield from self._state.until_stopped(items)

    @property
    def is_within_epoch(self) -> bool:
        """Whether it continues in the middle of an epoch when it is iterated over next."""
        return self._resumed is not None and bool(self._resumed["began"])

    def _now(self) -> dict[str, Any]:
        return {"streams": global_states(), "generators": _generators(self._loader), "iteration": self._iteration}

    @property
    def _iteration(self) -> int | None:
        """The number of epochs by the loader's own count, which those of accelerate have."""
        found = getattr(self._loader, "iteration", None)
        return found if isinstance(found, int) else None

    # ------------------------------------------------------------------ as a part of the state

    def state_dict(self) -> dict[str, Any]:
        """Return the streams that the epoch began with, if some of it is done; and the generators as they are now."""
        began = self._began if self._state.batch else {}
        return {"began": began, "generators": _generators(self._loader), "iteration": self._iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a result of `state_dict` when the loader is iterated over next."""
        self._resumed = state


def _pass_over(loader: Any, items: Any, count: int) -> None:
    """Pass over batches: only their samples' numbers, where nothing else depends on them."""
    is_plain = type(loader) is DataLoader and not loader.num_workers and hasattr(items, "_sampler_iter")
    if is_plain and not isinstance(loader.dataset, IterableDataset):
        passed = sum(1 for _ in itertools.islice(items._sampler_iter, count))
        items._num_yielded += passed
    else:
        passed = sum(1 for _ in itertools.islice(items, count))
    if passed < count:
        raise CheckpointError(
            f"checkpoint: the loader has {passed} batches in the epoch that the state is of, expected {count} or more; "
            "its data, or its sampler, are others now"
        )


def _set_iteration(loader: Any, number: int | None) -> None:
    if number is not None:
        loader.iteration = number


def _generators(loader: Any) -> dict[str, Any]:
    """Return the states of the generators of a loader, by where they are, as tensors and plain values."""
    return {name: _state_of(generator) for name, generator in _found(loader)}


def _set_generators(loader: Any, states: dict[str, Any]) -> None:
    for name, generator in _found(loader):
        if name in states:
            _set_state(generator, states[name])


def _found(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators that a loader and its parts have as attributes, by dotted name."""
    loader = getattr(loader, "base_dataloader", loader)  # of accelerate
    for path in _PARTS_OF_LOADER:
        part = loader
        for name in filter(None, path.split(".")):
            part = getattr(part, name, None)
        for name, value in sorted(getattr(part, "__dict__", {}).items()):
            if isinstance(value, _GENERATORS):
                yield f"{path}.{name}", value


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return _plain(generator.get_state(legacy=False))


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        version, internal, gauss = state
        generator.setstate((version, tuple(internal), gauss))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _arrays(state)
    else:
        generator.set_state(_arrays(state))


def _plain(state: Any) -> Any:
    """Return a state of numpy with lists of numbers for its arrays."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return {"array": state.tolist(), "dtype": state.dtype.name} if isinstance(state, np.ndarray) else state


def _arrays(state: Any) -> Any:
    if isinstance(state, dict):
        if {*state} == {"array", "dtype"}:
            return np.array(state["array"], state["dtype"])
        return {name: _arrays(value) for name, value in state.items()}
    return state


# ---------------------------------------------------------------------- of several ranks

# What ends a process by default, and is sent to all ranks of a job.
_SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT")


def joined_ranks() -> Ranks:
    """Return the ranks that torch has connected with this process; raise CheckpointError if it has not yet."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size == 1:
            return ALONE
        # Of its own, so that it takes tensors on the CPU, and disturbs no exchange of the training.
        group = distributed.new_group(backend="gloo")
        return Ranks(World(rank=distributed.get_rank(), size=size), group=group)
    world = world_of()
    if world.size > 1:
        raise CheckpointError(
            f"checkpoint: this process is one of {world.size}, which are not connected; call "
            f"torch.distributed.init_process_group before run.checkpoint{world.way_out}"
        )
    return ALONE


class OfEachRank:
    """A part of a loop that differs from rank to rank, such as the place of its loader."""

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
    """Stands for the record in a process that has none: it knows the signal that any rank has got."""

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


# ---------------------------------------------------------------------- of another run


def state_to_start_from(keeper: Checkpointer) -> Path | None:
    """Return the run's own copy of the state that it starts from, as `SACRISTAN_FORK` names it; None for none."""
    named = os.environ.pop(FORK_VARIABLE, "")
    if named:
        keeper.files.keep_start(Path(named), 0)
    return next((keeper.files.path / "start").glob("*.pt"), None)


def start_from(path: Path, parts: Mapping[str, Any], ranks: Ranks) -> Place:
    """Load a state of another run into the parts of a loop, and return its place.

    Optimizers keep their momenta, and the settings that the script has built them with, such as the learning rate;
    schedules are advanced from their beginning to the place.
    """
    state = of_rank(ranks.from_first(lambda: load_checkpoint(path)), ranks)
    check_whole(state, parts, path)
    built = {name: [_settings(part, group) for group in part.param_groups] for name, part in _optimizers(parts).items()}
    schedules = {name: part for name, part in parts.items() if _is_schedule(part)}
    place = resume({name: part for name, part in parts.items() if name not in schedules}, state, path)
    for name, optimizer in _optimizers(parts).items():
        for group, settings in zip(optimizer.param_groups, built[name], strict=False):
            group.update(settings)
    with warnings.catch_warnings():
        # The optimizer has stepped, in another process.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        for name, schedule in schedules.items():
            for _ in range(state[name]["last_epoch"]):
                schedule.step()
    return place


def _optimizers(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if hasattr(part, "param_groups")}


def _settings(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a group that the script sets, unlike counters such as those of schedule-free optimizers."""
    names = {*inspect.signature(type(optimizer)).parameters, "initial_lr"} - {"params"}
    return {name: value for name, value in group.items() if name in names}


def _is_schedule(part: Any) -> bool:
    """Tell whether a part is a schedule that counts steps alone, unlike one that follows a metric."""
    counts = hasattr(part, "last_epoch") and hasattr(part, "step")
    return counts and "metrics" not in inspect.signature(part.step).parameters
