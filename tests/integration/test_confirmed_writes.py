"""A run is delivered once the server has it in its journal, and a replica set at a majority; not before."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.errors import BulkWriteError, OperationFailure, WTimeoutError

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.observers.mongo import Destination, explain
from sacristan.observers.mongo.layout import committed, confirmed, lacks_majority_reads, sent
from sacristan.runs import ServerError, StoreError, copy, open_store, sync
from sacristan.runs.stores.mongo.database import errors_of
from sacristan.runs.stores.opening import open_backend
from sacristan.runs.sweeps.study import home as homes
from sacristan.runs.sweeps.study.home import PatientDocuments, Place
from tests.replica_sets import ReplicaSet, until

NUM_POINTS = 500


def record(*observers):
    """Record a run, and return it with whether each observer says that it is delivered."""
    ex = Experiment("recorded", system_metrics_s=None)
    ex.observers.extend(observers)

    @ex.main
    def main(_run):
        for step in range(NUM_POINTS):
            _run.log_scalar("loss", step / 7, step)

    return ex.run(options={"--capture": "sys", "--loglevel": "ERROR"})


def assert_whole(url):
    """Check that the database has one run, with all points."""
    with open_store(url) as store:
        [run] = store.find()
        assert (run.status, len(run.metric("loss"))) == ("COMPLETED", NUM_POINTS)


# ---------------------------------------------------------------------- what is asked of the server


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"w": 1, "wtimeout": 10_000}),
        ("w=0", {"w": 1, "wtimeout": 10_000}),
        ("w=1&journal=true", {"w": 1, "wtimeout": 10_000, "j": True}),
        ("w=3&wtimeoutMS=500", {"w": 3, "wtimeout": 500}),
        ("readConcernLevel=majority&readPreference=secondary", {"w": 1, "wtimeout": 10_000}),
    ],
)
def test_data_of_a_run_are_acknowledged_whatever_the_url_says(options, expected):
    with pymongo.MongoClient(f"mongodb://localhost/lab?{options}", connect=False) as client:
        database = sent(client.lab)
        assert database.write_concern.document == expected
        assert (database.read_concern.level, database.read_preference) == ("local", ReadPreference.PRIMARY)
        assert committed(client.lab).read_concern.level == "majority"


@pytest.mark.parametrize("options", ["", "w=0", "w=1&journal=false", "wtimeoutMS=500"])
def test_confirmed_writes_wait_for_the_journal_of_a_majority(journaled_mongo_url, options):
    bound_ms = 500 if "wtimeout" in options else 10_000
    with pymongo.MongoClient(f"{journaled_mongo_url}/?{options}") as client:
        concern = confirmed(client.lab, "runs").write_concern
        assert concern.document == {"w": "majority", "wtimeout": bound_ms, "j": True}


def test_server_without_a_journal_is_asked_for_what_it_has(mongo_url, database):
    if database.client.server_info()["versionArray"][0] > 6:
        pytest.skip("each server has a journal since MongoDB 6.1")
    in_memory = confirmed(database, "runs")
    assert in_memory.write_concern.document == {"w": "majority", "wtimeout": 10_000, "fsync": True}
    in_memory.runs.insert_one({"_id": 1})
    with pytest.raises(OperationFailure) as raised:
        committed(database).runs.find_one()
    assert lacks_majority_reads(raised.value)


@pytest.mark.slow
def test_server_on_a_disk_without_a_journal_is_confirmed_by_its_files(mongod):
    mongod.options = ["--nojournal"]
    try:
        mongod.start()
    except ServerError:
        pytest.skip("each server has a journal since MongoDB 6.1")
    with pymongo.MongoClient(mongod.url) as client:
        sent(client.lab).metrics.insert_one({"_id": 1})
        confirmed(client.lab, "runs").runs.update_one({"_id": 1}, {"$set": {"_id": 1}})
        mongod.kill()
        mongod.start()
        assert client.lab.metrics.find_one() == {"_id": 1}


@pytest.mark.parametrize(
    "error",
    [WTimeoutError("waiting for replication timed out", 64), BulkWriteError({"writeConcernErrors": [{"code": 64}]})],
)
def test_outage_of_a_majority_is_explained(error):
    assert explain(error) == "too few members of the replica set confirm what they receive in time (no majority)"


def test_sweep_waits_for_a_majority(mongo_url, monkeypatch, caplog):
    monkeypatch.setattr(homes, "_RETRY_S", 0.0)
    answers = iter([WTimeoutError("late", 64), WTimeoutError("late", 64), None])

    def question(_):
        with errors_of("db"):
            if (answer := next(answers, None)) is not None:
                raise answer
        return "answer"

    with contextlib.closing(PatientDocuments(lambda: open_backend(mongo_url))) as documents:
        assert documents.ask(question) == "answer"
    assert caplog.text.count("(no majority); waiting for it") == 1


# ---------------------------------------------------------------------- a server is killed


@pytest.mark.slow
@pytest.mark.parametrize("with_folder", [False, True], ids=["spool", "both"])
def test_server_killed_as_the_run_ends_has_what_was_reported_as_delivered(tmp_path, mongod, monkeypatch, with_folder):
    mongod.start()
    close_spool = MongoObserver._close_spool

    def kill_server(self, *, remove):
        mongod.kill()
        close_spool(self, remove=remove)

    monkeypatch.setattr(MongoObserver, "_close_spool", kill_server)
    observer = MongoObserver(mongod.url, "lab", failure_dir=tmp_path / "spool")
    record(*([FileObserver(tmp_path / "runs")] if with_folder else []), observer)
    assert observer.place is not None
    assert list((tmp_path / "spool").glob("*")) == []
    mongod.start()
    assert_whole(f"{mongod.url}/lab")


# ---------------------------------------------------------------------- a primary that is lost


@pytest.mark.slow
def test_run_that_no_majority_has_stays_in_its_spool_until_one_has(tmp_path, caplog):
    with ReplicaSet(tmp_path / "set", arbiter=True) as members:
        members.kill(1)
        observer = MongoObserver(members.url(), "lab", failure_dir=tmp_path / "spool", drain_s=1)
        record(observer)
        assert observer.place is None
        assert "this run is sent, but not confirmed, so it can still be lost there" in caplog.text
        [result] = sync(tmp_path / "spool", members.url(wtimeoutMS=500))
        assert (result.outcome, "(no majority); nothing is lost" in result.error) == ("failed", True)
        members.elect(1, instead_of=0)
        assert members.ask(1, lambda client: client.lab.runs.count_documents({})) == 0
        [result] = sync(tmp_path / "spool", members.url())
        assert result.outcome == "delivered"
        assert list((tmp_path / "spool").glob("*")) == []
        members.elect(0, instead_of=1)
        assert_whole(members.url())


@pytest.mark.nightly
def test_changes_that_no_majority_has_are_reported_and_claims_wait_for_one(tmp_path):
    with ReplicaSet(tmp_path / "set", arbiter=True) as members, ThreadPoolExecutor(1) as pool:
        record(MongoObserver(members.url(), "lab", failure_dir=tmp_path / "spool"))
        record(FileObserver(tmp_path / "runs"))
        members.catch_up(1)
        members.kill(1)
        url = members.url(wtimeoutMS=500)
        with open_store(url) as store, open_store(tmp_path / "runs") as folder:
            with pytest.raises(StoreError, match=r"\(no majority\)"):
                store.tag(store.get(1), ["good"])
            with pytest.raises(StoreError, match=r"\(no majority\)"):
                copy(folder.get(1), store)
            with pytest.raises(StoreError, match=r"\(no majority\)"):
                store.remove([store.get(1)])
        with contextlib.closing(Place(tmp_path, Destination(url, "lab").address).home("s")) as home:
            claim = pool.submit(home.claims(0, "agent").add, 1)
            until(lambda: members.ask(0, lambda client: client.lab.sweep_claims.count_documents({})), "the claim")
            assert not claim.done()
            members.elect(1, instead_of=0)
            assert claim.result(60)
        with open_store(url) as store, open_store(tmp_path / "runs") as folder:
            assert [(run.id, run.status, run.tags) for run in store.find()] == [("1", "COMPLETED", [])]
            assert copy(folder.get(1), store).is_new
        members.elect(0, instead_of=1)
        assert members.ask(0, lambda client: client.lab.sweep_claims.count_documents({})) == 1
        with open_store(url) as store:
            assert [len(run.metric("loss")) for run in store.find()] == [NUM_POINTS, NUM_POINTS]


@pytest.mark.nightly
def test_tags_are_added_to_those_of_the_primary(tmp_path):
    with ReplicaSet(tmp_path / "set") as members:
        record(MongoObserver(members.url(), "lab", failure_dir=tmp_path / "spool"))
        members.catch_up(2)
        members.lock(2)
        for number in range(8):
            with open_store(members.url(readPreference="secondary")) as store:
                store.tag(store.get(1), str(number))
        with open_store(members.url()) as store:
            assert store.get(1).tags == [str(number) for number in range(8)]
        members.unlock(2)
