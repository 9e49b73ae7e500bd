"""Learn from few examples: start from a network that was trained on many others.

sacristan finetune with configs/finetune.yaml printed                   learn printed digits
sacristan finetune with configs/finetune.yaml model.weights=run:1       then 200 handwritten ones
sacristan finetune with configs/finetune.yaml                           or those from scratch, to compare
sacristan compare --by model.weights --over seed --metric info.test.accuracy --where data.name=digits
sacristan finetune evaluate with my_runs/2/config.json checkpoint.path=my_runs/2/checkpoints/best.pt

The printed digits are drawn from fonts that come with matplotlib (extra `plot`), bent and slanted; none is handwritten.
`model.strict=False` accepts another number of classes; `model.freeze` and `optimizer.layer_decay` keep the network
close to the pretrained one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sacristan.experiments import supervised
from sacristan.experiments.experiment import Experiment
from sacristan.ingredients.config.construct import require

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ex", "printed_digits"]

# Fonts that come with matplotlib, with digits of different shapes.
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic"),
    *("STIXGeneral", "STIXGeneralItalic", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
# A pixel is the share of its points inside the digit; it has this many in height and in width.
_BLOCK = 4

ex = Experiment("finetune", ingredients=supervised.ingredients())
supervised.compose(ex)


@ex.named_config
def usual() -> None:
    """A small residual network on 200 handwritten digits; the others are kept to validate and test on."""
    data = {"val_fraction": 0.0557, "test_fraction": 0.833, "batch_size": 16}
    model = {"name": "cnn"}


@ex.named_config
def printed() -> None:
    """Thousands of printed digits, to train on first."""
    data = {
        "name": "sacristan.experiments.finetune:printed_digits",
        "val_fraction": 0.1,
        "test_fraction": 0.1,
        "batch_size": 64,
    }
    epochs = 10


@ex.named_config
def fast() -> None:
    """Two epochs of a narrow network on few digits, to try things out."""
    data = {"limit": 300}
    model = {"options": {"widths": [8]}}
    epochs = 2


ex.always("usual")


def printed_digits(num: int = 6000, size: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return printed digits, (num, 1, size, size) from 0 to 1, randomly bent and slanted, and their classes (num,)."""
    import numpy as np

    outline = require("matplotlib.path", "plot", "data.name=sacristan.experiments.finetune:printed_digits").Path
    outlines = [[_outlines(font, str(digit)) for digit in range(10)] for font in _FONTS]
    random = np.random.default_rng(seed)
    points = (np.indices((size * _BLOCK, size * _BLOCK)).reshape(2, -1).T[:, ::-1] + 0.5) / (size * _BLOCK)
    images = np.zeros((num, 1, size, size), np.float32)
    digits = random.integers(10, size=num)
    for image, digit in zip(images, digits, strict=True):
        curves = _bent(outlines[random.integers(len(_FONTS))][digit], random)
        # A point in an even number of curves is in a hole.
        inside = sum(outline(curve).contains_points(points).astype(int) for curve in curves) % 2
        rows = inside.reshape(size * _BLOCK, -1)[::-1].reshape(size, _BLOCK, size, _BLOCK)
        image[0] = rows.mean((1, 3))
    return images, digits


def _outlines(font: str, text: str) -> list[np.ndarray]:
    """Return the outlines (points, 2) of a text in a font of matplotlib."""
    import matplotlib
    import numpy as np
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    path = TextPath((0, 0), text, size=1, prop=FontProperties(fname=file))
    return [np.asarray(curve) for curve in path.to_polygons(closed_only=True)]


def _bent(curves: Sequence[np.ndarray], random: np.random.Generator) -> list[np.ndarray]:
    """Return randomly deformed outlines, scaled to fill a square from 0 to 1 in height or width."""
    import numpy as np

    angle, slant = random.uniform(-0.26, 0.26), random.uniform(-0.35, 0.35)
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ [[1, slant], [0, 1]]
    changed = [curve @ turned.T for curve in curves]
    everything = np.concatenate(changed)
    low, extent = everything.min(0), np.ptp(everything, 0)
    shares = np.array([extent[0] / extent[1] * random.uniform(0.8, 1.3), 1.0])
    shares /= shares.max()
    depth, phase = random.uniform(0, 0.12, 2), random.uniform(0, 2 * np.pi, 2)
    bent = []
    for curve in changed:
        unit = (curve - low) / extent
        wave = depth * np.sin(5.0 * unit[:, ::-1] + phase)
        bent.append((unit + wave - 0.5) * shares + 0.5)
    return bent


if __name__ == "__main__":
    ex.run_commandline()
