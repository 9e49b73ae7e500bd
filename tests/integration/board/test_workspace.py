"""The workspace: runs with eyes beside their curves."""

import contextlib
import csv
import json
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pymongo
import pytest
from axe_playwright_python.sync_playwright import Axe

from sacristan.observers.record.points import POINT
from sacristan.runs import board
from sacristan.runs.board.serving import BoardServer
from sacristan.runs.drawing.curve import Curve, thin
from tests.integration.board.conftest import database_of


def panel(client, metric, **query):
    answer = client.get("/workspace/panel", params={"panel": metric, **query})
    return answer.status_code, answer.json() if answer.status_code != 200 else unpacked(answer.content)


def unpacked(body):
    """Return a document with its arrays as lists; see `sacristan.runs.board.visits`."""
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
    page.wait_for_function(
        "() => [...document.querySelectorAll('.section[open] figure')].every((one) => one.dataset.ready)"
    )


def assert_accessible(page):
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def test_curves_over_each_axis(client_of, store):
    client = client_of(store)
    for x, last in (("step", 39), ("time", None), ("wall", None)):
        code, found = panel(client, "train/loss", run=["1", "2"], x=x)
        assert code == 200
        assert [len(curve["x"]) for curve in found["curves"]] == [40, 40]
        assert [curve["label"].partition(":")[0] for curve in found["curves"]] == ["run 1", "run 2"]
        if last:
            assert found["curves"][0]["x"][-1] == last
        elif x == "wall":
            assert found["curves"][0]["x"][0] > 1.7e9
    code, found = panel(client, "train/loss", run="1", x="epoch")
    assert code == 409
    assert "its record has no epochs" in found["error"]


def test_any_metric_is_the_x_axis(client_of, store):
    client = client_of(store)
    code, found = panel(client, "train/loss", run=["1", "2"], x="val/accuracy")
    assert (code, found["x"], found["x_label"]) == (200, "val/accuracy", "val/accuracy")
    np.testing.assert_allclose(found["curves"][0]["x"], np.arange(40) / 40 + 0.1)
    np.testing.assert_allclose(found["curves"][0]["y"], 0.1 / np.arange(1, 41))
    # A point has the last value up to its step.
    code, found = panel(client, "train/loss", run="1", x="system/cpu * 2")
    assert (code, set(found["curves"][0]["x"])) == (200, {100.0})
    code, found = panel(client, "train/loss", run="1", x="nothing")
    assert (code, found["error"].partition(";")[0]) == (409, "no run has the metric 'nothing'")
    assert client.get("/runs", params={"x": "val/accuracy"}).text.count("x=val%2Faccuracy") >= 2


@pytest.mark.parametrize("is_database", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_many_curves_come_in_the_order_of_the_runs(client_of, twenty, mongo_url, is_database):
    with contextlib.closing(
        database_of(twenty, mongo_url) if is_database else (str(one) for one in [twenty])
    ) as stores:
        runs = ["14", *map(str, range(1, 14))]
        _, found = panel(client_of(next(stores)), "train/loss", run=runs)
        assert [(curve["key"], curve["y"]) for curve in found["curves"]] == [(run, 3 * [float(run)]) for run in runs]
        assert found["curves"][0]["label"].startswith("run 14: lr=")


def test_curves_are_smoothed_averaged_and_cut_to_a_range(client_of, store):
    client = client_of(store)
    code, found = panel(client, "train/loss", where="status=COMPLETED", group="lr", band="range", smoothing=0.5)
    assert code == 200
    assert [curve["label"] for curve in found["curves"]] == ["lr=0.01 (n = 1)", "lr=0.1 (n = 2)"]
    assert {"key", "label", "part", "x", "y", "low", "high", "raw"} == found["curves"][1].keys()
    code, found = panel(client, "train/loss", run="1", **{"from": "10", "to": "12.5"})
    assert found["curves"][0]["x"] == [9, 10, 11, 12, 13]


def test_all_points_of_a_panel_are_saved(client_of, recorded, monkeypatch):
    client = client_of(recorded)
    query = {"where": "status=COMPLETED", "panel": "train/loss", "group": "lr", "x": "step", "from": "10", "to": "12.5"}
    rows = list(csv.reader(client.get("/workspace/points", params=query).text.splitlines()))
    assert rows[0] == ["curve", "step", "value", "low", "high"]
    labels = ("lr=0.01 (n = 1)", "lr=0.1 (n = 2)")
    assert [row[:2] for row in rows[1:]] == [[label, step] for label in labels for step in ("10", "11", "12")]
    monkeypatch.setattr("sacristan.runs.board.charts.MAX_POINTS", 119)
    answer = client.get("/workspace/points", params=query)
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


@pytest.mark.parametrize("path", ["/compare", "/runs", "/workspace/panel"])
def test_more_runs_are_compared_by_no_more_queries(client_of, recorded_database, monkeypatch, path):
    commands = Commands()
    real = pymongo.MongoClient
    monkeypatch.setattr(pymongo, "MongoClient", lambda *args, **kw: real(*args, event_listeners=[commands], **kw))
    client, asked = client_of(recorded_database), []
    for runs in (["1", "2"], ["1", "3"], ["1", "2", "3", "4"]):
        commands.names.clear()
        assert client.get(path, params={"run": runs, "panel": "train/loss"}).status_code == 200
        asked.append(list(commands.names))
    assert asked[2] == asked[1]
    assert len(asked[2]) < 10
    commands.names.clear()
    client.get(path, params={"run": ["1", "2", "3", "4"], "panel": "val/accuracy"})
    # Another panel of the same runs reads no configs for their labels, and their page none for its columns.
    assert len(commands.names) == len(asked[2]) - (path != "/compare")


@pytest.mark.slow
def test_curves_of_a_database_follow_their_points(client_of, twenty, mongo_url):
    with contextlib.closing(database_of(twenty, mongo_url)) as stores, pymongo.MongoClient(mongo_url) as mongo:
        where = next(stores)
        client, database = client_of(where), mongo[where.rpartition("/")[2]]

        def values():
            return panel(client, "loss", run="14")[1]["curves"][0]["y"]

        def change(number):
            new = {"values": [number] * 3}
            assert database.metrics.update_one({"run_id": 14, "name": "loss"}, {"$set": new}).modified_count

        assert values() == [14] * 3
        change(1.0)
        assert values() == [14] * 3  # nobody but a run that is resumed changes points
        database.runs.update_one({"_id": 14}, {"$currentDate": {"heartbeat": True}})
        assert values() == [1] * 3
        database.runs.update_one({"_id": 14}, {"$set": {"status": "RUNNING", "lease": None}, "$unset": {"uid": 1}})
        for number in (2.0, 3.0):
            change(number)
            assert values() == [number] * 3
        database.runs.update_one({"_id": 14}, {"$set": {"status": "COMPLETED"}})
        assert values() == [3] * 3
        more = {"$push": {"values": 4.0, "steps": 3, "timestamps": datetime.now(UTC)}, "$inc": {"count": 1}}
        database.metrics.update_one({"run_id": 14, "name": "loss"}, more)  # delivered after the end
        assert values() == [3, 3, 3, 4]


@pytest.fixture(scope="module", params=["folder", pytest.param("database", marks=pytest.mark.slow)])
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
    _, found = panel(client, "long", run="1")
    whole = Curve("", points["step"].astype(float), points["value"])
    expected = thin(whole, 2_000)
    np.testing.assert_array_equal(found["curves"][0]["x"], expected.x)
    np.testing.assert_array_equal(found["curves"][0]["y"], expected.y)
    assert found["notes"] == ["gaps: 2 NaN or infinite"]


def test_range_of_a_long_curve_is_shown_with_exactly_its_points(client_of, long_store):
    where, points = long_store
    client = client_of(where)
    inside = {"from": "90000", "to": "90600"}
    _, found = panel(client, "long", run="1", **inside)
    part = points[29_999:30_202]
    np.testing.assert_array_equal(found["curves"][0]["x"], part["step"])
    np.testing.assert_array_equal(found["curves"][0]["y"], part["value"])


DRAWN = """() => Object.fromEntries([...document.querySelectorAll(".section[open] figure.panel")].map((figure) => [
    figure.dataset.panel,
    [...figure.querySelectorAll(".plot g[data-key]")].map(
        (curve) => ({ name: curve.dataset.label, key: curve.dataset.key, color: curve.getAttribute("stroke") })),
]))"""
NUM_CURVES = "(panel) => document.querySelectorAll(`[data-panel='${panel}'] .plot g[data-key]`).length"


def wait_for_curves(page, panel, num):
    page.wait_for_function(f"([panel, num]) => ({NUM_CURVES})(panel) === num", arg=[panel, num])


def test_curves_are_drawn_accessible_and_saved_and_share_a_cursor(watched, serve, recorded, tmp_path):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(recorded)}/compare?tab=curves&run=1&run=2&log_y=1&smoothing=0.3")
    drawn(page)
    assert "/runs?run=1&run=2&smoothing=0.3&log_y=1" in page.url  # the address of the page that the workspace replaces
    assert page.locator(".section[open] figure.panel").count() == 2
    # What is asked for ahead of the script is what the script asks for.
    assert page.locator("link[rel=preload][as=fetch]").count() == 2
    assert sum("/workspace/panel?" in url for url in watch.requests) == 2
    names = [curve["name"] for curve in page.evaluate(DRAWN)["train/loss"]]
    assert [text.partition(",")[0] for text in names] == ["run 2: lr=0.01", "run 1: lr=0.1"]
    assert_accessible(page)
    plots = page.locator("figure.panel .plot")
    plots.first.hover()
    page.wait_for_function("() => document.querySelectorAll('.cursor:not([hidden])').length === 2")
    with page.expect_download() as download:
        plots.first.locator("[data-save=csv]").click()
    download.value.save_as(tmp_path / "saved.csv")
    rows = list(csv.reader((tmp_path / "saved.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["curve", "step", "value", "as_logged", "time_s"]
    assert [row[0] for row in rows[1:]] == [text for text in names for _ in range(40)]
    page.locator("select[name=x]").select_option("time")
    page.wait_for_url("**/runs?*x=time*")
    page.wait_for_function(SECONDS)
    assert "smoothing=0.3" in page.url


SECONDS = """() => [...document.querySelectorAll(".lines .title")].map((one) => one.textContent).join()
    === "seconds since the start,seconds since the start\""""


def drag(page, start, end):
    """Drag over a part of the first plot, of its curves from the first to the last point."""
    left, top, right, height = page.evaluate("""() => {
        const area = document.querySelector(".lines svg").getBoundingClientRect();
        return [area.left, area.top, area.right, area.height];
    }""")
    page.mouse.move(left + start * (right - left), top + height / 2)
    page.mouse.down()
    page.mouse.move(left + end * (right - left), top + height / 2)
    page.mouse.up()


@pytest.mark.slow
def test_a_range_is_shown_in_all_panels_with_all_of_its_points(watched, serve, recorded):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(recorded)}/runs?run=1&run=2&group=lr")
    drawn(page)
    drag(page, 0.25, 0.5)
    shown = """() => [...document.querySelectorAll(".section[open] .lines")].every((plot) => {
        const steps = [...plot.querySelectorAll("text[text-anchor=middle]:not(.title)")].map((one) => +one.textContent);
        return Math.min(...steps) >= 9 && Math.max(...steps) <= 20;
    })"""
    page.wait_for_function(shown)
    low, high = map(float, page.url.partition("&zoom=")[2].split(".."))
    assert (low, high) == pytest.approx((39 / 4, 39 / 2), abs=0.3)
    assert sum(f"from={low}&to={high}" in url for url in watch.requests) == 2
    # The same at its address, of which another axis is another range.
    watch.requests.clear()
    page.goto(page.url)
    page.wait_for_function(shown)
    assert [f"from={low}&to={high}" in url for url in watch.requests if "/workspace/panel" in url] == [True, True]
    page.locator("select[name=band]").select_option("range")
    page.wait_for_url("**/runs?*band=range*")
    assert f"zoom={low}..{high}" in page.url
    page.locator("select[name=x]").select_option("time")
    page.wait_for_url("**/runs?*x=time*")
    assert "zoom" not in page.url


def ticks(page):
    """Return the texts of the ticks of x and of y of the first plot."""
    texts = page.eval_on_selector_all(
        ".section[data-section='/'] .lines text:not(.title)",
        "all => all.map((one) => [one.getAttribute('text-anchor') ?? 'end', one.textContent])",
    )
    return [[text for anchor, text in texts if anchor == wanted] for wanted in ("middle", "end")]


def test_the_pointer_reads_zooms_and_moves_curves(watched, serve, recorded, tmp_path):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(recorded)}/runs?run=1&run=2&panel=train/loss")
    drawn(page)
    pinned = page.locator(".section[data-section='/'] figure")
    area = pinned.locator(".lines svg").bounding_box()
    page.mouse.move(area["x"] + 1, area["y"] + area["height"] / 2)
    readings = pinned.locator(".readings p")
    found = [text.partition(",")[0] for text in readings.all_text_contents()]
    assert found == ["0", "0.1 run 1: lr=0.1", "0.01 run 2: lr=0.01"]
    page.mouse.move(5, 5)
    assert pinned.locator(".readings").is_hidden()
    assert ticks(page) == [["0", "10", "20", "30"], ["0", "0.05", "0.10"]]
    page.mouse.move(area["x"] + 100, area["y"] + 1)
    page.mouse.down()
    page.mouse.move(area["x"] + 100, area["y"] + area["height"] / 2)
    page.mouse.up()
    assert min(map(float, ticks(page)[1])) > 0.05  # of y alone, which this panel alone shows
    assert "zoom" not in page.url
    page.mouse.dblclick(area["x"] + 100, area["y"] + 50)
    assert ticks(page)[1] == ["0", "0.05", "0.10"]
    page.locator("input[name=log_y]").check()
    page.wait_for_function("() => document.querySelector('.lines').textContent.includes('0.001')")
    for format in ("svg", "png"):
        with page.expect_download() as download:
            pinned.locator(f"[data-save={format}]").click()
        assert download.value.suggested_filename == f"train_loss.{format}"
        content = Path(download.value.path()).read_bytes()
        assert content.startswith({"svg": b"<svg", "png": b"\x89PNG"}[format])
    pinned.get_by_role("button", name="Drag moves the curves").click()
    drag(page, 0.5, 0.25)
    page.wait_for_function("() => location.search.includes('zoom=')")
    low, high = map(float, page.url.partition("&zoom=")[2].split(".."))
    assert (low, high) == pytest.approx((39 / 4, 39 * 5 / 4), abs=0.5)
    # Curves alone need no plotly.js.
    assert [url for url in watch.requests if "plotly" in url] == []


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """Twenty runs with a metric, of which 15 have another one, and one has a third."""
    folder = tmp_path_factory.mktemp("twenty")
    for number in range(1, 21):
        run = folder / str(number)
        run.mkdir()
        document = {"uid": f"{number:032x}", "status": "COMPLETED", "start_time": f"2026-01-01T00:{number:02}:00"}
        (run / "run.json").write_text(json.dumps({"experiment": {"name": "e"}, "command": "main", **document}))
        (run / "config.json").write_text(json.dumps({"lr": 0.1 * (number // 10 + 1), "width": number}))
        names = ["loss"] + ["train/loss"] * (number <= 15) + ["val/loss"] * (number == 16)
        points = np.zeros((3, len(names)), POINT)
        points["metric"], points["step"] = np.arange(len(names)), np.arange(3)[:, None]
        points["value"] = number
        (run / "metrics.bin").write_bytes(points.tobytes())
        (run / "metrics.names.jsonl").write_text(
            "".join(json.dumps({"id": n, "name": name}) + "\n" for n, name in enumerate(names))
        )
    return folder


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def twenty_store(request, twenty):
    """The twenty runs in a folder and in a database."""
    return str(twenty) if request.param == "folder" else request.getfixturevalue("twenty_database")


@pytest.fixture(scope="module")
def twenty_database(twenty, mongo_url):
    yield from database_of(twenty, mongo_url)


# Colour and dashes of the swatches of runs, and of the curves of a panel.
STYLES = """() => Object.fromEntries([...document.querySelectorAll("[data-swatch]")].map((one) => [
    one.dataset.swatch, [one.style.color, one.querySelector("path")?.getAttribute("stroke-dasharray") ?? ""]]))"""
DRAWN_STYLES = """(panel) => {
    const curves = [...document.querySelectorAll(`[data-panel="${panel}"] g[data-key]`)];
    return Object.fromEntries(curves.map((one) => [
        one.dataset.key, [getComputedStyle(one).stroke, one.lastChild.getAttribute("stroke-dasharray") ?? ""]]));
}"""


@pytest.mark.slow
def test_run_has_one_name_and_one_colour_in_all_panels_and_pages(watched, serve, twenty_store):
    page = watched().page
    page.goto(f"{serve(twenty_store)}/runs?where=lr>0")
    drawn(page)
    styles = page.evaluate(STYLES)
    assert len({tuple(style) for style in styles.values()}) == 20
    assert len({colour for colour, _ in styles.values()}) == 10
    assert sorted(bool(dash) for _, dash in styles.values()) == [False] * 10 + [True] * 10
    panels = page.evaluate(DRAWN)
    assert {name: len(curves) for name, curves in panels.items()} == {"loss": 20, "train/loss": 15, "val/loss": 1}
    for curve in [one for found in panels.values() for one in found]:
        assert curve["name"].startswith(f"run {curve['key']}: lr=")
    page.goto(f"{serve(twenty_store)}/compare?run=3&run=4")
    assert page.evaluate(STYLES) == {"3": styles["3"], "4": styles["4"]}
    page.goto(f"{serve(twenty_store)}/runs/3?tab=curves")
    drawn(page)
    assert page.evaluate(STYLES) == {"3": styles["3"]}
    assert page.evaluate(DRAWN_STYLES, "loss")["3"][0] == styles["3"][0]
    page.goto(f"{serve(twenty_store)}/runs?where=lr>0")
    assert page.evaluate(STYLES) == styles


@pytest.mark.slow
def test_eyes_hide_curves_and_the_url_keeps_them(watched, serve, twenty_store):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(twenty_store)}/runs?where=width>14&where=width<18")
    drawn(page)
    watch.requests.clear()

    def seen():
        return sorted(curve["key"] for curve in page.evaluate(DRAWN)["loss"])

    page.focus("button.eye[data-key-of='16']")
    page.evaluate("document.activeElement.click()")
    assert seen() == ["15", "17"]  # at once
    assert page.url.endswith("&hide=16")
    page.keyboard.press("j")
    page.keyboard.press("Shift+V")
    assert seen() == ["15"]
    assert page.get_attribute("#eyes", "aria-pressed") == "mixed"
    page.click("button.eye[data-key-of='17']")
    assert seen() == ["15", "17"]
    # Curves that are there are shown or hidden.
    assert [url for url in watch.requests if "/workspace/panel" in url] == []
    page.goto(page.url)
    drawn(page)
    assert seen() == ["15", "17"]
    page.click("#eyes")
    assert seen() == ["15", "16", "17"]
    page.click("#eyes")
    assert seen() == []
    assert "hide=*" in page.url or "hide=%2A" in page.url


@pytest.mark.slow
def test_groups_are_drawn_as_means_in_the_same_place(watched, serve, twenty_store):
    page = watched().page
    page.goto(f"{serve(twenty_store)}/runs")
    drawn(page)
    page.fill("#group", "lr")
    page.press("#group", "Enter")
    page.wait_for_url("**/runs?group=lr")
    wait_for_curves(page, "loss", 3)
    assert page.locator("[data-panel=loss] g[data-key] path[fill]").count() == 3  # a band each
    curves = page.evaluate(DRAWN)["loss"]
    groups = ["lr=0.1 (n = 9)", "lr=0.2 (n = 10)", "lr=0.30000000000000004 (n = 1)"]
    assert [curve["name"] for curve in curves] == groups
    assert page.evaluate(STYLES).keys() == {curve["key"] for curve in curves}
    page.go_back()
    wait_for_curves(page, "loss", 20)
    assert page.locator("tbody tr[data-run]").count() == 20


def test_filter_changes_list_and_curves_without_leaving_the_page(watched, serve, twenty_store):
    page = watched().page
    page.goto(f"{serve(twenty_store)}/runs?hide=20")
    drawn(page)
    page.evaluate("window.stays = true")
    page.keyboard.press("/")
    page.keyboard.type("width>18")
    page.keyboard.press("Enter")
    wait_for_curves(page, "loss", 1)
    assert page.locator("tbody tr").count() == 2
    assert "where=width%3E18" in page.url
    assert "hide=20" in page.url
    assert page.evaluate("window.stays && document.activeElement.id") == "main"  # keys do not type any more
    assert page.locator("figure.panel").count() == 1
    page.click(".chip a")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 20")
    assert page.locator(".section[open] figure.panel").count() == 3


@pytest.mark.slow
def test_search_in_charts_leaves_no_empty_section(watched, serve, twenty_store):
    page = watched().page
    page.goto(f"{serve(twenty_store)}/runs")
    drawn(page)
    sections = "all => all.map((one) => one.dataset.section)"
    assert page.locator(".section:visible").evaluate_all(sections) == ["val", "", "train"]
    page.fill("#settings .sieve", "train")
    assert page.locator(".section:visible").evaluate_all(sections) == ["train"]
    page.press("#settings .sieve", "Enter")
    page.keyboard.press("g")
    page.wait_for_selector("#legend button")
    assert page.input_value("#settings .sieve") == "train"
    page.fill("#settings .sieve", "")
    assert page.locator(".section:visible").count() == 3


# Names that are cut in the middle: each, whether its end is in sight, and whether its beginning is cut.
ENDS = """(place) => [...document.querySelectorAll(place)].map((one) => {
    const [front, end] = one.children;
    const inside = end.getBoundingClientRect().right <= one.parentElement.getBoundingClientRect().right + 1;
    const isCut = front.scrollWidth > front.clientWidth && getComputedStyle(front).textOverflow === "ellipsis";
    return [one.textContent, inside && end.clientWidth > 60 && end.scrollWidth <= end.clientWidth, isCut];
})"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_are_cut_in_the_middle_and_keep_their_numbers(tmp_path, placed, watched, serve, width):
    names = [f"validation/retrieval_of_a_very_long_data_set_in_many_languages/recall_at_{num:06}" for num in (10, 100)]
    run = tmp_path / "1"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"uid": "1" * 32, "status": "COMPLETED"}))
    (run / "config.json").write_text("{}")
    (run / "summary.json").write_text(json.dumps({name: {"last": 1, "count": 2} for name in names}))
    points = np.zeros((2, 2), POINT)
    points["metric"], points["step"] = np.arange(2), [[0], [1]]
    (run / "metrics.bin").write_bytes(points.tobytes())
    (run / "metrics.names.jsonl").write_text(
        "".join(f'{{"id": {n}, "name": "{name}"}}\n' for n, name in enumerate(names))
    )
    where = placed(tmp_path)
    page = watched(viewport={"width": width, "height": 900}).page
    for path, place in (
        ("/runs?layout=charts", "figure .title"),
        ("/runs/1?tab=curves", "figure .title"),
        ("/runs/1", "[data-live=metrics] th"),
    ):
        page.goto(f"{serve(where)}{path}")
        page.wait_for_selector(f"{place} .middled")
        found = page.evaluate(ENDS, f"{place} .middled")
        assert [name for name, *_ in found] == names
        assert [is_whole for _, is_whole, _ in found] == [True, True]  # with its number
        assert path == "/runs/1" or [is_cut for *_, is_cut in found] == [True, True]


def test_running_run_grows_and_a_new_metric_gets_a_panel(watched, serve, twenty, tmp_path):
    store = shutil.copytree(twenty, tmp_path / "store")
    page = watched().page
    page.goto(f"{serve(store)}/runs")
    drawn(page)
    shutil.copytree(store / "16", store / "21")
    names = store / "21" / "metrics.names.jsonl"
    names.write_text(names.read_text().replace("val/loss", "val/f1"))
    document = json.loads((store / "21" / "run.json").read_text())
    (store / "21" / "run.json").write_text(json.dumps({**document, "uid": "f" * 32}))
    page.wait_for_selector("tr[data-run='21']")
    wait_for_curves(page, "loss", 21)
    wait_for_curves(page, "val/f1", 1)


@pytest.mark.slow
def test_panels_come_back_with_their_server(watched, twenty):
    watch, port = watched(), 0

    @contextlib.contextmanager
    def serving():
        server = BoardServer(str(twenty), port=port)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(20)

    page = watch.page
    with serving() as server:
        port = server.port
        page.goto(f"{server.url}runs?where=width>17")
        drawn(page)
    page.locator("input[name=smoothing]").fill("0.5")
    page.wait_for_selector(".notes.problem:has-text('the board does not answer')")
    page.wait_for_selector("#outage:has-text('the board does not answer')")
    with serving():
        page.wait_for_selector(".notes.problem", state="detached")
        page.wait_for_function(
            "() => document.querySelectorAll('.plot g[data-key] path').length === 6"
        )  # raw and smoothed
        page.wait_for_selector("#outage:empty", state="attached")
    watch.errors.clear()  # requests to no server


def test_no_style_asks_what_a_row_or_a_plot_has():
    # Each text that plotly.js measures would restyle the whole page: a second for four panels of 50 runs.
    for name, num in (("workspace.css", 0), ("board.css", 1)):
        assert (Path(board.__file__).parent / "static" / name).read_text(encoding="utf-8").count(":has(") == num


@pytest.mark.slow
def test_layout_is_in_the_url(watched, serve, recorded):
    page = watched().page
    page.goto(f"{serve(recorded)}/runs")
    page.click("button[data-layout=charts]")
    page.wait_for_url("**/runs?layout=charts")
    assert not page.is_visible("#list")
    page.goto(page.url.replace("charts", "table"))
    assert not page.is_visible("#charts")
    assert page.get_attribute("button[data-layout=table]", "aria-pressed") == "true"


@pytest.mark.parametrize(
    ("query", "status", "problem"),
    [
        ({"run": "1"}, 409, "got 0 metrics to draw"),
        ({"run": "1", "panel": "nope"}, 409, "no run has the metric 'nope'"),
        ({"run": "77", "panel": "train/loss"}, 404, "there is no run '77'"),
        ({"run": [str(n) for n in range(501)], "panel": "a"}, 400, "got 501 runs, expected 500 at most"),
        ({"where": "nope=1", "panel": "a"}, 400, "no run has a field"),
        ({"run": "1", "panel": "train/loss", "from": "x"}, 400, "from: got 'x', expected a step"),
    ],
)
def test_refused_panel_is_one_sentence(client_of, recorded, query, status, problem):
    answer = client_of(recorded).get("/workspace/panel", params=query)
    assert answer.status_code == status
    assert problem in answer.json()["error"]


def test_quantities_are_computed_at_common_steps(client_of, store):
    client = client_of(store)
    _, loss = panel(client, "train/loss", run="1")
    _, found = panel(client, "val/accuracy - 2 * train/loss ** 0.5, train/loss", run=["1", "2"])
    assert [curve["label"].split(",")[0] for curve in found["curves"]] == [
        *["val/accuracy - 2 * train/loss ** 0.5"] * 2, *["train/loss"] * 2,
    ]  # fmt: skip
    assert [curve["part"] for curve in found["curves"]] == [0, 0, 1, 1]
    assert [curve["key"] for curve in found["curves"]] == ["1", "2", "1", "2"]
    accuracy = np.arange(40) / 40 + 0.1
    expected = accuracy - 2 * np.array(loss["curves"][0]["y"]) ** 0.5
    np.testing.assert_allclose(found["curves"][0]["y"], expected)
    code, found = panel(client, "train/loss - nothing", run="1")
    assert (code, found["error"].partition(";")[0]) == (409, "no run has the metric 'nothing'")
    text = client.get("/workspace/points", params={"run": "1", "panel": "train/loss * 2"}).text
    assert text.splitlines()[1].rpartition(",")[0].endswith(",0,0.2")


def test_panels_are_added_pinned_ordered_and_widened(watched, serve, twenty_store):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(twenty_store)}/runs")
    drawn(page)

    def pinned():
        return page.eval_on_selector_all(
            ".section[data-section='/'] figure", "all => all.map((one) => one.dataset.panel)"
        )

    def wait_for(*panels):
        page.wait_for_function(
            """(panels) => JSON.stringify([...document.querySelectorAll(".section[data-section='/'] figure")]
                .map((one) => one.dataset.panel)) === JSON.stringify(panels)""",
            arg=panels,
        )

    page.keyboard.press("a")
    page.keyboard.type("loss - `train/loss`, loss")
    page.keyboard.press("Enter")
    wait_for("loss - `train/loss`, loss")
    drawn(page)
    assert len(page.evaluate(DRAWN)["loss - `train/loss`, loss"]) == 35
    watch.requests.clear()
    page.hover("figure[data-panel='val/loss']")
    page.click("figure[data-panel='val/loss'] [data-arrange=pin]")
    wait_for("loss - `train/loss`, loss", "val/loss")
    assert page.locator("figure[data-panel='val/loss']").count() == 1
    page.focus("figure[data-panel='val/loss'] [data-arrange=earlier]")
    page.keyboard.press("Enter")
    wait_for("val/loss", "loss - `train/loss`, loss")
    page.wait_for_function("() => document.activeElement.dataset.arrange === 'earlier'")
    page.click("figure[data-panel='val/loss'] [data-arrange=wide]")
    page.wait_for_selector("figure.broad[data-panel='val/loss']")
    page.drag_and_drop("figure[data-panel^='loss -'] .title", "figure[data-panel='val/loss'] .title")
    wait_for("loss - `train/loss`, loss", "val/loss")
    assert [url for url in watch.requests if "/workspace/panel" in url] == []  # what is drawn stays
    page.click("[data-section=train] summary")
    page.wait_for_url("**closed=train*")
    page.goto(page.url)
    drawn(page)
    assert pinned() == ["loss - `train/loss`, loss", "val/loss"]
    assert page.locator("figure.broad").count() == 1
    assert page.get_attribute("[data-section=train]", "open") is None
    assert_accessible(page)
    page.click("figure[data-panel='val/loss'] [data-arrange=pin]")
    wait_for("loss - `train/loss`, loss")
    page.wait_for_selector("[data-section=val] figure[data-panel='val/loss']")
