"""Pages that are looked at while a process writes its run, into a folder or a database."""

import contextlib
import re
import sys
import uuid

import pymongo
import pytest

from sacristan.runs import open_store
from sacristan.runs.stores.small_documents import Report
from tests.integration.board.test_curves import query_of
from tests.integration.board.test_workspace import STYLES, drawn, ticks
from tests.processes import PIPE, Process

pytestmark = pytest.mark.slow
LIVING = """
import sys
from pathlib import Path
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver

where = sys.argv[1]
url, _, name = where.rpartition("/")
ex = Experiment("living", save_git_info=False, system_metrics_s=None)
ex.observers.append(MongoObserver(url, name, failure_dir="spool") if "://" in where else FileObserver(where))

@ex.config
def config():
    lr = 0.1

@ex.main
def main(_run):
    for step, line in enumerate(sys.stdin):
        for word in line.split():
            name, _, value = word.partition("=")
            if name == "model":
                Path("net.pt").write_text(str(step))
                _run.log_artifact("net", "net.pt", "model").alias(value)
            else:
                _run.log_scalar(name, float(value), step)
    return {"accuracy": 0.875}

ex.run()
"""
# A panel that is asked for before its metric is there is refused, and asked for again.
NOT_YET = re.compile("status of 409 .*/workspace/panel")
NUM_POINTS = """([panel, num]) => {
    const paths = [...document.querySelectorAll(`figure[data-panel="${panel}"] g[data-key="1"] path`)];
    return paths.map((one) => one.getAttribute("d").match(/[ML]/g).length).reduce((a, b) => a + b, 0) === num;
}"""


@pytest.fixture(params=["folder", "database"])
def living(request, tmp_path):
    """A store, and a function that lets the run that is written into it log numbers and models: `log("loss=1")`."""
    name = f"living_{uuid.uuid4().hex}"
    is_database = request.param == "database"
    where = f"{request.getfixturevalue('mongo_url')}/{name}" if is_database else str(tmp_path / "store")
    with open_store(where, create=True):
        pass
    (tmp_path / "living.py").write_text(LIVING)
    process = Process([sys.executable, str(tmp_path / "living.py"), where], cwd=tmp_path, stdin=PIPE, text=True)

    def log(*lines):
        for line in lines:
            process.stdin.write(f"{line}\n")
        process.stdin.flush()

    log.end = process.stdin.close
    with contextlib.closing(process):
        yield where, log
    if is_database:
        with pymongo.MongoClient(request.getfixturevalue("mongo_url")) as client:
            client.drop_database(name)


def test_what_was_chosen_of_the_workspace_stays_while_a_run_logs(living, watched, serve):
    where, log = living
    watch = watched(viewport={"width": 1200, "height": 1800})
    page = watch.page
    page.goto(f"{serve(where)}/runs?panel=loss&x=seen&ignore_outliers=1&legend=*")
    page.wait_for_selector("tr[data-run='1'] .status.running")
    page.wait_for_selector("figure[data-panel=loss] .notes.problem")
    log("loss=280 seen=0", *(f"loss={1 + step / 10} seen={step * 128}" for step in range(1, 10)))
    page.wait_for_function(NUM_POINTS, arg=["loss", 10])
    drawn(page)
    figure = page.locator("figure[data-panel=loss]")
    figure.hover()
    figure.locator("[data-range]").click()
    page.locator("#range-dialog [name=high]").fill("1.5")
    page.locator("#range-dialog button[value=set]").click()
    page.focus("tr[data-run='1'] th a")
    page.keyboard.press("p")
    page.fill("#colour-dialog input[type=color]", "#123456")
    page.click("#colour-dialog button[value=set]")
    page.wait_for_selector("tr[data-run='1'] [data-swatch][data-chosen='#123456']", state="attached")
    page.focus("figure[data-panel=loss] svg.lines")
    page.keyboard.press("End")
    spoken = figure.locator("[aria-live=polite]").text_content()
    assert spoken.endswith("1.9 at seen 1152")
    log(*(f"loss={1 + step / 10} seen={step * 128}" for step in range(10, 20)))
    page.wait_for_function(NUM_POINTS, arg=["loss", 20])
    assert figure.locator("[aria-live=polite]").text_content() == spoken
    assert page.evaluate("document.activeElement.closest('figure').dataset.panel") == "loss"
    assert float(ticks(page)[1][-1]) <= 1.5  # of values up to 2.9
    assert figure.locator(".lines .title").text_content() == "seen"
    assert page.evaluate(STYLES)["1"][0] == "rgb(18, 52, 86)"
    assert page.locator("#legend button").count() == 1
    assert (query_of(page, "y"), query_of(page, "ignore_outliers")) == (["..1.5 loss"], ["1"])
    page.keyboard.press("ArrowRight")
    assert figure.locator("[aria-live=polite]").text_content().endswith("2 at seen 1280")
    page.locator("#legend button").click()
    log("loss=1 seen=4000 other=1")
    page.wait_for_selector("figure[data-panel=other]")
    assert page.locator("figure[data-panel=loss] g[data-key]").count() == 0  # hidden as before
    watch.errors[:] = [error for error in watch.errors if not NOT_YET.search(error)]


def test_runs_that_live_are_named_and_end_in_sight(living, watched, serve):
    where, log = living
    log("loss=1")
    page = watched().page
    page.goto(f"{serve(where)}/runs")
    page.wait_for_selector("tr[data-run='1'] .status.running")
    page.check("tr[data-run='1'] input")
    page.keyboard.press("t")
    page.wait_for_selector("#tag-dialog li:text-is('1  living, running')")
    page.fill("#tags-add", "live")
    page.click("#tag-now")
    page.wait_for_selector("tr[data-run='1'] .tag:text('live')")
    log("loss=2")
    log.end()
    page.wait_for_selector("tr[data-run='1'] .status.completed")
    assert page.locator("tr[data-run='1'] .tag").inner_text() == "live"
    assert page.locator("#num-selected").inner_text() == "1 run selected"


def test_report_follows_a_run_that_logs(living, watched, serve):
    where, log = living
    watch = watched()
    page = watch.page
    page.goto(f"{serve(where)}/runs")
    page.wait_for_selector("tr[data-run='1']")
    text = 'Now {{value 1 loss.last}}.\n\n{{runs columns="loss.last, status"}}\n\n{{curves loss}}\n'
    with open_store(where) as store:
        report = store.reports.save(Report("Now", text, author="ann"))
    page.goto(f"{serve(where)}/reports/{report.id}")
    page.wait_for_selector("article p .problem:has-text('loss.last')")
    page.wait_for_selector("figure .notes.problem")
    log("loss=1", "loss=0.75")  # the first of the run
    page.wait_for_selector("article p a:text-is('0.75')")
    page.wait_for_function(NUM_POINTS, arg=["loss", 2])
    log("loss=0.5")
    page.wait_for_selector("article p a:text-is('0.5')")
    page.wait_for_selector("article td:text-is('0.5')")
    page.wait_for_function(NUM_POINTS, arg=["loss", 3])
    log.end()
    page.wait_for_selector("article td:has-text('COMPLETED')")
    watch.errors[:] = [error for error in watch.errors if not NOT_YET.search(error)]


def test_models_page_shows_what_a_run_logs(living, watched, serve):
    where, log = living
    page = watched().page
    page.goto(f"{serve(where)}/models")
    page.wait_for_selector("p.empty:has-text('No version of a model yet')")
    log("model=champion")
    row = page.locator("[data-live=models] tbody tr", has_text="net:v1")
    row.locator(".tag:text-is('champion')").wait_for()
    page.get_by_role("button", name="model", exact=True).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # upwards
    log("model=best")
    page.locator("[data-live=models] tbody tr", has_text="net:v2").locator(".tag:text-is('latest')").wait_for()
    names = page.locator("[data-live=models] tbody th").all_inner_texts()
    assert names == ["net:v1", "net:v2"]  # sorted as before
    assert page.evaluate("document.activeElement.textContent") == "model"
    log.end()
    page.wait_for_selector("[data-live=models] th:has-text('accuracy')")
    assert page.locator("[data-live=models] td:text-is('0.875')").count() == 2
    row.locator(".status.completed").wait_for()
    page.get_by_role("link", name="net:v1").click()
    page.wait_for_selector("#v1 [data-alias=champion]")
