"""Transforms of image batches by name, on whatever device the batch is on: `data.transforms`.

Images are (B, C, H, W), floats, normalised. Random ones are for training alone; they draw on the CPU from a generator
that the caller seeds per batch. What moves pixels moves masks (B, H, W) along, whose places beyond the image have no
class. Shapes: B batch, K classes.
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

from ingredients.config.construct import build, check_options, require
from ingredients.config.nearest import nearest
from ingredients.config.seed import global_stream
from ingredients.datasets.augmentation import shifted
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.structure import sent
from ingredients.datasets.targets import VOID
from ingredients.errors import DataError

__all__ = ["NAMES", "Pipeline", "make_pipeline", "parse", "shape_after"]


@dataclasses.dataclass
class Context:
    """Objects that a transform may use beside the batch.

    Attributes:
        generator: On the CPU; seeded for the batch.
        mean, std: What images were normalised by, (C, 1, 1) on their device, or None.
        task: The task of the data.
        num_classes: Number of classes.
    """

    generator: torch.Generator
    mean: Tensor | None = None
    std: Tensor | None = None
    task: str = "classification"
    num_classes: int = 0


Pair = tuple[Tensor, Tensor]


def resize(batch: Pair, context: Context, size: int) -> Pair:
    """Resize to height and width `size`, bilinear with antialiasing."""

    def warp(images: Tensor, mode: str) -> Tensor:
        smooth: dict[str, Any] = {"antialias": True, "align_corners": False} if mode == "bilinear" else {}
        return functional.interpolate(images, (size, size), mode=mode, **smooth)

    return _both(batch, context, warp)


def center_crop(batch: Pair, context: Context, size: int) -> Pair:
    """Cut height and width `size` out of the middle."""
    height, width = _fitting(batch[0], size, 0, "center_crop")
    top, left = (height - size) // 2, (width - size) // 2
    return _both(batch, context, lambda images, mode: images[:, :, top : top + size, left : left + size])


def random_crop(batch: Pair, context: Context, size: int, padding: int = 0) -> Pair:
    """Cut height and width `size` out at a random place, after `padding` pixels of zeros on each side."""
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
    """Cut out a random share `scale` of the area, of a random `ratio` of width to height, and resize it to `size`.

    Source: Szegedy et al., https://arxiv.org/abs/1409.4842. Bilinear without antialiasing; a crop that would be larger
    than the image is cut off at its border.
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
    """Mirror left and right with probability `p`."""
    mirrored = torch.rand(len(batch[0]), generator=context.generator).lt(p)[:, None, None, None]
    mirrored = sent(mirrored, batch[0].device)
    return _both(batch, context, lambda images, mode: torch.where(mirrored, images.flip(-1), images))


def color_jitter(
    batch: Pair, context: Context, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0
) -> Pair:
    """Change brightness, contrast and saturation, in that order, by random factors of up to 1 plus or minus these."""
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
    """Mix each image with another, and their targets alike, by a share of the distribution Beta(alpha, alpha).

    Classes become probabilities (B, K). Source: Zhang et al., https://arxiv.org/abs/1710.09412
    """
    images, targets = batch[0], _soft(batch[1], context)
    share, others = _mixing(batch, context, alpha)
    return images * share + images[others] * (1 - share), targets * share + targets[others] * (1 - share)


def cutmix(batch: Pair, context: Context, alpha: float = 1.0) -> Pair:
    """Put a rectangle of another image into each, and mix their targets by its share of the area.

    Classes become probabilities (B, K). Source: Yun et al., https://arxiv.org/abs/1905.04899
    """
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
# Those that validation and test go through, too.
_ALWAYS = ("resize", "center_crop")
_MIXING = ("mixup", "cutmix")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Transforms, one behind the other, as a function of a batch and a generator.

    Attributes:
        steps: Each with its options.
        mean, std, task, num_classes: As in `Context`.
    """

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


def parse(given: Sequence[Any]) -> list[tuple[str, Callable[..., Pair], dict[str, Any], bool]]:
    """Return name, function, options, and whether it is for validation and test, too, of each of `data.transforms`.

    Args:
        given: Names, or dicts of a `name` and options; `v2.NAME` is a class of `torchvision.transforms.v2`. The option
            `val` says whether a transform is for validation and test, too; by default those are that set a size.

    Raises:
        DataError, ConfigError: If there is none of a name, or it does not take the options.
    """
    found = []
    for entry in given:
        options = {"name": entry} if isinstance(entry, str) else dict(entry)
        name, in_val = options.pop("name", None), options.pop("val", None)
        if not isinstance(name, str) or not (name in NAMES or name.startswith("v2.")):
            near = nearest(str(name), list(NAMES))
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(NAMES)}, v2.NAME of torchvision"
            raise DataError(f"data.transforms: got {name!r}, which is unknown; {hint}")
        if name in NAMES:
            check_options(NAMES[name], options, f"data.transforms.{name}", {"batch": (), "context": ()})
            found.append((name, NAMES[name], options, name in _ALWAYS if in_val is None else bool(in_val)))
        else:
            found.append((name, _torchvision(name, options), {}, bool(in_val)))
    return found


def make_pipeline(given: Sequence[Any], by: Preparation, device: torch.device, *, training: bool) -> Pipeline | None:
    """Return the transforms of a config for training, or for validation and test; None if there are none.

    Raises:
        DataError: If the data are no images, or targets cannot be mixed.
    """
    chosen = [(name, function, options) for name, function, options, in_val in parse(given) if training or in_val]
    if given and (by.task == "custom" or len(by.input_shape) != 3 or by.dtype != "float32"):
        raise DataError(
            f"data.transforms: got inputs of shape {by.input_shape} and the task {by.task}, expected images as floats; "
            "transform samples in the dataset, or in data.collate"
        )
    for name, _, _ in chosen:
        if name in _MIXING and by.task == "segmentation":
            raise DataError(f"data.transforms: {name} mixes targets, and masks have a class a place; leave it out")
    if not chosen:
        return None
    mean, std = (None if part is None else torch.from_numpy(part).to(device) for part in (by.mean, by.std))
    return Pipeline(tuple(step[1:] for step in chosen), mean, std, by.task, by.num_targets)


def shape_after(given: Sequence[Any], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one input behind the transforms of a config."""
    batch = torch.zeros(2, *shape), torch.zeros(2, *shape[1:], dtype=torch.long)
    context = Context(torch.Generator(), task="segmentation")
    for name, function, options, _ in parse(given):
        if name not in _MIXING:
            batch = function(batch, context, **options)
    return tuple(batch[0].shape[1:])


def _torchvision(name: str, options: Mapping[str, Any]) -> Callable[..., Pair]:
    """Return a transform of torchvision's, called for each image with draws of its own from the generator's."""
    v2 = require("torchvision.transforms.v2", "torchvision", f"data.transforms={name}")
    word = name.partition(".")[2]
    if word in ("MixUp", "CutMix"):
        raise DataError(f"data.transforms: got {name}, which draws once for all workers; use {word.lower()}")
    if not hasattr(v2, word):
        near = nearest(word, [one for one in vars(v2) if one[0].isupper()])
        hint = f"; did you mean v2.{near}?" if near else ""
        raise DataError(f"data.transforms: torchvision.transforms.v2 has no {word!r}{hint}")
    made = build(getattr(v2, word), options, f"data.transforms.{name}", DataError)

    def transform(batch: Pair, context: Context) -> Pair:
        seed = int(torch.randint(2**62, (1,), generator=context.generator))
        with global_stream(seed, "transform"):
            return torch.stack([made(image) for image in batch[0]]), batch[1]

    return transform


def _both(batch: Pair, context: Context, warp: Callable[[Tensor, str], Tensor]) -> Pair:
    """Move the pixels of images, and those of masks alike."""
    images, targets = batch
    if context.task == "segmentation":
        # What comes in from beyond the image is 0 here, and VOID afterwards.
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
    """Return how much of each image stays, and the places of the others."""
    draws = np.random.default_rng(int(torch.randint(2**62, (1,), generator=context.generator)))
    others = torch.randperm(len(batch[0]), generator=context.generator)
    return float(draws.beta(alpha, alpha)), sent(others, batch[0].device)


def _soft(targets: Tensor, context: Context) -> Tensor:
    if context.task == "classification" and targets.ndim == 1:
        return functional.one_hot(targets, context.num_classes).float()
    return targets.float()
