"""Which samples an epoch has, in which order: each sampler draws from streams of (seed, epoch) alone.

An order is known as a whole before the epoch begins, so that one resumed in the middle goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingredients.config.seed import numpy_stream, torch_stream
from ingredients.datasets.own_sampler import TrainPart, own_order
from ingredients.datasets.preparation import Prepared
from ingredients.errors import DataError

__all__ = ["Order", "by_length", "by_shard", "drawn", "make_order", "shuffled"]

# The positions (samples of an epoch,) of an epoch, in order.
Order = Callable[[int], Tensor]

# Batches among which sequences are sorted by their length: more are more alike, and less mixed.
_SORTED_BATCHES = 50


def make_order(prepared: Prepared, config: Mapping[str, Any], seed: int) -> Order:
    """Return the order of the training part that a config asks for.

    Args:
        prepared: The data.
        config: The data ingredient's config.
        seed: Seed of the experiment.

    Raises:
        DataError: If the data do not have what the sampler needs.
    """
    sampler, train = config["sampler"], prepared.indices["train"]
    count = config["epoch_samples"] or len(train)
    if sampler == "weighted":
        weights = None if prepared.weights is None else prepared.weights[train]
        if (
            weights is None
            or not len(weights)
            or not np.isfinite(weights).all()
            or weights.min() < 0
            or not weights.any()
        ):
            raise DataError(
                f"data.weights={config['weights']}: data.name={config['name']} has no such weights, or some are below "
                "0 or all are 0; name a column, an array, a key or an attribute with one number per sample"
            )
        return drawn(weights, count, seed)
    if sampler == "balanced":
        if prepared.targets.ndim != 1 or prepared.preparation.task == "regression" or not prepared.has_targets:
            raise DataError("data.sampler=balanced: the samples have no class each; use data.sampler=weighted, or none")
        labels = prepared.targets[train]
        counts = np.bincount(labels)
        return drawn(1 / counts[labels], count, seed)
    if sampler == "by_length":
        if prepared.lengths is None:
            raise DataError(
                "data.sampler=by_length: the samples have no lengths; they are known of samples of any structure, such "
                "as those that data.collate=pad makes batches of"
            )
        return by_length(prepared.lengths[train], count, config["batch_size"], seed)
    if sampler == "sequential":
        return lambda epoch: torch.arange(count) % len(train)
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


def shuffled(num_samples: int, count: int, seed: int, epoch: int) -> Tensor:
    """Return `count` positions of `num_samples`, each as often as others but for one: shuffled rounds in a row."""
    rounds = [
        torch.randperm(num_samples, generator=torch_stream(seed, "shuffle", epoch, *([number] if number else [])))
        for number in range(-(-count // num_samples) if num_samples else 0)
    ]
    return torch.cat(rounds)[:count] if rounds else torch.arange(0)


def drawn(weights: np.ndarray, count: int, seed: int) -> Order:
    """Return an order of `count` positions, drawn with replacement, in proportion to their weights."""
    shares = np.cumsum(weights, dtype=np.float64)
    shares /= shares[-1]

    def order(epoch: int) -> Tensor:
        places = numpy_stream(seed, "sample", epoch).random(count)
        return torch.from_numpy(np.searchsorted(shares, places, side="right"))

    return order


def by_shard(shards: np.ndarray, count: int, buffer: int, seed: int) -> Order:
    """Return an order that reads files one behind the other, shuffled, and their samples among `buffer` of them."""
    by_file = [np.flatnonzero(shards == shard) for shard in np.unique(shards)]

    def order(epoch: int) -> Tensor:
        draws = numpy_stream(seed, "sample", epoch)
        found: list[int] = []
        while len(found) < count:
            places = np.concatenate([by_file[file] for file in draws.permutation(len(by_file))])
            held = places[:buffer].tolist()
            for place in places[buffer:].tolist():
                slot = int(draws.integers(len(held)))
                found.append(held[slot])
                held[slot] = place
            found += [held[slot] for slot in draws.permutation(len(held))]
        return torch.tensor(found[:count])

    return order


def by_length(lengths: np.ndarray, count: int, batch_size: int, seed: int) -> Order:
    """Return a shuffled order whose batches hold samples of alike lengths; a last one that is smaller stays the last.

    Samples are shuffled, sorted within some batches in a row, and then the batches are shuffled.
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
