"""What recording costs: the lab's FileObserver against Sacred's, TensorBoard's writer and a plain JSON-lines append.

    python benchmarks/recording.py [--points 100000] [--large 3000000]

All in one run, so that what else the machine does falls on all. "caller" is what the training thread spends on a point,
"in all" is the CPU time of the whole process over it, beats and end included; "bytes" is what lies on the disk.
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

from experiments import Experiment
from observers import FileObserver
from observers.schema import read_metrics, read_points

warnings.filterwarnings("ignore")
BEAT_POINTS = 1000


def experiment(observer, main):
    ex = Experiment("recording", base_dir=ROOT / "benchmarks")
    ex.observers.append(observer)
    ex.main(main)
    return ex


def by_observer(make, folder, count):
    """Log `count` points with a beat every `BEAT_POINTS`, as a training that logs 1,000 points a second would."""
    caller = 0.0

    def main(_run):
        nonlocal caller
        for start in range(0, count, BEAT_POINTS):
            began = time.perf_counter()
            for step in range(start, start + BEAT_POINTS):
                _run.log_scalar("train/loss", 1.0 / (step + 1), step)
            caller += time.perf_counter() - began
            _run._emit_heartbeat()

    ex = experiment(make(folder), main)
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


def kill_test(beat_s):
    """Kill a process that logs for ever, and return points logged, points kept, and points of one beat."""
    body = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from experiments import Experiment\nfrom observers import FileObserver\n"
        "ex = Experiment('kill')\nex.observers.append(FileObserver('runs'))\n"
        "@ex.automain\ndef main(_run):\n"
        "    step = 0\n"
        "    while True:\n"
        "        _run.log_scalar('x', step, step); step += 1\n"
        "        if step % 500 == 0: time.sleep(0.01); open('count', 'w').write(str(step))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "kill.py"
        script.write_text(body)
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, script, "-b", str(beat_s)], cwd=folder, stdout=silent, stderr=silent
        )
        run = Path(folder) / "runs" / "1"
        while len(read_points(run)) < 50_000:
            time.sleep(0.05)
        process.kill()
        process.wait()
        logged = int((Path(folder) / "count").read_text() or 0)
        points = read_points(run)
        a_beat = len(points) / max(points["time"].max() / 100, 1e-9) * beat_s
        return logged, len(points), a_beat


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=3_000_000)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    from sacred.observers import FileStorageObserver

    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, a beat every {BEAT_POINTS} points")
    print(f"{'':<34}{'points':>10}{'caller us':>12}{'in all us':>12}{'bytes':>10}")
    count = arguments.points
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        report("JSON lines, append", count, *by_json_lines(top, count), size_of(top, {"metrics.jsonl"}))
        with contextlib.suppress(ImportError):
            folder = top / "board"
            report("TensorBoard SummaryWriter", count, *by_tensorboard(folder, count), size_of(folder, ()))
        for size in (10_000, count, arguments.large):
            folder = top / f"ours{size}"
            cost = by_observer(FileObserver, folder, size)
            report("sacristan FileObserver", size, *cost, size_of(folder, {"metrics.bin", "metrics.names.jsonl"}))
            run = folder / "1"
            times = []
            for _ in range(5):
                began = time.perf_counter()
                assert len(read_metrics(run)["train/loss"]) == size
                times.append(time.perf_counter() - began)
            print(f"{'  reading them':<34}{size:>10,}{1e3 * min(times):>12.2f} ms")
        for size in (10_000, count):
            folder = top / f"stock{size}"
            cost = by_observer(FileStorageObserver, folder, size)
            report("sacred FileStorageObserver", size, *cost, size_of(folder, {"metrics.json"}))
        for label, kind in (("sacristan", FileObserver), ("sacred", FileStorageObserver)):
            times = []
            for _ in range(5):
                ex = experiment(kind(top / f"empty-{label}"), lambda: None)
                began = time.perf_counter()
                ex.run(options={"--capture": "no"})
                times.append(time.perf_counter() - began)
            print(f"empty run, {label:<23}{1e3 * sorted(times)[2]:>22.1f} ms")
    logged, kept, a_beat = kill_test(1.0)
    print(f"kill -9: {logged:,} points logged, {kept:,} kept; a beat is {a_beat:,.0f} points")


if __name__ == "__main__":
    main()
