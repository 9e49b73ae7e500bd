"""The one writer of a record: seen alive from every machine, and never locked out by a dead process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sacristan.observers import read_metrics
from sacristan.observers.record.identity import is_alive, read_lease, true_status
from sacristan.observers.record.points.intact_points import read_points
from sacristan.runs import reap, sync
from tests.recording import logs_for_ever

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# A child that outlives a parent that is killed, as a worker of a data loader may.
FORKS = """
import pathlib
ex.observers.append(OBSERVER)
@ex.automain
def main(_run):
    child = os.fork()
    if child == 0:
        while True: time.sleep(1)
    pathlib.Path("child").write_text(str(child))
    step = 0
    while True:
        _run.log_scalar("loss", step, step); step += 1; time.sleep(0.001)
"""
JUDGE = """
import json, pathlib, sys
from sacristan.observers.record.identity import is_alive, read_lease, true_status
from sacristan.runs.stores.opening import open_store
from sacristan.runs.transfer.syncing import reap
folder = pathlib.Path(sys.argv[1])
run, lease = json.loads((folder / "run.json").read_bytes()), read_lease(folder)
print(true_status(run, lease), open_store(str(folder.parent)).get(folder.name).status, list(reap(folder.parent)))
"""


def status_of(folder):
    return true_status(json.loads((folder / "run.json").read_bytes()), read_lease(folder))


def load(folder, name="run.json"):
    return json.loads((folder / name).read_bytes())


@pytest.fixture
def in_namespace(request, tmp_path):
    """Start Python in a PID namespace: `in_namespace(*arguments, **environment)`; killed when the test ends."""
    if shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here: unshare is missing, or not permitted")
    started = []

    def begin(*arguments, **environment):
        number = len(started)
        with (tmp_path / f"out-{number}").open("w") as out, (tmp_path / f"err-{number}").open("w") as err:
            process = subprocess.Popen(
                [*UNSHARE, sys.executable, *arguments],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(request.config.rootpath), **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        process.out, process.err = tmp_path / f"out-{number}", tmp_path / f"err-{number}"
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def ended(process, code=0):
    assert process.wait(120) == code, process.err.read_text()
    return process.out.read_text(), process.err.read_text()


@pytest.mark.slow
def test_run_in_another_pid_namespace_is_alive_until_it_is_killed(tmp_path, start, in_namespace, wait_for):
    folder = tmp_path / "runs" / "1"
    # The fixture writes the script; the run itself is in the namespace.
    start(tmp_path, logs_for_ever(), "print_config").finish()
    process = in_namespace("recorded.py", "-b", "0.2")
    wait_for(lambda: len(read_points(folder)) > 10, "points")
    lease = load(folder, "lease.json")
    assert lease["pid_namespace"] != str(Path("/proc/self/ns/pid").readlink())
    # A file system without locks has the age of the heartbeat.
    assert is_alive({**lease, "locked": False})
    assert not is_alive({**lease, "locked": False}, lease["heartbeat"] + 31)
    assert status_of(folder) == "RUNNING"
    assert list(reap(tmp_path / "runs")) == []
    process.kill()
    wait_for(lambda: status_of(folder) == "DEAD", "the end of the process")
    assert [where for where, _ in reap(tmp_path / "runs")] == [folder]


def test_live_run_is_neither_reaped_nor_resumed_from_another_pid_namespace(tmp_path, start, in_namespace, wait_for):
    folder = tmp_path / "runs" / "1"
    recorded = start(tmp_path, logs_for_ever(), "-b", "0.2")
    wait_for(lambda: len(read_points(folder)) > 10, "points")
    assert ended(in_namespace("-c", JUDGE, str(folder)))[0].split() == ["RUNNING", "RUNNING", "[]"]
    second = in_namespace("recorded.py", SACRISTAN_RESUME=str(folder))
    _, said = ended(second, 1)
    assert f"error: {folder} cannot be resumed: process {recorded.process.pid} on " in said
    assert "Traceback" not in said
    recorded.process.send_signal(signal.SIGTERM)
    assert recorded.process.wait(60) == 143
    assert "sessions" not in load(folder)
    steps = read_metrics(folder)["loss"].steps
    assert steps.tolist() == list(range(len(steps)))


def test_lease_tells_the_interval_of_heartbeats(tmp_path, start, wait_for):
    folder = tmp_path / "runs" / "1"
    start(tmp_path, logs_for_ever(), "--beat-interval=60")
    wait_for((folder / "lease.json").exists, "the lease")
    lease = load(folder, "lease.json")
    assert (lease["beat_interval"], lease["locked"]) == (60.0, True)
    elsewhere = {**lease, "boot_id": "another machine"}
    assert is_alive(elsewhere, lease["heartbeat"] + 599)
    assert not is_alive(elsewhere, lease["heartbeat"] + 601)


@pytest.mark.parametrize(("options", "interval"), [((), 10.0), (("--beat-interval=2.5",), 2.5)])
def test_lease_of_a_stock_experiment_tells_the_interval_of_its_heartbeats(tmp_path, start, options, interval):
    body = """
import sacred
ex = sacred.Experiment("stock")
ex.observers.append(FileObserver("runs"))
@ex.automain
def main(): pass
"""
    start(tmp_path, body, *options).finish()
    assert load(tmp_path / "runs" / "1", "lease.json")["beat_interval"] == interval


def kill_parent(recorded, folder, wait_for):
    child = int(wait_for(lambda: (folder / "child").exists() and (folder / "child").read_text(), "the child"))
    recorded.process.kill()
    recorded.process.wait()
    assert Path(f"/proc/{child}").exists()
    return child


def test_child_that_outlives_a_killed_run_does_not_keep_its_record_locked(tmp_path, start, wait_for):
    folder = tmp_path / "runs" / "1"
    recorded = start(tmp_path, FORKS.replace("OBSERVER", 'FileObserver("runs")'))
    wait_for(lambda: len(read_points(folder)), "points")
    child = kill_parent(recorded, tmp_path, wait_for)
    try:
        assert status_of(folder) == "DEAD"
        assert [where for where, _ in reap(tmp_path / "runs")] == [folder]
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_child_that_outlives_a_killed_run_does_not_keep_its_spool_locked(
    tmp_path, mongo_url, database, start, wait_for
):
    observer = f'MongoObserver("{mongo_url}", db_name="{database.name}", failure_dir="spool")'
    recorded = start(tmp_path, FORKS.replace("OBSERVER", observer))
    wait_for(lambda: database.metrics.find_one({"name": "loss"}), "points in the database")
    child = kill_parent(recorded, tmp_path, wait_for)
    try:
        assert [result.outcome for result in sync(tmp_path / "spool")] == ["delivered"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_run_that_cannot_write_its_end_is_dead_though_its_process_goes_on(tmp_path):
    import resource

    from sacristan.experiments import Experiment
    from sacristan.observers import FileObserver

    ex = Experiment("full", base_dir=Path(__file__).parent, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path))

    @ex.main
    def main():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        ex.run(options={"--capture": "no"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert load(tmp_path / "1")["status"] == "RUNNING"
    assert status_of(tmp_path / "1") == "DEAD"


@pytest.mark.parametrize("damaged", ["", "{}", "[]", '{"heartbeat": 1e300}', '{"heartbeat": "x", "pid": "../1"}', None])
def test_damaged_lease_is_as_old_as_its_file(tmp_path, damaged, start, wait_for):
    folder = tmp_path / "runs" / "1"
    recorded = start(tmp_path, logs_for_ever(), "--beat-interval=60")
    wait_for((folder / "run.json").exists, "the run")

    def damage(age_s):
        path = folder / "lease.json"
        path.unlink(missing_ok=True)
        if damaged is not None:
            path.write_text(damaged)
        else:
            path = folder / "run.json"
        os.utime(path, (time.time() - age_s,) * 2)

    damage(3600)
    assert status_of(folder) == "RUNNING"  # it holds the lock
    assert list(reap(tmp_path / "runs")) == []
    recorded.process.kill()
    recorded.process.wait()
    damage(0)
    assert status_of(folder) == "RUNNING"
    damage(3600)
    # A command that it had just forked, such as git, has the lock, too, until it is executed.
    wait_for(lambda: status_of(folder) == "DEAD", "the end of the lock")
    assert [where for where, _ in reap(tmp_path / "runs")] == [folder]
    assert load(folder)["status"] == "DEAD"
