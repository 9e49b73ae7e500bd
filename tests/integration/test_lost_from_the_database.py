"""The database loses what it was given, in mid-run or later: it is asked before anything says delivered."""

import logging
import shutil
import uuid

import gridfs
import pymongo
import pytest

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver, Text, read_metrics
from sacristan.observers.mongo.delivery import Delivery
from sacristan.runs import sync

LOSSES = {
    "makers": lambda database: database.artifacts.update_many({}, {"$unset": {"made_by": ""}}),
    "piece": lambda database: database.fs.chunks.delete_one({"n": 1}),
    "database": lambda database: database.client.drop_database(database.name),
    "runs": lambda database: database.runs.drop(),
    "document": lambda database: database.runs.delete_one({}),
    "entry": lambda database: database.runs.update_one({}, {"$unset": {"config": ""}}),
    "metrics": lambda database: database.metrics.drop(),
    "metric": lambda database: database.metrics.delete_one({"name": "over"}),
    "values": lambda database: database.metrics.update_one({"name": "over"}, {"$set": {"values": [1.0]}}),
    "chunk": lambda database: database.metrics_chunks.delete_one({"index": 1}),
    "media": lambda database: database.media.delete_one({"number": 1}),
    "artifacts": lambda database: database.artifacts.drop(),
    "files": lambda database: database.fs.files.drop(),
    "pieces": lambda database: database.fs.chunks.drop(),
}


@pytest.fixture(scope="module", autouse=True)
def _small_documents():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sacristan.observers.mongo.series.POINTS_PER_DOCUMENT", 40)
        patch.setattr("sacristan.observers.mongo.series.POINTS_PER_CHUNK", 16)
        yield


def record(main, *observers):
    ex = Experiment("recorded", system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


def log(_run, folder):
    """Log something of every kind; of `over` nothing comes later."""
    for step in range(100):
        _run.log({"loss": step / 7, "over": step / 3}, step)
    _run.log_media("notes", Text("first"), 0)
    _run.log_media("notes", Text("second"), 1)
    (folder / "made.txt").write_text("made")
    _run.add_artifact(str(folder / "made.txt"))
    _run.add_resource(str(folder / "made.txt"))
    _run.log_artifact("kept", folder / "made.txt")
    _run.info["long"] = "x" * 300_000
    print("hello")
    _run.flush()


def whole(database):
    """Return what is in the database, but for what tells runs and times of uploading apart."""
    found = {}
    for name in sorted(database.list_collection_names()):
        documents = [{**document, "uploadDate": 0, "used": 0, "delivery_turn": 0} for document in database[name].find()]
        found[name] = sorted(documents, key=lambda document: str(document["_id"]))
    return found


def deliver(delivery):
    for _ in range(3):
        delivery.advance(last=True)
        if delivery.is_complete:
            return
    raise AssertionError("the run is not delivered")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a folder of runs with a run that has something of every kind."""
    folder = tmp_path_factory.mktemp("recorded")
    record(lambda _run: log(_run, folder), FileObserver(folder / "runs"))
    return folder / "runs"


@pytest.fixture(scope="module")
def undisturbed(recorded, mongo_url):
    """Return what is in a database that never lost anything of that run."""
    with pymongo.MongoClient(mongo_url) as client:
        database = client[f"undisturbed_{uuid.uuid4().hex}"]
        deliver(Delivery(recorded / "1", recorded, database))
        yield whole(database)
        client.drop_database(database.name)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_database_loses_is_sent_again(tmp_path, recorded, undisturbed, database, mongo_url, loss):
    folder = tmp_path / "runs" / "1"
    shutil.copytree(recorded, tmp_path / "runs")
    ended = (folder / "run.json").read_text()
    (folder / "run.json").write_text(ended.replace('"COMPLETED"', '"RUNNING"'))
    delivery = Delivery(folder, folder.parent, database)
    delivery.advance()
    LOSSES[loss](database)
    (folder / "run.json").write_text(ended)
    deliver(delivery)
    assert whole(database) == undisturbed
    assert sync_all(folder.parent, database, mongo_url) == ["up to date"]
    if loss != "entry":  # notes and other programs change entries, too
        LOSSES[loss](database)
        assert sync_all(folder.parent, database, mongo_url) == ["delivered"]
        assert whole(database) == undisturbed


def sync_all(store, database, url):
    return [result.outcome for result in sync(store, f"{url}/{database.name}")]


def test_spool_goes_only_when_the_database_has_the_run(tmp_path, database, mongo_url, caplog, wait_for):
    def main(_run):
        log(_run, tmp_path)
        wait_for(lambda: database.runs.find_one({"artifacts.name": "made.txt"}), "the run in the database")
        database.client.drop_database(database.name)

    with caplog.at_level(logging.WARNING, "observers"):
        record(main, MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool"))
    run = database.runs.find_one()
    assert run["status"] == "COMPLETED"
    assert gridfs.GridFS(database).get(run["artifacts"][0]["file_id"]).read() == b"made"
    assert database.metrics.find_one({"name": "over"})["steps"] == list(range(40))
    assert sum(chunk["count"] for chunk in database.metrics_chunks.find({"name": "over"})) == 60
    assert list((tmp_path / "spool").iterdir()) == []
    assert "MongoDB has lost the run's document" in caplog.text


def test_run_whose_id_another_run_has_taken_meanwhile_keeps_its_points(tmp_path, recorded, database):
    shutil.copytree(recorded, tmp_path / "runs")
    delivery = Delivery(tmp_path / "runs" / "1", tmp_path / "runs", database)
    deliver(delivery)
    database.runs.drop()
    database.runs.insert_one({"_id": 1, "uid": "f" * 32, "status": "RUNNING"})
    deliver(delivery)
    assert delivery.run_id == 2
    assert database.metrics.count_documents({"run_id": 2}) == 2
    assert database.metrics_chunks.count_documents({"run_id": 2}) == 8
    assert database.media.count_documents({"run_id": 2}) == 2
    assert database.runs.find_one({"_id": 1})["uid"] == "f" * 32


def test_run_that_was_removed_in_mid_run_stays_away(tmp_path, database, mongo_url, wait_for, caplog):
    def main(_run):
        log(_run, tmp_path)
        wait_for(lambda: database.runs.find_one({"artifacts.name": "made.txt"}), "the run in the database")
        uid = database.runs.find_one()["uid"]
        database.removed.insert_one({"_id": uid})
        database.runs.drop()

    record(main, FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, database.name))
    assert database.runs.find_one() is None
    assert [result.outcome for result in sync(tmp_path / "runs")] == ["removed from the database"]
    assert "was removed" in caplog.text
    assert read_metrics(tmp_path / "runs" / "1")["over"].steps[-1] == 99
