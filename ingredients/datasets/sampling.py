"""Orders of training samples, one per epoch: from the lab's samplers, or a class that works like torch's `Sampler`.

An order is drawn from streams of (seed, epoch) alone and is known before the epoch begins, so a run can resume in its
middle.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path
from sacristan.ingredients.config.seed import global_stream, numpy_stream, torch_stream
from sacristan.ingredients.datasets.preparation import Prepared
from sacristan.ingredients.errors import DataError

__all__ = [
    "SAMPLERS",
    "Order",
    "TrainPart",
    "by_length",
    "by_shard",
    "drawn",
    "make_order",
    "own_order",
    "sampler_class",
    "shuffled",
]

# Positions (samples of an epoch,) in the training part, for the number of an epoch.
Order = Callable[[int], Tensor]

# Batches among which sequences are sorted by length: with more, lengths are more similar and samples less mixed.
_SORTED_BATCHES = 50


def make_order(prepared: Prepared, config: Mapping[str, Any], seed: int) -> Order:
    """Return the order of the training part for `data.sampler` and `data.shuffle_buffer`."""
    sampler, train = config["sampler"], prepared.indices["train"]
    count = config["epoch_samples"] or len(train)
    if sampler in SAMPLERS:
        return SAMPLERS[sampler](prepared, config, count, seed)
    if sampler is not None:
        part = TrainPart(prepared.inputs, train, prepared.targets, prepared.lengths)
        return own_order(sampler, config["sampler_options"], part, seed)
    if config["shuffle_buffer"]:
        if prepared.shards is None:
            raise DataError(
                f"data.shuffle_buffer: got {config['shuffle_buffer']}, but data.name={config['name']} is neither a "
                "stream nor in tar files; leave it at 0, which shuffles all samples"
            )
        return by_shard(prepared.shards[train], count, config["shuffle_buffer"], seed)
    return lambda epoch: shuffled(len(train), count, seed, epoch)


def _sequential(prepared: Prepared, config: Mapping[str, Any], count: int, seed: int) -> Order:
    return lambda epoch: torch.arange(count) % len(prepared.indices["train"])


def _weighted(prepared: Prepared, config: Mapping[str, Any], count: int, seed: int) -> Order:
    weights = np.zeros(0) if prepared.weights is None else prepared.weights[prepared.indices["train"]]
    if not len(weights) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        raise DataError(
            f"data.weights={config['weights']}: data.name={config['name']} has no such weights, or some are negative, "
            "or all are 0; name a column, an array, a key or an attribute with one number per sample"
        )
    return drawn(weights, count, seed)


def _balanced(prepared: Prepared, config: Mapping[str, Any], count: int, seed: int) -> Order:
    if prepared.targets.ndim != 1 or prepared.preparation.task == "regression" or not prepared.has_targets:
        raise DataError("data.sampler=balanced: the samples have no class each; use data.sampler=weighted, or none")
    labels = prepared.targets[prepared.indices["train"]]
    return drawn(1 / np.bincount(labels)[labels], count, seed)


def _by_length(prepared: Prepared, config: Mapping[str, Any], count: int, seed: int) -> Order:
    if prepared.lengths is None:
        raise DataError(
            "data.sampler=by_length: the samples have no lengths; texts and samples of any structure have them, such "
            "as those that data.collate=pad pads"
        )
    return by_length(prepared.lengths[prepared.indices["train"]], count, config["batch_size"], seed)


# The lab's samplers by `data.sampler`.
SAMPLERS = {"sequential": _sequential, "weighted": _weighted, "balanced": _balanced, "by_length": _by_length}


def shuffled(num_samples: int, count: int, seed: int, epoch: int) -> Tensor:
    """Return shuffled positions (count,) int64, in several rounds if `count` exceeds `num_samples`.

    Every sample occurs equally often, give or take one.
    """
    rounds = [
        torch.randperm(num_samples, generator=torch_stream(seed, "shuffle", epoch, *([number] if number else [])))
        for number in range(-(-count // num_samples) if num_samples else 0)
    ]
    return torch.cat(rounds)[:count] if rounds else torch.arange(0)


def drawn(weights: np.ndarray, count: int, seed: int) -> Order:
    """Return an order that draws with replacement, with probabilities proportional to weights (samples,)."""
    shares = np.cumsum(weights, dtype=np.float64)
    shares /= shares[-1]

    def order(epoch: int) -> Tensor:
        places = numpy_stream(seed, "sample", epoch).random(count)
        return torch.from_numpy(np.searchsorted(shares, places, side="right"))

    return order


def by_shard(shards: np.ndarray, count: int, buffer: int, seed: int) -> Order:
    """Return an order that reads files one after the other, themselves shuffled, with a shuffle buffer.

    `shards` (samples,) is the number of each sample's file.
    """
    by_file = [np.flatnonzero(shards == shard) for shard in np.unique(shards)]

    def order(epoch: int) -> Tensor:
        draws = numpy_stream(seed, "sample", epoch)
        positions: list[int] = []
        while len(positions) < count:
            places = np.concatenate([by_file[file] for file in draws.permutation(len(by_file))])
            held = places[:buffer].tolist()
            for place in places[buffer:].tolist():
                slot = int(draws.integers(len(held)))
                positions.append(held[slot])
                held[slot] = place
            positions += [held[slot] for slot in draws.permutation(len(held))]
        return torch.tensor(positions[:count])

    return order


def by_length(lengths: np.ndarray, count: int, batch_size: int, seed: int) -> Order:
    """Return a shuffled order whose batches hold samples of similar lengths.

    Samples are shuffled and sorted within blocks of batches; then the batches are shuffled. A smaller last batch stays
    last.
    """
    measured = torch.from_numpy(lengths)

    def order(epoch: int) -> Tensor:
        mixed = shuffled(len(lengths), count, seed, epoch)
        blocks = mixed.split(_SORTED_BATCHES * batch_size)
        mixed = torch.cat([block[measured[block].argsort(descending=True, stable=True)] for block in blocks])
        batches = list(mixed.split(batch_size))
        rest = batches.pop() if len(mixed) % batch_size else mixed[:0]
        places = torch.randperm(len(batches), generator=torch_stream(seed, "sample", epoch)).tolist()
        return torch.cat([*(batches[place] for place in places), rest])

    return order


class TrainPart(Sequence):
    """The training part as a user's sampler gets it: samples by their positions.

    Args:
        inputs: Inputs of all parts, see `Prepared`.
        indices: Indices of the training samples (N,).
        targets: Targets of all parts.
        lengths: Lengths of all samples, if known.

    Attributes:
        targets: Targets of the training part (N, ...); empty for samples of any structure.
        lengths: Lengths of its samples (N,), or None.
    """

    def __init__(self, inputs: Any, indices: np.ndarray, targets: np.ndarray, lengths: np.ndarray | None) -> None:
        self._inputs = inputs
        self._indices = indices
        self.targets = targets[indices] if len(targets) else targets
        self.lengths = None if lengths is None else lengths[indices]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: Any) -> Any:
        return self._inputs[int(self._indices[position])]


def sampler_class(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a user's sampler class by its dotted path, after checking `data.sampler_options`."""
    if not is_dotted_path(name):
        hint = suggestion(name, SAMPLERS, f"there are: {', '.join(SAMPLERS)}, package.module:Class")
        raise DataError(f"data.sampler: got {name!r}, which is unknown; {hint}")
    cls = import_object(name, "data.sampler")
    if not callable(cls) or not inspect.signature(cls).parameters:
        raise DataError(f"data.sampler: {name} takes no argument, expected a class that takes the training part")
    check_options(cls, options, "data.sampler_options", {_first_parameter(cls): ()})
    return cls


def own_order(name: str, options: Mapping[str, Any], part: TrainPart, seed: int) -> Order:
    """Return the order of a user's sampler, built each epoch with global generators seeded by (seed, epoch).

    Its first argument is the training part. It must yield positions, and the same number in every epoch.
    """
    cls = sampler_class(name, options)

    def positions(epoch: int) -> Tensor:
        with global_stream(seed, "sample", epoch):
            sampler = build(cls, options, "data.sampler_options", DataError, **{_first_parameter(cls): part})
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            values = list(sampler)
        return _checked_positions(values, len(part), name)

    first = positions(1)

    def order(epoch: int) -> Tensor:
        places = first if epoch == 1 else positions(epoch)
        if len(places) != len(first):
            raise DataError(
                f"data.sampler: {name} yields {len(places)} positions in epoch {epoch}, but {len(first)} in epoch 1; "
                "yield the same number in each epoch"
            )
        return places

    return order


def _checked_positions(values: list[Any], count: int, name: str) -> Tensor:
    try:
        positions = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data.sampler: {name} yields no positions ({error}); yield one whole number each") from error
    are_whole = not (positions.is_floating_point() or positions.dtype == torch.bool)
    if positions.ndim != 1 or not len(positions) or not are_whole:
        shown = repr(values[0])[:60] if values else "nothing"
        raise DataError(f"data.sampler: {name} yields {shown}, expected positions of samples, one whole number each")
    low, high = int(positions.min()), int(positions.max())
    if not 0 <= low <= high < count:
        raise DataError(
            f"data.sampler: {name} yields positions {low} to {high}, but the training part has 0 to {count - 1}"
        )
    return positions.long()


def _first_parameter(target: Callable[..., Any]) -> str:
    return next(iter(inspect.signature(target).parameters))
