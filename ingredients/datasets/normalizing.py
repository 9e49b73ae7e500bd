"""From the values that lie in memory, or were read, to those that a model gets: on the device, batch by batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ingredients.datasets.fitted import Preparation

__all__ = ["Finish", "finisher"]

Finish = Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]


def finisher(by: Preparation, inputs: torch.dtype, targets: torch.dtype, device: torch.device) -> Finish | None:
    """Return what makes batches ready for a model, once they are on `device`; None if they are ready.

    Bytes become normalised float32; those of images are 0 to 1 before. Labels of few bits become int64. The operations
    are those of `preparation`, one by one, so that the bits are the same as if the whole had been made float32.

    Args:
        by: What the data were prepared by.
        inputs: Type of the inputs as they are.
        targets: Type of the targets as they are.
        device: Where batches are.
    """
    is_bytes, is_short = inputs == torch.uint8, targets == torch.int16
    if not is_bytes and not is_short:
        return None
    mean, std = (None if part is None else torch.from_numpy(part).to(device) for part in (by.mean, by.std))
    is_image = len(by.input_shape) == 3

    def finish(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values, labels = batch
        if is_bytes:
            values = values.to(torch.float32)
            values = values.div_(255) if is_image else values
            values = values if mean is None or std is None else values.sub_(mean).div_(std)
        return values, labels.long() if is_short else labels

    return finish
