"""Faults of the delivery to MongoDB, each with the run in a folder, too, and in the database alone; prints one table.

python -m pytest -n 0 -s -m nightly tests/integration/test_delivery_faults.py
"""

import os
import shutil

import pymongo
import pytest

from experiments import Experiment
from observers import ArtifactError, FileObserver, MongoObserver
from observers.mongo.points import POINTS_PER_DOCUMENT
from runs import open_store
from runs.transfer.syncing import sync

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

HALF = 25_000
HEAD = ("fault", "recorded in", "points logged", "kept", "status told", "also")


class Course:
    """A run that meets a fault in its middle.

    Attributes:
        folder: Where it records.
        server, url: The server.
        database: The run's database there.
        run: The run, while it runs.
        also: What else to tell of it.
    """

    def __init__(self, folder, server, wait_for):
        self.folder, self.server, self.url, self.wait_for = folder, server, f"{server.url}/lab", wait_for
        self.run, self.also, self.is_away = None, "", False

        self.client = pymongo.MongoClient(server.url)
        self.database = self.client.lab

    def record(self, fault, *, with_folder):
        ex = Experiment("recorded", system_metrics_s=None)
        if with_folder:
            ex.observers.append(FileObserver(self.folder / "runs"))
        ex.observers.append(MongoObserver(self.server.url, "lab", failure_dir=self.folder / "runs" / "_spool"))

        @ex.main
        def main(_run):
            self.run = _run
            self.log(0)
            self.wait_for(self.is_delivered, "the first half in the database")
            fault(self)
            self.log(HALF)

        ex.run(options={"--capture": "sys", "--loglevel": "ERROR"})

    def is_delivered(self):
        beyond = self.database.metrics_chunks.aggregate([{"$group": {"_id": None, "count": {"$sum": "$count"}}}])
        return sum(row["count"] for row in beyond) == HALF - POINTS_PER_DOCUMENT

    def log(self, start):
        for step in range(start, start + HALF):
            self.run.log_scalar("loss", step / 7, step)

    def restart_empty(self):
        self.server.kill()
        shutil.rmtree(self.server.folder)
        self.server.start()


def drop(course):
    course.database.client.drop_database("lab")


def drop_collection(name):
    return lambda course: course.database[name].drop()


def take_id(course):
    course.database.runs.drop()
    course.database.runs.insert_one({"_id": 1, "uid": "f" * 32, "status": "RUNNING"})


def add_fifo(course):
    os.mkfifo(course.folder / "fifo")
    try:
        course.run.add_artifact(course.folder / "fifo")
    except ArtifactError:
        course.also = "refused"


def add_twice(course):
    for content in ("first", "second"):
        (course.folder / "made.txt").write_text(content)
        course.run.add_artifact(course.folder / "made.txt")
    course.also = "artifacts: 2"


def log_many_names(course):
    for number in range(10_000):
        course.run.log_scalar(f"metric/{number}", number, 0)


def print_much(course):
    for _ in range(100_000):
        print("x" * 1023)


def stay_away(course):
    course.server.kill()
    course.is_away = True


FAULTS = {
    "none": lambda course: None,
    "database dropped": drop,
    "runs dropped": drop_collection("runs"),
    "runs dropped, id taken": take_id,
    "metrics dropped": drop_collection("metrics"),
    "chunks dropped": drop_collection("metrics_chunks"),
    "files dropped": drop_collection("fs.files"),
    "pieces of files dropped": drop_collection("fs.chunks"),
    "server killed": lambda course: (course.server.kill(), course.server.start()),
    "server restarted empty": Course.restart_empty,
    "server away to the end, sync": stay_away,
    "FIFO as an artifact": add_fifo,
    "artifact added twice": add_twice,
    "10,000 names": log_many_names,
    "100 MB of output": print_much,
}


@pytest.fixture(scope="module")
def table(request):
    rows = []
    yield rows
    widths = [max(len(str(row[place])) for row in [HEAD, *rows]) for place in range(len(HEAD))]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print()
        for row in [HEAD, *rows]:
            print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@pytest.mark.parametrize("with_folder", [True, False], ids=["both", "mongo"])
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_loses_no_point_and_the_status_is_told(request, tmp_path, mongod, wait_for, table, fault, with_folder):
    mongod.start()
    course = Course(tmp_path, mongod, wait_for)
    request.addfinalizer(course.client.close)
    course.record(FAULTS[fault], with_folder=with_folder)
    if course.is_away:
        mongod.start()
    # Also what takes longer than the end of a run waits.
    for result in sync(tmp_path / "runs"):
        course.also = "by sync" if result.outcome == "delivered" else course.also
    run_id = course.database.runs.find_one({"uid": course.run.meta_info["uid"]})["_id"]
    with open_store(course.url) as store:
        run = store.get(run_id)
        series, status = run.metric("loss"), run.status
        assert len(run.read_output()[0]) >= (10**8 if fault == "100 MB of output" else 0)
        assert all(content.read() for content in run.stored("sources"))
    kept = len(set(series.steps.tolist()))
    if course.also.startswith("artifacts"):
        assert len(course.database.runs.find_one({"_id": run_id})["artifacts"]) == 2
    table.append((fault, "both" if with_folder else "MongoDB", 2 * HALF, kept, status, course.also))
    assert (kept, len(series), status) == (2 * HALF, 2 * HALF, "COMPLETED")
    spool = tmp_path / "runs" / "_spool"
    assert not spool.exists() or list(spool.iterdir()) == []
