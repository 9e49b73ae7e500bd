"""Runs that were crafted to harm whoever looks at them: nothing of them runs, hangs, or leads out of the store."""

import csv
import importlib.util
import re
from pathlib import Path
from urllib.parse import unquote

import pymongo
import pytest
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.runs import copy, open_store
from sacristan.runs.board.serving import create_app

spec = importlib.util.spec_from_file_location("hostile", Path(__file__).with_name("hostile.py"))
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)

TABS = ("overview", "curves", "system", "output", "media", "files", "sources", "environment")
NUM_RUNS = 30
CHARTS = (f"scatter({hostile.SCRIPT}, loss)", f"parallel(lr, {hostile.SCRIPT})", hostile.SCRIPT)
# What a page may say of a run at most; a browser takes more, but nobody reads it.
MAX_PAGE = 3_000_000


@pytest.fixture(scope="module")
def hostile_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    assert hostile.write_hostile_runs(folder / "store") == NUM_RUNS
    return folder / "store"


@pytest.fixture(scope="module")
def hostile_client(hostile_store):
    with TestClient(create_app(lambda: open_store(hostile_store)), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def hostile_database(mongo_url):
    """A database with hostile documents, as anybody can write there."""
    name = "hostile_board"
    text = hostile.SCRIPT
    files = hostile.with_script_everywhere()
    runs = [
        {**files["run.json"], "config": files["config.json"], "info": files["info.json"], "captured_out": text,
         "summary": {text: {"last": text}}, "tags": {text: True}, "note": text, "display_name": text,
         "provenance": files["provenance.json"], "changes": files["notes.json"]["changes"],
         "artifacts_logged": files["run.json"]["artifacts_logged"],
         "sources": [], "artifacts": [{"name": text, "file_id": text}], "resources": [[text, "x"]]},
        {"status": 7, "config": "x", "info": [1], "summary": [1], "artifacts": "x", "resources": {"a": 1}},
        {"status": "RUNNING", "lease": {"pid": text}, "heartbeat": "x", "captured_out": 7, "captured_out_file": "x"},
        {"status": None, "experiment": [], "host": [], "meta": "x", "tags": [1], "note": {}, "provenance": [], "uid": 3}
    ]  # fmt: skip
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database(name)
        client[name].runs.insert_many([{"_id": number, **run} for number, run in enumerate(runs, 1)])
        media = {"run_id": 1, "number": 0, "name": text, "kind": "html", "content_type": "text/html", "meta": text}
        client[name].media.insert_one({**media, "file": text, "file_id": text, "step": text})
        client[name].metrics.insert_one(
            {"run_id": 1, "name": text, "steps": [text], "values": [text], "timestamps": []}
        )
        yield f"{mongo_url}/{name}"
        client.drop_database(name)


def links(text):
    """Return the addresses of this server that a page leads to, and what it loads."""
    found = re.findall(r'(?:href|src|data-watch)="(/[^"]*)"', text)
    return {link.replace("&amp;", "&").replace("&#39;", "'").partition("#")[0] for link in found}


def check(text):
    """Nothing that a run wrote is an element or an attribute of the page, and no link of it leads elsewhere."""
    assert len(text) < MAX_PAGE
    # Values of attributes hold no `<`, `>` and `"`, as those are escaped.
    tags = {re.sub('"[^"]*"', '""', tag) for tag in re.findall("<[a-zA-Z][^>]*>", text)}
    for tag in tags:
        assert not re.search(r"[\s\"'/](on\w+|style|srcdoc|http-equiv)\s*=", tag), tag
        assert not re.match("<(base|object|embed|style)", tag), tag
        assert not tag.startswith("<img") or 'src=""' in tag, tag
        assert not tag.startswith("<iframe") or " sandbox " in tag, tag
    assert all(link.startswith("/static/") for link in re.findall('<script[^>]* src="([^"]*)"', text))
    assert text.count("<script") == len(re.findall('<script[^>]* src="', text))
    for link in set(re.findall('[\\s"](?:href|src|action|formaction|data)="([^"]*)"', text)):
        assert re.match("/(?!/)|#", link), link


@pytest.mark.parametrize(
    "number",
    [number if number == 1 else pytest.param(number, marks=pytest.mark.slow) for number in range(1, NUM_RUNS + 1)],
)
def test_pages_of_hostile_runs_load_and_escape_everything(hostile_client, number):
    client = hostile_client
    assert client.get("/workspace/points", params={"run": str(number), "panel": "loss"}).status_code in (200, 409)
    for tab in TABS:
        answer = client.get(f"/runs/{number}", params={"tab": tab})
        assert answer.status_code in (200, 409), (tab, answer.text[:300])
        check(answer.text)
        if tab not in ("media", "files", "sources"):
            continue
        for link in [one for one in links(answer.text) if "name=" in one][:20]:
            other = client.get(link)
            assert other.status_code < 500, link
            if other.headers["content-type"].startswith("text/html") and not link.startswith("/content"):
                check(other.text)
        for media in range(22 if tab == "media" else 0):
            other = client.get("/medium", params={"run": str(number), "number": str(media)})
            assert other.status_code < 500
            check(other.text)
            other = client.get("/medium/points", params={"run": str(number), "number": str(media)})
            assert other.status_code in (200, 404, 409)


@pytest.mark.slow
def test_list_of_hostile_runs_loads_however_it_is_asked_for(hostile_client):
    client = hostile_client
    text = hostile.SCRIPT
    for query in (
        {},
        {"group": "status"},
        {"group": text},
        {"sort": text},
        {"sort": "-result"},
        {"words": text},
        {"where": f"name={text!r}"},
        {"where": [text] * 100},
        {"column": [text] * 100},
        {"column": ["config", "info", "provenance", "host", "meta", "experiment", "fail_trace", "summary"]},
        {"add": f"{text}=1"},
        {"words": "x" * 50_000},
        {"where": "name~(a+)+" + "a" * 5_000},
        {"page": "-1", "size": "1000000"},
    ):
        answer = client.get("/runs", params=query)
        assert answer.status_code in (200, 400), query
        check(answer.text)
    assert client.get("/list/fields").status_code == 200
    for chart in (
        f"scatter(result, `{text}`, lr)",
        f"scatter(start, status, `{text}`)",
        "parallel(huge, long, name, tags, loss.max, result)",
        "importances(result)",
        f"histogram(`{text}`)",
        f"scatter({text * 100})",
    ):
        for group in ("", "status"):
            answer = client.get("/workspace/panel", params={"panel": chart, "group": group})
            assert answer.status_code in (200, 400, 409), (chart, answer.text[:300])


@pytest.mark.slow
def test_nothing_outside_of_the_store_is_sent(hostile_client):
    client = hostile_client
    names = ["../1/run.json", "/etc/passwd", "..", ".", "", "a\0b", "run.json/x", "link", "folder", "pipe"]
    secret = Path("/etc/passwd").read_text()[:20]
    for number in (1, 17, 18, 19, 20, 27):
        for kind in ("artifact", "source", "resource", "checkpoint", "media"):
            for name in [*names, "a", "b", "a.py", "0", "1", "2"]:
                answer = client.get("/content", params={"run": str(number), "kind": kind, "name": name})
                assert answer.status_code < 500, (number, kind, name)
                assert secret not in answer.text


@pytest.mark.parametrize("id", ["..", "../1", "%2e%2e", "/etc", ".", "1/../2", "_sources", "1%00", "a" * 5_000])
def test_ids_cannot_leave_the_store(hostile_client, id):
    assert hostile_client.get(f"/runs/{id}").status_code in (200, 404, 409)
    for path in ("/workspace/panel", "/output", "/medium", "/content"):
        answer = hostile_client.get(path, params={"run": unquote(id), "panel": "loss"})
        assert answer.status_code in (404, 409)


@pytest.mark.slow
def test_pages_over_a_hostile_database_load_and_escape_everything(client_of, hostile_database):
    client = client_of(hostile_database)
    for query in ({}, {"group": "name"}, {"words": "script"}, {"sort": "duration"}):
        answer = client.get("/runs", params=query)
        assert answer.status_code == 200
        check(answer.text)
    for number in range(1, 5):
        for tab in TABS:
            answer = client.get(f"/runs/{number}", params={"tab": tab})
            assert answer.status_code in (200, 409), (number, tab, answer.text[:300])
            check(answer.text)
        for path in ("/medium", "/output"):
            assert client.get(path, params={"run": number, "number": "0"}).status_code < 500


def test_hostile_names_are_in_the_lineage_the_alerts_and_the_views_as_text(hostile_client, hostile_database, client_of):
    script = hostile.SCRIPT
    for client in (hostile_client, client_of(hostile_database)):
        text = client.get("/runs/1").text
        check(text)
        lineage = text[text.index('id="lineage-title"') :]
        assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in lineage[: lineage.index("</svg>")]
        alerts = text[text.index('id="alerts-title"') :]
        assert alerts.count("&lt;script&gt;") >= 2
        for chart in (f"scatter({script}, loss)", script, f"parallel(lr, {script}", "importances(<b>x</b>, lr)"):
            answer = client.get("/runs", params={"panel": chart, "brush.<script>": script, "eye": script})
            assert answer.status_code in (200, 400)
            check(answer.text)
            answer = client.get("/workspace/panel", params={"panel": chart})
            assert answer.headers["content-type"].partition(";")[0] in ("application/json", "application/octet-stream")
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["<b>x</b>", "javascript:x", "a b", "../x", "", "x/y"])
def test_stores_have_plain_names_alone(name, capsys):
    assert main(["board", "--no-open", "--port", "0", "--store", f"{name}=x", "--store", "b=y"]) == 1
    assert "among several, expected" in capsys.readouterr().err


ODD_NAMES = [hostile.SCRIPT, 'it\'s "a"\nline', "\u202egnp.exe\u2066 end", "w" * 5_000]


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def odd_store(request, tmp_path):
    """Runs with hostile names, tags and experiments."""
    for number, name in enumerate(ODD_NAMES, 1):
        folder = tmp_path / "store" / str(number)
        folder.mkdir(parents=True)
        document = hostile.document(experiment={"name": name, "sources": []}, uid=f"{number:032x}")
        (folder / "run.json").write_text(hostile.json.dumps(document))
        (folder / "config.json").write_text(hostile.json.dumps({"lr": number, "text": name}))
        (folder / "notes.json").write_text(hostile.json.dumps({"tags": {name: True}, "display_name": name}))
    if request.param == "folder":
        return tmp_path / "store"
    database, mongo_url = request.getfixturevalue("database"), request.getfixturevalue("mongo_url")
    with open_store(tmp_path / "store") as source, open_store(f"{mongo_url}/{database.name}") as target:
        for run in source.find(sort="id"):
            copy(run, target)
    return f"{mongo_url}/{database.name}"


def check_readable(page):
    """Nothing ran, nothing reverses a line, and the page is not wider than the window."""
    assert page.evaluate("window.hacked") is None
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.inner_text("body"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_names_are_harmless_and_readable_in_what_is_done_with_a_selection(watched, serve, odd_store, tmp_path):
    browser = watched()
    page = browser.page
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(f"{serve(odd_store)}/runs?column=name&column=display_name&column=tags&column=text")
    page.check("#all")
    check_readable(page)
    page.click("#export")
    page.wait_for_selector("#export-dialog li")
    check_readable(page)
    with page.expect_download() as download:
        page.click("#export-csv")
    download.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as stream:
        rows = {row["id"]: row for row in csv.DictReader(stream)}
    assert [rows[str(number)]["text"] for number in range(1, 5)] == ODD_NAMES
    page.click("#export")
    with page.expect_download() as download:
        page.click("#export-report")
    download.value.save_as(tmp_path / "report.html")
    page.keyboard.press("t")
    for tag, part in ((hostile.SCRIPT, "hacked"), ("\u202egnp", "gnp"), ("<b>" + "w" * 5_000, "www")):
        page.fill("#tags-add", tag)
        with page.expect_event("console"):  # that it was rejected
            page.click("#tag-now")
        page.wait_for_selector(f"#tag-dialog .problem:has-text('{part}')")
        check_readable(page)
        assert page.evaluate(
            "(dialog => dialog.scrollWidth <= dialog.clientWidth)(document.getElementById('tag-dialog'))"
        )
    assert ["status of 400" in error and error.endswith("/list/tag") for error in browser.errors] == [True] * 3
    browser.errors.clear()
    page.click("#tag-dialog [data-close]")
    page.keyboard.press("Delete")
    check_readable(page)
    page.click("#discard-dialog [data-close]")
    page.click("#compare")
    page.wait_for_url("**/compare?**")
    check_readable(page)
    page.goto((tmp_path / "report.html").as_uri())
    check_readable(page)


def see_all_media(page):
    """Scroll to each medium, and wait until it is there."""
    series = page.locator(".medium-series")
    assert series.count() == 7 + len(hostile.ODD_MEDIA)
    for index in range(series.count()):
        series.nth(index).scroll_into_view_if_needed()
        series.nth(index).locator("figure").wait_for()
    drawn = page.locator(".points")
    assert drawn.count() == 1
    drawn.scroll_into_view_if_needed()
    page.locator(".points[data-drawn='1']").wait_for()


ARTIFACT = "/runs/1?tab=files&kind=artifact&name="
ORDINARY_PATHS = ["/runs", "/runs/1?tab=overview", ARTIFACT + "page.html"]
SLOW_PATHS = [
    "/runs?group=name",
    *(f"/runs/1?tab={tab}" for tab in TABS if tab != "overview"),
    *(ARTIFACT + name for name in ("drawing.svg", "table.csv")),
    "/runs/1?tab=sources&name=code.py",
    "/content?run=1&kind=media&name=0",
    "/content?run=1&kind=media&name=2",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "paths", [ORDINARY_PATHS, pytest.param(SLOW_PATHS, marks=pytest.mark.slow)], ids=["ordinary", "slow"]
)
def test_no_script_of_a_run_runs_in_a_browser(watched, serve, hostile_store, paths):
    browser = watched()
    page, base = browser.page, serve(hostile_store)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for path in paths:
        page.goto(base + path)
        if "tab=media" in path:
            see_all_media(page)
        if "tab=curves" in path:
            page.wait_for_selector("[data-drawn]")
        if "kind=media" in path:
            page.wait_for_load_state("networkidle")  # time to lead elsewhere
        assert page.evaluate("window.hacked") is None, path
        if "panel=" in path:
            page.wait_for_selector("figure[data-panel] .problem, figure[data-panel] .plot[data-drawn]")
        assert page.url == base + path or "panel=" in path  # the page writes its own view into the address
    # What was blocked is said on the console: the scripts in the sandbox, and what they would have loaded.
    blocked = ("sandboxed", "evil.example", "runs?embedded", "about:srcdoc")
    assert [error for error in browser.errors if not any(word in error for word in blocked)] == []
    assert browser.errors
    browser.errors.clear()
    assert [url for url in browser.requests if "refreshed" in url or "embedded" in url] == []
    browser.requests[:] = [url for url in browser.requests if "evil.example" not in url]
