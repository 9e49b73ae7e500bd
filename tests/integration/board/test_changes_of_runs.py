"""Authors of changes of a run: kept in folder and database, and shown on its page."""

import getpass
import sys
import threading

import pytest

from sacristan.__main__ import main
from sacristan.runs import copy, open_store
from sacristan.runs.board.access import Proxy, Role, TokenFile
from sacristan.runs.stores.changes import MOST_CHANGES, Author
from tests.processes import PIPE, Process


def changes_of(where, id="1"):
    with open_store(where) as store:
        return [(one.get("by"), one.get("via"), one.get("what")) for one in store.get(id).changes]


def test_changes_name_their_author(client_of, own_store, tmp_path, capsys):
    file = TokenFile(tmp_path / "tokens.json")
    client = client_of(own_store, tokens=file)
    client.get("/runs", params={"token": file.add("ann", Role.WRITE)})
    client.post("/list/tag", data={"run": "1", "add": "best"})
    client.post("/list/tag", data={"run": "1", "add": "best"})  # changes nothing
    client.post("/list/note", data={"run": "1", "note": "good & <b>bold</b>"})
    client.post("/list/rename", data={"run": "1", "name": "first"})
    client.post("/list/discard", data={"run": "1"})
    assert main(["--store", own_store, "restore", "1"]) == 0
    assert main(["--store", own_store, "tag", "1", "--remove", "best"]) == 0
    me = getpass.getuser()
    expected = [
        ("ann", "token", "tags: +best"),
        ("ann", "token", "note: good & <b>bold</b>"),
        ("ann", "token", "display name: first"),
        ("ann", "token", "moved to the trash"),
        (me, "", "restored from the trash"),
        (me, "", "tags: -best"),
    ]
    assert changes_of(own_store) == expected
    page = client.get("/runs/1").text
    assert '<td>ann <span class="dim">(token)</span></td><td>note: good &amp; &lt;b&gt;bold&lt;/b&gt;</td>' in page
    assert f"<td>{me}</td><td>tags: -best</td>" in page
    capsys.readouterr()
    assert main(["--store", own_store, "ls", "--columns", "id,note"]) == 0  # not a field of the config
    with open_store(own_store) as store, open_store(tmp_path / "copy", create=True) as target:
        assert not any(name.startswith("changes") for name in store.fields())
        copied = copy(store.get("1"), target).run
        assert [one["what"] for one in copied.changes] == [what for _, _, what in expected]


def test_changes_are_bounded_and_none_is_lost_between_two_boards(client_of, own_store):
    boards = [client_of(own_store), client_of(own_store)]

    def tag(board, number):
        for step in range(10):
            answer = board.post("/list/tag", data={"run": "2", "add": f"t{number}-{step}"})
            assert answer.status_code == 200

    threads = [threading.Thread(target=tag, args=one) for one in zip(boards, range(2), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"tags: +t{number}-{step}" for number in range(2) for step in range(10)}
    assert {what for _, _, what in changes_of(own_store, "2")} == expected
    with open_store(own_store) as store:
        store.author = Author("x" * 1000)
        for number in range(MOST_CHANGES):
            run = store.write_note(store.get("2"), f"{number} " * 1000)
        assert len(run.changes) == MOST_CHANGES
        assert run.changes[0]["what"].startswith("note: 0 0")
        assert max(len(one["by"]) + len(one["what"]) for one in run.changes) <= 400


WRITER = """
import sys
from sacristan.runs.errors import ChangedError
from sacristan.runs.stores.opening import open_store
where, who = sys.argv[1:]
with open_store(where) as store:
    run = store.get("1")
    print("ready", flush=True)
    sys.stdin.readline()
    for change in (lambda: store.rename(run, who, was=""), lambda: store.write_note(run, who, was="")):
        try:
            change()
            print("won", flush=True)
        except ChangedError as error:
            print("told:", error, flush=True)
    store.tag(run, [who])
"""


def test_of_two_processes_that_change_a_run_at_once_the_second_is_told(own_store):
    words = [sys.executable, "-c", WRITER, own_store]
    writers = [Process([*words, who], stdin=PIPE, stdout=PIPE, text=True) for who in ("ann", "bob")]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("now\n")
        writer.stdin.flush()
    outcomes = [writer.communicate(timeout=60)[0].splitlines() for writer in writers]
    with open_store(own_store) as store:
        run = store.get("1")
        assert run.tags == ["ann", "bob"]
        for both, kept in zip(zip(*outcomes, strict=True), (run.display_name, run.note), strict=True):
            assert sorted(one.partition(":")[0] for one in both) == ["told", "won"]
            assert both[["ann", "bob"].index(kept)] == "won"
    assert len(changes_of(own_store)) == 4


def test_second_of_two_who_name_a_run_is_told_of_the_first(watched, serve, own_store):
    first, second = watched(), watched()
    for one in (first, second):
        one.page.goto(f"{serve(own_store)}/runs/1?tab=output")
    second.page.fill("#display-name", "of the second")
    first.page.fill("#display-name", "of the first")
    first.page.keyboard.press("Enter")
    first.page.wait_for_selector("#announce:text('name saved')")
    second.page.focus("#display-name")
    second.page.keyboard.press("Enter")
    second.page.wait_for_selector("#head-problem:has-text(\"somebody else named the run 'of the first'\")")
    assert second.page.input_value("#display-name") == "of the second"
    with open_store(own_store) as store:
        assert store.get("1").display_name == "of the first"
    second.page.keyboard.press("Enter")
    second.page.wait_for_selector("#announce:text('name saved')")
    with open_store(own_store) as store:
        assert store.get("1").display_name == "of the second"
    second.errors[:] = [error for error in second.errors if "409" not in error]


@pytest.mark.parametrize("changes", ["text", [1, {"what": {"a": 1}}], {"$gt": ""}])
def test_damaged_changes_hide_nothing(client_of, own_store, changes):
    with open_store(own_store) as store:
        store.backend.documents.change("notes", "", lambda _: {"changes": changes}, store.get("3").key)
    client = client_of(own_store, proxy=Proxy("10.0.0.5", "X-User"), token="a token that nobody guesses")
    client.get("/runs", params={"token": "a token that nobody guesses"})
    assert client.get("/runs/3").status_code == 200
    assert client.post("/list/tag", data={"run": "3", "add": "new"}).status_code == 200
    assert changes_of(own_store, "3")[-1] == (getpass.getuser(), "token", "tags: +new")
