"""Seeded augmentation of image batches, on the device of the batch.

Random numbers are drawn on the CPU from a generator that the caller seeds per batch, so the same seed gives the same
images on every device and with any number of workers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from sacristan.ingredients.datasets.structure import sent

__all__ = ["augment", "shifted"]


def augment(images: Tensor, generator: torch.Generator, *, flip: bool, crop: int, rotate: float) -> Tensor:
    """Flip, shift and rotate each image (B, C, H, W) of a floating-point batch at random.

    `crop` is the padding with zeros on each side, pixels, before cropping to the original size; `rotate` is the largest
    angle, degrees either way. The CPU generator's number of draws depends on the batch's shape alone.
    """
    count = len(images)
    if flip:
        mirrored = sent(torch.rand(count, generator=generator).lt(0.5), images.device)
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    if crop:
        images = shifted(images, torch.randint(0, 2 * crop + 1, (count, 2), generator=generator), crop)
    if rotate:
        angles = (torch.rand(count, generator=generator) * 2 - 1) * math.radians(rotate)
        images = _rotate(images, sent(angles, images.device))
    return images


def shifted(images: Tensor, offsets: Tensor, crop: int, size: tuple[int, int] | None = None) -> Tensor:
    """Pad each image (B, C, H, W) with `crop` pixels of zeros, and crop it to `size`, by default (H, W).

    `offsets` (B, 2) are rows and columns of the top left corners in the padded images, integers on the CPU.
    """
    count, (height, width) = len(images), size or images.shape[-2:]
    padded = functional.pad(images, (crop, crop, crop, crop))
    offsets = sent(offsets, images.device)
    rows = offsets[:, :1] + torch.arange(height, device=images.device)
    columns = offsets[:, 1:] + torch.arange(width, device=images.device)
    batch = torch.arange(count, device=images.device)
    return padded[batch[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Rotate (B, C, H, W) by `angles` (B,) in radians, about the centre, in pixels of equal size."""
    ratio = images.shape[-1] / images.shape[-2]
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    rows = (torch.stack([cosine, -sine / ratio, zero], -1), torch.stack([sine * ratio, cosine, zero], -1))
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    # In float32, because half precision cannot represent the positions of pixels.
    return functional.grid_sample(images.to(grid.dtype), grid, align_corners=False).to(images.dtype)
