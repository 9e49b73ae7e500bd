"""Transforms of image batches by name, `data.transforms`, and augmentation, on the device of the batch.

Images are normalised floats (B, C, H, W). Random transforms apply to training only; they draw on the CPU from a
generator that the caller seeds per batch, so the same seed gives the same images on every device and with any number
of workers. Geometric transforms also apply to masks (B, H, W), where pixels from outside the image have no class.
Shapes: B batch, K classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, check_options, require
from sacristan.ingredients.config.seed import global_stream
from sacristan.ingredients.datasets.collating import sent
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.targets import VOID
from sacristan.ingredients.errors import DataError

# Transforms that also apply to validation and test by default.
_ALWAYS = ("resize", "center_crop")
_MIXING = ("mixup", "cutmix")


def augment(images: Tensor, generator: torch.Generator, *, flip: bool, crop: int, rotate: float) -> Tensor:
    """Flip, shift and rotate each image (B, C, H, W) of a floating-point batch at random.

    `crop` is the padding in pixels before cropping to the original size; `rotate` is the largest angle, degrees. The
    number of draws from the CPU generator depends on the shape alone.
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
    """Pad images (B, C, H, W) with `crop` zeros, and crop them to `size` at `offsets` (B, 2), integers on the CPU."""
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


@dataclasses.dataclass
class Context:
    """A transform's CPU generator, seeded per batch, and the data's task and deviation (C, 1, 1), None if unknown."""

    generator: torch.Generator
    mean: Tensor | None = None
    std: Tensor | None = None
    task: str = "classification"
    num_classes: int = 0


Pair = tuple[Tensor, Tensor]


def resize(batch: Pair, context: Context, size: int) -> Pair:
    """Resize images to height and width `size`, bilinear with antialiasing; masks by nearest pixel."""

    def warp(images: Tensor, mode: str) -> Tensor:
        smooth: dict[str, Any] = {"antialias": True, "align_corners": False} if mode == "bilinear" else {}
        return functional.interpolate(images, (size, size), mode=mode, **smooth)

    return _both(batch, context, warp)


def center_crop(batch: Pair, context: Context, size: int) -> Pair:
    """Crop height and width `size` from the centre."""
    height, width = _fitting(batch[0], size, 0, "center_crop")
    top, left = (height - size) // 2, (width - size) // 2
    return _both(batch, context, lambda images, mode: images[:, :, top : top + size, left : left + size])


def random_crop(batch: Pair, context: Context, size: int, padding: int = 0) -> Pair:
    """Crop height and width `size` at a random place, after padding each side with `padding` pixels of zeros."""
    height, width = _fitting(batch[0], size, padding, "random_crop")
    most = torch.tensor([height + 2 * padding - size, width + 2 * padding - size])
    places = torch.rand(len(batch[0]), 2, generator=context.generator)
    offsets = (places * (most + 1)).long().clamp(max=most)
    return _both(batch, context, lambda images, mode: shifted(images, offsets, padding, (size, size)))


def random_resized_crop(
    batch: Pair,
    context: Context,
    size: int,
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
) -> Pair:
    """Crop a random part of the image and resize it to height and width `size`, bilinear without antialiasing.

    `scale` is the range of the share of the area, `ratio` that of width to height (https://arxiv.org/abs/1409.4842).
    """
    images = batch[0]
    height, width = images.shape[-2:]
    draws = torch.rand(len(images), 4, generator=context.generator)
    area = (scale[0] + (scale[1] - scale[0]) * draws[:, 0]) * height * width
    shape = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * draws[:, 1])
    shares = torch.stack([(area * shape).sqrt() / width, (area / shape).sqrt() / height], 1).clamp(max=1)
    centres = (draws[:, 2:] * 2 - 1) * (1 - shares)
    rows = torch.zeros(len(images), 2, 3)
    rows[:, 0, 0], rows[:, 1, 1], rows[:, :, 2] = shares[:, 0], shares[:, 1], centres
    grid = functional.affine_grid(rows, [len(images), 1, size, size], align_corners=False)
    grid = sent(grid, images.device)

    def warp(images: Tensor, mode: str) -> Tensor:
        return functional.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)

    return _both(batch, context, warp)


def flip(batch: Pair, context: Context, p: float = 0.5) -> Pair:
    """Mirror images left and right with probability `p`, each on its own draw."""
    mirrored = torch.rand(len(batch[0]), generator=context.generator).lt(p)[:, None, None, None]
    mirrored = sent(mirrored, batch[0].device)
    return _both(batch, context, lambda images, mode: torch.where(mirrored, images.flip(-1), images))


def color_jitter(
    batch: Pair, context: Context, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0
) -> Pair:
    """Change brightness, contrast and saturation, in that order, by random factors of 1 plus or minus each."""
    images = batch[0]
    draws = sent(torch.rand(3, len(images), 1, 1, 1, generator=context.generator), images.device) * 2 - 1
    pixels = images if context.mean is None or context.std is None else images * context.std + context.mean
    pixels = pixels * (1 + draws[0] * brightness)
    grey = pixels.mean((1, 2, 3), keepdim=True)
    pixels = grey + (pixels - grey) * (1 + draws[1] * contrast)
    grey = pixels.mean(1, keepdim=True)
    pixels = (grey + (pixels - grey) * (1 + draws[2] * saturation)).clamp(0, 1)
    return pixels if context.mean is None or context.std is None else (pixels - context.mean) / context.std, batch[1]


def mixup(batch: Pair, context: Context, alpha: float = 0.2) -> Pair:
    """Mix images and targets by a weight of Beta(alpha, alpha), classes as (B, K) (arxiv.org/abs/1710.09412)."""
    images, targets = batch[0], _soft(batch[1], context)
    share, others = _mixing(batch, context, alpha)
    return images * share + images[others] * (1 - share), targets * share + targets[others] * (1 - share)


def cutmix(batch: Pair, context: Context, alpha: float = 1.0) -> Pair:
    """Replace a rectangle of each image, mix targets by its area, classes (B, K) (arxiv.org/abs/1905.04899)."""
    images, targets = batch[0], _soft(batch[1], context)
    share, others = _mixing(batch, context, alpha)
    height, width = images.shape[-2:]
    centre = torch.rand(2, generator=context.generator).tolist()
    half = math.sqrt(1 - share) / 2
    top, bottom = (round(min(max(centre[0] + side, 0.0), 1.0) * height) for side in (-half, half))
    left, right = (round(min(max(centre[1] + side, 0.0), 1.0) * width) for side in (-half, half))
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[others][:, :, top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return mixed, targets * share + targets[others] * (1 - share)


NAMES: dict[str, Callable[..., Pair]] = {
    function.__name__: function
    for function in (resize, center_crop, random_crop, random_resized_crop, flip, color_jitter, mixup, cutmix)
}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A sequence of transforms as a function of a batch and a generator."""

    steps: tuple[tuple[Callable[..., Pair], dict[str, Any]], ...]
    mean: Tensor | None
    std: Tensor | None
    task: str
    num_classes: int

    def __call__(self, batch: Pair, generator: torch.Generator) -> Pair:
        context = Context(generator, self.mean, self.std, self.task, self.num_classes)
        for function, options in self.steps:
            batch = function(batch, context, **options)
        return batch


def parse(entries: Sequence[Any]) -> list[tuple[str, Callable[..., Pair], dict[str, Any], bool]]:
    """Look up `data.transforms`: name, function, options, and whether it applies to validation and test.

    `v2.NAME` is a class of `torchvision.transforms.v2`. The option `val` also transforms the others, as `resize` does.
    """
    transforms = []
    for entry in entries:
        options = {"name": entry} if isinstance(entry, str) else dict(entry)
        name, in_val = options.pop("name", None), options.pop("val", None)
        if not isinstance(name, str) or not (name in NAMES or name.startswith("v2.")):
            hint = suggestion(str(name), NAMES, f"there are: {', '.join(NAMES)}, v2.NAME of torchvision")
            raise DataError(f"data.transforms: got {name!r}, which is unknown; {hint}")
        if name in NAMES:
            check_options(NAMES[name], options, f"data.transforms.{name}", {"batch": (), "context": ()})
            transforms.append((name, NAMES[name], options, name in _ALWAYS if in_val is None else bool(in_val)))
        else:
            transforms.append((name, _torchvision(name, options), {}, bool(in_val)))
    return transforms


def make_pipeline(entries: Sequence[Any], by: Preparation, device: torch.device, *, training: bool) -> Pipeline | None:
    """Return the configured transforms for training, or for validation and test; None if none applies."""
    _check_images(entries, by)
    chosen = [(name, function, options) for name, function, options, in_val in parse(entries) if training or in_val]
    if not chosen:
        return None
    mixing = [name for name, _, _ in chosen if name in _MIXING]
    if by.task == "segmentation" and mixing:
        raise DataError(
            f"data.transforms: {mixing[0]} mixes targets, but masks have a class for each pixel; leave it out"
        )
    mean, std = (None if part is None else torch.from_numpy(part).float().to(device) for part in (by.mean, by.std))
    return Pipeline(tuple(step[1:] for step in chosen), mean, std, by.task, by.num_targets)


def _check_images(entries: Sequence[Any], by: Preparation) -> None:
    if entries and (by.task == "custom" or len(by.input_shape) != 3 or by.dtype != "float32"):
        raise DataError(
            f"data.transforms: got inputs of shape {by.input_shape} and the task {by.task}, expected images as floats; "
            "transform samples in the dataset, or in data.collate"
        )


def shape_after(entries: Sequence[Any], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one input (C, H, W) after the configured transforms."""
    batch = torch.zeros(2, *shape), torch.zeros(2, *shape[1:], dtype=torch.long)
    context = Context(torch.Generator(), task="segmentation")
    for name, function, options, _ in parse(entries):
        if name not in _MIXING:
            batch = function(batch, context, **options)
    return tuple(batch[0].shape[1:])


def _torchvision(name: str, options: Mapping[str, Any]) -> Callable[..., Pair]:
    """Return a transform of torchvision, called for each image with global generators seeded from the batch's."""
    v2 = require("torchvision.transforms.v2", "torchvision", f"data.transforms={name}")
    word = name.partition(".")[2]
    if word in ("MixUp", "CutMix"):
        raise DataError(f"data.transforms: got {name}, which draws once for all workers; use {word.lower()}")
    if not hasattr(v2, word):
        hint = suggestion(word, [attribute for attribute in vars(v2) if attribute[0].isupper()], "", "v2.{}".format)
        raise DataError(f"data.transforms: torchvision.transforms.v2 has no {word!r}{hint and f'; {hint}'}")
    made = build(getattr(v2, word), options, f"data.transforms.{name}", DataError)

    def transform(batch: Pair, context: Context) -> Pair:
        seed = int(torch.randint(2**62, (1,), generator=context.generator))
        with global_stream(seed, "transform"):
            return torch.stack([made(image) for image in batch[0]]), batch[1]

    return transform


def _both(batch: Pair, context: Context, warp: Callable[[Tensor, str], Tensor]) -> Pair:
    """Move the pixels of images, and those of masks the same way."""
    images, targets = batch
    if context.task == "segmentation":
        # Pixels from outside the image are 0 here, and VOID afterwards.
        classes = (targets - VOID)[:, None].to(images.dtype)
        targets = warp(classes, "nearest")[:, 0].to(targets.dtype) + VOID
    return warp(images, "bilinear"), targets


def _fitting(images: Tensor, size: int, padding: int, name: str) -> tuple[int, int]:
    height, width = images.shape[-2:]
    if not 0 < size <= min(height, width) + 2 * padding:
        raise DataError(
            f"data.transforms.{name}.size: got {size}, expected 1 to {min(height, width) + 2 * padding} for images of "
            f"{height} by {width}"
        )
    return height, width


def _mixing(batch: Pair, context: Context, alpha: float) -> tuple[float, Tensor]:
    """Return the weight of each image, and the positions of its partners."""
    draws = np.random.default_rng(int(torch.randint(2**62, (1,), generator=context.generator)))
    others = torch.randperm(len(batch[0]), generator=context.generator)
    return float(draws.beta(alpha, alpha)), sent(others, batch[0].device)


def _soft(targets: Tensor, context: Context) -> Tensor:
    if context.task == "classification" and targets.ndim == 1:
        return functional.one_hot(targets, context.num_classes).float()
    return targets.float()
