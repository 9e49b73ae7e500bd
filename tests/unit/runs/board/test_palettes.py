"""The palettes of curves, as people see them who lack one kind of cones; distances computed apart from the board."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from sacristan.runs import board

TEXT = (Path(board.__file__).parent / "static" / "colours.js").read_text(encoding="utf-8")
PALETTES = {
    name: re.findall(r"#[0-9a-f]{6}", line) for name, line in re.findall(r"^  (light|dark): (\[.*\]),$", TEXT, re.M)
}
GROUND = {"light": "#ffffff", "dark": "#14171c"}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
# Machado et al. 2009, of severity 1.
CONES = {
    "all": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no medium": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def linear(colour):
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour, cones):
    xyz = TO_XYZ @ np.clip(np.asarray(cones) @ linear(colour), 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(first, second):
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1 + 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25.0**7)))
    c1, c2 = np.hypot(a1 * stretch, b1), np.hypot(a2 * stretch, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a * stretch)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = h2 - h1
    turn += 360 * ((turn < -180) - int(turn > 180))
    hue, chroma, light = h1 + turn / 2, (c1 + c2) / 2, (l1 + l2) / 2
    cos = lambda angle: np.cos(np.radians(angle))  # noqa: E731
    weight = 1 - 0.17 * cos(hue - 30) + 0.24 * cos(2 * hue) + 0.32 * cos(3 * hue + 6) - 0.2 * cos(4 * hue - 63)
    of_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    of_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    of_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * weight)
    angle = 60 * np.exp(-((((hue % 360) - 275) / 25) ** 2))
    rotated = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(np.radians(angle))
    return np.sqrt(of_light**2 + of_chroma**2 + of_hue**2 + rotated * of_chroma * of_hue)


@pytest.mark.parametrize("cones", CONES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ten_colours_are_told_apart_by_everybody(scheme, cones):
    assert len(set(PALETTES[scheme])) == 10
    seen = [lab(colour, CONES[cones]) for colour in PALETTES[scheme]]
    assert min(ciede2000(*pair) for pair in combinations(seen, 2)) > (25 if cones == "all" else 11)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out_from_the_page(scheme):
    lights = [(TO_XYZ @ linear(colour))[1] for colour in (GROUND[scheme], *PALETTES[scheme])]
    contrasts = [(max(lights[0], one) + 0.05) / (min(lights[0], one) + 0.05) for one in lights[1:]]
    assert min(contrasts) > 2.5
