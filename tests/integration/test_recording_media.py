"""Media of real runs: in the folder, in MongoDB, after kills and outages, at no risk for the training."""

import json
import logging
import re
import threading
from pathlib import Path

import gridfs
import numpy as np
import pytest
import sacred
import torch
from sacred.observers import RunObserver

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.experiments.running.buffers import MediaBuffer
from sacristan.observers import (
    Audio,
    FileObserver,
    Histogram,
    Html,
    Image,
    Media,
    MediaEntry,
    MediaError,
    MongoObserver,
    PointCloud,
    Table,
    Text,
    Video,
    read_media,
    read_metrics,
    read_table,
)
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.record.journal import Journal
from sacristan.runs import sync


def record(main, *observers, **options):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"}, **options)


def load(folder):
    return json.loads((Path(folder) / "run.json").read_text())


NUM_MEDIA = 9


def log_all(_run):
    _run.log({"val/samples": Image(torch.zeros(3, 4, 4)), "val/loss": 0.5}, 7)
    _run.log_media("val/weights", Histogram([1.0, 2.0, float("nan")]))
    _run.log_media("val/weights", Histogram([3.0]))
    _run.log_media("val/loss", Text("a text of the same name as a metric"), np.int64(3))
    rows = [["wrong", Image(np.ones((2, 2))), float("nan")], ["right", Image(np.zeros((2, 2))), 0.5]]
    _run.log_media("cases", Table(["case", "image", "p"], rows), 0.25)
    _run.log({"sound": Audio([0.0, 1.0], 10), "video": Video(np.zeros((2, 4, 4)), 5), "html": Html("<p>")}, 8)
    _run.log_media("points", PointCloud([[1, 2, 3]]), 8)
    return 1


def test_media_of_all_kinds_are_recorded_beside_metrics(tmp_path):
    record(log_all, FileObserver(tmp_path / "runs"))
    folder = tmp_path / "runs" / "1"
    found = read_media(folder)
    assert [(r.name, r.kind, r.step) for r in found] == [
        ("val/samples", "image", 7),
        ("val/weights", "histogram", 0),
        ("val/weights", "histogram", 1),
        ("val/loss", "text", 3),
        ("cases", "table", 0.25),
        ("sound", "audio", 8),
        ("video", "video", 8),
        ("html", "html", 8),
        ("points", "point_cloud", 8),
    ]
    assert all(0 <= record.time < 60 for record in found)
    assert read_metrics(folder)["val/loss"].values.tolist() == [0.5]
    columns, rows = read_table(found[4].path)
    assert columns == ["case", "image", "p"]
    assert rows[0][1].read_bytes().startswith(b"\x89PNG")
    assert np.isnan(rows[0][2])
    assert load(folder)["status"] == "COMPLETED"


def test_bad_media_raise_at_the_call(tmp_path):
    def main(_run):
        with pytest.raises(MediaError, match="floats from 0 to 2"):
            _run.log({"x": Image(np.array([[0.0, 2.0]]))})
        with pytest.raises(
            MediaError, match=r"log_media\('x'\) in test_recording_media.py, line \d+: got a ndarray, expect"
        ):
            _run.log_media("x", np.zeros((2, 2)))
        with pytest.raises(MediaError, match=r"got the step 'one' \(str\), expected an integer"):
            _run.log_media("x", Text(""), "one")
        _run.log_media("last", Text(""), 2**63 - 1)
        with pytest.raises(MediaError, match=r"got no step, and the last one is 2\*\*63 - 1"):
            _run.log_media("last", Text(""))
        return 1

    assert record(main, FileObserver(tmp_path / "runs")).result == 1


class Broken(Media):
    kind = "image"

    def encode(self):
        raise MemoryError("no room for the file")


def test_file_that_cannot_be_made_is_said_and_counted_and_the_run_goes_on(tmp_path, caplog):
    def main(_run):
        _run.log_media("broken", Broken(), 3)
        _run.log_media("fine", Text("fine"))
        return 1

    assert record(main, FileObserver(tmp_path / "runs")).result == 1
    run = load(tmp_path / "runs" / "1")
    assert (run["status"], run["lost_media"]) == ("COMPLETED_WITH_LOSS", 1)
    assert [r.name for r in read_media(tmp_path / "runs" / "1")] == ["fine"]
    assert "broken, step 3: the file of this image could not be made" in caplog.text


def test_file_is_made_on_the_thread_of_the_beats_until_too_much_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("sacristan.experiments.running.buffers.MAX_WAITING_BYTES", 1000)
    threads = []

    class Noted(Image):
        def encode(self):
            threads.append(threading.current_thread())
            return super().encode()

    buffer = MediaBuffer()
    for step in range(4):
        buffer.add("x", Noted(np.full((20, 20), step, np.uint8)), step)
    assert threads == [threading.current_thread()] * 2  # 800 bytes wait, and the two files beyond them
    taker = threading.Thread(target=lambda: taken.extend(buffer.take(float("inf"))))
    taken = []
    taker.start()
    taker.join()
    assert [entry.step for entry in taken] == [0, 1, 2, 3]
    assert threads[2:] == [taker] * 2
    buffer.add("x", Noted(np.zeros((20, 20), np.uint8)))
    assert len(threads) == 4
    assert buffer.take(0) == []
    assert buffer.take(float("inf"))[0].step == 4


class Deaf(RunObserver):
    def log_metrics(self, metrics_by_name, info):
        pass


class Raising(RunObserver):
    def __init__(self):
        self.num_events = 0

    def log_metrics(self, metrics_by_name, info):
        pass

    def media_event(self, entries):
        self.num_events += len(entries)
        raise RuntimeError("broken on purpose")


def test_observer_without_the_event_is_named_once_and_one_that_fails_is_asked_again(tmp_path, caplog, wait_for):
    raising = Raising()

    def main(_run):
        _run.log_media("x", Text("one"))
        wait_for(lambda: raising.num_events == 1, "the first beat")
        _run.log_media("x", Text("two"))

    with caplog.at_level(logging.WARNING):
        record(main, FileObserver(tmp_path / "runs"), Deaf(), raising)
    assert raising.num_events == 2
    assert caplog.text.count("media are not recorded by Deaf; attach an observers.FileObserver") == 1
    assert len(read_media(tmp_path / "runs" / "1")) == 2


def test_unobserved_run_takes_media_and_keeps_none():
    made = []

    class Noted(Text):
        def encode(self):
            made.append(self)

    assert record(lambda _run: _run.log_media("x", Noted("x")) or 3).result == 3
    assert made == []


def test_stock_experiment_with_our_observer_is_as_before(tmp_path):
    ex = sacred.Experiment("stock", base_dir=str(Path(__file__).parent), save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda _run: _run.log_scalar("x", 1))
    ex.run()
    assert not (tmp_path / "runs" / "1" / "media.jsonl").exists()
    assert read_media(tmp_path / "runs" / "1") == []


@pytest.mark.parametrize("error", [None, RuntimeError("failed"), KeyboardInterrupt()])
def test_what_was_logged_last_is_kept_however_the_run_ends(tmp_path, error):
    def main(_run):
        _run.log_media("last", Text("the last words"))
        if error is not None:
            raise error

    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(main)
    if error is None:
        ex.run(options={"--beat-interval": "60"})
    else:
        with pytest.raises(type(error)):
            ex.run(options={"--beat-interval": "60"})
    assert [r.path.read_text() for r in read_media(tmp_path / "runs" / "1")] == ["the last words"]


def test_what_no_beat_had_time_for_is_kept_at_the_end(tmp_path):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda _run: [_run.log_media("x", Text(str(step))) for step in range(50)] and None)
    ex.run(options={"--beat-interval": "0"})  # no beats at all
    assert [r.step for r in read_media(tmp_path / "runs" / "1")] == list(range(50))


def test_content_that_cannot_be_written_to_the_end_is_counted(tmp_path, caplog):
    observer = FileObserver(tmp_path / "runs")

    def main(_run):
        Path(observer.dir, "media").write_text("a file stands in the way")
        _run.log({"x": Text("four"), "y": 1.0})

    record(main, observer)
    run = load(tmp_path / "runs" / "1")
    assert (run["status"], run["lost_media"], run["lost_bytes"]) == ("COMPLETED_WITH_LOSS", 1, 4)
    assert read_media(tmp_path / "runs" / "1") == []
    assert len(read_metrics(tmp_path / "runs" / "1")["y"]) == 1
    assert caplog.text.count("cannot be written") == 1


# ---------------------------------------------------------------------- MongoDB


def check_delivered(database, folder):
    """Compare the database with the folder, entry by entry, bytes included."""
    files = gridfs.GridFS(database)
    documents = {(d["name"], d["step"]): d for d in database.media.find()}
    records = read_media(folder)
    assert len(documents) == database.media.count_documents({}) == len(records)
    run = database.runs.find_one({"uid": load(folder)["uid"]})
    for r in records:
        found = documents[r.name, r.step]
        assert (found["run_id"], found["uid"]) == (run["_id"], run["uid"])
        assert (found["kind"], found["time"], found["sha256"]) == (r.kind, r.time, r.sha256)
        assert files.get(found["file_id"]).read() == r.path.read_bytes()
        assert found["bytes"] == r.path.stat().st_size
        for image in found.get("images", []):
            assert files.get(image["file_id"]).read() == (folder / image["file"]).read_bytes()


def test_media_are_delivered_with_their_contents_and_an_index(tmp_path, database, mongo_url):
    record(log_all, FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, db_name=database.name))
    check_delivered(database, tmp_path / "runs" / "1")
    assert len(database.media.find_one({"name": "cases"})["images"]) == 2
    assert "run_id_1_name_1_step_1" in database.media.index_information()
    assert json.loads((tmp_path / "runs" / "1" / "delivered.json").read_text())["media"] == NUM_MEDIA


def test_delivery_is_complete_only_with_all_media(tmp_path, database):
    record(log_all, FileObserver(tmp_path / "runs"))
    folder = tmp_path / "runs" / "1"
    delivery = Delivery(folder, tmp_path / "runs", database)
    assert delivery.num_missing_media() == NUM_MEDIA
    delivery.advance()
    assert delivery.is_complete
    assert Delivery(folder, tmp_path / "runs", database).was_completed()
    journal = Journal(folder)
    journal.media.add(MediaEntry("late", "text", 0, 0.0, Text("late").encode()), 1.0)
    journal.close()
    assert (delivery.is_complete, delivery.num_missing_media()) == (False, 1)
    assert not Delivery(folder, tmp_path / "runs", database).was_completed()
    delivery.advance()
    assert delivery.is_complete
    check_delivered(database, folder)


def test_run_without_media_makes_no_collection_of_them(tmp_path, database, mongo_url):
    record(lambda: 1, FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, db_name=database.name))
    assert "media" not in database.list_collection_names()


def test_media_go_through_the_spool_and_a_prefix(tmp_path, database, mongo_url):
    observer = MongoObserver(mongo_url, db_name=database.name, failure_dir=tmp_path / "spool", collection_prefix="mine")
    record(log_all, observer)
    assert database.mine_media.count_documents({}) == NUM_MEDIA
    assert list((tmp_path / "spool").iterdir()) == []


def test_content_that_is_gone_or_changed_is_told_and_the_rest_delivered(tmp_path, database, mongo_url, caplog):
    record(log_all, FileObserver(tmp_path / "runs"))
    records = read_media(tmp_path / "runs" / "1")
    records[0].path.unlink()
    records[1].path.write_text("something else")
    list(sync(tmp_path / "runs", f"{mongo_url}/{database.name}"))
    without = {document["name"] for document in database.media.find({"file_id": None})}
    assert without == {"val/samples", "val/weights"}
    assert database.media.count_documents({"file_id": {"$ne": None}}) == NUM_MEDIA - 2
    assert "is not there; its entry is delivered without it" in caplog.text
    assert "is not what was written" in caplog.text


@pytest.mark.slow
def test_killed_run_keeps_all_but_the_last_beat_and_sync_delivers_it(
    tmp_path, database, mongo_url, start, wait_for, capsys
):
    body = f"""
import numpy as np
from sacristan.observers import Image, Table
ex.observers.extend([FileObserver("runs"), MongoObserver("{mongo_url}", db_name="{database.name}")])
@ex.automain
def main(_run):
    step = 0
    while True:
        image = Image(np.full((8, 8), step % 256, np.uint8))
        _run.log({{"image": image, "table": Table(["image", "step"], [[image, step]]), "loss": step}}, step)
        step += 1; time.sleep(0.002)
"""
    recorded = start(tmp_path, body, "-b", "0.2")
    folder = tmp_path / "runs" / "1"
    wait_for(lambda: database.media.count_documents({}) > 100, "media in the database")
    recorded.process.kill()
    recorded.process.wait()
    images = [r for r in read_media(folder) if r.kind == "image"]
    assert [r.step for r in images] == list(range(len(images)))
    assert all(r.path.exists() for r in read_media(folder))
    for outcome in ("delivered as run 1", "delivered as run 1"):
        assert runs_command(["sync", str(tmp_path / "runs")]) == 0
        assert outcome in capsys.readouterr().out
        documents = list(database.media.find({"name": "image"}).sort("step"))
        assert [d["step"] for d in documents] == list(range(len(images)))
    assert database.media.count_documents({}) == len(read_media(folder))


OUTAGE = """
import pathlib
import numpy as np
from sacristan.observers import Image
ex.observers.extend([FileObserver("runs"), MongoObserver("{url}", db_name="outage")])
@ex.automain
def main(_run):
    for step in range(60):
        _run.log_media("image", Image(np.full((8, 8), step, np.uint8)), step)
        if step == 30:
            pathlib.Path("reached").touch()
            while not pathlib.Path("go").exists(): time.sleep(0.02)
"""


@pytest.mark.slow
def test_server_gone_at_the_end_names_the_media_and_sync_delivers_them(tmp_path, mongod, start, wait_for, capsys):
    import pymongo

    mongod.start()
    recorded = start(tmp_path, OUTAGE.format(url=f"{mongod.url}/?serverSelectionTimeoutMS=300"), impatient=True)
    wait_for((tmp_path / "reached").exists, "the middle")
    with pymongo.MongoClient(mongod.url) as client:
        wait_for(lambda: client.outage.media.count_documents({}) == 31, "what was logged so far")
        mongod.kill()
        (tmp_path / "go").touch()
        assert re.search(r"\d+ points, 29 media and the end of this run are not delivered", recorded.finish())
        mongod.start()
        for outcome in ("delivered as run 1", "up to date as run 1"):
            assert runs_command(["sync", str(tmp_path / "runs")]) == 0
            assert outcome in capsys.readouterr().out
            check_delivered(client.outage, tmp_path / "runs" / "1")
