"""`LoopLoader`: a loader that continues in the middle of an epoch with the batches that it would have had.

An epoch is begun again with the random streams that it began with, so that sampler and workers draw what they drew;
the batches that are done are passed over; and the streams are set to where they were after them. Nothing of the loader
is replaced, so this holds for each loader whose batches depend on random streams alone: those of Python, numpy and
torch, and the generators that loader, sampler, data set and `collate_fn` have as attributes.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from sacristan.ingredients.config.seed import global_states, set_global_states
from sacristan.ingredients.errors import CheckpointError

__all__ = ["LoopLoader"]

_log = logging.getLogger(__name__)

# Where loaders keep what draws random numbers.
_PARTS = (
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
    for path in _PARTS:
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
