"""Colours, legends, ranges of y and readings of curves, by pointer, finger and keys."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from sacristan.observers.record.points import POINT
from sacristan.runs import copy, open_store
from tests.integration.board.test_workspace import (
    DRAWN_STYLES,
    STYLES,
    assert_accessible,
    drawn,
    ticks,
    wait_for_curves,
)

NUM = 14
# Twenty curves at most: how near two of them are, at worst, whose dashes are the same; and how many have dashes.
NEAREST = """async () => {
    const { assign, styleOf, distance } = await import("/static/colours.js");
    let [nearest, numDashed] = [Infinity, 0];
    for (let round = 0; round < 1000; round += 1) {
        const num = 2 + (round % 19);
        const keys = [...new Set(Array.from({ length: num }, () => String(Math.floor(Math.random() * 500))))];
        assign(keys, new Map(), `view ${Math.floor(round / 3)}`);
        const styles = keys.map(styleOf);
        if (keys.length <= 10 && round % 3 === 0) numDashed += styles.filter(({ dash }) => dash).length;
        for (const [at, one] of styles.entries()) {
            for (const other of styles.slice(0, at)) {
                if (one.dash === other.dash) nearest = Math.min(nearest, distance(one.color, other.color));
            }
        }
    }
    const known = [["#ff0000", "#00ff00"], ["#ffffff", "#000000"], ["#1f77b4", "#17becf"]];
    return [nearest, numDashed, known.map((pair) => distance(...pair))];
}"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Fourteen runs; the loss of each begins with 280, and two metrics have one point."""
    folder = tmp_path_factory.mktemp("many")
    steps = np.arange(40)
    for number in range(1, NUM + 1):
        run = folder / str(number)
        run.mkdir()
        document = {"uid": f"{number:032x}", "status": "COMPLETED", "start_time": f"2026-01-01T00:{number:02}:00"}
        (run / "run.json").write_text(json.dumps({"experiment": {"name": "e"}, "command": "main", **document}))
        (run / "config.json").write_text(json.dumps({"lr": 10.0**-number, "width": number, "kind": "ab"[number % 2]}))
        loss = 2 / (1 + 0.1 * steps) + number / 100
        loss[0] = 280
        points = np.zeros((len(steps), 2), POINT)
        points["metric"], points["step"] = np.arange(2), steps[:, None]
        points["value"] = np.stack([loss, steps * 128], axis=1)
        alone = np.zeros(1, POINT)
        alone["metric"], alone["step"], alone["value"] = 2, 39, number
        (run / "metrics.bin").write_bytes(points.tobytes() + alone.tobytes())
        names = ("train/loss", "seen", "test/accuracy")
        (run / "metrics.names.jsonl").write_text(
            "".join(json.dumps({"id": n, "name": name}) + "\n" for n, name in enumerate(names))
        )
    return folder


@pytest.fixture
def many_store(placed, many, tmp_path):
    """A copy of the runs that a test may change."""
    return placed(shutil.copytree(many, tmp_path / "store"))


def figure(page, name):
    """Return a panel that is drawn, in sight."""
    found = page.locator(f"figure[data-panel='{name}']")
    found.scroll_into_view_if_needed()
    found.locator("g[data-key]").first.wait_for(state="attached")
    return found


def query_of(page, name):
    return page.evaluate("(name) => new URLSearchParams(location.search).getAll(name)", name)


# ---------------------------------------------------------------------- colours


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_what_is_shown_together_are_told_apart(watched, serve, many, scheme):
    page = watched(color_scheme=scheme).page
    page.goto(f"{serve(many)}/runs")
    nearest, num_dashed, known = page.evaluate(NEAREST)
    assert nearest > 20
    assert num_dashed == 0
    assert known == pytest.approx([86.608, 100, 27.321], abs=0.01)


@pytest.mark.slow
def test_run_keeps_its_colour_while_others_come_and_go(many, many_store, watched, serve, tmp_path):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs")
    drawn(page)
    styles = page.evaluate(STYLES)
    assert len({tuple(style) for style in styles.values()}) == NUM
    assert sum(bool(dash) for _, dash in styles.values()) == NUM - 10
    curves = page.evaluate(DRAWN_STYLES, "train/loss")
    assert {key: style for key, style in curves.items() if key in styles} == styles
    page.click("button.eye[data-key-of='3']")
    page.focus("figure[data-panel='train/loss'] [data-range]")
    shutil.copytree(many / "1", tmp_path / "more" / "1")
    document = json.loads((many / "1" / "run.json").read_text())
    (tmp_path / "more" / "1" / "run.json").write_text(json.dumps({**document, "uid": "f" * 32}))
    with open_store(many_store) as store, open_store(tmp_path / "more") as more:
        copy(more.get("1"), store)
        page.wait_for_selector("tr[data-run='15']")
        assert page.evaluate("document.activeElement.closest('figure')?.dataset.panel") == "train/loss"
        store.discard([store.get("7")])
    page.wait_for_selector("tr[data-run='7']", state="detached")
    for _ in range(2):
        now = page.evaluate(STYLES)
        assert now.pop("15") not in now.values()
        assert now == {key: style for key, style in styles.items() if key != "7"}
        page.reload()
        drawn(page)
    # Of few runs none needs dashes.
    page.fill("#find", "width<4")
    page.press("#find", "Enter")
    page.wait_for_selector("tr[data-run='12']", state="detached")
    assert {dash for _, dash in page.evaluate(STYLES).values()} == {""}


def test_colour_that_people_choose_is_kept_with_the_run(many_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs/3")
    page.click("#choose-colour")
    page.locator("#colour-dialog[open]").wait_for()
    assert_accessible(page)
    page.fill("#colour-dialog input[type=color]", "#0c6198")  # nearly the first of the palette
    page.click("#colour-dialog button[value=set]")
    page.wait_for_selector("#announce:text('colour saved')")
    with open_store(many_store) as store:
        assert store.get("3").display_colour == "#0c6198"
        assert store.get("3").changes[-1]["what"] == "display colour: #0c6198"
    page.goto(f"{serve(many_store)}/runs?where=width<6")
    drawn(page)
    styles = page.evaluate(STYLES)
    assert styles.pop("3") == ["rgb(12, 97, 152)", ""]
    assert ["rgb(12, 97, 151)", ""] not in styles.values()  # too near
    page.focus("tr[data-run='3'] th a")
    page.keyboard.press("p")
    page.click("#colour-dialog button[value=none]")
    page.wait_for_function("() => !document.querySelector('tr[data-run=\"3\"] [data-swatch]').dataset.chosen")
    with open_store(many_store) as store:
        assert store.get("3").display_colour == ""


@pytest.mark.parametrize("group", ["", "width"])
def test_runs_and_groups_are_coloured_by_a_setting(many_store, watched, serve, group):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(many_store)}/runs?group={group}")
    drawn(page)
    page.fill("#settings input[name=colour]", "lr")
    page.press("#settings input[name=colour]", "Enter")
    page.wait_for_selector("#scale:visible:has-text('lr (log)')")
    assert query_of(page, "colour") == ["lr"]
    styles = page.evaluate(STYLES)
    keys = [f"width={number}" if group else str(number) for number in range(1, NUM + 1)]
    brightness = [sum(map(int, styles[key][0][4:-1].split(", "))) for key in keys]
    assert brightness == sorted(brightness, reverse=True)  # lr falls
    assert len(set(brightness)) == NUM
    assert page.evaluate(DRAWN_STYLES, "seen").items() <= styles.items()
    page.goto(f"{serve(many_store)}/runs?colour=nothing")
    assert "no run has a field" in page.locator("#finding p.problem").inner_text()
    watch.errors[:] = [error for error in watch.errors if "400" not in error]


@pytest.mark.slow
@pytest.mark.parametrize("group", ["", "width"])
def test_names_colour_runs_and_groups_as_well(many_store, watched, serve, group):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs?group={group}&colour=kind")
    drawn(page)
    styles = page.evaluate(STYLES)
    odd, even = (
        {tuple(styles[f"width={number}" if group else str(number)]) for number in range(first, NUM + 1, 2)}
        for first in (1, 2)
    )
    assert (len(odd), len(even), odd & even) == (1, 1, set())
    assert page.locator("#scale").is_hidden()


STYLES_OF_MANY = """async () => {
    const { assign, styleOf } = await import("/static/colours.js");
    const { showLegend } = await import("/static/legend.js");
    const list = document.createElement("ul");
    const show = (num) => {
        const entries = Array.from({ length: num }, (_, at) => ({ key: `k${at}`, label: `${at}` }));
        assign(entries.map(({ key }) => key));
        showLegend(list, entries, () => {});
        const styles = new Set(entries.map(({ key }) => JSON.stringify(styleOf(key))));
        return [styles.size, list.querySelector("li.dim")?.textContent];
    };
    return [show(250), show(260), show(9)];
}"""


@pytest.mark.slow
def test_more_curves_than_dashes_have_marks_and_the_legend_says_which_are_alike(tmp_path, placed, watched, serve):
    for number in range(1, 61):
        run = tmp_path / str(number)
        run.mkdir()
        (run / "run.json").write_text(json.dumps({"uid": f"{number:032x}", "status": "COMPLETED"}))
        (run / "config.json").write_text(json.dumps({"width": number}))
        points = np.zeros(9, POINT)
        points["step"], points["value"] = np.arange(9), number
        (run / "metrics.bin").write_bytes(points.tobytes())
        (run / "metrics.names.jsonl").write_text('{"id": 0, "name": "loss"}\n')
    page = watched().page
    page.goto(f"{serve(placed(tmp_path))}/runs?group=width&layout=charts&legend=*")
    drawn(page)
    assert page.locator("[data-panel=loss] g[data-key]").count() == 60
    assert page.locator("[data-panel=loss] g[data-key] path[d*='h6v6']").count() == 10
    assert page.locator("#legend .mark[d*='h6v6']").count() == 10
    assert page.locator("tr[data-group] .mark[d*='h6v6']").count() == 10
    assert page.evaluate(STYLES_OF_MANY) == [[250, None], [250, "260 curves share 250 styles"], [9, None]]


def test_legends_highlight_and_hide(many_store, watched, serve):
    page = watched(viewport={"width": 1200, "height": 2400}).page
    page.goto(f"{serve(many_store)}/runs?layout=charts&panel=train/loss, seen")
    drawn(page)
    page.keyboard.press("g")
    entries = page.locator("#legend button")
    entries.nth(NUM - 1).wait_for()
    assert entries.first.inner_text().startswith("run 14: ")
    page.locator("#legend [data-key-of='12']").hover()
    opacities = (
        "(key) => [...document.querySelectorAll('[data-panel=seen] g[data-key]')].map((one) => one.style.opacity)"
    )
    assert page.evaluate(opacities).count("") == 1
    page.locator("#legend [data-key-of='12']").click()
    wait_for_curves(page, "seen", NUM - 1)
    assert query_of(page, "hide") == ["12"]
    pinned = figure(page, "train/loss, seen")
    pinned.hover()
    pinned.locator("[data-own-legend]").click()
    # Metrics have dashes here, and runs of the same colour marks.
    assert pinned.locator(".legend span").all_inner_texts() == ["train/loss", "seen"]
    assert pinned.locator("g[data-key] path[stroke=none]").count() == 2 * (NUM - 10)
    assert query_of(page, "legend") == ["*", "train/loss, seen"]
    assert_accessible(page)
    page.reload()
    drawn(page)
    assert page.locator(".legend:visible").count() == 2
    assert page.locator("#legend [data-key-of='12']").get_attribute("aria-pressed") == "false"


@pytest.mark.slow
def test_legends_scales_and_dialogs_are_accessible_in_the_dark_and_on_a_phone(many_store, watched, serve):
    page = watched(viewport={"width": 390, "height": 844}, color_scheme="dark").page
    page.goto(f"{serve(many_store)}/runs?panel=train/loss, seen&legend=*&legend=train/loss, seen&colour=lr")
    figure(page, "train/loss, seen")
    page.wait_for_selector("#scale:visible")
    page.wait_for_selector("#legend button")
    assert_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.focus("figure[data-panel='train/loss, seen'] [data-range]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#range-dialog[open]")
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.focus("tr[data-run='2'] th a")
    page.keyboard.press("p")
    page.wait_for_selector("#colour-dialog[open]")
    assert_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---------------------------------------------------------------------- ranges


def test_range_of_y_is_set_kept_and_reset(many_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs?panel=train/loss")
    drawn(page)
    assert max(map(float, ticks(page)[1])) >= 200  # one loss flattens all
    page.check("#settings input[name=ignore_outliers]")
    assert max(map(float, ticks(page)[1])) < 3
    pinned = figure(page, "train/loss")
    pinned.hover()
    pinned.locator("[data-range]").click()
    dialog = page.locator("#range-dialog")
    dialog.get_by_label("from").fill("1")
    dialog.get_by_label("to").fill("0.5")
    dialog.get_by_role("button", name="Set", exact=True).click()
    assert dialog.is_visible()  # it says that the range has no room
    assert_accessible(page)
    dialog.get_by_label("to").fill("1.5")
    dialog.get_by_role("button", name="Set", exact=True).click()
    for _ in range(2):
        assert [float(one) for one in ticks(page)[1]] == [1.0, 1.2, 1.4]
        assert (query_of(page, "y"), query_of(page, "ignore_outliers")) == (["1..1.5 train/loss"], ["1"])
        page.reload()
        drawn(page)
    figure(page, "train/loss").hover()
    pinned.locator("[data-range]").click()
    dialog.get_by_role("button", name="Reset").click()
    assert query_of(page, "y") == []
    assert max(map(float, ticks(page)[1])) < 3
    page.uncheck("#settings input[name=ignore_outliers]")
    assert max(map(float, ticks(page)[1])) >= 200


@pytest.mark.slow
def test_saved_view_keeps_how_curves_are_drawn(many_store, watched, serve):
    page = watched().page
    query = "x=seen&y=0..1.5 train/loss&ignore_outliers=1&colour=lr&legend=*&legend=seen&hide=3"
    page.goto(f"{serve(many_store)}/runs?where=width<6&{query}")
    drawn(page)
    page.keyboard.press("w")
    page.fill("#view-name", "as it is")
    page.keyboard.press("Enter")
    page.click("#views-list a:text-is('as it is')")
    page.wait_for_url("**/runs?where=width%3C6&**")
    drawn(page)
    asked = {name: query_of(page, name) for name in ("x", "y", "ignore_outliers", "colour", "legend", "hide")}
    assert list(asked.values()) == [["seen"], ["0..1.5 train/loss"], ["1"], ["lr"], ["*", "seen"], ["3"]]
    assert page.locator("#settings input[name=ignore_outliers]").is_checked()
    assert page.locator("#scale").is_visible()
    assert page.locator("#legend button").count() == 5
    assert page.locator("[data-panel='train/loss'] g[data-key]").count() == 4
    assert page.locator("[data-panel='train/loss'] .lines .title").text_content() == "seen"
    texts = page.locator("[data-panel='train/loss'] .lines g[text-anchor=end] text:not([text-anchor])")
    assert max(map(float, texts.all_text_contents())) <= 1.5


def test_any_metric_of_the_page_is_chosen_as_axis(many_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs?panel=train/loss")
    drawn(page)
    page.focus("#settings select[name=x]")
    page.select_option("#settings select[name=x]", "seen")
    page.wait_for_function("() => document.querySelector('.lines .title').textContent === 'seen'")
    assert float(ticks(page)[0][-1]) > 1_000
    page.reload()
    drawn(page)
    assert page.input_value("#settings select[name=x]") == "seen"
    assert page.locator(".lines .title").first.text_content() == "seen"


def test_metric_of_one_point_is_drawn_as_dots(many_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs/3?tab=curves")
    drawn(page)
    dot = figure(page, "test/accuracy").locator("g[data-key] path")
    assert dot.count() == 1
    assert dot.get_attribute("stroke-linecap") == "round"


# ---------------------------------------------------------------------- reading


def apart(plot, reading):
    one, other = plot.bounding_box(), reading.bounding_box()
    return (
        one["x"] + one["width"] <= other["x"]
        or other["x"] + other["width"] <= one["x"]
        or one["y"] + one["height"] <= other["y"]
        or other["y"] + other["height"] <= one["y"]
    )


def test_pointer_reads_beside_the_plot(many_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs?where=width<4")
    drawn(page)
    plot = figure(page, "seen").locator("svg.lines")
    area = plot.bounding_box()
    for share in (0.3, 0.9):
        page.mouse.move(area["x"] + share * area["width"], area["y"] + area["height"] / 2)
        reading = page.locator(".readings:visible")
        assert reading.count() == 1
        assert apart(plot, reading)


def test_keys_read_points_and_zoom(many_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(many_store)}/runs?where=width<4&layout=charts&panel=seen")
    drawn(page)
    plot = page.locator("figure[data-panel=seen] svg.lines")
    page.locator("[data-section='/'] summary").focus()
    for _ in range(10):
        if not page.evaluate("document.activeElement.matches('svg.lines')"):
            page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('figure')?.dataset.panel") == "seen"
    spoken = page.locator("figure[data-panel=seen] [aria-live=polite]")

    def reads(key):
        page.keyboard.press(key)
        return spoken.text_content()

    assert [reads(key).partition(": ")[2].rpartition(": ")[2] for key in ("ArrowRight", "ArrowRight", "End")] == [
        "0 at step 0", "128 at step 1", "4992 at step 39",
    ]  # fmt: skip
    assert reads("ArrowRight").endswith("4992 at step 39")  # it is the last one
    with page.expect_response("**/list/rows**"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # the page looks now
    assert [reads(key).partition(":")[0] for key in ("ArrowDown", "ArrowUp", "ArrowUp")] == ["run 2", "run 3", "run 1"]
    assert page.locator(".readings:visible").count() == 1
    assert apart(plot, page.locator(".readings:visible"))
    assert_accessible(page)
    page.keyboard.press("+")
    page.wait_for_function("() => location.search.includes('zoom=')")
    low, high = map(float, query_of(page, "zoom")[0].split(".."))
    assert high - low == pytest.approx(39 / 2, abs=0.5)
    page.keyboard.press("-")
    page.wait_for_function("(was) => !location.search.includes(was)", arg=f"{low}..")
    page.keyboard.press("0")
    page.wait_for_function("() => !location.search.includes('zoom=')")
    page.keyboard.press("Escape")
    assert page.locator(".readings:visible").count() == 0


@pytest.fixture
def touched(watched):
    """A phone's page, and a function that sends what a finger does: `touch("touchStart", x, y)`."""
    page = watched(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True).page
    session = page.context.new_cdp_session(page)

    def touch(kind, *place):
        points = [{"x": place[0], "y": place[1]}] if place else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    with contextlib.closing(page):
        yield page, touch


def test_finger_reads_by_a_tap_and_while_it_is_held(many_store, touched, serve):
    page, touch = touched
    page.goto(f"{serve(many_store)}/runs?where=width<4&layout=charts")
    drawn(page)
    plot = figure(page, "seen").locator("svg.lines")
    area = plot.bounding_box()
    x, y = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2
    reading = page.locator(".readings:visible")
    page.touchscreen.tap(x, y)
    reading.wait_for()
    assert apart(plot, reading)
    figure(page, "seen").locator("span.title").tap()
    reading.wait_for(state="hidden")
    touch("touchStart", x, y)
    reading.wait_for()
    before = reading.inner_text()
    touch("touchMove", x + 60, y)
    page.wait_for_function("(was) => document.querySelector('.readings:not([hidden])').innerText !== was", arg=before)
    touch("touchEnd")
    assert query_of(page, "zoom") == []  # a finger that is moved at once zooms
    touch("touchStart", x, y)
    touch("touchMove", x + 40, y)
    touch("touchMove", x + 80, y)
    touch("touchEnd")
    page.wait_for_function("() => location.search.includes('zoom=')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
