"""Take the pictures of the board in this folder: `python docs/images/take_pictures.py` beside `exp.py`.

It shows the runs of `my_runs/`, which must be those of the tutorial and a segmentation, recorded in this order:

    python exp.py
    python exp.py with model.name=cnn lr=3e-3 epochs=1
    python exp.py sweep.run with epochs=5 sweep.over='{lr: [1e-4, 1e-3], seed: [0, 1, 2, 3, 4]}' \
        sweep.metric=val/accuracy.max sweep.goal=maximize sweep.id=lr
    python exp.py sweep.run with data.fast epochs=2 sweep.method=random sweep.count=10 sweep.metric=val/loss.min \
        sweep.over='{lr: {min: 1e-4, max: 1e-1, distribution: log_uniform_values}}' sweep.id=search
    sacristan segment with configs/segment.yaml epochs=4 data.options.num=200

It needs the extra `test`, and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from sacristan.runs import open_store
from sacristan.runs.stores.small_documents import Report

FOLDER = Path(__file__).parent
PARALLEL = "parallel(lr, val/loss.min, val/accuracy.max, result)"
CHARTS = ["scatter(lr, val/loss.min, result)", "histogram(result)", PARALLEL]
# Width and height of a picture, path of its page, and the words of the query.
PICTURES = {
    "board_runs": (1280, 720, "/runs", {"where": ["epochs>2", "name=exp"]}),
    "board_compare": (1280, 600, "/runs", {"where": "epochs=5", "group": "lr", "over": "seed"}),
    "board_charts": (1280, 1000, "/runs", {"where": "epochs=2", "layout": "charts", "panel": CHARTS, "wide": PARALLEL}),
    "board_run": (1200, 760, "/runs/1", {}),
    "board_curves": (1200, 640, "/runs/1", {"tab": "curves"}),
    "board_media": (1200, 760, "/runs/23", {"tab": "media"}),
    "board_sweep": (1200, 860, "/sweeps/search", {"brush.lr": "0.003..0.1"}),
    "board_report": (1200, 900, "/reports/", {}),
}
REPORT = """Which learning rate takes the network furthest in five epochs?

The best of all seeds reaches **{{value val/accuracy.max where="epochs=5" sort=-val/accuracy.max digits=3}}**:

{{curves val/accuracy where="epochs=5" group=lr over=seed band=range}}

{{runs where="epochs=5" sort=-val/accuracy.max columns="lr, seed, val/accuracy.max, duration" limit=6}}
"""
# Every plot in sight is drawn.
DRAWN = """() => [...document.querySelectorAll("figure.panel")].filter((figure) => {
    const place = figure.getBoundingClientRect();
    return place.width && place.top < innerHeight && place.bottom > 0;
}).every((figure) => figure.dataset.ready || figure.closest("#sweep")?.dataset.ready)"""


def main() -> None:
    """Start a board on `my_runs/`, and take all pictures, or those whose names are on the command line."""
    command = [sys.executable, "-m", "sacristan", "board", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as board, sync_playwright() as playwright:
        assert board.stdout is not None
        url = board.stdout.readline().split()[0].rstrip("/")
        with open_store("my_runs") as store:
            known = {report.title: report for report in store.reports.visible("")}
            report = known.get("Learning rates") or store.reports.save(Report("Learning rates", REPORT, author="ada"))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in sys.argv[1:] or PICTURES:
            width, height, path, query = PICTURES[name]
            page = browser.new_page(viewport={"width": width, "height": height})
            path += report.id if path == "/reports/" else ""
            take(page, f"{url}{path}?{urllib.parse.urlencode(query, doseq=True)}", FOLDER / f"{name}.png")
            page.close()
        browser.close()
        board.terminate()


def take(page: Page, address: str, file: Path) -> None:
    """Take a picture of what fits into the window.

    Args:
        page: The window.
        address: The URL.
        file: The picture.
    """
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_function(DRAWN)
    page.screenshot(path=file)


if __name__ == "__main__":
    main()
