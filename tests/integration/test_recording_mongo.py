"""`MongoObserver` with real runs on a real server that is stopped and started: nothing is lost, nothing comes twice."""

import json
import math
import random
import shutil
import threading
import uuid
from collections import Counter
from pathlib import Path

import gridfs
import numpy as np
import pymongo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo.errors import AutoReconnect

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import DestinationError, FileObserver, MongoObserver, Text, read_metrics
from sacristan.observers.mongo import Destination, explain
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.series import POINTS_PER_CHUNK, POINTS_PER_DOCUMENT
from sacristan.observers.mongo.shipper import Shipper
from sacristan.observers.record.points import POINT
from sacristan.runs import open_store, sync
from tests.recording import Flaky, logs_for_ever


def record(main, *observers, options=None):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys", **(options or {})})


def mongo_of(database, url, **options):
    return MongoObserver(url, db_name=database.name, **options)


def points_in(database, run_id, name):
    """Return all steps and values of a metric: of Sacred's document, and of the chunks beyond it."""
    document = database.metrics.find_one({"run_id": run_id, "name": name})
    steps, values = list(document["steps"]), list(document["values"])
    assert len(document["timestamps"]) == len(steps) == document["count"]
    for chunk in database.metrics_chunks.find({"run_id": run_id, "name": name}).sort("index"):
        points = np.frombuffer(chunk["data"], POINT)
        assert len(points) == chunk["count"]
        steps += points["step"].tolist()
        values += points["value"].tolist()
    return steps, values


def test_run_is_delivered_in_sacreds_schema(tmp_path, database, mongo_url):
    artifact = tmp_path / "made.txt"
    artifact.write_text("made")

    def main(_run):
        _run.log_scalar("loss", 0.5, 3)
        _run.log_scalar("loss", math.nan, 4)
        _run.info["a.b"] = 1
        _run.add_artifact(str(artifact))
        print("hello")
        return 7

    run = record(main, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    found = database.runs.find_one()
    assert found["_id"] == 1
    assert found["uid"] == run.meta_info["uid"]
    assert (found["status"], found["result"]) == ("COMPLETED", 7)
    assert found["stop_time"] >= found["start_time"]
    assert "hello" in found["captured_out"]
    assert found["info"]["a,b"] == 1
    metric = database.metrics.find_one({"name": "loss"})
    listed = [entry for entry in found["info"]["metrics"] if not entry["name"].startswith("system/")]
    assert listed == [{"name": "loss", "id": str(metric["_id"])}]
    assert metric["steps"] == [3, 4]
    assert metric["values"][0] == 0.5
    assert math.isnan(metric["values"][1])
    files = gridfs.GridFS(database)
    assert files.get(found["artifacts"][0]["file_id"]).read() == b"made"
    sources = {name: files.get(file_id).read() for name, file_id in found["experiment"]["sources"]}
    assert sources[Path(__file__).name] == Path(__file__).read_bytes()


def test_unmodified_incense_reads_the_run_and_a_queued_one(tmp_path, database, mongo_url):
    incense = pytest.importorskip("incense", reason="incense 0.0.15 installs on Python 3.11 only")

    def main(_run):
        for step in range(5):
            _run.log_scalar("loss", step / 2, step)
        return 1

    record(main, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend([FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url)])
    ex.main(main)
    ex.run(options={"--queue": True})
    loader = incense.ExperimentLoader(mongo_uri=mongo_url, db_name=database.name)
    experiments = {exp.id: exp for exp in loader.find_all()}
    assert experiments[1].metrics["loss"].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert experiments[1].result == 1
    assert experiments[2].status == "QUEUED"
    loader._database.client.close()


def test_collection_of_runs_is_called_as_stock_sacreds_calls_it(tmp_path, database, mongo_url):
    record(lambda _run: _run.log_scalar("x", 1), mongo_of(database, mongo_url, collection="x", failure_dir=tmp_path))
    assert database.x.find_one()["status"] == "COMPLETED"
    assert database.metrics.find_one({"name": "x"})["run_id"] == 1
    assert [name for name in database.list_collection_names() if name.startswith("x_")] == []
    with open_store(f"{mongo_url}/{database.name}#x") as store:
        assert store.get(1).metric("x").values.tolist() == [1.0]


@pytest.mark.parametrize("is_away", [False, True])
def test_text_as_id_is_the_id_in_the_database(tmp_path, database, mongo_url, monkeypatch, is_away):
    url = "mongodb://127.0.0.1:9" if is_away else mongo_url
    if is_away:
        monkeypatch.setattr("sacristan.observers.mongo.observer.DRAIN_BOUND_S", 0.1)
    observer = mongo_of(database, url, failure_dir=tmp_path, serverSelectionTimeoutMS=100)
    run = record(lambda: 1, observer, options={"--id": "exp-a"})
    if is_away:
        sync(tmp_path, mongo_url)
    found = database.runs.find_one()
    assert (found["_id"], found["status"], run._id) == ("exp-a", "COMPLETED", "exp-a")


def test_text_as_id_that_is_taken_is_said(tmp_path, database, mongo_url, caplog):
    database.runs.insert_one({"_id": "exp-a"})
    record(lambda: 1, mongo_of(database, mongo_url, failure_dir=tmp_path), options={"--id": "exp-a"})
    assert database.runs.find_one({"status": "COMPLETED"})["_id"] == 1
    assert "MongoDB has another run of the id 'exp-a'" in caplog.text


def test_spool_is_never_the_folder_that_the_environment_names(tmp_path, database, mongo_url, monkeypatch):
    """It goes when all is delivered, and that folder holds other runs."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "kept").write_text("")
    monkeypatch.setenv("SACRISTAN_RECORD_TO", str(tmp_path / "store"))
    record(lambda: 1, mongo_of(database, mongo_url, failure_dir=tmp_path / "spool"))
    assert database.runs.find_one()["status"] == "COMPLETED"
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["kept"]


def test_spool_is_removed_when_all_is_delivered(tmp_path, database, mongo_url):
    record(lambda: 3, mongo_of(database, mongo_url, failure_dir=tmp_path / "spool"))
    assert database.runs.find_one()["result"] == 3
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.slow
def test_metric_of_400_000_points_is_delivered_whole_in_bounded_documents(tmp_path, database, mongo_url):
    def main(_run):
        for step in range(400_000):
            _run.log_scalar("loss", step / 7, step)
        _run.log_scalar("later", 1.0)
        return 1

    record(main, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    steps, values = points_in(database, 1, "loss")
    assert steps == list(range(400_000))
    assert values[-1] == 399_999 / 7
    assert len(points_in(database, 1, "later")[0]) == 1
    assert database.runs.find_one()["status"] == "COMPLETED"
    assert database.metrics.find_one({"name": "loss"})["count"] == POINTS_PER_DOCUMENT
    assert max(chunk["count"] for chunk in database.metrics_chunks.find({}, {"count": 1})) == POINTS_PER_CHUNK


def test_output_of_17_megabytes_is_kept_whole_and_bounded_in_the_document(tmp_path, database, mongo_url):
    def main(_run):
        for number in range(17):
            print(f"{number:02d}" + "x" * 2**20)
        return 5

    record(main, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    found = database.runs.find_one()
    assert (found["status"], found["result"]) == ("COMPLETED", 5)
    assert len(found["captured_out"]) < 200_000
    whole = gridfs.GridFS(database).get(found["captured_out_file"]).read()
    assert whole == (tmp_path / "runs" / "1" / "cout.txt").read_bytes()
    assert len(whole) > 17 * 2**20
    with open_store(f"{mongo_url}/{database.name}") as store:
        run = store.get(1)
        assert run.read_output() == (whole, len(whole))
        assert run.read_output(-7) == (whole[-7:], len(whole))
        assert run.read_output(2**21, 9) == (whole[2**21 : 2**21 + 9], 2**21 + 9)


def test_identical_runs_store_each_content_once(tmp_path, database, mongo_url):
    resource = tmp_path / "resource.txt"
    resource.write_text("content")

    def main(_run):
        _run.add_resource(str(resource))

    for _ in range(3):
        record(main, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    hashes = [file["sha256"] for file in database.fs.files.find()]
    assert len(hashes) == len(set(hashes))
    stored = database.runs.find_one({"_id": 3})["resources"][0]
    assert gridfs.GridFS(database).get(stored[1]).read() == b"content"


@pytest.mark.parametrize(("taken", "expected"), [(None, 2), (2, 3)])
def test_file_store_ahead_of_an_empty_database_records_in_both(tmp_path, database, mongo_url, taken, expected):
    record(lambda: 1, FileObserver(tmp_path / "runs"))
    if taken:
        database.runs.insert_one({"_id": taken, "status": "COMPLETED"})
    record(lambda: 2, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    on_disk = json.loads((tmp_path / "runs" / "2" / "run.json").read_text())
    found = database.runs.find_one({"uid": on_disk["uid"]})
    assert found["_id"] == expected
    assert found["result"] == 2


def test_indexes_are_made_once(tmp_path, database, mongo_url):
    for _ in range(2):
        record(lambda _run: _run.log_scalar("x", 1), FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    assert {"uid_1", "start_time_-1", "status_1_start_time_-1"} <= set(database.runs.index_information())
    assert "run_id_1_name_1" in database.metrics.index_information()


# ---------------------------------------------------------------------- outages

LOGS = """
import pathlib
ex.observers.append(FileObserver("runs"))
ex.observers.append(MongoObserver("{url}", db_name="outage"))
@ex.automain
def main(_run):
    for step in range(750):
        _run.log_scalar("loss", step / 7, step)
        time.sleep(0.004)
        if step == 200:
            pathlib.Path("reached").touch()
            while not pathlib.Path("go").exists(): time.sleep(0.02)
"""


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.slow), "kill"])
def test_outage_in_the_middle_loses_nothing(tmp_path, mongod, how, start, wait_for):
    mongod.start()
    recorded = start(tmp_path, LOGS.format(url=mongod.url))
    wait_for((tmp_path / "reached").exists, "the middle")
    getattr(mongod, how)()
    (tmp_path / "go").touch()
    wait_for(lambda: "not reachable" in recorded.err.read_text(), "the outage to be noticed")
    mongod.start()
    stderr = recorded.finish()
    assert stderr.count("not reachable") == 1
    with pymongo.MongoClient(mongod.url) as client:
        steps, _ = points_in(client.outage, 1, "loss")
        assert steps == list(range(750))
        assert client.outage.runs.find_one()["status"] == "COMPLETED"


@pytest.mark.slow
def test_server_gone_at_the_end_is_bounded_and_sync_delivers(tmp_path, mongod, start, wait_for, capsys):
    mongod.start()
    recorded = start(tmp_path, LOGS.format(url=f"{mongod.url}/?serverSelectionTimeoutMS=300"), impatient=True)
    wait_for((tmp_path / "reached").exists, "the middle")
    mongod.kill()
    (tmp_path / "go").touch()
    stderr = recorded.finish(timeout_s=40)
    assert "not delivered" in stderr
    assert "sacristan sync runs" in stderr
    mongod.start()
    for outcome in ("delivered as run 1", "up to date as run 1"):
        assert runs_command(["sync", str(tmp_path / "runs")]) == 0
        assert outcome in capsys.readouterr().out
        with pymongo.MongoClient(mongod.url) as client:
            assert points_in(client.outage, 1, "loss")[0] == list(range(750))
            assert client.outage.runs.find_one()["status"] == "COMPLETED"
            assert client.outage.runs.count_documents({}) == 1


@pytest.mark.slow
def test_no_server_at_the_start_runs_at_once_with_one_line(tmp_path, mongod, start):
    recorded = start(
        tmp_path,
        "began = time.monotonic()\n"
        'ex.observers.append(MongoObserver("mongodb://127.0.0.1:9/", db_name="none", failure_dir="spool"))\n'
        "@ex.automain\ndef main(): print('waited', time.monotonic() - began, flush=True)\n",
        impatient=True,
    )
    stderr = recorded.finish()
    waited = float(recorded.out.read_text().split()[1])
    assert waited < 10  # 3 s on a machine with nothing else to do; the benchmark has the figure
    assert "Traceback" not in stderr
    assert stderr.count("not reachable") == 1


@pytest.mark.slow
def test_killed_run_without_a_file_observer_is_delivered_by_sync_and_reaped(
    tmp_path, mongo_url, database, start, wait_for
):
    observer = f'MongoObserver("{mongo_url}", db_name="{database.name}", failure_dir="spool")'
    recorded = start(tmp_path, logs_for_ever(observer), "-b", "0.2")
    wait_for(lambda: database.metrics.find_one({"count": {"$gt": 100}}), "points in the database")
    recorded.process.kill()
    recorded.process.wait()
    [folder] = (tmp_path / "spool").glob("*/run")
    expected = len(read_metrics(folder)["loss"])
    [result] = sync(tmp_path / "spool")
    assert (result.outcome, result.run_id) == ("delivered", 1)
    assert points_in(database, 1, "loss")[0] == list(range(expected))
    assert runs_command(["reap", f"{mongo_url}/{database.name}"]) == 0
    assert database.runs.find_one()["status"] == "DEAD"


@pytest.mark.slow
def test_many_processes_at_once_make_a_run_each_in_both_stores(tmp_path, mongo_url, database, start):
    body = f"""
ex.observers.extend([FileObserver("runs"), MongoObserver("{mongo_url}", db_name="{database.name}")])
@ex.automain
def main(_run): _run.log_scalar("x", 1.0)
"""
    for recorded in [start(tmp_path, body) for _ in range(4)]:
        recorded.finish()
    on_disk = {json.loads(path.read_text())["uid"] for path in (tmp_path / "runs").glob("*/run.json")}
    in_database = {run["uid"] for run in database.runs.find()}
    assert len(on_disk) == 4
    assert on_disk == in_database


# ---------------------------------------------------------------------- retries and resends


BREAKING = {"methods": ("insert_one", "update_one", "find_one", "bulk_write"), "share": 0.3}


@pytest.mark.slow
@pytest.mark.parametrize("num_orders", [2, pytest.param(30, marks=pytest.mark.nightly)])
def test_any_order_of_retries_and_restarts_ends_in_the_same_database(tmp_path, database, num_orders, monkeypatch):
    monkeypatch.setattr("sacristan.observers.mongo.series.POINTS_PER_DOCUMENT", 40)
    monkeypatch.setattr("sacristan.observers.mongo.series.POINTS_PER_CHUNK", 16)
    monkeypatch.setattr("sacristan.observers.mongo.series._BATCH_POINTS", 25)
    monkeypatch.setattr("sacristan.observers.mongo.series._BATCH_ENTRIES", 5)

    @settings(max_examples=num_orders)
    @given(seed=st.integers(0, 10**6))
    def check(seed):
        deliver_in_any_order(tmp_path, database, seed)

    check()


def deliver_in_any_order(tmp_path, database, seed):
    database.client.drop_database(database.name)
    store = tmp_path / "runs"
    shutil.rmtree(store, ignore_errors=True)

    def main(_run):
        for step in range(120):
            _run.log_scalar("loss" if step % 3 else "other", step / 7, step)
            if step % 10 == 0:
                _run.log_media("text", Text(f"step {step % 40}"), step)

    record(main, FileObserver(store))
    rng, breaks = random.Random(seed), Counter()

    def fresh():
        delivery = Delivery(store / "1", store, database)
        for name in ("runs", "metrics", "chunks", "media"):
            setattr(delivery.collections, name, Flaky(getattr(delivery.collections, name), rng, breaks, **BREAKING))
        return delivery

    deliveries = [fresh(), fresh()]
    while True:
        place = rng.randrange(2)
        if rng.random() < 0.1:
            deliveries[place] = fresh()
        try:
            deliveries[place].advance()
        except AutoReconnect:
            continue
        if deliveries[place].is_complete:
            break
    for name, expected in read_metrics(store / "1").items():
        assert points_in(database, 1, name) == (expected.steps.tolist(), expected.values.tolist())
    media = list(database.media.find().sort("step"))
    assert [document["step"] for document in media] == list(range(0, 120, 10))
    files = gridfs.GridFS(database)
    assert [files.get(d["file_id"]).read().decode() for d in media] == [f"step {d['step'] % 40}" for d in media]
    assert database.runs.count_documents({}) == 1
    assert database.runs.find_one()["status"] == "COMPLETED"


# ---------------------------------------------------------------------- access


def test_credentials_are_never_written_down(tmp_path, mongo_url, database, start):
    host = mongo_url.partition("//")[2]
    url = f"mongodb://me:s3cret@{host}/{database.name}?serverSelectionTimeoutMS=500"
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(): return 1\n"
    recorded = start(tmp_path, body, "-m", url)
    stderr = recorded.finish()
    assert "the user or password is wrong" in stderr, stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if b"s3cret" in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (pymongo.errors.OperationFailure("Authentication failed.", 18), "user or password is wrong"),
        (pymongo.errors.OperationFailure("not authorized on x to execute command", 13), "no rights"),
        (pymongo.errors.ServerSelectionTimeoutError("SSL handshake failed: certificate verify failed"), "TLS fails"),
        (pymongo.errors.ServerSelectionTimeoutError("Connection refused"), "not reachable"),
        (pymongo.errors.ServerSelectionTimeoutError("No primary available for writes, Timeout: 2s"), "has no primary"),
        (pymongo.errors.ConfigurationError("Unknown option"), "URL is wrong"),
    ],
)
def test_explain_tells_access_from_outage(error, words):
    assert words in explain(error)


def test_label_of_a_destination_hides_credentials():
    assert Destination("mongodb://me:pw@host:1/x?authSource=admin", "db").label == "mongodb://host:1/db"


def test_place_of_a_record_is_a_store(mongo_url, tmp_path, caplog):
    address = mongo_url.removeprefix("mongodb://")
    for url, options in (
        (mongo_url, {}),
        (address, {}),
        (address, {"collection_prefix": "lab"}),
        (f"{mongo_url}/?appname=mine", {"collection": "mine"}),
    ):
        name = f"place_{uuid.uuid4().hex}"
        ex = Experiment("placed", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
        ex.main(lambda: 7)
        ex.observers.append(MongoObserver(url, name, **options))
        caplog.clear()
        with caplog.at_level("INFO"):
            ex.run()
        [place] = [line.partition("Recorded in ")[2] for line in caplog.messages if "Recorded in" in line]
        with open_store(place) as store:
            assert [run.result for run in store.find()] == [7]
            assert store.where == place
        with pymongo.MongoClient(mongo_url) as client:
            client.drop_database(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drain_s", "variable", "answers", "expected"),
    [
        (None, None, True, 10.0),
        (None, None, False, 1.0),
        (None, "30", False, 30.0),
        (0.5, "30", True, 0.5),
    ],
)
def test_end_waits_as_long_as_asked_for(
    tmp_path, database, mongo_url, monkeypatch, drain_s, variable, answers, expected
):
    bounds = []
    stop = Shipper.stop
    monkeypatch.setattr(Shipper, "stop", lambda self, bound_s: bounds.append(bound_s) or stop(self, min(bound_s, 2)))
    if variable is not None:
        monkeypatch.setenv("SACRISTAN_DRAIN_S", variable)
    url = mongo_url if answers else "mongodb://127.0.0.1:9"
    record(lambda: 1, mongo_of(database, url, failure_dir=tmp_path, serverSelectionTimeoutMS=100, drain_s=drain_s))
    assert bounds == [expected]
    assert database.runs.count_documents({"status": "COMPLETED"}) == answers


@pytest.mark.parametrize("bad", ["soon", -1, float("nan"), float("inf")])
def test_bound_that_is_no_number_of_seconds_is_refused(bad, monkeypatch):
    with pytest.raises(DestinationError, match=r"drain_s: got .*, expected at least 0 seconds, such as 30"):
        MongoObserver(drain_s=bad)
    monkeypatch.setenv("SACRISTAN_DRAIN_S", str(bad))
    with pytest.raises(DestinationError, match=r"SACRISTAN_DRAIN_S: got .*, expected at least 0 seconds"):
        MongoObserver()


@pytest.mark.slow
def test_server_killed_during_a_query_is_not_explained_by_tls(mongod, wait_for):
    mongod.start()
    with pymongo.MongoClient(mongod.url, retryReads=False) as client, pymongo.MongoClient(mongod.url) as other:
        client.lab.runs.insert_one({})
        errors: list[Exception] = []

        def query():
            try:
                list(client.lab.runs.find({"$where": "sleep(60000) || true"}))
            except pymongo.errors.PyMongoError as error:
                errors.append(error)

        thread = threading.Thread(target=query)
        thread.start()
        wait_for(lambda: other.admin.command("currentOp", ns="lab.runs")["inprog"], "the query")
        mongod.kill()
        thread.join()
    assert "connection closed" in str(errors[0])
    assert explain(errors[0]) == "the server is not reachable"
