"""Batches read by a DataLoader, in this process or in workers: of map-style datasets, and of streams.

A worker gets the key of a whole batch (epoch, number of the batch, positions of its samples), so everything it reads,
draws and collates depends on that key alone.

Of a stream, each worker iterates over the whole, makes the batches it is asked for and skips the samples of others, so
the batches are the same with any number of workers, and a run can resume in the middle of an epoch. A stream may yield
functions without arguments for costly samples; those of skipped samples are not called. While a stream is iterated, the
global generators are seeded from (seed, epoch).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler
from torch.utils.data._utils import worker as torch_worker

from sacristan.ingredients.config.seed import KeptStream, global_stream, numpy_stream, stream_seed
from sacristan.ingredients.datasets.collating import Collate, collated, stack, tensors_of, to_device
from sacristan.ingredients.datasets.epochs import Batches, finisher
from sacristan.ingredients.datasets.factories import Items
from sacristan.ingredients.datasets.preparation import Prepared
from sacristan.ingredients.datasets.samples import ByteImages, Joined, Sequences, Subset
from sacristan.ingredients.datasets.structured import Stream
from sacristan.ingredients.errors import DataError, LabError
from sacristan.ingredients.ranks.group import Ranks, current

Key = tuple[int, int, Sequence[int]]

_END = object()


class LoaderBatches(Batches):
    """Batches read from a map-style dataset by a DataLoader.

    Args:
        dataset: Returns whole batches by `read(key)`, or else items by [epoch, position].
        device: Device of the batches.
        batch_size: Samples in a batch.
        num_workers: Worker processes; 0 reads in this process.
        pin_memory: Whether to read into page-locked memory for a GPU.
        **options: Options of `Batches`.
    """

    is_read = True

    def __init__(
        self,
        dataset: Any,
        device: torch.device,
        batch_size: int,
        num_workers: int,
        pin_memory: bool,
        **options: Any,
    ) -> None:
        super().__init__(len(dataset), batch_size, **options)
        self.device = device
        self.num_workers = num_workers
        self._reader = dataset if hasattr(dataset, "read") else _ItemByItem(dataset)
        self._finish: Callable[[Any], Any] = getattr(dataset, "finisher", lambda _: _as_it_is)(device)
        self._sampler = _EpochSampler()
        # The loader would draw the base seed of its workers from the global generator.
        self._workers_stream = torch.Generator()
        self._loader = DataLoader(
            _BatchReader(self._reader),
            batch_size=None,
            sampler=self._sampler,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            pin_memory=pin_memory and device.type == "cuda",
            persistent_workers=num_workers > 0,
            generator=self._workers_stream,
            worker_init_fn=_leave_signals_to_the_trainer,
        )

    def inputs_at(self, places: Sequence[int]) -> Tensor:
        batch = _read_or_error(self._reader, (0, 0, list(places)))
        if isinstance(batch, LabError):
            raise batch
        return next(tensors_of(self._finish(to_device(batch, self.device)))).cpu()

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        chunks = self._chunks(epoch, start)
        if self.ranks.size > 1:
            chunks = [share for share in map(self.ranks.share, chunks) if len(share)]
        self._sampler.keys = _keys(epoch, start, chunks, self.ranks)
        # Other draws of the workers, outside the streams of items, also depend on the epoch alone.
        self._workers_stream.manual_seed(stream_seed(self.seed, "workers", epoch))
        for batch in self._loader:
            if isinstance(batch, LabError):
                try:
                    raise batch
                finally:
                    del batch  # otherwise the traceback would keep the error, and with it the workers
            yield self._finish(to_device(batch, self.device))

    def _chunks(self, epoch: int, start: int) -> Sequence[Tensor | Sequence[int]]:
        """Return the positions of each batch, starting at the batch `start`."""
        first, stop = start * self.batch_size, len(self) * self.batch_size
        return self.order(epoch)[first:stop].split(self.batch_size) if first < stop else ()


def _keys(epoch: int, start: int, chunks: Sequence[Tensor | Sequence[int]], ranks: Ranks) -> Iterator[Key]:
    """Yield the keys of batches, with distinct numbers in each rank; not a method, see `_EpochSampler`."""
    for number, chunk in enumerate(chunks, start):
        yield epoch, number * ranks.size + ranks.rank, chunk.tolist() if isinstance(chunk, Tensor) else chunk


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Ignore Ctrl-C and signals to all processes in a worker, which the trainer (a rank: its parent) stops."""
    if current().size > 1 and hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_obey_the_parent, args=(os.getppid(),), daemon=True).start()
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _obey_the_parent(parent: int) -> None:
    """End on SIGTERM from the parent; ignore it from others."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(128 + signal.SIGTERM)


class _EpochSampler(Sampler):
    """Yields keys of batches; it must not refer to them, or each worker of a loader takes 5 s to end."""

    def __init__(self) -> None:
        self.keys: Iterator[Key] = iter(())

    def __iter__(self) -> Iterator[Key]:
        return self.keys


class _BatchReader(Dataset):
    """A dataset whose items are whole batches, by their keys."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __getitem__(self, key: Key) -> Any:
        return _read_or_error(self.reader, key)


def _read_or_error(reader: Any, key: Key) -> Any:
    """Return a batch, or the error of reading it: raised in a worker, it would carry the worker's traceback."""
    try:
        return reader.read(key)
    except LabError as error:
        return error


class _ItemByItem:
    """Whole batches of a dataset of items by [epoch, position]."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def read(self, key: Key) -> Any:
        epoch, _, positions = key
        return stack([self.dataset[epoch, position] for position in positions])


class EpochOf:
    """The epoch last passed to `set_epoch` of datasets; all splits share it, and `seed` is of that stream."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._datasets = list(_with_epochs(dataset))
        self._seed = seed
        self._epoch: int | None = None

    def set(self, epoch: int) -> None:
        """Set the epoch of the datasets, if it has changed."""
        if self._datasets and epoch != self._epoch:
            for dataset in self._datasets:
                with global_stream(self._seed, "set_epoch", epoch):
                    dataset.set_epoch(epoch)
            self._epoch = epoch


def _with_epochs(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, or those it is made of, that have a method `set_epoch`."""
    if hasattr(dataset, "set_epoch"):
        yield dataset
    elif isinstance(dataset, Items | Subset | torch.utils.data.Subset):
        yield from _with_epochs(dataset.dataset)
    elif isinstance(dataset, Joined | ConcatDataset):
        for part in dataset.parts if isinstance(dataset, Joined) else dataset.datasets:
            yield from _with_epochs(part)


class SplitDataset:
    """One split of a map-style dataset of (input, target); each item has its own part of the stream `items`."""

    def __init__(self, prepared: Prepared, split: str, seed: int, epoch_of: EpochOf) -> None:
        self.prepared = prepared
        self.epoch_of = epoch_of
        self.indices = prepared.indices[split]
        self.targets = torch.from_numpy(prepared.targets[self.indices])
        self.seed = seed
        self._reads_bytes = isinstance(prepared.inputs, ByteImages) and prepared.inputs.are_bytes

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, key: Key) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the batch with a key (epoch, number, positions), not yet finished."""
        epoch, _, positions = key
        self.epoch_of.set(epoch)
        return torch.from_numpy(self._values(epoch, self.indices[list(positions)])), self.targets[list(positions)]

    def _values(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        inputs = self.prepared.inputs
        if isinstance(inputs, np.ndarray):
            return inputs[indices]
        if isinstance(inputs, Sequences):
            return inputs.batch_of(indices)
        if self._reads_bytes:
            return np.stack(list(map(inputs.bytes_at, indices.tolist())))
        items = []
        for index in indices.tolist():
            with global_stream(self.seed, "items", epoch, index):
                items.append(inputs[index][0])
        return np.stack(list(map(self.prepared.preparation.scaled, items)))

    def finisher(self, device: torch.device) -> Callable[[Any], Any]:
        """Return what makes a batch ready on `device`: bytes (B, H, W, C) become normalised float32 (B, C, H, W)."""
        is_array = isinstance(self.prepared.inputs, np.ndarray)
        is_bytes = self._reads_bytes or (is_array and self.prepared.inputs.dtype == np.uint8)
        inputs = torch.uint8 if is_bytes else torch.float32
        finish = finisher(self.prepared.preparation, inputs, self.targets.dtype, device)
        if finish is None or is_array or not is_bytes:
            return finish or _as_it_is
        return lambda batch: finish((batch[0].permute(0, 3, 1, 2).contiguous(), batch[1]))


@dataclasses.dataclass(eq=False)
class StructuredSplit:
    """One split of samples of any structure; items and `collate` draw from the streams `items` and `collate`."""

    samples: Any
    indices: np.ndarray
    collate: Collate | None
    seed: int
    epoch_of: EpochOf

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, key: Key) -> Any:
        """Return the batch with a key (epoch, number of the batch, positions of its samples)."""
        epoch, number, positions = key
        self.epoch_of.set(epoch)
        items = []
        for index in self.indices[list(positions)].tolist():
            with global_stream(self.seed, "items", epoch, index):
                items.append(self.samples[index])
        with global_stream(self.seed, "collate", epoch, number):
            return collated(self.collate or stack, items)


def _as_it_is(batch: Any) -> Any:
    return batch


class StreamBatches(LoaderBatches):
    """Batches of a stream, in its order, or shuffled by its buffer."""

    def order(self, epoch: int) -> Tensor:
        """Return the positions (epoch_samples,) in the stream, which are the same in every epoch."""
        return torch.arange(self.epoch_samples)

    def _chunks(self, epoch: int, start: int) -> Sequence[Sequence[int]]:
        count, size = self.epoch_samples, self.batch_size
        return [range(first, min(first + size, count)) for first in range(start * size, len(self) * size, size)]


@dataclasses.dataclass(eq=False)
class StreamSplit:
    """A split of a stream in batches by keys, shuffled in a `buffer` (0: none); reading backwards restarts it."""

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
        for index in places:
            sample = next(self._samples)
            self._place += 1
            if callable(sample):
                with global_stream(self.seed, "items", epoch, index):
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
            index = int(draws.integers(len(held)))
            held[index], sample = sample, held[index]
            yield sample
        for index in draws.permutation(len(held)).tolist():
            yield held[index]


@contextlib.contextmanager
def _whole_stream() -> Iterator[None]:
    """Hide the worker from a stream that would yield only its worker's share, so that it yields all samples."""
    info = torch_worker._worker_info
    torch_worker._worker_info = None
    try:
        yield
    finally:
        torch_worker._worker_info = info
