"""The contract of a store (`sacristan.runs.stores.contract`), kept by a folder, a database and a third store.

The third store is `tests/sqlite_store.py`, which is found by an entry point, as that of an installed package is.
"""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Table
from sacristan.runs import DiscardedError, FilterError, Removed, RunNotFoundError, StoreError, copy, open_store
from sacristan.runs.stores.changes import StagedRun
from sacristan.runs.stores.contract import PARTS, Backend, Documents
from sacristan.runs.transfer.copying import stage

pytestmark = pytest.mark.usefixtures("third_store")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with four runs, in which a run can have anything that a store must keep."""
    folder = tmp_path_factory.mktemp("recorded")
    ex = Experiment("contract", base_dir=folder, save_git_info=False, system_metrics_s=None)
    ex.observers.append(FileObserver(folder / "store"))

    @ex.config
    def config():
        lr = 0.1
        model = {"name": "cnn", "sizes": [1, 2]}
        fails = False

    @ex.main
    def run(_run, lr, fails):
        print("hello ünd goodbye")
        for step in range(20):
            _run.log_scalar("train/loss", lr / (step + 1), step)
        _run.log_scalar("val.accuracy", lr, 10.5)
        _run.info["found"] = {"best": 3, "when": None}
        (folder / "model.txt").write_text(f"a model of {lr}")
        _run.add_artifact(folder / "model.txt", metadata={"lr": lr})
        _run.open_resource(folder / "model.txt").close()
        _run.log_media("cases", Table(["a", "b"], [[1, "x"], [2, "y"]]), step=1)
        _run.log_artifact("weights", folder / "model.txt", "model")
        if fails:
            raise ValueError("it failed")
        return lr * 2

    for lr in (0.3, 0.1, 0.2):
        ex.run(config_updates={"lr": lr})
    with pytest.raises(ValueError, match="it failed"):
        ex.run(config_updates={"fails": True})
    with open_store(folder / "store") as store:
        store.tag(store.get("1"), ["best"])
        store.write_note(store.get("1"), "a note")
        store.rename(store.get("2"), "wide")
    return folder / "store"


@pytest.fixture
def store(where):
    with open_store(where, create=True) as opened:
        yield opened


@pytest.fixture
def filled(store, recorded):
    """A store that received the recorded runs, one after the other."""
    with open_store(recorded) as origin:
        for number in ("1", "2", "3", "4"):
            copy(origin.get(number), store)
    return store


@pytest.fixture
def origin(recorded):
    with open_store(recorded) as opened:
        yield opened


def points(series):
    return [part.tolist() for part in (series.steps, series.values, series.times)]


def comparable(run):
    """Return all that a run holds, without what each store names on its own."""
    own = {"_id", "copied_from", "delivered", "experiment", "resources", "artifacts", "checkpoints", "folder", "cwd"}
    own |= {"artifacts_logged", "artifacts_used", "artifact_details", "artifact_paths", "lease", "notified"}
    own |= {name for name in run.document if name.endswith("_file")}
    parts = {name: dict(run.get(name) or {}) for name in PARTS}
    parts["info"].pop("metrics", None)  # which a database has for other programs
    # A database has commas for dots in the names of files.
    parts["provenance"] = {name: parts["provenance"].get(name) for name in ("git", "packages")}
    return {
        "document": {name: value for name, value in run.document.items() if name not in own},
        "parts": parts,
        "status": run.status,
        "metrics": {name: points(run.metric(name)) for name in run.metrics},
        "files": {
            kind: [(f.name, f.read()) for f in run.stored(kind)] for kind in ("sources", "resources", "artifacts")
        },
        "details": {name: one.get("metadata") for name, one in run.artifact_details().items()},
        "media": [(entry, [content.read() for content in contents]) for entry, contents in run.media_entries()],
        "output": run.read_output(),
        "values": run.odd_values(),
        "notes": run.notes(),
        "versions": [entry["digest"] for entry in run.document.get("artifacts_logged", ())],
    }


# Reading


@pytest.mark.parametrize("number", ["1", "4"])
def test_run_comes_back_from_every_store_as_it_was(filled, origin, number):
    found, expected = comparable(filled.get(number)), comparable(origin.get(number))
    for name in expected:
        assert found[name] == expected[name], name


def test_parts_of_an_output_are_read_from_either_end(filled, origin):
    run, text = filled.get("1"), origin.get("1").read_output()[0]
    assert run.read_output(3, 5) == (text[3:8], 8)
    assert run.read_output(-4) == (text[-4:], len(text))
    assert run.read_output(len(text) + 5)[0] == b""


@pytest.mark.parametrize(
    "question",
    [
        {"filter": "lr<0.25"},
        {"filter": ["lr>=0.1", "status=COMPLETED"], "sort": "lr"},
        {"filter": {"$or": [{"lr": 0.3}, {"fails": True}]}, "sort": "-id"},
        {"filter": {"$nor": [{"result": {"$gt": 0.3}}]}, "sort": "result"},
        {"filter": "val.accuracy.max>0.15", "sort": "-val.accuracy.max"},
        {"filter": "train/loss.last_step=19", "limit": 2},
        {"filter": "model.name~^c", "limit": 2, "offset": 1, "sort": "id"},
        {"filter": "tags.best=True"},
        {"filter": "display_name=wide"},
        {"filter": "info.found.best=3", "sort": "-duration"},
        {"filter": "id in (2, 4)", "sort": "id"},
        {"filter": [("model.sizes", "==", [1, 2])], "sort": "-lr"},
        {"filter": "status=FAILED"},
    ],
)
def test_question_has_the_same_answer_in_every_store(filled, origin, question):
    found, expected = filled.find(**question), origin.find(**question)
    assert [run.uid for run in found] == [run.uid for run in expected]
    assert expected
    if "limit" not in question:
        assert filled.count(question["filter"]) == len(expected)
    assert filled.count(question["filter"], limit=1) == 1


def test_columns_are_those_of_the_record(filled, origin):
    columns = ["lr", "model", "result", "status", "val.accuracy.max", "duration", "display_name", "missing.entry"]
    rows = [[run.get(name) for name in columns] for run in filled.find(sort="id", columns=columns[:-1])]
    assert rows == [[run.get(name) for name in columns] for run in origin.find(sort="id")]


def test_runs_are_got_by_id_and_by_uid(filled, origin):
    uid = origin.get("2").uid
    found = filled.backend.get(["2", uid, "9", "no such", ""])
    assert {asked: row.id for asked, row in found.items()} == {"2": "2", uid: "2"}
    assert [filled.get(key).id for key in ("2", uid, uid[:30], "latest")] == ["2", "2", "2", "4"]
    with pytest.raises(RunNotFoundError, match="there is no run '9'"):
        filled.get("9")


def test_fields_are_those_of_the_runs(filled):
    assert {"config.lr", "summary.train/loss.min", "result", "status"} <= set(filled.fields())
    known = {name: filled.backend.fields(name) for name in ("config.model", "config.lr", "config.l", "tags.best")}
    assert known == {
        "config.model": ["config.model"],
        "config.lr": ["config.lr"],
        "config.l": [],
        "tags.best": ["tags.best"],
    }


def test_many_runs_are_read_as_each_by_itself(filled):
    alone = [filled.get(id) for id in ("3", "1", "4")]
    together = [filled.get(id) for id in ("3", "1", "4")]
    names = ["config", "summary", "metrics", "start_time", "meta.seed"]
    filled.prefetch(together, names)
    for run, same in zip(together, alone, strict=True):
        assert (run.config, run.summary, run.metrics) == (same.config, same.summary, same.metrics)
        assert run.get("start_time") == same.get("start_time")
    for run, series in filled.backend.series(together, "train/loss"):
        assert points(series) == points(run.metric("train/loss"))
    assert [run.id for run, _ in filled.backend.series(together, "none")] == ["3", "1", "4"]
    versions = filled.points_versions(together, "train/loss")
    assert versions == filled.points_versions(alone, "train/loss")
    assert filled.unreadable() == []


def test_versions_of_artifacts_are_kept_with_the_runs_that_made_them(filled, origin, tmp_path):
    assert filled.artifacts() == ["weights"]
    versions, expected = filled.artifact_versions("weights"), origin.artifact_versions("weights")
    assert [(each.version, each.digest, each.made_by) for each in versions] == [
        (each.version, each.digest, each.made_by) for each in expected
    ]
    assert [each.version for each in filled.backend.artifact_versions("weights", 2)] == [2]
    assert filled.artifact_lineage("weights", 1).made_by == expected[0].made_by
    assert filled.artifact_lineage("weights", 9).made_by == ()
    assert filled.artifact_versions("../weights") == []
    [entry] = filled.get("3").document["artifacts_logged"]
    version = filled.get("3").fetch_version(entry, tmp_path / "other")
    with version.stored(version.files[0]) as stream:
        assert stream.read() == b"a model of 0.2"
    with pytest.raises(StoreError):
        filled.backend.fetch_version({**entry, "digest": "0" * 64}, tmp_path / "other")


# Changing


def test_run_is_added_once_by_many_at_once_and_ids_follow_each_other(where, recorded, store):
    def add(number):
        with open_store(recorded) as origin, open_store(where) as target:
            added = copy(origin.get(str(number % 4 + 1)), target)
            return added.run.uid, added.run.id, added.is_new

    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(add, range(8)))
    assert len({uid for uid, _, _ in added}) == len({id for _, id, _ in added}) == len(store) == 4
    assert sum(is_new for _, _, is_new in added) == 4
    assert sorted(run.id for run in store.find()) == ["1", "2", "3", "4"]


def test_damaged_run_is_not_added_at_all(store, origin):
    with store.staging() as staging:
        staged = stage(origin.get("1"), staging)
        (staged.folder / "run.json").write_text("{")
        with pytest.raises(StoreError):
            store.add(StagedRun(staged.folder, staged.uid))
    assert store.find() == []
    assert [run.uid for run in [copy(origin.get("1"), store).run]] == [staged.uid]


def test_folder_for_runs_to_add_is_gone_afterwards(store):
    with store.staging() as staging:
        assert list(staging.iterdir()) == []
    assert not staging.exists()
    home = store.backend.staging_home
    assert home is None or not home.exists()


def test_what_runs_name_is_not_reclaimed(filled):
    before = [comparable(run) for run in filled.find(sort="id")]
    filled.backend.reclaim(Removed(), 0)
    assert [comparable(run) for run in filled.find(sort="id")] == before


def test_documents_are_changed_by_one_at_a_time(where, store):
    def count(_):
        with open_store(where) as mine:
            for _ in range(10):
                assert mine.backend.documents.change("views", "counter", lambda now: {"n": (now or {"n": 0})["n"] + 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    documents: Documents = store.backend.documents
    assert documents.read("views") == documents.read("views", names=["counter"]) == {"counter": {"n": 40}}
    with pytest.raises(ZeroDivisionError):
        documents.change("views", "counter", lambda now: {"n": now["n"] // 0})
    assert not documents.change("views", "counter", lambda now: now)
    assert documents.read("views", names=["counter"])["counter"] == {"n": 40}
    assert documents.change("views", "counter", lambda _: None)
    assert not documents.change("views", "counter", lambda _: None)
    assert documents.read("views") == documents.read("views", names=["counter"]) == {}


def test_notes_are_kept_with_their_authors(filled):
    run = filled.tag(filled.get("3"), ["new", "old"], [])
    run = filled.rename(filled.write_note(filled.tag(run, [], ["old"]), "text"), "a name")
    run = filled.paint(run, "#d62728")
    assert (run.tags, run.note, run.display_name, run.display_colour) == (["new"], "text", "a name", "#d62728")
    assert [change["what"] for change in run.changes] == [
        "tags: +new +old",
        "tags: -old",
        "note: text",
        "display name: a name",
        "display colour: #d62728",
    ]
    with pytest.raises(FilterError, match="got the colour 'red', expected one such as #d62728"):
        filled.paint(run, "red")
    assert filled.paint(run, "").display_colour == ""
    assert [found.id for found in filled.find("tags.new=True")] == ["3"]


def test_message_is_claimed_by_one_of_many_and_free_again_if_nobody_took_it(where, filled):
    def claim(_):
        with open_store(where) as mine:
            return mine.messages.claim(mine.get("1"), "dead")

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(claim, range(4))) == [False, False, False, True]
    run = filled.get("1")
    assert not filled.messages.is_unsent(run, "dead")
    filled.messages.note(run, "dead", is_sent=False)
    assert filled.messages.is_unsent(run, "dead")
    assert filled.messages.claim(run, "dead")
    filled.messages.note(run, "dead", is_sent=True)
    assert not filled.messages.is_unsent(run, "dead")
    assert not filled.messages.claim(run, "dead")
    assert filled.messages.claim(run, "failed")


def test_discarded_run_is_nowhere_until_it_comes_back(where, filled, origin):
    before = comparable(filled.get("2"))
    filled.discard([filled.get("2")])
    assert [run.id for run in filled.find(sort="id")] == ["1", "3", "4"]
    assert (filled.count(), filled.backend.get(["2"])) == (3, {})
    [discarded] = filled.trash()
    assert (discarded.id, discarded.uid, discarded.status) == ("2", origin.get("2").uid, "COMPLETED")
    assert discarded.by == filled.author.name
    with pytest.raises(DiscardedError, match=f"run 2 was moved to the trash of .* by {filled.author.name}; bring it"):
        filled.get("2")
    [(_, place)] = filled.backend.trash()
    filled.restore("2")
    with pytest.raises(StoreError, match="no longer in the trash"):
        filled.backend.restore(place)
    after = comparable(filled.get("2"))
    after["notes"]["changes"], changes = before["notes"]["changes"], after["notes"]["changes"]
    after["document"]["changes"] = before["document"]["changes"]
    assert after == before
    assert [change["what"] for change in changes[-2:]] == ["moved to the trash", "restored from the trash"]


def test_removed_run_is_gone_for_all_and_the_others_are_whole(filled, origin):
    run, other = filled.get("1"), comparable(filled.get("3"))
    assert filled.remove([filled.get("1")]).runs == ["1"]
    filled.discard([filled.get("2")])
    assert filled.collect().runs == ["2"]
    assert filled.trash() == []
    for read in (lambda: run.config, lambda: run.document, lambda: run.metrics, lambda: run.lease or run.status):
        with pytest.raises(StoreError):
            read()
    with pytest.raises(StoreError):
        filled.backend.documents.change("notes", "", lambda _: {"note": "lost"}, run.key)
    assert comparable(filled.get("3")) == other
    assert copy(origin.get("1"), filled).is_new


def test_pickled_store_and_run_are_the_same(filled):
    run = pickle.loads(pickle.dumps(filled.get("1")))
    assert (run.uid, run.metric("train/loss").steps.tolist()) == (filled.get("1").uid, list(range(20)))
    assert run.store.where == filled.where
    run.store.close()


def test_contract_has_at_most_25_methods():
    methods = [name for kind in (Backend, Documents) for name, one in vars(kind).items() if callable(one)]
    assert len([name for name in methods if not name.startswith("_")]) <= 25


# A store of another package


def test_store_of_an_unknown_scheme_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(
        StoreError, match="got the store 'ftp://host', expected a folder or a mongodb://, sqlite:// URL"
    ):
        open_store("ftp://host")
    with pytest.raises(StoreError, match=r"there is no file .*none; copy runs into it"):
        open_store(f"sqlite://{tmp_path}/none")


def test_commands_read_and_write_a_store_of_another_package(recorded, tmp_path, capsys):
    url = f"sqlite://{tmp_path}/runs.sqlite"

    def call(*words):
        assert main(["--store", url, *words]) == 0
        return capsys.readouterr().out

    assert main(["--store", str(recorded), "copy", "1", "2", "3", "--to", url]) == 0
    capsys.readouterr()
    listed = json.loads(call("ls", "--json", "--columns", "lr,result"))
    assert {row["id"]: row["lr"] for row in listed} == {"1": 0.3, "2": 0.1, "3": 0.2}
    assert "a note" in call("show", "1")
    assert "0.3" in call("compare", "--metric", "train/loss.min", "--by", "lr")
    assert "model.txt" in call("artifacts", "ls", "1")
    call("tag", "2", "seen")
    call("rm", "3", "--yes")
    call("restore", "3")
    assert main(["--store", url, "copy", "2", "3", "--to", str(tmp_path / "back")]) == 0
    with open_store(tmp_path / "back") as back, open_store(recorded) as origin:
        assert [run.tags for run in back.find(sort="id")] == [["seen"], []]
        assert (
            back.get("2").metric("train/loss").values.tolist() == origin.get("3").metric("train/loss").values.tolist()
        )


def test_board_shows_a_store_of_another_package(recorded, tmp_path):
    from starlette.testclient import TestClient

    from sacristan.runs.board.serving import create_app

    url = f"sqlite://{tmp_path}/runs.sqlite"
    with open_store(recorded) as origin, open_store(url, create=True) as target:
        for number in ("1", "2"):
            copy(origin.get(number), target)
    with TestClient(create_app(lambda: open_store(url)), base_url="http://127.0.0.1") as client:
        assert "contract" in client.get("/runs").text
        assert "train/loss" in client.get("/runs/1").text
        assert client.get("/compare", params={"run": ["1", "2"]}).status_code == 200


def test_content_of_a_file_is_a_stream(filled):
    [content] = filled.get("1").artifacts.values()
    with content.open() as stream:
        assert stream.read() == b"a model of 0.3"
