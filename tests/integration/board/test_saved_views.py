"""Named views, in a folder and in a database."""

import getpass
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sacristan.runs import ChangedError, FilterError, StoreError, open_store
from sacristan.runs.board.access import Role, TokenFile
from sacristan.runs.stores.small_documents import SavedView

# Ranges of parallel coordinates, as the browser writes them.
BRUSHES = "brush.lr=0.02..&brush.kind=a&brush.kind=b"


def names(store, user="ann"):
    return [(view.name, view.owner) for view in store.views.visible(user)]


def test_views_are_private_or_shared_and_one_opens_first(own_store):
    with open_store(own_store) as store:
        assert (names(store), store.views.default("ann")) == ([], None)
        for view in (
            SavedView("losses", "where=lr%3C1", default_since="2026-01-02"),
            SavedView("Mine", "group=lr", "ann", "2026-01-01"),
            SavedView("losses", "group=seed", "bob"),
        ):
            store.views.save(view)
        assert names(store) == [("losses", ""), ("Mine", "ann")]
        assert names(store, "bob") == [("losses", ""), ("losses", "bob")]
        assert store.views.default("ann").name == "Mine"
        assert store.views.default("bob").query == "where=lr%3C1"
        assert len(store.find()) == 4  # a view is no run


def test_view_replaces_the_version_that_was_seen(own_store):
    with open_store(own_store) as store:
        first, second = SavedView("v", "page=1"), SavedView("v", "page=2")
        store.views.save(first)
        with pytest.raises(ChangedError, match="there is a view 'v' already"):
            store.views.save(second)
        store.views.save(second, first.version)
        with pytest.raises(ChangedError, match="there is a view 'v' already"):
            store.views.remove(first)
        store.views.remove(second)
        assert names(store) == []
        with pytest.raises(ChangedError, match="the view 'v' has been removed"):
            store.views.save(first, second.version)


def test_of_many_who_save_a_name_at_once_one_wins(own_store):
    def save(number):
        with open_store(own_store) as store:
            store.views.save(SavedView(f"own {number}", "a=1"))
            try:
                store.views.save(SavedView("same", f"number={number}"))
            except ChangedError:
                return None
            return f"number={number}"

    with ThreadPoolExecutor(4) as pool:
        won = [query for query in pool.map(save, range(8)) if query]
    with open_store(own_store) as store:
        assert [view.query for view in store.views.visible("ann") if view.name == "same"] == won
        assert len(store.views.visible("ann")) == 9


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (SavedView("", "a=1"), "got the name ''"),
        (SavedView("a\nb", "a=1"), "expected 1 to 80 printable"),
        (SavedView("x" * 81, "a=1"), "expected 1 to 80 printable"),
        (SavedView("v", "x" * 20_001), "got a view of 20001 characters"),
    ],
)
def test_invalid_view_is_rejected(recorded, view, problem):
    with open_store(recorded) as store, pytest.raises(FilterError, match=problem):
        store.views.save(view)


def test_damaged_view_hides_no_other_and_can_be_replaced(own_store, mongo_url):
    with open_store(own_store) as store:
        for name in ("a", "b"):
            store.views.save(SavedView(name, "x=1"))
        key = SavedView("a", "").key
        if own_store.startswith("mongodb"):
            store.backend.mongo.collections.views.update_one({"_id": key}, {"$set": {"query": 5}})
        else:
            (Path(own_store) / ".views" / f"{key}.json").write_text('{"name": ')
        assert names(store) == [("b", "")]
        store.views.save(SavedView("a", "x=2"))
        assert names(store) == [("a", ""), ("b", "")]


def test_what_is_no_file_in_the_place_of_a_view_hides_no_other(recorded, tmp_path):
    with open_store(shutil.copytree(recorded, tmp_path / "store")) as store:
        store.views.save(SavedView("a", "x=1"))
        (tmp_path / "store" / ".views" / "b.json").mkdir()
        os.mkfifo(tmp_path / "store" / ".views" / "c.json")
        assert names(store) == [("a", "")]


def test_shared_view_is_there_for_all_users_of_the_folder_whatever_the_umask(recorded, tmp_path):
    folder = shutil.copytree(recorded, tmp_path / "store")
    folder.chmod(0o1777)
    views = [SavedView("a", "x=1"), SavedView("a", "x=1", "ann")]
    before = os.umask(0o077)
    try:
        with open_store(folder) as store:
            for view in views:
                store.views.save(view)
    finally:
        os.umask(before)
    places = [folder / ".views", *(folder / ".views" / f"{view.key}.json" for view in views)]
    assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o1777, 0o644, 0o600]


def test_folder_that_cannot_be_written_keeps_the_view(recorded, tmp_path, monkeypatch):
    with open_store(shutil.copytree(recorded, tmp_path / "store")) as store:
        store.views.save(SavedView("a", "x=1"))

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.replace", full)
        with pytest.raises(StoreError, match="cannot be written"):
            store.views.save(SavedView("a", "x=2"), SavedView("a", "x=1").version)
        assert store.views.visible("ann")[0].query == "x=1"


def test_board_saves_and_opens_views(client_of, own_store):
    client = client_of(own_store)
    assert client.get("/", follow_redirects=False).headers["location"] == "/runs"
    form = {"name": " lr small ", "query": f"?where=lr%3C0.05&page=2&nonsense=1&hide=1&{BRUSHES}", "default": "1"}
    assert client.post("/list/view", data=form).json() == {"done": "view lr small saved"}
    [view] = client.get("/list/views").json()["views"]
    assert view.pop("version")
    assert view == {
        "name": "lr small",
        "url": f"/runs?where=lr%3C0.05&hide=1&{BRUSHES}",
        "shared": False,
        "default": True,
    }
    assert client.get("/", follow_redirects=False).headers["location"] == view["url"]
    assert client.post("/list/view", data=form).status_code == 409
    with open_store(own_store) as store:
        assert names(store, getpass.getuser()) == [("lr small", getpass.getuser())]
        store.views.save(SavedView("evil", "javascript:alert(1)//&where=<script>&brush.<b>=<script>"))
        store.views.save(SavedView("brushed alone", "brush.lr=..1"))
    urls = [one["url"] for one in client.get("/list/views").json()["views"]]
    assert urls[:2] == ["/runs?brush.lr=..1", "/runs?where=%3Cscript%3E&brush.%3Cb%3E=%3Cscript%3E"]
    assert client.post("/list/view/remove", data={"version": "0"}).status_code == 400
    readonly = client_of(own_store, is_read_only=True)
    assert readonly.post("/list/view", data=form).status_code == 403
    assert readonly.get("/", follow_redirects=False).headers["location"] == view["url"]


def test_view_is_saved_replaced_and_removed_in_the_browser(own_store, watched, serve):
    watch = watched()
    page = watch.page
    page.goto(f"{serve(own_store)}/runs?where=lr<0.05")
    page.keyboard.press("w")
    page.fill("#view-name", "small <b>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#views-list a:text-is('small <b>')")
    page.click("#views-dialog [data-close]")
    page.goto(f"{serve(own_store)}/runs?group=lr")
    page.keyboard.press("w")
    page.fill("#view-name", "small <b>")
    page.check("#save-view [name=default]")
    page.click("#save-view button.main")
    assert "save again to replace" in page.text_content("#save-view .problem")
    page.click("#save-view button.main")
    page.wait_for_selector("#views-list li:has-text('private, opens first')")
    page.goto(serve(own_store))
    page.wait_for_url("**/runs?group=lr")
    page.keyboard.press("w")
    page.click("#views-list button")
    page.wait_for_selector("#views-list :text('No view has been saved yet.')")


def save_view(page, name, *, shared):
    """Save what a page shows; leave its dialog open."""
    page.keyboard.press("w")
    page.fill("#view-name", name)
    page.set_checked("#save-view [name=shared]", shared)
    page.click("#save-view button.main")
    page.wait_for_selector(f"#views-list a:text-is('{name}')")


def views_of(page):
    """Open the dialog of the views; return name and kind of each."""
    page.keyboard.press("w")
    page.wait_for_selector("#views-dialog[open] li")
    return [line.split("\n") for line in page.locator("#views-list li").all_inner_texts()]


def test_shared_view_of_a_user_opens_in_the_browser_of_another_and_a_private_one_does_not(
    own_store, watched, serve, tmp_path
):
    tokens = TokenFile(tmp_path / "tokens.json")
    secrets = {name: tokens.add(name, role) for name, role in (("ann", Role.NOTE), ("bob", Role.READ))}
    base = serve(own_store, tokens=tokens)
    ann, bob = watched().page, watched(locale="en-GB").page  # another context: cookies of its own
    ann.goto(f"{base}/runs?where=lr<0.05&token={secrets['ann']}")
    ann.wait_for_selector("figure[data-ready]")
    save_view(ann, "small", shared=True)
    ann.click("#views-dialog [data-close]")
    save_view(ann, "hers", shared=False)
    bob.goto(f"{base}/?token={secrets['bob']}")
    bob.wait_for_selector("figure[data-ready]")
    assert views_of(bob) == [["small", "shared"]]
    bob.click("#views-list a")
    bob.wait_for_url("**/runs?where=lr%3C0.05")
    bob.wait_for_selector("figure[data-ready]")
    assert bob.locator("tbody tr").count() == 1
    ann.reload()
    ann.wait_for_selector("figure[data-ready]")
    assert views_of(ann) == [["hers", "private", "Remove"], ["small", "shared", "Remove"]]
