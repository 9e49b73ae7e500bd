from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import numpy as np
import PIL.Image
import pytest

from sacristan.__main__ import main
from sacristan.configs.packages import missing_package
from sacristan.observers.record.points import POINT
from sacristan.runs import PlotError, StoreError, open_store
from sacristan.runs.comparison import panels
from sacristan.runs.comparison.panels import CurveCache, ThinCurve, View, make_panel, make_panels
from sacristan.runs.drawing.curve import Curve, Panel, ticks
from sacristan.runs.drawing.plots import draw, draw_text
from sacristan.runs.stores.folders.records import FolderRecords

SVG = "{http://www.w3.org/2000/svg}"


def runs_of(write_store, *rows, **options):
    return write_store(*rows, **options).find(sort="id")


def falling(lr, seed, points=8, **more):
    return {"lr": lr, "seed": seed, "metrics": {"loss": [1 / (1 + lr * step) for step in range(points)]}, **more}


def panel(*curves, **options):
    return Panel("val/loss", curves, "step", **{"notes": (), **options})


def curve(*y, label="c", **options):
    return Curve(label, np.arange(len(y), dtype=float), np.array(y, float), **options)


# What is drawn


def test_curves_are_labelled_with_what_differs(write_store):
    runs = runs_of(write_store, falling(0.1, 0), falling(0.2, 1), {"lr": 1.0, "seed": 3})
    [found] = make_panels(runs, ["loss"], View())
    assert [one.label for one in found.curves] == ["run 1: lr=0.1, seed=0", "run 2: lr=0.2, seed=1"]
    assert found.notes == ("without loss: run 3",)
    [alone] = make_panels(runs[:1], ["loss"], View())
    assert alone.curves[0].label == "run 1"


def test_losses_of_training_and_validation_share_a_panel(write_store):
    rows = [
        {"lr": lr, "seed": 1, "metrics": {"train/loss": [3, 2], "val/loss": [4, 3], "val/acc": [0]}} for lr in (1, 2)
    ]
    runs = runs_of(write_store, *rows)
    metrics = ["val/acc", "train/loss", "val/loss"]
    accuracy, loss = make_panels(runs, metrics, View())
    assert (accuracy.metric, loss.metric) == ("val/acc", "loss")
    labels = [f"{part}, run {number}: lr={number}" for part in ("train", "val") for number in (1, 2)]
    assert [curve.label for curve in loss.curves] == labels
    assert [curve.y.tolist() for curve in loss.curves] == [[3, 2], [3, 2], [4, 3], [4, 3]]
    _, alone = make_panels(runs[:1], metrics, View())
    assert [curve.label for curve in alone.curves] == ["train", "val"]


def test_groups_are_drawn_as_means(write_store):
    rows = [falling(0.1, 0), falling(0.1, 1, 6), falling(0.5, 0), falling(0.5, 0), falling(0.5, 1)]
    runs = runs_of(write_store, *rows, {"lr": 0.5, "metrics": {"loss": [0.1]}})
    [found] = make_panels(runs, ["loss"], View(by=("lr",), over=("seed",)))
    assert [one.label for one in found.curves] == ["lr=0.1 (n = 1 to 2)", "lr=0.5 (n = 2)"]
    assert found.curves[1].counts.tolist() == [2] * 8  # two runs of seed 0 count once
    np.testing.assert_allclose(found.curves[1].y, rows[2]["metrics"]["loss"])
    assert found.notes == (
        "mean, and its 95% interval at each point (Student's t; none below n = 2)",
        "where n varies, not every run has every point",
        "lr=0.1: n = 2 from step 0, n = 1 from step 6",
        "without seed: run 6",
    )


def test_points_that_no_run_has_are_counted_too(write_store):
    runs = runs_of(
        write_store, *({"lr": 0.1, "seed": seed, "metrics": {"loss": [math.nan, 2, 1]}} for seed in range(2))
    )
    [found] = make_panels(runs, ["loss"], View(by=("lr",), over=("seed",)))
    assert "lr=0.1: n = 0 from step 0, n = 2 from step 1" in found.notes


def test_means_of_other_commands_and_other_data_are_not_drawn_without_a_word(write_store):
    rows = [falling(0.1, 0, data={"name": "iris"}), falling(0.1, 1, data={"name": "wine"}), falling(0.1, 2)]
    runs = runs_of(write_store, *rows[:2], {**rows[2], "command": "evaluate"})
    [found] = make_panels(runs, ["loss"], View(by=("lr",), over=("seed",)))
    assert [one.label for one in found.curves] == ["lr=0.1 (n = 2)"]
    assert found.notes[1:] == (
        "left out: is of the command evaluate, not main; for those: --where command=evaluate: run 3",
        "caution: lr=0.1: its runs also differ in data.name",
    )


def test_gaps_are_counted(write_store):
    runs = runs_of(write_store, {"a": 1, "metrics": {"loss": [1, math.nan, -1, math.inf, 0.5]}})
    [found] = make_panels(runs, ["loss"], View(log_y=True))
    assert found.notes == ("gaps: 2 NaN or infinite", "gaps: 1 not above 0")


@pytest.mark.parametrize(
    ("metric", "view", "message"),
    [
        ("nope", View(), "no run has the metric 'nope'; there are: loss, zero, system/cpu"),
        ("zero", View(log_y=True), "zero: no value is above 0, as a logarithmic axis needs; draw it on a linear one"),
        ("loss", View(over=("seed",)), "--over: expected --by too"),
        ("loss", View(smoothing=1.0), "smoothing: got 1.0, expected a number from 0 to below 1"),
        ("loss", View(x="hour"), "no run has the metric 'hour'; there are: loss, zero"),
    ],
)
def test_what_cannot_be_drawn_is_refused(write_store, metric, view, message):
    runs = runs_of(write_store, {"seed": 1, "metrics": {"loss": [1], "zero": [0], "system/cpu": [1]}})
    with pytest.raises(PlotError, match=message):
        make_panels(runs, [metric], view)
    with pytest.raises(PlotError, match="there are no runs to plot"):
        make_panels([], [metric], view)


# Pictures


def lines_in(path):
    return [group for group in ET.parse(path).iter(f"{SVG}g") if group.get("id", "").startswith("curve-")]


def texts_in(path):
    return [text.text for text in ET.parse(path).iter(f"{SVG}text")]


def test_svg_holds_every_curve_and_label(tmp_path):
    odd = 'a & <b> "$x_1$ \x1b[31m'
    draw([panel(curve(3, 2, 1, label="first"), curve(1, 2, 3, label=odd), curve(2, 2, label="_x"))], tmp_path / "p.svg")
    assert len(lines_in(tmp_path / "p.svg")) == 3
    texts = texts_in(tmp_path / "p.svg")
    assert {"first", 'a & <b> "$x_1$ �[31m', "val/loss", "step"} <= set(texts)
    assert any(text.strip() == "_x" for text in texts)


@pytest.mark.slow
def test_pictures_are_the_same_each_time(tmp_path):
    for name in ("p.svg", "p.png", "p.pdf"):
        drawn = []
        for _ in range(2):
            panels = [panel(curve(3, 2, 1, low=np.ones(3), high=np.full(3, 4.0)))]
            draw(panels, tmp_path / name, "title", overwrite=True)
            drawn.append((tmp_path / name).read_bytes())
        assert drawn[0] == drawn[1], name
    assert b"<dc:date>" not in (tmp_path / "p.svg").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_png_opens_and_grows_with_the_panels(tmp_path):
    draw([panel(curve(1, 2))], tmp_path / "one.PNG")
    draw([panel(curve(1, 2)), panel(curve(2, 1))], tmp_path / "two.png")
    with PIL.Image.open(tmp_path / "one.PNG") as one, PIL.Image.open(tmp_path / "two.png") as two:
        assert (one.format, two.height) == ("PNG", 2 * one.height)
        assert len(one.getcolors(2**20)) > 10


def test_gap_parts_the_line_and_a_lonely_point_shows(tmp_path):
    draw([panel(curve(1, 2, math.nan, 3, math.nan, math.inf, 1, 2))], tmp_path / "gap.svg")
    [group] = lines_in(tmp_path / "gap.svg")
    path = next(group.iter(f"{SVG}path")).get("d")
    assert [part.count("L") for part in path.split("M")[1:]] == [1, 0, 1]  # the lonely point 3 is no line
    draw([panel(curve(1, 2, 2.5, 3, 2, 1, 1, 2))], tmp_path / "whole.svg")
    assert next(lines_in(tmp_path / "whole.svg")[0].iter(f"{SVG}path")).get("d").count("M") == 1
    assert (tmp_path / "gap.svg").read_text().count("<use ") > (tmp_path / "whole.svg").read_text().count("<use ")


def test_what_no_line_shows_is_marked_in_values_before_smoothing_and_bands_too(tmp_path):
    def num_marks(**parts):
        draw([panel(Curve("c", np.arange(3.0), np.ones(3), **parts))], tmp_path / "p.svg", overwrite=True)
        return (tmp_path / "p.svg").read_text().count("<use ")

    lonely = np.array([1, math.nan, 1])
    assert num_marks(raw=lonely) == num_marks(raw=np.ones(3)) + 2
    for band, is_marked in ((lonely, True), (np.ones(3), False)):
        draw([panel(curve(1, 1, 1, low=band - 1, high=band + 1))], tmp_path / "p.svg", overwrite=True)
        assert ("LineCollection" in (tmp_path / "p.svg").read_text()) == is_marked


def test_logarithmic_axis_takes_a_band_below_zero(tmp_path):
    y = np.array([1.0, 0.1, 0.01, 0.0])
    banded = Curve("c", np.arange(4.0), y, y - 0.5, y + 0.5)
    draw([panel(banded, log_y=True)], tmp_path / "log.svg")
    assert len(lines_in(tmp_path / "log.svg")) == 1


def test_many_curves_are_told_apart_and_the_legend_is_bounded(tmp_path):
    draw([panel(*(curve(n, n + 1, label=f"run {n}") for n in range(40)))], tmp_path / "many.svg")
    assert len(lines_in(tmp_path / "many.svg")) == 40
    assert "run 25, and 14 more" in texts_in(tmp_path / "many.svg")
    styles = [next(group.iter(f"{SVG}path")).get("style") for group in lines_in(tmp_path / "many.svg")]
    assert len(set(styles)) == 28


def test_user_settings_of_matplotlib_change_nothing(tmp_path):
    import matplotlib

    draw([panel(curve(1, 2))], tmp_path / "a.svg")
    # Some that our style sets, and some that it leaves to matplotlib.
    theirs = {"lines.linewidth": 9, "font.size": 20, "axes.facecolor": "black", "xtick.direction": "in"}
    with matplotlib.rc_context(theirs):
        draw([panel(curve(1, 2))], tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(PlotError, match=r"got the file x.gif, expected one that ends in .png, .svg, .pdf"):
        draw([panel(curve(1))], __import__("pathlib").Path("x.gif"))
    with pytest.raises(StoreError, match=r"p.png cannot be written \(No such file or directory\)"):
        draw([panel(curve(1))], tmp_path / "none" / "p.png")


def test_without_matplotlib_the_extra_is_named(tmp_path):
    script = """
import sys
sys.modules["matplotlib"] = None
import numpy, pathlib
from sacristan.runs.drawing.curve import Curve
from sacristan.runs.errors import PlotError
from sacristan.runs.drawing.plots import draw
from sacristan.runs.drawing.curve import Panel
try:
    draw([Panel("m", (Curve("c", numpy.zeros(1), numpy.zeros(1)),), "step", ())], pathlib.Path("p.png"))
except PlotError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == missing_package("pictures need", "matplotlib", "plot") + "\n"


# The terminal


def test_names_that_a_terminal_would_obey_are_shown(write_store, tmp_path, capsys):
    metrics = {"loss\x1b[31m": [3, 2, 1]}
    write_store({"a": 1, "metrics": metrics}, {"a": 2, "metrics": metrics})
    (tmp_path / "store" / "1").rename(tmp_path / "store" / "od\x1b[32md")
    words = ["--store", str(tmp_path / "store"), "plot", "--limit", "0", "--metric", "loss\x1b[31m"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"loss\x1b[31m" in out
    assert r"run od\x1b[32md: a=1" in out


def test_terminal_shows_rising_and_falling_with_their_letters():
    rising, falling_ = curve(*range(20), label="up"), curve(*range(19, -1, -1), label="down")
    lines = draw_text(panel(rising, falling_), 40, 12)
    assert lines[0] == "val/loss"
    assert all(len(line) <= 40 for line in lines)
    assert len([line for line in lines if "│" in line]) + 3 == 12
    assert lines[-2:] == ["  a up", "  b down"]
    first, last = lines[1], next(line for line in reversed(lines) if "│" in line)
    body = slice(first.index("│") + 1, None)
    assert first[body][-1] != "\u2800"  # the rising one ends at the top right
    assert first[body][0] != "\u2800"  # and the falling one begins at the top left
    assert last[body][0] != "\u2800"
    assert not any("\x1b" in line for line in lines)


def test_times_of_the_day_are_on_the_axis(tmp_path):
    start = datetime(2026, 1, 2, 10, 0, tzinfo=UTC).timestamp()
    timed = dataclasses.replace(
        panel(Curve("", start + 600 * np.arange(12.0), np.arange(12.0))), is_time=True, x_label="time (UTC)"
    )
    assert draw_text(timed, 60, 10)[-1].split() == ["10:00", "11:00", "time", "(UTC)"]
    one = dataclasses.replace(timed, curves=(Curve("", np.array([start]), np.ones(1)),))
    assert "09:59                       10:00                   10:01" in draw_text(one, 60, 10)[-1]
    draw([timed], tmp_path / "time.svg")
    text = (tmp_path / "time.svg").read_text()
    assert [f">{label}<" in text for label in ("10:00", "11:30", "2026-Jan-02")] == [True] * 3


def test_terminal_without_braille_is_ascii():
    lines = draw_text(panel(curve(1, 2, 3), curve(3, 2, 1)), 40, 12, braille=False)
    assert "\n".join(lines).isascii()
    assert "*" in "\n".join(lines)


def test_terminal_colours_end_where_they_began(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # plotille asks whether this is a terminal, too
    text = "\n".join(draw_text(panel(curve(1, 2, 3), curve(3, 2, 1)), 40, 12, colors=True))
    assert text.count("\x1b[38;5;") == text.count("\x1b[0m") > 0


def test_terminal_gap_stays_empty():
    y = np.ones(100)
    y[40:60] = math.nan
    lines = draw_text(panel(Curve("", np.arange(100.0), y)), 60, 10)
    assert any(line.lstrip().startswith("└──") for line in lines)
    drawn = next(line for line in lines if any(0x2801 <= ord(c) <= 0x28FF for c in line)).split("│")[1]
    assert {"\u2800"} == set(drawn[len(drawn) * 45 // 100 : len(drawn) * 55 // 100])


@pytest.mark.parametrize(
    "curves",
    [
        [curve()],
        [curve(math.nan)],
        [curve(1)],
        [curve(0, 0, 0)],
        [curve(1.7e308, -1.7e308)],
        [curve(1e-300, 2e-300)],
        [curve(0.1, 0.1 + 1e-17)],
        [curve(math.inf, 1, 2)],
        [curve(n) for n in range(60)],
    ],
    ids=str,
)
@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize("width", [1, 20, 300])
def test_terminal_draws_whatever_comes(curves, log_y, width):
    lines = draw_text(panel(*curves, log_y=log_y), width, 5)
    assert len(lines) > 5


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (0, 100, [0, 25, 50, 75, 100]), (0.13, 0.87, [0.2, 0.4, 0.6, 0.8])],
)
def test_ticks_are_round(low, high, expected):
    assert [value for value, _ in ticks(low, high, 4)] == pytest.approx(expected)


def test_terminal_log_axis_names_values():
    lines = draw_text(dataclasses.replace(panel(curve(1, 0.1, 0.01, 0.001)), log_y=True), 60, 16)
    assert lines[0] == "val/loss (log)"
    assert [line.split("│")[0].strip() for line in lines if "│" in line and line.split("│")[0].strip()] == [
        "1", "0.1", "0.01", "0.001",
    ]  # fmt: skip


def write(run, values):
    """Write points of `loss` a while ago: of files that have just changed nothing is kept."""
    run.mkdir(parents=True, exist_ok=True)
    points = np.zeros(len(values), POINT)
    points["step"], points["value"] = np.arange(len(values)), values
    (run / "new").write_bytes(points.tobytes())
    (run / "new").replace(run / "metrics.bin")
    (run / "metrics.names.jsonl").write_text('{"id": 0, "name": "loss"}\n')
    (run / "run.json").write_text(json.dumps({"uid": "1" * 32, "status": "COMPLETED"}))
    for name in ("metrics.bin", "metrics.names.jsonl"):
        os.utime(run / name, (1e9, 1e9))


@pytest.fixture
def asked(monkeypatch):
    """Runs whose points were read."""
    read, asked = FolderRecords.series, []

    def reading(records, runs, name):
        asked.extend(run.id for run in runs)
        return read(records, runs, name)

    monkeypatch.setattr(FolderRecords, "series", reading)
    return asked


def values(folder, kept, **view):
    with open_store(folder) as store:
        panel = make_panel("loss", ["loss"], store.get_all(["1"]), View(**view), kept=kept)
        return panel.curves[0].y.tolist()


def test_points_that_are_the_same_are_read_once(tmp_path, asked):
    write(tmp_path / "1", [1, np.nan, 3])
    kept = CurveCache()
    for _ in range(3):
        np.testing.assert_equal(values(tmp_path, kept), [1, np.nan, 3])
        assert asked == ["1"]
    values(tmp_path, kept, smoothing=0.5)
    values(tmp_path, kept, x="time")
    values(tmp_path, kept, between=(0, 1))
    values(tmp_path, kept, num_points=4)
    assert asked == ["1"] * 5


def test_points_that_are_added_replaced_or_mapped_into_memory_are_read(tmp_path, asked):
    run, kept = tmp_path / "1", CurveCache()
    write(run, [1, 2])
    assert values(tmp_path, kept) == [1, 2]
    write(run, [1, 2, 3])  # it was resumed
    assert values(tmp_path, kept) == [1, 2, 3]
    write(run, [4, 5, 6])  # of the same size and time: another file
    assert values(tmp_path, kept) == [4, 5, 6]
    shutil.rmtree(run)
    write(run, [7, 8, 9])  # another run of the same id
    assert values(tmp_path, kept) == [7, 8, 9]
    asked.clear()
    (run / "metrics.live").write_bytes(b"")
    for _ in range(2):
        assert values(tmp_path, kept) == [7, 8, 9]
    (run / "metrics.live").unlink()
    os.utime(run / "metrics.bin")  # just now, when a change within the clock's resolution would leave no trace
    for _ in range(2):
        assert values(tmp_path, kept) == [7, 8, 9]
    assert asked == ["1"] * 4


def test_runs_of_two_stores_have_curves_of_their_own(tmp_path):
    kept = CurveCache()
    for name, found in (("a", [1, 2]), ("b", [3, 4])):
        write(tmp_path / name / "1", found)
    assert values(tmp_path / "a", kept) == [1, 2]
    assert values(tmp_path / "b", kept) == [3, 4]
    assert values(tmp_path / "a", kept) == [1, 2]


def test_gaps_of_kept_curves_are_counted(tmp_path):
    write(tmp_path / "1", [0, np.nan, 2, np.inf])
    with open_store(tmp_path) as store:
        kept = CurveCache()
        for _ in range(2):
            panel = make_panel("loss", ["loss"], store.get_all(["1"]), View(log_y=True), kept=kept)
            assert panel.notes == ("gaps: 2 NaN or infinite", "gaps: 1 not above 0")
            assert make_panel("loss", ["loss"], store.get_all(["1"]), View(), kept=kept).notes == panel.notes[:1]


def test_curves_that_were_asked_for_longest_ago_are_dropped():
    kept = CurveCache(3 * (panels._OVERHEAD_BYTES + 16_000))
    curve = ThinCurve(Curve("", np.zeros(1000), np.zeros(1000)), 0, 0, is_any_above=False)
    for key in "abc":
        kept.keep(key, curve)
    assert kept.get("a") is curve
    kept.keep("d", curve)
    assert [key for key in "abcd" if kept.get(key)] == ["a", "c", "d"]
    kept.keep(None, curve)
    assert kept.get(None) is None
    kept.keep("e", ThinCurve(Curve("", np.zeros(9000), np.zeros(9000)), 0, 0, is_any_above=False))
    assert [key for key in "acde" if kept.get(key)] == []  # larger than all room
