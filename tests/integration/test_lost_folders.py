"""A run's folder that is moved or deleted in mid-run: noticed with the next heartbeat, said, and recorded on."""

import json
import logging
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver, TensorBoardObserver, Text, read_media, read_metrics
from sacristan.observers.mongo.document_delivery import DocumentDelivery
from sacristan.observers.record.identity import read_lease, true_status
from sacristan.observers.record.points.intact_points import read_blocks, read_intact_points


def record(main, *observers, **options):
    ex = Experiment("recorded", base_dir=Path(__file__).parent, system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys", "--beat-interval": 1000}, **options)


def load(folder, name="run.json"):
    return json.loads((folder / name).read_text())


def beat(run):
    """Let a heartbeat come when it looks after the folder again, as those do that are a second apart."""
    recordings = [getattr(observer, "recording", None) for observer in run.observers]
    while any(one is not None and not one._folder_pace.is_due for one in recordings):
        time.sleep(0.001)
    run._emit_heartbeat()


def log(run, start, stop):
    for step in range(start, stop):
        run.log_scalar("loss", step / 7, step)
    run.log_scalar(f"from {start}", 1.0)
    print(f"line {start}")


def check(folder):
    run, found = load(folder), read_metrics(folder)
    assert run["status"] == "COMPLETED"
    assert run["folder"] == str(folder)
    assert found["loss"].values.tolist() == [step / 7 for step in range(300)]
    assert found.keys() == {"loss", "from 0", "from 100", "from 200"}
    assert load(folder, "summary.json")["loss"]["count"] == 300
    assert [line for line in (folder / "cout.txt").read_text().splitlines() if "line" in line] == [
        "line 0",
        "line 100",
        "line 200",
    ]
    assert "seed" in load(folder, "config.json")
    assert load(folder, "info.json") == {"note": 1}
    assert "packages" in load(folder, "provenance.json")
    assert not (folder / "metrics.live").exists()
    # Points are verified by their checksums, each once.
    blocks = read_blocks(folder / "metrics.sums")
    assert [first for first, _, _ in blocks] == [0, *np.cumsum([count for _, count, _ in blocks])[:-1]]
    assert sum(count for _, count, _ in blocks) == 303
    assert len(read_intact_points(folder)[0]) == 303


def messages(caplog):
    """Return the warnings; provenance comes from a thread, which may find the folder gone ahead of the heartbeat."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in found if "provenance.json cannot" not in message]


def delete(folder):
    """Delete a folder that another thread may be writing to."""
    doomed = folder.parent.with_name("doomed") if folder.parent.name == "runs" else folder.with_name("doomed")
    shutil.rmtree(folder.rename(doomed))


def move(folder):
    folder.rename(folder.parent.parent / "elsewhere")


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


def replace(folder):
    """Delete a run, whose number another one takes."""
    delete(folder)
    (folder / "media").mkdir(parents=True)
    (folder / "run.json").write_text('{"uid": "another"}')


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("happens", "where", "says"),
    [
        (delete, "runs/1", "deleted"),
        (lambda folder: delete(folder.parent), "runs/1", "deleted"),
        (empty, "runs/1", "deleted"),
        (lambda folder: (folder / "metrics.bin").unlink(), "runs/1", "deleted"),
        (lambda folder: (folder / "metrics.sums").unlink(), "runs/1", "deleted"),
        (replace, "runs/2", "deleted"),
        (move, "elsewhere", "moved"),
        (lambda folder: folder.parent.rename(folder.parent.parent / "store"), "store/1", "moved"),
    ],
    ids=[
        "deleted",
        "store deleted",
        "emptied",
        "points deleted",
        "checksums deleted",
        "replaced",
        "moved",
        "store moved",
    ],
)
def test_folder_that_is_gone_costs_no_point(tmp_path, caplog, happens, where, says):
    during = []

    def main(_run):
        _run.info["note"] = 1
        log(_run, 0, 100)
        _run.flush()
        log(_run, 100, 200)
        happens(tmp_path / "runs" / "1")
        beat(_run)
        # Who reads it now finds it, and that it is alive.
        folder = tmp_path / where
        during.extend([len(read_metrics(folder)["loss"]), true_status(load(folder), read_lease(folder)), _run.folder])
        log(_run, 200, 300)
        during.append(len(read_metrics(folder)["loss"]))

    with caplog.at_level(logging.WARNING):
        record(main, FileObserver(tmp_path / "runs"))
    assert during == [200, "RUNNING", tmp_path / where, 300]
    check(tmp_path / where)
    [said] = messages(caplog)
    assert f"was {says}" in said
    assert str(tmp_path / where) in said
    if where == "runs/2":
        assert load(tmp_path / "runs" / "1") == {"uid": "another"}


def test_folder_that_is_deleted_behind_the_last_heartbeat_is_made_anew_at_the_end(tmp_path, caplog):
    def main(_run):
        _run.log_scalar("loss", 0.5, 0)
        _run.flush()
        delete(_run.folder)
        _run.log_scalar("loss", 1.5, 1)

    with caplog.at_level(logging.WARNING):
        record(main, FileObserver(tmp_path / "runs"))
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"
    assert read_metrics(tmp_path / "runs" / "1")["loss"].values.tolist() == [0.5, 1.5]
    assert len(messages(caplog)) == 1


def test_contents_that_are_gone_with_the_folder_are_told_as_lost(tmp_path, caplog):
    def main(_run):
        _run.log_media("note", Text("a"))
        _run.add_artifact(__file__, "code.py")
        _run.flush()
        delete(_run.folder)
        _run.log_media("note", Text("a"))
        _run.log_media("note", Text("b"))
        _run.add_artifact(__file__, "again.py")

    record(main, FileObserver(tmp_path / "runs"))
    folder = tmp_path / "runs" / "1"
    run = load(folder)
    assert (run["status"], run["lost_media"], run["lost_artifacts"]) == ("COMPLETED_WITH_LOSS", 1, ["code.py"])
    assert "without 1 media, 1 artifacts" in caplog.text
    assert [media.path.read_text() for media in read_media(folder)] == ["a", "a", "b"]
    assert (folder / "again.py").exists()


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "deleted"])
def test_event_files_go_with_the_folder(tmp_path, is_moved):
    observer = TensorBoardObserver()

    def main(_run):
        log(_run, 0, 100)
        beat(_run)
        (move if is_moved else delete)(_run.folder)
        log(_run, 100, 200)
        beat(_run)
        log(_run, 200, 300)

    record(main, FileObserver(tmp_path / "runs"), observer)
    folder = tmp_path / ("elsewhere" if is_moved else "runs/1")
    assert observer.dir == folder / "tensorboard"
    [path] = observer.dir.iterdir()
    tags = [value.tag for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    assert tags.count("loss") == 300
    assert (tmp_path / "runs" / "1").exists() != is_moved


@pytest.mark.sampled(1)
@pytest.mark.parametrize("files", [True, False], ids=["files and MongoDB", "MongoDB alone"])
@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "deleted"])
def test_database_gets_all_of_a_run_whose_folder_is_gone(
    tmp_path, mongo_url, database, caplog, wait_for, files, is_moved
):
    mongo = MongoObserver(mongo_url, db_name=database.name, failure_dir=tmp_path / "spool")

    def main(_run):
        recording = (_run.observers[0] if files else mongo._spool).recording
        log(_run, 0, 100)
        beat(_run)
        wait_for(lambda: (database.metrics.find_one({"name": "loss"}) or {}).get("count") == 100, "points")
        (move if is_moved else delete)(recording.folder)
        log(_run, 100, 200)
        beat(_run)
        log(_run, 200, 300)
        assert mongo._shipper.delivery.num_missing() >= 0

    with caplog.at_level(logging.WARNING):
        record(main, *([FileObserver(tmp_path / "runs")] if files else []), mongo)
    run = database.runs.find_one()
    assert run["status"] == "COMPLETED"
    assert database.runs.count_documents({}) == 1
    assert database.metrics.find_one({"name": "loss"})["values"] == [step / 7 for step in range(300)]
    assert len(messages(caplog)) == 1, caplog.text


def test_folder_that_is_moved_under_a_delivery_is_no_trouble_of_the_database(
    tmp_path, mongo_url, database, caplog, monkeypatch, wait_for
):
    mongo = MongoObserver(mongo_url, db_name=database.name, failure_dir=tmp_path / "spool")
    send, to_move, configs = DocumentDelivery.send, [], []

    def move_and_send(self, *args, **keywords):
        if to_move:
            move(to_move.pop())
        try:
            send(self, *args, **keywords)
        finally:
            configs.append(database.runs.find_one()["config"])

    monkeypatch.setattr(DocumentDelivery, "send", move_and_send)

    def main(_run):
        log(_run, 0, 100)
        print("to be delivered")
        to_move.append(mongo._spool.recording.folder)
        beat(_run)
        wait_for(lambda: not to_move, "the folder to be moved")
        log(_run, 100, 200)

    with caplog.at_level(logging.WARNING):
        record(main, mongo, config_updates={"seed": 5})
    assert {config.get("seed") for config in configs} == {5}
    assert database.runs.find_one()["status"] == "COMPLETED"
    assert database.metrics.find_one({"name": "loss"})["values"] == [step / 7 for step in range(200)]
    [message] = messages(caplog)
    assert "was moved to" in message


def test_folder_that_is_deleted_behind_the_end_is_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("sacristan.observers.mongo.observer.START_BOUND_S", 0.1)
    monkeypatch.setattr("sacristan.observers.mongo.observer.DRAIN_BOUND_S", 0.1)
    mongo = MongoObserver("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", priority=20)

    class Deleter(FileObserver):
        def join(self):
            delete(Path(self.dir))

    record(lambda _run: _run.log_scalar("x", 1.0), Deleter(tmp_path / "runs"), mongo)
    assert f"is not delivered, and cannot be: {tmp_path / 'runs' / '1'} was deleted" in caplog.text
    assert "-1 points" not in caplog.text


GONE = """
import os
os.makedirs("gone/here")
os.chdir("gone/here")
ex.observers.append(OBSERVER)

@ex.automain
def main(_run):
    _run.log_scalar("loss", 0.5, 0)
    os.chdir("..")
    os.rmdir("here")
    os.chdir("..")
    os.mkdir("gone/now")
    os.chdir("gone/now")
    os.rmdir("../now")
    os.rmdir("../../gone")
    _run.log_scalar("loss", 1.5, 1)
    _run.add_artifact(__file__)
    _run.add_resource(__file__)
    _run.log_artifact("code", __file__)
    return 3
"""


def test_working_folder_that_is_deleted_in_mid_run_costs_nothing(tmp_path, start):
    said = start(tmp_path, GONE.replace("OBSERVER", 'FileObserver("../../runs")')).finish()
    folder = tmp_path / "runs" / "1"
    assert [line for line in said.splitlines() if "INFO" not in line] == []
    assert f"Recorded in {folder}" in said
    run = load(folder)
    assert (run["status"], run["folder"], run["result"]) == ("COMPLETED", str(folder), 3)
    assert read_metrics(folder)["loss"].values.tolist() == [0.5, 1.5]
    assert (folder / "recorded.py").is_file()
    assert [name for name, _ in run["resources"]] == [str(tmp_path / "recorded.py")]
    assert [entry["name"] for entry in run["artifacts_logged"]] == ["code"]


def test_spool_is_removed_wherever_the_working_folder_is(tmp_path, start, mongo_url, database):
    observer = f'MongoObserver({mongo_url!r}, {database.name!r}, failure_dir="../../spool")'
    start(tmp_path, GONE.replace("OBSERVER", observer)).finish()
    [run] = database.runs.find()
    assert (run["status"], run["result"], len(run["artifacts"])) == ("COMPLETED", 3, 1)
    assert list((tmp_path / "spool").iterdir()) == []
