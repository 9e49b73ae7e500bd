"""What questions to 20,000 runs cost: of a folder, with its index, and of MongoDB (`query_mongo.py`).

    python benchmarks/query.py [--runs 20000] [--folder FOLDER] [--layouts]

The folders are generated: about 60 entries of config, 12 metrics (10 of the system), host, times, 40 sources. With
`--folder` they are kept and used again. `--layouts` asks the same question of the layout that was not chosen, too: one
JSON document a run, in the same SQLite.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

import runs
from observers.record.schema import POINT
from runs.index.fields import decode, fields_of, read_documents
from runs.index.index import Index

METRICS = ["train/loss", "val/accuracy"] + [
    f"system/{name}"
    for name in ("cpu", "memory", "disk", "net_in", "net_out", "gpu0/use", "gpu0/memory", "gpu0/power", "swap", "load")
]
BEST = [("optimizer.lr", "<", 1e-3), ("status", "==", "COMPLETED")]
COLUMNS = ["status", "start_time", "optimizer.lr", "val/accuracy.max", "train/loss.last"]
LIST = (
    "from runs.index.index import Index; import sys\n"
    "with Index(sys.argv[1]) as index:\n"
    "    index.update()\n"
    f"    rows = index.find(sort='-start_time', limit=50, columns={COLUMNS})\n"
    "assert len(rows) == 50"
)


def config_of(random):
    def part(names):
        return {name: random.choice([random.random(), random.randrange(1000), "text", True, None]) for name in names}

    letters = "abcdefghij"
    return {
        "seed": random.randrange(2**31),
        "lr": random.random(),
        "tags": ["a", "b"],
        "optimizer": {"name": random.choice(["SGD", "AdamW"]), "lr": 10 ** random.uniform(-5, -1), **part(letters[:7])},
        "model": {"name": "vit", "hidden": [64, 64], "args": part(letters), **part(letters[:6])},
        "data": {"name": "digits", "augmentation": part(letters[:8]), **part(letters[:8])},
        "training": {"epochs": 10, **part(letters[:9])},
        "amp": part(letters[:4]),
    }


def summary_of(random):
    def row():
        value = random.random()
        steps = {f"{name}_step": random.randrange(10_000) for name in ("last", "min", "max")}
        return {"count": 10_000, "first": 1.0, "finite": 10_000, "mean": value, "last": value, **steps} | {
            "min": value / 2,
            "max": value * 2,
        }

    return {name: row() for name in METRICS}


def run_of(random, number):
    start = datetime(2026, 1, 1) + timedelta(seconds=37 * number)
    return {
        "format": "sacristan-1",
        "uid": f"{number:032x}",
        "experiment": {
            "name": "exp",
            "base_dir": "/home/someone/lab",
            "mainfile": "exp.py",
            "dependencies": [f"package{i}=={i}.0" for i in range(20)],
            "sources": [[f"ingredients/part{i}.py", f"_sources/part{i}_{i:032x}.py"] for i in range(40)],
            "repositories": [],
        },
        "command": "main",
        "host": {
            "hostname": f"node{number % 8}",
            "os": ["Linux", "Linux-6.1.0-x86_64"],
            "cpu": "AMD EPYC",
            "gpus": {"driver_version": "550", "gpus": [{"model": "H200", "total_memory": 143771}]},
            "python_version": "3.11.7",
            "ENV": {},
        },
        "start_time": start.isoformat(),
        "meta": {"command": "main", "options": {f"--option-{i}": None for i in range(25)}, "config_updates": {"lr": 1}},
        "status": random.choices(["COMPLETED", "FAILED", "INTERRUPTED"], [8, 1, 1])[0],
        "command_line": ["exp.py", "with", "lr=1e-3"],
        "resources": [],
        "artifacts": ["checkpoints/best.pt"],
        "heartbeat": (start + timedelta(seconds=900)).isoformat(),
        "stop_time": (start + timedelta(seconds=900)).isoformat(),
        "result": random.random(),
    }


def write(path, document):
    path.write_text(json.dumps(document, indent=2))


def generate(folder, count):
    for number in range(1, count + 1):
        run = folder / str(number)
        if run.exists():
            continue
        run.mkdir(parents=True)
        randomness = random.Random(number)
        write(run / "config.json", config_of(randomness))
        write(run / "summary.json", summary_of(randomness))
        write(run / "info.json", {"note": "x"})
        write(run / "run.json", run_of(randomness, number))


def touch(folder, numbers):
    """Change the results of a few runs the way the recorder does."""
    for number in numbers:
        run = folder / str(number)
        document = json.loads((run / "run.json").read_text())
        write(run / "run.json.new", {**document, "result": random.random()})
        (run / "run.json.new").replace(run / "run.json")


def now():
    """Return the time, and the processor's time of this process and of those that it started and that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def timed(action):
    before = now()
    action()
    return [late - early for early, late in zip(before, now(), strict=True)]


def measure(what, action, times=1, prepare=lambda: None):
    took = []
    for _ in range(times):
        prepare()
        took.append(timed(action))
    report(what, took)


def report(what, took):
    waited, worked = (statistics.median(times) for times in zip(*took, strict=True))
    print(f"{what:<52}{1e3 * waited:>10,.0f}{1e3 * max(took)[0]:>10,.0f}{1e3 * worked:>10,.0f}", flush=True)


def ask(index, sort="-val/accuracy.max", conditions=BEST):
    rows = index.find(conditions, sort=sort, limit=50, columns=COLUMNS)
    assert len(rows) == 50


def add_long_metric(run, count):
    points = np.zeros(count, POINT)
    points["step"] = np.arange(count)
    points["value"] = np.random.default_rng(0).standard_normal(count).cumsum()
    (run / "metrics.bin").write_bytes(points.tobytes())
    (run / "metrics.names.jsonl").write_text('{"id": 0, "name": "long"}\n')


def layout_of_documents(folder, path):
    """Ask the layout with one JSON document a run, and print what it takes."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE run(name TEXT, document TEXT)")
    for run in folder.iterdir():
        if run.name.isdigit():
            flat = {}
            for part in fields_of(read_documents(run))[0]:
                flat |= {name: decode(*value) for name, value in part.items()}
            connection.execute("INSERT INTO run VALUES (?, ?)", (run.name, json.dumps(flat)))
    connection.commit()
    field = "json_extract(document, '$.\"{}\"')".format
    query = f"""SELECT name FROM run WHERE {field("optimizer.lr")} < 1e-3 AND {field("status")} = 'COMPLETED'
        ORDER BY {field("val/accuracy.max")} DESC LIMIT 50"""
    measure("  50 best by a metric, JSON documents", lambda: connection.execute(query).fetchall(), 5)
    print(f"  its size: {path.stat().st_size / 2**20:.0f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--no-mongo", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="sacristan-query-"))
    try:
        generate(folder, arguments.runs)
        print(
            f"{arguments.runs:,} runs, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, SQLite "
            f"{sqlite3.sqlite_version}, Python {sys.version.split()[0]}"
        )
        print(f"{'milliseconds':<52}{'median':>10}{'worst':>10}{'processor':>10}")
        with Index(folder) as index:
            measure("build", index.rebuild)
            time.sleep(2.1)  # what was written just now is looked at twice
            index.update()
            print(f"  its size: {index.path.stat().st_size / 2**20:.0f} MiB")
            measure("update, nothing changed, warm", index.update, 9)

            def some():
                touch(folder, random.sample(range(1, arguments.runs + 1), 10))

            measure("update, 10 runs changed, warm", index.update, 9, some)
            measure("50 best by a metric under two conditions, warm", lambda: ask(index), 9)
            measure("50 best by a metric, warm", lambda: ask(index, conditions=()), 9)
            measure("50 newest, warm", lambda: ask(index, "-start_time", ()), 9)
        command = [sys.executable, "-c", LIST, str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        measure(
            "a new process that updates and lists the 50 newest",
            lambda: subprocess.run(command, check=True, env=environment),
            5,
        )
        if arguments.layouts:
            layout_of_documents(folder, Path(tempfile.mkdtemp()) / "documents.sqlite")
        with runs.open_store(folder) as store:
            best = {"sort": "-val/accuracy.max", "limit": 50, "columns": COLUMNS}
            measure("the store: update, and 50 best by a metric", lambda: store.find(BEST, **best), 9)
            add_long_metric(folder / "1", 1_000_000)
            run = store.get(1)
            measure("1,000,000 points, downsampled to 2,000", lambda: run.metric("long", 2_000), 5)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)
    if not arguments.no_mongo:
        import query_mongo

        query_mongo.report(arguments.runs, 10 * arguments.runs)


if __name__ == "__main__":
    main()
