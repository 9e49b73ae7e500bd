"""Runs that are killed and go on in the same record, as real processes."""

import functools
import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pymongo.collection import Collection

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver, ResumeError, Text, read_media, read_metrics
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.record.folders import is_locked, locked
from sacristan.observers.record.identity import lease
from sacristan.observers.record.points import POINT
from sacristan.observers.record.points.intact_points import read_points
from sacristan.observers.record.schema import read_names
from sacristan.runs import open_store, reap, sync

# A training in small: `state.json` is its checkpoint, and holds the position of the record.
TRAINING = """
import json, pathlib
import numpy as np
from sacristan.observers import Image
from sacristan.observers.record.files import replacing
ex.observers.extend([{observers}])
state = pathlib.Path("state.json")

@ex.main
def main(_run, steps=3000):
    _run.log_scalar("model/parameters", 10)
    saved = json.loads(state.read_text()) if state.exists() else {{"step": 0, "position": None}}
    if saved["step"]:
        _run.rewind(saved["position"])
    for step in range(saved["step"], steps):
        _run.log_scalar("loss", 1 / (step + 1))
        _run.log_scalar("half", step, step if step % 2 else step + 0.5)
        if step % 10 == 0:
            _run.log_media("image", Image(np.full((4, 4), step % 256, np.uint8)))
        print("step", step)
        if step % 37 == 0:
            position = _run.position()
            _run.flush()
            with replacing(state) as stream:
                stream.write(json.dumps({{"step": step + 1, "position": position}}).encode())
        time.sleep(0.001)
    return "done"

resume = os.environ.get("SACRISTAN_RESUME")
ex.run(meta_info={{"resume": resume}} if resume else {{}}, options={{"--beat-interval": 0.05}})
"""


def load(folder, name="run.json"):
    return json.loads((Path(folder) / name).read_text())


def has_points(folder, count):
    return folder.exists() and len(read_points(folder)) > count


def check_whole(folder, steps):
    """See to it that each point is there exactly once, in its order."""
    metrics = read_metrics(folder)
    assert metrics["loss"].steps.tolist() == list(range(steps))
    assert np.array_equal(metrics["loss"].values, 1 / (np.arange(steps) + 1))
    assert metrics["half"].steps.tolist() == [s if s % 2 else s + 0.5 for s in range(steps)]
    assert metrics["half"].values.tolist() == list(range(steps))
    assert len(metrics["model/parameters"]) == 1
    assert [record.step for record in read_media(folder)] == list(range(len(range(0, steps, 10))))
    assert all(record.path.exists() for record in read_media(folder))
    assert load(folder, "summary.json")["loss"]["count"] == steps
    assert set(read_names(folder)) == set(np.unique(read_points(folder)["metric"]).tolist())
    for name, series in metrics.items():
        if name.startswith("system/"):
            assert max(Counter(series.steps.tolist()).values()) == 1


@pytest.mark.slow
def test_run_killed_at_random_moments_has_each_point_once(tmp_path, start, wait_for, monkeypatch):
    folder, chance = tmp_path / "runs" / "1", random.Random(os.environ.get("SEED", 1))
    body = TRAINING.format(observers="FileObserver('runs')")
    wanted = 0
    for _ in range(3):
        recorded = start(tmp_path, body)
        wanted += chance.randrange(200, 500)
        wait_for(functools.partial(has_points, folder, 2 * wanted), "points")
        recorded.process.kill()
        recorded.process.wait()
        with (folder / "metrics.bin").open("ab") as stream:
            stream.write(b"torn")
        monkeypatch.setenv("SACRISTAN_RESUME", str(folder))
    first = load(folder)
    start(tmp_path, body).finish()
    check_whole(folder, 3000)
    run = load(folder)
    assert (run["uid"], run["start_time"]) == (first["uid"], first["start_time"])
    assert (run["status"], run["result"], run["revision"]) == ("COMPLETED", "done", 3)
    assert [session["status"] for session in run["sessions"]] == ["DEAD", "DEAD", "DEAD", "COMPLETED"]
    steps = [session["step"] for session in run["sessions"]]
    assert steps == sorted(steps)
    assert steps[0] == 0 < steps[1]
    times = [time for session in run["sessions"] for time in (session["start_time"], session["stop_time"])]
    assert times == sorted(times)
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.isdigit()] == ["1"]
    assert all(isinstance(session["command_line"], list) for session in run["sessions"])
    output = (folder / "cout.txt").read_text()
    assert output.count("--- session ") == 3
    assert "step 2999" in output


def database_series(database, name):
    """Return steps and values of a metric in the database, document and chunks together."""
    document = database.metrics.find_one({"name": name})
    chunks = database.metrics_chunks.find({"name": name}).sort("index")
    points = np.concatenate([np.zeros(0, POINT), *(np.frombuffer(chunk["data"], POINT) for chunk in chunks)])
    return document["steps"] + points["step"].tolist(), document["values"] + points["value"].tolist()


def check_delivered(database, folder):
    """See to it that the database has what the folder has, and nothing else."""
    run = load(folder)
    [document] = database.runs.find({})
    assert (document["uid"], document["status"], document.get("revision")) == (
        run["uid"],
        run["status"],
        run.get("revision"),
    )
    metrics = read_metrics(folder)
    assert {found["name"] for found in database.metrics.find({})} == metrics.keys()
    for name, series in metrics.items():
        assert database_series(database, name) == (series.steps.tolist(), series.values.tolist())
    media = list(database.media.find({}).sort("number"))
    assert [(m["name"], m["step"], m["sha256"]) for m in media] == [
        (m.name, m.step, m.sha256) for m in read_media(folder)
    ]
    assert [session["status"] for session in document.get("sessions", ())] == [
        session["status"] for session in run.get("sessions", ())
    ]


@pytest.mark.slow
def test_killed_run_that_goes_on_is_in_the_database_once(tmp_path, database, mongo_url, start, wait_for, monkeypatch):
    folder, chance = tmp_path / "runs" / "1", random.Random(2)
    body = TRAINING.format(observers=f"FileObserver('runs'), MongoObserver({mongo_url!r}, {database.name!r})")
    wanted = 0
    for num_sessions in (1, 2):
        recorded = start(tmp_path, body)
        wanted += chance.randrange(300, 600)

        def is_there(wanted=wanted, num_sessions=num_sessions):
            run = database.runs.find_one({}, {"sessions": 1}) or {}
            found = database.metrics.find_one({"name": "loss"}, {"count": 1})
            return len(run.get("sessions", "1")) == num_sessions and found and found["count"] > wanted

        wait_for(is_there, "points in the database")
        recorded.process.kill()
        recorded.process.wait()
        monkeypatch.setenv("SACRISTAN_RESUME", str(folder))
    assert [uid for _, uid in reap(f"{mongo_url}/{database.name}")] == [load(folder)["uid"]]
    start(tmp_path, body).finish()
    check_whole(folder, 3000)
    check_delivered(database, folder)
    [document] = database.runs.find({})
    assert document["delivery_turn"]
    assert document["captured_out"].count("--- session ") == 2


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Record a run, or continue it: it goes back to `to` points and a tenth of media, and logs `count` more.

    A document of the database is full of 200 points.
    """
    monkeypatch.setattr("sacristan.observers.mongo.series.POINTS_PER_DOCUMENT", 200)
    monkeypatch.setattr("sacristan.observers.mongo.series.POINTS_PER_CHUNK", 40)
    ex = Experiment("rewound", base_dir=Path(__file__).parent)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.main
    def main(_run, count, to=0, fails=False):
        if to:
            _run.rewind({"metrics": {"loss": [to, to - 1]}, "media": {"text": [to // 10, to // 10 - 1]}})
        for number in range(count):
            _run.log_scalar("loss", number / count)
            if not number % 10:
                _run.log_media("text", Text(f"{count} {number}"))
        if fails:
            raise ValueError("it fails")

    def run(**updates):
        folder = tmp_path / "runs" / "1"
        meta_info = {"resume": folder} if folder.exists() else {}
        ex.run(config_updates=updates, meta_info=meta_info, options={"--capture": "sys"})
        return folder

    return run


def deliver(folder, database):
    delivery = Delivery(folder, folder.parent, database)
    for _ in range(4):
        delivery.advance(last=True)
    assert delivery.is_complete
    return delivery


@pytest.mark.slow
def test_points_that_were_taken_back_leave_the_database(tmp_path, database, record):
    with pytest.raises(ValueError, match="it fails"):
        record(count=260, fails=True)
    folder = tmp_path / "runs" / "1"
    early = deliver(folder, database)
    assert "fail_trace" in database.runs.find_one()
    for to in (250, 210, 30):
        record(count=10, to=to)
        check_delivered_after = deliver(folder, database)
        check_delivered(database, folder)
        assert check_delivered_after.was_completed()
    assert len(read_metrics(folder)["loss"]) == 40
    assert not {"fail_trace", "captured_out_file"} & database.runs.find_one().keys()
    # Whoever delivered it before notices, too.
    database.metrics.delete_many({})
    early.advance()
    early.advance()
    check_delivered(database, folder)


def test_run_of_as_many_points_as_before_is_delivered_again(tmp_path, database, record):
    folder = record(count=20)
    assert deliver(folder, database).was_completed()
    record(count=10, to=10)
    assert not Delivery(folder, folder.parent, database).was_completed()
    deliver(folder, database)
    check_delivered(database, folder)


@pytest.mark.slow
def test_delivery_killed_at_each_step_ends_with_the_same_database(tmp_path, database, record, killed_at):
    folder = record(count=260)
    deliver(folder, database)
    record(count=10, to=210)
    places = [(Collection, name) for name in ("update_one", "delete_many", "insert_one", "bulk_write")]
    stop, was_killed = 1, True
    while was_killed:
        was_killed = killed_at(stop, places, lambda: deliver(folder, database))
        stop += 1
    assert stop > 8
    check_delivered(database, folder)


def test_older_copy_of_a_run_changes_nothing_in_the_database(tmp_path, database, record):
    folder = record(count=20)
    copy = shutil.copytree(tmp_path / "runs", tmp_path / "copy") / "1"
    record(count=10, to=10)
    deliver(folder, database)
    Delivery(copy, copy.parent, database).advance(last=True)
    check_delivered(database, folder)


@pytest.mark.slow
def test_sync_delivers_a_run_that_was_rewound_and_killed(tmp_path, database, mongo_url, start, wait_for, monkeypatch):
    folder = tmp_path / "runs" / "1"
    body = TRAINING.format(observers=f"FileObserver('runs'), MongoObserver({mongo_url!r}, {database.name!r})")
    recorded = start(tmp_path, body)
    wait_for(lambda: (database.metrics.find_one({"name": "loss"}) or {"count": 0})["count"] > 400, "points")
    recorded.process.kill()
    recorded.process.wait()
    monkeypatch.setenv("SACRISTAN_RESUME", str(folder))
    recorded = start(tmp_path, TRAINING.format(observers="FileObserver('runs')"))
    wait_for(lambda: load(folder).get("revision"), "the record to be taken back")
    recorded.process.kill()
    recorded.process.wait()
    [result] = sync(tmp_path / "runs")
    assert result.outcome == "delivered"
    run = load(folder)
    [document] = database.runs.find({})
    assert (document["revision"], len(document["sessions"])) == (run["revision"], 2)
    loss = read_metrics(folder)["loss"]
    assert database_series(database, "loss") == (loss.steps.tolist(), loss.values.tolist())
    assert [result.outcome for result in sync(tmp_path / "runs")] == ["delivered"]


def test_run_that_cannot_go_on_is_refused_and_left_as_it_is(tmp_path, record, caplog):
    folder = record(count=10)
    before = (folder / "run.json").read_bytes()

    def refused(match, resume=folder, observers=None):
        ex = Experiment("refused", base_dir=Path(__file__).parent)
        ex.observers.extend([FileObserver(tmp_path / "runs")] if observers is None else observers)
        ex.main(lambda: None)
        with pytest.raises(ResumeError, match=match):
            ex.run(meta_info={"resume": str(resume)}, options={"--capture": "sys"})
        assert "failed; the run" not in caplog.text

    refused("there is no run; give a folder that has a run.json", tmp_path / "runs" / "2")
    refused("runs are recorded in .*other; record in .*runs", observers=[FileObserver(tmp_path / "other")])
    refused("nothing here records in one; attach a FileObserver", observers=[])
    url = "mongodb://127.0.0.1:9"
    refused("A run in MongoDB alone cannot be resumed", observers=[MongoObserver(url, "x", failure_dir=tmp_path)])
    with locked(folder):
        refused(f"process {os.getpid()} on .* writes, resumes or removes it")
    assert (folder / "run.json").read_bytes() == before
    alive = {**load(folder), "status": "RUNNING"}
    (folder / "run.json").write_text(json.dumps(alive))
    (folder / "lease.json").write_text(json.dumps(lease(1.0)))
    refused(f"process {os.getpid()} on .* writes, resumes or removes it")
    (folder / "run.json").write_text("{}")
    refused("no FileObserver of this program started it")
    (folder / "run.json").write_text("{")
    refused("run.json cannot be read")
    assert not (tmp_path / "other").exists()


def test_observer_of_a_finished_run_that_is_refused_another_one_leaves_that_as_it_is(tmp_path):
    observer, ex = FileObserver(tmp_path / "runs"), Experiment("refused", base_dir=Path(__file__).parent)
    ex.observers.append(observer)
    ex.main(lambda: None)
    ex.run(options={"--capture": "sys"})
    with pytest.raises(ResumeError):
        ex.run(meta_info={"resume": str(tmp_path / "runs" / "2")}, options={"--capture": "sys"})
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


def test_record_is_locked_against_a_second_writer_as_long_as_a_session_writes_it(tmp_path, record):
    folder, seen = record(count=10), []

    def experiment(main):
        ex = Experiment("locked", base_dir=Path(__file__).parent)
        ex.observers.append(FileObserver(tmp_path / "runs"))
        ex.main(main)
        return ex

    def main():
        seen.append(is_locked(folder))
        with pytest.raises(ResumeError, match=f"process {os.getpid()} on .* writes, resumes or removes it"):
            experiment(lambda: None).run(meta_info={"resume": str(folder)}, options={"--capture": "sys"})

    experiment(main).run(meta_info={"resume": str(folder)}, options={"--capture": "sys"})
    assert (seen, is_locked(folder)) == ([True], False)
    assert [session["status"] for session in load(folder)["sessions"]] == ["COMPLETED", "COMPLETED"]


def test_half_written_files_of_a_killed_process_go_when_the_run_goes_on(tmp_path, record):
    folder = record(count=10)
    for name in ("run.json", "metrics.bin", "values.jsonl", "notes.json"):
        (folder / f".{name}.k1ll3d.tmp").write_text("{")
    (folder / "media").mkdir(exist_ok=True)
    (folder / "media" / f".{'0' * 64}.png.k1ll3d.tmp").write_text("half")
    record(count=10)
    # Tags and notes are written by others, who may be about to.
    assert [path.name for path in folder.rglob(".*")] == [".notes.json.k1ll3d.tmp"]


def test_run_recorded_in_two_folders_goes_on_in_both(tmp_path, caplog):
    ex = Experiment("twice", base_dir=Path(__file__).parent)
    ex.observers.extend([FileObserver(tmp_path / "one"), FileObserver(tmp_path / "two")])

    @ex.main
    def main(_run, to=0):
        if to:
            _run.rewind({"metrics": {"loss": [to, to - 1]}, "media": {}})
        for _ in range(10):
            _run.log_scalar("loss", 1.0)

    def run(to, **meta_info):
        ex.run(config_updates={"to": to}, meta_info=meta_info, options={"--capture": "sys"})

    (tmp_path / "two" / "1").mkdir(parents=True)
    (tmp_path / "two" / "1" / "run.json").write_text("{")
    run(0)
    run(8, resume=tmp_path / "one" / "1")
    records = [load(tmp_path / "one" / "1"), load(tmp_path / "two" / "2")]
    assert records[0]["uid"] == records[1]["uid"]
    assert [len(record["sessions"]) for record in records] == [2, 2]
    for folder in (tmp_path / "one" / "1", tmp_path / "two" / "2"):
        assert read_metrics(folder)["loss"].steps.tolist() == list(range(18))
    assert "holds no record" not in caplog.text
    shutil.rmtree(tmp_path / "two" / "2")
    run(8, resume=tmp_path / "one" / "1")
    assert "two holds no record of the run that is resumed; one begins there now" in caplog.text
    assert len(read_metrics(tmp_path / "one" / "1")["loss"]) == 18


def test_all_observers_record_below_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SACRISTAN_RECORD_TO", str(tmp_path / "there"))
    monkeypatch.setattr("sacristan.observers.mongo.observer.DRAIN_BOUND_S", 0.5)
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(FileObserver(tmp_path / "here", source_dir=tmp_path / "sources"))
    ex.observers.append(
        MongoObserver("mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=200", "nowhere", failure_dir=tmp_path / "spool")
    )
    ex.main(lambda _run: _run.log_scalar("loss", 1.0))
    ex.run(options={"--capture": "sys"})
    run = load(tmp_path / "there" / "1")
    assert (run["folder"], run["cwd"]) == (str(tmp_path / "there" / "1"), str(Path.cwd()))
    assert all((tmp_path / "there" / stored).exists() for _, stored in run["experiment"]["sources"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_observers_that_record_in_the_same_place_make_one_record(tmp_path, monkeypatch):
    monkeypatch.setenv("SACRISTAN_RECORD_TO", str(tmp_path / "there"))
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers += [FileObserver(tmp_path / "here"), FileObserver(tmp_path / "beside")]
    ex.main(lambda _run: _run.log_scalar("loss", 1.0, 3))
    for meta in ({}, {"resume": str(tmp_path / "there" / "1")}):
        ex.run(meta_info=meta, options={"--capture": "sys"})
    assert [path.name for path in (tmp_path / "there").iterdir() if path.name.isdigit()] == ["1"]
    assert load(tmp_path / "there" / "1")["status"] == "COMPLETED"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_spool_stays_where_it_is_though_runs_are_recorded_elsewhere(tmp_path, database, mongo_url, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("SACRISTAN_RECORD_TO", str(tmp_path / "there"))
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool"))
    ex.main(lambda _run: _run.log_scalar("loss", 1.0))
    ex.run(options={"--capture": "sys"})
    assert database.runs.find_one()["status"] == "COMPLETED"
    assert (tmp_path / "there").is_dir()


@pytest.mark.slow
def test_changed_and_new_sources_are_beside_the_first_ones(tmp_path, start, monkeypatch):
    body = """
import part
ex.observers.append(FileObserver("runs"))
ex.main(lambda: None)
resume = os.environ.get("SACRISTAN_RESUME")
ex.run(meta_info={"resume": resume} if resume else {})
"""
    (tmp_path / "part.py").write_text("x = 1\n")
    start(tmp_path, body).finish()
    monkeypatch.setenv("SACRISTAN_RESUME", str(tmp_path / "runs" / "1"))
    for content in ("x = 2\n", "x = 2\nimport more\n", "x = 1\n"):
        (tmp_path / "part.py").write_text(content)
        (tmp_path / "more.py").write_text("y = 1\n")
        start(tmp_path, body).finish()
    run = load(tmp_path / "runs" / "1")
    assert [session["changed_sources"] for session in run["sessions"]] == [[], ["part.py"], ["part.py"], ["part.py"]]
    kept = [(name, (tmp_path / "runs" / stored).read_text()) for name, stored in run["experiment"]["sources"]]
    parts = [content for name, content in kept if name == "part.py"]
    assert parts == ["x = 1\n", "x = 2\n", "x = 2\nimport more\n", "x = 1\n"]
    assert [content for name, content in kept if name == "more.py"] == ["y = 1\n"]


@pytest.mark.parametrize("kind", ["folder", pytest.param("mongo", marks=pytest.mark.slow)])
def test_show_lists_the_sessions_of_a_continued_run(kind, tmp_path, database, mongo_url, record, capsys):
    with pytest.raises(ValueError, match="it fails"):
        record(count=10, fails=True)
    folder = record(count=10, to=4)
    dead = {**load(folder), "status": "RUNNING"}
    dead["sessions"][-1] |= {"status": "RUNNING", "stop_time": None, "changed_sources": ["part.py"]}
    dead["sessions"][-1]["changed_environment"] = {"packages": {"torch": ["1", "2"]}}
    dead["sessions"][0]["interrupted_by"] = "SIGTERM"
    del dead["stop_time"]
    (folder / "run.json").write_text(json.dumps(dead))
    (folder / "lease.json").write_text(json.dumps(lease(1.0) | {"pid_start": 0}))
    [(reaped, _)] = reap(tmp_path / "runs")
    assert reaped == folder
    deliver(folder, database)
    where = str(tmp_path / "runs") if kind == "folder" else f"{mongo_url}/{database.name}"
    with open_store(where) as store:
        run = store.get("1")
        assert [session["status"] for session in run.sessions] == ["FAILED", "DEAD"]
        assert [session["step"] for session in run.sessions] == [0, 4]
        assert run.sessions[-1]["stop_time"]
        assert run.duration_s > 0
    assert runs_command(["--store", where, "show", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = lines[lines.index("sessions") + 2 :][:2]
    assert "FAILED by SIGTERM" in first
    assert second.endswith("part.py, packages torch")
    assert "DEAD" in second
    assert runs_command(["--store", where, "show", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [session["status"] for session in shown["sessions"]] == ["FAILED", "DEAD"]
    assert "delivery_turn" not in shown


def test_copy_of_a_continued_run_has_its_sessions_and_sources(tmp_path, database, mongo_url, record):
    record(count=10)
    folder = record(count=10, to=4)
    deliver(folder, database)
    (tmp_path / "copy").mkdir()
    assert runs_command(["--store", f"{mongo_url}/{database.name}", "copy", "1", "--to", str(tmp_path / "copy")]) == 0
    copy = load(tmp_path / "copy" / "1")
    run = load(folder)
    assert (copy["sessions"], copy["revision"]) == (run["sessions"], run["revision"])
    assert not {"delivery_turn", "rewinding"} & copy.keys()
    assert len(copy["experiment"]["sources"]) == len(run["experiment"]["sources"])
