"""The page of one run."""

import contextlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sacristan.experiments import Experiment
from sacristan.observers import Audio, FileObserver, Histogram, Html, Image, Media, PointCloud, Table, Text, Video
from sacristan.observers.record.media_files import Content
from sacristan.observers.record.points import POINT
from sacristan.runs import copy, open_store
from tests.integration.board.test_workspace import drawn, panel
from tests.processes import PIPE, Process

TABS = ("overview", "curves", "system", "output", "media", "files", "sources", "environment")


MP4 = b"\0\0\0\x18ftypisom" + bytes(16)
POINTS = np.arange(30, dtype=np.float32).reshape(10, 3)
COLORS = np.arange(30, dtype=np.uint8).reshape(10, 3)
# Numbers of the media of the run.
TONE, HTML, EPISODE, FILE, SCAN, PLAIN, HOLOGRAM = 6, 7, 8, 9, 10, 12, 13


class Hologram(Media):
    """A kind that the board does not know."""

    kind = "hologram"

    def encode(self):
        return Content(b"\0", ".bin", "application/x-hologram", {"caption": "odd"})


@pytest.fixture(scope="module")
def rich(tmp_path_factory, mongo_url):
    """A run with all that a run can hold, in a folder and in a database."""
    folder = tmp_path_factory.mktemp("rich")
    ex = Experiment("rich", base_dir=folder, save_git_info=False)

    @ex.main
    def main(_run):
        picture = np.zeros((4, 6))
        for step in range(3):
            _run.log({"picture": Image(picture + step / 4, caption=f"at {step}")}, step)
        _run.log({"weights": Histogram(np.arange(100.0)), "words": Text("# <b>é</b>")}, 2)
        rows = [[Image(picture), "cat", 0.5], [Image(picture), "dog", 1]]
        _run.log({"cases": Table(["image", "label", "p"], rows)}, 2)
        _run.log({"tone": Audio(np.linspace(-1, 1, 8000), 4000, "a <tone>"), "html": Html("<p>the <b>cat</b></p>")}, 2)
        _run.log({"episode": Video(np.linspace(0, 1, 96).reshape(4, 4, 6), 5), "mp4": Video.from_file(MP4)}, 2)
        for step in range(2):
            _run.log_media("scan", PointCloud(POINTS[step:], COLORS[step:]), step)
        _run.log({"plain": PointCloud(POINTS), "hologram": Hologram()}, 2)
        files = {
            "page.html": "<h1>page</h1><script>parent.document.title = 'run'</script>",
            "table.csv": "name,value\n<b>,2\n",
            "data.json": '{"a": [1, 2]}',
            "notes.txt": "é" * 10,
            "bytes.bin": "\0\1",
            "drawing.svg": "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        }
        for name, text in files.items():
            (folder / name).write_text(text)
            ex.add_artifact(folder / name)

    ex.observers.append(FileObserver(folder / "store"))
    ex.run()
    lines = "".join(f"line {number}: {'x' * 60}\n" for number in range(6000))
    (folder / "store" / "1" / "cout.txt").write_text(lines)
    name = f"rich_{folder.name}_{id(folder)}"
    with open_store(folder / "store") as source, open_store(f"{mongo_url}/{name}") as target:
        copy(source.get("1"), target)
        yield {"folder": str(folder / "store"), "database": f"{mongo_url}/{name}"}
        target.backend.mongo.database.client.drop_database(name)


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def kept(request, rich):
    return rich[request.param]


# Overview


@pytest.mark.parametrize("tab", TABS)
def test_every_part_of_a_run_is_shown(client_of, store, tab):
    answer = client_of(store).get("/runs/1", params={"tab": tab})
    assert answer.status_code == 200
    assert 'role="alert"' not in answer.text
    assert re.findall(r'aria-current="page">([^<]*)</a>', answer.text) == [tab]


def test_overview_tells_what_was_set_and_what_came_out(client_of, store):
    text = client_of(store).get("/runs/2").text
    assert re.search(r'class="changed"><th scope="row">lr .*?</th><td class="mono">0.01<', text)
    assert not re.search(r'class="changed"><th scope="row">model.name', text)
    assert "{&#34;accuracy&#34;: 0.99}" in text
    assert "val/accuracy" in text
    assert {"started", "ended", "took", "uid", "by", "on", "command"} <= set(
        re.findall(r'scope="row">(\w+)</th>', text)
    )
    failed = client_of(store).get("/runs/3").text
    assert "RuntimeError: no luck" in failed


def test_commands_start_the_run_again(client_of, recorded):
    text = client_of(recorded).get("/runs/3").text
    for command in ("reproduce 3", "resume 3", "fork 3 with lr=1e-4"):
        assert f"sacristan --store {recorded} {command}" in text


def test_parents_and_children_lead_to_each_other(client_of, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    with open_store(store) as runs:
        uid = runs.get("1").uid
    path = store / "2" / "run.json"
    document = json.loads(path.read_text())
    verdict = {"verdict": "IDENTICAL", "mode": "restored", "of": uid, "of_id": "1", "by": document["uid"], "by_id": "2"}
    document |= {"parent": uid, "reproductions": [verdict]}
    document["meta"]["sweep"] = {"id": "first", "trial": 3}
    path.write_text(json.dumps(document))
    client = client_of(store)
    text = client.get("/runs/2").text
    assert '<a href="/runs/1">run 1</a>' in text
    assert f'<td>IDENTICAL</td><td>of <a href="/runs/{uid}">run 1</a></td>' in text
    assert '<a href="/sweeps/first">first</a>, trial 3' in text
    assert client.get(f"/runs/{uid}").status_code == 200
    assert '<a href="/runs/2">run 2</a>' in client.get("/runs/1").text


def test_run_that_is_not_there_is_told(client_of, store):
    answer = client_of(store).get("/runs/77", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "there is no run &#39;77&#39;" in answer.text


def test_damaged_run_is_shown_as_far_as_it_can_be(client_of, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    (store / "1" / "config.json").write_text("{")
    client = client_of(store)
    text = client.get("/runs/1").text
    assert "config.json is not JSON" in text
    assert "val/accuracy" in text
    assert "cannot be read completely" in client.get("/runs").text


# Curves


@pytest.mark.parametrize("count", [1_000, 100_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("weight", [0.6, 0.99])
def test_smoothed_curve_is_that_of_all_points_in_whatever_part_is_shown(client_of, tmp_path, count, weight):
    random = np.random.default_rng(count)
    points = np.zeros(count, POINT)
    points["step"] = np.arange(count) * 2
    points["value"] = random.standard_normal(count) + np.where(random.random(count) < 0.01, 400, 0)  # spikes
    points["value"][[3, count // 2]] = np.nan
    folder = tmp_path / "store" / "1"
    folder.mkdir(parents=True)
    (folder / "metrics.bin").write_bytes(points.tobytes())
    (folder / "metrics.names.jsonl").write_text('{"id": 0, "name": "spiky"}\n')
    (folder / "run.json").write_text(json.dumps({"uid": "0" * 32, "status": "COMPLETED", "format": "sacristan-1"}))
    average, norm, expected = 0.0, 0.0, []
    for value in points["value"].tolist():  # the formula as it stands in the literature
        if value == value:
            average, norm = weight * average + (1 - weight) * value, weight * norm + (1 - weight)
        expected.append(average / norm if value == value else math.nan)
    client = client_of(folder.parent)

    def curve(**query):
        return panel(client, "spiky", run="1", **query)[1]["curves"][0]

    for part in ({}, {"from": count * 1.5, "to": count * 1.6}):
        found = curve(smoothing=weight, **part)
        assert found["y"] == pytest.approx([expected[int(step) // 2] for step in found["x"]], nan_ok=True)
    shown = [value for value in curve(smoothing=weight)["y"] if value == value]
    known = [value for value in expected if value == value]
    assert (min(shown), max(shown), shown[-1]) == pytest.approx((min(known), max(known), known[-1]))
    assert "raw" not in curve()


# Output


def test_long_output_is_shown_from_its_end_on(client_of, kept):
    client = client_of(kept)
    last = client.get("/runs/1?tab=output").text
    assert "line 5999" in last
    assert "line 0:" not in last
    link = re.search(r'<a href="([^"]+)">Show earlier output', last)[1].replace("&amp;", "&")
    assert "line 0:" in client.get(link).text


def test_output_is_sent_as_whole_lines_and_the_one_that_is_written(client_of, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    (store / "1" / "cout.txt").write_text("one\n\x1b[31mtwo\x1b[0m\n10%\r20%")
    client = client_of(store)
    found = client.get("/output", params={"run": "1", "from": "4"}).json()
    assert found == {"lines": '<span class="fg-red">two</span>\n', "line": "20%", "next": 17, "over": True}
    assert client.get("/output", params={"run": "1", "from": "17"}).json()["line"] == "20%"


# Media and files


def test_media_are_shown_by_step(client_of, kept):
    client = client_of(kept)
    text = client.get("/runs/1?tab=media").text
    assert "[[0, &#34;0&#34;], [1, &#34;1&#34;], [2, &#34;2&#34;]]" in text
    shown = [client.get("/medium", params={"run": "1", "number": number}).text for number in range(6)]
    assert 'alt="at 1"' in shown[1]
    assert shown[3].count("<rect") > 5
    assert "# &lt;b&gt;é&lt;/b&gt;" in shown[4]
    assert shown[5].count('<img class="cell') == 2
    for source in re.findall('src="([^"]+)"', shown[5] + shown[1]):
        answer = client.get(source.replace("&amp;", "&"))
        assert answer.headers["content-type"] == "image/png"
        assert answer.content.startswith(b"\x89PNG")
    assert client.get("/medium", params={"run": "1", "number": "99"}).status_code == 404


@pytest.mark.parametrize(
    ("number", "shown", "mime"),
    [
        (TONE, '<audio controls preload="metadata" aria-label="a &lt;tone&gt;"', "audio/wav"),
        (HTML, '<iframe class="preview" sandbox title="html"', "text/html; charset=utf-8"),
        (EPISODE, '<img class="preview pixels" data-moves', "image/png"),
        (FILE, '<video class="preview" controls', "video/mp4"),
        (SCAN, 'aria-label="Point cloud scan, 10 points;', "application/octet-stream"),
        (HOLOGRAM, "There is no preview of this kind", "application/octet-stream"),
    ],
)
def test_each_kind_of_media_is_shown_and_can_be_downloaded(client_of, kept, number, shown, mime):
    client = client_of(kept)
    text = client.get("/medium", params={"run": "1", "number": number}).text
    assert shown in text
    assert "download=1" in text
    answer = client.get("/content", params={"run": "1", "kind": "media", "name": number})
    assert answer.headers["content-type"] == mime
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    with open_store(kept) as store:
        assert answer.content == store.get("1").media[number].content.read()


def test_points_are_sent_by_axis_and_decimated(client_of, kept, monkeypatch):
    client = client_of(kept)

    def points(number):
        answer = client.get("/medium/points", params={"run": "1", "number": number})
        return np.frombuffer(answer.content, np.float32), answer

    assert points(PLAIN)[0].tolist() == POINTS.T.ravel().tolist()
    monkeypatch.setattr("sacristan.runs.board.media_page._MAX_POINTS", 4)
    assert "10 points, one in 3 is drawn" in client.get("/medium", params={"run": "1", "number": SCAN}).text
    content = points(SCAN)[1].content
    assert np.frombuffer(content[:48], np.float32).tolist() == POINTS[::3].T.ravel().tolist()
    assert list(content[48:]) == COLORS[::3].ravel().tolist()
    monkeypatch.setattr("sacristan.runs.board.media_page._MAX_CLOUD", 9)
    answer = client.get("/medium/points", params={"run": "1", "number": SCAN})
    assert (answer.status_code, "has 10 points, and a page takes 9; download it" in answer.text) == (409, True)
    answer = client.get("/medium/points", params={"run": "1", "number": TONE})
    assert (answer.status_code, "this is not a point cloud: got data that begin" in answer.text) == (409, True)


@pytest.mark.parametrize(
    ("asked", "status", "part", "found"),
    [
        ("bytes=0-", 206, slice(0, None), "bytes 0-16043/16044"),
        ("bytes=4-7", 206, slice(4, 8), "bytes 4-7/16044"),
        ("bytes=16000-99999", 206, slice(16000, None), "bytes 16000-16043/16044"),
        ("bytes=-4", 206, slice(-4, None), "bytes 16040-16043/16044"),
        ("bytes=16044-", 416, slice(0, 0), "bytes */16044"),
        ("bytes=9-4", 416, slice(0, 0), "bytes */16044"),
        ("bytes=1-2,5-6", 200, slice(None), None),
        ("bytes=-", 200, slice(None), None),
        ("lines=1-2", 200, slice(None), None),
    ],
)
def test_part_of_a_file_is_sent_where_a_player_asks_for_it(client_of, kept, asked, status, part, found):
    headers = {"range": asked, "accept-encoding": "identity"}
    params = {"run": "1", "kind": "media", "name": TONE}
    answer = client_of(kept).get("/content", params=params, headers=headers)
    with open_store(kept) as store:
        data = store.get("1").media[TONE].content.read()
    assert (answer.status_code, answer.content) == (status, data[part])
    assert answer.headers.get("content-range") == found
    assert answer.headers["accept-ranges"] == "bytes"
    packed = client_of(kept).get("/content", params=params, headers={"range": asked, "accept-encoding": "gzip"})
    assert (packed.status_code, packed.content) == (200, data)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("table.csv", "<td>&lt;b&gt;</td>"),
        ("data.json", "{\n  &#34;a&#34;: [\n    1,"),
        ("notes.txt", "é" * 10),
        ("bytes.bin", "There is no preview"),
        ("page.html", "<iframe"),
        ("drawing.svg", "<iframe"),
    ],
)
def test_artifacts_have_a_preview_and_can_be_downloaded(client_of, kept, name, shown):
    client = client_of(kept)
    text = client.get("/runs/1", params={"tab": "files", "kind": "artifact", "name": name}).text
    assert shown in text
    answer = client.get("/content", params={"run": "1", "kind": "artifact", "name": name, "download": "1"})
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{name}"
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    with open_store(kept) as store:
        assert answer.content == store.get("1").artifacts[name].read()


def test_only_what_browsers_show_without_running_it_is_no_download(client_of, kept):
    client = client_of(kept)
    kinds = {}
    for name in ("page.html", "drawing.svg", "notes.txt", "data.json"):
        answer = client.get("/content", params={"run": "1", "kind": "artifact", "name": name})
        kinds[name] = answer.headers["content-type"].partition(";")[0], "content-disposition" in answer.headers
    assert kinds == {
        "page.html": ("text/html", False),
        "drawing.svg": ("image/svg+xml", False),
        "notes.txt": ("application/octet-stream", True),
        "data.json": ("application/octet-stream", True),
    }


@pytest.mark.parametrize("name", ["../run.json", "/etc/passwd", "..%2frun.json", "none"])
@pytest.mark.parametrize("kind", ["artifact", "source", "resource", "checkpoint", "media", "none"])
def test_only_files_that_the_record_names_are_sent(client_of, recorded, kind, name):
    answer = client_of(recorded).get("/content", params={"run": "1", "kind": kind, "name": name})
    assert answer.status_code == 404


# In the browser


@pytest.mark.slow
def test_curves_of_a_run_are_panels_in_sections(watched, serve, store):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(store)}/runs/1?tab=curves&zoom=9.5..12.5&x=time&y=..0.05 train/loss")
    drawn(page)
    assert page.eval_on_selector_all(".section", "all => all.map((one) => one.dataset.section)") == ["val", "train"]
    assert page.locator("figure [data-arrange]").count() == 0
    page.locator("select[name=x]").select_option("step")
    page.locator("input[name=log_y]").check()
    page.locator("input[name=smoothing]").fill("0.9")
    page.wait_for_selector("[data-panel='train/loss'] g[data-key] path:nth-of-type(2)", state="attached")
    assert page.url.endswith("?tab=curves&y=..0.05+train%2Floss&log_y=1&smoothing=0.9")
    page.goto(page.url)
    drawn(page)
    assert page.locator("input[name=log_y]").is_checked()
    assert page.locator("figure[data-panel='train/loss'] g[data-key] path").count() == 2
    page.fill(".sieve", "accuracy")
    assert page.locator(".section:visible").evaluate_all("all => all.map((one) => one.dataset.section)") == ["val"]
    page.goto(f"{serve(store)}/runs/1?tab=system")
    drawn(page)
    assert page.locator("figure[data-panel='system/cpu'] g[data-key]").count() == 1
    assert page.eval_on_selector_all(".section", "all => all.map((one) => one.dataset.section)") == ["system"]
    assert [url for url in watch.requests if "plotly" in url] == []


# The ticks of a histogram from its bottom and its left on, and whether each is in sight.
TICKS = """(svg) => ["down", "across"].map((side) => [...svg.querySelectorAll(`.${side} text`)].map((one) => {
    const [box, text] = [svg.getBoundingClientRect(), one.getBoundingClientRect()];
    const isInside = text.left >= box.left - 1 && text.right <= box.right + 1 && text.top >= box.top - 1;
    return [Number(one.textContent), isInside && text.bottom <= box.bottom + 1];
}))"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_axes_and_counts_of_a_histogram_are_in_sight(watched, serve, kept, width):
    page = watched(viewport={"width": width, "height": 900}).page
    page.goto(f"{serve(kept)}/runs/1?tab=media")
    weights = page.locator(".medium-series", has=page.locator("h2", has_text="weights"))
    weights.scroll_into_view_if_needed()
    weights.locator("svg.histogram rect").first.wait_for(state="attached")
    for ticks in weights.locator("svg.histogram").first.evaluate(TICKS):
        values = [value for value, _ in ticks]
        assert len(values) >= 3
        assert values == sorted(set(values))
        assert all(is_inside for _, is_inside in ticks)
    titles = weights.locator("svg.histogram rect title").all_text_contents()
    assert sum(int(title.rpartition(": ")[2]) for title in titles) == 100


@pytest.mark.slow
def test_slider_chooses_the_step_of_a_medium(watched, serve, rich):
    page = watched().page
    page.goto(f"{serve(rich['folder'])}/runs/1?tab=media")
    page.wait_for_selector("img[alt='at 2']")
    page.locator("input[type=range]").first.press("ArrowLeft")
    page.wait_for_selector("img[alt='at 1']")
    assert page.url.endswith("?tab=media&step.picture=1")
    page.goto(page.url)
    page.wait_for_selector("img[alt='at 1']")
    assert page.locator(".slider output").first.text_content() == "1"


@pytest.mark.slow
def test_sounds_videos_points_and_html_are_played_drawn_and_stopped(watched, serve, rich):
    from axe_playwright_python.sync_playwright import Axe

    page = watched(bypass_csp=True, reduced_motion="reduce").page
    page.goto(f"{serve(rich['folder'])}/runs/1?tab=media")
    scan = page.locator(".medium-series", has=page.locator("h2", has_text="scan"))
    # What is above it may still grow and move it out of sight, where nothing is drawn.
    page.wait_for_function(
        """one => {
            one.scrollIntoView({ block: "nearest" });
            return one.querySelector(".points[data-drawn='9'] canvas");
        }""",
        arg=scan.element_handle(),
    )
    eye = "one => one.layout.scene.camera.eye.x"
    before = scan.locator(".points").evaluate(eye)
    scan.locator(".points").press("ArrowLeft")
    page.wait_for_function(
        "([one, before]) => one.layout.scene.camera.eye.x !== before",
        arg=[scan.locator(".points").element_handle(), before],
    )
    turned = scan.locator(".points").evaluate(eye)
    scan.locator("input[type=range]").press("ArrowLeft")
    scan.locator(".points[data-drawn='10'] canvas").first.wait_for()
    assert scan.locator(".points").evaluate(eye) == turned
    assert scan.locator(".points").evaluate("one => one.data[0].marker.color[1]") == "rgb(3,4,5)"
    with page.expect_download() as download:
        scan.locator("[data-title='Save as CSV']").dispatch_event("click")
    assert download.value.suggested_filename == "scan.csv"
    assert Path(download.value.path()).read_text().splitlines()[:2] == ["x,y,z,red,green,blue", "0,1,2,0,1,2"]
    weights = page.locator(".medium-series", has=page.locator("h2", has_text="weights"))
    weights.scroll_into_view_if_needed()
    saved = {}
    for kind in ("png", "svg", "csv"):
        with page.expect_download() as download:
            weights.locator(f"[data-save={kind}]").click()
        assert download.value.suggested_filename == f"weights.{kind}"
        saved[kind] = Path(download.value.path()).read_bytes()
    assert saved["png"].startswith(b"\x89PNG")
    assert b">count</text>" in saved["svg"]
    head, first, *rows = saved["csv"].decode().splitlines()
    assert (head, first, len(rows)) == ("from,to,count", "0,1.546875,2", 63)
    episode = page.locator(".medium-series", has=page.locator("h2", has_text="episode"))
    episode.scroll_into_view_if_needed()
    episode.locator("button", has_text="Play").click()
    episode.locator("img[data-moves]").wait_for()
    episode.locator("button", has_text="Stop").click()
    assert episode.locator("canvas.preview").get_attribute("width") == "6"
    tone = page.locator("audio")
    tone.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('audio').readyState > 0")
    assert tone.evaluate("one => one.duration") == 2
    tone.evaluate("one => { one.currentTime = 1.5 }")
    page.wait_for_function(
        "() => { const one = document.querySelector('audio'); return !one.seeking && one.currentTime === 1.5 }"
    )
    page.frame_locator("iframe").locator("b", has_text="cat").wait_for()
    results = Axe().run(page, options={"resultTypes": ["violations"]})
    assert [(one["id"], one["nodes"]) for one in results.response["violations"]] == []


def test_page_of_a_run_is_framed_without_its_scripts(watched, serve, rich):
    browser = watched()
    browser.page.goto(f"{serve(rich['folder'])}/runs/1?tab=files&kind=artifact&name=page.html")
    browser.page.frame_locator("iframe").locator("h1", has_text="page").wait_for()
    assert "run 1" in browser.page.title().lower()
    # That its script was blocked is said on the console.
    assert all("sandboxed" in error for error in browser.errors)
    browser.errors.clear()


def test_note_is_written_and_table_is_searched(watched, serve, own_store):
    page = watched().page
    page.goto(f"{serve(own_store)}/runs/1")
    page.fill("#note", "good <b>")
    page.click("#note-form button")
    page.wait_for_selector("#note-state:text('note written')")
    page.fill("[data-sieve=config]", "lr")
    assert page.locator("#config tbody tr:visible").count() == 1
    page.fill("[data-sieve=config]", "")
    set_by_nobody = page.locator("#config details tbody tr")
    assert set_by_nobody.locator("visible=true").count() == set_by_nobody.count() > 1  # the search has opened them
    page.reload()
    assert set_by_nobody.locator("visible=true").count() == 0
    page.click("#config summary:has-text('at their defaults')")
    assert set_by_nobody.locator("visible=true").count() == set_by_nobody.count()
    with open_store(own_store) as runs:
        assert runs.get("1").note == "good <b>"


def test_name_and_tags_are_written_by_keys(watched, serve, own_store):
    browser = watched()
    page = browser.page
    with open_store(own_store) as runs:
        runs.tag(runs.get("1"), ["old"])
    page.goto(f"{serve(own_store)}/runs/1?tab=output")
    page.keyboard.press("e")
    page.keyboard.type("wider <b>")
    page.keyboard.press("Escape")
    assert page.input_value("#display-name") == ""
    page.keyboard.press("e")
    page.keyboard.type("wider <b>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#announce:text('name saved')")
    page.fill("#new-tags", "best, paper-1")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tag:has-text('paper-1')")
    assert page.input_value("#new-tags") == ""
    page.click("[aria-label='Remove the tag old']")
    page.wait_for_selector(".tag:has-text('old')", state="detached")
    assert page.evaluate("document.activeElement.id") == "new-tags"
    page.keyboard.type("no:tag")
    page.keyboard.press("Enter")
    page.wait_for_selector("#head-problem:has-text('expected letters')")
    browser.errors[:] = [error for error in browser.errors if "400" not in error]
    page.goto(f"{serve(own_store)}/runs")
    assert "wider <b>" in page.locator("tr[data-run='1']").inner_text()
    with open_store(own_store) as runs:
        assert (runs.get("1").display_name, runs.get("1").tags) == ("wider <b>", ["best", "paper-1"])


@pytest.mark.slow
def test_second_of_two_who_write_a_note_is_told_of_the_first(watched, serve, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    first, second, third = (watched(), watched(), watched())
    for one in (first, second, third):
        one.page.goto(f"{serve(store)}/runs/1")
    second.page.fill("#note", "of the second")
    first.page.fill("#note", "of the first\r\nin two lines")
    first.page.click("#note-form button")
    first.page.wait_for_selector("#note-state:text('note written')")
    third.page.wait_for_function("() => document.getElementById('note').value === 'of the first\\nin two lines'")
    second.page.click("#note-form button")
    second.page.wait_for_selector("#note-state:has-text('has changed')")
    assert second.page.locator("#note-theirs").inner_text() == "of the first\nin two lines"
    assert second.page.input_value("#note") == "of the second"
    with open_store(store) as runs:
        assert runs.get("1").note == "of the first\nin two lines"
    second.page.fill("#note", "of both")
    second.page.click("#note-form button")
    second.page.wait_for_selector("#note-state:text('note written')")
    assert second.page.locator("#note-theirs").is_hidden()
    with open_store(store) as runs:
        assert runs.get("1").note == "of both"
    second.errors[:] = [error for error in second.errors if "409" not in error]


# Whether the curve of a panel has so many points: those of its line, or a dot.
NUM_POINTS = """([panel, num]) => {
    const paths = [...document.querySelectorAll(`figure[data-panel="${panel}"] g[data-key] path`)];
    return paths.map((one) => one.getAttribute("d").match(/[ML]/g).length).reduce((a, b) => a + b, 0) === num;
}"""
LIVING = """
import sys
from pathlib import Path
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Text
ex = Experiment("living", save_git_info=False)
ex.observers.append(FileObserver("store"))

@ex.automain
def main(_run):
    print("begin")
    for step, line in enumerate(sys.stdin):
        print("got", line.strip())
        _run.log_scalar("train/loss", step, step)
        for name in line.split()[1:]:
            _run.log_scalar(name, step, step)
            _run.log_media(name, Text(f"{name} at {step}"), step)
            Path(name).write_text(f"{name} at {step}")
            _run.add_artifact(name)
"""


@pytest.mark.slow
def test_output_and_curves_come_while_the_run_is_written(watched, serve, tmp_path):
    script = tmp_path / "living.py"
    script.write_text(LIVING)
    (tmp_path / "store").mkdir()
    process = Process([sys.executable, str(script)], cwd=tmp_path, stdin=PIPE, text=True)
    with contextlib.closing(process):
        browser = watched()
        page = browser.page
        page.goto(serve(tmp_path / "store"))
        page.wait_for_selector("tr[data-run='1'] .status.running")
        page.click("tr[data-run='1'] th a")
        page.wait_for_url("**/runs/1")
        assert page.locator(".command code").first.inner_text() == f"cd {tmp_path} && python {script}"
        page.keyboard.press("4")
        page.wait_for_selector("#output:has-text('begin')")
        process.stdin.write("first\n")
        process.stdin.flush()
        page.wait_for_selector("#output:has-text('got first')")
        page.keyboard.press("2")
        page.wait_for_url("**tab=curves")
        page.wait_for_function(NUM_POINTS, arg=["train/loss", 1])
        process.stdin.write("second\n")
        process.stdin.flush()
        page.wait_for_function(NUM_POINTS, arg=["train/loss", 2])
        # The store goes away and comes back: what is drawn stays, and goes on.
        (tmp_path / "store").rename(tmp_path / "away")
        page.wait_for_selector("#outage:has-text('This may be out of date: there is no folder')")
        assert page.locator("figure g[data-key] path").count()
        (tmp_path / "away").rename(tmp_path / "store")
        process.stdin.write("third\n")
        process.stdin.flush()
        page.wait_for_function(NUM_POINTS, arg=["train/loss", 3])
        page.wait_for_selector("#outage:empty", state="attached")
        browser.errors[:] = [error for error in browser.errors if "503" not in error]
        process.stdin.close()
        page.goto(f"{serve(tmp_path / 'store')}/runs")
        page.wait_for_selector("tr[data-run='1'] .status.completed")


@pytest.mark.slow
def test_open_pages_follow_the_run(watched, serve, tmp_path):
    script = tmp_path / "living.py"
    script.write_text(LIVING)
    (tmp_path / "store").mkdir()
    process = Process([sys.executable, str(script)], cwd=tmp_path, stdin=PIPE, text=True)
    with contextlib.closing(process):

        def log(text):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()

        address = f"{serve(tmp_path / 'store')}/runs"
        first = watched().page
        first.goto(address)
        first.wait_for_selector("tr[data-run='1'] .status.running")
        tabs = ("overview", "curves", "media", "files", "files&kind=artifact&name=one.txt", "output", "sources")
        pages = {}
        for tab in tabs:
            if "one.txt" in tab:
                log("first one.txt")
                pages["files"].wait_for_selector(".side .name:text-is('one.txt')")
            pages[tab] = watched().page
            pages[tab].goto(f"{address}/1?tab={tab}")
            pages[tab].wait_for_selector(".run-head .status.running")
        overview, curves, media, files, file = [pages[tab] for tab in tabs[:5]]
        overview.fill("#note", "being written")
        overview.wait_for_selector("[data-live=metrics] th:has-text('one.txt')")
        curves.wait_for_selector("figure[data-panel='one.txt'] g[data-key] path", state="attached")
        media.wait_for_selector("pre:text-is('one.txt at 0')")
        file.wait_for_selector("pre:text-is('one.txt at 0')")
        curves.fill(".sieve", "two")
        log("second one.txt two.txt")
        curves.wait_for_selector("figure[data-panel='two.txt'] g[data-key] path", state="attached")
        assert curves.locator("figure.panel:visible").count() == 1
        names = [one.get_attribute("data-panel") for one in curves.locator("figure.panel").all()]
        assert names == ["one.txt", "two.txt", "train/loss"]
        media.wait_for_selector("pre:text-is('one.txt at 1')")
        media.wait_for_selector("pre:text-is('two.txt at 1')")
        # A step that was chosen stays.
        slider = media.locator(".medium-series[data-name='one.txt'] input")
        slider.press("ArrowLeft")
        media.wait_for_selector("pre:text-is('one.txt at 0')")
        file.wait_for_selector("pre:text-is('one.txt at 1')")
        files.wait_for_selector(".side .name:text-is('two.txt')")
        log("third one.txt two.txt")
        media.wait_for_selector("pre:text-is('two.txt at 2')")
        media.wait_for_selector(".medium-series[data-name='one.txt'] input[max='2']")
        assert media.locator("pre:text-is('one.txt at 0')").count() == 1
        with open_store(tmp_path / "store") as store:
            store.tag(store.get("1"), ["best"])
        process.stdin.close()
        for page in pages.values():
            page.wait_for_selector(".run-head .status.completed")
            page.wait_for_selector(".run-head .tag:text-is('best')")
        overview.wait_for_selector("[data-live=facts] th:text-is('ended')")
        assert overview.input_value("#note") == "being written"
