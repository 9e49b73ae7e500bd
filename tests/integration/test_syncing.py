"""`sacristan sync` for what killed processes and outages have left, also twice at once: one database in the end."""

import json
import re
import shutil
import signal
import sys

import gridfs
import pymongo
import pytest

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, read_metrics
from sacristan.observers.mongo import Destination
from sacristan.observers.record.identity import lease
from sacristan.observers.record.schema import DESTINATION
from sacristan.runs import StoreError, reap, sync
from sacristan.runs.query.index.scanning import run_folders
from tests.processes import PIPE, Process

SPOOLS = """
import pathlib
ex.observers.append(MongoObserver("{url}", db_name="{name}", failure_dir="my_runs/_spool"))
@ex.automain
def main(_run):
    pathlib.Path("made.txt").write_text("made")
    _run.add_artifact("made.txt")
    _run.info["long"] = "x" * 1_000_000
    for number in range(3_000): print(number, "y" * 100)
    step = 0
    while True:
        _run.log_scalar("loss", step, step); step += 1; time.sleep(0.0005)
"""


def snapshot(database):
    """Return the whole database, but for when its files were uploaded."""
    found = {}
    for name in sorted(database.list_collection_names()):
        documents = [{**document, "uploadDate": None} for document in database[name].find()]
        found[name] = sorted(documents, key=lambda document: str(document["_id"]))
    return found


@pytest.fixture
def killed(tmp_path, database, mongo_url, start, wait_for):
    """Leave the spool of a killed run, none of which the database has by now; return its store."""
    recorded = start(tmp_path, SPOOLS.format(url=mongo_url, name=database.name), "-b", "0.2")
    [folder] = wait_for(lambda: list((tmp_path / "my_runs" / "_spool").glob("*/run")), "the spool")
    wait_for(lambda: len(read_metrics(folder).get("loss", ())) > 500, "points on the disk")
    recorded.process.kill()
    recorded.process.wait()
    # As earlier versions wrote it.
    (folder / "values.jsonl").write_text('{"name": "words", "step": 0, "time": 1, "value": "no number", "after": 0}\n')
    database.client.drop_database(database.name)
    return tmp_path / "my_runs"


def test_damaged_points_are_not_delivered_and_the_rest_is(tmp_path, database, mongo_url, capsys, caplog):
    def main(_run):
        for step in range(9):
            _run.log_scalar("loss", step, step)
            if step % 3 == 2:
                _run.flush()

    ex = Experiment("damaged", base_dir=tmp_path, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "my_runs"))
    ex.main(main)
    ex.run(options={"--capture": "no", "--beat-interval": 100})
    folder = tmp_path / "my_runs" / "1"
    with (folder / "metrics.bin").open("r+b") as stream:
        stream.seek(4 * 24)
        stream.write(b"\xff" * 4)
    (folder / DESTINATION).write_text(json.dumps(Destination(mongo_url, database.name).written()))
    sync(tmp_path / "my_runs")
    assert database.metrics.find_one({"name": "loss"})["steps"] == [0, 1, 2, 6, 7, 8]
    assert (folder / "delivered.json").exists()
    assert runs_command(["metrics", "1", "loss", "--csv", "--store", str(tmp_path / "my_runs")]) == 0
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()[1:]] == list("012678")
    assert "points 3 to 5 are damaged" in caplog.text


def sync_process(store, *options):
    command = [sys.executable, "-m", "sacristan", "sync", str(store), *options]
    return Process(command, stdout=PIPE, stderr=PIPE, text=True)


def test_spool_of_a_killed_run_is_delivered_whole_and_removed(killed, database, capsys):
    [folder] = run_folders(killed)
    expected = len(read_metrics(folder)["loss"])
    output = (folder / "cout.txt").read_bytes()
    assert runs_command(["sync", str(killed)]) == 0
    assert "delivered as run 1" in capsys.readouterr().out
    run = database.runs.find_one()
    files = gridfs.GridFS(database)
    assert database.metrics.find_one({"name": "loss"})["steps"] == list(range(expected))
    summary = run["summary"]["loss"]  # of all points, although the process wrote none after its last heartbeat
    assert (summary["count"], summary["last"], summary["max"]) == (expected, expected - 1, expected - 1)
    assert files.get(run["artifacts"][0]["file_id"]).read() == b"made"
    assert files.get(run["captured_out_file"]).read() == output
    assert json.loads(files.get(run["values_file"]).read())["value"] == "no number"
    assert list((killed / "_spool").iterdir()) == []
    assert runs_command(["sync", str(killed)]) == 0
    assert "no run here" in capsys.readouterr().out


def test_spool_of_one_run_is_delivered_by_its_own_folder(killed, database, capsys):
    [folder] = run_folders(killed)
    assert runs_command(["sync", str(folder.parent)]) == 0
    assert "delivered as run 1" in capsys.readouterr().out
    assert not folder.parent.exists()


def test_two_syncs_of_one_spool_make_the_same_database(killed, database):
    [folder] = run_folders(killed)
    expected = len(read_metrics(folder)["loss"])
    both = [sync_process(killed) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("delivered as run 1" in out for out, _ in outputs) == 1, outputs
    run = database.runs.find_one()
    assert database.runs.count_documents({}) == 1
    assert database.metrics.find_one({"name": "loss"})["steps"] == list(range(expected))
    assert gridfs.GridFS(database).get(run["artifacts"][0]["file_id"]).read() == b"made"
    assert run["config"].keys() == {"seed"}
    assert run["experiment"]["sources"]


LOGS = """
away = MongoObserver("mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=200", db_name="none")
ex.observers.extend([FileObserver("runs"), away])
@ex.automain
def main(_run):
    _run.info["long"] = "x" * 1_000_000
    for step in range(30_000):
        _run.log_scalar("loss", step / 7, step)
        if step % 10 == 0: _run.log_scalar("other", step, step)
"""


@pytest.mark.slow
def test_two_syncs_at_once_make_the_database_that_one_makes(tmp_path, database, mongo_url, start):
    for recorded in [start(tmp_path, LOGS, impatient=True) for _ in range(2)]:
        recorded.finish()
    snapshots = []
    for count in (1, 2):
        url = f"{mongo_url}/{database.name}"
        for marker in (tmp_path / "runs").glob("*/delivered.json"):
            marker.unlink()
        processes = [sync_process(tmp_path / "runs", "--url", url) for _ in range(count)]
        outputs = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes] == [0] * count, outputs
        snapshots.append(snapshot(database))
        database.client.drop_database(database.name)
    assert len(snapshots[0]["runs"]) == 2
    assert snapshots[0] == snapshots[1]


def test_terminated_run_is_interrupted_in_the_database(tmp_path, database, mongo_url, start, wait_for):
    recorded = start(tmp_path, SPOOLS.format(url=mongo_url, name=database.name))
    wait_for(lambda: database.metrics.find_one({"name": "loss"}), "points in the database")
    recorded.process.send_signal(signal.SIGTERM)
    assert recorded.process.wait(60) == 128 + signal.SIGTERM
    run = database.runs.find_one()
    assert (run["status"], run["meta"]["interrupted_by"]) == ("INTERRUPTED", "SIGTERM")
    assert list((tmp_path / "my_runs" / "_spool").iterdir()) == []


@pytest.mark.nightly
def test_outage_of_45_seconds_loses_none_of_750_points(tmp_path, mongod, start, wait_for):
    mongod.start()
    body = f"""
ex.observers.extend([FileObserver("runs"), MongoObserver("{mongod.url}", db_name="outage")])
@ex.automain
def main(_run):
    for step in range(750):
        _run.log_scalar("loss", step / 7, step); time.sleep(0.1)
"""
    recorded = start(tmp_path, body)
    with pymongo.MongoClient(mongod.url) as client:
        wait_for(lambda: client.outage.metrics.find_one({"count": {"$gt": 60}}), "points in the database")
    mongod.kill()
    folder = tmp_path / "runs" / "1"
    there = len(read_metrics(folder)["loss"])
    # The run is its own clock: ten points a second.
    wait_for(lambda: len(read_metrics(folder)["loss"]) >= there + 450, "45 seconds of the run", timeout_s=200)
    mongod.start()
    stderr = recorded.finish()
    assert stderr.count("not reachable") == 1
    with pymongo.MongoClient(mongod.url) as client:
        assert client.outage.metrics.find_one()["steps"] == list(range(750))
        assert client.outage.runs.find_one()["status"] == "COMPLETED"


def record(main, *observers):
    ex = Experiment("recorded", system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


@pytest.mark.parametrize("odd", ["", "[3]", "{}", '{"url": 3}', '{"a": 1}'])
def test_damaged_destination_is_refused_by_its_name(tmp_path, odd):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "COMPLETED"}')
    (folder / "destination.json").write_text(odd)
    [result] = sync(tmp_path)
    assert (result.outcome, result.destination) == ("failed", "")
    assert f"{folder / 'destination.json'} cannot be read" in result.error


@pytest.mark.parametrize("odd", ["", "[3]", "3", "{}", '{"status": [3]}', '{"status": "RUNNING", "uid": 3}'])
def test_damaged_record_is_neither_delivered_nor_reaped(tmp_path, mongo_url, database, odd):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "run.json").write_text(odd)
    destination = {"url": mongo_url, "db_name": database.name, "prefix": ""}
    (folder / "destination.json").write_text(json.dumps(destination))
    assert reap(tmp_path) == []
    [result] = sync(tmp_path)
    assert result.outcome == "failed"
    assert re.search(f"{folder}.*(cannot be read|is damaged)", result.error)


def test_bad_runs_keep_no_other_from_being_delivered(tmp_path, mongo_url, database, capsys):
    """One is damaged, one names no database, the server of two is away."""
    away = {"url": "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=200", "db_name": "none", "prefix": ""}
    here = {"url": mongo_url, "db_name": database.name, "prefix": ""}
    first = tmp_path / "runs" / "1"
    record(lambda _run: _run.log_scalar("loss", 1.0), FileObserver(first.parent))
    for number, destination in enumerate([here, away, here, away, [3], here], 1):
        folder = first if number == 1 else shutil.copytree(first, first.with_name(str(number)))
        run = re.sub('"uid": "[0-9a-f]+"', f'"uid": "{number:032x}"', (folder / "run.json").read_text())
        (folder / "run.json").write_text(run)
        (folder / "destination.json").write_text(json.dumps(destination))
    (tmp_path / "runs" / "3" / "metrics.names.jsonl").write_text('{"id": []}\n')
    assert runs_command(["sync", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr()
    assert [line.partition(" (")[0].rpartition("/")[2] for line in printed.out.splitlines()] == [
        "1: delivered as run 1",
        "6: delivered as run 3",
    ]
    *failed, last = printed.err.splitlines()
    assert [line.partition(": failed: ")[0].rpartition("/")[2] for line in failed] == ["2", "3", "4", "5"]
    assert last == "error: 4 of 6 runs could not be delivered"
    assert database.metrics.count_documents({"name": "loss"}) == 2
    assert runs_command(["sync", "--json", str(tmp_path / "runs")]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in rows] == ["up to date", "failed", "failed", "failed", "failed", "up to date"]
    assert "not reachable" in rows[1]["error"]
    assert rows[0]["error"] is None


def test_url_that_is_none_is_refused_in_one_sentence():
    with pytest.raises(StoreError, match=r"the store's URL: .*Port contains non-digit characters"):
        reap("mongodb://host:port/lab")


@pytest.mark.parametrize("prefix", ["", "lab"])
def test_reap_marks_dead_runs_of_a_database_with_its_prefix(database, mongo_url, capsys, prefix):
    collection = database[f"{prefix}_runs" if prefix else "runs"]
    gone = {"host": "elsewhere", "pid": 1, "heartbeat": 1.0, "beat_interval": 1.0}
    alive = lease(1.0)
    collection.insert_one({"_id": 1, "status": "RUNNING", "uid": "a" * 32, "lease": gone})
    collection.insert_one({"_id": 2, "status": "RUNNING", "uid": "b" * 32, "lease": alive})
    collection.insert_one({"_id": 3, "status": "RUNNING", "uid": "c" * 32})  # stock Sacred's
    newer = {"_id": 4, "status": "RUNNING", "uid": "d" * 32, "lease": gone, "format": "sacristan-2"}
    collection.insert_one(newer)
    where = f"{mongo_url}/{database.name}#{prefix}" if prefix else f"{mongo_url}/{database.name}"
    assert runs_command(["reap", "--json", where]) == 0
    assert json.loads(capsys.readouterr().out) == [{"run": "1", "uid": "a" * 32, "status": "DEAD"}]
    assert [run["status"] for run in collection.find(sort=[("_id", 1)])] == ["DEAD", *["RUNNING"] * 3]
    assert collection.find_one({"_id": 4}) == newer
    assert reap(where) == []
    assert database.list_collection_names() == [collection.name]
