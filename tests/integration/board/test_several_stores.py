"""Several stores on one board: their addresses, the switcher, all runs in one list, and stores that are down."""

import re
import shutil
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.runs import open_store
from sacristan.runs.board.rendering import HERE

DOWN = "mongodb://127.0.0.1:1/lab?serverSelectionTimeoutMS=300"


@pytest.fixture(scope="module")
def stores(recorded, recorded_database, tmp_path_factory) -> dict[str, str]:
    """A database, a folder in which one run has a tag, and a database that is down."""
    mine = shutil.copytree(recorded, tmp_path_factory.mktemp("mine") / "store")
    with open_store(mine) as store:
        store.tag(store.get("2"), ["mine"])
    return {"lab": recorded_database, "mine": str(mine), "gone": DOWN}


def test_each_store_has_its_own_pages(client_of, stores):
    client = client_of(stores)
    assert client.get("/", follow_redirects=False).headers["location"] == "/s/lab/"
    assert client.get("/s/mine/", follow_redirects=False).headers["location"] == "/s/mine/runs"
    for name in ("lab", "mine"):
        text = client.get(f"/s/{name}/runs").text
        assert f'<details class="stores"><summary aria-label="Store: {name}">' in text
        assert 'href="/s/gone/"' in text
        links = re.findall(r'(?:href|action|data-watch|data-address)="(/[^"]*)"', text)
        own = [link for link in links if not re.match(r"/static/|/all|/s/\w+/$", link)]
        assert len(own) > 20
        assert [link for link in own if not link.startswith(f"/s/{name}/")] == []
    assert "mine" in client.get("/s/mine/list/rows").text
    assert '<span class="tag">mine</span>' not in client.get("/s/lab/list/rows").text
    assert client.post("/s/mine/list/tag", data={"run": "1", "add": "here"}).status_code == 200
    with open_store(stores["lab"]) as store:
        assert store.get("1").tags == []


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fetc", "none", "lab%00", "lab/..", "LAB"])
def test_other_names_of_stores_lead_nowhere(client_of, stores, name):
    client = client_of(stores)
    answer = client.get(f"/s/{name}/runs")
    assert answer.status_code == 404
    assert "digits" not in answer.text


def test_all_runs_are_in_one_list_that_sorts_and_filters(client_of, stores):
    client = client_of(stores)

    def rows(**query):
        answer = client.get("/all", params=query)
        return answer, re.findall(r'<a href="/s/(\w+)/runs/(\d+)">', answer.text)

    answer, found = rows(sort="id")
    assert answer.status_code == 200
    assert found == [
        ("lab", "1"),
        ("mine", "1"),
        ("lab", "2"),
        ("mine", "2"),
        ("lab", "3"),
        ("mine", "3"),
        ("lab", "4"),
        ("mine", "4"),
    ]
    assert "<strong>gone</strong>: " in answer.text
    assert rows(where="lr=0.01")[1] == [("lab", "2"), ("mine", "2")]
    assert rows(where="tags.mine=True", column="lr, tags")[1] == [("mine", "2")]
    assert [run for _, run in rows(sort="lr")[1]][:2] == ["2", "2"]
    assert [run for _, run in rows(sort="-lr")[1]][-2:] == ["2", "2"]
    answer, found = rows(where="lr<<1")
    assert (answer.status_code, found) == (400, [])
    assert rows(page="99999")[1] == []


def test_store_that_is_down_says_so_and_hurts_no_other(client_of, stores):
    client = client_of(stores)
    answer = client.get("/s/gone/runs", headers={"accept": "text/html"})
    assert answer.status_code == 503
    assert "127.0.0.1:1" in answer.text
    assert 'href="/s/lab/"' in answer.text
    assert client.get("/s/lab/runs").status_code == 200


@pytest.mark.slow
def test_visitor_moves_between_stores(serve, watched, stores):
    page = watched().page
    page.goto(serve({name: stores[name] for name in ("mine", "lab")}))
    page.wait_for_url("**/s/mine/runs")
    page.check("#runs tbody tr:first-child input[type=checkbox]")
    page.click(".stores summary")
    page.click(".stores >> text=lab")
    page.wait_for_url("**/s/lab/runs")
    page.wait_for_selector("#runs tbody tr:nth-child(4)")
    assert page.is_hidden("#actions")  # a selection belongs to its store
    page.fill("#find", "lr=0.01")
    page.press("#find", "Enter")
    page.wait_for_url("**/s/lab/runs?where=lr%3D0.01")
    page.wait_for_selector("figure svg.lines g[data-key]")
    page.click("#runs tbody th a")
    page.wait_for_url("**/s/lab/runs/2")
    page.click(".stores summary")
    page.click(".stores >> text=all stores")
    page.wait_for_url("**/all")
    page.click('a[href="/s/mine/runs/2"]')
    page.wait_for_url("**/s/mine/runs/2")
    page.fill("#note", "seen")
    page.click("#note-form button")
    page.wait_for_selector("#note-state:has-text('aved'), #note-state:has-text('note')")
    with open_store(stores["mine"]) as store:
        assert store.get("2").note == "seen"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a=x", "a=y"], "got two stores of the name 'a'; give each its own"),
        (["a=x", "y"], "got the store 'y' among several, expected NAME=y"),
        (["a=x", "../b=y"], "got the store '../b=y' among several"),
        (["a=x", "mongodb://ann:s3cret@host/lab"], "got the store '***@host/lab' among several"),
        (["a=nowhere", "b=nowhere2"], "there is no folder nowhere"),
    ],
)
def test_invalid_stores_are_rejected(tmp_path, monkeypatch, capsys, arguments, problem):
    monkeypatch.chdir(tmp_path)
    options = [word for one in arguments for word in ("--store", one)]
    assert main(["board", "--no-open", "--port", "0", *options]) == 1
    assert problem in capsys.readouterr().err


def test_scripts_import_only_what_others_export():
    exported, imported = {}, []
    for path in Path(HERE, "static").glob("*.js"):
        text = path.read_text()
        exported[path.name] = set(
            re.findall(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", text, re.MULTILINE)
        )
        for names, source in re.findall(r'^import \{([^}]*)\} from "\./([\w.]+)"', text, re.MULTILINE):
            imported += [
                (path.name, source, name.split(" as ")[0].strip()) for name in names.split(",") if name.strip()
            ]
    assert len(imported) > 30
    assert [one for one in imported if one[2] not in exported[one[1]]] == []


def test_addresses_in_pages_and_scripts_are_those_of_the_store():
    """Each address must begin with `rooted(...)` or `${root}`, or it leads to another store."""
    wrong = re.compile(r"""(?:href|action|src)="/(?!static/|s/|all")""")
    in_script = re.compile(r"""["`]/[a-z]+[/?"`]""")
    completed = re.compile(r"this\.url\(|\.replace\(")
    files = [*Path(HERE, "templates").glob("*.html"), *Path(HERE, "static").glob("*.js")]
    lines = [(path.name, line) for path in files for line in path.read_text().splitlines()]
    found = [line for line in lines if wrong.search(line[1])]
    found += [
        (name, line)
        for name, line in lines
        if name.endswith(".js") and in_script.search(line) and not completed.search(line)
    ]
    assert len(files) > 20
    assert found == []
