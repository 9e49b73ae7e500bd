"""Every fault that recording and delivery are to survive, against files, MongoDB and both, in one table:

    python -m pytest -m nightly -n 0 tests/integration/test_recording_faults.py

A row is the fault, the store, points logged, kept, told as lost, and the status told. Nothing may be lost without a
word. A further fault is one more entry of `FAULTS`, of `DELIVERY_FAULTS` if it is one of the server, or of `SET_FAULTS`
if it is one of a replica set.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pymongo
import pytest

from sacristan.experiments import Experiment
from sacristan.observers import ArtifactError, FileObserver, MongoObserver
from sacristan.observers.mongo.series import POINTS_PER_DOCUMENT
from sacristan.runs import open_store, reap, sync
from tests.replica_sets import ReplicaSet

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

# The process: 1,000 points that are on the disk, 1,000 that may not be, the fault, and 1,000 more. `fault` gets the run
# and its folder, and may call `log(run, count)`, which logs so many points and counts them.
BODY = """
import itertools, os, resource, shutil, signal
base = {base!r}
{before}
ex = Experiment("recorded", system_metrics_s=None)
ex.observers.extend([{observers}])
steps = itertools.count()
counted = open("logged", "wb", buffering=0)

def log(run, count):
    for step in itertools.islice(steps, count):
        run.log_scalar("loss", step / 7, step)
        counted.write(b".")

def fault(run, folder):
{fault}

@ex.automain
def main(_run):
    log(_run, 1000)
    _run.flush()
    log(_run, 1000)
    fault(_run, _run.folder or next(o for o in _run.observers)._spool.recording.folder)
    log(_run, 1000)
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What happens.
        happens: The body of `fault(run, folder)`, in the process of the run.
        before: What happens before there is a run; `base` is the folder of its store.
        ends: The exit code.
        status: What is told of it, if no point is lost.
        loses: Whether points may be lost, which is told then.
        needs_disk: Whether the record is to be on a disk of its own, in `disk`.
        doubles: How many points may be there twice.
        needs_clock: Whether the process may set its clock.
        needs_users: Whether the process may become another user.
    """

    name: str
    happens: str = "pass"
    ends: int = 0
    status: str = "COMPLETED"
    loses: bool = False
    needs_disk: bool = False
    doubles: int = 0
    needs_clock: bool = False
    before: str = ""
    needs_users: bool = False


SET_CLOCK = 'import ctypes; ctypes.CDLL(os.environ["LD_PRELOAD"]).set_clock({seconds})'
CHILD = """
import os
pid = os.fork()
if pid == 0:
    {child}
os.waitpid(pid, 0)
"""
LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))"
FILL = """
with open("disk/filler", "wb", buffering=0) as stream:
    try:
        while stream.write(bytes(4096)): pass
    except OSError: pass
"""

LATE_SOURCE = """
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(sys.path[0], "late.py"), "w") as stream: stream.write("late = " + "1" * 4000)
import late
run.flush()
"""
BAD_VALUES = """
bad = [("loss", [1, 2], 0), ("loss", None, 0), ("loss", "5", 0), (None, 1, 0), (5, 1, 0), ("loss", 1, [])]
for name, value, step in bad:
    try: run.log_scalar(name, value, step)
    except TypeError: continue
    raise AssertionError((name, value, step))
"""
ODD_ENTRIES = """
class Unlisted(dict):
    def items(self): 1 / 0
deep = 1
for _ in range(900): deep = [deep]
run.info |= {"integer": 10**5000, "key": {10**5000: 1}, "unlisted": Unlisted(a=1), "deep": deep}
run.flush()
run.result = dict(run.info)
"""
OTHERS = """
from sacristan.observers.record.folders import RecordLock
from sacristan.runs import reap
assert reap(folder.parent) == []
try: RecordLock(folder).acquire()
except BlockingIOError: pass
else: raise AssertionError("a second writer")
"""

# Room for a run, and not for what it imports.
FILL_BUT_A_RUN = (
    FILL
    + """
os.truncate("disk/filler", os.path.getsize("disk/filler") - 40_000)
"""
)
SOURCES_OF_ANOTHER = """
os.makedirs(os.path.join(base, "runs", "_sources"), 0o700)
os.chmod(os.path.join(base, "runs"), 0o1777)
os.seteuid(12345)
"""

FAULTS = [
    Fault("none"),
    Fault("the clock is set back an hour", SET_CLOCK.format(seconds=-3600), needs_clock=True),
    Fault("the clock is set forward ten days", SET_CLOCK.format(seconds=864_000), needs_clock=True),
    Fault("kill -9", "os.kill(os.getpid(), signal.SIGKILL)", ends=-9, status="DEAD"),
    Fault("SIGTERM", "os.kill(os.getpid(), signal.SIGTERM)", ends=143, status="INTERRUPTED"),
    Fault("a forked child logs, and ends by sys.exit", CHILD.format(child="log(run, 500); sys.exit(3)")),
    Fault("a forked child logs, and is killed", CHILD.format(child="log(run, 500); os.kill(os.getpid(), 9)")),
    Fault("a forked child flushes, and raises", CHILD.format(child="log(run, 500); run.flush(); 1 / 0")),
    Fault(
        "kill -9 behind a forked child's points",
        CHILD.format(child="log(run, 500); os._exit(0)") + "os.kill(os.getpid(), signal.SIGKILL)",
        ends=-9,
        status="DEAD",
        doubles=1,
    ),
    Fault(
        "two signals within 50 ms",
        "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)",
        ends=143,
        status="INTERRUPTED",
    ),
    Fault("values and names that are none", BAD_VALUES),
    Fault("info and a result that JSON cannot hold", ODD_ENTRIES),
    Fault("others reap and write the record", OTHERS),
    Fault("the folder is deleted", "shutil.rmtree(folder.rename('doomed'))"),
    Fault("all folders are deleted", "shutil.rmtree(folder.parent.rename('doomed'))"),
    Fault("the working folder is deleted", "os.mkdir('here'); os.chdir('here'); os.rmdir('../here')"),
    Fault("the folder is moved", "folder.rename('elsewhere')"),
    Fault("the files of points are deleted", "[path.unlink() for path in folder.glob('metrics.*')]"),
    Fault(
        "a quota, for some heartbeats",
        LIMIT.format(size=10_000) + "; log(run, 1000); time.sleep(0.5); run.flush(); " + LIMIT.format(size=-1),
    ),
    Fault("a quota, to the end", LIMIT.format(size=30_000), loses=True),
    Fault(
        "a full disk, for some heartbeats",
        FILL + "log(run, 1000); time.sleep(0.5); os.unlink('disk/filler')",
        needs_disk=True,
    ),
    Fault("a full disk, to the end", FILL, needs_disk=True),
    Fault(
        "a full disk from the start, for some heartbeats",
        "os.unlink('disk/filler')",
        before=FILL_BUT_A_RUN,
        needs_disk=True,
    ),
    Fault(
        "the sources in the store are another user's",
        status="COMPLETED_WITH_LOSS",
        before=SOURCES_OF_ANOTHER,
        needs_users=True,
    ),
    Fault("a full disk while a source is imported", FILL + LATE_SOURCE + "os.unlink('disk/filler')", needs_disk=True),
    Fault(
        "a full disk, and a source, to the end",
        FILL + LATE_SOURCE,
        status="COMPLETED_WITH_LOSS",
        needs_disk=True,
    ),
    Fault("a full disk, to the end, and many points", FILL + "log(run, 140_000)", loses=True, needs_disk=True),
]
CUT_OFF = """
with open("big.bin", "wb") as stream: stream.write(b"1" * 30_000_000)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, 2**24))
"""
FAULTS += [
    Fault(f"a kill while an artifact is {how}", CUT_OFF + call, ends=-signal.SIGXFSZ, status="DEAD")
    for how, call in (("added", "run.add_artifact('big.bin')"), ("logged", "run.log_artifact('data', 'big.bin')"))
]
STORES = {
    "files": "FileObserver('{base}/runs')",
    "MongoDB": "MongoObserver({url!r}, {name!r}, failure_dir='{base}/spool')",
    "both": "FileObserver('{base}/runs'), MongoObserver({url!r}, {name!r})",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a fault in one store."""

    fault: str
    store: str
    logged: int
    kept: int
    told_lost: int
    status: str

    def __str__(self) -> str:
        return f"{self.fault:<42} {self.store:<16} {self.logged:>7} {self.kept:>7} {self.told_lost:>7}  {self.status}"


@pytest.fixture(scope="module")
def table(request) -> Iterator[list[Row]]:
    """The rows, which are printed at the end."""
    rows: list[Row] = []
    yield rows
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{'fault':<42} {'store':<16} {'logged':>7} {'kept':>7} {'lost':>7}  status")
        print(*rows, sep="\n")


def read(fault: Fault, store: str, where: str, logged: int) -> Row:
    with open_store(where) as opened:
        [run] = opened.find()
        kept = len(run.metric("loss"))
        assert run.summary["loss"]["count"] == kept
        assert 0 <= run.duration_s < 600
        times = run.metric("loss").times
        assert times.max() < 600
        assert not fault.needs_clock or (np.diff(times) >= 0).all()
        return Row(fault.name, store, logged, kept, run.document.get("lost_points", 0), run.status)


def stores_in(base: Path) -> set[Path]:
    """Return every folder of runs; also one that a run was moved to."""
    return {path.parent.parent for path in base.rglob("run.json")}


@pytest.mark.parametrize("stores", STORES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_nothing_is_lost_without_a_word(tmp_path, request, start, wait_for, mongo_url, database, table, fault, stores):
    base = request.getfixturevalue("small_disk") if fault.needs_disk else tmp_path
    observers = STORES[stores].format(base=str(base), url=mongo_url, name=database.name)
    body = BODY.format(
        observers=observers, fault=textwrap.indent(fault.happens, "    "), before=fault.before, base=str(base)
    )
    if fault.needs_users:
        if stores == "MongoDB":
            pytest.skip("each run in a spool has a folder of sources of its own")
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(0o777 if folder == tmp_path else 0o711)
    env = request.getfixturevalue("settable_clock") if fault.needs_clock else None
    recorded = start(tmp_path, body, "-b", "0.1", env=env, cold=fault.needs_clock)
    code = recorded.process.wait(120)
    assert code == fault.ends, recorded.err.read_text()
    logged = (tmp_path / "logged").stat().st_size
    rows = []
    if stores != "MongoDB":
        [folder] = stores_in(base)
        # A command that a killed process had just forked has the lock on the record, too, until it is executed.
        wait_for(lambda: reap(folder) or fault.status != "DEAD", "the end of the lock")
        rows.append(read(fault, "files" if stores == "files" else "both: files", str(folder), logged))
    if stores != "files":
        for folder in {base / "spool", *stores_in(base)}:
            if folder.exists():
                sync(folder)
        name = "MongoDB" if stores == "MongoDB" else "both: MongoDB"
        rows.append(read(fault, name, f"{mongo_url}/{database.name}", logged))
    table.extend(rows)
    for row in rows:
        assert 0 <= row.kept + row.told_lost - row.logged <= fault.doubles
        if fault.loses:
            assert row.status in (fault.status, "COMPLETED_WITH_LOSS")
            assert row.status == "COMPLETED_WITH_LOSS" or not row.told_lost
        else:
            assert row.status == fault.status


# ---------------------------------------------------------------------- of the delivery

HALF = 25_000


class Course:
    """A run in this process that meets a fault in its middle, with a server or a replica set of its own.

    Attributes:
        folder: Where it records.
        server, url: The server or replica set, and the database there.
        database: The run's database there.
        run: The run, while it runs.
        also: What else to tell of it.
    """

    def __init__(self, folder, server, url, wait_for):
        self.folder, self.server, self.url, self.wait_for = folder, server, url, wait_for
        self.run, self.also, self.is_away = None, "", False
        self.observer = MongoObserver(url, "lab", failure_dir=folder / "runs" / "_spool")
        self.client = pymongo.MongoClient(url)
        self.database = self.client.lab

    def record(self, fault, *, with_folder):
        ex = Experiment("recorded", system_metrics_s=None)
        if with_folder:
            ex.observers.append(FileObserver(self.folder / "runs"))
        ex.observers.append(self.observer)

        @ex.main
        def main(_run):
            self.run = _run
            self.log(0)
            self.wait_for(self.is_delivered, "the first half in the database")
            fault(self)
            self.log(HALF)

        ex.run(options={"--capture": "sys", "--loglevel": "ERROR"})

    def is_delivered(self, num_points=HALF):
        beyond = self.database.metrics_chunks.aggregate([{"$group": {"_id": None, "count": {"$sum": "$count"}}}])
        return sum(row["count"] for row in beyond) == num_points - POINTS_PER_DOCUMENT

    def log(self, start):
        for step in range(start, start + HALF):
            self.run.log_scalar("loss", step / 7, step)

    def sync(self):
        """Deliver what is not delivered yet."""
        for result in sync(self.folder / "runs", self.url):
            self.also = "by sync" if result.outcome == "delivered" else self.also

    def read(self):
        """Return steps and status of the run in the database."""
        with open_store(self.url) as store:
            [run] = store.find(f"uid={self.run.meta_info['uid']}")
            return run.metric("loss").steps.tolist(), run.status

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


def kill_at_the_end(course):
    close_spool = course.observer._close_spool

    def kill(*, remove):
        course.server.kill()
        close_spool(remove=remove)
        course.server.start()

    course.observer._close_spool = kill


def stay_away(course):
    course.server.kill()
    course.is_away = True


DELIVERY_FAULTS = {
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
    "server killed as the run ends": kill_at_the_end,
    "FIFO as an artifact": add_fifo,
    "artifact added twice": add_twice,
    "10,000 names": log_many_names,
    "100 MB of output": print_much,
}


@pytest.mark.parametrize("with_folder", [True, False], ids=["both", "mongo"])
@pytest.mark.parametrize("fault", DELIVERY_FAULTS)
def test_delivery_loses_nothing(request, tmp_path, mongod, wait_for, table, fault, with_folder):
    mongod.start()
    course = Course(tmp_path, mongod, f"{mongod.url}/lab", wait_for)
    request.addfinalizer(course.client.close)
    course.record(DELIVERY_FAULTS[fault], with_folder=with_folder)
    if course.is_away:
        mongod.start()
    if course.observer.place is not None:
        assert course.read() == (list(range(2 * HALF)), "COMPLETED")
    # Also what takes longer than the end of a run waits.
    course.sync()
    run_id = course.database.runs.find_one({"uid": course.run.meta_info["uid"]})["_id"]
    with open_store(course.url) as store:
        run = store.get(run_id)
        series, status = run.metric("loss"), run.status
        assert len(run.read_output()[0]) >= (10**8 if fault == "100 MB of output" else 0)
        assert all(content.read() for content in run.stored("sources"))
    kept = len(set(series.steps.tolist()))
    if course.also.startswith("artifacts"):
        assert len(course.database.runs.find_one({"_id": run_id})["artifacts"]) == 2
    also = f" ({course.also})" if course.also else ""
    table.append(Row(fault, "both: MongoDB" if with_folder else "MongoDB", 2 * HALF, kept, 0, status + also))
    assert (kept, len(series), status) == (2 * HALF, 2 * HALF, "COMPLETED")
    spool = tmp_path / "runs" / "_spool"
    assert not spool.exists() or list(spool.iterdir()) == []


# ---------------------------------------------------------------------- of a replica set


def suspend_primary(course):
    course.server.suspend(0)
    course.server.primary([1, 2])


def roll_back(course):
    """Let the set elect a member that lacks the latest points, in the middle of the run."""
    course.server.kill(1)
    course.log(2 * HALF)
    course.wait_for(lambda: course.is_delivered(2 * HALF), "the points at the primary")
    course.server.elect(1, instead_of=0)


def lock_secondaries(course):
    course.server.lock(1)
    course.server.lock(2)


def elect_locked(course):
    course.server.kill(0)
    course.server.unlock(1)
    course.server.unlock(2)
    course.server.primary([1, 2])
    course.server.start(0)
    course.server.catch_up(0)


def sync_to_one(course):
    course.server.start(0)
    course.server.primary([0])
    [result] = sync(course.folder / "runs", course.url)
    assert result.outcome == "failed"
    course.server.elect(1, instead_of=0)


@dataclasses.dataclass(frozen=True)
class SetFault:
    """A fault of a replica set.

    Attributes:
        in_the_middle: What happens in the middle of the run.
        after: What happens when it has ended.
        arbiter: Whether one of the three members holds no data.
        options: Options of the URL.
        delivered: Whether the run is delivered when it has ended.
        parts: How often half of the points are logged.
    """

    in_the_middle: Callable[[Course], object]
    after: Callable[[Course], object] = lambda course: None
    arbiter: bool = False
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    delivered: bool | None = None
    parts: int = 2


SET_FAULTS = {
    "primary stepped down": SetFault(lambda course: course.server.step_down(0)),
    "primary killed": SetFault(lambda course: course.server.kill(0), lambda course: course.server.start(0)),
    "primary suspended": SetFault(suspend_primary, lambda course: course.server.resume(0)),
    "rollback in the middle": SetFault(roll_back, arbiter=True, parts=3),
    "rollback, arbiter": SetFault(
        lambda course: course.server.kill(1),
        lambda course: course.server.elect(1, instead_of=0),
        arbiter=True,
        delivered=False,
    ),
    "rollback, w=1": SetFault(lock_secondaries, elect_locked, options={"w": 1}, delivered=False),
    "rollback of a synced spool": SetFault(
        lambda course: course.server.kill(0, 1), sync_to_one, arbiter=True, delivered=False
    ),
}


@pytest.mark.parametrize("with_folder", [True, False], ids=["both", "mongo"])
@pytest.mark.parametrize("name", SET_FAULTS)
def test_replica_set_loses_nothing(request, tmp_path, wait_for, table, name, with_folder):
    fault = SET_FAULTS[name]
    num_points = fault.parts * HALF
    with ReplicaSet(tmp_path / "set", arbiter=fault.arbiter) as members:
        course = Course(tmp_path, members, members.url(**fault.options), wait_for)
        request.addfinalizer(course.client.close)
        course.record(fault.in_the_middle, with_folder=with_folder)
        is_delivered = course.observer.place is not None
        assert is_delivered == fault.delivered or fault.delivered is None
        fault.after(course)
        members.primary()
        if is_delivered:
            assert sorted(course.read()[0]) == sorted([*range(num_points)])
        course.sync()
        steps, status = course.read()
        also = f" ({course.also})" if course.also else ""
        table.append(Row(name, "both: MongoDB" if with_folder else "MongoDB", num_points, len(steps), 0, status + also))
        assert (len(steps), status) == (num_points, "COMPLETED")
    assert list((tmp_path / "runs").glob("_spool/*")) == []
