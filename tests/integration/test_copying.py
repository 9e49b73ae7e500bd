"""Copies from each kind of store into each: folders and MongoDB, ours and stock Sacred's."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import types
import warnings
from datetime import datetime
from pathlib import Path

import numpy as np
import pymongo
import pytest
import sacred
from pymongo.collection import Collection
from sacred.observers import FileStorageObserver
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import ArtifactStore, FileObserver, Histogram, Image, MongoObserver, Table, Text, read_media
from sacristan.observers.file.recording import recording_of
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.documents import object_id
from sacristan.observers.record.copies import keep
from sacristan.observers.record.identity import lease
from sacristan.runs import DamagedError, StoreError, copy, export_to, open_store, sync
from sacristan.runs.board.access import Policy
from sacristan.runs.board.serving import create_app
from tests.recording import observer_of

KINDS = ("our-files", "our-mongo", "sacred-files", "sacred-mongo")
# The ordinary suite takes one of each recorder, and one of each store.
MARKED = [
    "our-files",
    "sacred-mongo",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("our-mongo", "sacred-files")),
]
# Beyond what `few_per_document` lets a document of the database hold.
NUM_POINTS = 500


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
            ranks = recording_of(_run.uid).folder / "ranks"
            ranks.mkdir()
            for rank in (2, 10):
                (ranks / f"{rank}.txt").write_bytes(b"hello from %d \xff" % rank)
        return 0.9

    (folder / "data.csv").write_text("1,2\n")
    (folder / "part.py").write_text("rate = 3\n")
    ex.add_source_file(str(folder / "part.py"))
    observer = observer_of(kind, folder, url, name)
    ex.observers.append(observer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ex.run(options={"--capture": "sys"})
    if kind == "sacred-mongo":
        observer.runs.database.client.close()
    return str(folder / "store") if kind.endswith("files") else f"{url}/{name}"


@pytest.fixture(scope="module", autouse=True)
def few_per_document():
    """Let documents of the database be full of few points, so that runs of a few hundred reach the chunks beyond."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sacristan.observers.mongo.series.POINTS_PER_DOCUMENT", 400)
        patch.setattr("sacristan.observers.mongo.series.POINTS_PER_CHUNK", 80)
        yield


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


OTHERS = {"lists": [(0, [0, 1]), (1, [1, 2])], "mixed": [(1, [1])], "words": [(0, "a"), (1, "a")]}


@pytest.mark.parametrize("kind", ["sacred-files", pytest.param("sacred-mongo", marks=pytest.mark.slow)])
def test_values_of_stock_sacred_that_are_no_numbers_are_shown_copied_and_reported(kind, tmp_path, request, capsys):
    ex = sacred.Experiment("others", save_git_info=False)
    url, name = (request.getfixturevalue("mongo_url"), "others_of_sacred") if kind == "sacred-mongo" else ("", "")
    observer = observer_of(kind, tmp_path, url, name)
    ex.observers.append(observer)

    @ex.main
    def train(_run):
        for step in range(2):
            _run.log_scalar("lists", [step, step + 1], step)
            _run.log_scalar("mixed", [1] if step else 0.5, step)
            _run.log_scalar("words", "a", step)

    ex.run(options={"--capture": "no"})
    where = f"{url}/{name}" if url else str(tmp_path / "store")
    try:
        with open_store(where) as store, open_store(tmp_path / "target", create=True) as target:
            run = store.get("1")
            for each in (run, copy(run, target).run):
                assert each.other_values() == OTHERS
                points = each.metric("mixed")
                assert (points.steps.tolist(), points.values.tolist()) == ([0], [0.5])
                assert each.summary["mixed"]["count"] == 1
            [exported] = export_to([run], tmp_path / "logs", "tensorboard")
            assert exported.left_out == ("logged values that are no numbers",)
        for words, text in (
            (("metrics", "1"), "lists (2), mixed (1), words (2)"),
            (("metrics", "1", "lists"), "[0, 1]"),
            (("show", "1"), "2     1  [1, 2]"),
            (("plot", "1", "--metric", "words"), "(without a number: run 1)"),
        ):
            assert main(["--store", where, *words]) == 0
            assert text in capsys.readouterr().out
        with TestClient(create_app(lambda: open_store(where), Policy()), base_url="http://127.0.0.1") as client:
            page = client.get("/runs/1").text
        assert "Values that are no numbers" in page
        assert "[1, 2]" in page
    finally:
        if url:
            observer.runs.database.client.drop_database(name)
            observer.runs.database.client.close()


def test_resources_of_a_stock_run_below_a_relative_folder_are_read_and_copied(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("1,2\n")
    ex = sacred.Experiment("relative", save_git_info=False)
    ex.observers.append(FileStorageObserver("in/my_runs"))
    ex.main(lambda: ex.open_resource("data.csv").close())
    ex.run(options={"--capture": "no"})
    monkeypatch.chdir("/")
    with open_store(tmp_path / "in" / "my_runs") as store:
        [resource] = store.get("1").resources.values()
        assert resource.read() == b"1,2\n"
        copied = copy(store.get("1"), target)
    assert copied.left_out == ()
    [resource] = copied.run.resources.values()
    assert resource.read() == b"1,2\n"


@pytest.fixture(params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
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
        outputs = {rank: content.read() for rank, content in run.rank_outputs.items()}
        assert outputs == {2: b"hello from 2 \xff", 10: b"hello from 10 \xff"}
        assert "rank_outputs" not in run.document or run.store.where.startswith("mongodb")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", MARKED)
def test_copy_holds_all_and_copying_again_makes_no_other(origins, kind, target, tmp_path):
    with open_store(origins[kind]) as origin:
        check(origin.get("1"), kind)
        origin.write_note(origin.tag(origin.get("1"), ["best"]), "a note é")
        origin.note_reproduction(origin.get("1"), {"verdict": "IDENTICAL", "by": "0" * 32})
        origin.rename(origin.get("1"), "wider é")
        verdicts = origin.get("1").reproductions
        copied = copy(origin.get("1"), target)
        assert copied.is_new
        said = ["resource"] if kind == "sacred-mongo" else []
        assert [text.partition(" ")[0] for text in copied.left_out] == said
        check(copied.run, kind)
        assert (copied.run.tags, copied.run.note, copied.run.display_name) == (["best"], "a note é", "wider é")
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
            for path in (target.backend.folder / "1").rglob("*"):
                assert (
                    not path.is_file()
                    or path.name in ("run.json", "notes.json")
                    or path.read_bytes()
                    == (origin.backend.folder / "1" / path.relative_to(target.backend.folder / "1")).read_bytes()
                )


def snapshot(store):
    if store.where.startswith("mongodb"):
        return {
            name: sorted(map(repr, store.backend.mongo.database[name].find({}, {"uploadDate": 0, "used": 0})))
            for name in store.backend.mongo.database.list_collection_names()
        }
    return {
        path: path.read_bytes()
        for path in store.backend.folder.rglob("*")
        if path.is_file() and not path.name.startswith(".index")
    }


def test_copied_folder_is_one_of_our_layout(origins, tmp_path):
    with open_store(origins["our-mongo"]) as origin, open_store(tmp_path / "t", create=True) as target:
        run = copy(origin.get("1"), target).run
        start, times = run.start_time.replace(tzinfo=None), run.metric("val.odd").times
    folder = tmp_path / "t" / "1"
    assert len(read_media(folder)) == 10
    odd = json.loads((folder / "metrics.json").read_bytes())["val.odd"]
    assert odd["steps"] == [0.5, 1.5, 2.25, 3.0]
    stamps = [datetime.fromisoformat(text) for text in odd["timestamps"]]
    assert [(stamp - start).total_seconds() for stamp in stamps] == pytest.approx(times.tolist(), abs=1e-5)
    assert min(times) > 0
    assert (folder / "metrics.bin").stat().st_size % 24 == 0
    assert not (tmp_path / "t" / ".taking").exists()
    assert ArtifactStore(tmp_path / "t").resolve("numbers").path(tmp_path / "out").read_text() == "a"


EXACT = {
    "config": {"large": 2**64 + 1, "huge": 10**40, "lone": "\ud800", "deep": [{"a.b": 2**70}], "same": {"x": 1}},
    "info": {"val.acc": 1, "$set": {"a.b": [2**65]}, "a,b": 2},
    "provenance": {"packages": {"ruamel.yaml": "1.2"}},
}


def write_exact(store):
    """Write a run by hand of which no part is stored as it is, with checkpoints."""
    folder = store / "1"
    (folder / "checkpoints" / "start").mkdir(parents=True)
    times = {name: f"2026-01-01T00:00:0{n}.123456" for n, name in enumerate(("start_time", "heartbeat", "stop_time"))}
    entry = {"format": "sacristan-1", "uid": "a" * 32, "experiment": {"name": "e", "sources": []}, "command": "main"}
    entry |= {"status": "COMPLETED", "host": {}, "result": {"top.1": 2**66}, "artifacts": [], "resources": [], **times}
    for name, document in {"run": entry, **EXACT}.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "checkpoints" / "last.pt").write_bytes(b"state")
    (folder / "checkpoints" / "best.pt").write_bytes(b"weights" * 100_000)
    (folder / "checkpoints" / "start" / "step-000000120.pt").write_bytes(b"start")
    (folder / "checkpoints" / ".half.tmp").write_bytes(b"h")
    return entry


def test_folder_to_mongo_to_folder_is_lossless(tmp_path, database, mongo_url, capsys):
    (tmp_path / "back").mkdir()
    entry = write_exact(tmp_path / "store")
    where = f"{mongo_url}/{database.name}"
    with open_store(tmp_path / "store") as store, open_store(where) as there, open_store(tmp_path / "back") as back:
        first = copy(store.get("1"), there)
        second = copy(first.run, back)
        assert (first.left_out, second.left_out) == ((), ())
        for run in (store.get("1"), first.run, second.run):
            assert {name: getattr(run, name) for name in EXACT} == EXACT
            assert {key: run.document.get(key) for key in entry if key not in ("experiment", "artifacts")} == {
                key: value for key, value in entry.items() if key not in ("experiment", "artifacts")
            }
            assert {name: len(content.read()) for name, content in run.checkpoints.items()} == {
                "checkpoints/best.pt": 700_000,
                "checkpoints/last.pt": 5,
                "checkpoints/start/step-000000120.pt": 5,
            }
    assert main(["artifacts", "ls", "1", "--store", where]) == 0
    assert "checkpoints/best.pt" in capsys.readouterr().out


def test_what_was_changed_in_the_database_since_is_not_hidden_by_what_was_recorded(tmp_path, database, mongo_url):
    entry = write_exact(tmp_path / "store")
    with open_store(tmp_path / "store") as store, open_store(f"{mongo_url}/{database.name}") as there:
        copy(store.get("1"), there)
        changed = {"stop_time": datetime(2026, 2, 2), "result": 0.5, "config.same.x": 2}
        database.runs.update_one({}, {"$set": changed})
        run = there.get("1")
        assert run["stop_time"].startswith("2026-02-02T00:00:00")
        assert run["start_time"] == entry["start_time"]
        assert run.result == 0.5
        assert run.config["same"] == {"x": 2}
        assert run.info == EXACT["info"]


def test_copy_into_a_database_tells_which_metadata_it_changes(tmp_path, database, mongo_url):
    entry = write_exact(tmp_path / "store")
    (tmp_path / "store" / "1" / "a.txt").write_text("a")
    details = {"a.txt": {"metadata": {"val.acc": 1}}}
    entry |= {"artifacts": ["a.txt"], "artifact_details": details}
    (tmp_path / "store" / "1" / "run.json").write_text(json.dumps(entry))
    with open_store(tmp_path / "store") as store, open_store(f"{mongo_url}/{database.name}") as there:
        [said] = copy(store.get("1"), there).left_out
    assert said.startswith("metadata of the artifact 'a.txt': its keys with . or $")


def test_checkpoints_are_delivered_where_asked_for_and_stay(tmp_path, database, mongo_url):
    write_exact(tmp_path / "store")
    folder, url = tmp_path / "store" / "1", f"{mongo_url}/{database.name}"
    observer = MongoObserver(mongo_url, database.name, checkpoints=True)
    (folder / "destination.json").write_text(json.dumps(observer.destination.written()))
    assert [result.outcome for result in sync(tmp_path / "store")] == ["delivered"]
    with open_store(url) as store:
        there = store.get("1").checkpoints
        assert there["checkpoints/last.pt"].read() == b"state"
        # Another delivery, which does not send them, leaves them as they are.
        (folder / "delivered.json").unlink()
        (folder / "run.json").write_text((folder / "run.json").read_text().replace("COMPLETED", "FAILED"))
        assert [result.outcome for result in sync(tmp_path / "store", url=url)] == ["delivered"]
        Delivery(folder, folder.parent, database).advance(last=True)
        assert store.get("1").status == "FAILED"
        assert store.get("1").checkpoints["checkpoints/last.pt"].read() == b"state"


def test_checkpoints_that_were_not_delivered_are_those_of_the_folder(tmp_path, database, mongo_url):
    write_exact(tmp_path / "store")
    path = tmp_path / "store" / "1" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "folder": str(path.parent)}))
    assert [result.outcome for result in sync(tmp_path / "store", url=f"{mongo_url}/{database.name}")] == ["delivered"]
    with open_store(f"{mongo_url}/{database.name}") as store:
        assert store.get("1").checkpoints["checkpoints/last.pt"].read() == b"state"
        path.parent.rename(tmp_path / "elsewhere")
        assert store.get("1").checkpoints == {}


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


@pytest.fixture(params=["source", "resource", "media"])
def damaged(request, origins, tmp_path):
    """A folder with a run of ours, one of whose contents was changed since, and the name of that."""
    shutil.copytree(origins["our-files"], tmp_path / "damaged")
    [path, *_] = {
        "source": lambda: (tmp_path / "damaged" / "_sources").glob("part_*"),
        "resource": lambda: (tmp_path / "damaged" / "_resources").iterdir(),
        "media": lambda: (tmp_path / "damaged" / "1" / "media").glob("*.png"),
    }[request.param]()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"#")  # of the same length
    return tmp_path / "damaged", path, content


def test_damaged_content_stays_where_it_is_until_it_is_put_back_or_removed(damaged, target, tmp_path, capsys):
    folder, path, content = damaged
    archive = tmp_path / "runs.zip"
    for words in (["copy", "1", "--to", target.where], ["export", "1", "-o", str(archive)]):
        assert main(["--store", str(folder), *words]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert re.search(
            r"error: run 1: .* has the (MD5|SHA-256) [0-9a-f]+, recorded was [0-9a-f]+: .* damaged; restore", said
        )
        assert target.find() == []
        assert not archive.exists()
    good = path.read_bytes()
    path.write_bytes(content)
    assert main(["--store", str(folder), "copy", "1", "--to", target.where]) == 0
    path.write_bytes(good)
    path.unlink()
    with open_store(folder) as store, open_store(tmp_path / "without", create=True) as without:
        assert len(copy(store.get("1"), without).left_out) == (path.parent.name != "media")


def test_damaged_source_is_not_written_by_sources_get_and_not_sent_by_sync(
    origins, tmp_path, mongo_url, database, capsys
):
    shutil.copytree(origins["our-files"], tmp_path / "damaged")
    [path] = (tmp_path / "damaged" / "_sources").glob("part_*")
    path.write_bytes(b"changed")
    assert main(["--store", str(tmp_path / "damaged"), "sources", "get", "1", "-o", str(tmp_path / "out")]) == 1
    assert "has the MD5" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*part.py"))
    sync(tmp_path / "damaged", f"{mongo_url}/{database.name}")
    assert database.fs.files.find_one({"md5": hashlib.md5(b"changed").hexdigest()}) is None


def test_damaged_content_of_the_same_name_is_mended_by_a_copy_and_by_a_run(origins, tmp_path):
    with open_store(origins["our-files"]) as origin, open_store(tmp_path / "t", create=True) as target:
        copy(origin.get("1"), target)
        [path] = (tmp_path / "t" / "_sources").glob("part_*")
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"#")
        target.remove([target.get("1")])
        copy(origin.get("1"), target)
        assert path.read_bytes() == content
    path.write_bytes(content[:-1] + b"#")
    (tmp_path / "part.py").write_bytes(content)
    keep(tmp_path / "part.py", path.parent, tmp_path / "t")
    assert path.read_bytes() == content


def test_damaged_source_in_a_database_stays_there(origins, tmp_path, mongo_url, database):
    with open_store(f"{mongo_url}/{database.name}") as store, open_store(tmp_path / "t", create=True) as target:
        with open_store(origins["our-files"]) as origin:
            copy(origin.get("1"), store)
        [file] = database.fs.files.find({"filename": {"$regex": "part.py$"}})
        database.fs.chunks.update_one({"files_id": file["_id"], "n": 0}, {"$set": {"data": b"#" * file["length"]}})
        with pytest.raises(DamagedError, match=r"source .* has the MD5"):
            copy(store.get("1"), target)
        assert target.find() == []


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
