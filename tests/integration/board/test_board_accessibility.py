"""Every page, in light and dark, on a desk and on a phone: readable by people and by screen readers."""

import pytest
from axe_playwright_python.sync_playwright import Axe

PATHS = [
    "/runs",
    "/runs?where=lr%3C1&words=digits",
    "/runs?group=model.name",
    "/runs?where=nonsense",
    "/runs/77",
    *(f"/runs/3?tab={tab}" for tab in ("overview", "curves", "output", "media", "files", "sources", "environment")),
    "/runs/1?tab=files&kind=artifact&name=weights.txt",
]
# The colours of these are those of the others.
IN_DARK = ["/runs?where=lr%3C1", "/runs/3", "/runs/3?tab=curves", "/runs/1?tab=files"]


@pytest.fixture(scope="module")
def axe():
    return Axe()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(watched, serve, recorded, axe, scheme):
    browser = watched(color_scheme=scheme, viewport={"width": 1280, "height": 800}, bypass_csp=True)
    page, found = browser.page, []
    for path in PATHS if scheme == "light" else IN_DARK:
        page.goto(serve(recorded) + path)
        if "curves" in path:
            page.wait_for_selector("[data-drawn]")
        rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # the rest is the same
        results = axe.run(page, options={"resultTypes": ["violations"], **rules})
        found += [
            (path, one["id"], [node["html"][:200] for node in one["nodes"]]) for one in results.response["violations"]
        ]
    browser.errors[:] = [error for error in browser.errors if "404" not in error and "400" not in error]
    assert found == [], "\n".join(map(str, found))


def test_pages_fit_a_phone(watched, serve, recorded):
    browser = watched(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    for path in PATHS:
        browser.page.goto(serve(recorded) + path)
        # Tables scroll in themselves.
        assert browser.page.evaluate("document.documentElement.scrollWidth") <= 360, path
    browser.errors[:] = [error for error in browser.errors if "404" not in error and "400" not in error]


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
