"""Colours of runs: one for each run and group, the same on every page."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from sacristan.runs.stores.prefetching import prefetch
from sacristan.runs.stores.run import Run

__all__ = ["colour_of", "colours_of"]

# Least and most lightness and chroma in OKLCH; lines of these colours are readable on white and on black.
_LIGHTNESS, _CHROMA = (0.5, 0.66), (0.11, 0.17)


def colours_of(runs: Iterable[Run]) -> dict[str, str]:
    """Return the colours of runs by id; they depend on the uid alone, so all stores and pages agree."""
    runs = list(runs)
    prefetch(runs, ["uid"])
    return {run.id: colour_of(run.uid or run.id) for run in runs}


def colour_of(key: str) -> str:
    """Return the colour for a run's uid or a group's label as `#rrggbb`: any hue, neither light nor dark nor grey."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).digest()
    hue, lightness, chroma = (int.from_bytes(digest[at : at + 4], "little") / 2**32 for at in (0, 4, 8))
    size = _between(_CHROMA, chroma)
    return _hex(_between(_LIGHTNESS, lightness), size * math.cos(2 * math.pi * hue), size * math.sin(2 * math.pi * hue))


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + share * (ends[1] - ends[0])


def _hex(lightness: float, a: float, b: float) -> str:
    """Return a colour of OKLab in sRGB.

    Source: Ottosson 2020, https://bottosson.github.io/posts/oklab/.
    """
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(one, 0.0), 1.0))):02x}" for one in linear)


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
