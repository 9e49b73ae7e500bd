"""The page that compares runs."""

import csv
import json
import re
import shutil

import numpy as np
import pymongo
import pytest
from axe_playwright_python.sync_playwright import Axe

from experiments import Experiment
from observers import FileObserver, Image, PointCloud
from observers.record.points.points import POINT
from runs import copy, open_store
from runs.drawing.curve import Curve, thin
from tests.integration.board.conftest import database_of

TABS = ("curves", "config", "sources", "media", "statistics")


def panel(client, **query):
    answer = client.get("/compare/panel", params=query)
    return answer.status_code, answer.json() if answer.status_code != 200 else unpacked(answer.content)


def unpacked(body):
    """Return a document with its arrays as lists; see `runs.board.answers`."""
    end = 4 + int.from_bytes(body[:4], "little")
    numbers = np.frombuffer(body, "<f8", offset=end)

    def revived(found):
        if found.keys() != {"numbers"}:
            return found
        first, count = found["numbers"]
        return numbers[first : first + count].tolist()

    return json.loads(body[4:end], object_hook=revived)


def drawn(page):
    """Wait until all panels are drawn."""
    page.wait_for_function("() => [...document.querySelectorAll('figure.panel')].every((one) => one.dataset.ready)")


def assert_accessible(page):
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_has_an_address(client_of, store, tab):
    answer = client_of(store).get("/compare", params={"run": ["1", "2", "4"], "tab": tab})
    assert answer.status_code == 200
    assert "3 runs" in answer.text
    assert f'aria-current="page" data-key="{TABS.index(tab) + 1}">{tab.capitalize()}' in answer.text


def test_runs_are_chosen_by_conditions_or_by_name(client_of, store):
    client = client_of(store)
    assert "2 runs" in client.get("/compare", params={"where": ["lr=0.1", "status=COMPLETED"]}).text
    assert "Select runs on" in client.get("/compare").text
    for query, problem in (
        ({"run": "99"}, "there is no run"),
        ({"where": "nope=1"}, "no run has a field"),
        ({"run": [str(n) for n in range(501)]}, "got 501 runs, expected 500 at most"),
    ):
        answer = client.get("/compare", params=query)
        assert answer.status_code == 400
        assert problem in answer.text


def test_curves_over_each_axis(client_of, store):
    client = client_of(store)
    for x, last in (("step", 39), ("time", None), ("wall", None)):
        code, found = panel(client, run=["1", "2"], metric="train/loss", x=x)
        assert code == 200
        assert [len(curve["x"]) for curve in found["curves"]] == [40, 40]
        assert [curve["label"].partition(":")[0] for curve in found["curves"]] == ["run 1", "run 2"]
        if last:
            assert found["curves"][0]["x"][-1] == last
        elif x == "wall":
            assert found["curves"][0]["x"][0] > 1.7e9
    code, found = panel(client, run="1", metric="train/loss", x="epoch")
    assert code == 409
    assert "its record has no epochs" in found["error"]


def test_curves_are_smoothed_averaged_and_cut_to_a_range(client_of, store):
    client = client_of(store)
    code, found = panel(client, where="status=COMPLETED", metric="train/loss", by="lr", band="range", smoothing=0.5)
    assert code == 200
    assert [curve["label"] for curve in found["curves"]] == ["lr=0.01 (n = 1)", "lr=0.1 (n = 2)"]
    assert {"key", "label", "x", "y", "low", "high", "raw"} == found["curves"][1].keys()
    code, found = panel(client, run="1", metric="train/loss", **{"from": "10", "to": "12.5"})
    assert found["curves"][0]["x"] == [9, 10, 11, 12, 13]


def test_all_points_of_a_panel_are_saved(client_of, recorded, monkeypatch):
    client = client_of(recorded)
    query = {"where": "status=COMPLETED", "metric": "train/loss", "by": "lr", "x": "step", "from": "10", "to": "12.5"}
    rows = list(csv.reader(client.get("/compare/points", params=query).text.splitlines()))
    assert rows[0] == ["curve", "step", "value", "low", "high"]
    labels = ("lr=0.01 (n = 1)", "lr=0.1 (n = 2)")
    assert [row[:2] for row in rows[1:]] == [[label, step] for label in labels for step in ("10", "11", "12")]
    monkeypatch.setattr("runs.board.points_page._MAX_POINTS", 119)
    answer = client.get("/compare/points", params=query)
    assert (answer.status_code, answer.json()["error"].partition(",")[0]) == (409, "got 120 points of train/loss")


class Commands(pymongo.monitoring.CommandListener):
    """Counts what a database is asked."""

    def __init__(self):
        self.names = []

    def started(self, event):
        self.names.append(event.command_name)

    def succeeded(self, event):
        pass

    failed = succeeded


@pytest.mark.parametrize("path", ["/compare", "/compare/panel"])
def test_more_runs_are_compared_by_no_more_queries(client_of, recorded_database, monkeypatch, path):
    commands = Commands()
    real = pymongo.MongoClient
    monkeypatch.setattr(pymongo, "MongoClient", lambda *args, **kw: real(*args, event_listeners=[commands], **kw))
    client, asked = client_of(recorded_database), []
    for runs in (["1", "2"], ["1", "2"], ["1", "2", "3", "4"]):
        commands.names.clear()
        assert client.get(path, params={"run": runs, "metric": "train/loss"}).status_code == 200
        asked.append(list(commands.names))
    assert asked[2] == asked[1]
    assert len(asked[2]) < 10


@pytest.fixture(scope="module", params=["folder", "database"])
def long_store(request, tmp_path_factory):
    """A run with a metric of 50,000 points, those of the database in a document and in chunks."""
    folder = tmp_path_factory.mktemp("long") / "store"
    (folder / "1").mkdir(parents=True)
    points = np.zeros(50_000, POINT)
    points["step"] = np.arange(50_000) * 3
    points["value"] = np.random.default_rng(0).standard_normal(50_000).cumsum()
    points["value"][[7, 40_000]] = np.nan
    (folder / "1" / "metrics.bin").write_bytes(points.tobytes())
    (folder / "1" / "metrics.names.jsonl").write_text('{"id": 0, "name": "long"}\n')
    document = {"uid": "0" * 32, "status": "COMPLETED", "start_time": "2026-01-01T00:00:00", "format": "sacristan-1"}
    (folder / "1" / "run.json").write_text(json.dumps(document))
    if request.param == "folder":
        yield str(folder), points
        return
    for where in database_of(folder, request.getfixturevalue("mongo_url")):
        yield where, points


def test_long_curve_is_drawn_as_all_of_its_points_would_draw_it(client_of, long_store):
    where, points = long_store
    client = client_of(where)
    _, found = panel(client, run="1", metric="long")
    whole = Curve("", points["step"].astype(float), points["value"])
    expected = thin(whole, 2_000)
    np.testing.assert_array_equal(found["curves"][0]["x"], expected.x)
    np.testing.assert_array_equal(found["curves"][0]["y"], expected.y)
    assert found["notes"] == ["gaps: 2 NaN or infinite"]
    drawn = client.get("/series", params={"run": "1", "metric": "long", "pixels": 800}).json()
    assert [value is None for value in drawn["values"]].count(True) == 2
    assert (drawn["count"], max(filter(None, drawn["values"]))) == (50_000, np.nanmax(points["value"]))


def test_range_of_a_long_curve_is_shown_with_exactly_its_points(client_of, long_store):
    where, points = long_store
    client = client_of(where)
    inside = {"from": "90000", "to": "90600"}
    _, found = panel(client, run="1", metric="long", **inside)
    part = points[29_999:30_202]
    np.testing.assert_array_equal(found["curves"][0]["x"], part["step"])
    np.testing.assert_array_equal(found["curves"][0]["y"], part["value"])
    found = client.get("/series", params={"run": "1", "metric": "long", "pixels": 800, **inside}).json()
    assert found["steps"] == part["step"].tolist()
    assert found["values"] == part["value"].tolist()


def test_configs_stand_side_by_side(client_of, store):
    client = client_of(store)
    text = client.get("/compare", params={"run": ["1", "2"], "tab": "config"}).text
    table = text.partition('aria-label="Configs"')[2]
    assert re.findall(r'<th scope="row" class="mono">([^<]+)</th>', table)[0] == "lr"
    assert '<td class="mono differs">0.01</td>' in table
    assert "model.name" not in table
    assert "model.name" in client.get("/compare", params={"run": ["1", "2"], "tab": "config", "everything": "1"}).text


def test_entry_that_a_run_lacks_is_marked_as_different(client_of, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    (store / "1" / "config.json").write_text('{"lr": 1, "first": 1}')
    (store / "2" / "config.json").write_text('{"lr": 1, "second": 2}')
    text = client_of(store).get("/compare", params={"run": ["1", "2"], "tab": "config"}).text
    rows = re.findall(r'<tr><th scope="row" class="mono">(.*?)</th>(.*?)</tr>', text, re.DOTALL)
    found = {name: re.findall(r"<td class=\"([^\"]*)\">([^<]*)</td>", cells) for name, cells in rows}
    assert found == {
        "first": [("mono", "1"), ("dim differs", "–")],
        "second": [("dim", "–"), ("mono differs", "2")],
    }


def test_page_says_how_much_of_a_large_config_is_compared(client_of, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    for run in ("1", "2"):
        config = {"layers": {f"x{number}": f"{run} {number}" for number in range(30_000)}, "lr": float(run)}
        (store / run / "config.json").write_text(json.dumps(config))
    client = client_of(store)
    for everything in ("0", "1"):
        query = {"run": ["1", "2"], "tab": "config", "everything": everything}
        assert (
            "; of each config 20,000 entries are compared, those of few dots"
            in client.get("/compare", params=query).text
        )
    columns = client.get("/runs").text.partition("<thead>")[2].partition("</thead>")[0]
    assert 'title="lr"' in columns


def test_statistics_are_those_of_compare(client_of, store):
    query = {"where": "lr>0", "tab": "statistics", "by": "lr", "field": "val/accuracy.max"}
    text = client_of(store).get("/compare", params=query).text
    assert "val/accuracy.max by lr (greater is better)" in text
    assert "is FAILED" in text
    text = client_of(store).get("/compare", params={**query, "by": "nope"}).text
    assert "no run has it" in text


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Two runs whose source differs, each with an image at two steps."""
    folder = tmp_path_factory.mktemp("changed")
    source = folder / "layers.py"
    for text in ("first = 1\nsecond = 2\n", "first = 1\nsecond = '<script>alert(1)</script>'\nthird = 3\n"):
        source.write_text(text)
        ex = Experiment("changed", base_dir=folder, save_git_info=False, system_metrics_s=None)

        @ex.main
        def main(_run):
            for step in (0, 5):
                _run.log_media("sample", Image([[0.0, 1.0]]), step)
            _run.log_media("scan", PointCloud([[0, 0, 0], [1, 2, 3]]), 3)

        ex.add_source_file(source)
        ex.observers.append(FileObserver(folder / "store"))
        ex.run(options={"--capture": "sys"})
    return folder / "store"


@pytest.fixture(params=["folder", "database"])
def changed_store(request, changed, mongo_url):
    if request.param == "folder":
        yield str(changed)
        return
    database = request.getfixturevalue("database")
    where = f"{mongo_url}/{database.name}"
    with open_store(changed) as source, open_store(where) as target:
        for run in source.find(sort="id"):
            copy(run, target)
    yield where


def test_sources_and_media_stand_side_by_side(client_of, changed_store):
    client = client_of(changed_store)
    text = client.get("/compare", params={"run": ["1", "2"], "tab": "sources"}).text
    assert "layers.py</a>" in text
    assert re.findall(r'<tr class="(\w+)">', text.partition("side by side")[2]) == ["same", "changed", "added"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    text = client.get("/compare", params={"run": ["1", "2"], "tab": "media"}).text
    assert 'data-steps="[0, 5]"' in text
    assert text.count("data-entries=") == 4


def test_curves_are_drawn_accessible_and_saved_and_share_a_cursor(watched, serve, recorded, tmp_path):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(recorded)}/compare?run=1&run=2&log_y=1&smoothing=0.3")
    drawn(page)
    assert page.locator("figure.panel").count() == 2
    # What is asked for ahead of the script is what the script asks for.
    assert page.locator("link[rel=preload][as=fetch]").count() == 2
    assert sum("/compare/panel?" in url for url in watch.requests) == 2
    legend = page.locator("#legend li").all_inner_texts()
    assert [text.partition(",")[0] for text in legend] == ["run 1: lr=0.1", "run 2: lr=0.01"]
    assert_accessible(page)
    plots = page.locator("figure.panel .plot")
    plots.first.hover()
    page.wait_for_function("() => document.querySelectorAll('.cursor:not([hidden])').length === 2")
    with page.expect_download() as download:
        page.evaluate("document.querySelector('.modebar-btn[data-title*=CSV]').dispatchEvent(new MouseEvent('click'))")
    download.value.save_as(tmp_path / "saved.csv")
    rows = list(csv.reader((tmp_path / "saved.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["curve", "step", "value", "as_logged"]
    assert [row[0] for row in rows[1:]] == [text for text in legend for _ in range(40)]
    page.locator("#legend button").first.click()
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "false"
    page.locator("select[name=x]").select_option("time")
    page.wait_for_url("**/compare?*x=time*")
    drawn(page)
    assert "smoothing=0.3" in page.url


def test_a_range_is_shown_in_all_panels_with_all_of_its_points(watched, serve, recorded):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(recorded)}/compare?run=1&run=2")
    drawn(page)
    page.evaluate("Plotly.relayout(document.querySelector('.plot'), {'xaxis.range': [5, 9]})")
    shown = "() => [...document.querySelectorAll('.plot')].every((one) => one.layout?.xaxis.range?.[0] === 5)"
    page.wait_for_function(shown)
    assert sum("from=5&" in url for url in watch.requests) == 2
    # The same at its address, of which another axis is another range.
    assert page.url.endswith("&zoom=5..9")
    watch.requests.clear()
    page.goto(page.url)
    page.wait_for_function(shown)
    assert ["from=5&to=9" in url for url in watch.requests if "/compare/panel" in url] == [True, True]
    page.locator("select[name=band]").select_option("range")
    page.wait_for_url("**/compare?*band=range*")
    assert "zoom=5..9" in page.url
    page.locator("select[name=x]").select_option("time")
    page.wait_for_url("**/compare?*x=time*")
    assert "zoom" not in page.url


def test_media_follow_the_slider(watched, serve, changed):
    page = watched().page
    page.goto(f"{serve(changed)}/compare?run=1&run=2&tab=media")
    page.wait_for_function("() => document.querySelectorAll('.medium img').length === 2")
    page.wait_for_function("() => document.querySelectorAll('.medium .points[data-drawn=\"2\"]').length === 2")
    assert page.locator(".at").all_inner_texts() == ["step 5", "step 5", "step 3", "step 3"]
    page.locator("input[type=range]").fill("0")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.at')].slice(0, 2).every((one) => one.innerText === 'step 0')"
    )
    assert page.url.endswith("&step.sample=0")
    page.goto(page.url)
    page.wait_for_selector(".at:text('step 0')")
    assert page.locator("input[type=range]").input_value() == "0"


@pytest.mark.nightly
@pytest.mark.parametrize("tab", TABS[1:])
def test_page_is_accessible(watched, serve, changed, recorded, tab):
    page = watched().page
    page.goto(f"{serve(changed if tab in ('sources', 'media') else recorded)}/compare?run=1&run=2&tab={tab}")
    assert_accessible(page)


def test_run_has_one_name_and_one_colour_in_all_panels_and_the_legend(watched, serve, tmp_path):
    ex = Experiment("many", save_git_info=False)

    @ex.config
    def config():
        lr = 0.1
        width = 1

    @ex.main
    def main(_run, width):
        _run.log_scalar("loss", 1.0, 0)
        if width < 15:
            _run.log_scalar("train/loss", 1.0, 0)
        if width == 15:
            _run.log_scalar("val/loss", 1.0, 0)

    ex.observers.append(FileObserver(tmp_path / "store"))
    for number in range(20):
        ex.run(config_updates={"lr": 0.1 * (number // 10 + 1), "width": number, "seed": 1})
    page = watched().page
    page.goto(f"{serve(tmp_path / 'store')}/compare?where=lr>0")
    drawn(page)
    legend = page.locator("#legend li").all_inner_texts()
    assert sorted(legend, key=lambda text: int(text.split()[1].strip(":"))) == [
        f"run {number + 1}: lr={0.1 * (number // 10 + 1)}, width={number}" for number in range(20)
    ]
    swatches = page.evaluate(
        """() => [...document.querySelectorAll("#legend .swatch line")].map((line) =>
            [line.getAttribute("stroke"), line.getAttribute("stroke-dasharray")])"""
    )
    assert len({color for color, _ in swatches}) == 20
    lines = page.evaluate(
        """() => [...document.querySelectorAll(".panel .plot")].map((plot) =>
            plot.data.map(({ name, line }) => [name, line.color, line.dash]))"""
    )
    assert sorted(map(len, lines)) == [1, 15, 20]
    known = {}
    for name, *line in [one for found in lines for one in found]:
        assert known.setdefault(name, line) == line
    assert [known[name][0] for name in legend] == [color for color, _ in swatches]
