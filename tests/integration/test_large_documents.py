"""Whatever a run holds is delivered: beyond MongoDB's bounds as files, with stand-ins in the run's document."""

import json
import math
import string
from pathlib import Path

import bson
import gridfs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.documents import ENTRY_BYTES, restore
from sacristan.observers.record.identity import new_uid
from sacristan.runs import StoreError, open_store

BOUND_BYTES = 14 * 2**20


def record(main, *observers, config=None):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    if config:
        ex.add_config(config)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


@pytest.fixture
def both(tmp_path, mongo_url, database):
    """Observers that record below `tmp_path / "runs"` and in the database."""
    return FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, db_name=database.name)


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that is recorded, and not delivered."""
    record(lambda _run: _run.log_scalar("loss", 1.0), FileObserver(tmp_path / "runs"))
    return tmp_path / "runs" / "1"


def deliver(folder, database):
    """Deliver a folder, and return the run's document as it stands, and with its files in place."""
    delivery = Delivery(folder, folder.parent, database)
    delivery.advance()
    assert delivery.is_complete
    found = database.runs.find_one({"_id": delivery.run_id})
    assert len(bson.encode(found)) < BOUND_BYTES
    return found, restored(found, database)


def restored(document, database):
    files = gridfs.GridFS(database)
    return restore(document, lambda file_id: files.get(file_id).read())


@pytest.mark.slow
def test_info_of_20_megabytes_is_a_file_and_small_entries_stay(both, database, mongo_url):
    large = {"texts": ["x" * 1000] * 10_000, "deeper": {"text": "y" * 10_000_000, "small": 3}, "note": "here"}

    def main(_run):
        _run.log_scalar("loss", 0.5)
        _run.info.update(large)
        return 7

    record(main, *both)
    found = database.runs.find_one()
    assert (found["status"], found["result"]) == ("COMPLETED", 7)
    assert found["info"]["note"] == "here"
    assert found["info"]["deeper"]["small"] == 3
    assert found["info"]["texts"].keys() == {"stored_as_file", "bytes"}
    assert found["info"]["metrics"][0]["name"] == "loss"
    assert {**restored(found, database)["info"], "metrics": 0} == {**large, "metrics": 0}
    with open_store(f"{mongo_url}/{database.name}") as store:
        assert {**store.get("1").info, "metrics": 0} == {**large, "metrics": 0}


def test_summary_of_thousands_of_metrics_stays_in_the_document(folder, database):
    row = {"count": 1, "first": 0.5, "last": 0.5, "min": 0.5, "max": 0.5, "mean": 0.5, "finite": 1, "last_step": 1}
    (folder / "summary.json").write_text(json.dumps({f"metric/{number}": row for number in range(5_000)}))
    deliver(folder, database)
    assert database.runs.find_one({"summary.metric/4999.last": 0.5})


def test_info_of_many_small_entries_is_one_file_that_leaves_the_metrics(folder, database):
    info = {f"key {number}": number for number in range(50_000)}
    (folder / "info.json").write_text(json.dumps(info))
    found, whole = deliver(folder, database)
    assert found["info"].keys() == {"stored_as_file", "bytes", "metrics"}
    assert whole["info"] == {**info, "metrics": found["info"]["metrics"]}
    assert found["info"]["metrics"][0]["name"] == "loss"


@pytest.mark.slow
def test_entry_of_many_files_is_read_by_few_queries(folder, database, mongo_url):
    info = {f"layer {number}": {f"{number} {entry}": entry for entry in range(100)} for number in range(400)}
    (folder / "info.json").write_text(json.dumps(info))
    found, _ = deliver(folder, database)
    assert str(found["info"]).count("stored_as_file") > 100
    with open_store(f"{mongo_url}/{database.name}") as store:
        run = store.get("1")
        database.command("profile", 2)
        read = run.info
        database.command("profile", 0)
        assert {**read, "metrics": 0} == {**info, "metrics": 0}
        assert database["system.profile"].count_documents({"op": {"$in": ["query", "getmore"]}}) < 10
        # One that is damaged is told as any other is.
        file = next(one["stored_as_file"] for one in found["info"].values() if "stored_as_file" in one)
        chunk = database["fs.chunks"].find_one({"files_id": bson.ObjectId(file)})
        database["fs.chunks"].update_one({"_id": chunk["_id"]}, {"$set": {"data": chunk["data"][:-1] + b"!"}})
        with pytest.raises(StoreError, match="a large entry of run 1 is not JSON"):
            store.get("1").info.keys()


def test_info_that_changes_leaves_one_version_of_its_file(folder, database):
    delivery = Delivery(folder, folder.parent, database)
    for number in range(4):
        (folder / "info.json").write_text(json.dumps({"text": str(number) * 1_000_000}))
        delivery.advance()
    assert database.fs.files.count_documents({"filename": "entry.json"}) == 1
    assert restored(database.runs.find_one(), database)["info"]["text"] == "3" * 1_000_000
    Delivery(folder, folder.parent, database).advance()
    assert database.fs.files.count_documents({"filename": "entry.json"}) == 1
    assert database.fs.chunks.count_documents({"files_id": {"$nin": database.fs.files.distinct("_id")}}) == 0


def test_large_info_of_a_run_that_goes_on_is_sent_now_and_then_and_at_the_end(folder, database):
    run = json.loads((folder / "run.json").read_text())
    delivery = Delivery(folder, folder.parent, database)
    for number, status in enumerate(["RUNNING", "RUNNING", "RUNNING", "COMPLETED"]):
        (folder / "run.json").write_text(json.dumps({**run, "status": status}))
        (folder / "info.json").write_text(json.dumps({"text": str(number) * 1_000_000}))
        delivery.advance()
        # What stands in the database can be read at every moment.
        whole = restored(database.runs.find_one(), database)
        assert (whole["status"], whole["info"]["text"][0]) == (status, "3" if number == 3 else "0")


@pytest.mark.slow
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_artifacts_and_sources_are_listed(folder, database, count):
    run = json.loads((folder / "run.json").read_text())
    (folder / "one.txt").write_text("one")
    names = [f"artifacts/number-{number}.txt" for number in range(count)]
    (folder / "artifacts").mkdir()
    for name in names:
        (folder / name).hardlink_to(folder / "one.txt")
    stored = run["experiment"]["sources"][0][1]
    sources = [[f"package/module_{number}.py", stored] for number in range(count // 2)]
    run |= {"artifacts": names, "resources": sources, "experiment": {**run["experiment"], "sources": sources}}
    (folder / "run.json").write_text(json.dumps(run))
    found, _ = deliver(folder, database)
    assert [file["name"] for file in found["artifacts"]] == names
    assert gridfs.GridFS(database).get(found["artifacts"][-1]["file_id"]).read() == b"one"
    assert [name for name, _ in found["experiment"]["sources"]] == [name for name, _ in sources]
    assert len(found["resources"]) == count // 2


def test_list_of_resources_beyond_the_bound_is_cut_and_whole_in_a_file(folder, database, mongo_url):
    run = json.loads((folder / "run.json").read_text())
    stored = run["experiment"]["sources"][0][1]
    run["resources"] = [[f"{number:06d}" + "x" * 1000, stored] for number in range(5_000)]
    (folder / "run.json").write_text(json.dumps(run))
    found, whole = deliver(folder, database)
    assert 1_000 < len(found["resources"]) < 5_000
    assert [name for name, _ in whole["resources_file"]] == [name for name, _ in run["resources"]]
    with open_store(f"{mongo_url}/{database.name}") as store:
        resources = store.get("1").resources
        assert list(resources) == [name for name, _ in run["resources"]]
        assert resources[run["resources"][-1][0]].read()


@pytest.mark.slow
def test_config_of_a_megabyte_keeps_what_is_small_findable(both, database):
    config = {"lr": 0.1, "data": {"batch_size": 8, "words": ["word"] * 200_000}}
    record(lambda: 1, *both, config=config)
    found = database.runs.find_one({"config.lr": 0.1, "config.data.batch_size": 8})
    assert len(bson.encode(found["config"])) < ENTRY_BYTES
    assert restored(found["config"], database)["data"] == config["data"]


@pytest.mark.slow
def test_diff_of_17_megabytes_is_a_file(folder, database):
    provenance = {"git": {"commit": "abc", "diff": "+ line\n" * (17 * 2**20 // 7)}, "packages": {"torch": "2"}}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    found, whole = deliver(folder, database)
    assert found["provenance"]["git"]["commit"] == "abc"
    assert found["provenance"]["git"]["diff"]["bytes"] > 17 * 2**20
    assert whole["provenance"] == provenance


@pytest.mark.parametrize("levels", [10, 70, 130])
def test_deep_nesting_is_delivered_and_restored(folder, database, levels):
    info = {"top": 1}
    for level in range(levels):
        info = {"down": [info]} if level % 2 else {"down": info, "beside": level}
    for name in ("info.json", "config.json"):
        (folder / name).write_text(json.dumps(info))
    _, whole = deliver(folder, database)
    assert {**whole["info"], "metrics": 0} == {**info, "metrics": 0}
    assert whole["config"] == info


@pytest.mark.sampled(2)
@pytest.mark.parametrize("levels", [201, 900, 5_000, 100_000])
def test_nesting_deeper_than_is_read_is_kept_as_text(folder, database, levels):
    text = '{"a":' * levels + "1" + "}" * levels
    (folder / "info.json").write_text(text)
    delivery = Delivery(folder, folder.parent, database)
    delivery.advance()
    found = database.runs.find_one()
    assert found["status"] == "COMPLETED"
    content = gridfs.GridFS(database).get(bson.ObjectId(found["info"]["stored_as_file"])).read()
    assert content.decode() == text


def test_keys_that_become_the_same_are_both_kept(folder, database):
    (folder / "info.json").write_text(json.dumps({"a.b": 1, "a,b": 2, "$x": 3, "@x": 4, "n\0": 5, "n": 6, "": 7}))
    found, _ = deliver(folder, database)
    values = {key: value for key, value in found["info"].items() if key != "metrics"}
    assert sorted(values.values()) == [1, 2, 3, 4, 5, 6, 7]
    assert (values["a,b"], values["@x"], values["n"], values[""]) == (1, 3, 5, 7)


KEYS = st.one_of(st.text(max_size=8), st.sampled_from(["$set", "a.b", "_id", "", "\0", "\ud800", "$", ".", "$ref"]))
NUMBERS = st.one_of(st.integers(-(2**200), 2**200), st.floats())
TEXTS = st.one_of(st.text(st.characters(), max_size=20), st.sampled_from(["\ud800", "\0", "x" * 300_000]))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=30,
)


@pytest.mark.slow
@pytest.mark.parametrize("num_documents", [6, pytest.param(200, marks=pytest.mark.nightly)])
def test_nothing_that_json_holds_stops_delivery(folder, database, num_documents):
    @settings(max_examples=num_documents, suppress_health_check=list(HealthCheck))
    @given(info=st.dictionaries(KEYS, JSON, max_size=5), config=st.dictionaries(KEYS, JSON, max_size=3), result=JSON)
    @example(info={"\ud800": math.nan, "$a.b\0": 2**70}, config={}, result={"": [{"$ref": 1, "$id": 2}]})
    def check(info, config, result):
        deliver_twice(folder, database, info, config, result)

    check()


def deliver_twice(folder, database, info, config, result):
    run = json.loads((folder / "run.json").read_text())
    run |= {"uid": new_uid(), "result": result, "meta": {**run["meta"], "given": info}}
    run |= {"host": info, "fail_trace": ["line\n", "\ud800"]}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "info.json").write_text(json.dumps(info))
    found, _ = deliver(folder, database)
    assert found["status"] == "COMPLETED"
    assert len(found["info"]) == len({**info, "metrics": 0})
    # Two that read the same folder write the same document.
    again, _ = deliver(folder, database)
    assert bson.encode(found) == bson.encode(again)


def test_metric_names_of_every_kind_are_delivered(both, database):
    names = ["a.b", "$loss", "x" * 2_000, "größe/損失", "with space", "a,b", "tab\t", "metrics", "_id"]
    names += ["\ud800", "null\0byte", *string.punctuation]

    def main(_run):
        for number, name in enumerate(names):
            _run.log_scalar(name, number, 1)

    record(main, *both)
    found = database.runs.find_one()
    assert found["status"] == "COMPLETED"
    ids = {bson.ObjectId(metric["id"]) for metric in found["info"]["metrics"]}
    assert {metric["_id"] for metric in database.metrics.find()} == ids
    for number, name in enumerate(names):
        stored = r"\ud800" if name == "\ud800" else name
        assert database.metrics.find_one({"run_id": 1, "name": stored})["values"] == [number]
    assert len(found["summary"]) == len(ids) >= len(names)


def test_artifact_that_is_a_folder_or_not_readable_does_not_stop_delivery(folder, database):
    run = json.loads((folder / "run.json").read_text())
    run["artifacts"] = ["folder", "gone.txt", "kept.txt"]
    (folder / "folder").mkdir()
    (folder / "kept.txt").write_text("kept")
    (folder / "run.json").write_text(json.dumps(run))
    found, _ = deliver(folder, database)
    assert [file["name"] for file in found["artifacts"]] == ["kept.txt"]
    # What is in the database only by now stays there.
    (folder / "kept.txt").unlink()
    again, _ = deliver(folder, database)
    assert again["artifacts"] == found["artifacts"]
    assert gridfs.GridFS(database).get(again["artifacts"][0]["file_id"]).read() == b"kept"


def test_artifact_that_is_written_again_leaves_its_last_version(tmp_path, folder, database):
    run = json.loads((folder / "run.json").read_text())
    run["artifacts"] = ["model.pt"]
    (folder / "run.json").write_text(json.dumps(run))
    delivery = Delivery(folder, folder.parent, database)
    for number in range(3):
        (folder / "model.pt").write_text(str(number) * 600_000)
        delivery.advance()
    assert database.fs.files.count_documents({"filename": "artifact://runs/1/model.pt"}) == 1
    file_id = database.runs.find_one()["artifacts"][0]["file_id"]
    assert gridfs.GridFS(database).get(file_id).read() == b"2" * 600_000


@pytest.mark.slow
def test_large_metadata_of_an_artifact_file_are_delivered_and_stay(folder, database):
    metadata = {"history": list(range(100_000)), "epochs": 3}
    run = json.loads((folder / "run.json").read_text())
    run |= {"artifacts": ["model.pt"], "artifact_details": {"model.pt": {"metadata": metadata}}}
    (folder / "model.pt").write_bytes(b"weights")
    (folder / "run.json").write_text(json.dumps(run))
    for _ in range(2):
        found, _ = deliver(folder, database)
        file = database.fs.files.find_one({"_id": found["artifacts"][0]["file_id"]})
        assert file["metadata"]["history"].keys() == {"stored_as_file", "bytes"}
        assert restored(file["metadata"], database) == metadata


def test_upload_that_broke_off_is_finished_by_the_next(folder, database):
    text = json.dumps({"text": "x" * 3_000_000})
    (folder / "info.json").write_text(text)
    deliver(folder, database)
    file = database.fs.files.find_one({"filename": "entry.json"})
    database.fs.files.delete_one({"_id": file["_id"]})
    database.fs.chunks.delete_many({"files_id": file["_id"], "n": {"$gt": 4}})
    _, whole = deliver(folder, database)
    assert len(whole["info"]["text"]) == 3_000_000


def test_artifact_with_metadata_beyond_an_entry_is_delivered(tmp_path, both, database):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "weights").write_bytes(b"weights")
    # Within what may be logged as JSON, and several times as long as BSON.
    metadata = {"history": [1] * 60_000, "epochs": 3}
    record(lambda _run: _run.log_artifact("net", tmp_path / "net", "model", metadata=metadata) and None, *both)
    assert database.runs.find_one()["status"] == "COMPLETED"
    found = database.artifacts.find_one({"metadata.epochs": 3})
    assert found["metadata"]["history"].keys() == {"stored_as_file", "bytes"}
    assert restored(found["metadata"], database) == metadata
