"""Batches: slices of tensors for data in memory, a DataLoader for anything else.

The order of the samples, and every augmentation, depends on (seed, epoch) alone: not on the number of workers, not on
what was drawn before.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ingredients.config.seed import global_stream, stream_seed, torch_stream
from ingredients.datasets.augmentation import augment
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.items import ByteImages
from ingredients.datasets.preparation import Prepared
from ingredients.errors import DataError, LabError

__all__ = ["Batches", "Data", "LoaderBatches", "TensorBatches", "make_batches"]


class Batches:
    """Batches of one split; `epoch(n)` yields those of epoch n as (inputs, targets) on the device.

    Args:
        num_samples: Samples in the split.
        batch_size: Samples in a batch; the last one may hold fewer.
        seed: Seed of the streams `shuffle` and `augment`.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Whether a last batch with fewer samples is left out.
        augmentation: Arguments of `augmentation.augment`, or None.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        augmentation: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.augmentation = augmentation

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.num_samples // self.batch_size if self.drop_last else math.ceil(self.num_samples / self.batch_size)

    @property
    def last_batch_size(self) -> int:
        """Samples in the last batch of an epoch."""
        return self.batch_size if self.drop_last else self.num_samples - (len(self) - 1) * self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Return the positions (num_samples,) in the split, in the order of epoch `epoch`."""
        if not self.shuffle:
            return torch.arange(self.num_samples)
        return torch.randperm(self.num_samples, generator=torch_stream(self.seed, "shuffle", epoch))

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches `start` and on of epoch `epoch`: inputs (B, *shape) and targets (B,) or (B, outputs)."""
        batches = self._batches(epoch, start)
        return batches if self.augmentation is None else self._augmented(batches, epoch, start, self.augmentation)

    def inputs_at(self, places: Sequence[int]) -> Tensor:
        """Return the inputs (n, *shape) at positions of the split, on the CPU and not augmented."""
        raise NotImplementedError

    def _augmented(
        self, batches: Iterator[tuple[Tensor, Tensor]], epoch: int, start: int, augmentation: Mapping[str, Any]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator()
        for position, (inputs, targets) in enumerate(batches, start):
            generator.manual_seed(stream_seed(self.seed, "augment", epoch, position))
            yield augment(inputs, generator, **augmentation), targets

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        raise NotImplementedError


class TensorBatches(Batches):
    """Batches cut from tensors that are on the device already."""

    def __init__(self, inputs: Tensor, targets: Tensor, batch_size: int, **options: Any) -> None:
        super().__init__(len(targets), batch_size, **options)
        self.inputs = inputs
        self.targets = targets

    def inputs_at(self, places: Sequence[int]) -> Tensor:
        """Return the inputs (n, *shape) at positions of the split, on the CPU and not augmented."""
        return self.inputs[torch.tensor(places, dtype=torch.long, device=self.inputs.device)].cpu()

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        size, first, stop = self.batch_size, start * self.batch_size, len(self) * self.batch_size
        if first >= stop:
            return
        if not self.shuffle:
            for place in range(first, stop, size):
                yield self.inputs[place : place + size], self.targets[place : place + size]
            return
        for chosen in self.order(epoch).to(self.inputs.device)[first:stop].split(size):
            # The same as indexing with a tensor, 2 us cheaper a batch (measured).
            yield self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)


class LoaderBatches(Batches):
    """Batches read from a map-style dataset by a DataLoader, with worker processes if asked for."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        batch_size: int,
        num_workers: int,
        pin_memory: bool,
        **options: Any,
    ) -> None:
        super().__init__(len(dataset), batch_size, **options)  # type: ignore[arg-type]  # map-style ones have a length
        self.device = device
        self._finish: Callable[[Tensor], Tensor] = getattr(dataset, "finisher", _keep_on)(device)
        self._sampler = _EpochSampler(self.num_samples)
        # The loader draws the base seed of its workers here instead of from the global generator.
        self._workers_stream = torch.Generator()
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self._sampler,
            drop_last=self.drop_last,
            collate_fn=_as_it_is if hasattr(dataset, "__getitems__") else None,
            num_workers=num_workers,
            pin_memory=pin_memory and device.type == "cuda",
            persistent_workers=num_workers > 0,
            generator=self._workers_stream,
            worker_init_fn=_leave_signals_to_the_trainer,
        )

    def inputs_at(self, places: Sequence[int]) -> Tensor:
        """Return the inputs (n, *shape) at positions of the split, on the CPU and not augmented; read here and now."""
        dataset: Any = self._loader.dataset
        batch = dataset.__getitems__([(0, place) for place in places])
        if isinstance(batch, LabError):
            raise batch
        return self._finish(batch[0].to(self.device)).cpu()

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        self._sampler.start(epoch, self.order(epoch)[start * self.batch_size :].tolist())
        # What workers draw outside of the items' own streams depends on the epoch alone, too.
        self._workers_stream.manual_seed(stream_seed(self.seed, "workers", epoch))
        for batch in self._loader:
            if isinstance(batch, LabError):
                try:
                    raise batch
                finally:
                    del batch  # or the error's traceback would hold the error, and so the workers
            inputs, targets = batch
            yield (
                self._finish(inputs.to(self.device, non_blocking=True)),
                targets.to(self.device, non_blocking=True),
            )


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Let a worker live on after Ctrl-C, or a scheduler's signal to all processes: the training ends it in good order.

    SIGTERM stays: it is how the loader itself ends a worker that hangs.
    """
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


class _EpochSampler(Sampler):
    """Yields (epoch, position): persistent workers learn the epoch from what they are asked for.

    It does not refer to the batches: in a reference cycle a loader's workers would take 5 seconds each to end.
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def start(self, epoch: int, order: Sequence[int]) -> None:
        """Yield the positions `order` of epoch `epoch` from now on."""
        self.epoch = epoch
        self.order = order

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(itertools.repeat(self.epoch), self.order, strict=False)


class _SplitDataset(Dataset):
    """One split of a map-style dataset, read in batches; item (epoch, position) draws from the stream `items`."""

    def __init__(self, prepared: Prepared, split: str, seed: int) -> None:
        self.prepared = prepared
        self.indices = prepared.indices[split]
        self.targets = torch.from_numpy(prepared.targets[self.indices])
        self.seed = seed
        self._reads_bytes = isinstance(prepared.inputs, ByteImages) and prepared.inputs.are_bytes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor] | LabError:
        """Return inputs and targets of a batch, which `finish` makes ready; or the first error."""
        try:
            values = [self._bytes_at(key) if self._reads_bytes else self._values_at(key) for key in keys]
        except LabError as error:
            # Raised in a worker, it would arrive with the worker's traceback in its message.
            return error
        return torch.from_numpy(np.stack(values)), self.targets[[position for _, position in keys]]

    def _bytes_at(self, key: tuple[int, int]) -> np.ndarray:
        return self.prepared.inputs.bytes_at(int(self.indices[key[1]]))

    def _values_at(self, key: tuple[int, int]) -> np.ndarray:
        epoch, position = key
        with global_stream(self.seed, "items", epoch, int(self.indices[position])):
            values, _ = self.prepared.inputs[int(self.indices[position])]
        by = self.prepared.preparation
        return values if by.mean is None else (values - by.mean) / by.std

    def finisher(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return what makes a batch of `__getitems__`, once on `device`, ready for a model.

        Bytes (B, H, W, C) become normalised float32 (B, C, H, W); other inputs are as they should be.
        """
        if not self._reads_bytes:
            return _keep_on(device)
        by = self.prepared.preparation
        mean, std = _on(device, by.mean), _on(device, by.std)

        def finish(inputs: Tensor) -> Tensor:
            inputs = inputs.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
            return inputs if mean is None or std is None else inputs.sub_(mean).div_(std)

        return finish


def _keep_on(device: torch.device) -> Callable[[Tensor], Tensor]:
    return lambda inputs: inputs


def _as_it_is(batch: Any) -> Any:
    return batch


@dataclasses.dataclass(frozen=True)
class Data:
    """The splits as batches, and what a model and a loss need to know of them.

    Attributes:
        train, val, test: Batches of each split; val and test may be empty.
        task: classification, regression or multilabel.
        input_shape: Shape of one input.
        num_targets: Number of classes, labels, or target values.
        classes: Names of the classes.
        class_counts: Training samples of each class (classes,), or of each label; empty for regression.
        target_mean, target_std: What regression targets were normalised by, (outputs,), or None.
        fingerprint: SHA-256 of the content.
        input_mean, input_std: What inputs were normalised by, to broadcast with one input, on the CPU; or None.
        preparation: All that they were prepared by, which checkpoints keep; None if it is not known.
        test_names: What each sample of `test` is called, in order: its file, or its place in the source.
        has_targets: Whether there were targets; without any, those of batches are -1, and NaN for regression.
        input_dtype: Type of inputs: torch.float32, or torch.int64 for whole numbers.
    """

    train: Batches
    val: Batches
    test: Batches
    task: str
    input_shape: tuple[int, ...]
    num_targets: int
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    target_mean: Tensor | None
    target_std: Tensor | None
    fingerprint: str
    input_mean: Tensor | None = None
    input_std: Tensor | None = None
    preparation: Preparation | None = None
    test_names: Sequence[str] | Sequence[int] = ()
    has_targets: bool = True
    input_dtype: torch.dtype = torch.float32


def make_batches(prepared: Prepared, config: Mapping[str, Any], seed: int, device: torch.device) -> Data:
    """Return the batches of prepared data.

    Args:
        prepared: The data.
        config: The data ingredient's config.
        seed: Seed of the experiment.
        device: Where batches are wanted; data in memory are put there as a whole.

    Raises:
        DataError: If no batch would be left to train on, or augmentation is asked for on no images.
    """
    size, num_train = config["batch_size"], len(prepared.indices["train"])
    if size < 1:
        raise DataError(f"data.batch_size: got {size}, expected at least 1")
    if config["drop_last"] and 0 < num_train < size:
        raise DataError(
            f"data.batch_size: got {size}, but there are {num_train} training samples, and data.drop_last=True leaves "
            f"out a smaller batch; give at most {num_train}, or set data.drop_last=False"
        )
    if config["num_workers"] < 0:
        raise DataError(f"data.num_workers: got {config['num_workers']}, expected 0 or more")
    by = prepared.preparation
    augmentation = _augmentation(config["augment"], by.input_shape)
    if augmentation is not None and by.dtype != "float32":
        raise DataError(f"data.augment: got data.dtype={by.dtype}, expected float32; turn one of them off")
    splits = {}
    for split in ("train", "val", "test"):
        training = split == "train"
        options = {"seed": seed, "shuffle": training, "drop_last": training and config["drop_last"]}
        options["augmentation"] = augmentation if training else None
        splits[split] = _batches_of(prepared, split, config, device, options)
    return Data(
        **splits,
        task=by.task,
        input_shape=by.input_shape,
        num_targets=by.num_targets,
        classes=by.classes,
        class_counts=by.class_counts,
        target_mean=_on(device, by.target_mean),
        target_std=_on(device, by.target_std),
        fingerprint=prepared.fingerprint,
        input_mean=_on(torch.device("cpu"), by.mean),
        input_std=_on(torch.device("cpu"), by.std),
        preparation=by,
        test_names=[prepared.names[place] for place in prepared.indices["test"].tolist()],
        has_targets=prepared.has_targets,
        input_dtype=getattr(torch, by.dtype),
    )


def _augmentation(config: Mapping[str, Any], input_shape: tuple[int, ...]) -> dict[str, Any] | None:
    if not any(config.values()):
        return None
    if len(input_shape) != 3:
        raise DataError(f"data.augment: got {dict(config)} on inputs of shape {input_shape}, expected images")
    if not 0 <= config["crop"] < min(input_shape[1:]):
        raise DataError(
            f"data.augment.crop: got {config['crop']}, expected 0 to {min(input_shape[1:]) - 1}, less than images of "
            f"shape {input_shape} measure"
        )
    if config["rotate"] < 0:
        raise DataError(f"data.augment.rotate: got {config['rotate']}, expected 0 or more degrees, either way")
    return dict(config)


def _batches_of(
    prepared: Prepared, split: str, config: Mapping[str, Any], device: torch.device, options: dict[str, Any]
) -> Batches:
    if isinstance(prepared.inputs, np.ndarray):
        index = prepared.indices[split]
        inputs, targets = torch.from_numpy(prepared.inputs[index]), torch.from_numpy(prepared.targets[index])
        return TensorBatches(inputs.to(device), targets.to(device), config["batch_size"], **options)
    dataset = _SplitDataset(prepared, split, options["seed"])
    return LoaderBatches(dataset, device, config["batch_size"], config["num_workers"], config["pin_memory"], **options)


def _on(device: torch.device, values: np.ndarray | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values).to(device)
