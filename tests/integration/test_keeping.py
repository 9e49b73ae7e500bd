"""Notes, and removal, over every kind of store: ours and stock Sacred's, in folders and in MongoDB."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import signal
import sys
import time
import types
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import bson
import numpy as np
import pymongo
import pytest
import sacred

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Histogram, Image, MongoObserver
from sacristan.observers.record.copies import keep
from sacristan.observers.record.folders import locked
from sacristan.observers.record.identity import lease
from sacristan.runs import FilterError, Removed, RunNotFoundError, StoreError, Words, open_store, sync
from tests.processes import PIPE, Process
from tests.recording import observer_of

KINDS = ("our-files", "our-mongo", "sacred-files", "sacred-mongo")
LONG_AGO = time.time() - 7200


def record(kind, folder, url, name):
    """Record three runs; the first two read the same file, the third one of its own."""
    experiment = Experiment if kind.startswith("our") else sacred.Experiment
    ex = experiment("kept", base_dir=folder, save_git_info=False)
    ex.add_config({"resource": "data.csv", "lr": 0.1})

    @ex.main
    def train(_run, resource, lr):
        ex.open_resource(str(folder / resource)).close()
        for step in range(5):
            _run.log_scalar("train/loss", lr * step, step)
        if kind.startswith("our"):
            _run.log_media("same", Image(np.zeros((4, 4), np.uint8)), 0)
            _run.log_media("own", Histogram([lr]), 0)
        print("trained with", lr)
        (folder / "weights.txt").write_text(f"weights {lr}")
        ex.add_artifact(folder / "weights.txt")

    (folder / "data.csv").write_text("1,2\n")
    (folder / "own.csv").write_text("3,4\n")
    observer = observer_of(kind, folder, url, name)
    ex.observers.append(observer)
    for updates in ({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3, "resource": "own.csv"}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ex.run(config_updates=updates, options={"--capture": "sys"})
    if kind == "sacred-mongo":
        observer.runs.database.client.close()


@pytest.fixture(
    scope="module", params=["our-files", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def recorded(request, tmp_path_factory, mongo_url):
    """Three runs that are recorded once: their kind, folder, a copy of that, and documents by collection."""
    folder, name = tmp_path_factory.mktemp("lab"), f"kept_{uuid.uuid4().hex}"
    record(request.param, folder, mongo_url, name)
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("copy"), dirs_exist_ok=True)
    with pymongo.MongoClient(mongo_url) as client:
        documents = {one: list(client[name][one].find()) for one in client[name].list_collection_names()}
        client.drop_database(name)
    return request.param, folder, copy, documents


@pytest.fixture
def lab(recorded, mongo_url, database):
    """A store with three runs: `where`, the open `store`, `age()` of all contents, `contents()` names."""
    kind, folder, copy, documents = recorded
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    for name, found in documents.items():
        if found:
            database[name].insert_many(found)
    in_folder = kind.endswith("files")
    where = str(folder / "store") if in_folder else f"{mongo_url}/{database.name}"

    def age():
        for path in folder.glob("store/_*/*"):
            os.utime(path, (LONG_AGO, LONG_AGO))
        old = datetime.fromtimestamp(LONG_AGO) - timedelta(days=1)
        database.fs.files.update_many({}, {"$set": {"uploadDate": old}, "$unset": {"used": ""}})

    def contents():
        if in_folder:
            return sorted(path.name for path in folder.glob("store/_*/*") if path.parent.name != "_index")
        return sorted(file["filename"] for file in database.fs.files.find({}))

    with open_store(where) as store:
        yield types.SimpleNamespace(
            kind=kind, folder=folder, where=where, store=store, age=age, contents=contents, database=database
        )


@pytest.fixture
def runs(lab, capsys, monkeypatch):
    monkeypatch.setenv("SACRISTAN_STORE", lab.where)

    def call(*words, code=0):
        assert main(list(words)) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return call


def same(store, id):
    """Return what run `id` holds, to be compared."""
    run = store.get(id)
    return (
        run.config.to_dict() if hasattr(run.config, "to_dict") else dict(run.config),
        run.status,
        run.output,
        run.metric("train/loss").values.tolist(),
        {name: content.read() for name, content in run.artifacts.items()},
        {name: content.read() for name, content in run.sources.items()},
    )


# tag, note


def test_tag_and_note_are_written_found_and_taken_back(lab, runs, capsys, monkeypatch):
    assert runs("tag", "2", "best", "paper-1") == "run 2: best, paper-1\n"
    assert [row["id"] for row in json.loads(runs("ls", "--tag", "best", "--json"))] == ["2"]
    assert runs("tag", "2", "best", "--remove") == "run 2: paper-1\n"
    assert json.loads(runs("tag", "2", "x", "--json"))["tags"] == ["paper-1", "x"]
    assert (main(["note", "2"]), *capsys.readouterr()) == (
        0,
        "",
        "run 2 has no note; write one with: sacristan note 2 'TEXT'\n",
    )
    assert runs("note", "2", "first\nsecond \x1b[31m") == ""
    assert runs("note", "2") == "first\nsecond \\x1b[31m\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("from stdin é\n".encode())))
    runs("note", "2", "-")
    assert json.loads(runs("note", "2", "--json"))["note"] == "from stdin é"
    assert lab.store.get("2").tags == ["paper-1", "x"]
    assert runs("note", "2", "") == runs("note", "2") == ""
    assert "got the tag 'a b', expected letters" in runs("tag", "2", "a b", code=1)
    assert "there is no run '99'" in runs("note", "99", code=1)


@pytest.mark.parametrize("recorded", ["our-mongo", "sacred-mongo"], indirect=True)
def test_tags_set_in_omniboard_are_shown_found_and_taken_away(lab, runs):
    lab.database.runs.update_one({"_id": 2}, {"$set": {"omniboard": {"tags": ["fine", "odd one"], "notes": "x"}}})
    lab.store.check_field("tags.fine")
    runs("tag", "1", "fine")
    assert [row["id"] for row in json.loads(runs("ls", "--tag", "fine", "--json", "--sort", "id"))] == ["1", "2"]
    assert [row["tags"] for row in json.loads(runs("ls", "--json", "--sort", "id"))] == [
        ["fine"],
        ["fine", "odd one"],
        [],
    ]
    assert "fine, odd one" in runs("show", "2")
    assert [run.id for run in lab.store.find("tags.fine!=True")] == ["3"]
    assert [run.id for run in lab.store.find("tags.fine=None")] == ["3"]
    assert runs("tag", "2", "fine", "--remove") == "run 2: odd one\n"
    assert lab.database.runs.find_one({"_id": 2})["omniboard"] == {"tags": ["odd one"], "notes": "x"}
    assert lab.store.get("2").tags == ["odd one"]


@pytest.mark.parametrize("recorded", ["our-mongo", "sacred-mongo"], indirect=True)
def test_notes_set_in_omniboard_are_shown_found_and_replaced(lab, runs):
    lab.store.write_note(lab.store.get("1"), "ours alone")
    lab.store.write_note(lab.store.get("2"), "ours before")
    lab.database.runs.update_one({"_id": 2}, {"$set": {"omniboard": {"tags": ["fine"], "notes": "theirs"}}})
    assert runs("note", "2") == "theirs\n"
    assert "theirs" in runs("show", "2")
    listed = json.loads(runs("ls", "--columns", "note", "--json", "--sort", "note"))
    assert [(row["id"], row["note"]) for row in listed] == [("1", "ours alone"), ("2", "theirs"), ("3", None)]
    store = lab.store
    for filter, expected in (
        ("note=theirs", "2"),
        ("note='ours before'", ""),
        ("note~^o", "1"),
        ("note!=theirs", "13"),
        ("note=None", "3"),
        (Words("THEIRS"), "2"),
        (Words("ours before"), ""),
    ):
        assert "".join(run.id for run in store.find(filter, sort="id")) == expected, filter
        assert store.count(filter) == len(expected), filter
    run = store.tag(store.get("2"), ["more"])
    assert (run.note, run.tags) == ("theirs", ["fine", "more"])
    runs("note", "2", "ours again")
    assert lab.database.runs.find_one({"_id": 2})["omniboard"] == {"tags": ["fine"], "notes": "ours again"}
    assert store.get("2").note == "ours again"
    runs("note", "1", "ours too")
    assert "omniboard" not in lab.database.runs.find_one({"_id": 1})


# rm


def test_rm_takes_the_run_and_what_it_alone_used(lab, runs):
    before = lab.contents()
    others = [same(lab.store, id) for id in ("1", "2")]
    lab.age()
    assert json.loads(runs("rm", "3", "--now", "--yes", "--json"))["runs"] == ["3"]
    with pytest.raises(RunNotFoundError):
        lab.store.get("3")
    assert [run.id for run in lab.store.find(sort="id")] == ["1", "2"]
    assert [same(lab.store, id) for id in ("1", "2")] == others
    gone = set(before) - set(lab.contents())
    if lab.kind != "sacred-mongo":  # which notes resources, and does not store them
        assert any("own" in name for name in gone)
        assert any("data" in name for name in lab.contents())
    if lab.kind.endswith("mongo"):
        for name in ("metrics", "metrics_chunks", "media"):
            assert lab.database[name].count_documents({"run_id": 3}) == 0
        pieces = set(lab.database.fs.chunks.distinct("files_id"))
        assert pieces == {file["_id"] for file in lab.database.fs.files.find({}, {"_id": 1}) if file["_id"] in pieces}
    runs("rm", "1", "2", "--now", "--yes")
    assert lab.store.find() == []
    assert [name for name in lab.contents() if "_index" not in name] == []


def test_rm_of_fresh_files_leaves_them_to_gc(lab, runs):
    done = json.loads(runs("rm", "1", "2", "3", "--now", "--yes", "--json"))
    assert done["contents"] == 0
    assert lab.contents() != [] or lab.kind == "sacred-mongo"
    assert done["young"] == len(lab.contents())
    lab.age()
    assert json.loads(runs("gc", "--json"))["contents"] == done["young"]
    assert lab.contents() == []
    assert runs("gc") == "reclaimed 0 files, 0 bytes\n"


@pytest.mark.sampled(1)
def test_rm_asks_on_a_terminal_and_wants_yes_elsewhere(lab, runs, request):
    assert "add --yes if nobody can be asked" in runs("rm", "1", code=1)
    for answer, left in (("n\n", 3), ("y\n", 2)):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "sacristan", "--store", lab.where, "rm", "1"]
        process = Process(command, cwd=request.config.rootpath, stdin=theirs, stdout=PIPE, stderr=theirs)
        os.close(theirs)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(ours, 1000)
        assert b"COMPLETED" in asked
        os.write(ours, answer.encode())
        process.communicate(timeout=60)
        os.close(ours)
        assert len(lab.store.find()) == left


# the trash


def test_rm_moves_runs_into_the_trash_from_which_they_come_back_as_they_were(lab, runs):
    lab.store.tag(lab.store.get("2"), ["kept"])
    before = [same(lab.store, id) for id in ("1", "2", "3")]
    uid = lab.store.get("2").uid
    assert "to restore: sacristan restore 3" in runs("rm", "--where", "lr>0.15", "--yes")
    assert [run.id for run in lab.store.find()] == ["1"]
    assert [run.id for run in lab.store.find(sort="train/loss.min", columns=["status"])] == ["1"]
    assert f"run 2 was moved to the trash of {lab.store.where} by " in runs("show", "2", code=1)
    listed = json.loads(runs("restore", "--json"))
    assert {(row["id"], row["name"], row["status"]) for row in listed} == {(id, "kept", "COMPLETED") for id in "23"}
    assert sorted(line.split()[0] for line in runs("restore").splitlines()) == ["2", "3", "id"]
    # Their files are theirs still, whatever else goes.
    lab.age()
    lab.store.backend.reclaim(Removed(), 0)
    assert runs("restore", "3", "2" if uid is None else uid[:31]).startswith("run 3 is back\nrun ")
    assert [same(lab.store, id) for id in ("1", "2", "3")] == before
    if lab.kind != "sacred-mongo":  # which notes resources, and does not store them
        assert any(content.read() for content in lab.store.get("3").resources.values())
    assert lab.store.get("2").tags == ["kept"]
    assert runs("restore") == f"the trash is empty in {lab.where}\n"
    assert "'2' is not in the trash" in runs("restore", "2", code=1)


def test_gc_empties_the_trash(lab, runs):
    runs("rm", "1", "2", "3", "--yes")
    lab.age()
    done = json.loads(runs("gc", "--json"))
    assert sorted(done["runs"]) == ["1", "2", "3"]
    assert runs("restore", "--json") == "[]\n"
    assert lab.contents() == []
    if lab.kind.endswith("mongo"):
        assert lab.database.metrics.count_documents({}) == lab.database.runs.count_documents({}) == 0


def test_run_comes_back_beside_one_that_has_its_number_by_now(tmp_path, capsys):
    ex = Experiment("again", base_dir=tmp_path, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "store"))
    ex.main(lambda _run: _run.log_scalar("x", 1.0))
    first = ex.run(options={"--capture": "no"})
    with open_store(tmp_path / "store") as store:
        old = store.get("1").uid
        store.discard([store.get("1")])
        ex.run(options={"--capture": "no"})
        assert store.get("1").uid != old
        assert (store.restore("1").id, store.get("2").uid) == ("2", old)
        assert len(store.find()) == 2
    assert first.status == "COMPLETED"


def bare_run(folder, number):
    (folder / str(number)).mkdir(parents=True)
    document = {"uid": f"{number:032x}", "format": "sacristan-1", "status": "COMPLETED"}
    (folder / str(number) / "run.json").write_text(json.dumps(document))


@pytest.mark.slow
def test_restore_brings_back_the_run_that_was_named_while_others_restore_and_discard(tmp_path):
    for number in range(1, 13):
        bare_run(tmp_path, number)

    def back_and_forth(numbers):
        done, uids = [], [f"{number:032x}" for number in numbers]
        with open_store(tmp_path) as store:
            for _ in range(12):
                store.discard([store.get(uid) for uid in uids])
                done += [(uid, store.restore(uid).uid) for uid in uids]
        return done

    with ThreadPoolExecutor(4) as pool:
        done = [pair for pairs in pool.map(back_and_forth, (range(n, 13, 4) for n in range(1, 5))) for pair in pairs]
    assert len(done) == 144
    assert [named for named, back in done if back != named] == []
    assert len(list(tmp_path.glob("*/run.json"))) == 12


def test_run_in_the_trash_that_another_process_took_is_refused_in_one_sentence(lab):
    lab.store.discard([lab.store.get("2")])
    [(_, place)] = lab.store.backend.trash()
    lab.store.backend.restore(place)
    with pytest.raises(StoreError, match=r"run 2 is no longer in the trash of .*; another process took it"):
        lab.store.backend.restore(place)
    assert len(lab.store.find()) == 3


def test_run_that_was_removed_while_it_is_looked_at_says_so(lab):
    run, writing = lab.store.get("2"), lab.store.get("2")
    assert run.status == writing.status == "COMPLETED"
    lab.store.remove([lab.store.get("2")])
    questions = {
        "config": lambda: run.config,
        "info": lambda: run.info,
        "summary": lambda: run.summary,
        "metrics": lambda: run.metrics,
        "output": lambda: run.output,
        "media": lambda: run.media,
        "ranks": lambda: run.rank_outputs,
        "checkpoints": lambda: run.checkpoints,
        "note": lambda: lab.store.backend.documents.change("notes", "", lambda _: {"note": "lost"}, writing.key),
    }
    for name, ask in questions.items():
        with pytest.raises(StoreError, match=r"run was removed|no longer|No such file"):
            print(name, ask())


def test_run_whose_id_is_that_of_another_one_by_now_is_not_removed(tmp_path):
    bare_run(tmp_path, 1)
    with open_store(tmp_path) as store:
        found = store.find()
        store.remove(found)
        bare_run(tmp_path, 1)
        document = json.loads((tmp_path / "1" / "run.json").read_text())
        (tmp_path / "1" / "run.json").write_text(json.dumps({**document, "uid": "f" * 32}))
        with pytest.raises(StoreError, match="run 1 is a different run now; nothing is removed"):
            store.discard(found)
        assert store.get("1").uid == "f" * 32


def test_rm_refuses_what_names_no_runs(lab, runs):
    assert "got no run; name some, such as latest, or choose with --where\n" in runs("rm", "--yes", code=1)
    assert "got runs and conditions, expected either" in runs("rm", "1", "--where", "lr=1", "--yes", code=1)
    assert "no run matches the conditions" in runs("rm", "--where", "lr=7", "--yes", code=1)
    assert len(lab.store.find()) == 3


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("staus!=COMPLETED", "no run has a field 'staus'; did you mean status?"),
        ("status!=completed", "status: got 'completed'; did you mean COMPLETED?"),
        ("staus not in (COMPLETED, FAILED)", "no run has a field 'staus'"),
        ("staus=None", "no run has a field 'staus'"),
        ("lr>5 or staus!=COMPLETED", "no run has a field 'staus'"),
        ("id!=17", "id: got 17, but there is no such run"),
        ("tags.kept!=True", "no run has the tag 'kept'; there are: fine"),
        ("tags.fine!=yes", "tags.fine: got 'yes'; a run has a tag or lacks it"),
    ],
)
@pytest.mark.sampled(1)
def test_rm_by_a_misspelt_condition_removes_nothing(lab, runs, condition, message):
    lab.store.tag(lab.store.get("1"), ["fine"])
    for now in ([], ["--now"]):
        assert message in runs("rm", "--where", condition, *now, "--yes", code=1)
    assert [run.id for run in lab.store.find(sort="id")] == ["1", "2", "3"]
    assert [run.id for run in lab.store.find("tags.fine!=True", sort="id")] == ["2", "3"]


def test_fields_of_removed_runs_are_unknown_and_an_empty_store_knows_any(lab):
    lab.store.tag(lab.store.get("3"), ["gone"])
    lab.store.discard([lab.store.get("3")])
    with open_store(lab.where) as store, pytest.raises(FilterError, match="no run has the tag 'gone'"):
        store.find("tags.gone!=True")
    lab.store.discard(lab.store.find())
    with open_store(lab.where) as store:
        for question in ("tags.gone!=True", "staus!=COMPLETED", "id!=4", "x<a"):
            assert store.find(question) == []
        store.restore("1")
        with pytest.raises(FilterError, match="no run has a field 'staus'"):
            store.find("staus!=COMPLETED")


def test_rm_of_many_runs_counts_them_by_kind_first(tmp_path, capsys):
    for number in range(1, 10):
        bare_run(tmp_path, number)
    (tmp_path / "9" / "run.json").write_text("{")
    failed = json.loads((tmp_path / "8" / "run.json").read_text())
    (tmp_path / "8" / "run.json").write_text(json.dumps({**failed, "status": "FAILED", "experiment": {"name": "b"}}))
    rm = ["--store", str(tmp_path), "rm", "--where", "status in (COMPLETED, FAILED)"]
    assert main(rm) == 1
    kinds = "8 runs (7 COMPLETED, 1 FAILED) of b"
    assert f"rm removes {kinds}; add --yes if nobody can be asked" in capsys.readouterr().err
    assert main([*rm, "--yes"]) == 0
    assert f"removing {kinds}\n" in capsys.readouterr().err


def set_status(lab, id, status, written):
    if lab.kind.endswith("files"):
        folder = lab.folder / "store" / id
        run = json.loads((folder / "run.json").read_bytes())
        run |= {"status": status, "heartbeat": datetime.utcnow().isoformat()}
        run.pop("stop_time", None)
        (folder / "run.json").write_text(json.dumps(run))
        if lab.kind == "our-files":
            (folder / "lease.json").write_text(json.dumps(written))
    else:
        change = {"status": status, "heartbeat": datetime.utcnow()}
        lab.database.runs.update_one(
            {"_id": int(id)}, {"$set": change | ({"lease": written} if "our" in lab.kind else {})}
        )


def test_rm_refuses_a_run_that_lives_and_takes_none(lab, runs):
    set_status(lab, "2", "RUNNING", lease(1.0))
    assert "run 2 is running; nothing is removed: end its process first" in runs(
        "rm", "1", "2", "--now", "--yes", code=1
    )
    assert len(lab.store.find()) == 3
    if lab.kind.startswith("our"):
        set_status(lab, "2", "RUNNING", lease(1.0) | {"pid_start": 1})
        runs("rm", "2", "--now", "--yes")
        assert len(lab.store.find()) == 2


def test_rm_killed_anywhere_leaves_no_half_run(lab, killed_at):
    """Every change to the store fails once; what is there then is the run as a whole, or one that says REMOVING."""
    lab.age()
    before = {id: same(lab.store, id) for id in ("1", "2", "3")}
    places = steps_of(lab)
    for stop in range(1, 100):
        if not killed_at(stop, places, lambda: lab.store.remove([lab.store.get("3")])):
            break
        found = {run.id: run.status for run in lab.store.find()}
        assert {id: same(lab.store, id) for id in ("1", "2")} == {id: before[id] for id in ("1", "2")}
        if "3" not in found:
            break
        assert found["3"] == "REMOVING" or same(lab.store, "3") == before["3"]
    assert stop > 1
    lab.store.collect()
    if "3" in {run.id for run in lab.store.find()}:
        lab.store.remove([lab.store.get("3")])
    assert {run.id: same(lab.store, run.id) for run in lab.store.find()} == {id: before[id] for id in ("1", "2")}
    assert not any("own" in name for name in lab.contents())
    if lab.kind.endswith("mongo"):
        files = {file["_id"] for file in lab.database.fs.files.find({}, {"_id": 1})}
        assert set(lab.database.fs.chunks.distinct("files_id")) <= files


def steps_of(lab):
    if lab.kind.endswith("files"):
        return [(Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (os, "unlink"), (os, "rmdir")]
    from pymongo.collection import Collection

    return [(Collection, n) for n in ("update_one", "delete_one", "delete_many", "insert_one", "replace_one")]


def test_contents_stay_while_a_record_cannot_be_read(lab, runs):
    lab.age()
    if lab.kind.endswith("files"):
        folder = lab.folder / "store" / "1"
        (folder / "run.json").write_text('{"resources": [["data.csv", "_resour')
        if lab.kind == "our-files":
            with locked(folder):
                assert "run 1 is running" in runs("rm", "1", "--now", "--yes", code=1)
    else:
        listed = {"resources_file": {"stored_as_file": str(bson.ObjectId()), "bytes": 1}}
        lab.database.runs.update_one({"_id": 1}, {"$set": listed})
    before = lab.contents()
    done = json.loads(runs("rm", "3", "--now", "--yes", "--json"))
    assert done["unreadable"] == ["1"]
    assert done["contents"] == 0
    gone = set(before) - set(lab.contents())
    assert all("artifact" in name or "weights" in name for name in gone)
    runs("rm", "1", "--now", "--yes")
    assert len(set(before) - set(lab.contents())) > len(gone) or lab.kind == "sacred-mongo"


@pytest.mark.slow
def test_content_that_a_new_run_finds_is_kept(tmp_path, mongo_url, database):
    """Of the contents that nobody names, the ones that observers have just found are not reclaimed."""
    for kind in ("our-files", "our-mongo"):
        folder = tmp_path / kind
        folder.mkdir()
        record(kind, folder, mongo_url, database.name)
        where = str(folder / "store") if kind == "our-files" else f"{mongo_url}/{database.name}"
        with open_store(where) as store:
            if kind == "our-files":
                for path in folder.glob("store/_*/*"):
                    os.utime(path, (LONG_AGO, LONG_AGO))
                keep(folder / "data.csv", folder / "store" / "_resources", folder / "store")
                store.remove(store.find())
                left = [path.name for path in folder.glob("store/_resources/*")]
            else:
                from sacristan.observers.mongo.contents import StoredContents
                from sacristan.observers.mongo.layout import Collections

                old = datetime.fromtimestamp(LONG_AGO) - timedelta(days=1)
                database.fs.files.update_many({}, {"$set": {"uploadDate": old}, "$unset": {"used": ""}})
                StoredContents(Collections(database)).store(folder / "data.csv", "data.csv")
                store.remove(store.find())
                left = [file["filename"] for file in database.fs.files.find({})]
        assert len(left) == 1
        assert "data" in left[0]


def test_files_of_others_in_the_store_are_left_alone(lab, runs):
    if lab.kind.endswith("files"):
        for name in ("_sources", "_resources"):
            (lab.folder / "store" / name).mkdir(exist_ok=True)
            (lab.folder / "store" / name / "mine.txt").write_text("mine")
    else:
        import gridfs

        gridfs.GridFS(lab.database).put(b"mine", filename="mine.txt")
        lab.database["other_runs"].insert_one(
            {"_id": 1, "resources": lab.database.runs.find_one({"_id": 1})["resources"], "status": "COMPLETED"}
        )
    lab.age()
    runs("rm", "1", "2", "3", "--now", "--yes")
    assert "mine.txt" in lab.contents()
    if lab.kind == "our-mongo":
        assert any("data.csv" in name for name in lab.contents())


def test_sync_does_not_bring_a_removed_run_back(tmp_path, mongo_url, database):
    ex = Experiment("synced", base_dir=tmp_path, save_git_info=False)

    @ex.main
    def train(_run):
        _run.log_scalar("loss", 1.0, 0)

    ex.observers.append(FileObserver(tmp_path / "store"))
    ex.observers.append(MongoObserver(mongo_url, database.name))
    ex.run(options={"--capture": "sys"})
    with open_store(f"{mongo_url}/{database.name}") as store:
        store.remove(store.find())
        for marker in (True, False):
            if not marker:
                (tmp_path / "store" / "1" / "delivered.json").unlink()
            [result] = sync(tmp_path / "store")
            assert result.outcome == "removed from the database"
            assert store.find() == []
    with open_store(tmp_path / "store") as store:
        assert [run.id for run in store.find()] == ["1"]
        store.remove(store.find())
    assert list(sync(tmp_path / "store")) == []


def test_gc_removes_what_a_killed_removal_left_in_a_folder(tmp_path, mongo_url):
    record("our-files", tmp_path, mongo_url, "none")
    store_folder = tmp_path / "store"
    (store_folder / ".removing" / "3-abcd").mkdir(parents=True)
    (store_folder / ".removing" / "3-abcd" / "run.json").write_text("{}")
    [resource] = (store_folder / "_resources").glob("data_*")
    resource.rename(resource.with_name(f".removing-{resource.name}"))
    with open_store(store_folder) as store:
        assert len(store.find()) == 3
        store.collect()
        assert not (store_folder / ".removing").exists()
        assert next(iter(store.get("1").resources.values())).read() == b"1,2\n"


# The system kills the process in the middle of the copy, at the greatest length that a file may have.
CUT_OFF = """
import resource, signal
ex.observers.append(FileObserver("runs"))

@ex.automain
def main(_run, how):
    _run.add_artifact(__file__, ".mine.01234567.tmp")
    _run.flush()
    with open(how + ".bin", "wb") as stream: stream.write(b"1" * 3_000_000)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    _run.add_artifact("add.bin") if how == "add" else _run.log_artifact("data", "log.bin")
"""


def test_gc_reclaims_what_a_kill_left_of_artifacts(tmp_path, start, capsys):
    folder = tmp_path / "runs"
    for how in ("add", "log"):
        assert start(tmp_path, CUT_OFF, "with", f"how={how}").process.wait(60) == -signal.SIGXFSZ
    for path in folder.glob("?/.*.tmp"):
        if not path.stat().st_size:  # which a heartbeat was about to write
            path.unlink()
    [half] = [path for path in folder.glob("?/.*.tmp") if "add" in path.name]
    [taken] = (folder / "_artifacts" / "incoming").glob("*/taken-*")

    def gc():
        assert main(["--store", str(folder), "gc"]) == 0
        return capsys.readouterr().out

    assert gc().startswith("reclaimed 0 files")  # a process may be at work on them
    for path in (*folder.rglob("*"), taken.parent):
        os.utime(path, (LONG_AGO, LONG_AGO))
    with locked(half.parent), locked(taken.parent):
        os.utime(taken.parent, (LONG_AGO, LONG_AGO))
        assert gc().startswith("reclaimed 0 files")
        assert half.exists()
        assert taken.exists()
    assert gc() == "reclaimed 2 files, 2.1 MB\n"
    assert not half.exists()
    assert list((folder / "_artifacts" / "incoming").iterdir()) == []
    with open_store(folder) as store:
        assert [[*run.artifacts] for run in store.find()] == [[".mine.01234567.tmp"]] * 2
        assert all(content.read() for run in store.find() for content in run.artifacts.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["touched", "named", "copied anew"])
def test_content_that_a_run_takes_while_it_is_being_reclaimed_is_kept(tmp_path, monkeypatch, how):
    record("our-files", tmp_path, "", "")
    store_folder = tmp_path / "store"
    for path in store_folder.glob("_*/*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    original = Path.rename

    def rename(path, target):
        if path.parent.name == "_resources" and path.name.startswith("data") and how == "touched":
            os.utime(path)
        found = original(path, target)
        if path.parent.name == "_resources" and path.name.startswith("data") and how != "touched":
            if how == "copied anew":
                path.write_text("1,2\n")
            new = {"status": "COMPLETED", "resources": [["data.csv", f"_resources/{path.name}"]]}
            (store_folder / "9").mkdir()
            (store_folder / "9" / "run.json").write_text(json.dumps(new))
        return found

    with open_store(store_folder) as store:
        monkeypatch.setattr(Path, "rename", rename)
        store.remove(store.find())
    [left] = (store_folder / "_resources").iterdir()
    assert left.name.startswith("data_")
    assert left.read_text() == "1,2\n"
