"""Times of the board in a real browser: lists, sorts, filters, curves; and its memory.

    python benchmarks/board.py [--runs 20000] [--folder FOLDER] [--only folder|mongo] [--omniboard] [--workspace]

Of a folder, and of a MongoDB with as many runs and the indexes that the observer makes; `--omniboard` installs
Omniboard by npm (with Node) and shows the same database with it. Of each the median and the worst of several times:
from the click, or the address, to the rows or the curve on the page; "the first time" is in a browser that has nothing
of the page yet. The folders are those of `query.py`; with `--folder` they are kept and used again.

`--workspace` measures the marks of the workspace alone (`board_workspace.py`): 50 runs with four panels of curves of
10,000 points, and the server's memory. `--only` leaves out the other kind of store.

The compared runs have two metrics of 1,000 points each in either store, so that a comparison draws 400 curves in two
panels; one of a single panel is measured beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pymongo
from board_workspace import LIMIT_S, add_panels, add_panels_there, measure_workspace
from playwright.sync_api import sync_playwright
from query import add_long_metric, generate
from query_data import METRICS
from query_mongo import add_long_metric as add_long_metric_there
from query_mongo import fill

from sacristan.observers.mongo.layout import Collections, make_run_indexes
from sacristan.observers.record.points import POINT
from sacristan.runs.work.mongod import Mongod

ROOT = Path(__file__).resolve().parent.parent
OMNIBOARD = "omniboard@2.16.1"
TIMES = 7
NUM_COMPARED = 200
COMPARED = METRICS[:2]
POINTS = 1_000_000


# The points of a curve from the server, and drawn; plotly.js is on the page already.
@contextlib.contextmanager
def served(store):
    """Serve a store by the board; give its address and its process."""
    command = [sys.executable, "-m", "sacristan", "--store", store, "board", "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            is_there = select.select([process.stdout], [], [], LIMIT_S)[0]
            line = process.stdout.readline() if is_there else ""
            if not line.startswith("http"):
                raise RuntimeError(f"the board said {line!r} within {LIMIT_S} s, expected its address")
            yield line.split()[0].rstrip("/"), psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def report(what, took):
    """Print median and worst of times in seconds."""
    print(f"{what:<52}{1e3 * statistics.median(took):>10,.0f}{1e3 * max(took):>10,.0f}", flush=True)


def measure_in_browser(what, action, times=TIMES, prepare=lambda: None):
    took = []
    for _ in range(times):
        prepare()
        before = time.perf_counter()
        action()
        took.append(time.perf_counter() - before)
    report(what, took)


def open_page(browser):
    page = browser.new_page(viewport={"width": 1360, "height": 900})
    page.set_default_timeout(120_000)
    return page


def measure_board(browser, url, process, name, num_runs, only_workspace):
    print(f"the board over {name}")
    measure_workspace(browser, url, report)
    if not only_workspace:
        measure_pages(browser, url, num_runs)
    print(f"  memory of the server, and at most: {memory(process)}", flush=True)


def measure_pages(browser, url, num_runs):
    page = open_page(browser)

    def show(path, wait="tbody th.id a"):
        page.goto(url + path)
        page.wait_for_selector(wait)

    measure_in_browser("  the first time, from a new server on", lambda: show("/runs"), 1)
    measure_in_browser("  first rows", lambda: show("/runs"))

    def click(selector):
        with page.expect_navigation():
            page.click(selector)
        page.wait_for_selector("tbody th.id a")

    sorts = "/runs?column=status&column=optimizer.lr&column=val/accuracy.max"
    measure_in_browser(
        "  sort by a metric, from the click on",
        lambda: click("th a[title='val/accuracy.max']"),
        prepare=lambda: show(sorts),
    )

    def find(text):
        page.fill("#find", text)
        with page.expect_navigation():
            page.press("#find", "Enter")
        page.wait_for_selector("tbody th.id a, .empty")

    measure_in_browser("  filter by a condition", lambda: find("optimizer.lr<1e-3"), prepare=lambda: show("/runs"))
    measure_in_browser("  search for words", lambda: find("adamw node3"), prepare=lambda: show("/runs"))
    measure_in_browser("  group by a setting", lambda: show("/runs?group=optimizer.name"), 3)
    measure_in_browser("  the last page", lambda: show("/runs?page=390", "tbody th.id a, .empty"), 3)
    measure_in_browser(
        "  the page of a run with a curve of 1,000,000 points", lambda: show("/runs/1?tab=curves", "[data-drawn]")
    )
    runs = "&".join(f"run={number}" for number in compared(num_runs))
    one = f"/runs?{runs}&column=id"
    fresh = open_page(browser)
    for when, where, times in (("the first time", fresh, 1), ("again", page, TIMES)):
        for how, path in (("without columns", one), ("with usual columns", f"/runs?{runs}")):
            what = f"  {len(compared(num_runs))} runs compared, {how}, {when}"
            measure_in_browser(what, lambda p=path, w=where: compare(w, url + p), times)
    fresh.close()
    page.close()


def memory(process):
    """Return what a process takes of the memory, and the most that it ever took, as Linux tells."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    kibibytes = (int(re.search(rf"{name}:\s*(\d+) kB", status)[1]) for name in ("VmRSS", "VmHWM"))
    return ", ".join(f"{1.024e-3 * one:,.0f} MB" for one in kibibytes)


def compare(page, url):
    """Show a comparison until all of its panels are drawn."""
    page.goto(url)
    page.wait_for_function(
        "() => { const all = [...document.querySelectorAll('figure.panel')];"
        " return all.length && all.every((one) => one.dataset.ready); }"
    )


def walk(number):
    """Return the 1,000 points of a metric of a run to compare."""
    return np.random.default_rng(number).standard_normal(1_000).cumsum()


def compared(num_runs):
    return range(2, min(num_runs, NUM_COMPARED + 1) + 1)


def add_compared_metrics(folder, num_runs):
    """Give the runs that are compared their metrics."""
    for number in compared(num_runs):
        points = np.zeros(1_000 * len(COMPARED), POINT)
        for index in range(len(COMPARED)):
            part = points[index :: len(COMPARED)]
            part["metric"], part["step"], part["value"] = index, np.arange(1_000), walk(number + index)
        (folder / str(number) / "metrics.bin").write_bytes(points.tobytes())
        names = "".join(json.dumps({"id": index, "name": name}) + "\n" for index, name in enumerate(COMPARED))
        (folder / str(number) / "metrics.names.jsonl").write_text(names)


def add_compared_metrics_there(database, num_runs):
    """Give them the same in the database."""
    for number in compared(num_runs):
        start = database.runs.find_one({"_id": number}, {"start_time": 1})["start_time"]
        for index, name in enumerate(COMPARED):
            series = {
                "steps": list(range(1_000)),
                "values": walk(number + index).tolist(),
                "timestamps": [start] * 1_000,
            }
            database.metrics.update_one({"run_id": number, "name": name}, {"$set": {**series, "count": 1_000}})


def measure_omniboard(browser, mongo_url, name, folder):
    """Show the same database with Omniboard, if npm can install it."""
    if shutil.which("npm") is None:
        print("Omniboard: there is no npm")
        return
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", OMNIBOARD]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        print("Omniboard: npm could not install it")
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    preload = ROOT / "tests" / "integration" / "omniboard.js"
    start = folder / "node_modules" / "omniboard" / "dist" / "start.js"
    environment = {**os.environ, "PORT": str(port)}
    node = ["node", "-r", str(preload), str(start), "--mu", f"{mongo_url}/{name}"]
    with subprocess.Popen(
        node, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url)
            page = open_page(browser)
            print("Omniboard over the same database")

            def show():
                page.goto(url)
                page.get_by_text("COMPLETED").first.wait_for(timeout=120_000)

            measure_in_browser("  first rows", show, 3)
            print(f"  memory of its server, and at most: {memory(process)}", flush=True)
        finally:
            process.terminate()


def wait_for(url, seconds=60.0):
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def measure_folder(browser, arguments, stack):
    folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
    generate(folder, arguments.runs)
    if not arguments.workspace:
        add_long_metric(folder / "1", POINTS)
        add_compared_metrics(folder, arguments.runs)
    add_panels(folder, arguments.runs)
    with served(str(folder)) as (url, process):
        name = f"a folder of {arguments.runs:,} runs"
        measure_board(browser, url, process, name, arguments.runs, arguments.workspace)


def measure_mongo(browser, arguments, stack):
    mongod = stack.enter_context(Mongod(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "mongod"))
    with pymongo.MongoClient(mongod.url) as client:
        fill(client.board, 1, arguments.runs, with_metrics=not arguments.workspace)
        make_run_indexes(Collections(client.board))
        if not arguments.workspace:
            add_long_metric_there(client.board, POINTS)
            add_compared_metrics_there(client.board, arguments.runs)
        add_panels_there(client.board, arguments.runs)
    with served(f"{mongod.url}/board") as (url, process):
        name = f"MongoDB with {arguments.runs:,} runs"
        measure_board(browser, url, process, name, arguments.runs, arguments.workspace)
    if arguments.omniboard:
        measure_omniboard(browser, mongod.url, "board", Path(stack.enter_context(tempfile.TemporaryDirectory())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", choices=("folder", "mongo"))
    parser.add_argument("--omniboard", action="store_true")
    parser.add_argument("--workspace", action="store_true")
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with contextlib.ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print(f"{'milliseconds':<52}{'median':>10}{'worst':>10}")
        if arguments.only != "mongo":
            measure_folder(browser, arguments, stack)
        if arguments.only != "folder":
            measure_mongo(browser, arguments, stack)
        browser.close()


if __name__ == "__main__":
    main()
