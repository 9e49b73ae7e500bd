"""The page of all runs."""

import asyncio
import contextlib
import html
import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

import pytest

from sacristan.experiments import Experiment
from sacristan.observers import MongoObserver
from sacristan.runs import Store, StoreAwayError, StoreError, open_store
from sacristan.runs.board.views import RunsView
from sacristan.runs.query.index.file import Batch
from sacristan.runs.stores.pool import StorePool
from tests.integration.board.conftest import database_of
from tests.integration.board.test_workspace import drawn, panel


def ids(text):
    return re.findall(r'class="id"><a href="/runs/([^"]+)"', text)


def test_mine_is_a_condition_that_names_the_user(client_of, store, monkeypatch):
    client = client_of(store)
    link = re.compile(r'id="mine" data-key="m" href="([^"]+)"( aria-current="true")?')
    [(url, is_on)] = link.findall(client.get("/runs").text)
    assert not is_on
    page = client.get(url).text
    assert ids(page) == ["4", "3", "2", "1"]
    assert link.findall(page) == [("/runs", ' aria-current="true"')]
    monkeypatch.setenv("SACRISTAN_USER", "ada & bob")
    [(url, _)] = link.findall(client.get("/runs").text)
    page = client.get(html.unescape(url)).text
    assert ids(page) == []
    assert "user=&#39;ada &amp; bob&#39;" in page


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder of 60 runs."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(1, 61):
        run = folder / str(number)
        run.mkdir()
        document = {"experiment": {"name": "many"}, "command": "main", "status": "COMPLETED", "result": number}
        document |= {"start_time": f"2026-01-01T00:00:{number - 1:02}", "uid": f"{number:032x}"}
        (run / "run.json").write_text(json.dumps(document))
        (run / "config.json").write_text(json.dumps({"lr": 1 / number, "model": f"model{number % 2}"}))
    return folder


# Looking


def test_runs_are_listed_newest_first_with_settings_that_differ(client_of, store):
    answer = client_of(store).get("/runs")
    assert answer.status_code == 200
    assert ids(answer.text) == ["4", "3", "2", "1"]
    assert re.findall(r'<a href="[^"]*" title="([^"]+)">', answer.text) == [
        "id", "fails", "lr", "model.name", "seed", "result", "status", "start", "duration", "name", "tags",
    ]  # fmt: skip
    assert '<span class="status failed">failed</span>' in answer.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"where": "lr<0.05"}, ["2"]),
        ({"where": ["status=COMPLETED", "lr=0.1"]}, ["4", "1"]),
        ({"words": "CNN"}, ["4"]),
        ({"sort": "lr", "where": "status=COMPLETED"}, ["2", "1", "4"]),
        ({"sort": "-val/accuracy.max", "column": ["id", "host"], "where": "model.name=mlp"}, ["1", "3", "2"]),
        ({"where": "lr=7"}, []),
    ],
)
def test_runs_are_found_and_sorted_by_the_store(client_of, store, query, found):
    answer = client_of(store).get("/runs", params=query)
    assert answer.status_code == 200
    assert ids(answer.text) == found


def test_pages_follow_each_other(client_of, many):
    client = client_of(many)
    first = client.get("/runs", params={"sort": "id"})
    assert ids(first.text) == [str(number) for number in range(1, 51)]
    assert "1–50</span> of <span" in first.text
    link = re.search(r'rel="next"[^>]* href="([^"]+)"', first.text)[1]
    assert ids(client.get(link.replace("&amp;", "&")).text) == [str(number) for number in range(51, 61)]
    assert ids(client.get("/runs?page=99999999999999999999").text) == ids(client.get("/runs").text)
    assert "There is no such page." in client.get("/runs?page=7").text


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"where": "lr"}, "got the condition &#39;lr&#39;, expected NAME"),
        ({"where": "lrr=1"}, "no run has a field &#39;lrr&#39;; did you mean lr?"),
        ({"where": "staus!=COMPLETED"}, "no run has a field &#39;staus&#39;; did you mean status?"),
        ({"where": "status!=completed"}, "status: got &#39;completed&#39;; did you mean COMPLETED?"),
        ({"sort": "nothing"}, "no run has a field &#39;nothing&#39;"),
        ({"column": "nothing"}, "no run has a field &#39;nothing&#39;"),
        ({"group": "nothing"}, "no run has a field &#39;nothing&#39;"),
        ({"where": "status~("}, "no regular expression"),
    ],
)
def test_what_makes_no_sense_is_said_where_it_was_typed(client_of, recorded, query, problem):
    answer = client_of(recorded).get("/runs", params=query)
    assert answer.status_code == 400
    assert problem in answer.text
    assert 'name="add"' in answer.text


def test_what_is_typed_becomes_a_condition_or_words():
    view = RunsView(where=("a=1",), page=3)
    assert view.adding(" lr<1e-3 ") == RunsView(where=("a=1", "lr<1e-3"))
    assert view.adding("lr in (1, 2)").where == ("a=1", "lr in (1, 2)")
    assert view.adding("best baseline") == RunsView(where=("a=1",), words="best baseline")
    assert view.adding("").url() == "/runs?where=a%3D1&page=3"


def test_many_runs_of_a_filter_are_counted_when_the_page_watches(client_of, many, monkeypatch):
    monkeypatch.setattr("sacristan.runs.board.runs_page._COUNTED", 5)
    client, query = client_of(many), {"where": "lr>0"}
    assert '<span id="total">at least 55</span>' in client.get("/runs", params=query).text
    assert client.get("/list/rows", params=query).headers["x-total"] == "60"
    assert '<span id="total">60</span>' in client.get("/runs").text
    assert '<span id="total">30</span>' in client.get("/runs", params={"where": "model=model1"}).text


def test_typed_condition_is_in_the_url_that_others_open(client_of, recorded):
    answer = client_of(recorded).get("/runs", params={"add": "lr<0.05", "sort": "lr"})
    assert 'data-address="/runs?where=lr%3C0.05&amp;sort=lr"' in answer.text


def test_groups_have_mean_and_deviation(client_of, store):
    answer = client_of(store).get("/runs", params={"group": "model.name", "column": "val/accuracy.last"})
    rows = [" ".join(re.sub("<[^>]+>", " ", row).split()) for row in re.findall("(?s)<tr[> ].*?</tr>", answer.text)]
    # 0.975 and the learning rate, of three runs 0.1, 0.01 and 0.1
    assert rows[1:] == ["cnn 1 1.075", "mlp 3 1.045 ± 0.052"]
    assert '/runs?where=model.name%3Dcnn&amp;column=val%2Faccuracy.last"' in answer.text


def test_groups_hold_the_largest_numbers(client_of, tmp_path):
    for number, text in enumerate(("1e308", "-1e308", "1e308", "1" + "0" * 400, "Infinity", "NaN", "0.5"), 1):
        folder = tmp_path / "store" / str(number)
        folder.mkdir(parents=True)
        run = {"experiment": {"name": "e"}, "command": "main", "status": "COMPLETED", "result": None}
        (folder / "run.json").write_text(json.dumps(run).replace("null", text))
        (folder / "config.json").write_text(f'{{"lr": {text}, "part": {number // 7}}}')
    client = client_of(tmp_path / "store")
    assert client.get("/runs", params={"group": "lr"}).status_code == 200
    text = client.get("/runs", params={"group": "part", "column": "result"}).text
    rows = [" ".join(re.sub("<[^>]+>", " ", row).split()) for row in re.findall("(?s)<tr[> ].*?</tr>", text)]
    assert rows[1:] == ["0 6 3.3333e+307 ± 1.2e+308", "1 1 0.5"]


def test_fields_for_columns_are_those_of_the_runs(client_of, store):
    found = client_of(store).get("/list/fields").json()["fields"]
    assert {"tags", "lr", "model.name", "train/loss.min", "status", "host"} <= set(found)


def test_watched_rows_are_sent_when_they_have_changed(client_of, own_store):
    client = client_of(own_store)
    first = client.get("/list/rows")
    assert ids(first.text) == ["4", "3", "2", "1"]
    assert float(first.headers["x-look-again-s"]) >= 2
    known = {"if-none-match": first.headers["etag"]}
    assert client.get("/list/rows", headers=known).status_code == 304
    client.post("/list/tag", data={"run": "2", "add": "best"})
    assert "best" in client.get("/list/rows", headers=known).text


def lose_after(method, where, runs, monkeypatch):
    """Let somebody delete the last of the runs each time when a method of the store has found them."""
    found_by = getattr(Store, method)

    def find_and_lose(store, *args, **options):
        found = found_by(store, *args, **options)
        if runs:
            with open_store(where) as other:
                other.discard([other.get(runs.pop())])
        return found

    monkeypatch.setattr(Store, method, find_and_lose)


@pytest.mark.parametrize("path", ["/runs", "/runs?group=lr", "/list/rows"])
def test_run_that_is_deleted_while_a_page_is_made_is_not_on_it(client_of, own_store, monkeypatch, path):
    left = ["3", "4"]
    lose_after("find", own_store, left, monkeypatch)
    client = client_of(own_store)
    assert client.get(path).status_code == 200
    while left:  # a database has answered with the runs as they were
        assert client.get(path).status_code == 200
    assert not re.search('data-run="[34]"', client.get(path).text)


def test_panel_of_runs_of_which_some_are_deleted_has_the_others(client_of, own_store, monkeypatch):
    lose_after("get_all", own_store, ["1"], monkeypatch)
    client = client_of(own_store)
    assert panel(client, "val/accuracy", run=["4", "2", "1"])[0] == 200
    code, document = panel(client, "val/accuracy", run=["4", "2", "1"])
    assert (code, sorted(document["labels"]), document["notes"]) == (200, ["2", "4"], ["runs not found: 1"])
    asked = {"run": ["4", "2", "1"], "panel": "val/accuracy"}
    assert client.get("/workspace/points", params=asked).status_code == 404  # a download has all runs, or is none
    with open_store(own_store) as store:
        store.discard(store.get_all(["2", "4"]))
    assert panel(client, "val/accuracy", run=["4", "2", "1"])[0] == 404


# Writing


def test_tags_notes_and_deletion(client_of, own_store):
    client = client_of(own_store)
    answer = client.post("/list/tag", data={"run": ["1", "2"], "add": "best baseline", "remove": "none"})
    assert answer.json() == {"done": "tags of 2 runs changed"}
    client.post("/list/tag", data={"run": "1", "remove": "best"})
    assert client.post("/list/rename", data={"run": "1", "name": " wider  <b> "}).json()["name"] == "wider <b>"
    client.post("/list/tag", data={"run": "2", "add": "a, b,c"})
    client.post("/list/tag", data={"run": "2", "untag": ["a", "b"], "remove": "c"})
    client.post("/list/note", data={"run": "2", "note": "good\n<b>"})
    assert client.post("/list/discard", data={"run": ["3", "4"]}).json() == {"done": "2 runs moved into the trash"}
    with open_store(own_store) as store:
        assert [run.id for run in store.find(sort="id")] == ["1", "2"]
        assert [store.get(id).tags for id in "12"] == [["baseline"], ["baseline", "best"]]
        assert store.get("2").note == "good\n<b>"
        assert store.get("1").display_name == "wider <b>"
        assert sorted(one.id for one in store.trash()) == ["3", "4"]


@pytest.mark.parametrize(
    "path", ["/runs", "/runs/1", "/list/rows", "/compare?run=1", "/sweeps/first", "/workspace/panel?run=1&panel=a"]
)
def test_store_that_is_away_is_told_with_when_to_ask_again(client_of, recorded, tmp_path, path):
    store = shutil.copytree(recorded, tmp_path / "store")
    client = client_of(store)
    store.rename(tmp_path / "away")
    answer = client.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"].startswith(f"there is no folder {store};")
    (tmp_path / "away").rename(store)
    assert client.get("/list/rows").status_code == 200


def test_database_that_does_not_answer_is_away():
    with pytest.raises(StoreAwayError, match="the server is not reachable"):
        open_store("mongodb://127.0.0.1:1/runs?serverSelectionTimeoutMS=20")


@pytest.mark.parametrize(
    ("path", "data", "status", "problem"),
    [
        ("/list/tag", {"run": "1", "add": "<b>"}, 400, "got the tag '<b>'"),
        ("/list/tag", {"add": "best"}, 400, "got 0 runs, expected 1 to 1000"),
        ("/list/discard", {"run": "77"}, 404, "there is no run '77'"),
        ("/list/note", {"run": "1", "note": "x" * 2**21}, 413, "more than 1048576 bytes"),
    ],
)
def test_refused_change_is_one_sentence(client_of, recorded, path, data, status, problem):
    answer = client_of(recorded).post(path, data=data)
    assert answer.status_code == status
    assert problem in answer.json()["error"]


# In the browser


def test_selected_runs_are_tagged_and_deleted_by_keys(own_store, watched, serve):
    page = watched().page
    page.goto(serve(own_store))
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("#num-selected").text_content() == "1 run selected"
    page.keyboard.press("t")
    page.fill("#tags-add", "best")
    page.click("#tag-now")
    page.wait_for_selector("tr[data-run='3'] .tag:text('best')")
    page.keyboard.press("Delete")
    page.click("#discard-now")
    page.wait_for_selector("tr[data-run='3']", state="detached")
    assert page.locator("#announce").text_content() == "1 run moved into the trash"
    page.keyboard.press("/")
    page.keyboard.type("lr<0.05")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=lr%3C0.05*")
    assert page.locator("tbody tr").count() == 1


@pytest.fixture(params=["folder", "database"])
def own_many(request, many, tmp_path) -> Iterator[str]:
    """A copy of the many runs that a test may change."""
    if request.param == "folder":
        yield str(shutil.copytree(many, tmp_path / "store", ignore=shutil.ignore_patterns(".index*")))
    else:
        yield from database_of(many, request.getfixturevalue("mongo_url"))


@pytest.mark.slow
def test_all_that_match_are_selected_over_pages_and_changed(watched, serve, own_many, tmp_path):
    store, page = own_many, watched().page
    page.goto(f"{serve(store)}/runs?where=lr<0.5&column=lr&column=model")
    page.wait_for_selector("tbody tr")
    page.check("tr[data-run='60'] input")
    page.click("[rel=next]")
    page.wait_for_selector("tr[data-run='3']")
    page.check("tr[data-run='3'] input")
    page.reload()
    page.wait_for_selector("#num-selected:text-is('2 runs selected')")
    page.check("#all")
    page.click("#select-all")
    page.wait_for_selector("#num-selected:text-is('58 runs selected')")
    assert page.locator("#num-unseen").inner_text() == "50 of them are not shown"
    page.click("#export")
    with page.expect_download() as download:
        page.click("#export-csv")
    download.value.save_as(tmp_path / "runs.csv")
    rows = (tmp_path / "runs.csv").read_text().splitlines()
    assert (rows[0], len(rows)) == ("id,lr,model", 59)
    assert sorted(int(row.partition(",")[0]) for row in rows[1:]) == list(range(3, 61))
    page.keyboard.press("t")
    page.fill("#tags-add", "small")
    page.click("#tag-now")
    page.wait_for_selector("#tag-dialog", state="hidden")
    with open_store(store) as opened:
        assert opened.count("tags.small=True") == 58
    page.click("#export")
    with page.expect_download() as download:
        page.click("#export-report")
    assert download.value.suggested_filename == "report.html"
    download.value.save_as(tmp_path / "report.html")
    assert "58 runs" in (tmp_path / "report.html").read_text()
    page.click("#compare")
    page.wait_for_url("**/compare?**")
    assert sorted(map(int, parse_qs(urlsplit(page.url).query)["run"])) == list(range(3, 61))
    page.wait_for_selector("text=58 runs")
    page.go_back()
    page.wait_for_selector("#num-selected:text-is('58 runs selected')")
    page.keyboard.press("Delete")
    page.click("#discard-now")
    page.wait_for_selector("#discard-dialog", state="hidden")
    assert page.locator("#announce").text_content() == "58 runs moved into the trash"
    with open_store(store) as opened:
        assert sorted(run.id for run in opened.find()) == ["1", "2"]


@pytest.mark.slow
def test_workspace_of_a_database_is_arranged_saved_selected_and_live(watched, serve, recorded, mongo_url):
    made = database_of(recorded, mongo_url)
    where = next(made)
    page, base = watched().page, serve(where)
    page.goto(f"{base}/runs")
    drawn(page)
    page.fill("#find", "lr<0.5")
    page.press("#find", "Enter")
    page.wait_for_url("**where=lr%3C0.5**")
    drawn(page)
    page.locator("button.eye[data-key-of]").first.click()
    page.wait_for_url("**hide=**")
    assert page.get_attribute("#eyes", "aria-pressed") == "mixed"
    page.wait_for_load_state("networkidle")
    page.keyboard.press("a")
    page.keyboard.type("`train/loss` - `val/accuracy`")
    page.keyboard.press("Enter")
    expression = "figure[data-panel='`train/loss` - `val/accuracy`']"
    page.wait_for_selector(f".section[data-section='/'] {expression}")
    page.hover("figure[data-panel='val/accuracy']")
    page.click("figure[data-panel='val/accuracy'] [data-arrange=pin]")
    page.wait_for_selector(".section[data-section='/'] figure[data-panel='val/accuracy']")
    page.click("figure[data-panel='val/accuracy'] [data-arrange=wide]")
    page.wait_for_selector("figure.broad[data-panel='val/accuracy']")
    page.keyboard.press("w")
    page.fill("#view-name", "mine")
    page.check("#save-view [name=default]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#views-list li:has-text('private, opens first')")
    page.goto(base)
    page.wait_for_selector(f".section[data-section='/'] {expression}")
    page.wait_for_selector("figure.broad[data-panel='val/accuracy']")
    assert "hide=" in page.url
    page.check("#all")
    page.keyboard.press("t")
    page.fill("#tags-add", "all")
    page.click("#tag-now")
    page.wait_for_selector("#tag-dialog", state="hidden")
    ex = Experiment("digits", save_git_info=False, system_metrics_s=None)
    ex.observers.append(MongoObserver(mongo_url, where.rpartition("/")[2]))
    ex.add_config(lr=0.2)
    ex.main(lambda _run: _run.log_scalar("val/accuracy", 1.0))
    ex.run()
    page.wait_for_selector("tr[data-run='5']")
    with open_store(where) as store:
        assert store.count("tags.all=True") == 4
    assert list(made) == []


@pytest.mark.slow
def test_dialog_of_many_runs_lists_the_first_and_counts_the_others(tmp_path, placed, watched, serve):
    for number in range(1, 221):
        run = tmp_path / str(number)
        run.mkdir()
        document = {"uid": f"{number:032x}", "status": "COMPLETED", "start_time": "2026-01-01T00:00:00"}
        (run / "run.json").write_text(json.dumps({"experiment": {"name": "e"}, "command": "main", **document}))
        (run / "config.json").write_text("{}")
    where = placed(tmp_path)
    page = watched().page
    page.goto(f"{serve(where)}/runs")
    page.check("#all")
    page.click("#select-all")
    page.wait_for_selector("#num-selected:text-is('220 runs selected')")
    page.keyboard.press("Delete")
    page.wait_for_selector("#discard-dialog p:text-is('and 20 runs more')")
    assert page.locator("#discard-dialog li").count() == 200
    assert page.locator("#discard-dialog h3").all_inner_texts() == ["Not shown on the page: 170", "Shown"]
    page.click("#discard-now")
    page.wait_for_selector("#discard-dialog", state="hidden")
    with open_store(where) as store:
        assert len(store) == 0


def test_table_of_runs_has_their_fields(client_of, store):
    client = client_of(store)
    answer = client.get("/list/table", params={"run": ["2", "1"], "column": ["lr", "status", "nope"]})
    assert answer.text == "id,lr,status,nope\n2,0.01,COMPLETED,\n1,0.1,COMPLETED,\n"
    assert client.get("/list/table", params={"run": "2", "column": "lr", "part": "1"}).text == "2,0.01\n"
    assert client.get("/list/ids", params={"where": "lr=0.1"}).json()["ids"] == ["4", "3", "1"]
    for path in ("/list/table", "/list/report"):
        assert client.get(path).json()["error"] == "got 0 runs, expected 1 to 500"
    report = client.get("/list/report", params={"run": ["1", "2"]})
    assert "attachment" in report.headers["content-disposition"]
    assert "train/loss" in report.text


@pytest.mark.slow
def test_columns_are_chosen_and_are_in_the_url(watched, serve, recorded):
    page = watched().page
    page.goto(serve(recorded))
    page.keyboard.press("c")
    page.fill("#columns-search", "accuracy.max")
    page.check("input[value='val/accuracy.max']")
    page.uncheck("input[value='name']")
    page.click("#columns-apply")
    page.wait_for_url("**column=val%2Faccuracy.max*")
    heads = page.locator("thead th a").all_text_contents()
    assert "val/accuracy.max" in heads
    assert "name" not in heads


def test_new_runs_appear_while_the_page_is_watched(watched, serve, recorded, tmp_path):
    store = shutil.copytree(recorded, tmp_path / "store")
    page = watched().page
    page.goto(serve(store))
    page.focus("tr[data-run='2'] th a")
    shutil.copytree(store / "4", tmp_path / "5").rename(store / "5")  # whole from the start, as the page is refreshed
    page.wait_for_selector("tr[data-run='5']")
    assert page.locator("#total").text_content() == "5"
    assert page.evaluate("document.activeElement.textContent") == "2"


def test_keys_are_shown(watched, serve, recorded):
    page = watched().page
    page.goto(serve(recorded))
    page.keyboard.press("?")
    assert "Find runs by words" in page.locator("dialog[open]").text_content()


# Reading a store for the first time


@pytest.fixture
def unread(many, tmp_path, monkeypatch):
    """A folder of 60 runs that has no index, and the event that lets the reading go on after the first 20."""
    take, go_on, is_first = Batch.take, threading.Event(), [True]

    def take_20(batch, names):
        if not is_first:
            assert go_on.wait(60)
        is_first.clear()
        return take(batch, names[:20]) + names[20:]

    monkeypatch.setattr(Batch, "take", take_20)
    folder = shutil.copytree(many, tmp_path / "unread", ignore=shutil.ignore_patterns(".index*"))
    yield folder, go_on
    go_on.set()


@pytest.mark.slow
def test_page_tells_how_far_the_first_reading_is_and_comes_by_itself(unread, serve, watched):
    folder, go_on = unread
    page = watched().page
    answer = page.goto(serve(folder))
    assert (answer.status, answer.headers["refresh"]) == (202, "1")
    assert page.locator("#reading").inner_text().startswith("Reading runs: 20 of 60.")
    go_on.set()
    page.locator("tbody tr").first.wait_for()
    assert page.locator("tbody tr").count() == 50


def test_what_no_person_looks_at_waits_for_the_first_reading(unread, client_of):
    folder, go_on = unread
    client = client_of(folder)
    assert client.get("/runs", headers={"sec-fetch-dest": "document"}).status_code == 202
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.get, "/runs")
        with pytest.raises(TimeoutError):
            answer.result(0.2)
        go_on.set()
        assert len(ids(answer.result(60).text)) == 50


def test_board_that_closes_leaves_the_first_reading(unread):
    folder, go_on = unread
    pool = StorePool(lambda: open_store(folder))

    async def close_while_it_reads():
        question = asyncio.ensure_future(pool.ask(lambda store: store.find()))
        while pool.progress is None:
            await asyncio.sleep(0.01)
        closing = asyncio.get_running_loop().run_in_executor(None, pool.close)
        while not pool.is_closed:
            await asyncio.sleep(0.01)
        go_on.set()
        with pytest.raises(StoreError, match="the pool has been closed"):
            await question
        await closing

    with ThreadPoolExecutor(1) as thread:  # the browser's tests have a loop of their own in this one
        thread.submit(asyncio.run, close_while_it_reads()).result(60)
    with contextlib.closing(sqlite3.connect(folder / ".index.sqlite")) as index:
        assert index.execute("SELECT count(*) FROM run").fetchone() == (40,)  # what was read is kept
