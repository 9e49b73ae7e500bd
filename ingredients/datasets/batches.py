"""`Data`: the splits of prepared data as batches, what models and losses need to know of them, and where they are kept.

Arrays are kept in the device's memory if they take at most half of the free memory there. They keep their type: bytes
become normalised floats batch by batch. Larger arrays, and everything that is read item by item, are read by a
DataLoader. `data.in_memory=True` also loads the images of a folder; `data.in_memory=False` keeps nothing in memory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sacristan.ingredients.datasets.epochs import (
    SAMPLERS,
    Batches,
    StructureBatches,
    TensorBatches,
    finisher,
    make_order,
)
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.loading import (
    EpochOf,
    LoaderBatches,
    SplitDataset,
    StreamBatches,
    StreamSplit,
    StructuredSplit,
)
from sacristan.ingredients.datasets.preparation import Prepared
from sacristan.ingredients.datasets.samples import ByteImages
from sacristan.ingredients.datasets.splitting import SPLITS, Split
from sacristan.ingredients.datasets.structured import ArrayStructure
from sacristan.ingredients.datasets.transforms import make_pipeline, shape_after
from sacristan.ingredients.errors import DataError
from sacristan.ingredients.ranks.group import ALONE, Ranks

__all__ = [
    "Batches",
    "Data",
    "LoaderBatches",
    "StructureBatches",
    "TensorBatches",
    "free_bytes",
    "make_batches",
    "place",
]

# Bytes that always fit, without asking for the free memory.
_SMALL = 32 * 2**20
_SHARE = 0.5


def place(prepared: Prepared, config: Mapping[str, Any], device: torch.device) -> tuple[Prepared, bool, str]:
    """Return data (images perhaps read into an array), whether they are kept in memory, and where, in words."""
    wanted, inputs = config["in_memory"], prepared.inputs
    if wanted and isinstance(inputs, ByteImages) and inputs.are_bytes:
        prepared = dataclasses.replace(prepared, inputs=_read_images(inputs))
    num_bytes = _num_bytes(prepared)
    if wanted and num_bytes is None:
        raise DataError(
            f"data.in_memory=True: data.name={config['name']} is read item by item, which may differ each time; leave "
            "data.in_memory out, or return arrays"
        )
    line = _reader(config["num_workers"])
    if num_bytes is None or wanted is False:
        return prepared, False, line
    size = f"{num_bytes / 2**20:,.1f} MiB"
    if wanted or num_bytes <= _SMALL or num_bytes <= _SHARE * free_bytes(device):
        return prepared, True, f"{size} in memory"
    return prepared, False, f"{line}, as {size} are more than half of the free memory"


def _reader(num_workers: int) -> str:
    if not num_workers:
        return "read by the main process"
    return f"read by {num_workers} worker{'s' * (num_workers > 1)}"


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device, bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def _num_bytes(prepared: Prepared) -> int | None:
    """Return the size of arrays, bytes; None for datasets, and for samples that a function collates."""
    if isinstance(prepared.inputs, np.ndarray):
        return prepared.inputs.nbytes + prepared.targets.nbytes
    if isinstance(prepared.inputs, ArrayStructure) and prepared.collate is None:
        return prepared.inputs.nbytes
    return None


def _read_images(images: Any) -> np.ndarray:
    """Return images as bytes (samples, channels, height, width), read by threads."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        read = list(pool.map(images.bytes_at, range(len(images))))
    return np.ascontiguousarray(np.moveaxis(np.stack(read), -1, 1))


@dataclasses.dataclass(frozen=True)
class Data:
    """The splits as batches, and what a model and a loss need to know of the data.

    Attributes:
        train, val, test: Batches of each split; val and test may be empty.
        task: classification, regression, multilabel, segmentation (a class for each place), or custom (samples of any
            structure).
        input_shape: Shape of one transformed input; for samples of any structure that of their first tensor, () if it
            differs.
        num_targets: Number of classes, labels, or target values.
        classes: Names of the classes.
        class_counts: Training samples of each class or label (classes,); empty for regression.
        target_mean, target_std: Mean and deviation that normalised regression targets (outputs,), or None; float64
            where `Preparation` says, except on devices without it.
        fingerprint: SHA-256 of the content.
        input_mean, input_std: Mean and deviation that normalised the inputs, to broadcast with one input, on the CPU;
            or None.
        preparation: The fitted preparation, which checkpoints keep; None if unknown.
        split: The split, which checkpoints keep; None if unknown.
        test_names: Name of each sample of `test`, in order: its file, or its position in the source.
        has_targets: Whether there are targets; otherwise those of batches are -1, and NaN for regression.
        input_dtype: Type of the inputs: torch.float32, or torch.int64 for integers.
        placement: Where the data are kept, in words: in memory, or read by workers.
    """

    train: Batches
    val: Batches
    test: Batches
    task: str
    input_shape: tuple[int, ...]
    num_targets: int
    fingerprint: str
    classes: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()
    target_mean: Tensor | None = None
    target_std: Tensor | None = None
    input_mean: Tensor | None = None
    input_std: Tensor | None = None
    preparation: Preparation | None = None
    split: Split | None = None
    test_names: Sequence[str] | Sequence[int] = ()
    has_targets: bool = True
    input_dtype: torch.dtype = torch.float32
    placement: str = ""


def make_batches(
    prepared: Prepared, config: Mapping[str, Any], seed: int, device: torch.device, ranks: Ranks = ALONE
) -> Data:
    """Return prepared data as batches on a device; data in memory are moved there as a whole."""
    _check_sizes(config, config["epoch_samples"] or prepared.num_samples("train"), ranks)
    by = prepared.preparation
    augmentation = _augmentation(config["augment"], by)
    prepared, in_memory, placement = place(prepared, config, device)
    splits, epoch_of = {}, EpochOf(prepared.inputs, seed)
    for split in SPLITS:
        options = _options(prepared, split, config, seed, device, ranks)
        if split == "train":
            options["augmentation"] = augmentation
        splits[split] = _batches_of(prepared, split, in_memory, config, device, options, epoch_of)
    return Data(
        **splits,
        task=by.task,
        input_shape=shape_after(config["transforms"], by.input_shape) if config["transforms"] else by.input_shape,
        num_targets=by.num_targets,
        classes=by.classes,
        class_counts=by.class_counts,
        target_mean=_on(device, by.target_mean),
        target_std=_on(device, by.target_std),
        fingerprint=prepared.fingerprint,
        input_mean=_on(torch.device("cpu"), by.mean),
        input_std=_on(torch.device("cpu"), by.std),
        preparation=by,
        split=by.split,
        test_names=[prepared.names[index] for index in prepared.indices["test"].tolist()],
        has_targets=prepared.has_targets,
        input_dtype=getattr(torch, by.dtype),
        placement=placement,
    )


def _check_sizes(config: Mapping[str, Any], num_train: int, ranks: Ranks) -> None:
    size = config["batch_size"]
    if size < 1:
        raise DataError(f"data.batch_size: got {size}, expected at least 1")
    if config["drop_last"] and 0 < num_train < size:
        raise DataError(
            f"data.batch_size: got {size}, but there are {num_train} training samples, and data.drop_last=True leaves "
            f"out a smaller batch; give at most {num_train}, or set data.drop_last=False"
        )
    if size % ranks.size:
        raise DataError(
            f"data.batch_size: got {size}, which {ranks.size} processes cannot share evenly, as it is the size of the "
            f"whole batch; give a multiple of {ranks.size}, such as {-(-size // ranks.size) * ranks.size}"
        )
    if 0 < num_train < ranks.size:
        raise DataError(f"data: got {num_train} training samples for {ranks.size} processes; start fewer of them")
    if config["num_workers"] < 0:
        raise DataError(f"data.num_workers: got {config['num_workers']}, expected 0 or more")


def _options(
    prepared: Prepared, split: str, config: Mapping[str, Any], seed: int, device: torch.device, ranks: Ranks
) -> dict[str, Any]:
    training = split == "train"
    options: dict[str, Any] = {"seed": seed, "shuffle": training, "drop_last": training and config["drop_last"]}
    options |= {"ranks": ranks, "least": ranks.size if training else 1}
    if config["transforms"]:
        options["transform"] = make_pipeline(config["transforms"], prepared.preparation, device, training=training)
    return options | (_order_options(prepared, config, seed) if training else {})


def _order_options(prepared: Prepared, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    options = {"epoch_samples": config["epoch_samples"]}
    if (config["sampler"] is not None or config["shuffle_buffer"]) and not prepared.is_stream:
        options["order"] = make_order(prepared, config, seed)
    if config["sampler"] not in (None, *SAMPLERS):
        options["epoch_samples"] = len(options["order"](1))
    return options


def _augmentation(config: Mapping[str, Any], by: Preparation) -> dict[str, Any] | None:
    """Return the arguments of `augment`, after a check that they fit the data; None if nothing is augmented."""
    if not any(config.values()):
        return None
    shape = by.input_shape
    if by.task in ("segmentation", "custom"):
        raise DataError(
            f"data.augment: got {dict(config)} on data of the task {by.task}, whose targets would not move along; "
            "augment in the dataset, or in data.collate"
        )
    if len(shape) != 3:
        raise DataError(f"data.augment: got {dict(config)} on inputs of shape {shape}, expected images")
    if not 0 <= config["crop"] < min(shape[1:]):
        raise DataError(
            f"data.augment.crop: got {config['crop']}, expected 0 to {min(shape[1:]) - 1}, less than the size of "
            f"images of shape {shape}"
        )
    if config["rotate"] < 0:
        raise DataError(f"data.augment.rotate: got {config['rotate']}, expected 0 or more degrees, either way")
    if by.dtype != "float32":
        raise DataError(f"data.augment: got data.dtype={by.dtype}, expected float32; turn one of them off")
    return dict(config)


def _batches_of(
    prepared: Prepared,
    split: str,
    in_memory: bool,
    config: Mapping[str, Any],
    device: torch.device,
    options: dict[str, Any],
    epoch_of: EpochOf,
) -> Batches:
    size = config["batch_size"]
    reading = (device, size, config["num_workers"], config["pin_memory"])
    if prepared.is_stream:
        buffer = config["shuffle_buffer"] if split == "train" else 0
        stream = StreamSplit(prepared.stream(split), prepared.collate, options["seed"], buffer)
        return StreamBatches(stream, *reading, **options | {"shuffle": False})
    index, is_custom = prepared.indices[split], prepared.preparation.task == "custom"
    if in_memory and is_custom:
        samples = prepared.inputs.rows_at(index).map(lambda part: torch.from_numpy(part).to(device))
        return StructureBatches(samples, size, **options)
    if in_memory:
        inputs, targets = (torch.from_numpy(part[index]).to(device) for part in (prepared.inputs, prepared.targets))
        finish = finisher(prepared.preparation, inputs.dtype, targets.dtype, device)
        return TensorBatches(inputs, targets, size, finish=finish, **options)
    dataset: Any = SplitDataset(prepared, split, options["seed"], epoch_of)
    if is_custom:
        dataset = StructuredSplit(prepared.inputs, index, prepared.collate, options["seed"], epoch_of)
    return LoaderBatches(dataset, *reading, **options)


def _on(device: torch.device, values: np.ndarray | None) -> Tensor | None:
    """Return an array on a device; float64 becomes float32 where the device lacks it."""
    if values is None:
        return None
    return torch.from_numpy(values.astype(np.float32) if device.type == "mps" else values).to(device)
