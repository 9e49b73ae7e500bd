"""The pages of sweeps, over sweeps in a folder and in a real MongoDB."""

import contextlib
import dataclasses
import hashlib
import json
import math
import re
import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from markupsafe import escape

from sacristan.observers.mongo import Destination
from sacristan.observers.record.schema import FORMAT
from sacristan.runs import MissingExtraError, SweepError, open_store
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study import Study, study_storage
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.study.optuna_extensions import _FileJournal
from sacristan.runs.sweeps.views import SweepReader, Watcher, importances_of, read_definitions

EVIL = "<img src=x onerror=alert(1)>"
SPEC = {
    "method": "random",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {
        "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
        "width": {"values": [16, 32, 64]},
        "kind": {"values": ["a", EVIL]},
    },
}
# Storages that are not read, by the id of their sweep.
ELSEWHERE = {
    "outside": "sqlite:////nowhere/study.db",
    "above": "sqlite:///../../study.db",
    "missing": "sqlite:///missing.db",
    "memory": "sqlite://",
    "text": "sqlite:///text.db",
    "empty": "sqlite:///empty.db",
    "server": "postgresql://user:password@192.0.2.1/studies",
}


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


def make_sweep(place, id="first", num=8, reported=range(3), **entries):
    """Make a sweep of which one trial was pruned, one failed, one is running, and the others are complete."""
    spec = read_spec({**SPEC, "run_cap": 20})
    defaults = {
        "settings": (),
        "options": (),
        "seed": 0,
        "count": None,
        "storage": "",
        "created": "2026-01-02T03:04:05",
    }
    where = {"script": "exp.py", "module": "", "base": "/", "cwd": "/"}
    definition = Definition(id=id, experiment="digits", spec=spec.document, **{**where, **defaults, **entries})
    with contextlib.closing(place.home(id)) as home:
        home.create(definition)
        if not num:
            return
        study = Study(home, definition, spec)
        home.beat("agent")
        for number in range(num):
            home.claims(number, "agent").add(0)
            point = study.take(number)
            for step in reported:
                study.report(number, step, 1 / (step + 1 + number) if step != 501 else math.nan if number else 70.0)
            if number == num - 1:
                continue
            state = {2: "PRUNED", 3: "FAIL"}.get(number, "COMPLETE")
            loss = point.parameters["lr"] + point.parameters["width"] / 64
            study.finish(number, state, (loss,) if state == "COMPLETE" else (), runs=[f"{number:032x}"], reason=EVIL)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    make_sweep(Place(folder))
    make_sweep(Place(folder), "own", 4, storage=f"sqlite:///{folder}/study.db")
    for id, storage in ELSEWHERE.items():
        make_sweep(Place(folder), id, 0, storage=storage, cwd=str(folder))
    (folder / "text.db").write_text("no database")
    (folder / "empty.db").write_bytes(b"")
    return folder


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def sweeps(request, swept, mongo_url):
    if request.param == "folder":
        yield str(swept)
        return
    database = request.getfixturevalue("database")
    place = Place(swept, Destination(mongo_url, database.name).address)
    make_sweep(place)
    for id, storage in ELSEWHERE.items():
        make_sweep(place, id, 0, storage=storage, cwd=str(swept))
    yield f"{mongo_url.rstrip('/')}/{database.name}"


def test_sweeps_are_listed(client_of, sweeps):
    text = client_of(sweeps).get("/sweeps").text
    assert '<a href="/sweeps/first">first</a>' in text
    assert "val/loss" in text
    assert EVIL not in text


def test_sweep_that_cannot_be_read_is_listed_with_the_reason(client_of, tmp_path):
    make_sweep(Place(tmp_path), num=0)
    (tmp_path / "sweeps" / "first" / "sweep.json").write_text(f"{{{EVIL}")
    text = client_of(tmp_path).get("/sweeps").text
    assert "sweep.json: cannot be read (Expecting property name" in text
    assert "There is no sweep" not in text


def test_thinned_reports_keep_their_extremes_their_gaps_and_their_end(client_of, tmp_path):
    make_sweep(Place(tmp_path), num=2, reported=range(1_003))
    spike, gap = client_of(tmp_path).get("/sweep/data", params={"id": "first"}).json()["trials"]
    for trial in (spike, gap):
        assert len(trial["reports"]) <= 304
        assert trial["reports"][0][0] == 0
        assert trial["reports"][-1] == [1_002, pytest.approx(1 / (1_003 + trial["number"]))]
    assert [501, 70.0] in spike["reports"]
    assert [501, None] in gap["reports"]


def test_a_sweep_is_shown_with_all_of_its_trials(client_of, sweeps):
    answer = client_of(sweeps).get("/sweeps/first")
    assert answer.status_code == 200
    assert "sweep first: 7 of 20 done, 1 running, 1 pruned, 1 failed" in answer.text
    assert answer.text.count("<tr data-number=") == 8
    assert answer.text.count('<span class="tag">best</span>') == 1
    assert ">not in this store<" in answer.text
    assert "Its run is not in this store." in answer.text
    assert EVIL not in answer.text


def test_best_trial_leads_to_its_run_its_checkpoint_and_the_commands_that_use_it(client_of, swept, tmp_path):
    folder = shutil.copytree(swept, tmp_path / "swept")
    number = re.search(r"<h2>Best trial: (\d+) ", client_of(folder).get("/sweeps/first").text)[1]
    run = folder / "7"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "best.pt").write_bytes(b"weights")
    (run / "config.json").write_text("{}")
    document = {"format": FORMAT, "uid": f"{int(number):032x}", "experiment": {"name": EVIL, "sources": []}, "meta": {}}
    document |= {
        "command": "main",
        "status": "COMPLETED",
        "command_line": ["exp.py", EVIL],
        "host": {},
        "artifacts": [],
    }
    (run / "run.json").write_text(json.dumps({**document, "start_time": "2026-01-01T00:00:00", "resources": []}))
    (run / "notes.json").write_text(json.dumps({"display_name": EVIL}))
    text = client_of(folder).get("/sweeps/first").text
    assert EVIL not in text
    assert '<a href="/runs/7">run 7' in text
    assert 'href="/runs/7?tab=files&amp;kind=checkpoint&amp;name=checkpoints%2Fbest.pt"' in text
    with contextlib.closing(Place(folder).home("first")) as home:
        watcher = Watcher(home)
        again = watcher.definition.command_line(watcher.study.points()[int(number)].parameters)
    assert f"<code>{escape(again)}</code>" in text
    for command in ("evaluate", "predict", "export"):
        settings = f"{command} with {run}/config.json checkpoint.path={run}/checkpoints/best.pt"
        assert f"<code>python exp.py {settings}" in text
        assert f"python exp.py {settings}" in client_of(folder).get("/runs/7").text


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_trials_are_named_by_the_ids_of_their_runs(request, client_of, tmp_path, mongo_url, kind):
    where, place = str(tmp_path), Place(tmp_path)
    (tmp_path / "40").mkdir()
    document = {"experiment": {"name": "e"}, "command": "main", "uid": f"{1:032x}", "status": "COMPLETED"}
    (tmp_path / "40" / "run.json").write_text(json.dumps(document))
    if kind == "database":
        database = request.getfixturevalue("database")
        database.runs.insert_one({"_id": 40, **document})
        where, place = (
            f"{mongo_url.rstrip('/')}/{database.name}",
            Place(tmp_path, Destination(mongo_url, database.name).address),
        )
    make_sweep(place)
    client = client_of(where)
    assert client.get("/sweeps/first").text.count('<a href="/runs/40">run 40</a>') == 1
    trials = client.get("/sweep/data", params={"id": "first"}).json()["trials"]
    assert [trial["runs"] for trial in trials] == [[], ["40"], *[[]] * 6]


def test_data_of_the_plots(client_of, sweeps):
    found = client_of(sweeps).get("/sweep/data", params={"id": "first"}).json()
    assert found["objectives"] == [{"name": "val/loss", "goal": "minimize"}]
    assert sorted(found["parameters"]) == sorted(SPEC["parameters"])
    states = [trial["state"] for trial in found["trials"]]
    assert states == ["COMPLETED"] * 2 + ["PRUNED", "FAILED"] + ["COMPLETED"] * 3 + ["RUNNING"]
    assert [len(trial["reports"]) for trial in found["trials"]] == [3] * 8
    assert found["living"]


def test_what_is_not_there_or_lies_elsewhere_is_said(client_of, sweeps, swept, monkeypatch):
    monkeypatch.chdir(swept)
    client = client_of(sweeps)
    for id, problem in (
        ("none", "there is no sweep none"),
        ("outside", "its study is in /nowhere/study.db, neither beside the runs nor below the folder"),
        ("above", f"its study is in {swept.parent.parent}/study.db, neither beside the runs nor below the folder"),
        ("missing", f"its study is in {swept}/missing.db, which does not exist"),
        ("memory", "its study is in &#39;sqlite://&#39;, expected a SQLite file"),
        ("text", f"{swept}/text.db cannot be read as an Optuna storage"),
        ("empty", f"{swept}/empty.db cannot be read as an Optuna storage"),
        ("server", "its study is on a server (postgresql), and a record alone makes nobody connect to one"),
    ):
        answer = client.get(f"/sweeps/{id}")
        assert answer.status_code == 409
        assert problem in answer.text
        assert "password" not in answer.text
    for id in ("a b", "../first", ""):
        assert "sweep.id: got" in client.get("/sweep/data", params={"id": id}).json()["error"]


def test_reading_writes_nothing(swept):
    def digest():
        files = sorted(path for path in swept.rglob("*") if path.is_file())
        return [(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]

    before = digest()
    with open_store(swept) as store:
        definitions, problems = read_definitions(store)
        assert ({one.id for one in definitions}, problems) == ({"first", "own", *ELSEWHERE}, {})
        reader = SweepReader()
        assert len(reader.read(store, "first").status.points) == 8
        # In a storage of its own, which lies beside the runs.
        assert [point.state for point in reader.read(store, "own").status.points.values()][2:] == ["PRUNED", "RUNNING"]
        [importances] = importances_of(store, "first")
        assert all(sorted(of) == sorted(SPEC["parameters"]) for of in importances.values())
    assert digest() == before


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_another_look_at_a_sweep_reads_what_is_new(request, tmp_path, monkeypatch, kind):
    def destination():
        return Destination(request.getfixturevalue("mongo_url"), request.getfixturevalue("database").name)

    place = Place(tmp_path, "" if kind == "folder" else destination().address)
    make_sweep(place)
    read = []
    if kind == "folder":
        real = _FileJournal.read_logs

        def read_logs(self, log_number_from):
            for log in real(self, log_number_from):
                read.append(log)
                yield log

        monkeypatch.setattr(_FileJournal, "read_logs", read_logs)
        num_entries = 50
    else:
        real_trial = study_storage._trial
        monkeypatch.setattr(study_storage, "_trial", lambda *trial: read.append(trial) or real_trial(*trial))
        num_entries = 8
    url = place.store or str(tmp_path)
    with open_store(url) as store, contextlib.closing(SweepReader()) as reader:
        assert reader.read(store, "first").status.points[7].state == "RUNNING"
        assert len(read) >= num_entries
        read.clear()
        assert len(reader.read(store, "first").status.points) == 8
        assert len(read) <= 1  # the trial that is running
        with contextlib.closing(place.home("first")) as home:
            study = Study(home, home.definition(), read_spec(home.definition().spec))
            study.progress()
            read.clear()
            study.finish(7, "COMPLETE", (0.5,))
            assert reader.read(store, "first").status.points[7].values == (0.5,)
            assert len(read) < 10
            # Of one that is another by now, all is read again.
            home.replace(dataclasses.replace(home.definition(), count=30), home.definition())
            assert reader.read(store, "first").definition.count == 30
            assert len(read) >= num_entries


def test_a_sweep_that_nobody_has_begun_is_said(tmp_path):
    spec = read_spec(SPEC)
    definition = Definition("new", "digits", spec.document, "exp.py", "", "/", "/", (), (), 0, None, "", "")
    with contextlib.closing(Place(tmp_path).home("new")) as home:
        home.create(definition)
    with open_store(tmp_path) as store, pytest.raises(SweepError, match="no agent has opened its study yet"):
        SweepReader().read(store, "new")


def test_optuna_missing_is_one_line(client_of, swept, monkeypatch):
    @contextlib.contextmanager
    def lacking(extra, what):
        try:
            raise ImportError("no module", name="optuna")
        except ImportError as error:
            raise MissingExtraError(f"{what} needs the package {error.name!r}; [{extra}]") from error
        yield

    monkeypatch.setattr("sacristan.runs.sweeps.study.needing_extra", lacking)
    answer = client_of(swept).get("/sweeps/first")
    assert answer.status_code == 409
    assert "a sweep needs the package &#39;optuna&#39;" in answer.text


@pytest.mark.slow
def test_brushing_filters_the_table_and_plots_are_saved(watched, serve, sweeps, tmp_path):
    page = watched().page
    page.goto(f"{serve(sweeps)}/sweeps/first")
    page.wait_for_function("() => document.getElementById('sweep').dataset.ready")
    assert page.locator("#parallel path").count() == 5
    assert page.locator("#slices .main-svg").count() >= 3
    zone = page.locator(".zone[data-axis='val/loss']")
    zone.scroll_into_view_if_needed()
    box = zone.bounding_box()
    x, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"]
    page.mouse.move(x, bottom - 1)
    page.mouse.down()
    page.mouse.move(x, bottom - 40, steps=3)
    page.mouse.up()
    shown = page.locator("#trials tbody tr:visible").count()
    assert 1 <= shown < 5
    assert page.locator("#count").inner_text() == str(shown)
    page.mouse.click(x, bottom - 10)
    assert page.locator("#trials tbody tr:visible").count() == 8
    for kind, begins in (("png", b"\x89PNG"), ("svg", b"<svg"), ("csv", b"trial,")):
        with page.expect_download() as download:
            page.locator(f"[data-save={kind}]").click()
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(begins)
    assert page.locator("#importances .plot .bars").count() >= 1
    # The heat map opens with the two most important parameters; parallel coordinates take all of the width.
    ranked = page.locator("#importances .yaxislayer-above text").all_text_contents()[::-1]
    assert [page.locator(f"#heat-{axis}").input_value() for axis in "xy"] == ranked[:2]
    widths = [page.locator(f"#parallel {one}").bounding_box()["width"] for one in ("svg", ".plot")]
    assert widths[0] == pytest.approx(widths[1], abs=1)
    page.locator("#heat-x").select_option("width")
    page.locator("#heat-y").select_option("kind")
    assert "heat-x=" in page.url or "heat-y=" in page.url


@pytest.mark.slow
def test_trials_are_chosen_by_keys_the_address_keeps_them_and_the_page_is_accessible(watched, serve, sweeps):
    page = watched().page
    page.goto(f"{serve(sweeps)}/sweeps/first")
    page.wait_for_function("() => document.getElementById('sweep').dataset.ready")
    page.locator("#parallel summary").press("Enter")
    while page.evaluate("document.activeElement.ariaLabel") != "lr, at least":
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('.ranges') !== null")
    at = page.locator("#trials thead th").all_inner_texts().index("lr") - 1
    lowest = page.locator("#trials tbody tr", has_text="completed").first.locator("td").nth(at).inner_text()
    page.keyboard.type(lowest)
    assert page.locator("#parallel g rect").count() == 1
    page.get_by_label(EVIL).press("Space")
    page.locator("#heat-y").select_option("kind")
    rows = page.locator("#trials tbody tr:visible").all_inner_texts()
    assert page.locator(".brushed").inner_text().startswith(f"{len(rows)} trial")
    assert all(EVIL not in row for row in rows)
    assert page.locator("#trials tbody tr").count() == 8
    assert f"brush.lr={lowest}..&brush.kind=a" in page.url
    address = page.url
    page.goto("about:blank")
    page.goto(address)  # which has the ranges open
    page.wait_for_function("() => document.getElementById('sweep').dataset.ready")
    assert page.locator("#trials tbody tr:visible").all_inner_texts() == rows
    assert page.locator("#heat-y").input_value() == "kind"
    assert page.get_by_label("lr, at least").input_value() == lowest
    # The heat map as a table: as many trials as there are in all of its cells.
    page.locator("#heat summary").click()
    cells = page.locator("#heat-table td").all_inner_texts()
    num_rows, num_columns = page.locator("#heat-table tbody tr").count(), page.locator("#heat-table thead th").count()
    assert [page.locator(f"#heat .{axis}tick text").count() for axis in "xy"] == [num_columns, num_rows]
    assert sum(int(found) for cell in cells for found in re.findall(r"\((\d+)\)", cell)) == 5
    page.get_by_role("button", name="Choose all trials").press("Enter")
    assert page.locator("#trials tbody tr:visible").count() == 8
    assert "brush" not in page.url
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
