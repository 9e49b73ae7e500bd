"""Segment images: classify every pixel, with a small U-Net.

sacristan segment with configs/segment.yaml
sacristan segment with fast
sacristan segment with data.name=npz data.path=mine.npz          inputs (N, C, H, W), targets (N, H, W)
sacristan segment predict with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt

By default the images are handwritten digits scattered over a canvas; a pixel shows the background or one of ten digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sacristan.experiments import supervised
from sacristan.experiments.experiment import Experiment

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

__all__ = ["ex", "scattered_digits", "unet"]

ex = Experiment("segment", ingredients=supervised.ingredients())
supervised.compose(ex)


@ex.named_config
def usual() -> None:
    """Scattered digits, a U-Net, the mean intersection over union of the classes."""
    data = {"name": "sacristan.experiments.segment:scattered_digits", "task": "segmentation"}
    model = {"name": "sacristan.experiments.segment:unet"}


@ex.named_config
def fast() -> None:
    """Two epochs of a narrow network, to try things out."""
    data = {"limit": 120}
    model = {"options": {"width": 4}}
    epochs = 2


ex.always("usual")


def scattered_digits(num: int = 1000, size: int = 32, digits: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return scattered digits (num, 1, size, size), and classes of pixels (num, size, size); 0 is the background."""
    import numpy as np

    from sacristan.ingredients.datasets.sources import read_digits

    digit_images, labels = read_digits()
    random = np.random.default_rng(seed)
    images = np.zeros((num, 1, size, size), np.float32)
    classes = np.zeros((num, size, size), np.int64)
    for image, shown in zip(images[:, 0], classes, strict=True):
        for number in random.integers(len(labels), size=digits):
            top, left = random.integers(size - 16 + 1, size=2)
            digit = digit_images[number].repeat(2, 0).repeat(2, 1) / 16
            is_stroke = digit > 0.25
            image[top : top + 16, left : left + 16][is_stroke] = digit[is_stroke]
            shown[top : top + 16, left : left + 16][is_stroke] = 1 + labels[number]
    return images, classes


def unet(input_shape: Sequence[int], num_outputs: int, width: int = 16) -> nn.Module:
    """Return a U-Net of two levels, the first of `width` channels, for H and W that are multiples of 4."""
    import torch
    from torch import Tensor, nn

    def block(inputs: int, outputs: int) -> nn.Sequential:
        parts: list[Any] = []
        for before in (inputs, outputs):
            parts += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = block(input_shape[0], width), block(width, 2 * width)
            self.deepest = block(2 * width, 4 * width)
            self.to_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
            self.to_first = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
            self.after_second, self.after_first = block(4 * width, 2 * width), block(2 * width, width)
            self.head = nn.Conv2d(width, num_outputs, 1)

        def forward(self, images: Tensor) -> Tensor:
            first = self.first(images)
            second = self.second(nn.functional.max_pool2d(first, 2))
            deepest = self.deepest(nn.functional.max_pool2d(second, 2))
            second = self.after_second(torch.cat([second, self.to_second(deepest)], 1))
            return self.head(self.after_first(torch.cat([first, self.to_first(second)], 1)))

    return UNet()


if __name__ == "__main__":
    ex.run_commandline()
