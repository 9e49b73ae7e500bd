"""Placement of data during training: in the device's memory, or read by a DataLoader.

Arrays are kept in the device's memory if they take at most half of the free memory there. They keep their type: bytes
become normalised floats batch by batch. Larger arrays, and everything that is read item by item, are read by a
DataLoader. `data.in_memory=True` also loads the images of a folder; `data.in_memory=False` keeps nothing in memory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from sacristan.ingredients.datasets.items import ByteImages
from sacristan.ingredients.datasets.preparation import Prepared
from sacristan.ingredients.datasets.structured import ArrayStructure
from sacristan.ingredients.errors import DataError

__all__ = ["Placement", "free_bytes", "place"]

# Bytes that always fit, without asking for the free memory.
_SMALL = 32 * 2**20
_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Placement:
    """The place where data are kept.

    Attributes:
        in_memory: Whether they are in the device's memory.
        line: The same in words, for the first line of a run.
    """

    in_memory: bool
    line: str


def place(prepared: Prepared, config: Mapping[str, Any], device: torch.device) -> tuple[Prepared, Placement]:
    """Choose where to keep data; images of a folder are loaded as one array if `data.in_memory` asks for it."""
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
        return prepared, Placement(False, line)
    size = f"{num_bytes / 2**20:,.1f} MiB"
    if wanted or num_bytes <= _SMALL or num_bytes <= _SHARE * free_bytes(device):
        return prepared, Placement(True, f"{size} in memory")
    return prepared, Placement(False, f"{line}, as {size} are more than half of the free memory")


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
