"""`MongoObserver(overwrite=ID)` on a real server: a run takes over the document that another program has staged."""

import json
from datetime import datetime
from pathlib import Path

import bson
import numpy as np
import pymongo
import pytest

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import DestinationError, FileObserver, MongoObserver, Text
from sacristan.observers.record.identity import new_uid
from sacristan.runs import open_store, sync

# As SEML stages an experiment, shortened.
STAGED = {
    "_id": 3,
    "status": "PENDING",
    "batch_id": 1,
    "add_time": datetime(2026, 1, 2),
    "seml": {"executable": "exp.py", "name": "staged"},
    "slurm": [{"experiments_per_job": 1, "sbatch_options": {"mem": "1G"}}],
    "execution": {"cluster": "local"},
    "config": {"lr": 0.1, "seed": 7},
    "config_hash": "c0ffee",
    "config_unresolved": {"lr": 0.1},
}
FOREIGN = {name: STAGED[name] for name in STAGED.keys() - {"_id", "status", "config"}}


def logs(*values):
    def main(_run):
        for step, value in enumerate(values):
            _run.log_scalar("loss", value, step)
        return len(values)

    return main


def record(main, *observers, **options):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"}, **options)


@pytest.fixture
def observe(tmp_path, database, mongo_url):
    """Return an observer that overwrites run 3."""
    return lambda url=mongo_url, db_name=database.name: MongoObserver(
        url, db_name, overwrite=3, failure_dir=tmp_path / "spool"
    )


def values_in(database, mongo_url, run_id):
    with open_store(f"{mongo_url}/{database.name}") as store:
        return store.get(run_id).metric("loss").values.tolist()


@pytest.mark.parametrize("status", ["STAGED", "PENDING", "RUNNING"])
def test_staged_document_is_taken_over_with_the_entries_of_others(database, mongo_url, observe, status):
    database.runs.insert_one({**STAGED, "status": status})
    run = record(logs(0.5, 0.25), observe())
    [found] = database.runs.find()
    assert (found["_id"], found["status"], found["result"], run._id) == (3, "COMPLETED", 2, 3)
    assert {name: found[name] for name in FOREIGN} == FOREIGN
    assert found["config"] == run.config
    assert values_in(database, mongo_url, 3) == [0.5, 0.25]
    assert list(database.client[database.name].removed.find()) == []


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_status_of_the_document_is_that_of_the_run(database, observe, error):
    database.runs.insert_one(STAGED)

    def main():
        assert database.runs.find_one()["status"] == "RUNNING"
        raise error

    with pytest.raises(type(error)):
        record(main, observe())
    found = database.runs.find_one()
    assert found["status"] == {ValueError: "FAILED", KeyboardInterrupt: "INTERRUPTED"}[type(error)]
    assert found["seml"] == STAGED["seml"]


AWAY = "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=100"


def test_document_is_taken_over_by_sync_after_an_outage(tmp_path, database, mongo_url, observe, monkeypatch):
    monkeypatch.setattr("sacristan.observers.mongo.observer.DRAIN_BOUND_S", 0.1)
    database.runs.insert_one(STAGED)
    record(logs(0.5), observe(AWAY))
    assert database.runs.find_one()["status"] == "PENDING"
    [result] = sync(tmp_path / "spool", mongo_url)
    assert (result.outcome, result.run_id) == ("delivered", 3)
    [found] = database.runs.find()
    assert (found["status"], found["seml"]) == ("COMPLETED", STAGED["seml"])
    assert values_in(database, mongo_url, 3) == [0.5]


def test_sync_to_another_database_takes_over_nothing_there(tmp_path, database, mongo_url, observe, monkeypatch):
    monkeypatch.setattr("sacristan.observers.mongo.observer.DRAIN_BOUND_S", 0.1)
    database.runs.insert_one(STAGED)
    record(logs(0.5), observe(AWAY, "elsewhere"))
    [result] = sync(tmp_path / "spool", f"{mongo_url}/{database.name}")
    assert (result.outcome, result.run_id) == ("delivered", 4)
    assert database.runs.find_one({"_id": 3}) == STAGED


def test_missing_document_is_one_sentence(database, observe, caplog):
    record(logs(0.5), observe())
    assert [found["_id"] for found in database.runs.find()] == [3]
    assert [line.getMessage() for line in caplog.records if "MongoDB" in line.getMessage()] == [
        "MongoDB: run 3 does not exist; this run is recorded there as run 3"
    ]


# ---------------------------------------------------------------------- documents of earlier runs


def test_run_that_had_ended_is_overwritten_and_its_points_do_not_mix(tmp_path, database, mongo_url, observe):
    def fails(_run):
        _run.log_scalar("loss", 9.0, 0)
        _run.log_scalar("old", 9.0, 0)
        _run.log_media("words", Text("old"), 0)
        raise ValueError("no")

    database.runs.insert_one(STAGED)
    with pytest.raises(ValueError, match="no"):
        record(fails, FileObserver(tmp_path / "runs"), observe())
    database.runs.update_one({"_id": 3}, {"$set": {"note": "of a person", "stats": {"real_time": 1.5}}})
    earlier = database.runs.find_one()
    record(logs(0.5, 0.25), observe())
    [found] = database.runs.find()
    assert found["status"] == "COMPLETED"
    assert found["uid"] != earlier["uid"]
    assert found.keys() - STAGED.keys() >= {"note", "stats"}
    assert "fail_trace" not in found
    assert {name for name in found if found[name] == earlier.get(name)} <= {
        *FOREIGN,
        *("_id", "note", "stats", "command", "command_line", "cwd", "format", "host", "resources", "artifacts"),
        *("captured_out", "experiment", "provenance", "revision", "rewinding"),
    }
    with open_store(f"{mongo_url}/{database.name}") as store:
        assert store.get(3).metric("loss").values.tolist() == [0.5, 0.25]
        assert "old" not in store.get(3).metrics
    assert database.media.count_documents({}) == 0
    [result] = sync(tmp_path / "runs")
    assert result.outcome == "removed from the database"
    assert database.runs.count_documents({}) == 1


def reset(database):
    """Do as `seml reset` does: replace the document, and leave points where they are."""
    kept = {name: value for name, value in database.runs.find_one({"_id": 3}).items() if name in STAGED}
    database.runs.replace_one({"_id": 3}, {**kept, "status": "STAGED"})


def test_rerun_after_a_reset_has_its_own_points_and_sync_does_not_undo_it(tmp_path, database, mongo_url, observe):
    database.runs.insert_one(STAGED)
    record(logs(9.0, 8.0, 7.0), FileObserver(tmp_path / "runs"), observe())
    reset(database)
    record(logs(0.5, 0.25), observe())
    assert values_in(database, mongo_url, 3) == [0.5, 0.25]
    assert database.metrics.count_documents({"name": "loss"}) == 1
    [result] = sync(tmp_path / "runs")
    assert result.outcome == "removed from the database"
    assert [(found["_id"], found["result"]) for found in database.runs.find()] == [(3, 2)]


def test_sync_after_a_reset_leaves_the_staged_document_alone(tmp_path, database, observe):
    database.runs.insert_one(STAGED)
    record(logs(0.5), FileObserver(tmp_path / "runs"), observe())
    reset(database)
    [result] = sync(tmp_path / "runs")
    assert (result.outcome, result.run_id) == ("delivered", 4)
    assert database.runs.find_one({"_id": 3})["status"] == "STAGED"


@pytest.mark.parametrize("kind", ["trash", "fork", "active"])
def test_document_of_another_run_is_left_alone_with_one_sentence(
    database, mongo_url, observe, monkeypatch, caplog, capsys, kind
):
    run = record(logs(9.0), observe())
    caplog.clear()
    lease = database.runs.find_one()["lease"]
    if kind == "trash":
        assert runs_command(["rm", "3", "--yes", "--store", f"{mongo_url}/{database.name}"]) == 0
    elif kind == "fork":
        monkeypatch.setenv("SACRISTAN_PARENT", run.meta_info["uid"])
    else:
        # The process of this test, which lives.
        database.runs.update_one(
            {"_id": 3}, {"$set": {"status": "RUNNING", "lease": lease}, "$unset": {"stop_time": ""}}
        )
    before = database.runs.find_one({"_id": 3})
    record(logs(0.5), observe())
    reason = {
        "trash": "it is in the trash",
        "fork": "a fork, a reproduction or a child of another run overwrites nothing",
        "active": "another process is recording it",
    }[kind]
    assert [line.getMessage() for line in caplog.records if "MongoDB" in line.getMessage()] == [
        f"MongoDB: run 3 is not overwritten, because {reason}; this run is recorded there as run 4"
    ]
    assert database.runs.find_one({"_id": 3}) == before
    assert database.runs.find_one({"_id": 4})["status"] == "COMPLETED"
    assert database.metrics.find_one({"run_id": 3, "name": "loss"})["values"] == [9.0]


WAITS = """
import pathlib
ex.observers.append(MongoObserver("{url}", "{name}", overwrite=3, failure_dir="spool"))
@ex.automain
def main(_run):
    pathlib.Path("started").touch()
    for step in range(5): _run.log_scalar("loss", step, step)
    while pathlib.Path("wait").exists(): time.sleep(0.02)
    return 1
"""


@pytest.mark.parametrize("num_runs", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_of_several_processes_at_once_one_takes_the_document_over_and_the_others_say_so(
    tmp_path, database, mongo_url, start, wait_for, num_runs
):
    database.runs.insert_one(STAGED)
    folders = [tmp_path / str(number) for number in range(num_runs)]
    for folder in folders:
        folder.mkdir()
        (folder / "wait").touch()
    body = WAITS.format(url=mongo_url, name=database.name)
    started = [start(folder, body) for folder in folders]
    wait_for(lambda: database.runs.count_documents({"uid": {"$exists": True}}) == num_runs, "all runs in the database")
    for folder in folders:
        (folder / "wait").unlink()
    sentences = [line for process in started for line in process.finish().splitlines() if "run 3" in line]
    assert len(sentences) == num_runs - 1
    assert all("run 3 is not overwritten, because another process is recording it" in line for line in sentences)
    found = list(database.runs.find())
    assert [run["_id"] for run in found] == list(range(3, 3 + num_runs))
    assert {(run["status"], "seml" in run) for run in found[1:]} == {("COMPLETED", False)}
    assert (found[0]["status"], found[0]["seml"]) == ("COMPLETED", STAGED["seml"])
    for run in found:
        metric = database.metrics.find_one({"run_id": run["_id"], "name": "loss"})
        assert metric["values"] == [0, 1, 2, 3, 4]
        assert metric["_id"] in {entry_id(entry) for entry in run["info"]["metrics"]}


def entry_id(entry):
    return bson.ObjectId(entry["id"])


def test_killed_run_is_overwritten_and_its_spool_goes_under_another_id(
    tmp_path, database, mongo_url, observe, start, wait_for
):
    database.runs.insert_one(STAGED)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "wait").touch()
    recorded = start(tmp_path / "killed", WAITS.format(url=mongo_url, name=database.name))
    wait_for(lambda: database.metrics.find_one({"name": "loss"}), "its points")
    recorded.process.kill()
    recorded.process.wait()
    killed = database.runs.find_one()["uid"]
    record(logs(0.5), observe())
    assert values_in(database, mongo_url, 3) == [0.5]
    assert database.runs.find_one({"_id": 3})["seml"] == STAGED["seml"]
    [result] = sync(tmp_path / "killed" / "spool")
    assert (result.outcome, result.run_id) == ("delivered", 4)
    assert database.runs.find_one({"_id": 4})["uid"] == killed
    assert values_in(database, mongo_url, 4) == [0, 1, 2, 3, 4]
    assert values_in(database, mongo_url, 3) == [0.5]


@pytest.mark.parametrize("overwrite", ["abc", 1.5, True, [3], 2**63, float("inf")])
def test_id_that_is_none_is_rejected(overwrite):
    with pytest.raises(
        DestinationError, match=r"overwrite: got .*, expected the id of a run in the database, such as 3"
    ):
        MongoObserver(overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [3, "3", 3.0, np.int64(3)])
def test_id_may_be_a_text_or_any_whole_number(overwrite):
    assert MongoObserver(overwrite=overwrite).overwrite == 3


def test_run_that_starts_from_the_state_of_another_run_overwrites(database, observe):
    database.runs.insert_one(STAGED)
    record(logs(0.5), observe(), meta_info={"started_from": new_uid()})
    assert database.runs.find_one()["status"] == "COMPLETED"


def test_resumed_run_keeps_its_document(tmp_path, database, mongo_url, observe, monkeypatch):
    def interrupted(_run):
        _run.log_scalar("loss", 1.0, 0)
        raise KeyboardInterrupt

    database.runs.insert_one(STAGED)
    with pytest.raises(KeyboardInterrupt):
        record(interrupted, FileObserver(tmp_path / "runs"), observe())
    monkeypatch.setenv("SACRISTAN_RESUME", str(tmp_path / "runs" / "1"))
    record(lambda _run: _run.log_scalar("loss", 0.5, 1), FileObserver(tmp_path / "runs"), observe())
    [found] = database.runs.find()
    assert (found["_id"], found["status"], found["seml"]) == (3, "COMPLETED", STAGED["seml"])
    assert values_in(database, mongo_url, 3) == [1.0, 0.5]


def test_client_instead_of_a_url_names_its_server_for_sync(tmp_path, database, mongo_url):
    observer = MongoObserver(client=database.client, db_name=database.name, failure_dir=tmp_path / "spool")
    assert observer.label == f"{mongo_url}/{database.name}"
    with pymongo.MongoClient("a.lab,b.lab:7", connect=False) as client:
        assert MongoObserver(client=client, db_name="x").label == "mongodb://a.lab:27017,b.lab:7/x"


def test_staged_documents_are_listed_and_shown(database, mongo_url, capsys):
    statuses = ["STAGED", "PENDING", "RUNNING", "RESCHEDULED", "KILLED"]
    database.experiments.insert_many({**STAGED, "_id": key, "status": status} for key, status in enumerate(statuses, 1))
    store = ["--store", f"{mongo_url}/{database.name}#experiments"]
    assert runs_command(["ls", *store]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        [str(key), status] for key, status in enumerate(statuses, 1)
    ]
    assert runs_command(["ls", "--where", "status=PENDING", "--json", *store]) == 0
    assert [run["id"] for run in json.loads(capsys.readouterr().out)] == ["2"]
    assert runs_command(["show", "2", *store]) == 0
    out = capsys.readouterr().out
    assert "PENDING" in out
    assert f"{mongo_url}/{database.name}#experiments\n" in out
    assert runs_command(["show", "9", *store]) == 1
    assert f"list them with: sacristan --store {store[1]} ls\n" in capsys.readouterr().err.replace("'", "")
