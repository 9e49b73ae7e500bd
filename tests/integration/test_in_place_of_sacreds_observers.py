"""Our observers instead of Sacred's, for scripts that know only those.

Each behaviour of the file observer is tested with both, but for those that `docs/from_sacred.md` lists as different.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sacred.metrics_logger import ScalarMetricLogEntry, linearize_metrics
from sacred.observers import FileStorageObserver
from sacred.observers import MongoObserver as SacredMongoObserver

from sacristan.experiments import Experiment
from sacristan.observers import ArtifactError, DestinationError, FileObserver, MongoObserver
from sacristan.observers.record.identity import user_name
from sacristan.runs import open_store

BEGAN = datetime(2001, 2, 3, 4, 5, 6)
LATER = BEGAN + timedelta(hours=1)


@pytest.fixture(params=[FileStorageObserver, FileObserver])
def kind(request):
    return request.param


@pytest.fixture
def observer(kind, tmp_path):
    return kind(tmp_path / "runs")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a file.py"
    path.write_text("x = 1\n")
    return path


@pytest.fixture
def begin(tmp_path):
    begun = []

    def start(observer, _id=None, event="started_event", sources=()):
        experiment = {"name": "e", "sources": [list(pair) for pair in sources], "doc": "", "base_dir": str(tmp_path)}
        told = experiment, "main", {"hostname": "h"}, BEGAN, {"lr": 0.5}, {"comment": "c"}, _id
        begun.append(observer)
        return getattr(observer, event)(*told)

    yield start
    for observer in begun:
        observer.interrupted_event(LATER, "INTERRUPTED")


def load(observer, name="run.json"):
    return json.loads((Path(observer.dir) / name).read_text())


def test_a_new_observer_makes_no_folder_and_has_none(observer):
    assert not Path(observer.basedir).exists()
    assert observer.dir is None
    assert observer.run_entry is None


def test_observers_are_the_same_if_their_folder_is(kind, tmp_path):
    assert kind(tmp_path / "a") == kind(str(tmp_path / "a"))
    assert kind(tmp_path / "a") != kind(tmp_path / "b")
    assert kind(tmp_path / "a") != str(tmp_path / "a")


def test_isinstance_finds_the_folder_of_the_run(observer, begin):
    assert isinstance(observer, FileStorageObserver)
    assert begin(observer) == "1"
    assert observer.dir == str(Path(observer.basedir) / "1")


@pytest.mark.parametrize("event", ["started_event", "queued_event"])
def test_a_run_gets_the_given_id(observer, begin, event):
    assert begin(observer, "ABC", event) == "ABC"
    assert observer.dir == str(Path(observer.basedir) / "ABC")


def test_a_queued_run_has_config_and_what_sacred_tells(observer, begin):
    begin(observer, "Q", "queued_event")
    assert load(observer, "config.json") == {"lr": 0.5}
    run = load(observer)
    assert run["experiment"]["name"] == "e"
    own = {"user": user_name()} if isinstance(observer, FileObserver) else {}
    assert (run["command"], run["host"]) == ("main", {"hostname": "h", **own})
    assert run["meta"]["comment"] == "c"
    assert run["status"] == "QUEUED"
    assert "start_time" not in run


def test_a_started_run_has_config_output_and_what_sacred_tells(observer, begin):
    begin(observer)
    assert load(observer, "config.json") == {"lr": 0.5}
    assert (Path(observer.dir) / "cout.txt").read_text() == ""
    run = load(observer)
    assert (run["status"], run["start_time"], run["heartbeat"]) == ("RUNNING", BEGAN.isoformat(), None)
    assert (run["artifacts"], run["resources"]) == ([], [])


def test_ids_count_up_where_other_processes_make_folders_meanwhile(observer, begin, monkeypatch):
    begin(observer)
    # A network's file system may list a folder late.
    monkeypatch.setattr("os.listdir", lambda path: [])
    monkeypatch.setattr("os.scandir", lambda path: iter(()))
    assert begin(observer) == "2"


def test_sources_are_kept_unless_told_otherwise(kind, tmp_path, begin, file):
    observer = kind(tmp_path / "runs")
    begin(observer, sources=[(str(file), "digest")])
    stored = dict(load(observer)["experiment"]["sources"])[str(file)]
    assert (Path(observer.basedir) / stored).read_text() == "x = 1\n"
    assert Path(stored).parent == Path("_sources")
    observer = kind(tmp_path / "others", copy_sources=False)
    begin(observer, sources=[(str(file), "digest")])
    assert not (tmp_path / "others" / "_sources").exists()
    stored = dict(load(observer)["experiment"]["sources"])[str(file)]
    assert (tmp_path / "others" / stored).read_text() == "x = 1\n"


def test_each_heartbeat_is_in_the_record(observer, begin):
    begin(observer)
    output = ""
    for number in range(5):
        output += f"line {number}\n"
        at = LATER + timedelta(seconds=10 * number)
        observer.heartbeat_event({"n": [1, 2]}, output, at, 17)
        assert (Path(observer.dir) / "cout.txt").read_text() == output
        assert (load(observer)["heartbeat"], load(observer)["result"]) == (at.isoformat(), 17)
        assert load(observer, "info.json") == {"n": [1, 2]}


@pytest.mark.parametrize(
    ("event", "told", "expected"),
    [
        ("completed_event", 42, {"status": "COMPLETED", "result": 42}),
        ("interrupted_event", "MY_INTERRUPT", {"status": "MY_INTERRUPT"}),
        ("failed_event", "one\ntwo", {"status": "FAILED", "fail_trace": "one\ntwo"}),
    ],
)
def test_the_end_says_how_and_when(observer, begin, event, told, expected):
    begin(observer)
    getattr(observer, event)(LATER, told)
    run = load(observer)
    assert run["stop_time"] == LATER.isoformat()
    assert {name: run[name] for name in expected} == expected


def test_an_artifact_is_copied_and_listed(observer, begin, file):
    begin(observer)
    observer.artifact_event("mine.py", str(file))
    assert (Path(observer.dir) / "mine.py").read_text() == "x = 1\n"
    assert load(observer)["artifacts"] == ["mine.py"]


def test_a_resource_is_kept_once_and_its_path_leads_there(kind, tmp_path, begin, file):
    for _ in range(2):
        observer = kind(tmp_path / "runs")
        begin(observer)
        observer.resource_event(str(file))
        ((name, stored),) = load(observer)["resources"]
        assert name == str(file)
        # Sacred's path is from the working folder, ours from that of the runs.
        assert list((tmp_path / "runs" / "_resources").iterdir()) == [tmp_path / "runs" / stored]
        assert (tmp_path / "runs" / stored).read_text() == "x = 1\n"


def test_a_resource_below_the_runs_stays_where_it_is_without_copies(kind, tmp_path, begin):
    file = tmp_path / "runs" / "data.txt"
    file.parent.mkdir()
    file.write_text("some data")
    for copy_artifacts, kept in ((False, False), (True, True)):
        observer = kind(tmp_path / "runs", copy_artifacts=copy_artifacts)
        begin(observer)
        observer.resource_event(str(file))
        assert (tmp_path / "runs" / "_resources").exists() == kept
        ((name, stored),) = load(observer)["resources"]
        assert (tmp_path / "runs" / stored).read_text() == file.read_text()
        with open_store(tmp_path / "runs") as store:
            assert store.latest()[0].resources[name].read() == b"some data"


def test_a_file_of_the_record_is_not_overwritten(observer, begin, file):
    begin(observer)
    for name in ("run.json", "config.json", "cout.txt", "metrics.json"):
        with pytest.raises(FileExistsError):
            observer.save_file(str(file), name)
    assert (Path(observer.dir) / "cout.txt").read_text() == ""


def test_a_file_is_saved_under_its_own_name(observer, begin, file):
    begin(observer)
    observer.save_file(str(file))
    assert (Path(observer.dir) / file.name).read_text() == "x = 1\n"


def test_a_changed_entry_is_saved(observer, begin):
    begin(observer)
    observer.run_entry["artifacts"].append("made elsewhere")
    observer.save_json(observer.run_entry, "run.json")
    observer.save_json({"a": 1}, "mine.json")
    observer.completed_event(LATER, None)
    assert load(observer)["artifacts"] == ["made elsewhere"]
    assert load(observer, "mine.json") == {"a": 1}


@pytest.mark.parametrize("name", ["../mine.json", "config.json"])
def test_a_json_file_goes_nowhere_else(tmp_path, begin, name):
    observer = FileObserver(tmp_path / "runs")
    begin(observer)
    with pytest.raises(ArtifactError, match=re.escape(repr(name))):
        observer.save_json({}, name)


def test_metrics_are_in_sacreds_form(observer, begin):
    def logged(name, steps):
        now = datetime.now(UTC).replace(tzinfo=None)
        observer.log_metrics(linearize_metrics([ScalarMetricLogEntry(name, step, now, step / 2) for step in steps]), {})
        observer.heartbeat_event({}, "", now, None)

    begin(observer)
    logged("loss", [10, 20])
    logged("accuracy", [10])
    logged("loss", [30])
    observer.completed_event(LATER, None)
    metrics = load(observer, "metrics.json")
    assert metrics.keys() == {"loss", "accuracy"}
    assert metrics["loss"]["steps"] == [10, 20, 30]
    assert metrics["loss"]["values"] == [5, 10, 15]
    assert metrics["loss"]["timestamps"] == sorted(metrics["loss"]["timestamps"])
    assert metrics["accuracy"]["steps"] == [10]


def test_isinstance_finds_the_database_of_the_run(tmp_path, database, mongo_url):
    ex = Experiment("looks", base_dir=tmp_path)
    observer = MongoObserver(mongo_url, database.name, collection_prefix="lab", failure_dir=tmp_path / "spool")
    ex.observers.append(observer)

    @ex.main
    def main(_run):
        mongo = next(each for each in _run.observers if isinstance(each, SacredMongoObserver))
        _run.log_scalar("loss", 0.5, 0)
        mongo.fs.put(b"mine", filename="mine.bin")
        return mongo.runs.find_one({"_id": _run._id})["status"]

    run = ex.run(options={"--capture": "sys"})
    assert run.result == "RUNNING"
    assert observer.runs.find_one({"_id": run._id})["status"] == "COMPLETED"
    assert observer.metrics.find_one({"run_id": run._id, "name": "loss"})["values"] == [0.5]
    assert observer.fs.find_one({"filename": "mine.bin"}).read() == b"mine"
    observer.runs.database.client.close()


def test_an_observer_of_given_collections_is_refused(database):
    with pytest.raises(DestinationError, match="create_from: got collections, expected a url or a client"):
        MongoObserver.create_from(database.runs, None)
