"""Every logged point is drawn: between gaps, at equal or unordered steps, on logarithmic axes and over epochs."""

from __future__ import annotations

import csv
import json
import math
import re

import numpy as np
import pytest

from sacristan.__main__ import main as runs
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.observers.record.points import POINT
from tests.integration.board.conftest import database_of
from tests.integration.board.test_workspace import drawn, panel

NUM = 30
BEYOND = 2**53
NAN, INF = math.nan, math.inf


def values_of(step):
    """Return the value of each metric at a step."""
    return {
        "every_second": float(step) if step % 2 else NAN,
        "alone": 1.0 if step == 7 else NAN,
        "ends": 1.0 + step if step in (0, NUM - 1) else NAN,
        "infinite": float(step) if step % 2 else (INF, -INF)[step // 2 % 2],
        "signs": float(step + 1) if step % 2 else -float(step),
        "loss": 1 / (step + 1),
    }


NUM_FINITE = {"every_second": 15, "alone": 1, "ends": 2, "infinite": 15, "signs": NUM, "loss": NUM}


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """Two runs with gaps of all kinds: the first one logs `epoch` at the end of each epoch, the second at each step."""
    folder = tmp_path_factory.mktemp("gappy")
    ex = Experiment("gappy", base_dir=folder, save_git_info=False, system_metrics_s=None)
    ex.observers.append(FileObserver(folder / "store"))

    @ex.config
    def config():
        kind = "a"
        is_each = False

    @ex.main
    def main(_run, is_each):
        for step in range(NUM):
            for name, value in values_of(step).items():
                _run.log_scalar(name, value, step)
            for value in range(3):
                _run.log_scalar("equal", step + value, step)
            _run.log_scalar("unordered", step, (7 * step) % NUM)
            _run.log_scalar("beyond", step, BEYOND + step)
            if is_each or step % 10 == 9:
                _run.log_scalar("epoch", step // 10, step)

    for is_each in (False, True):
        ex.run(config_updates={"is_each": is_each})
    return folder / "store"


@pytest.fixture(scope="module", params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def gappy_store(request, gappy):
    if request.param == "folder":
        yield str(gappy)
    else:
        yield from database_of(gappy, request.getfixturevalue("mongo_url"))


# The places of all points that a line or a dot shows, by what draws them: each path, whose stroke covers its points.
SHOWN = """(svg) => [...svg.querySelectorAll("path")].filter((path) => path.getAttribute("fill") === "none"
        || path.closest("g[fill=none]") && !path.hasAttribute("fill")).map((path) => {
    const places = path.getAttribute("d").matchAll(/[ML](-?[\\d.]+)[ ,](-?[\\d.]+)/g);
    return [...places].map(([, x, y]) => new DOMPoint(x, y)).filter((place) => path.isPointInStroke(place));
})"""


def shown_in(page, name):
    """Return the number of points that the lines and dots of a panel show."""
    return sum(map(len, page.locator(f"figure[data-panel={name}] svg.lines g[data-key]").first.evaluate(SHOWN)))


@pytest.mark.parametrize(("query", "num_lines"), [("run=1", 1), ("run=1&smoothing=0.5", 2), ("group=kind", 1)])
def test_points_between_gaps_are_drawn(watched, serve, gappy_store, query, num_lines):
    page = watched(viewport={"width": 1200, "height": 2400}).page
    page.goto(f"{serve(gappy_store)}/runs?{query}")
    drawn(page)
    for name, num in NUM_FINITE.items():
        assert (name, shown_in(page, name)) == (name, num * num_lines)
    assert shown_in(page, "unordered") == NUM * num_lines
    if "group" in query:  # of equal runs: no width, but a place
        bands = page.locator("figure[data-panel=every_second] g[data-key] path[stroke=none]").get_attribute("d")
        assert bands.count("M") == 15
        assert all("h4V" in band for band in bands.split("M")[1:])


def test_logarithmic_axes_show_all_that_is_above_0(watched, serve, gappy_store):
    page = watched(viewport={"width": 1200, "height": 2400}).page
    page.goto(f"{serve(gappy_store)}/runs?run=1&log_y=1&log_x=1")
    drawn(page)
    # Of the values at the steps from 1 on.
    assert {name: shown_in(page, name) for name in ("every_second", "signs", "loss")} == {
        "every_second": 15, "signs": 15, "loss": NUM - 1,
    }  # fmt: skip
    notes = page.locator("figure[data-panel=signs] .notes").text_content()
    assert notes == "not drawn: 1 point whose step is not above 0, on a logarithmic axis; gaps: 15 not above 0"


def test_points_between_gaps_are_drawn_on_the_page_of_a_run(watched, serve, gappy_store):
    page = watched(viewport={"width": 1200, "height": 4000}).page
    page.goto(f"{serve(gappy_store)}/runs/1?tab=curves")
    drawn(page)
    assert {name: shown_in(page, name) for name in NUM_FINITE} == NUM_FINITE


def test_points_between_gaps_are_drawn_in_reports(watched, gappy_store, tmp_path):
    assert runs(["--store", gappy_store, "report", "1", "2", "--smoothing", "0.5", "-o", str(tmp_path / "r.html")]) == 0
    page = watched().page
    page.goto((tmp_path / "r.html").as_uri())
    for name, num in NUM_FINITE.items():
        chart = page.locator(f"svg:has(title:text-matches('^{name} over'))")
        # Two runs, each smoothed and as logged, and their lines in the legend.
        assert (name, sum(map(len, chart.evaluate(SHOWN)))) == (name, 2 * 2 * num + 2)


@pytest.mark.parametrize("run", ["1", "2"])
def test_all_points_are_drawn_over_epochs(client_of, gappy_store, run):
    client = client_of(gappy_store)
    code, found = panel(client, "loss", run=run, x="epoch")
    assert code == 200
    [curve] = found["curves"]
    assert sorted(curve["y"], reverse=True) == [1 / (step + 1) for step in range(NUM)]
    expected = [step // 10 if run == "2" else (step - 9) / 10 for step in range(NUM)]
    assert curve["x"] == pytest.approx(expected)
    rows = csv.reader(
        client.get("/workspace/points", params={"panel": "loss", "run": run, "x": "epoch"}).text.splitlines()
    )
    assert [float(row[1]) for row in rows if row[1] != "epoch"] == pytest.approx(expected)
    _, found = panel(client, "loss", group="is_each", x="epoch")
    each = next(curve for curve in found["curves"] if curve["label"].startswith("is_each=True"))
    means = [sum(1 / (step + 1) for step in range(epoch, epoch + 10)) / 10 for epoch in (0, 10, 20)]
    assert each["y"] == pytest.approx(means)


@pytest.mark.slow
def test_each_axis_is_chosen_in_the_browser(watched, serve, gappy_store):
    page = watched(viewport={"width": 1200, "height": 2400}).page
    page.goto(f"{serve(gappy_store)}/runs?run=2&panel=loss")
    drawn(page)
    plot = page.locator("figure[data-panel=loss] svg.lines")
    for axis, title, tick in (
        ("epoch", "epoch", r"[0-2](\.\d+)?"),
        ("time", "seconds since the start", r"0|0?\.\d+|\d+(\.\d+)?|\S+e-\d+"),
        ("wall", "time (UTC)", r".*:\d\d(\.\d+)?"),
        ("step", "step", r"\d+"),
    ):
        page.select_option("select[name=x]", axis)
        page.wait_for_function("(text) => document.querySelector('.lines .title').textContent === text", arg=title)
        texts = plot.locator("g text[text-anchor=middle]").all_text_contents()
        assert texts
        assert [one for one in texts if not re.fullmatch(tick, one)] == []
        assert shown_in(page, "loss") == NUM


def test_files_of_points_have_all_of_them_at_their_steps(client_of, gappy_store):
    def rows(name, **query):
        text = client_of(gappy_store).get("/workspace/points", params={"panel": name, "run": "1", **query}).text
        return [(int(step), float(value)) for _, step, value, _ in list(csv.reader(text.splitlines()))[1:]]

    assert rows("equal") == [(step, step + value) for step in range(NUM) for value in range(3)]
    assert rows("beyond") == [(BEYOND + step, step) for step in range(NUM)]
    assert rows("unordered") == sorted(((7 * step) % NUM, step) for step in range(NUM))
    assert rows("every_second")[1::2] == [(step, step) for step in range(1, NUM, 2)]


def test_files_of_points_have_step_and_time_beside_any_axis(client_of, gappy_store):
    client = client_of(gappy_store)

    def table(**query):
        answer = client.get("/workspace/points", params={"panel": "loss", **query})
        return list(csv.DictReader(answer.text.splitlines()))

    by_step = table(run="2")
    assert list(by_step[0]) == ["curve", "step", "value", "time_s"]
    times = [float(row["time_s"]) for row in by_step]
    assert times == sorted(times)
    for axis, columns in (
        ("epoch", ["epoch", "value", "step", "time_s"]),
        ("time", ["time_s", "value", "step"]),
        ("wall", ["wall_time_s", "value", "step", "time_s"]),
        ("equal", ["equal", "value", "step", "time_s"]),
    ):
        rows = table(run="2", x=axis)
        assert list(rows[0]) == ["curve", *columns]
        assert [(row["step"], row["time_s"]) for row in rows] == [(row["step"], row["time_s"]) for row in by_step]
    assert list(table(group="kind", band="none")[0]) == ["curve", "step", "value"]


@pytest.fixture(scope="module")
def sixty(tmp_path_factory):
    """Sixty runs, of which the oldest alone has a metric, without the setting that the others have."""
    folder = tmp_path_factory.mktemp("sixty")
    for number in range(1, 61):
        run = folder / str(number)
        run.mkdir()
        start = f"2026-01-01T00:{number - 1:02}:00"
        document = {"uid": f"{number:032x}", "status": "COMPLETED", "start_time": start, "command": "main"}
        (run / "run.json").write_text(json.dumps({"experiment": {"name": "e"}, **document}))
        (run / "config.json").write_text(json.dumps({"lr": 0.1, "kind": "a"} if number > 1 else {"kind": "a"}))
        points = np.zeros(3, POINT)
        points["step"], points["value"] = np.arange(3), -number
        (run / "metrics.bin").write_bytes(points.tobytes())
        name = "loss" if number > 1 else "early"
        (run / "metrics.names.jsonl").write_text(json.dumps({"id": 0, "name": name}) + "\n")
    return folder


@pytest.fixture
def sixty_store(placed, sixty):
    return placed(sixty)


def test_groups_offer_and_draw_a_metric_of_one_old_run_without_the_setting(watched, serve, sixty_store):
    page = watched().page
    page.goto(f"{serve(sixty_store)}/runs?group=lr")
    drawn(page)
    labels = {
        name: page.locator(f"figure[data-panel={name}] g[data-key]").evaluate_all(
            "all => all.map(one => one.dataset.label)"
        )
        for name in ("early", "loss")
    }
    assert labels == {"early": ["lr=None (n = 1)"], "loss": ["lr=0.1 (n = 59)"]}
    keys = page.eval_on_selector_all("tbody button.eye", "all => all.map((one) => one.dataset.keyOf)")
    assert sorted(keys) == ["lr=0.1", "lr=None"]


def test_panels_do_not_speak_of_options_of_a_command(client_of, sixty_store):
    client = client_of(sixty_store)
    errors = [
        panel(client, "loss", **query)[1]["error"]
        for query in ({"group": "nope"}, {"group": "lr", "over": "nope"}, {"run": "2", "log_y": "1"})
    ]
    assert errors == [
        *2 * ["none of the runs has nope; there are: kind, lr"],
        "loss: no value is above 0, as a logarithmic axis needs; draw it on a linear one",
    ]
