"""Cost of questions to 20,000 runs in MongoDB: the lab's store against raw pymongo, incense and Omniboard's query.

    python benchmarks/query_mongo.py [--runs 20000] [--more 200000]

Called by `benchmarks/query.py`. The server comes from the extra `mongod`. Every run is one of `query_data.py`, with
packages, a diff and 6 kB of output beside it, and 100 points of two metrics. `--more` adds runs for the last figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import resource
import tempfile
import warnings
from datetime import datetime
from pathlib import Path

import bson
import numpy as np
import pymongo
from query_data import (
    BEST,
    COLUMNS,
    METRICS,
    PAGE,
    config_of,
    long_metric,
    measure,
    print_heading,
    run_of,
    summary_of,
)

from sacristan import runs
from sacristan.observers.mongo.documents import object_id
from sacristan.observers.mongo.layout import Collections, make_run_indexes
from sacristan.runs.work.mongod import Mongod

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {f"package-{number}": f"{number}.1.0" for number in range(150)}
SELECT = (
    "_id,heartbeat,experiment,command,host,stop_time,config,duration,result,start_time,format,status,metrics,meta,best"
)


def documents(first, last):
    for number in range(first, last + 1):
        randomness = random.Random(number)
        run = run_of(randomness, number)
        for key in ("start_time", "stop_time", "heartbeat"):
            run[key] = datetime.fromisoformat(run[key])
        listed = [{"name": name, "id": str(object_id(run["uid"], name))} for name in METRICS]
        yield {
            "_id": number,
            **run,
            "artifacts": [],
            "config": config_of(randomness),
            "summary": summary_of(randomness),
            "info": {"metrics": listed},
            "provenance": {"packages": PACKAGES, "git": {"diff": "x" * 2000}},
            "captured_out": "line of output\n" * 400,
        }


def metrics_of(run):
    for name in METRICS[:2]:
        values = np.random.default_rng(run["_id"]).random(100).tolist()
        times = [run["start_time"]] * 100
        key = object_id(run["uid"], name)
        series = {"steps": list(range(100)), "values": values, "timestamps": times, "count": 100}
        yield {"_id": key, "run_id": run["_id"], "name": name, **series}


def fill(database, first, last, *, with_metrics):
    batch, metrics = [], []
    for run in documents(first, last):
        batch.append(run)
        metrics += metrics_of(run) if with_metrics else ()
        if len(batch) == 500 or run["_id"] == last:
            database.runs.insert_many(batch)
            if metrics:
                database.metrics.insert_many(metrics)
            batch, metrics = [], []


def omniboard_rows(database):
    """Omniboard's list of 200 runs, sorted by the best of a metric, as its server asks for it."""
    path = ROOT / "tests" / "integration" / "test_omniboard.py"
    spec = importlib.util.spec_from_file_location("omniboard_queries", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    columns = [{"name": "best", "metric_name": "val/accuracy", "extrema": "max"}]
    pipeline = module.runs_pipeline(SELECT, sort_by="best", columns=columns)
    return list(database.runs.aggregate(pipeline, allowDiskUse=True))


def best_experiments(loader):
    """50 best of 20,000, as a notebook asks incense's interface."""
    found = [
        experiment
        for experiment in loader.find_all()
        if experiment.config.optimizer.lr < 1e-3 and experiment.status == "COMPLETED"
    ]
    return sorted(found, key=lambda experiment: -experiment.summary["val/accuracy"]["max"])[:50]


def rows_of_incense(url):
    loader = runs.incense(url)
    try:
        return best_experiments(loader)
    finally:
        loader._database.client.close()


def rows_of_our_loader(url):
    with runs.ExperimentLoader(url) as loader:
        return best_experiments(loader)


def rows_of_our_loader_by_query(url):
    with runs.ExperimentLoader(url) as loader:
        found = loader.find({"config.optimizer.lr": {"$lt": 1e-3}, "status": "COMPLETED"})
        return found.project(on=["config.optimizer.lr", "summary.val/accuracy.max"]).nlargest(50, "max")


def memory_line():
    print(f"    memory of this process after it: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


def raw_rows(database):
    """Query with pymongo as a person would write it, by the existing indexes."""
    query = {"config.optimizer.lr": {"$lt": 1e-3}, "status": "COMPLETED", "summary.val/accuracy.max": {"$gte": -np.inf}}
    chosen = {"status": 1, "start_time": 1, "config.optimizer.lr": 1, "summary.val/accuracy.max": 1}
    return list(database.runs.find(query, chosen).sort("summary.val/accuracy.max", -1).limit(50))


def add_long_metric(database, count):
    """Give run 1 a metric of `count` points, as the observer stores one."""
    points = long_metric(count)
    head, rest = points[:20_000], points[20_000:]
    start = database.runs.find_one({"_id": 1}, {"start_time": 1})["start_time"]
    series = {"steps": head["step"].tolist(), "values": head["value"].tolist(), "timestamps": [start] * len(head)}
    database.metrics.insert_one({"_id": bson.ObjectId(), "run_id": 1, "name": "long", **series, "count": len(head)})
    for index, first in enumerate(range(0, len(rest), 4096)):
        chunk = rest[first : first + 4096]
        document = {"run_id": 1, "name": "long", "index": index, "count": len(chunk), "data": chunk.tobytes()}
        database.metrics_chunks.insert_one(document)


def report(count, more):
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with (
        tempfile.TemporaryDirectory() as folder,
        Mongod(Path(folder)) as server,
        pymongo.MongoClient(server.url) as client,
    ):
        url, database = f"{server.url}/bench", client.bench
        make_run_indexes(Collections(database))
        fill(database, 1, count, with_metrics=True)
        stats = database.command("collStats", "runs")
        size, indexes = (stats[name] / 2**20 for name in ("size", "totalIndexSize"))
        print(f"MongoDB {client.server_info()['version']}, {count:,} runs, {size:,.0f} MiB, indexes {indexes:,.0f} MiB")
        with runs.open_store(url) as store:
            measure("50 best by a metric under two conditions", lambda: store.find(BEST, **PAGE), 9)
            measure("  the same by hand with pymongo", lambda: raw_rows(database), 9)
            measure("  the same by ExperimentLoader, with a query", lambda: rows_of_our_loader_by_query(url), 3)
            memory_line()
            measure("  the same by ExperimentLoader, in Python", lambda: rows_of_our_loader(url), 3)
            memory_line()
            if importlib.util.find_spec("incense"):  # Python 3.11
                measure("  the same by incense, in Python", lambda: rows_of_incense(url))
                memory_line()
            measure("  200 best by a metric, Omniboard's query", lambda: omniboard_rows(database), 3)
            measure("50 newest", lambda: store.find(limit=50, columns=COLUMNS), 9)
            measure("50 newest of one experiment and status", lambda: store.find(["status=FAILED"], limit=50), 9)
            add_long_metric(database, 1_000_000)
            database.runs.insert_one({"_id": 0, "status": "COMPLETED", "config": {"lr": 1}})
            with runs.open_store(url) as mixed:
                measure("50 best, one run of stock Sacred among them", lambda: mixed.find(BEST, **PAGE), 9)
            database.runs.delete_one({"_id": 0})
            run = store.get(1)
            measure("1,000,000 points, downsampled to 2,000", lambda: run.metric("long", 2_000), 5)
        if more > count:
            report_more(database, url, count, more)


def report_more(database, url, count, more):
    """Add runs until there are `more`, and report what a page of them costs."""
    for name in ("summary.$**_1", "config.$**_1"):  # built at once in the end, in place of run by run
        database.runs.drop_index(name)
    fill(database, count + 1, more, with_metrics=False)
    make_run_indexes(Collections(database))
    with runs.open_store(url) as store:
        print(f"{more:,} runs")
        measure("50 newest", lambda: store.find(limit=50, columns=COLUMNS), 9)
        middle = database.runs.find_one({"_id": more // 2}, {"start_time": 1})["start_time"].isoformat()
        page = [("start_time", "<", middle)]
        measure("50 from the middle, newest first", lambda: store.find(page, limit=50, columns=COLUMNS), 9)
        measure("50 best by a metric under two conditions", lambda: store.find(BEST, **PAGE), 9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--more", type=int, default=200_000)
    arguments = parser.parse_args()
    print_heading()
    report(arguments.runs, arguments.more)


if __name__ == "__main__":
    main()
