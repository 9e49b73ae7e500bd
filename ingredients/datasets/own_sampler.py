"""A sampler of the user's: which samples an epoch has, and in which order, by a class as torch's `Sampler` is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingredients.config.construct import build, check_options, import_object, is_dotted_path
from ingredients.config.nearest import nearest
from ingredients.config.seed import global_stream
from ingredients.errors import DataError

__all__ = ["SAMPLERS", "TrainPart", "own_order", "sampler_class"]

# Those of the lab.
SAMPLERS = ("sequential", "weighted", "balanced", "by_length")


class TrainPart(Sequence):
    """The training part, as a sampler of the user's is given it: samples by their positions in it.

    Attributes:
        targets: Of each sample (N, ...); empty where the samples have any structure.
        lengths: Of each sample (N,), where they are known; else None.
    """

    def __init__(self, inputs: Any, places: np.ndarray, targets: np.ndarray, lengths: np.ndarray | None) -> None:
        self._inputs = inputs
        self._places = places
        self.targets = targets[places] if len(targets) else targets
        self.lengths = None if lengths is None else lengths[places]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, position: Any) -> Any:
        return self._inputs[int(self._places[position])]


def sampler_class(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the class that a config names as `package.module:Class`.

    Raises:
        DataError, ConfigError: If there is none, or it does not take the options.
    """
    if not is_dotted_path(name):
        near = nearest(name, [*SAMPLERS])
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(SAMPLERS)}, package.module:Class"
        raise DataError(f"data.sampler: got {name!r}, which is unknown; {hint}")
    found = import_object(name, "data.sampler")
    if not callable(found) or not inspect.signature(found).parameters:
        raise DataError(f"data.sampler: {name} takes no argument, expected a class that takes the training part")
    check_options(found, options, "data.sampler_options", {_first(found): ()})
    return found


def own_order(name: str, options: Mapping[str, Any], part: TrainPart, seed: int) -> Callable[[int], Tensor]:
    """Return the order that a sampler gives each epoch, drawn from (seed, epoch) where it draws.

    Raises:
        DataError: If it gives what are no positions; when an epoch begins, if that has another number of them.
    """
    cls = sampler_class(name, options)

    def order(epoch: int) -> Tensor:
        with global_stream(seed, "sample", epoch):
            sampler = build(cls, options, "data.sampler_options", DataError, **{_first(cls): part})
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            given = list(sampler)
        return _positions(given, len(part), name)

    first = order(1)

    def checked(epoch: int) -> Tensor:
        found = first if epoch == 1 else order(epoch)
        if len(found) != len(first):
            raise DataError(
                f"data.sampler: {name} gives {len(found)} positions in epoch {epoch}, and {len(first)} in epoch 1; "
                "give each epoch as many"
            )
        return found

    return checked


def _positions(given: list[Any], count: int, name: str) -> Tensor:
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data.sampler: {name} gives no positions ({error}); give one whole number for each") from error
    if found.ndim != 1 or not len(found) or found.is_floating_point() or found.dtype == torch.bool:
        shown = repr(given[0])[:60] if given else "nothing"
        raise DataError(f"data.sampler: {name} gives {shown}, expected positions of samples, one whole number for each")
    if int(found.min()) < 0 or int(found.max()) >= count:
        raise DataError(
            f"data.sampler: {name} gives positions {int(found.min())} to {int(found.max())}, and the training part has "
            f"0 to {count - 1}"
        )
    return found.long()


def _first(target: Callable[..., Any]) -> str:
    """Return the name of the argument for the training part."""
    return next(iter(inspect.signature(target).parameters))
