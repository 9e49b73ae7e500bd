"""Charts of any runs in the workspace, over a folder and a real MongoDB."""

import csv
import json
import math
import re
import urllib.parse
import uuid

import numpy as np
import pymongo
import pytest
from axe_playwright_python.sync_playwright import Axe

from sacristan.observers.record.points import POINT
from sacristan.runs import copy, open_store
from tests.integration.board.test_workspace import panel

NUM_RUNS = 24
EVIL = "<img src=x onerror=alert(1)>"
# A result whose name is markup, as the names of settings may be.
EVIL_FIELD = "<b>x</b>"


def write_run(folder, number):
    """Write a run whose result depends on `lr` alone; every sixth has none."""
    lr = 10 ** (-1 - 3 * ((number * 7) % NUM_RUNS) / NUM_RUNS)
    loss = abs(math.log10(lr) + 2.3)
    start = f"2026-01-{number:02}T00:00:00"
    document = {"uid": f"{number:032x}", "status": "COMPLETED", "start_time": start, "stop_time": start}
    result = {} if number % 6 == 0 else {"result": loss}
    files = {
        "run": {"experiment": {"name": "e"}, "command": "main", **document, **result},
        "config": {"lr": lr, "kind": ["a", EVIL][number % 2], EVIL_FIELD: number % 5, "seed": number},
        "summary": {"val/loss": {"last": loss, "min": loss, "count": 1}},
    }
    (folder / str(number)).mkdir(parents=True)
    for name, content in files.items():
        (folder / str(number) / f"{name}.json").write_text(json.dumps(content))
    point = np.zeros(1, POINT)
    point["value"] = loss
    (folder / str(number) / "metrics.bin").write_bytes(point.tobytes())
    (folder / str(number) / "metrics.names.jsonl").write_text('{"id": 0, "name": "val/loss"}\n')


@pytest.fixture(scope="module", params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def charted(request, tmp_path_factory):
    """A store of 24 runs, to which tests may add a 25th."""
    folder = tmp_path_factory.mktemp("charted") / "store"
    for number in range(1, NUM_RUNS + 1):
        write_run(folder, number)
    if request.param == "folder":
        yield str(folder)
        return
    mongo_url, name = request.getfixturevalue("mongo_url"), f"charts_{uuid.uuid4().hex}"
    copy_all(folder, f"{mongo_url}/{name}")
    yield f"{mongo_url}/{name}"
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database(name)


def copy_all(folder, where):
    with open_store(folder) as source, open_store(where) as target:
        for run in source.find(sort="id"):
            copy(run, target)


def test_scatter_has_all_runs_of_the_view_with_their_fields_and_colours(client_of, charted):
    client = client_of(charted)
    code, found = panel(client, "scatter(lr, result, kind)", where="lr<0.05")
    assert code == 200
    assert [field["name"] for field in found["fields"]] == ["lr", "result", "kind"]
    assert all(row[0] < 0.05 and row[1] == pytest.approx(abs(math.log10(row[0]) + 2.3)) for row in found["rows"])
    assert found["notes"] == ["18 runs", "without 3 runs that lack lr or result"]
    code, grouped = panel(client, "scatter(lr, val/loss.min)", group="kind")
    assert code == 200, grouped
    assert set(grouped["keys"]) == {"kind=a", f"kind={EVIL!r}"}
    code, single = panel(client, f"scatter(start, val/loss.min, {EVIL_FIELD})")
    assert [len(single[name]) for name in ("ids", "keys", "rows")] == [NUM_RUNS] * 3
    _, shaded = panel(client, "histogram(result)", colour="lr")
    assert len(shaded["shades"]) == len(shaded["ids"])
    assert all(0 < value < 1 for value in shaded["shades"] if value is not None)
    assert {row[0] % 86_400_000 for row in single["rows"]} == {0}  # midnights


def test_runs_without_the_field_of_the_colour_are_left_out(client_of, charted):
    code, found = panel(client_of(charted), "scatter(lr, val/loss.min, result)")
    assert code == 200
    assert len(found["rows"]) == NUM_RUNS - 4
    assert all(type(row[2]) is float for row in found["rows"])


def test_importances_name_the_setting_that_matters_and_say_what_they_are_not(client_of, charted):
    code, found = panel(client_of(charted), "importances(result)")
    assert code == 200
    assert list(found["methods"]) == ["fANOVA", "mean decrease in impurity"]
    for shares in found["methods"].values():
        assert set(shares) == {"lr", "kind", f"`{EVIL_FIELD}`"}  # not the seed
        assert max(shares, key=shares.get) == "lr"
    assert found["notes"][0].startswith("estimated from 20 runs: settings that vary together share their importance")
    assert "no share is a causal claim" in found["notes"][0]


@pytest.mark.parametrize(
    ("title", "where", "problem"),
    [
        ("importances(result)", "lr>0.02", "got 5 runs with a number as result, expected at least 10 to estimate"),
        ("importances(status)", "lr>0", "got 0 runs with a number as status"),
        ("importances(lr, status)", "lr>0", "the 24 runs differ in no setting that importances can be estimated of"),
        ("scatter(lr)", "lr>0", "scatter: got 1 field, expected 2 to 3, such as scatter(lr, result)"),
        ("histogram(lr, result)", "lr>0", "histogram: got 2 fields, expected 1"),
        ("histogram(lrr)", "lr>0", "no run has a field 'lrr'; did you mean lr?"),
    ],
)
def test_chart_that_cannot_be_drawn_is_refused_in_a_sentence(client_of, charted, title, where, problem):
    answer = client_of(charted).get("/workspace/panel", params={"panel": title, "where": where})
    assert answer.status_code in (400, 409)
    assert problem in answer.json()["error"]


SCATTER, HISTOGRAM = "scatter(lr, val/loss.min, kind)", "histogram(result)"
PARALLEL, IMPORTANCES = f"parallel(lr, kind, {EVIL_FIELD}, result)", f"importances(result, lr, {EVIL_FIELD})"


def address(base, *panels, **query):
    return f"{base}/runs?{urllib.parse.urlencode([*query.items(), *(('panel', one) for one in panels)])}"


def figure(page, title):
    return page.locator(f"figure[data-panel={json.dumps(title)}]")


def drawn(page):
    page.wait_for_function(
        "() => [...document.querySelectorAll('figure[data-chart]')].every((one) => one.dataset.ready)"
    )


NUM_POINTS = """([title, num]) => {
    const figure = document.querySelector(`figure[data-panel="${CSS.escape(title)}"]`);
    return figure.querySelectorAll(".points path").length === num;
}"""


@pytest.mark.slow
def test_charts_are_drawn_tabled_saved_and_follow_new_runs_and_eyes(watched, serve, charted, tmp_path):
    watch = watched()
    page = watch.page
    page.set_viewport_size({"width": 1280, "height": 2400})
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(address(serve(charted), SCATTER, HISTOGRAM, PARALLEL, IMPORTANCES))
    drawn(page)
    page.wait_for_function(NUM_POINTS, arg=[SCATTER, NUM_RUNS])
    assert figure(page, PARALLEL).locator("path[data-mark]").count() == NUM_RUNS
    assert figure(page, IMPORTANCES).locator(".bars .point").count() == 4
    assert "no share is a causal claim" in figure(page, IMPORTANCES).locator(".notes").inner_text()
    # Each as a table, by keys.
    for title, num, first in (
        (SCATTER, 24, "run"),
        (HISTOGRAM, None, "result"),
        (PARALLEL, 24, "run"),
        (IMPORTANCES, 2, "setting"),
    ):
        summary = figure(page, title).locator("summary", has_text="As a table")
        summary.press("Enter")
        rows = figure(page, title).locator("tbody tr")
        rows.first.wait_for()
        assert num is None or rows.count() == num
        assert figure(page, title).locator("thead th").first.inner_text() == first
    counts = figure(page, HISTOGRAM).locator("tbody td").all_inner_texts()
    assert sum(map(int, counts)) == 20
    ticks = [figure(page, HISTOGRAM).locator(f".{axis}tick text").all_text_contents() for axis in "xy"]
    assert len(ticks[0]) == len(counts)  # each bin has its label
    assert len(set(ticks[1])) == len(ticks[1])
    assert figure(page, SCATTER).locator("tbody a").first.get_attribute("href").startswith("/runs/")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    with page.expect_download() as download:
        figure(page, SCATTER).locator(".modebar-btn[data-title*=CSV]").dispatch_event("click")
    download.value.save_as(tmp_path / "scatter.csv")
    rows = list(csv.reader((tmp_path / "scatter.csv").read_text().splitlines()))
    assert (rows[0], len(rows)) == (["run", "lr", "val/loss.min", "kind"], NUM_RUNS + 1)
    # Eyes hide runs in all charts, and a new run appears in them.
    page.click("button.eye[data-key-of='24']")
    page.wait_for_function(NUM_POINTS, arg=[SCATTER, NUM_RUNS - 1])
    assert figure(page, PARALLEL).locator("path[data-mark]").count() == NUM_RUNS - 1
    write_run(tmp_path / "more", NUM_RUNS + 1)
    copy_all(tmp_path / "more", charted)
    page.wait_for_function(NUM_POINTS, arg=[SCATTER, NUM_RUNS])
    with open_store(charted) as store:
        store.discard([store.get(f"{NUM_RUNS + 1:032x}")])
    page.wait_for_function(NUM_POINTS, arg=[SCATTER, NUM_RUNS - 1])
    # A panel that is asked for in the moment of the removal answers so, and is asked for again.
    gone = re.compile(r"status of (404|409) .*/workspace/panel\?")
    watch.errors[:] = [error for error in watch.errors if not gone.search(error)]
    assert page.evaluate("window.hacked") is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charted") / "store"
    for number in range(1, NUM_RUNS + 1):
        write_run(folder, number)
    return folder


@pytest.mark.slow
def test_brushed_runs_are_selected_stand_out_and_the_url_keeps_the_brush(watched, serve, folder):
    page = watched().page
    page.set_viewport_size({"width": 1280, "height": 1600})
    page.goto(address(serve(folder), SCATTER, PARALLEL))
    drawn(page)
    num_lines = "(num) => document.querySelectorAll('path[data-mark][visibility=visible]').length === num"
    figure(page, PARALLEL).locator("summary", has_text="Ranges").press("Enter")
    page.get_by_label("lr, at least").fill("0.02")
    page.wait_for_function(num_lines, arg=6)
    assert "brush.lr=0.02.." in page.url
    page.goto(page.url)
    drawn(page)
    page.wait_for_function(num_lines, arg=6)
    # The brush stays when the view becomes another.
    page.fill("#find", "lr<0.05")
    page.press("#find", "Enter")
    page.wait_for_url("**where=lr*")
    page.wait_for_function(NUM_POINTS, arg=[SCATTER, 21])
    assert "brush.lr=0.02.." in page.url
    chosen = 3
    page.wait_for_function(num_lines, arg=chosen)
    figure(page, PARALLEL).get_by_role("button", name="Select these").press("Enter")
    assert page.locator("#num-selected").inner_text() == f"{chosen} runs selected"
    faint = "() => [...document.querySelectorAll('.points path')].filter((one) => one.style.opacity === '0.15').length"
    assert page.evaluate(faint) == 21 - chosen
    page.keyboard.press("Escape")
    assert page.evaluate(faint) == 0


@pytest.mark.slow
def test_chart_is_added_changed_and_removed_by_keys(watched, serve, folder):
    page = watched().page
    page.goto(f"{serve(folder)}/runs")
    page.wait_for_selector("tr[data-run]")
    page.keyboard.press("a")
    page.locator("#panel-kind").select_option("scatter")
    for name, text in (("x", "lr"), ("y", "result")):
        page.locator("#panel-dialog").get_by_label(name, exact=True).fill(text)
    page.keyboard.press("Enter")
    figure(page, "scatter(lr, result)").locator(".points path").first.wait_for()
    assert urllib.parse.parse_qs(page.url.partition("?")[2])["panel"] == ["scatter(lr, result)"]
    figure(page, "scatter(lr, result)").locator("[data-arrange=change]").press("Enter")
    assert page.locator("#panel-kind").input_value() == "scatter"
    page.locator("#panel-dialog").get_by_label("colour").fill(EVIL_FIELD)
    page.keyboard.press("Enter")
    changed = f"scatter(lr, result, {EVIL_FIELD})"
    figure(page, changed).locator(".points path").first.wait_for()
    assert page.locator("figure[data-chart]").count() == 1
    assert figure(page, changed).locator(".colorbar, .cbtitle").count()
    figure(page, changed).locator("[data-arrange=pin]").press("Enter")
    page.wait_for_function("() => !document.querySelector('figure[data-chart]')")
    assert "panel" not in page.url


# The room of parallel coordinates, their width, and the texts that leave them or the gap to the next axis.
OVERFLOW = """(title) => {
    const svg = document.querySelector(`figure[data-panel="${CSS.escape(title)}"] .scrolling > svg`);
    const box = svg.getBoundingClientRect();
    const zones = [...svg.querySelectorAll(".zone")].map((one) => one.getBoundingClientRect());
    const axes = zones.map((one) => one.left + one.width / 2);
    const out = [...svg.querySelectorAll("text")].filter((text) => {
        const one = text.getBoundingClientRect();
        const next = axes.find((x) => x > one.left) ?? box.right;
        const end = text.getAttribute("font-size") === "10.5" ? next : box.right;  // a tick ends before the next axis
        return one.left < box.left - 1 || one.right > end + 1 || one.top < box.top - 1;
    });
    return [svg.parentElement.clientWidth, box.width, out.map((one) => one.textContent), axes.length];
}"""


@pytest.mark.slow
def test_parallel_coordinates_are_as_wide_as_their_panel(watched, serve, folder):
    page = watched().page
    many = "parallel(lr, kind, start_time, experiment.name, val/loss.min, result)"
    for width, title in ((1280, PARALLEL), (1280, many), (700, many), (360, many)):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(address(serve(folder), title, layout="charts"))
        figure(page, title).scroll_into_view_if_needed()
        drawn(page)
        room, drawn_width, outside, num_axes = page.evaluate(OVERFLOW, title)
        assert (drawn_width, outside) == (pytest.approx(room, abs=1), [])
        assert num_axes == title.count(",") + 1


@pytest.mark.slow
def test_charts_fit_a_phone_and_refusals_are_read(watched, serve, folder):
    watch = watched(viewport={"width": 360, "height": 740})
    page = watch.page
    titles = [SCATTER, PARALLEL, "importances(status)"]
    page.goto(address(serve(folder), *titles, layout="charts"))
    for title in titles:
        figure(page, title).scroll_into_view_if_needed()
        page.wait_for_function(
            '(title) => document.querySelector(`figure[data-panel="${CSS.escape(title)}"]`).dataset.ready', arg=title
        )
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert "got 0 runs with a number as status" in figure(page, "importances(status)").locator(".problem").inner_text()
    watch.errors[:] = [error for error in watch.errors if "409" not in error]
