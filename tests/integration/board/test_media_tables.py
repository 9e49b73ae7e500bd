"""Tables of media on the pages of a run and of a comparison, and the sliders of a page moved together."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Table, Text
from tests.integration.board.conftest import database_of

NAME = "test/<b>cases</b>"


@pytest.fixture(scope="module", params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def tables(request, tmp_path_factory):
    """Two runs with a table of 250 rows at three steps, and a text at two of them."""
    folder = tmp_path_factory.mktemp("tables")
    ex = Experiment("tables", base_dir=folder, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        scale = 1

    @ex.main
    def main(_run, scale):
        for step in range(3):
            rows = [[number, "<i>odd</i>" if number % 2 else "even", scale * number / 100] for number in range(250)]
            _run.log_media(NAME, Table(["n", "kind", "p"], rows), step)
        for step in (0, 2):
            _run.log_media("words", Text(f"words of {step}"), step)

    ex.observers.append(FileObserver(folder / "store"))
    ex.run()
    ex.run(config_updates={"scale": 2})
    if request.param == "folder":
        yield str(folder / "store")
    else:
        yield from database_of(folder / "store", request.getfixturevalue("mongo_url"))


def wait_for_cells(page, *texts, place=".medium-series >> nth=0"):
    """Wait until the first row of the table in a place begins with these cells."""
    row = page.locator(place).locator("tbody tr").first
    for number, text in enumerate(texts):
        row.locator(f"td:nth-child({number + 1}):text-is('{text}')").wait_for()


def test_table_is_found_sorted_grouped_and_paged_by_keyboard_and_in_the_url(watched, serve, tables):
    page = watched(viewport={"width": 1200, "height": 900}).page
    page.goto(f"{serve(tables)}/runs/1?tab=media")
    wait_for_cells(page, "0", "even")
    page.get_by_text("250 of 250 rows, page 1 of 3").wait_for()
    page.focus("[data-column='2']")
    page.keyboard.press("Enter")
    wait_for_cells(page, "249", "<i>odd</i>", "2.49")
    page.wait_for_function("() => document.activeElement.dataset.column === '2'")
    assert page.locator("th[aria-sort=descending]").inner_text() == "p"
    page.fill("[name=find]", "p<1, odd")
    page.keyboard.press("Enter")
    wait_for_cells(page, "99", "<i>odd</i>")
    page.get_by_text("50 of 250 rows").wait_for()
    page.goto(page.url)
    wait_for_cells(page, "99", "<i>odd</i>")
    assert page.input_value("[name=find]") == "p<1, odd"
    page.fill("[name=find]", "")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Next").click()
    wait_for_cells(page, "149")
    assert Axe().run(page).response["violations"] == []
    page.select_option("[name=group]", "kind")
    wait_for_cells(page, "even", "125", "124")
    page.get_by_text("2 groups").wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_tables_of_several_runs_show_the_same_rows(watched, serve, tables):
    page = watched().page
    page.goto(f"{serve(tables)}/compare?run=1&run=2&tab=media")
    second = ".medium >> nth=1"
    wait_for_cells(page, "0", "even", place=second)
    page.locator(".medium").first.locator("[data-column='0']").focus()
    page.keyboard.press("Enter")
    wait_for_cells(page, "249", "<i>odd</i>", "4.98", place=second)
    page.goto(page.url)
    wait_for_cells(page, "249", "<i>odd</i>", "4.98", place=second)
    assert Axe().run(page).response["violations"] == []


@pytest.mark.parametrize(
    "path", ["/runs/1?tab=media", pytest.param("/compare?run=1&run=2&tab=media", marks=pytest.mark.slow)]
)
def test_one_slider_moves_all_if_wanted(watched, serve, tables, path):
    page = watched().page
    page.goto(f"{serve(tables)}{path}")
    steps = page.locator(".slider output")
    sliders = page.locator(".slider input")
    sliders.nth(0).fill("1")
    assert steps.all_inner_texts() == ["1", "2"]
    page.check("#tied")
    assert "tied=1" in page.url
    sliders.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert steps.all_inner_texts() == ["1", "0"]  # the words have no step 1
    page.goto(page.url)
    page.get_by_text("words of 0").first.wait_for()
    assert steps.all_inner_texts() == ["1", "0"]
    assert page.is_checked("#tied")
    page.uncheck("#tied")
    sliders.nth(0).fill("0")
    assert "tied" not in page.url


def test_hostile_views_of_a_table_are_answered(client_of, tables):
    client = client_of(tables)
    for view in (
        {"page": "-1"},
        {"page": "9" * 30},
        {"sort": "-" * 500},
        {"find": "p<" * 500},
        {"group": "\0", "sort": "<b>"},
    ):
        answer = client.get("/medium", params={"run": "1", "number": "0", **view})
        assert answer.status_code == 200
        assert "<b>" not in answer.text
        assert "<i>" not in answer.text
        assert 'role="alert"' not in answer.text
