"""The marks of the board's workspace: 50 runs of many with four panels, an eye, a filter; see `board.py`."""

from __future__ import annotations

import json

import numpy as np

from sacristan.observers.record.points import POINT

__all__ = ["add_panels", "add_panels_there", "evaluate", "measure_workspace"]

POINTS, TIMES = 10_000, 7
# The longest wait for anything in a page.
LIMIT_S = 60
METRICS = ("val/accuracy", "val/loss", "train/accuracy", "train/loss")
# Runs that have these metrics: those of the first page, and of the page of `FILTER`.
NUM_WITH = 150
FILTER = "optimizer.name=AdamW"
# When the first and when all of the panels are drawn, in milliseconds since the page was asked for.
WATCH = """() => {
    const note = () => {
        const all = [...document.querySelectorAll("figure.panel")];
        const ready = all.filter((one) => one.dataset.ready).length;
        if (ready) window.first ??= performance.now();
        if (ready && ready === all.length) window.whole ??= performance.now();
    };
    new MutationObserver(note).observe(document, {subtree: true, childList: true, attributes: true});
}"""
DRAWN = "() => window.whole && [window.first, window.whole]"
# From the click on an eye to the frame in which its curves are gone from all panels. The eye is looked for at the last
# moment: the page replaces its rows when it looks for changes, and a click on an eye that is gone would do nothing.
EYE = """async () => {
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    await frame();
    const eye = [...document.querySelectorAll("tbody button.eye[aria-pressed=true]")].at(-1);
    const started = performance.now();
    eye.click();
    const left = () => document.querySelectorAll(`.lines g[data-key="${eye.dataset.keyOf}"]`).length;
    do await frame(); while (left());
    return [performance.now() - started];
}"""
# From the filter that is sent to its rows, and to their curves in all panels.
FIND = """async (text) => {
    const keys = () => [...document.querySelectorAll("tbody button.eye")].map((one) => one.dataset.keyOf).sort().join();
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const before = keys();
    document.getElementById("find").value = text;
    const started = performance.now();
    document.querySelector("#finding form").requestSubmit();
    while (keys() === before) await frame();
    const listed = performance.now() - started;
    const curves = (plot) => [...plot.querySelectorAll("g[data-key]")].map((one) => one.dataset.key).sort().join();
    const plots = () => [...document.querySelectorAll("figure.panel .plot")];
    while (!plots().every((one) => curves(one) === keys())) await frame();
    return [listed, performance.now() - started];
}"""


def add_panels(folder, num_runs):
    """Give the newest runs of a folder their metrics."""
    names = "".join(json.dumps({"id": index, "name": name}) + "\n" for index, name in enumerate(METRICS))
    for number in _runs_with(num_runs):
        points = np.zeros((POINTS, len(METRICS)), POINT)
        points["metric"], points["step"] = np.arange(len(METRICS)), np.arange(POINTS)[:, None]
        points["value"] = np.transpose([_walk(number, index) for index in range(len(METRICS))])
        (folder / str(number) / "metrics.bin").write_bytes(points.tobytes())
        (folder / str(number) / "metrics.names.jsonl").write_text(names)


def add_panels_there(database, num_runs):
    """Give them the same in a database."""
    database.metrics.delete_many({"run_id": {"$in": list(_runs_with(num_runs))}})
    for number in _runs_with(num_runs):
        start = database.runs.find_one({"_id": number}, {"start_time": 1})["start_time"]
        common = {"run_id": number, "steps": list(range(POINTS)), "timestamps": [start] * POINTS, "count": POINTS}
        database.metrics.insert_many(
            {**common, "name": name, "values": _walk(number, index).tolist()} for index, name in enumerate(METRICS)
        )


def _runs_with(num_runs):
    return range(max(1, num_runs - NUM_WITH + 1), num_runs + 1)


def _walk(number, index):
    return np.random.default_rng([number, index]).standard_normal(POINTS).cumsum()


def measure_workspace(browser, url, report):
    """Measure the marks of the workspace in a browser that has nothing of the page, and in one that has its scripts.

    Args:
        browser: The browser.
        url: Address of the board.
        report: Prints times in seconds under a name.
    """

    def tell(what, parts, took):
        for part, times in zip(parts, zip(*took, strict=True), strict=True):
            report(f"  {what}: {part}", [1e-3 * one for one in times])

    first = []
    for _ in range(3):
        with browser.new_context(viewport={"width": 1360, "height": 900}) as context:
            first.append(_open(_watched(context), url))
    tell("the first time", ("first panel", "four panels"), first)
    with browser.new_context(viewport={"width": 1360, "height": 900}) as context:
        page = _watched(context)
        _open(page, url)
        tell("again", ("first panel", "four panels"), [_open(page, url) for _ in range(TIMES)])
        tell("an eye", ("four panels drawn",), [evaluate(page, EYE) for _ in range(TIMES)])
        found = []
        for _ in range(TIMES):
            _open(page, url)
            found.append(evaluate(page, FIND, FILTER))
        tell("a filter", ("rows", "four panels"), found)


def evaluate(page, script, argument=None):
    """Run a function of a page, which may wait, and return its result; Playwright itself would wait for ever.

    Args:
        page: The page.
        script: The function.
        argument: Its argument.

    Raises:
        playwright.sync_api.Error: If it takes longer than `LIMIT_S`; the message has the state of the page.
    """
    limited = f"""(argument) => Promise.race([({script})(argument), new Promise((_, failed) => setTimeout(() => {{
        const notes = [...document.querySelectorAll("#outage, .problem, .notes")].map((one) => one.textContent);
        const state = `${{document.visibilityState}}, ${{document.querySelectorAll("dialog[open]").length}} dialogs`;
        failed(new Error(`no result within {LIMIT_S} s at ${{location.pathname}} (${{state}}): ${{notes.join("; ")}}`));
    }}, {1000 * LIMIT_S}))])"""
    return page.evaluate(limited, argument)


def _watched(context):
    page = context.new_page()
    page.set_default_timeout(1e3 * LIMIT_S)
    page.add_init_script(f"({WATCH})()")
    return page


def _open(page, url):
    """Open the workspace; return when its first and when all of its panels are drawn, in milliseconds."""
    page.goto(f"{url}/runs")
    return page.wait_for_function(DRAWN).json_value()
