"""Every fault that recording is to survive, against files, MongoDB and both, in one table:

    python -m pytest -m nightly -n 0 tests/integration/test_recording_faults.py

A row is the fault, the store, points logged, kept, told as lost, and the status told. Nothing may be lost without a
word. A further fault is one more entry of `FAULTS`.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.stores.opening import open_store
from runs.transfer.syncing import reap, sync

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

# The process: 1,000 points that are on the disk, 1,000 that may not be, the fault, and 1,000 more. `fault` gets the run
# and its folder, and may call `log(run, count)`, which logs so many points and counts them.
BODY = """
import itertools, resource, shutil, signal
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
        ends: The exit code.
        status: What is told of it, if no point is lost.
        loses: Whether points may be lost, which is told then.
        needs_disk: Whether the record is to be on a disk of its own, in `disk`.
        doubles: How many points may be there twice.
    """

    name: str
    happens: str = "pass"
    ends: int = 0
    status: str = "COMPLETED"
    loses: bool = False
    needs_disk: bool = False
    doubles: int = 0


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

FAULTS = [
    Fault("none"),
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
    Fault("the folder is deleted", "shutil.rmtree(folder.rename('doomed'))"),
    Fault("all folders are deleted", "shutil.rmtree(folder.parent.rename('doomed'))"),
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
    Fault("a full disk, to the end, and many points", FILL + "log(run, 140_000)", loses=True, needs_disk=True),
]
STORES = {
    "files": "FileObserver('{base}/runs')",
    "MongoDB": "MongoObserver({url!r}, {name!r}, failure_dir='{base}/spool')",
    "both": "FileObserver('{base}/runs'), MongoObserver({url!r}, {name!r})",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of a fault in one store."""

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
        return Row(fault.name, store, logged, kept, run.document.get("lost_points", 0), run.status)


def stores_in(base: Path) -> set[Path]:
    """Return every folder of runs; also one that a run was moved to."""
    return {path.parent.parent for path in base.rglob("run.json")}


@pytest.mark.parametrize("stores", STORES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_nothing_is_lost_without_a_word(tmp_path, request, start, wait_for, mongo_url, database, table, fault, stores):
    base = request.getfixturevalue("small_disk") if fault.needs_disk else tmp_path
    observers = STORES[stores].format(base=str(base), url=mongo_url, name=database.name)
    recorded = start(
        tmp_path, BODY.format(observers=observers, fault=textwrap.indent(fault.happens, "    ")), "-b", "0.1"
    )
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
