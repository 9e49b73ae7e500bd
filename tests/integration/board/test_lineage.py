"""Runs that come from others: their curves, their lineage, and the last good run."""

import json
import shutil
from contextlib import suppress

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.runs import Run, open_store
from sacristan.runs.board.lineage import lineage_of
from tests.integration.board.conftest import database_of
from tests.integration.board.test_workspace import assert_accessible, drawn, panel


def record_family(folder):
    """Record a run, its fork at step 20, a fork of that at step 30, a reproduction, and a run that fails."""
    ex = Experiment("family", base_dir=folder, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        lr = 0.1
        fails = False
        first = 1

    @ex.main
    def main(_run, lr, first, fails):
        for step in range(first, 41):
            _run.log_scalar("train/loss", lr + 1 / step, step)
            if step % 10 == 0:
                _run.log_scalar("val/loss", lr * step, step)
        if fails:
            raise RuntimeError("no luck")
        return lr

    ex.observers.append(FileObserver(folder / "store"))
    uids = []
    for number, (parent, first) in enumerate(((None, 1), (0, 21), (1, 31), (0, 1), (None, 1))):
        updates = {"lr": number / 10, "first": first, "fails": number == 4}
        meta = {} if parent is None else {"parent": uids[parent]}
        with suppress(RuntimeError):
            ex.run(config_updates=updates, meta_info=meta)
        uids.append(ex.current_run.meta_info["uid"])
    start_from(folder / "store" / "2", "/x/step-000000020.pt")
    start_from(folder / "store" / "3", "/x/last.pt")


def start_from(folder, state):
    """Write into a record from which state the run was started."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "checkpoint": {"resume": state}}))


@pytest.fixture(scope="module")
def family_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    record_family(folder)
    return folder / "store"


@pytest.fixture(scope="module")
def family_database(family_folder, mongo_url):
    yield from database_of(family_folder, mongo_url)


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def family(request, family_folder):
    return str(family_folder) if request.param == "folder" else request.getfixturevalue("family_database")


@pytest.fixture(scope="module")
def kin_folder(tmp_path_factory):
    """The family, named and judged, and two runs that share an artifact."""
    folder = tmp_path_factory.mktemp("kin")
    record_family(folder)
    ex = Experiment("artifacts", base_dir=folder, save_git_info=False, system_metrics_s=None)
    ex.add_config(uses=False)

    @ex.main
    def main(_run, uses):
        _run.use_artifact("data:v1") if uses else _run.log_artifact("data", folder / "data.txt", "dataset")

    (folder / "data.txt").write_text("1")
    ex.observers.append(FileObserver(folder / "store"))
    for uses in (False, True):
        ex.run(config_updates={"uses": uses})
    with open_store(folder / "store") as store:
        uids = [store.get(id).uid for id in "14"]
        store.rename(store.get("2"), "wider <b>")
        store.note_reproduction(store.get("1"), {"verdict": "IDENTICAL", "of": uids[0], "by": uids[1], "by_id": "4"})
    return folder / "store"


@pytest.fixture(scope="module")
def kin_database(kin_folder, mongo_url):
    yield from database_of(kin_folder, mongo_url)


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def kin(request, kin_folder):
    return str(kin_folder) if request.param == "folder" else request.getfixturevalue("kin_database")


def test_curve_of_a_fork_is_joined_to_those_of_its_ancestors(client_of, family):
    client = client_of(family)
    _, found = panel(client, "train/loss", run=["3", "1", "4"], joined="1")
    third, first, reproduction = found["curves"]
    assert third["x"] == list(range(1, 41))
    assert third["y"] == [*(1 / x for x in range(1, 21)), *(0.1 + 1 / x for x in range(21, 31)), *third["y"][30:]]
    assert third["inherited"] == 30
    assert "inherited" not in {**first, **reproduction}
    assert found["notes"] == ["dashed: the points before the start of run 3"]
    _, found = panel(client, "val/loss", run=["2"], joined="1")
    assert (found["curves"][0]["x"], found["curves"][0]["inherited"]) == ([10, 20, 30, 40], 2)
    _, found = panel(client, "val/loss", run=["3"], joined="1", x="time")
    times = found["curves"][0]["x"]
    assert times == sorted(times)
    assert (times[2], times[3] >= 0) == (0, True)
    _, found = panel(client, "val/loss - train/loss", run=["3"], joined="1", x="wall")
    assert (len(found["curves"][0]["x"]), found["curves"][0]["inherited"]) == (4, 3)
    _, found = panel(client, "train/loss", run=["3"])
    assert found["curves"][0]["x"] == list(range(31, 41))
    _, found = panel(client, "train/loss", where="lr>=0", group="fails", joined="1")
    assert not any("inherited" in curve for curve in found["curves"])
    text = client.get("/workspace/points", params={"run": "3", "panel": "train/loss", "joined": "1", "from": "20"}).text
    assert len(text.splitlines()) == 1 + 21
    for run, is_offered in (("3", True), ("1", False)):
        label = client.get(f"/runs/{run}?tab=curves").text.partition('<label id="joined"')[2].partition(">")[0]
        assert ("hidden" not in label) == is_offered


def test_state_in_the_name_ends_the_points_of_the_parent(client_of, tmp_path):
    """The fork logs later than its parent would have."""
    ex = Experiment("late", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)

    @ex.main
    def main(_run):
        for step in steps:
            _run.log_scalar("val/loss", 0.0, step)

    ex.observers.append(FileObserver(tmp_path / "store"))
    steps = [10, 20, 30]
    uid = ex.run().meta_info["uid"]
    steps = [50]
    ex.run(meta_info={"parent": uid})
    start_from(tmp_path / "store" / "2", "/x/step-000000020.pt")
    _, found = panel(client_of(tmp_path / "store"), "val/loss", run=["2"], joined="1")
    assert found["curves"][0]["x"] == [10, 20, 50]


def test_run_that_a_setting_started_from_the_state_of_another_is_its_child(client_of, tmp_path, mongo_url):
    ex = Experiment("by_hand", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    ex.add_config(checkpoint={"resume": None}, first=1)

    @ex.main
    def main(_run, first):
        for step in range(first, 31):
            _run.log_scalar("train/loss", 1 / step, step)

    ex.observers.append(FileObserver(tmp_path / "store"))
    ex.run()
    state = tmp_path / "store" / "1" / "checkpoints" / "step-000000020.pt"
    state.parent.mkdir()
    state.write_bytes(b"")
    ex.run(config_updates={"checkpoint.resume": str(state), "first": 21})
    (tmp_path / "step-000000001.pt").write_bytes(b"")
    ex.run(config_updates={"checkpoint.resume": str(tmp_path / "step-000000001.pt")})  # of no run
    database = database_of(tmp_path / "store", mongo_url)
    for where in (tmp_path / "store", next(database)):
        with open_store(where) as store:
            first, second, third = (store.get(id) for id in "123")
            assert (second.parent.id, [child.id for child in first.children()]) == ("1", ["2"])
            assert third.parent is None
            [edge] = lineage_of(store, second).edges
            assert (edge.first.run.id, edge.second.run.id, edge.relation) == ("1", "2", "fork")
        client = client_of(where)
        assert 'href="/runs/1"' in client.get("/runs/2").text
        _, found = panel(client, "train/loss", run=["2"], joined="1")
        assert (found["curves"][0]["x"], found["curves"][0]["inherited"]) == (list(range(1, 31)), 20)
    database.close()


def test_runs_that_are_each_others_parents_and_damaged_ones_end_the_search(client_of, tmp_path):
    record_family(tmp_path)
    store = tmp_path / "store"
    documents = [json.loads((store / id / "run.json").read_text()) for id in "123"]
    (store / "1" / "run.json").write_text(json.dumps({**documents[0], "parent": documents[2]["uid"]}))
    (store / "2" / "metrics.bin").write_bytes(b"damaged!" * 30)
    client = client_of(store)
    for id in "123":
        code, found = panel(client, "train/loss", run=[id], joined="1")
        assert code == 200 or id == "2", found
        assert client.get(f"/runs/{id}").status_code == 200


def test_plot_joins_forks_and_draws_the_points_before_them_dashed(family, tmp_path, capsys):
    words = ["--store", family, "plot", "3", "--metric", "train/loss", "--joined"]
    assert main([*words, "--json"]) == 0
    curve = json.loads(capsys.readouterr().out)["panels"][0]["curves"][0]
    assert (len(curve["x"]), curve["own_from"]) == (40, 31)
    assert main([*words, "--output", str(tmp_path / "plot.svg")]) == 0
    assert 'id="inherited-0"' in (tmp_path / "plot.svg").read_text()
    capsys.readouterr()
    assert main([*words, "--by", "lr"]) == 1
    assert "joined curves share points" in capsys.readouterr().err


@pytest.mark.slow
def test_switch_joins_curves_and_the_url_keeps_it(watched, serve, family_folder):
    page = watched().page
    page.goto(f"{serve(family_folder)}/runs?run=3")
    drawn(page)
    page.check("#settings [name=joined]")
    page.wait_for_selector("figure .notes:has-text('dashed')")
    assert "joined=1" in page.url
    paths = page.locator("figure[data-panel='train/loss'] svg.lines g[data-key] path")
    paths.nth(1).wait_for(state="attached")
    nums = paths.evaluate_all("paths => paths.map((path) => path.getAttribute('d').match(/[ML]/g).length)")
    dashes = paths.evaluate_all("paths => paths.map((path) => path.getAttribute('stroke-dasharray'))")
    assert (nums, dashes) == ([31, 10], ["2 3", None])
    page.reload()
    drawn(page)
    assert page.is_checked("#settings [name=joined]")
    page.goto(f"{serve(family_folder)}/runs/3?tab=curves")
    drawn(page)
    page.check("#settings [name=joined]")
    page.wait_for_selector("figure .notes:has-text('dashed')")
    assert "joined=1" in page.url
    page.reload()
    page.wait_for_selector("figure .notes:has-text('dashed')")
    assert_accessible(page)


def edges_of(store, id):
    found = lineage_of(store, store.get(id))
    return {(edge.first.label, edge.relation, edge.second.label) for edge in found.edges}


def test_lineage_has_forks_reproductions_and_artifacts(client_of, kin):
    with open_store(kin) as store:
        forks = {("run 1", "fork", "wider <b> (run 2)"), ("wider <b> (run 2)", "fork", "run 3")}
        shared = {("run 6", "made", "data:v1"), ("data:v1", "used", "run 7")}
        assert edges_of(store, "3") == forks
        assert edges_of(store, "1") == forks | {("run 1", "reproduction", "run 4")}
        assert edges_of(store, "4") == {("run 1", "reproduction", "run 4")}
        assert edges_of(store, "6") == edges_of(store, "7") == shared
        assert edges_of(store, "5") == set()
        ranks = {node.label: node.rank for node in lineage_of(store, store.get("1")).nodes.values()}
        assert ranks == {"run 1": 0, "wider <b> (run 2)": 1, "run 3": 2, "run 4": 1}
    text = client_of(kin).get("/runs/3").text
    assert '<a href="/runs/2"><title>wider &lt;b&gt; (run 2)</title>' in text
    assert (
        '<td><a href="/runs/2">wider &lt;b&gt; (run 2)</a></td><td>fork</td><td><a href="/runs/3">run 3</a></td>'
        in text
    )
    assert "/artifacts/data#v1" in client_of(kin).get("/runs/7").text


def test_sessions_of_a_resumed_run_are_nodes_before_its_forks(client_of, family_folder, tmp_path, mongo_url):
    folder = shutil.copytree(family_folder, tmp_path / "store")
    path = folder / "2" / "run.json"
    document = json.loads(path.read_text())
    sessions = [{"start_time": document["start_time"], "status": status} for status in ("DEAD", "INTERRUPTED", "x")]
    path.write_text(json.dumps({**document, "sessions": sessions}))
    expected = {
        ("run 1", "fork", "run 2, session 1"),
        ("run 2, session 1", "resume", "run 2, session 2"),
        ("run 2, session 2", "resume", "run 2"),
        ("run 2", "fork", "run 3"),
    }
    for where in (str(folder), next(copied := database_of(folder, mongo_url))):
        with open_store(where) as store:
            assert edges_of(store, "2") == expected
            ranks = {node.label: node.rank for node in lineage_of(store, store.get("2")).nodes.values()}
            assert ranks == {"run 1": 0, "run 2, session 1": 1, "run 2, session 2": 2, "run 2": 3, "run 3": 4}
        text = client_of(where).get("/runs/2").text
        assert '<text class="kind" x="254" y="37">dead</text>' in text
        assert "<td>resume</td>" in text
    assert list(copied) == []
    path.write_text(json.dumps({**document, "sessions": [{}, "x", *sessions * 5]}))
    with open_store(folder) as store:
        found = lineage_of(store, store.get("2"))
        assert (len([edge for edge in found.edges if edge.relation == "resume"]), found.is_cut) == (10, True)


def test_lineage_reads_no_document_of_another_run(kin, monkeypatch):
    with open_store(kin) as store:
        run, read = store.get("1"), []
        document = Run.document

        def counted(self):
            read.append(self.id)
            return document.func(self)

        monkeypatch.setattr(Run, "document", property(counted))
        for id in ("1", "6"):
            run = store.get(id)
            read.clear()
            lineage_of(store, run)
            assert set(read) == {id}


def test_lineage_of_many_says_that_there_are_more(client_of, tmp_path):
    ex = Experiment("many", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    ex.main(lambda: None)
    ex.observers.append(FileObserver(tmp_path / "store"))
    ex.run()
    document = json.loads((tmp_path / "store" / "1" / "run.json").read_text())
    for number in range(2, 62):
        (tmp_path / "store" / str(number)).mkdir()
        child = {**document, "uid": f"{number:032x}", "parent": document["uid"]}
        (tmp_path / "store" / str(number) / "run.json").write_text(json.dumps(child))
    text = client_of(tmp_path / "store").get("/runs/1").text
    assert "There are more; the first 50 are drawn." in text
    assert text.count("<rect") == 50


def test_failed_run_leads_to_the_last_good_one(client_of, kin):
    text = client_of(kin).get("/runs/5").text
    assert "The last good run of this experiment" in text
    assert "differs in fails, lr" in text
    assert 'href="/compare?run=4&amp;run=5"' in text
    assert '<td class="mono differs">True</td>' in client_of(kin).get("/compare?run=4&run=5").text
    assert "The last good run" not in client_of(kin).get("/runs/4").text


@pytest.mark.slow
def test_lineage_is_followed_by_keys_accessible_and_fits_a_phone(watched, serve, kin):
    page = watched(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True).page
    page.goto(f"{serve(kin)}/runs/1")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    tops = [page.locator(f"[data-live={name}]").bounding_box()["y"] for name in ("result", "metrics", "facts")]
    assert tops == sorted(tops)
    assert tops[2] < page.locator("#note-title").bounding_box()["y"]
    assert_accessible(page)
    page.locator(".lineage a[href='/runs/2']").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/2")
    assert page.input_value("#display-name") == "wider <b>"
    page.locator("summary:has-text('As a table')").click()
    assert page.locator("td:text-is('fork')").first.is_visible()
    page.goto(f"{serve(kin)}/runs/5")
    assert_accessible(page)
