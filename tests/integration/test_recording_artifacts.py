"""Artifacts of real runs, in files and in a real MongoDB: the same versions, contents and lineage in both."""

import hashlib
import json
import random
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import bson
import gridfs
import pymongo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo.errors import AutoReconnect

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import (
    ArtifactDamagedError,
    ArtifactError,
    ArtifactNotFoundError,
    ArtifactStore,
    FileObserver,
    MongoObserver,
)
from sacristan.observers.artifacts import content_path
from sacristan.observers.mongo.contents import ArtifactDelivery, Upload, artifact_id
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.documents import content_id
from sacristan.observers.mongo.layout import Collections
from sacristan.runs import sync
from sacristan.runs.query.index.scanning import run_folders
from tests.folders import read_files, write_files
from tests.processes import Process
from tests.recording import Flaky


def record(main, *observers):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


def mongo_of(database, url, **options):
    return MongoObserver(url, db_name=database.name, **options)


def run_json(folder):
    return json.loads((Path(folder) / "run.json").read_text())


def stored_in(database, document):
    files = gridfs.GridFS(database)
    return {file["path"]: files.get(file["file_id"]).read() for file in document["files"]}


def object_hash(content):
    return hashlib.sha256(content).hexdigest()


FILES = {"a.txt": b"one", "sub/b.bin": bytes(range(256)) * 4000}


# ---------------------------------------------------------------------- files


def test_run_that_logs_and_run_that_uses_know_of_each_other(tmp_path):
    data = write_files(tmp_path / "data", FILES)

    def makes(_run):
        _run.log_artifact("digits", data, metadata={"rows": 2})
        _run.log_artifact("digits", data)
        _run.add_artifact(str(data / "a.txt"))

    def uses(_run):
        version = _run.use_artifact("digits:v1")
        assert read_files(version.copy_to(tmp_path / "out")) == FILES
        _run.use_artifact(f"digits@{version.digest[:10]}")

    maker = record(makes, FileObserver(tmp_path / "runs"))
    user = record(uses, FileObserver(tmp_path / "runs"))
    lineage = ArtifactStore(tmp_path / "runs").lineage("digits", 1)
    assert (lineage.made_by, lineage.used_by) == ((maker.meta_info["uid"],), (user.meta_info["uid"],))
    [entry] = run_json(tmp_path / "runs" / "1")["artifacts_logged"]
    assert (entry["name"], entry["version"], entry["type"]) == ("digits", 1, "dataset")
    assert run_json(tmp_path / "runs" / "2")["artifacts_used"] == [entry]
    assert run_json(tmp_path / "runs" / "1")["artifacts"] == ["a.txt"]
    assert [folder.name for folder in run_folders(tmp_path / "runs")] == ["1", "2"]


def test_run_with_two_folders_keeps_the_artifact_in_both(tmp_path):
    data = write_files(tmp_path / "data", FILES)
    record(lambda _run: _run.log_artifact("digits", data) and None, FileObserver(tmp_path / "b"))

    def both(_run):
        assert _run.use_artifact("digits").version == 1
        _run.log_artifact("net", data, "model")

    record(both, FileObserver(tmp_path / "a"), FileObserver(tmp_path / "b"))
    for folder in ("a", "b"):
        assert read_files(ArtifactStore(tmp_path / folder).resolve("net").copy_to(tmp_path / f"out_{folder}")) == FILES
    assert [entry["name"] for entry in run_json(tmp_path / "a" / "1")["artifacts_used"]] == ["digits"]


def test_run_that_is_not_recorded_says_what_to_attach(tmp_path):
    def main(_run):
        _run.log_artifact("digits", tmp_path)

    with pytest.raises(ArtifactError, match=r"this run is not recorded.*attach a FileObserver"):
        record(main)
    run = record(lambda: 1, FileObserver(tmp_path / "runs"))
    with pytest.raises(ArtifactError, match="this run is not recorded, or is over"):
        run.use_artifact("digits")


def test_error_on_the_command_line_is_one_line_and_the_run_failed(tmp_path, start):
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(_run): _run.use_artifact('digits:v2')\n"
    recorded = start(tmp_path, body)
    assert recorded.process.wait(60) == 1
    [line] = [line for line in recorded.err.read_text().splitlines() if line.startswith("error: ")]
    assert line == "error: digits:v2: runs has no artifact digits; log it first: _run.log_artifact(name, path)"
    assert "Traceback" not in recorded.err.read_text()
    assert run_json(tmp_path / "runs" / "1")["status"] == "FAILED"


def test_full_disk_raises_to_the_caller_and_the_run_goes_on(tmp_path, start):
    body = """
import resource, signal
from sacristan.observers import ArtifactError, ArtifactStore
ex.observers.append(FileObserver('runs'))
@ex.automain
def main(_run):
    open('large', 'wb').write(b'x' * 2_000_000)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        _run.log_artifact('data', 'large')
    except ArtifactError as error:
        _run.info['said'] = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ArtifactStore('runs').names() == []
    return _run.log_artifact('data', 'large').version
"""
    start(tmp_path, body).finish()
    run = run_json(tmp_path / "runs" / "1")
    assert (run["status"], run["result"]) == ("COMPLETED", 1)
    said = json.loads((tmp_path / "runs" / "1" / "info.json").read_text())["said"]
    assert "cannot be written (File too large); make room" in said


# ---------------------------------------------------------------------- MongoDB


def test_artifacts_are_delivered_with_versions_contents_and_lineage(tmp_path, database, mongo_url):
    data = write_files(tmp_path / "data", FILES)

    def makes(_run):
        _run.log_artifact("digits", data, metadata={"a.b": 1, "$c": 2**70})
        _run.log_artifact("net", write_files(tmp_path / "net", {"w": b"weights", "copy": b"one"}), "model")

    def uses(_run):
        _run.use_artifact("digits")

    def observers():
        return FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url)

    maker, user = record(makes, *observers()), record(uses, *observers())
    digits = database.artifacts.find_one({"name": "digits"})
    version = ArtifactStore(tmp_path / "runs").resolve("digits")
    assert digits["_id"] == artifact_id("digits", version.digest)
    assert (digits["version"], digits["type"], digits["bytes"]) == (1, "dataset", version.bytes)
    assert digits["num_files"] == 2
    assert digits["metadata"] == {"a,b": 1, "@c": bson.Decimal128(str(2**70))}
    assert digits["made_by"] == [maker.meta_info["uid"]]
    assert digits["used_by"] == [user.meta_info["uid"]]
    assert stored_in(database, digits) == FILES
    runs = {run["_id"]: run for run in database.runs.find()}
    assert runs[1]["artifacts_logged"] == run_json(tmp_path / "runs" / "1")["artifacts_logged"]
    assert runs[2]["artifacts_used"] == run_json(tmp_path / "runs" / "2")["artifacts_used"]
    assert runs[2]["artifacts"] == []
    assert "artifacts_logged" not in runs[2]
    assert database.fs.files.count_documents({"sha256": object_hash(b"one")}) == 1
    assert {"name_1_version_-1", "made_by_1", "used_by_1"} <= set(database.artifacts.index_information())


def test_collection_prefix_is_put_before_artifacts_too(tmp_path, database, mongo_url):
    data = write_files(tmp_path / "data", FILES)
    observers = FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url, collection_prefix="mine")
    record(lambda _run: _run.log_artifact("digits", data) and None, *observers)
    assert database.mine_artifacts.count_documents({}) == 1
    elsewhere = FileObserver(tmp_path / "b"), mongo_of(database, mongo_url, collection_prefix="mine")
    record(lambda _run: _run.use_artifact("digits").copy_to(tmp_path / "out") and None, *elsewhere)
    assert read_files(tmp_path / "out") == FILES


@pytest.mark.slow
def test_version_taken_in_the_database_gets_the_next(tmp_path, database, mongo_url):
    for store, content in [("a", b"1"), ("b", b"2"), ("c", b"1"), ("a", b"3")]:
        data = write_files(tmp_path / f"data_{store}_{content}", {"file": content})
        observers = FileObserver(tmp_path / store), mongo_of(database, mongo_url)
        record(lambda _run, data=data: _run.log_artifact("digits", data) and None, *observers)
    found = list(database.artifacts.find().sort("version"))
    assert [stored_in(database, one)["file"] for one in found] == [b"1", b"2", b"3"]
    assert [one["version"] for one in found] == [1, 2, 3]
    assert [len(one["made_by"]) for one in found] == [2, 1, 1]
    versions = [run["artifacts_logged"][0]["version"] for run in database.runs.find().sort("_id")]
    assert versions == [1, 2, 1, 3]


@pytest.mark.filterwarnings("ignore:GridOut property:DeprecationWarning")
def test_unmodified_incense_is_not_disturbed(tmp_path, database, mongo_url):
    incense = pytest.importorskip("incense", reason="incense 0.0.15 installs on Python 3.11 only")
    data = write_files(tmp_path / "data", FILES)

    def main(_run):
        _run.log_artifact("digits", data)
        _run.add_artifact(str(data / "a.txt"))

    record(main, FileObserver(tmp_path / "runs"), mongo_of(database, mongo_url))
    loader = incense.ExperimentLoader(mongo_uri=mongo_url, db_name=database.name)
    [experiment] = loader.find_all()
    assert list(experiment.artifacts) == ["a.txt"]
    experiment.delete(confirmed=True)
    loader._database.client.close()
    assert stored_in(database, database.artifacts.find_one())["sub/b.bin"] == FILES["sub/b.bin"]


@pytest.mark.slow
def test_run_with_mongodb_alone_logs_to_its_spool_and_uses_from_the_database(tmp_path, database, mongo_url):
    data = write_files(tmp_path / "data", FILES)
    for content in (b"old", b"older"):
        write_files(data, {"a.txt": content})
        record(lambda _run: _run.log_artifact("digits", data) and None, *(FileObserver(tmp_path / "r"),))
        list(sync(tmp_path / "r", f"{mongo_url}/{database.name}"))
    write_files(data, FILES)

    def main(_run):
        # The spool counts from 1, the database goes on from 2.
        assert _run.log_artifact("digits", data).version == 1
        assert read_files(_run.use_artifact("digits:v1").copy_to(tmp_path / "v1"))["a.txt"] == b"old"
        assert read_files(_run.use_artifact("digits").copy_to(tmp_path / "latest")) == FILES

    run = record(main, mongo_of(database, mongo_url, failure_dir=tmp_path / "spool"))
    assert list((tmp_path / "spool").iterdir()) == []
    found = database.artifacts.find_one({"version": 3})
    assert found["made_by"] == found["used_by"] == [run.meta_info["uid"]]
    assert stored_in(database, found) == FILES
    document = database.runs.find_one({"uid": run.meta_info["uid"]})
    assert [entry["version"] for entry in document["artifacts_logged"]] == [3]
    assert [entry["version"] for entry in document["artifacts_used"]] == [1, 3]


def test_version_in_the_folder_comes_before_one_of_the_same_number_in_the_database(tmp_path, database, mongo_url):
    mongo = mongo_of(database, mongo_url)
    for store, observers in [("a", [mongo]), ("b", [])]:
        data = write_files(tmp_path / f"data_{store}", {"file": store.encode()})
        record(
            lambda _run, data=data: _run.log_artifact("digits", data) and None,
            FileObserver(tmp_path / store),
            *observers,
        )

    def uses(_run):
        assert read_files(_run.use_artifact("digits:v1").copy_to(tmp_path / "used")) == {"file": b"b"}

    record(uses, FileObserver(tmp_path / "b"), mongo_of(database, mongo_url))


@pytest.mark.slow
def test_version_of_the_database_is_downloaded_once_and_checked(tmp_path, database, mongo_url):
    data = write_files(tmp_path / "data", FILES)
    record(
        lambda _run: _run.log_artifact("digits", data, metadata={"a.b": 1}) and None,
        FileObserver(tmp_path / "a"),
        mongo_of(database, mongo_url),
    )

    def uses(_run):
        version = _run.use_artifact("digits:v1")
        assert version.metadata == {"a.b": 1}
        assert read_files(version.copy_to(tmp_path / "out")) == FILES

    user = record(uses, FileObserver(tmp_path / "b"), mongo_of(database, mongo_url))
    assert database.artifacts.find_one()["used_by"] == [user.meta_info["uid"]]
    assert len(list((tmp_path / "b" / "_artifacts" / "contents").glob("*/*"))) == 2
    chunk = database.fs.chunks.find_one({"files_id": content_id(object_hash(FILES["sub/b.bin"])), "n": 0})
    database.fs.chunks.update_one({"_id": chunk["_id"]}, {"$set": {"data": chunk["data"][:-1] + b"!"}})
    record(uses, FileObserver(tmp_path / "b"), mongo_of(database, mongo_url))  # has the contents already
    with pytest.raises(ArtifactDamagedError, match=r"damaged in the database: the content of sub/b.bin"):
        record(uses, FileObserver(tmp_path / "c"), mongo_of(database, mongo_url))
    assert [path for path in (tmp_path / "c" / "_artifacts").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_version_that_is_nowhere_and_a_server_that_is_gone_are_told_apart(tmp_path, database, mongo_url, monkeypatch):
    def uses(_run):
        _run.use_artifact("digits:v7")

    with pytest.raises(ArtifactNotFoundError, match=r"has no artifact digits.*neither is it at"):
        record(uses, FileObserver(tmp_path / "a"), mongo_of(database, mongo_url))
    gone = MongoObserver("mongodb://127.0.0.1:9", db_name="none", serverSelectionTimeoutMS=200)
    monkeypatch.setattr("sacristan.observers.mongo.observer.DRAIN_BOUND_S", 0.5)
    with pytest.raises(ArtifactError, match=r"digits:v7: MongoDB at .*: the server is not reachable"):
        record(uses, FileObserver(tmp_path / "a"), gone)


def test_artifact_used_but_logged_before_there_was_a_database_is_delivered(tmp_path, database, mongo_url):
    data = write_files(tmp_path / "data", FILES)
    maker = record(lambda _run: _run.log_artifact("digits", data) and None, FileObserver(tmp_path / "runs"))
    user = record(
        lambda _run: _run.use_artifact("digits") and None,
        FileObserver(tmp_path / "runs"),
        mongo_of(database, mongo_url),
    )
    found = database.artifacts.find_one()
    assert (found["made_by"], found["used_by"]) == ([maker.meta_info["uid"]], [user.meta_info["uid"]])
    assert stored_in(database, found) == FILES


# ---------------------------------------------------------------------- outages, kills, resends


def test_killed_run_is_delivered_by_sync_and_again_without_effect(tmp_path, mongod, start, wait_for, capsys):
    mongod.start()
    body = f"""
ex.observers.extend([FileObserver("runs"), MongoObserver("{mongod.url}", db_name="killed")])
@ex.automain
def main(_run):
    import pathlib
    pathlib.Path("data").mkdir()
    pathlib.Path("data/file").write_bytes(b"first")
    pathlib.Path("go1").touch()
    while not pathlib.Path("go2").exists(): time.sleep(0.02)
    _run.log_artifact("digits", "data")
    pathlib.Path("logged").touch()
    while True: time.sleep(1)
"""
    recorded = start(tmp_path, body, "-b", "0.2")
    wait_for((tmp_path / "go1").exists, "the start")
    mongod.kill()
    (tmp_path / "go2").touch()
    wait_for((tmp_path / "logged").exists, "the artifact")
    recorded.process.kill()
    recorded.process.wait()
    mongod.start()
    with pymongo.MongoClient(mongod.url) as client:
        assert client.killed.artifacts.count_documents({}) == 0
        for _ in range(2):
            assert runs_command(["sync", str(tmp_path / "runs")]) == 0
            assert "delivered as run 1" in capsys.readouterr().out
            [found] = client.killed.artifacts.find()
            assert stored_in(client.killed, found) == {"file": b"first"}
            assert found["made_by"] == [run_json(tmp_path / "runs" / "1")["uid"]]
            assert client.killed.runs.find_one()["artifacts_logged"][0]["version"] == 1


BREAKING = {"methods": ("insert_one", "update_one", "find_one", "find_one_and_update"), "share": 0.2}


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A store with three runs: the second logs what the first did, the third uses both versions."""
    home = tmp_path_factory.mktemp("logged")
    files = {"a": b"one", "large": random.Random(0).randbytes(700_000), "same": b"one"}

    def log(_run):
        _run.log_artifact("digits", write_files(home / "data", files))
        _run.log_artifact("digits", write_files(home / "other", {"b": b"two"}))

    for main in (log, log, lambda _run: [_run.use_artifact(f"digits:v{n}") for n in (1, 2)] and None):
        record(main, FileObserver(home / "runs"))
    return home / "runs"


def check_delivered(database, store):
    uids = [run_json(store / str(number))["uid"] for number in (1, 2, 3)]
    found = list(database.artifacts.find().sort("version"))
    assert [one["version"] for one in found] == [1, 2]
    for one in found:
        assert sorted(one["made_by"]) == uids[:2]
        assert one["used_by"] == uids[2:]
        expected = {
            file.path: content_path(file_store(store), file.sha256).read_bytes() for file in version_files(store, one)
        }
        assert stored_in(database, one) == expected
    for uid in uids:
        run = database.runs.find_one({"uid": uid})
        key = "artifacts_used" if uid == uids[2] else "artifacts_logged"
        assert [entry["version"] for entry in run[key]] == [1, 2]
    names = [file["sha256"] for file in database.fs.files.find({"sha256": {"$exists": True}})]
    assert len(names) == len(set(names))


def file_store(store):
    return ArtifactStore(store).contents


def version_files(store, document):
    return ArtifactStore(store).resolve(f"{document['name']}@{document['digest']}").files


@pytest.mark.slow
@pytest.mark.parametrize("num_orders", [2, pytest.param(30, marks=pytest.mark.nightly)])
def test_any_order_of_retries_and_restarts_ends_in_the_same_artifacts(logged, database, num_orders):
    @settings(max_examples=num_orders)
    @given(seed=st.integers(0, 10**6))
    def check(seed):
        deliver_in_any_order(logged, database, seed)

    check()


def deliver_in_any_order(logged, database, seed):
    database.client.drop_database(database.name)
    rng, breaks = random.Random(seed), Counter()

    def fresh(number):
        delivery = Delivery(logged / str(number), logged, database)
        for name in ("runs", "artifacts", "files", "file_chunks"):
            setattr(delivery.collections, name, Flaky(getattr(delivery.collections, name), rng, breaks, **BREAKING))
        return delivery

    deliveries = [(number, fresh(number)) for number in (1, 1, 2, 3)]
    while deliveries:
        place = rng.randrange(len(deliveries))
        number, delivery = deliveries[place]
        if rng.random() < 0.1:
            delivery = fresh(number)
            deliveries[place] = number, delivery
        try:
            delivery.artifacts.advance(run_json(logged / str(number)), seconds=0.0)  # a piece at a time
            if rng.random() < 0.3:
                delivery.advance()
        except AutoReconnect:
            continue
        if delivery.is_complete:
            deliveries.pop(place)
    check_delivered(database, logged)


@pytest.mark.slow
def test_many_processes_deliver_the_same_at_once(logged, database, mongo_url, request, tmp_path):
    script = f"""
import sys, time
sys.path.insert(0, {str(request.config.rootpath)!r})
import bson
import pymongo
from pathlib import Path
from sacristan.observers.mongo.delivery import Delivery
client = pymongo.MongoClient({mongo_url!r})
Path({str(tmp_path)!r}, "ready" + sys.argv[2]).touch()
while not Path({str(tmp_path)!r}, "go").exists(): pass
delivery = Delivery(Path({str(logged)!r}) / sys.argv[1], Path({str(logged)!r}), client[{database.name!r}])
while not delivery.is_complete:
    delivery.advance()
"""
    processes = [Process([sys.executable, "-c", script, str(1 + number % 3), str(number)]) for number in range(6)]
    while len(list(tmp_path.glob("ready*"))) < 6:
        assert all(process.poll() is None for process in processes)
    (tmp_path / "go").touch()
    assert [process.wait(120) for process in processes] == [0] * 6
    check_delivered(database, logged)


def test_upload_broken_off_goes_on_where_it_was(logged, database):
    path = next(path for path in (logged / "_artifacts" / "contents").glob("*/*") if path.stat().st_size == 700_000)
    with path.open("rb") as stream:
        for sent, _ in enumerate(Upload(Collections(database)).send(stream, path.name, "large")):
            if sent == 3:  # three pieces are looked at, then one is sent
                break
    [chunk] = database.fs.chunks.find()
    database.fs.chunks.delete_one({"_id": chunk.pop("_id")})
    database.fs.chunks.insert_one(chunk)  # as gridfs would have sent it, with an id of its own
    before = chunk["_id"]
    with path.open("rb") as stream:
        for _ in Upload(Collections(database)).send(stream, path.name, "large"):
            pass
    assert database.fs.chunks.count_documents({}) == 3
    assert database.fs.chunks.find_one({"n": 0})["_id"] == before
    assert gridfs.GridFS(database).get(content_id(path.name)).read() == path.read_bytes()


def test_large_artifact_does_not_hold_up_the_record_of_a_run_that_runs(logged, database):
    run = {**run_json(logged / "1"), "status": "RUNNING"}
    delivery = ArtifactDelivery(logged, Collections(database))
    listed = []
    while not delivery.advance(run, seconds=0.0):
        listed.append([entry["version"] for entry in delivery.delivered(run)["artifacts_logged"]])
    assert len(listed) > 6  # the pieces of the large file, looked at and sent
    assert listed[0] == []
    assert listed[-1] == [1]
    assert delivery.is_complete(run)


def test_damaged_content_is_said_once_kept_from_the_database_and_the_rest_is_delivered(
    logged, database, mongo_url, tmp_path, caplog
):
    shutil.copytree(logged, tmp_path / "runs")
    store = ArtifactStore(tmp_path / "runs")
    [file] = store.resolve("digits:v2").files
    path = content_path(store.contents, file.sha256)
    path.chmod(0o644)
    path.write_bytes(b"TWO")
    delivery = Delivery(tmp_path / "runs" / "1", tmp_path / "runs", database)
    for _ in range(3):
        delivery.advance()
    assert not delivery.is_complete
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "artifact digits:v2 cannot be delivered: the content of b is not what was logged" in caplog.text
    [first, *_] = sync(tmp_path / "runs", f"{mongo_url}/{database.name}")
    assert first.outcome == "incomplete"
    run = database.runs.find_one({"_id": 1})
    assert (run["status"], [entry["version"] for entry in run["artifacts_logged"]]) == ("COMPLETED", [1])
    assert database.artifacts.count_documents({}) == 1
    path.write_bytes(b"two")
    Delivery(tmp_path / "runs" / "1", tmp_path / "runs", database).advance()
    assert [entry["version"] for entry in database.runs.find_one({"_id": 1})["artifacts_logged"]] == [1, 2]


def test_logging_does_not_hold_up_the_beat(tmp_path, wait_for):
    data = tmp_path / "data"
    data.mkdir()
    beats = []

    class Beats(FileObserver):
        def heartbeat_event(self, *args, **kwargs):
            beats.append(1)
            super().heartbeat_event(*args, **kwargs)

    def main(_run):
        observer = _run.observers[0]
        with (data / "large").open("wb") as stream:
            stream.truncate(400 * 2**20)
        before = len(beats)
        thread = threading.Thread(target=_run.log_artifact, args=("digits", data))
        thread.start()
        wait_for(lambda: len(beats) > before or not thread.is_alive(), "a beat")
        assert len(beats) > before
        thread.join()
        assert run_json(observer.dir)["artifacts_logged"][0]["version"] == 1

    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(Beats(tmp_path / "runs"))
    ex.main(main)
    ex.run(options={"--capture": "sys", "--beat-interval": "0.05"})
