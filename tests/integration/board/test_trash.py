"""The trash in the browser, dialogs that name the runs they change, and pages whose run or login is gone."""

import getpass
import json
import re
import shutil

import pytest

from sacristan.runs import open_store
from sacristan.runs.board.access import Role, TokenFile
from sacristan.runs.stores.changes import Author
from tests.integration.board.test_workspace import assert_accessible


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


@pytest.mark.parametrize("tab", ["overview", pytest.param("output", marks=pytest.mark.slow)])
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
    sentence = "Your login has expired or was revoked. Log in again in a new tab, then go on here"
    assert page.locator("#tag-dialog .problem").inner_text() == sentence
    assert page.locator("#outage").inner_text() == sentence
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
        page.wait_for_selector(f"#head-problem:has-text('{sentence}')")
        page.wait_for_selector("#outage a")
        assert page.input_value("#display-name") == f"name of {run}"
        page.goto(f"{base}/runs?token={tokens.add('ann', Role.NOTE)}")
    browser.errors[:] = [error for error in browser.errors if "401" not in error]


def test_list_of_all_stores_follows_them(recorded, watched, serve, tmp_path):
    one, two = (str(shutil.copytree(recorded, tmp_path / name)) for name in ("one", "two"))
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
