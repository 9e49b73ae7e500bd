"""A page that refreshes keeps the focus, what is typed and selected, and a button that is being pressed."""

import json
import shutil

import pytest

from sacristan.runs import copy, open_store
from tests.integration.board.test_workspace import drawn

FOCUS = "() => { const one = document.activeElement; return one.getAttribute('aria-label') ?? one.textContent.trim(); }"
HIDDEN = "() => [...document.querySelectorAll('figure.panel[hidden]')].map(({ dataset }) => dataset.panel)"


def look_until(page, selector, text=""):
    """Make the page refresh, as when its tab becomes visible, until an element contains a text."""
    shown = "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)"
    look = "document.dispatchEvent(new Event('visibilitychange'))"
    page.wait_for_function(f"(asked) => ({shown})(asked) || void {look}", arg=[selector, text], polling=300)


@pytest.fixture
def renewed(own_store):
    """Change a run of the store, and wait until the page shows it: `renewed(page, "2", "tag")`."""

    def renew(page, run, tag):
        with open_store(own_store) as store:
            store.tag(store.get(run), [tag])
        look_until(page, f"tr[data-run='{run}']", tag)

    return renew


def test_rows_keep_what_is_done_in_them(own_store, renewed, watched, serve):
    page = watched().page
    page.goto(f"{serve(own_store)}/runs")
    drawn(page)
    renewed(page, "2", "first")
    page.check("tr[data-run='4'] input")
    page.focus("tr[data-run='4'] input")
    page.evaluate("() => getSelection().selectAllChildren(document.querySelector(\"tr[data-run='4'] .status\"))")
    marked = page.evaluate("getSelection().toString()")
    renewed(page, "2", "second")
    assert page.evaluate("getSelection().toString()") == marked != ""  # a row that is as before is not replaced
    assert page.evaluate(FOCUS) == "Select run 4"
    page.click("tr[data-run='2'] input", modifiers=["Shift"])
    assert page.locator("#num-selected").inner_text() == "3 runs selected"
    # A button that is pressed while the page asks is not replaced.
    eye = page.locator("tr[data-run='3'] button.eye")
    eye.hover()
    page.mouse.down()
    with open_store(own_store) as store:
        store.tag(store.get("3"), ["third"])
    with page.expect_response("**/list/rows**"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.mouse.up()
    assert eye.get_attribute("aria-pressed") == "false"
    look_until(page, "tr[data-run='3']", "third")
    # Who was at a run that is deleted is at the next.
    page.focus("tr[data-run='3'] th a")
    with open_store(own_store) as store:
        store.discard([store.get("3")])
    look_until(page, "#runs tbody:not(:has(tr[data-run='3']))")
    page.wait_for_function("() => document.activeElement.closest('tr')?.dataset.run === '2'")


@pytest.mark.slow
def test_panels_keep_what_is_done_in_them(recorded, own_store, renewed, watched, serve, tmp_path):
    page = watched().page
    page.goto(f"{serve(own_store)}/runs")
    drawn(page)
    page.fill("#settings .sieve", "loss")
    summary = page.locator(".section[data-section=train] summary")
    summary.focus()
    place = page.query_selector("#panels")
    renewed(page, "2", "first")
    assert place.evaluate("(one) => one.isConnected")  # nobody is disturbed who drags in a chart
    hidden = page.evaluate(HIDDEN)
    assert "val/accuracy" in hidden
    # A run with another metric brings another panel.
    shutil.copytree(recorded / "1", tmp_path / "more" / "1")
    folder = tmp_path / "more" / "1"
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "uid": "f" * 32}))
    names = folder / "metrics.names.jsonl"
    names.write_text(names.read_text().replace("val/accuracy", "val/other"))
    with open_store(own_store) as store, open_store(tmp_path / "more") as more:
        copy(more.get("1"), store)
    look_until(page, "figure[data-panel='val/other']")
    assert summary.evaluate("(one) => one === document.activeElement")
    assert sorted(page.evaluate(HIDDEN)) == sorted([*hidden, "val/other"])


@pytest.mark.slow
def test_text_typed_while_another_view_comes_stays(own_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(own_store)}/runs")
    drawn(page)
    held = []

    def hold(route):
        held.append(route)

    page.route("**/runs?*", hold)
    with page.expect_request("**/runs?*"):
        page.click("th a[title=lr]")
    page.click("#find")
    page.keyboard.type("model=cnn")
    page.keyboard.press("ArrowLeft")
    held[0].continue_()
    page.wait_for_selector("th[aria-sort] a[title=lr]")
    assert page.input_value("#find") == "model=cnn"
    page.keyboard.type("x")
    assert page.input_value("#find") == "model=cnxn"
