from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from sacristan.runs.drawing.curve import Curve, time_ticks
from sacristan.runs.drawing.inline_html import chart, sparkline

SVG = "{http://www.w3.org/2000/svg}"


def curve(*y, x=None, label="", **parts):
    x = np.arange(len(y), dtype=float) if x is None else np.array(x, float)
    return Curve(label, x, np.array(y, float), **{name: np.array(values, float) for name, values in parts.items()})


def drawn(*curves, title="loss", **options):
    return ET.fromstring(chart(title, curves, **options))


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def numbers_in(path):
    return [float(number) for number in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", path)]


def test_curve_stands_over_its_axes_with_its_legend():
    root = drawn(curve(1, 3, 2, label="a <b>"), curve(2, 2, 2, label="c"), notes=["mean of 3 runs"])
    assert {"loss", "step", "a <b>", "c", "mean of 3 runs", "0.5", "3"} <= set(texts(root))
    assert root.find(f"{SVG}title").text == "loss over step: 2 curves"
    paths = [path.get("d") for path in root.iter(f"{SVG}path")]
    assert len(paths) == 4  # and two in the legend
    # The greatest value lies highest.
    _, first, _, second, _, third = numbers_in(paths[0])
    assert second < third < first


def test_gaps_are_not_drawn_over_and_a_lone_point_is_a_dot():
    line, dots = drawn(curve(1, 2, math.nan, 3, math.inf, 2, 1)).iter(f"{SVG}path")
    assert [part.count("L") for part in line.get("d").split("M")[1:]] == [1, 1]
    assert (dots.get("d").count("h0"), dots.get("stroke-linecap")) == (1, "round")


@pytest.mark.parametrize("values", [(), (math.nan,), (math.inf, -math.inf)])
def test_nothing_to_draw_is_said(values):
    root = drawn(curve(*values))
    [note] = [text for text in root.iter(f"{SVG}text") if text.text == "no finite values"]
    assert 0 < float(note.get("y")) < float(root.get("height"))
    assert sparkline(curve(*values)) == ""


def test_logarithmic_values_have_their_own_ticks_and_leave_out_the_rest():
    root = drawn(curve(0.001, 0.1, 0, -1, 10), log_y=True)
    assert {"0.001", "0.1", "10"} <= set(texts(root))
    line, dots = [path.get("d") for path in root.iter(f"{SVG}path")]
    assert (line.count("M"), dots.count("M")) == (1, 1)


@pytest.mark.parametrize("log_y", [False, True])
def test_band_is_filled_and_stays_in_the_picture(log_y):
    root = drawn(curve(1, 2, 3, low=[-5, 1, math.nan], high=[2, 3, math.nan]), log_y=log_y, width=400, height=200)
    [band] = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("fill-opacity")]
    assert band.endswith("Z")
    places = numbers_in(band)
    assert all(0 <= place <= 400 for place in places)
    assert max(places[1::2]) <= 200


@pytest.mark.parametrize("values", [[1e308, -1e308], [5, 5], [0, 0], [1e-320, 2e-320], [1e15, 1e15 + 1]])
def test_extreme_values_are_drawn(values):
    root = drawn(curve(*values))
    assert all(math.isfinite(number) for path in root.iter(f"{SVG}path") for number in numbers_in(path.get("d")))


def test_a_million_points_are_a_small_picture():
    y = np.random.default_rng(0).normal(size=1_000_000)
    assert len(chart("loss", [curve(*y)])) < 60_000


def test_more_curves_than_a_legend_holds_are_counted():
    root = drawn(*(curve(number, number + 1, label=f"run {number}") for number in range(30)))
    assert "and 18 more" in texts(root)
    assert len({(p.get("stroke"), p.get("stroke-dasharray")) for p in root.iter(f"{SVG}path")}) > 20


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, "00:00:00"),
        (1_700_000_000, 1_700_003_600, "22:15"),
        (1_700_000_000, 1_700_400_000, "2023-11-15"),
        (1_600_000_000, 1_700_000_000, "2021"),
    ],
)
def test_times_are_round(low, high, expected):
    found = time_ticks(low, high, 5)
    assert 2 <= len(found) <= 7
    assert any(label.startswith(expected) for _, label in found)


def test_texts_of_runs_are_escaped():
    root = drawn(curve(1, 2, label="</svg><script>alert(1)</script>"), title="<img src=x onerror=alert(1)>")
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {"svg", "title", "path", "line", "text"}
