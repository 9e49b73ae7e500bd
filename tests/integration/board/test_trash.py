"""The trash in the browser, dialogs that name the runs they change, and pages whose run or login is gone."""

import getpass
import json
import re
import shutil

import pytest

from sacristan.runs import open_store
from sacristan.runs.board.access import Role, TokenFile
from sacristan.runs.stores.changes import Author
from sacristan.runs.stores.small_documents import Report
from tests.integration.board.test_workspace import assert_accessible

LOGGED_OUT = "Your login has expired or was revoked. Log in again in a new tab, then go on here"


def discard(where, *ids, by=""):
    with open_store(where) as store:
        store.author = Author(by) if by else store.author
        store.discard(store.get_all(ids))


def test_trash_shows_who_deleted_a_run_and_gives_it_back(client_of, own_store, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    client = client_of(own_store, tokens=tokens)
    secrets = {role: tokens.add(role.word, role) for role in Role}
    discard(own_store, "3", by="ann <b>")
    client.get("/runs", params={"token": secrets[Role.NOTE]})
    answer = client.get("/trash", headers={"accept": "text/html"})
    assert (answer.status_code, "this needs the role write" in answer.text) == (403, True)
    assert 'href="/trash"' not in client.get("/runs").text
    client.get("/runs", params={"token": secrets[Role.WRITE]})
    assert 'href="/trash"' in client.get("/runs").text
    page = client.get("/trash").text
    row = " ".join(re.sub("<[^>]+>", " ", re.search("(?s)<tbody>.*</tbody>", page)[0]).split())
    assert re.fullmatch(r"3 digits failed \S+ \S+ UTC ann &lt;b&gt;", row)
    key = re.search('name="run" value="(.+?)"', page)[1]
    assert client.post("/trash/restore", data={"run": key}).json() == {"done": "run 3 is back", "url": "/runs/3"}
    assert "The trash is empty." in client.get("/trash").text
    answer = client.post("/trash/restore", data={"run": key})
    assert (answer.status_code, "is not in the trash" in answer.json()["error"]) == (404, True)
    with open_store(own_store) as store:
        assert [(one["by"], one["what"]) for one in store.get("3").changes] == [
            ("ann <b>", "moved to the trash"),
            ("write", "restored from the trash"),
        ]


def test_command_says_who_moved_runs_to_the_trash(recorded, tmp_path, capsys):
    from sacristan.__main__ import main

    where = str(shutil.copytree(recorded, tmp_path / "store"))
    discard(where, "2", by="ann")
    assert main(["--store", where, "restore", "--json"]) == 0
    assert [(one["id"], one["by"]) for one in json.loads(capsys.readouterr().out)] == [("2", "ann")]
    assert main(["--store", where, "show", "2"]) == 1
    assert capsys.readouterr().err == (
        f"error: run 2 was moved to the trash of {where} by ann; bring it back with: "
        f"sacristan --store {where} restore 2\n"
    )


def test_dialogs_name_the_runs_and_a_new_filter_keeps_the_selection_in_sight(own_store, watched, serve):
    page = watched().page
    page.goto(serve(own_store))
    for run in "1234":
        page.check(f"tr[data-run='{run}'] input")
    page.keyboard.press("/")
    page.keyboard.type("lr<0.05")
    page.keyboard.press("Enter")
    page.wait_for_selector("#num-unseen:text-is('3 of them are not shown')")
    assert page.locator("#num-selected").inner_text() == "4 runs selected"
    page.keyboard.press("t")  # the field has lost the focus
    page.wait_for_selector("#tag-dialog li")
    assert page.locator("#tag-dialog [data-chosen]").inner_text().split("\n") == [
        "Not shown on the page: 3",
        "1  digits, completed",
        "3  digits, failed",
        "4  digits, completed",
        "Shown",
        "2  digits, completed",
    ]
    assert_accessible(page)
    page.keyboard.press("Escape")
    discard(own_store, "4")
    page.keyboard.press("Delete")
    page.wait_for_selector("#discard-dialog :text('1 run no longer in the store left the selection')")
    assert page.locator("#discard-title").inner_text() == "Delete 3 runs?"
    page.keyboard.press("Escape")
    page.click("#drop-unseen")
    assert page.locator("#num-selected").inner_text() == "1 run selected"
    assert page.locator("#unseen").is_hidden()
    page.keyboard.press("Delete")
    page.click("#discard-now")
    page.wait_for_selector("tr[data-run]", state="detached")
    page.goto(f"{serve(own_store)}/runs")
    page.click("a:text-is('Trash')")
    page.wait_for_selector("tbody tr")
    assert [row.split("\t")[1] for row in page.locator("tbody tr").all_inner_texts()] == ["2", "4"]
    assert page.locator("tbody tr td:last-child").all_inner_texts() == [getpass.getuser()] * 2
    assert_accessible(page)
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.check("#all")
    page.click("button:text('Restore 2 runs')")
    page.wait_for_selector("tbody tr", state="detached")
    with open_store(own_store) as store:
        assert len(store) == 4


LATER_TABS = ("output", "curves", "system", "media", "files", "sources", "environment")


@pytest.mark.parametrize("tab", ["overview", *(pytest.param(tab, marks=pytest.mark.slow) for tab in LATER_TABS)])
def test_page_of_a_run_says_that_it_was_deleted_and_restores_it(own_store, watched, serve, tab):
    browser = watched()
    page = browser.page
    page.goto(f"{serve(own_store)}/runs/2?tab={tab}")
    page.wait_for_selector("h1:text-is('Run 2')")
    discard(own_store, "2", by="ann")
    page.wait_for_selector("#outage:has-text('run 2 was moved to the trash of')")
    assert " by ann; bring it back" in page.locator("#outage").inner_text()
    page.click("#outage a")
    page.wait_for_selector("h1:text-is('This run was deleted')")
    assert_accessible(page)
    page.click("button:text-is('Restore it')")
    page.wait_for_url("**/runs/2")
    assert page.locator("h1").inner_text() == "Run 2"
    browser.errors[:] = [error for error in browser.errors if "404" not in error]


@pytest.mark.slow
def test_reader_sees_that_a_run_was_deleted_and_cannot_restore_it(own_store, watched, serve, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    secret = tokens.add("bob", Role.READ)
    browser = watched()
    page = browser.page
    base = serve(own_store, tokens=tokens)
    page.goto(f"{base}/runs?token={secret}")
    page.wait_for_selector("tr[data-run='2']")
    assert page.locator("a:text-is('Trash')").count() == 0
    page.goto(f"{base}/runs/2")
    discard(own_store, "2", by="ann")
    page.wait_for_selector("#outage:has-text('run 2 was moved to the trash of')")
    assert page.locator("#outage a").count() == 0
    page.reload()
    page.wait_for_selector("h1:text-is('This run was deleted')")
    assert page.locator("main button").count() == 0
    browser.errors[:] = [error for error in browser.errors if "404" not in error]


def test_expired_login_is_one_sentence_and_nothing_typed_is_lost(own_store, watched, serve, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    secret = tokens.add("ann", Role.NOTE)
    base = serve(own_store, tokens=tokens)
    browser = watched()
    page = browser.page
    page.goto(f"{base}/runs?token={secret}")
    page.wait_for_selector("tr[data-run='1']")
    page.check("tr[data-run='1'] input")
    page.keyboard.press("t")
    page.wait_for_selector("#tag-dialog li")
    page.fill("#tags-add", "best")
    tokens.revoke("ann")
    page.click("#tag-now")
    page.wait_for_selector("#tag-dialog .problem a")
    assert page.locator("#tag-dialog .problem").inner_text() == LOGGED_OUT
    assert page.locator("#outage").inner_text() == LOGGED_OUT
    assert_accessible(page)
    with page.expect_popup() as popup:
        page.click("#tag-dialog .problem a")
    other = popup.value
    other.fill("#token", tokens.add("ann", Role.NOTE))
    other.click("button")
    other.wait_for_selector("tr[data-run='1']")
    other.close()
    page.click("#tag-now")
    page.wait_for_selector("tr[data-run='1'] .tag:text('best')")
    page.wait_for_selector("#outage:text-is('')", state="attached")
    for run, path in (("1", "/runs/1?tab=output"), ("1", "/runs/1")):
        page.goto(f"{base}{path}")
        page.fill("#display-name", f"name of {run}")
        tokens.revoke("ann")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#head-problem:has-text('{LOGGED_OUT}')")
        page.wait_for_selector("#outage a")
        assert page.input_value("#display-name") == f"name of {run}"
        page.goto(f"{base}/runs?token={tokens.add('ann', Role.NOTE)}")
    browser.errors[:] = [error for error in browser.errors if "401" not in error]


def test_list_of_all_stores_follows_them(recorded, own_store, watched, serve, tmp_path):
    one, two = str(shutil.copytree(recorded, tmp_path / "one")), own_store
    page = watched().page
    page.goto(f"{serve({'one': one, 'two': two})}/all?where=status%3DFAILED")
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").count() == 2
    page.focus("tbody tr:first-child th a")
    focused = page.evaluate("document.activeElement.getAttribute('href')")
    discard(two if focused.startswith("/s/one") else one, "3")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    assert page.locator(".pager span").inner_text() == "1–1 of 1"
    assert page.evaluate("document.activeElement.getAttribute('href')") == focused


def test_enter_in_a_name_or_a_filter_makes_keys_shortcuts_again(own_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(own_store)}/runs")
    page.fill("#group", "lr")
    page.keyboard.press("Enter")
    page.wait_for_url("**group=lr*")
    page.keyboard.press("w")
    page.wait_for_selector("#views-dialog[open]")
    page.goto(f"{serve(own_store)}/runs/1?tab=output")
    for field, word in (("#display-name", "first"), ("#new-tags", "best")):
        page.fill(field, word)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{field}:not(:focus)")
    page.keyboard.press("2")
    page.wait_for_url("**tab=curves")
    page.goto(f"{serve(own_store)}/runs")
    page.fill("#settings input[name=colour]", "lr")
    page.keyboard.press("Enter")
    page.wait_for_url("**colour=lr*")
    page.keyboard.press("w")
    page.wait_for_selector("#views-dialog[open]")
    assert page.input_value("#settings input[name=colour]") == "lr"


@pytest.mark.slow
def test_login_that_expires_while_pages_follow_is_said_and_the_pages_go_on(own_store, watched, serve, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    secret = tokens.add("ann", Role.NOTE)
    base = serve(own_store, tokens=tokens)
    pages = [watched() for _ in range(4)]
    pages[0].page.goto(f"{base}/runs?token={secret}")
    for browser, path in zip(pages, ("/runs", "/runs/1", "/runs/1?tab=output", "/models"), strict=True):
        browser.page.goto(f"{base}{path}")
    tokens.revoke("ann")
    for browser in pages:
        browser.page.wait_for_selector(f"#outage:has-text('{LOGGED_OUT}')")
    assert_accessible(pages[0].page)
    with pages[0].page.expect_popup() as popup:
        pages[0].page.click("#outage a")
    popup.value.fill("#token", tokens.add("ann", Role.NOTE))
    popup.value.click("button")
    popup.value.wait_for_selector("tr[data-run='1']")
    popup.value.close()
    with open_store(own_store) as store:
        store.tag(store.get("1"), ["after"])
    for browser in pages:
        browser.page.wait_for_selector("#outage:text-is('')", state="attached")
    pages[0].page.wait_for_selector("tr[data-run='1'] .tag:text('after')")
    pages[1].page.wait_for_selector(".run-head .tag:text('after')")
    for browser in pages:
        browser.errors[:] = [error for error in browser.errors if "401" not in error]


@pytest.mark.slow
def test_expired_login_is_said_in_every_dialog(own_store, watched, serve, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    tokens.add("bob", Role.READ)  # a board without tokens does not start
    base = serve(own_store, tokens=tokens)
    browser = watched()
    page = browser.page
    discard(own_store, "4")
    with open_store(own_store) as store:
        report = store.reports.save(Report("Ours", "text", author="ann"))

    def logged_in(path):
        page.goto(f"{base}/runs?token={tokens.add('ann', Role.WRITE)}")
        page.wait_for_selector("tr[data-run='1']")
        page.goto(f"{base}{path}")

    def says(place):
        page.wait_for_selector(f"{place}:has-text('{LOGGED_OUT}') a")

    def choose_runs():
        for run in "12":
            page.check(f"tr[data-run='{run}'] input")

    def discards():
        choose_runs()
        page.keyboard.press("Delete")
        page.wait_for_selector("#discard-now:enabled")
        tokens.revoke("ann")
        page.click("#discard-now")
        says("#discard-dialog .problem")

    def discards_without_a_list():
        choose_runs()
        tokens.revoke("ann")
        page.keyboard.press("Delete")
        says("#outage")
        page.wait_for_selector("#discard-dialog", state="hidden")
        assert page.locator("#num-selected").inner_text() == "2 runs selected"

    def exports(button):
        choose_runs()
        page.click("#export")
        page.wait_for_selector("#export-dialog li")
        tokens.revoke("ann")
        page.click(button)
        says("#export-dialog .problem")

    def saves_a_view():
        page.keyboard.press("w")
        page.fill("#view-name", "mine")
        tokens.revoke("ann")
        page.keyboard.press("Enter")
        says("#save-view .problem")
        assert page.input_value("#view-name") == "mine"

    def chooses_columns():
        tokens.revoke("ann")
        page.keyboard.press("c")
        says("#columns-dialog .problem")

    def chooses_a_colour():
        page.focus("tr[data-run='1'] th a")
        page.keyboard.press("p")
        page.fill("#colour-dialog input[type=color]", "#123456")
        tokens.revoke("ann")
        page.click("#colour-dialog button[value=set]")
        says("#colour-dialog .problem")
        assert page.input_value("#colour-dialog input[type=color]") == "#123456"

    def restores():
        page.check("#trash tbody input")
        tokens.revoke("ann")
        page.click("#trash button.main")
        says("#trash-problem")

    def removes_a_report():
        page.click("#remove")
        tokens.revoke("ann")
        page.click("#remove-now")
        says("#remove-dialog .problem")

    def adds_a_panel():
        tokens.revoke("ann")
        page.keyboard.press("a")
        page.keyboard.type("train/loss")
        page.keyboard.press("Enter")
        page.wait_for_selector("#token")  # the address has the panel
        page.fill("#token", tokens.add("ann", Role.NOTE))
        page.click("button")
        page.wait_for_selector(".section[data-section='/'] figure[data-panel='train/loss']")
        tokens.revoke("ann")

    def writes_a_note():
        page.fill("#note", "good")
        tokens.revoke("ann")
        page.click("#note-form button")
        says("#note-state")
        assert page.input_value("#note") == "good"

    for path, does in (
        ("/runs", discards),
        ("/runs", discards_without_a_list),
        ("/runs", lambda: exports("#export-csv")),
        ("/runs", lambda: exports("#export-report")),
        ("/runs", saves_a_view),
        ("/runs", chooses_columns),
        ("/runs", chooses_a_colour),
        ("/runs", adds_a_panel),
        ("/runs/1", writes_a_note),
        ("/trash", restores),
        (f"/reports/{report.id}", removes_a_report),
    ):
        logged_in(path)
        page.evaluate("sessionStorage.clear()")
        page.reload()
        does()
    browser.errors[:] = [error for error in browser.errors if "401" not in error]


def test_read_only_board_lists_no_key_that_changes_runs(own_store, watched, serve):
    page = watched().page
    page.goto(f"{serve(own_store, is_read_only=True)}/runs")
    page.wait_for_selector("tr[data-run='1']")
    page.keyboard.press("?")
    keys = page.locator("dialog[open] kbd").all_inner_texts()
    assert {"j", "x", "v", "g"} <= set(keys)
    assert not {"p", "t", "Delete"} & set(keys)
