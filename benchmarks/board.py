"""What the board takes to show, in a real browser: lists, sorts, filters, curves, and its memory.

    python benchmarks/board.py [--runs 20000] [--folder FOLDER] [--omniboard]

Of a folder, and of a MongoDB with as many runs; `--omniboard` installs Omniboard by npm and shows the same database
with it. Of each the median and the worst of several times: from the click, or the address, to the rows or the curve on
the page. The folders are those of `query.py`; with `--folder` they are kept and used again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import pymongo
from playwright.sync_api import sync_playwright
from query import add_long_metric, generate
from query_data import long_metric
from query_mongo import add_long_metric as add_long_metric_there
from query_mongo import fill

from runs.mongod import Mongod

ROOT = Path(__file__).resolve().parent.parent
OMNIBOARD = "omniboard@2.16.1"
TIMES = 7
NUM_COMPARED = 200
POINTS = 1_000_000
# The points of a curve from the server, and drawn; plotly.js is on the page already.
DRAW = """async ([url]) => {
    const place = document.createElement("div");
    place.style.width = "800px";
    document.body.append(place);
    const before = performance.now();
    const found = await (await fetch(url)).json();
    await Plotly.newPlot(place, [{x: found.steps, y: found.values, mode: "lines"}], {width: 800, height: 300});
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const took = performance.now() - before;
    place.remove();
    return took / 1000;
}"""


@contextlib.contextmanager
def served(store):
    """Serve a store by the board; give its address and its process."""
    command = [sys.executable, "-m", "runs", "--store", store, "board", "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[0].rstrip("/"), psutil.Process(process.pid)
        finally:
            process.terminate()


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


def first_id(page):
    return page.locator("tbody th.id a").first.text_content()


def measure_board(browser, url, process, name):
    page = browser.new_page(viewport={"width": 1360, "height": 900})
    print(f"the board over {name}")

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
    show("/runs/1?tab=curves", "[data-drawn]")
    for what, more in (("  a curve of 1,000,000 points", ""), ("  1,000 points of it", "&from=500000&to=501000")):
        address = f"/series?run=1&metric=long&pixels=800{more}"
        report(what, [page.evaluate(DRAW, [address]) for _ in range(TIMES)])
    measure_in_browser("  the page with that curve", lambda: show("/runs/1?tab=curves", "[data-drawn]"))
    runs = "&".join(f"run={number}" for number in range(2, 2 + NUM_COMPARED))
    if page.goto(f"{url}/compare?{runs}").status == 200:
        measure_in_browser("  200 runs' curves compared", lambda: show(f"/compare?{runs}", "[data-ready]"), 3)
    print(f"  memory of the server: {process.memory_info().rss / 1e6:,.0f} MB", flush=True)
    page.close()


def add_short_metrics(folder, num_runs):
    """Give runs a metric of 1,000 points each, to compare."""
    points = long_metric(1_000)
    for number in range(2, num_runs + 2):
        if (run := folder / str(number)).is_dir() and not (run / "metrics.bin").exists():
            (run / "metrics.bin").write_bytes(points.tobytes())
            (run / "metrics.names.jsonl").write_text('{"id": 0, "name": "short"}\n')


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
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            print("Omniboard over the same database")

            def show():
                page.goto(url)
                page.get_by_text("COMPLETED").first.wait_for(timeout=120_000)

            measure_in_browser("  first rows", show, 3)
            print(f"  memory of its server: {psutil.Process(process.pid).memory_info().rss / 1e6:,.0f} MB", flush=True)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--omniboard", action="store_true")
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        generate(folder, arguments.runs)
        add_long_metric(folder / "1", POINTS)
        add_short_metrics(folder, NUM_COMPARED)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print(f"{'milliseconds':<52}{'median':>10}{'worst':>10}")
        with served(str(folder)) as (url, process):
            measure_board(browser, url, process, f"a folder of {arguments.runs:,} runs")
        mongod = stack.enter_context(Mongod(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "mongod"))
        with pymongo.MongoClient(mongod.url) as client:
            fill(client.board, 1, arguments.runs, with_metrics=True)
            add_long_metric_there(client.board, POINTS)
        with served(f"{mongod.url}/board") as (url, process):
            measure_board(browser, url, process, f"MongoDB with {arguments.runs:,} runs")
        if arguments.omniboard:
            measure_omniboard(browser, mongod.url, "board", Path(stack.enter_context(tempfile.TemporaryDirectory())))
        browser.close()


if __name__ == "__main__":
    main()
