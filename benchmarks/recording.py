"""Cost of recording: the lab's observers against Sacred's, TensorBoard's writer and a plain JSON-lines append.

    python benchmarks/recording.py [--points 100000] [--large 3000000] [--seconds 5]

All in one run, so that what else the machine does falls on all. "caller" is what the training thread spends on a point,
"in all" is the CPU time of the whole process over it, its start, beats and end included; "bytes" is what lies on the
disk, or in the database. Stock observers are fed by a stock experiment. The rows of MongoDB need the extra `mongod`;
the server's own CPU time is not in them. "lost" is what cannot be read back of the points whose call had returned when
the process was killed; -1 is one that was kept though its call had not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

warnings.filterwarnings("ignore")  # Sacred's import says that pkg_resources is deprecated

import pymongo
import sacred
from sacred.observers import FileStorageObserver
from sacred.observers import MongoObserver as SacredMongoObserver

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.observers.record.points.intact_points import read_metrics

BEAT_POINTS = 1000


def experiment(kind, observer, main):
    ex = kind("recording", base_dir=ROOT / "benchmarks", save_git_info=False)
    ex.observers.append(observer)
    ex.main(main)
    return ex


def by_observer(kind, observer, count):
    """Log `count` points with a beat every `BEAT_POINTS`, as a training that logs 1,000 points a second would."""
    caller = 0.0
    os.sync()  # what the rows before left to be written costs them, not this one

    def main(_run):
        nonlocal caller
        for start in range(0, count, BEAT_POINTS):
            began = time.perf_counter()
            for step in range(start, start + BEAT_POINTS):
                _run.log_scalar("train/loss", 1.0 / (step + 1), step)
            caller += time.perf_counter() - began
            _run._emit_heartbeat()

    ex = experiment(kind, observer, main)
    began = time.process_time()
    ex.run(options={"--capture": "no", "--beat-interval": "1000"})
    return caller, time.process_time() - began


def by_json_lines(folder, count):
    began, cpu = time.perf_counter(), time.process_time()
    with (folder / "metrics.jsonl").open("w") as stream:
        for step in range(count):
            line = {"name": "train/loss", "value": 1.0 / (step + 1), "step": step, "time": time.time()}
            stream.write(json.dumps(line) + "\n")
    return time.perf_counter() - began, time.process_time() - cpu


def by_tensorboard(folder, count):
    from torch.utils.tensorboard import SummaryWriter

    began, cpu = time.perf_counter(), time.process_time()
    with SummaryWriter(str(folder)) as writer:
        for step in range(count):
            writer.add_scalar("train/loss", 1.0 / (step + 1), step)
    return time.perf_counter() - began, time.process_time() - cpu


def size_of(folder, names):
    return sum(
        path.stat().st_size for path in folder.rglob("*") if path.is_file() and (not names or path.name in names)
    )


def report(name, count, caller, cpu, size):
    print(
        f"{name:<34}{count:>10,}{1e6 * caller / count:>12.2f}{1e6 * cpu / count:>12.2f}{size / count:>10.1f}",
        flush=True,
    )


# What logs point `step`, for a process that is to be killed; each is a beginning and a line.
_LAB = """
from {module} import Experiment
from {observers} import {observer}
ex = Experiment('kill', save_git_info=False)
ex.observers.append({observer}('runs'))
@ex.main
def main(_run):
    log_for_ever(lambda step: _run.log_scalar('x', step / 7, step))
ex.run()
"""
_JSON_LINES = """
import json
stream = open('metrics.jsonl', 'w')
def log(step):
    stream.write(json.dumps({{'name': 'x', 'value': step / 7, 'step': step, 'time': time.time()}}) + '\\n')
{flush}
log_for_ever(log)
"""
KILLED = {
    "sacristan FileObserver": _LAB.format(module="experiments", observers="observers", observer="FileObserver"),
    "sacred FileStorageObserver": _LAB.format(
        module="sacred", observers="sacred.observers", observer="FileStorageObserver"
    ),
    "JSON lines, append": _JSON_LINES.format(flush=""),
    "JSON lines, append and flush": _JSON_LINES.format(flush="    stream.flush()"),
    "TensorBoard SummaryWriter": """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter('board')
log_for_ever(lambda step: writer.add_scalar('x', step / 7, step))
""",
}
# It notes each point that was logged, and what the callers of all spent, in memory that it shares with us.
_LOG_FOR_EVER = """
import mmap, sys, time
sys.path.insert(0, {root!r})
def log_for_ever(log):
    with open('count', 'rb+') as stream:
        count = memoryview(mmap.mmap(stream.fileno(), 16)).cast('Q')
    step, spent, now = 0, 0, time.perf_counter_ns
    while True:
        began = now()
        for _ in range(200):
            log(step)
            step += 1
            count[0] = step
        spent += now() - began
        count[1] = spent
        time.sleep({pause_s})
"""


def kept_points(folder):
    """Return how many points can be read from what a killed process left."""
    run = folder / "runs" / "1"
    if (run / "metrics.bin").exists():
        return len(read_metrics(run)["x"])
    if (run / "metrics.json").exists():
        try:
            return len(json.loads((run / "metrics.json").read_bytes())["x"]["steps"])
        except (ValueError, KeyError):
            return 0
    if (folder / "board").exists():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "board"), size_guidance={"scalars": 0}).Reload()
        return len(events.Scalars("x"))
    return (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0


def kill_test(body, pause_s, seconds):
    """Kill a process that logs; return points logged, kept, a second, and what the caller spent on each, in us."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kill.py").write_text(_LOG_FOR_EVER.format(root=str(ROOT), pause_s=pause_s) + body)
        (folder / "count").write_bytes(bytes(16))
        silent = subprocess.DEVNULL
        process = subprocess.Popen([sys.executable, "kill.py"], cwd=folder, stdout=silent, stderr=silent)

        def counts():
            data = (folder / "count").read_bytes()
            return [int.from_bytes(data[at : at + 8], sys.byteorder) for at in (0, 8)]

        while not counts()[0]:
            if process.poll() is not None:
                return None
            time.sleep(0.01)
        began = time.perf_counter()
        time.sleep(seconds)
        process.kill()
        process.wait()
        logged, spent = counts()
        return logged, kept_points(folder), logged / (time.perf_counter() - began), spent / 1e3 / logged


def report_killed(seconds):
    """Print what is left of processes that are killed, first at some thousand points a second, then at full speed."""
    print(f"{'kill -9':<34}{'logged':>10}{'lost':>12}{'a second':>12}{'caller us':>11}")
    for pause_s in (0.01, 0):
        for name, body in KILLED.items():
            found = kill_test(body, pause_s, seconds)
            if found is not None:
                logged, kept, rate, caller = found
                print(f"{name:<34}{logged:>10,}{logged - kept:>12,}{rate:>12,.0f}{caller:>11.2f}", flush=True)


def read_times(run, size):
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert len(read_metrics(run)["train/loss"]) == size
        times.append(time.perf_counter() - began)
    print(f"{'  reading them':<34}{size:>10,}{1e3 * min(times):>12.2f} ms")


def report_files(top, count, large):
    for size in (count, large):
        report("JSON lines, append", size, *by_json_lines(top, size), size_of(top, {"metrics.jsonl"}))
    with contextlib.suppress(ImportError):
        folder = top / "board"
        report("TensorBoard SummaryWriter", count, *by_tensorboard(folder, count), size_of(folder, ()))
    for size in (10_000, count, large):
        folder = top / f"ours{size}"
        cost = by_observer(Experiment, FileObserver(folder), size)
        report("sacristan FileObserver", size, *cost, size_of(folder, {"metrics.bin", "metrics.names.jsonl"}))
        read_times(folder / "1", size)
    for size in (10_000, count):
        folder = top / f"stock{size}"
        cost = by_observer(sacred.Experiment, FileStorageObserver(folder), size)
        report("sacred FileStorageObserver", size, *cost, size_of(folder, {"metrics.json"}))


def report_mongo(top, count):
    from sacristan.runs.errors import ServerError
    from sacristan.runs.work.mongod import Mongod

    try:
        server = Mongod(top / "mongod", 0)
    except ServerError as error:
        print(error)
        return
    with server, pymongo.MongoClient(server.url) as client:
        ours = MongoObserver(server.url, "ours", failure_dir=top / "spool")
        stock = SacredMongoObserver(url=server.url, db_name="stock")
        for name, kind, observer in (
            ("sacristan MongoObserver", Experiment, ours),
            ("sacred MongoObserver", sacred.Experiment, stock),
        ):
            cost = by_observer(kind, observer, count)
            database = client["ours" if observer is ours else "stock"]
            size = sum(database.command("collStats", name)["size"] for name in ("metrics", "metrics_chunks"))
            report(name, count, *cost, size)


def report_empty(top):
    for name, kind, observer in (
        ("sacristan", Experiment, FileObserver(top / "empty-ours")),
        ("sacred", sacred.Experiment, FileStorageObserver(top / "empty-stock")),
    ):
        times = []
        for _ in range(5):
            ex = experiment(kind, observer, lambda: None)
            began = time.perf_counter()
            ex.run(options={"--capture": "no"})
            times.append(time.perf_counter() - began)
        print(f"empty run, {name:<23}{1e3 * sorted(times)[2]:>22.1f} ms")


def report_no_server(top):
    """Print how long a run whose MongoDB is not there waits before its main function is called, and at its end."""
    called = []
    observer = MongoObserver("mongodb://127.0.0.1:9/", "none", failure_dir=top / "spool")
    ex = experiment(Experiment, observer, lambda: called.append(time.perf_counter()))
    began = time.perf_counter()
    ex.run(options={"--capture": "no"})
    ended = time.perf_counter()
    print(f"no MongoDB there: {called[0] - began:.1f} s to the start, {ended - called[0]:.1f} s at the end")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=3_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a process logs before it is killed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, a beat every {BEAT_POINTS} points")
    print(f"{'':<34}{'points':>10}{'caller us':>12}{'in all us':>12}{'bytes':>10}")
    with tempfile.TemporaryDirectory() as name:
        report_files(Path(name), arguments.points, arguments.large)
        report_mongo(Path(name), arguments.points)
        report_empty(Path(name))
        report_no_server(Path(name))
    report_killed(arguments.seconds)


if __name__ == "__main__":
    main()
