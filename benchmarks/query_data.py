"""Shared parts of the query benchmarks: the generated runs, the question, the measurement."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from sacristan.observers.record.points import POINT

METRICS = ["train/loss", "val/accuracy"] + [
    f"system/{name}"
    for name in ("cpu", "memory", "disk", "net_in", "net_out", "gpu0/use", "gpu0/memory", "gpu0/power", "swap", "load")
]
BEST = [("optimizer.lr", "<", 1e-3), ("status", "==", "COMPLETED")]
COLUMNS = ["status", "start_time", "optimizer.lr", "val/accuracy.max", "train/loss.last"]
PAGE = {"sort": "-val/accuracy.max", "limit": 50, "columns": COLUMNS}


def config_of(random):
    """Return a config of about 60 entries."""

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
    """Return the summary of each of `METRICS`."""

    def row():
        value = random.random()
        steps = {f"{name}_step": random.randrange(10_000) for name in ("last", "min", "max")}
        return {"count": 10_000, "first": 1.0, "finite": 10_000, "mean": value, "last": value, **steps} | {
            "min": value / 2,
            "max": value * 2,
        }

    return {name: row() for name in METRICS}


def run_of(random, number):
    """Return `run.json` of the run `number`."""
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


def long_metric(count):
    """Return the points of a random walk."""
    points = np.zeros(count, POINT)
    points["step"] = np.arange(count)
    points["value"] = np.random.default_rng(0).standard_normal(count).cumsum()
    return points


def print_heading():
    """Print what the columns of `report` are."""
    print(f"{'milliseconds':<52}{'median':>10}{'worst':>10}{'processor':>10}")


def now():
    """Return the time, and the processor's time of this process and of those that it started and that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def timed(action):
    """Return how long `action` takes, and its time on the processor, in seconds."""
    before = now()
    action()
    return [late - early for early, late in zip(before, now(), strict=True)]


def measure(what, action, times=1, prepare=lambda: None):
    """Time `action` so many times, each after `prepare`, and report it."""
    took = []
    for _ in range(times):
        prepare()
        took.append(timed(action))
    report(what, took)


def report(what, took):
    """Print median and worst of the times that `timed` returned."""
    waited, worked = (statistics.median(times) for times in zip(*took, strict=True))
    print(f"{what:<52}{1e3 * waited:>10,.0f}{1e3 * max(took)[0]:>10,.0f}{1e3 * worked:>10,.0f}", flush=True)
