"""Batches of a stream: the same with any number of workers, and resumable in the middle of an epoch.

Each worker iterates over the whole stream, makes the batches it is asked for and skips the samples of others. A stream
may yield functions without arguments for costly samples; those of skipped samples are not called. While a stream is
iterated, the global generators are seeded from (seed, epoch).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils import worker as torch_worker

from sacristan.ingredients.config.seed import KeptStream, global_stream, numpy_stream
from sacristan.ingredients.datasets.collating import Collate, collated, stack
from sacristan.ingredients.datasets.loading import Key, LoaderBatches
from sacristan.ingredients.datasets.streams import Stream
from sacristan.ingredients.errors import DataError

__all__ = ["StreamBatches", "StreamSplit"]


class StreamBatches(LoaderBatches):
    """Batches of a stream, in its order, or shuffled by its buffer."""

    def order(self, epoch: int) -> Tensor:
        """Return the positions (epoch_samples,) in the stream, which are the same in every epoch."""
        return torch.arange(self.epoch_samples)

    def _chunks(self, epoch: int, start: int) -> Sequence[Sequence[int]]:
        count, size = self.epoch_samples, self.batch_size
        return [range(place, min(place + size, count)) for place in range(start * size, len(self) * size, size)]


@dataclasses.dataclass(eq=False)
class StreamSplit:
    """One split of a stream, read in batches by their keys; reading backwards restarts the stream.

    Args:
        buffer: Samples to shuffle among; 0 keeps the order of the stream.
    """

    stream: Stream
    collate: Collate | None
    seed: int
    buffer: int
    _epoch: int | None = None
    _place: int = 0
    _samples: Iterator[Any] = dataclasses.field(default_factory=lambda: iter(()))

    def __len__(self) -> int:
        return self.stream.length or 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epoch": None, "_place": 0, "_samples": iter(())}

    def read(self, key: Key) -> Any:
        """Return the batch with a key (epoch, number of the batch, positions of its samples)."""
        epoch, number, places = key
        if epoch != self._epoch or places[0] < self._place:
            self._epoch, self._place, self._samples = epoch, 0, self._begun(epoch)
        while self._place < places[0]:
            next(self._samples)
            self._place += 1
        items = []
        for place in places:
            sample = next(self._samples)
            self._place += 1
            if callable(sample):
                with global_stream(self.seed, "items", epoch, place):
                    sample = sample()
            items.append(sample)
        with global_stream(self.seed, "collate", epoch, number):
            return collated(self.collate or stack, items)

    def _begun(self, epoch: int) -> Iterator[Any]:
        samples = self._rounds(epoch)
        return self._shuffled(samples, epoch) if self.buffer else samples

    def _rounds(self, epoch: int) -> Iterator[Any]:
        """Yield the samples of the stream, repeatedly."""
        samples, draws = self.stream.samples, KeptStream(self.seed, "stream", epoch)
        if hasattr(samples, "set_epoch"):
            samples.set_epoch(epoch)
        while True:
            is_empty = True
            with draws, _whole_stream():
                left = iter(samples)
            while True:
                with draws, _whole_stream():
                    sample = next(left, _END)
                if sample is _END:
                    break
                is_empty = False
                yield sample
            if is_empty:
                raise DataError("data: the stream has no samples; check its files")

    def _shuffled(self, samples: Iterator[Any], epoch: int) -> Iterator[Any]:
        """Yield a random sample of a buffer, and replace it with the next of the stream."""
        draws = numpy_stream(self.seed, "shuffle", epoch)
        held: list[Any] = []
        for count, sample in enumerate(samples):
            if count >= len(self):
                break
            if len(held) < self.buffer:
                held.append(sample)
                continue
            place = int(draws.integers(len(held)))
            held[place], sample = sample, held[place]
            yield sample
        for place in draws.permutation(len(held)).tolist():
            yield held[place]


_END = object()


@contextlib.contextmanager
def _whole_stream() -> Iterator[None]:
    """Hide the worker from a stream that would yield only its worker's share, so that it yields all samples."""
    info = torch_worker._worker_info
    torch_worker._worker_info = None
    try:
        yield
    finally:
        torch_worker._worker_info = info
