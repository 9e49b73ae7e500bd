"""The page that compares runs."""

import json
import re
import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Image, PointCloud
from sacristan.runs import copy, open_store

TABS = ("config", "sources", "media", "statistics")


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


@pytest.mark.slow
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
    for statistic in ("last", "min", "max"):
        assert f'<option value="val/accuracy.{statistic}">' in text
    text = client_of(store).get("/compare", params={**query, "by": "nope"}).text
    assert "none of the runs has" in text


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


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
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


@pytest.mark.slow
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
@pytest.mark.parametrize("tab", TABS)
def test_page_is_accessible(watched, serve, changed, recorded, tab):
    page = watched().page
    page.goto(f"{serve(changed if tab in ('sources', 'media') else recorded)}/compare?run=1&run=2&tab={tab}")
    assert_accessible(page)
