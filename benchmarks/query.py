"""Cost of questions to 20,000 runs: of a folder, with its index, and of MongoDB (`query_mongo.py`).

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
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from query_data import BEST, COLUMNS, PAGE, config_of, long_metric, measure, print_heading, run_of, summary_of

from sacristan import runs
from sacristan.runs.query.filters import Question
from sacristan.runs.query.index import Index
from sacristan.runs.query.index.fields import decode, fields_of, read_documents

ROOT = Path(__file__).resolve().parent.parent
LIST = (
    "import sys; from sacristan.runs.query.filters import Question\n"
    "from sacristan.runs.query.index import Index\n"
    "with Index(sys.argv[1]) as index:\n"
    "    index.update()\n"
    f"    rows = index.answer(Question.of(sort='-start_time', limit=50, columns={COLUMNS}))\n"
    "assert len(rows) == 50"
)


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


def ask(index, sort="-val/accuracy.max", conditions=BEST):
    rows = index.answer(Question.of(conditions, sort, 50, COLUMNS))
    assert len(rows) == 50


def run_quietly(command):
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def add_long_metric(run, count):
    (run / "metrics.bin").write_bytes(long_metric(count).tobytes())
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
        print_heading()
        (folder / ".index.sqlite").unlink(missing_ok=True)
        with Index(folder) as index:
            measure("build, for a list of runs", index.update)
            measure("the first question about configs", lambda: index.has_field("config.lr"))
            measure("the first question about metrics", lambda: index.has_field("summary.train/loss.min"))
            measure("build with all fields", index.rebuild)
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
        listed = [sys.executable, "-m", "sacristan", "ls", "--store", str(folder), "--limit", "50"]
        measure("sacristan ls, 50 newest", lambda: run_quietly(listed), 5)
        measure("sacristan ls --json, all", lambda: run_quietly([*listed[:-2], "--json"]), 5)
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
            measure("the store: update, and 50 best by a metric", lambda: store.find(BEST, **PAGE), 9)
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
