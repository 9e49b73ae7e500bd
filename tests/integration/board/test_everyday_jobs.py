"""Everyday jobs take as many clicks as `docs/board.md` says."""

import re
from pathlib import Path

import pytest

from tests.integration.board.test_workspace import drawn

DOCS = Path(__file__).parents[3] / "docs" / "board.md"


class Clicks:
    """Does a job on a page, and counts clicks; typing a text with Enter counts as one, as does a key."""

    def __init__(self, page) -> None:
        self.page, self.count = page, 0

    def click(self, *places: str) -> None:
        for place in places:
            self.page.click(place)
            self.count += 1

    def type(self, place: str, text: str, *, ends_with_enter: bool = True) -> None:
        self.page.fill(place, text)
        if ends_with_enter:
            self.page.press(place, "Enter")
        self.count += 1

    def sees(self, place: str) -> None:
        self.page.wait_for_selector(place)


def only_runs_that_meet_a_condition(do):
    do.type("#find", "lr<0.05")
    do.sees("#shown:text-is('1–1')")


def means_over_seeds(do):
    do.type("#group", "lr")
    do.sees("tr[data-group]")


def how_two_runs_differ(do):
    do.click("tr[data-run='1'] input", "tr[data-run='2'] input", "#compare")
    do.sees("td:text-is('0.01')")


def tag_two_runs(do):
    do.click("tr[data-run='1'] input", "tr[data-run='2'] input", "#tag")
    do.type("#tags-add", "best", ends_with_enter=False)
    do.click("#tag-now")
    do.sees("tr[data-run='2'] .tag")


def delete_two_runs(do):
    do.click("tr[data-run='1'] input", "tr[data-run='3'] input", "#discard", "#discard-now")
    do.sees("tr[data-run='3']:not(:visible), #total:text-is('2')")


def restore_a_run(do):
    do.click("a:text-is('Trash')", "tbody tr:first-child input", "#trash button.main")
    do.sees("#announce:has-text('is back')")


def save_a_view(do):
    do.click("#show-views")
    do.type("#view-name", "mine")
    do.sees("#views-list a:text-is('mine')")


def write_a_report(do):
    do.click("#show-views", "#write-report")
    do.type("[name=title]", "Curves", ends_with_enter=False)
    do.click("#report-form button.main")
    do.sees("article.report figure[data-drawn]")


def save_a_report(do):
    do.click("nav a:text-is('Reports')", "th a:text-is('Curves')")
    with do.page.expect_download():
        do.click("a:text-is('Markdown')")


def hide_a_curve(do):
    do.click("tr[data-run='2'] button.eye")
    do.sees("tr[data-run='2'].unseen")


JOBS = {
    "only runs that meet a condition": only_runs_that_meet_a_condition,
    "means over seeds, for each learning rate": means_over_seeds,
    "how two runs differ": how_two_runs_differ,
    "hide the curve of one run": hide_a_curve,
    "save what you see as a view": save_a_view,
    "tag two runs": tag_two_runs,
    "write a report with these curves": write_a_report,
    "a report as a file for a paper": save_a_report,
    "delete two runs": delete_two_runs,
    "restore a deleted run": restore_a_run,
}


@pytest.mark.slow
def test_everyday_jobs_take_as_many_clicks_as_the_page_says(own_store, watched, serve):
    rows = re.findall(r"^\| ([^|]+?) \|[^|]*\|[^|]*\| (\d+) \|", DOCS.read_text(), re.MULTILINE)
    page = watched().page
    counted = {}
    for name, job in JOBS.items():
        page.goto(f"{serve(own_store)}/runs")
        page.evaluate("sessionStorage.clear()")  # which keeps the selection
        page.reload()
        drawn(page)
        do = Clicks(page)
        job(do)
        counted[name] = do.count
    assert counted == {name: int(count) for name, count in rows if name in JOBS}
