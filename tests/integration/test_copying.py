"""Copies from each kind of store into each: folders and MongoDB, ours and stock Sacred's."""

from __future__ import annotations

import json
import math
import types
import warnings
from pathlib import Path

import numpy as np
import pymongo
import pytest
import sacred
from pymongo.collection import Collection

from experiments import Experiment
from observers import ArtifactStore, FileObserver, Histogram, Image, Table, Text
from observers.mongo.documents import object_id
from observers.record.identity import lease
from observers.record.media_record import read_media
from runs.errors import StoreError
from runs.stores.opening import open_store
from runs.transfer.copying import copy
from runs.transfer.syncing import sync
from tests.recording import observer_of

KINDS = ("our-files", "our-mongo", "sacred-files", "sacred-mongo")
NUM_POINTS = 25_000


def record(kind, folder, url, name):
    """Record one run with everything that the kind can hold."""
    experiment = Experiment if kind.startswith("our") else sacred.Experiment
    ex = experiment("copied", base_dir=folder, save_git_info=False)
    ex.add_config({"lr": 0.1, "model": {"name": "mlp", "hidden": [8, 8], "dropout": None}})

    @ex.main
    def train(_run, lr):
        ex.open_resource(str(folder / "data.csv")).close()
        for step in range(NUM_POINTS):
            _run.log_scalar("train/loss", 1 / (step + 1), step)
        for step, value in ((0.5, math.nan), (1.5, math.inf), (2.25, -math.inf), (3.0, 0.25)):
            _run.log_scalar("val.odd", value, step)
        _run.info["test"] = {"accuracy": 0.9}
        print("é trained with", lr)
        for number in range(3000):
            print(f"line {number}: " + "x" * 60)
        (folder / "weights.bin").write_bytes(bytes(range(256)) * 2000)
        ex.add_artifact(folder / "weights.bin", metadata={"rows": 1})
        ex.add_artifact(folder / "data.csv", name="results.csv")
        if kind.startswith("our"):
            image = Image(np.arange(16, dtype=np.uint8).reshape(4, 4), caption="four")
            for step in range(3):
                _run.log({"val/samples": image, "val/weights": Histogram([lr, step]), "note": Text(f"é {step}")}, step)
            _run.log_media("cases", Table(["image", "p"], [[image, math.nan]]), 2)
            (folder / "set").mkdir(exist_ok=True)
            (folder / "set" / "a.txt").write_text("a")
            _run.log_artifact("numbers", folder / "set", metadata={"rows": 1})
        return 0.9

    (folder / "data.csv").write_text("1,2\n")
    observer = observer_of(kind, folder, url, name)
    ex.observers.append(observer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ex.run(options={"--capture": "sys"})
    if kind == "sacred-mongo":
        observer.runs.database.client.close()
    return str(folder / "store") if kind.endswith("files") else f"{url}/{name}"


@pytest.fixture(scope="module")
def origins(tmp_path_factory, mongo_url):
    """One run of each kind: the URL or folder by kind."""
    found, names = {}, []
    for kind in KINDS:
        names.append(f"copying_{kind.replace('-', '_')}")
        found[kind] = record(kind, tmp_path_factory.mktemp(kind), mongo_url, names[-1])
    yield found
    with pymongo.MongoClient(mongo_url) as client:
        for name in names:
            client.drop_database(name)


@pytest.fixture(params=["files", "mongo"])
def target(request, tmp_path, mongo_url, database):
    """An empty store of each kind."""
    where = str(tmp_path / "target") if request.param == "files" else f"{mongo_url}/{database.name}"
    with open_store(where, create=True) as store:
        yield store


def check(run, kind):
    """See to it that a run holds all that was recorded."""
    ours = kind.startswith("our")
    assert run.config.lr == 0.1
    assert run.config.model.hidden == [8, 8]
    assert run.config.model.dropout is None
    assert run.info.test.accuracy == 0.9
    assert (run.name, run.command, run.status, run.result) == ("copied", "train", "COMPLETED", 0.9)
    assert [name for name in run.metrics if not name.startswith("system/")] == ["train/loss", "val.odd"]
    series = run.metric("train/loss")
    np.testing.assert_array_equal(series.steps, np.arange(NUM_POINTS))
    np.testing.assert_array_equal(series.values, 1 / (np.arange(NUM_POINTS) + 1))
    assert (np.diff(series.times) >= -0.02).all()
    odd = run.metric("val.odd")
    np.testing.assert_array_equal(odd.steps, [0.5, 1.5, 2.25, 3.0])
    np.testing.assert_array_equal(odd.values, [math.nan, math.inf, -math.inf, 0.25])
    assert run.summary["train/loss"]["min_step"] == NUM_POINTS - 1
    assert run.summary["train/loss"]["count"] == NUM_POINTS
    assert "é trained with 0.1" in run.output
    assert "line 2999: xxx" in run.output
    assert "left out" not in run.output
    assert run.artifacts["weights.bin"].read() == bytes(range(256)) * 2000
    assert run.artifacts["results.csv"].read() == b"1,2\n"
    assert ours is (run.artifact_details().get("weights.bin", {}).get("metadata") == {"rows": 1}) or "mongo" in kind
    if kind != "sacred-mongo":  # which notes it, and does not store it
        [resource] = run.resources.values()
        assert resource.read() == b"1,2\n"
    for content in run.sources.values():
        content.read()
    assert run.duration_s > 0
    entries = run.media_entries()
    assert len(entries) == (10 if ours else 0)
    for entry, contents in entries:
        assert {content.name.partition(".")[0] for content in contents} >= {entry["sha256"]}
        assert all(content.read() for content in contents)
    if ours:
        assert [e["name"] for e, _ in entries] == ["val/samples", "val/weights", "note"] * 3 + ["cases"]
        assert [e["step"] for e, _ in entries] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
        assert entries[0][0]["meta"]["caption"] == "four"
        [version] = run["artifacts_logged"]
        assert (version["name"], version["type"]) == ("numbers", "dataset")
        assert run.provenance["packages"] is not None


@pytest.mark.parametrize("kind", KINDS)
def test_copy_holds_all_and_copying_again_makes_no_other(origins, kind, target, tmp_path):
    with open_store(origins[kind]) as origin:
        check(origin.get("1"), kind)
        origin.write_note(origin.tag(origin.get("1"), ["best"]), "a note é")
        origin.note_reproduction(origin.get("1"), {"verdict": "IDENTICAL", "by": "0" * 32})
        verdicts = origin.get("1").reproductions
        copied = copy(origin.get("1"), target)
        assert copied.is_new
        said = ["resource"] if kind == "sacred-mongo" else []
        assert [text.partition(" ")[0] for text in copied.left_out] == said
        check(copied.run, kind)
        assert (copied.run.tags, copied.run.note) == (["best"], "a note é")
        assert verdicts
        assert copied.run.reproductions == verdicts
        assert copied.run.uid == (origin.get("1").uid or copied.run.uid)
        assert len(copied.run.uid) == 32
        before = snapshot(target)
        again = copy(origin.get("1"), target)
        assert (again.is_new, again.run, snapshot(target)) == (False, copied.run, before)
        back = tmp_path / "back"
        with open_store(back, create=True) as third:
            check(copy(copied.run, third).run, kind)
        if kind == "our-files" and not target.where.startswith("mongodb"):
            for path in (target.folder / "1").rglob("*"):
                assert (
                    not path.is_file()
                    or path.name in ("run.json", "notes.json")
                    or path.read_bytes() == (origin.folder / "1" / path.relative_to(target.folder / "1")).read_bytes()
                )


def snapshot(store):
    if store.where.startswith("mongodb"):
        return {
            name: sorted(map(repr, store.mongo.database[name].find({}, {"uploadDate": 0, "used": 0})))
            for name in store.mongo.database.list_collection_names()
        }
    return {
        path: path.read_bytes()
        for path in store.folder.rglob("*")
        if path.is_file() and not path.name.startswith(".index")
    }


def test_copied_folder_is_one_of_our_layout(origins, tmp_path):
    with open_store(origins["our-mongo"]) as origin, open_store(tmp_path / "t", create=True) as target:
        copy(origin.get("1"), target)
    folder = tmp_path / "t" / "1"
    assert len(read_media(folder)) == 10
    assert json.loads((folder / "metrics.json").read_bytes())["val.odd"]["steps"] == [0.5, 1.5, 2.25, 3.0]
    assert (folder / "metrics.bin").stat().st_size % 24 == 0
    assert not (tmp_path / "t" / ".taking").exists()
    assert ArtifactStore(tmp_path / "t").resolve("numbers").path(tmp_path / "out").read_text() == "a"


def test_run_that_lives_is_not_copied(tmp_path, target):
    folder = tmp_path / "store" / "1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"status": "RUNNING", "uid": "0" * 32}))
    (folder / "lease.json").write_text(json.dumps(lease(1.0)))
    with open_store(tmp_path / "store") as origin:
        with pytest.raises(StoreError, match="run 1 is running; copy it when it has ended"):
            copy(origin.get("1"), target)
        assert target.find() == []


def test_copy_killed_in_between_is_finished_by_the_next(origins, target, killed_at):
    """A kill at any change to the database, or any file, leaves no run there that looks whole and is not."""
    in_folder = not target.where.startswith("mongodb")
    places = [(Path, "replace"), (Path, "mkdir")] if in_folder else [(Collection, "update_one")]
    places += [] if in_folder else [(Collection, "insert_one"), (Collection, "bulk_write")]
    with open_store(origins["our-files"]) as origin:
        for stop in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]:
            if not killed_at(stop, places, lambda: copy(origin.get("1"), target)):
                break
            assert [run.status for run in target.find()] in ([], ["COPYING"])
        assert stop > 5
        check(copy(origin.get("1"), target).run, "our-files")
        assert len(target.find()) == 1


def test_copy_brings_a_removed_run_back_and_rm_of_a_copy_leaves_the_origin(origins, target):
    with open_store(origins["our-files"]) as origin:
        for _ in range(2):
            copied = copy(origin.get("1"), target)
            check(copied.run, "our-files")
            target.remove([copied.run])
            assert target.find() == []
        check(origin.get("1"), "our-files")
        target.collect()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"artifacts": ["../../evil", "/etc/passwd", "ok.txt"]}, ["artifact", "artifact", "artifact"]),
        ({"resources": [["x", "../../../../etc/passwd"]]}, ["resource"]),
        ({"experiment": {"name": "n", "sources": [["y.py", "/etc/passwd"], 3]}}, ["source"]),
        ({"start_time": "yesterday"}, ["start_time:"]),
        ({"artifacts_logged": [{"name": "../x", "digest": "0" * 64}, 3]}, ["a", "a"]),
        ({"experiment": 3, "resources": 4, "artifacts": 5, "host": [], "lease": 3}, []),
    ],
    ids=str,
)
def test_odd_record_is_copied_without_what_is_odd(tmp_path, target, change, said):
    folder = tmp_path / "store" / "1"
    folder.mkdir(parents=True)
    entry = {"status": "COMPLETED", "format": "sacristan-1", "uid": "1" * 32, "start_time": "2026-01-01T00:00:00"}
    (folder / "run.json").write_text(json.dumps(entry | change))
    (folder / "link").symlink_to("/etc/passwd")
    with open_store(tmp_path / "store") as origin:
        copied = copy(origin.get("1"), target)
    assert [text.split()[0] for text in copied.left_out] == ["'link':", *said]
    assert copied.run.status == "COMPLETED"
    assert b"root:" not in b"".join(content.read() for content in copied.run.artifacts.values())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.names.jsonl", "[]\n"),
        ("media.jsonl", '{"file": "../x"}\n'),
        ("run.json", "[1]"),
        ("media.jsonl", "3\n"),
    ],
)
def test_damaged_record_is_refused_whole(tmp_path, target, name, content):
    folder = tmp_path / "store" / "1"
    folder.mkdir(parents=True)
    entry = {"status": "COMPLETED", "format": "sacristan-1", "uid": "1" * 32, "start_time": "2026-01-01T00:00:00"}
    (folder / "run.json").write_text(json.dumps(entry))
    (folder / "metrics.bin").write_bytes(bytes(48))
    (folder / name).write_text(content)
    with open_store(tmp_path / "store") as origin, pytest.raises(StoreError):
        copy(types.SimpleNamespace(store=origin, id="1"), target)
    assert [run.status for run in target.find()] in ([], ["COPYING"])


def test_sync_after_a_copy_changes_nothing(tmp_path, mongo_url, database):
    ex = Experiment("both", base_dir=tmp_path, save_git_info=False)

    @ex.main
    def train(_run):
        _run.log_scalar("loss", 1.0, 0)

    ex.observers.append(FileObserver(tmp_path / "store"))
    ex.run(options={"--capture": "sys"})
    with open_store(tmp_path / "store") as origin, open_store(f"{mongo_url}/{database.name}") as target:
        copy(origin.get("1"), target)
        [result] = sync(tmp_path / "store", f"{mongo_url}/{database.name}")
        assert (result.outcome, result.run_id) == ("delivered", 1)
        assert [run.id for run in target.find()] == ["1"]
        assert database.metrics.find_one({"name": "loss"})["_id"] == object_id(target.get("1").uid, "loss")
