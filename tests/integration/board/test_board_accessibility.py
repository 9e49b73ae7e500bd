"""Every page, in light and dark, on a desk and on a phone: readable by people and by screen readers."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.integration.board.test_workspace import assert_accessible

ORDINARY = ["/runs?where=lr%3C1&words=digits", "/runs/3?tab=overview"]
SLOW = [
    "/runs",
    "/runs?group=model.name",
    "/runs?where=nonsense",
    "/runs/77",
    *(f"/runs/3?tab={tab}" for tab in ("curves", "output", "media", "files", "environment")),
    "/runs/1?tab=files&kind=artifact&name=weights.txt",
    "/runs/1?tab=sources&name=layers.py",
    "/compare?run=1&run=2&tab=sources",
]
# The colours of these are those of the others.
IN_DARK = [*ORDINARY, "/runs/3?tab=curves", "/runs/3?tab=files"]


# Curves are drawn anew in the colours of the other scheme.
FORGET_DRAWN = """() => {
    const drawn = document.querySelectorAll("[data-drawn]");
    for (const plot of drawn) plot.removeAttribute("data-drawn");
    return drawn.length;
}"""
# How the page fits is asked when everything on it has taken the new width, as curves do in the next frame.
FITS = "() => document.documentElement.scrollWidth <= 360"


@pytest.mark.slow
@pytest.mark.parametrize("paths", [ORDINARY, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["ordinary", "slow"])
def test_pages_are_accessible_and_fit_a_phone(watched, serve, recorded, paths):
    browser = watched()
    page, axe, found = browser.page, Axe(), []
    for path in paths:
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(color_scheme="light")
        page.goto(serve(recorded) + path)
        if "curves" in path:
            page.wait_for_selector("[data-drawn]")
        for scheme in ("light", "dark") if path in IN_DARK else ("light",):
            if scheme == "dark":
                num_plots = page.evaluate(FORGET_DRAWN)
                page.emulate_media(color_scheme="dark")
                page.wait_for_function(f"() => document.querySelectorAll('[data-drawn]').length === {num_plots}")
            rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # the rest is the same
            violations = axe.run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
            found += [(path, scheme, one["id"], [node["html"][:200] for node in one["nodes"]]) for one in violations]
        page.set_viewport_size({"width": 360, "height": 740})
        # Tables scroll in themselves.
        page.wait_for_function(FITS, timeout=5_000)
    browser.errors[:] = [error for error in browser.errors if "404" not in error and "400" not in error]
    assert found == [], "\n".join(map(str, found))


@pytest.mark.slow
def test_pages_of_several_stores_and_open_forms_are_accessible_and_used_by_keys(watched, serve, own_store, recorded):
    browser = watched()
    page, base = browser.page, serve({"lab": own_store, "mine": str(recorded)})
    page.goto(f"{base}/s/lab/runs/1?tab=output")
    page.keyboard.press("e")
    page.keyboard.type("x" * 201)  # the field takes 200
    page.keyboard.press("Enter")
    page.wait_for_selector("#announce:text('name saved')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "new-tags"
    page.keyboard.type("no:tag")
    page.keyboard.press("Enter")
    page.wait_for_selector("#head-problem:has-text('expected letters')")
    page.focus(".stores summary")
    page.keyboard.press("Enter")
    page.wait_for_selector(".stores[open] a:text('mine')")
    assert_accessible(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/s/mine/**")
    page.goto(f"{base}/all?where=lr%3C1&column=lr")
    assert_accessible(page)
    page.keyboard.press("/")
    page.keyboard.type("lr<0.05")
    page.keyboard.press("Enter")
    page.wait_for_url("**/all?**lr%3C0.05**")
    assert page.locator("tbody tr").count() == 2
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function(FITS, timeout=5_000)
    page.goto(f"{base}/all?where=lr%3C%3C1")
    assert_accessible(page)
    browser.errors[:] = [error for error in browser.errors if "400" not in error]


@pytest.mark.slow
def test_pages_are_laid_out_for_the_width_of_a_phone(watched, serve, recorded):
    """Without a word of the page on its width, a phone would lay it out for a desk, and make it small."""
    page = watched(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True).page
    for path in ("/runs", "/runs/3?tab=overview"):
        page.goto(serve(recorded) + path)
        assert page.evaluate(FITS), path


@pytest.mark.slow
def test_everything_can_be_reached_by_the_keyboard_alone(watched, serve, recorded):
    page = watched().page
    page.goto(serve(recorded) + "/runs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/4")
    for number, tab in enumerate(("curves", "system", "output"), 2):
        page.keyboard.press(str(number))
        page.wait_for_url(f"**/runs/4?tab={tab}")
