"""Where data lie while they are trained on: in memory on the device, or where workers read them. The rule stands here.

Arrays lie in memory on the device if they take at most half of what is free there, as the type that they came in: bytes
stay bytes, and become normalised floats batch by batch. Others, and all that is read item by item, go through a
DataLoader. `data.in_memory=True` reads the images of a folder into memory, too; `data.in_memory=False` puts nothing
there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from ingredients.datasets.items import ByteImages
from ingredients.datasets.preparation import Prepared
from ingredients.datasets.structured import ArrayStructure
from ingredients.errors import DataError

__all__ = ["Placement", "free_bytes", "place"]

# What always fits, so that the memory need not be asked for.
_SMALL = 32 * 2**20
_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where data lie.

    Attributes:
        in_memory: Whether they lie in memory on the device, and are cut from there.
        line: The same in words, for the first line of a run.
    """

    in_memory: bool
    line: str


def place(prepared: Prepared, config: Mapping[str, Any], device: torch.device) -> tuple[Prepared, Placement]:
    """Decide where data lie; return them, with images of a folder as one array if those are to lie in memory.

    Args:
        prepared: The data.
        config: The data ingredient's config.
        device: Where batches are wanted.

    Raises:
        DataError: If they cannot lie in memory, and `data.in_memory` asks for it.
    """
    wanted, workers = config["in_memory"], config["num_workers"]
    if wanted and isinstance(prepared.inputs, ByteImages) and prepared.inputs.are_bytes:
        prepared = dataclasses.replace(prepared, inputs=_read_images(prepared.inputs))
    num_bytes = _num_bytes(prepared)
    if wanted and num_bytes is None:
        raise DataError(
            f"data.in_memory=True: data.name={config['name']} is read item by item, and each may be drawn anew; leave "
            "data.in_memory out, or return arrays"
        )
    fits = num_bytes is not None and (num_bytes <= _SMALL or num_bytes <= _SHARE * free_bytes(device))
    if num_bytes is not None and wanted is not False and (wanted or fits):
        return prepared, Placement(True, f"{num_bytes / 2**20:,.1f} MiB in memory")
    readers = "the main process" if not workers else f"{workers} worker{'s' if workers > 1 else ''}"
    why = (
        ""
        if num_bytes is None or wanted is False
        else f", as {num_bytes / 2**20:,.1f} MiB are more than half of the free memory"
    )
    return prepared, Placement(False, f"read by {readers}{why}")


def free_bytes(device: torch.device) -> int:
    """Return how much memory is free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def _num_bytes(prepared: Prepared) -> int | None:
    """Return what arrays take; None where there are none, or samples are joined by a function."""
    if isinstance(prepared.inputs, np.ndarray):
        return prepared.inputs.nbytes + prepared.targets.nbytes
    if isinstance(prepared.inputs, ArrayStructure) and prepared.collate is None:
        return prepared.inputs.nbytes
    return None


def _read_images(images: Any) -> np.ndarray:
    """Return images as bytes (samples, channels, height, width), read by some threads."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        read = list(pool.map(images.bytes_at, range(len(images))))
    return np.ascontiguousarray(np.moveaxis(np.stack(read), -1, 1))
