"""Random streams with names: each is derived from (seed, name) alone.

What one stream draws never depends on whether another one is used, on the order of calls, or on the number of workers.
The streams of the lab: `factory`, `fingerprint`, `limit`, `split`, `statistics`, `shuffle`, `sample`, `augment`,
`transform`, `workers`, `items`, `collate`, `stream`, `init`, `look` for what only looks at a training, and `global` for
the generators that dropout and code of others draw from.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sacristan.configs.packages import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(seed: int, *name: str | int) -> int:
    """Return the seed of a named stream: the first 63 bits of the SHA-256 of seed and name.

    Args:
        seed: The seed of the run.
        name: The stream's name, in parts, such as `"augment", epoch`. Each name gives an independent stream.
    """
    text = "/".join(str(part) for part in (seed, *name))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return a new numpy generator at the start of a named stream.

        random = numpy_stream(seed, "noise", epoch)

    Args:
        seed: The seed of the run.
        name: The stream's name, in parts. It draws the same numbers wherever and whenever it is called.
    """
    return np.random.default_rng(stream_seed(seed, *name))


def torch_stream(seed: int, *name: str | int) -> torch.Generator:
    """Return a new torch generator at the start of a named stream, always on the CPU.

        noise = torch.randn(shape, generator=torch_stream(seed, "noise", epoch))

    Args:
        seed: The seed of the run.
        name: The stream's name, in parts. It draws the same numbers wherever and whenever it is called.
    """
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, *name))


def seed_globals(seed: int, *name: str | int) -> None:
    """Seed the global generators of Python, numpy and torch (all devices) from a named stream.

    Dropout, and code that takes no generator, draw from them.

    Args:
        seed: The seed of the run.
        name: The stream's name, in parts; without any, it is `global`.
    """
    import torch

    value = stream_seed(seed, *(name or ("global",)))
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


@contextlib.contextmanager
def global_stream(seed: int, *name: str | int) -> Iterator[None]:
    """Let the global generators draw from a named stream in the block, and put them back afterwards.

    torch's generator is the one of the CPU; without torch, only those of Python and numpy are set.

    Args:
        seed: The seed of the run.
        name: The stream's name, in parts.
    """
    outer = _cpu_states()
    _seed_cpu(stream_seed(seed, *name))
    try:
        yield
    finally:
        _set_cpu_states(outer)


@contextlib.contextmanager
def look_stream(*name: str | int) -> Iterator[None]:
    """Draw from the stream `look` in code that only inspects a training, then restore the generators of all devices.

    The stream begins at the same place whatever the seed, so that each epoch is measured with the same random numbers.
    `name` extends its name, such as by a rank.
    """
    states = global_states()
    _seed(stream_seed(0, "look", *name), states)
    try:
        yield
    finally:
        set_global_states(states)


def _seed(value: int, states: Mapping[str, Any]) -> None:
    """Seed the generators in `states`: `torch.manual_seed` would keep tracebacks for unused devices."""
    import torch

    random.seed(value)
    np.random.seed(value % 2**32)
    torch.random.default_generator.manual_seed(value)
    if "cuda" in states:
        torch.cuda.manual_seed_all(value)
    if "mps" in states:
        torch.mps.manual_seed(value)


class KeptStream:
    """A stream for the global CPU generators in `with` blocks; the next block continues where it ended."""

    def __init__(self, seed: int, *name: str | int) -> None:
        self._seed = stream_seed(seed, *name)
        self._states: tuple[Any, Any, Any] | None = None
        self._outer: tuple[Any, Any, Any] | None = None

    def __enter__(self) -> None:
        self._outer = _cpu_states()
        if self._states is not None:
            _set_cpu_states(self._states)
            return
        _seed_cpu(self._seed)

    def __exit__(self, *error: object) -> None:
        self._states = _cpu_states()
        if self._outer is not None:
            _set_cpu_states(self._outer)


def _seed_cpu(value: int) -> None:
    random.seed(value)
    np.random.seed(value % 2**32)
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(value)


def _cpu_states() -> tuple[Any, Any, Any]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch.random.get_rng_state() if torch else None


def _set_cpu_states(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].random.set_rng_state(states[2])


def global_states() -> dict[str, Any]:
    """Return the states of the global generators of Python, NumPy and torch (all devices), as tensors or values."""
    import torch

    state = np.random.get_state(legacy=False)
    keys = torch.from_numpy(state["state"]["key"].astype(np.int64))
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (state["bit_generator"], keys, state["state"]["pos"], state["has_gauss"], state["gauss"]),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
        states["cuda_device"] = torch.cuda.current_device()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_global_states(states: Mapping[str, Any]) -> None:
    """Restore `global_states`, for as many GPUs as there are; that of the then current GPU goes to the current one."""
    import torch

    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available():
        for device, state in by_device(states, torch.cuda.current_device(), torch.cuda.device_count()).items():
            torch.cuda.set_rng_state(state, device)
    if torch.backends.mps.is_available() and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


def by_device(states: Mapping[str, Any], current: int, count: int) -> dict[int, Any]:
    """Return which state of `global_states`, perhaps from another machine, each GPU gets, by its number."""
    saved = states.get("cuda", ())
    by_number = dict(enumerate(saved[:count]))
    was = states.get("cuda_device", current)
    if was < len(saved):
        by_number[current] = saved[was]
    return by_number
