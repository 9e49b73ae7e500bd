"""The pages of artifacts and checkpoints, over a folder and a real MongoDB."""

import re
import uuid

import pymongo
import pytest

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import open_store

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def logged(tmp_path_factory, mongo_url):
    """Two versions of an artifact: one run logs both, another one uses the first."""
    folder = tmp_path_factory.mktemp("artifacts")
    ex = Experiment("weights", base_dir=folder, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        training = {"monitor": "val/loss", "mode": "auto", "val_interval": 1}
        uses = False

    @ex.main
    def main(_run, uses):
        if uses:
            _run.use_artifact("net:v1")
            return
        for number in (1, 2):
            (folder / "net").mkdir(exist_ok=True)
            (folder / "net" / "layer.txt").write_text(f"weights {number}")
            (folder / "net" / "page.html").write_text(EVIL)
            _run.log_artifact("net", folder / "net", "model", metadata={"note": EVIL, "number": number})
        for step, loss in enumerate((3.0, 1.0, 2.0), 1):
            _run.log_scalar("val/loss", loss, 10 * step)
        kept = _run.folder / "checkpoints"
        (kept / "start").mkdir(parents=True)
        for name in ("best.pt", "last.pt", "best-000001.pt", "step-000000020.pt", "step-000000025.pt", "start/best.pt"):
            (kept / name).write_bytes(b"12345")

    ex.observers.append(FileObserver(folder / "store"))
    ex.observers.append(MongoObserver(mongo_url, "artifact_pages", failure_dir=folder / "spool"))
    ex.run(options={"--capture": "sys"})
    ex.run(config_updates={"uses": True}, options={"--capture": "sys"})
    yield {"folder": str(folder / "store"), "database": f"{mongo_url}/artifact_pages"}
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database("artifact_pages")


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def aliased(request, tmp_path):
    """A store with two versions of a model, whose runs have results, and their aliases."""
    ex = Experiment("aliased", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    where = str(tmp_path / "store")
    if request.param == "folder":
        ex.observers.append(FileObserver(where))
    else:
        mongo_url, name = request.getfixturevalue("mongo_url"), f"aliased_{uuid.uuid4().hex}"
        ex.observers.append(MongoObserver(mongo_url, name, failure_dir=tmp_path / "spool"))
        where = f"{mongo_url}/{name}"

    @ex.config
    def config():
        number = 1

    @ex.main
    def main(_run, number):
        (tmp_path / "net.pt").write_text(f"weights {number}")
        _run.log_artifact("net", tmp_path / "net.pt", "model").alias("champion" if number == 1 else "best")
        return {"accuracy": number / 2}

    for number in (1, 2):
        ex.run(config_updates={"number": number}, options={"--capture": "sys"})
    yield where
    if request.param == "database":
        with pymongo.MongoClient(mongo_url) as client:
            client.drop_database(name)


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def artifacts(request, logged):
    return logged[request.param]


def test_versions_and_their_lineage(artifacts):
    with open_store(artifacts) as store:
        made, used = store.get(1).uid, store.get(2).uid
        start = store.get(1).start_time
        assert store.artifacts() == ["net"]
        first, second = store.artifact_versions("net")
        assert store.artifact_versions("nothing") == []
        assert first.files["layer.txt"].read() == b"weights 1"
    assert (first.version, second.version, second.type) == (1, 2, "model")
    assert (first.made_by, first.used_by) == ((made,), (used,))
    assert (second.made_by, second.used_by) == ((made,), ())
    assert second.metadata == {"note": EVIL, "number": 2}
    assert (second.num_files, second.num_bytes) == (2, len(f"weights 2{EVIL}"))
    assert second.sizes["layer.txt"] == 9
    assert abs((first.created - start).total_seconds()) < 100


def test_artifacts_are_listed_with_their_newest_version(client_of, artifacts):
    text = client_of(artifacts).get("/artifacts").text
    assert '<a href="/artifacts/net">net</a>' in text
    assert "<td>v2</td>" in text


def test_an_artifact_is_shown_with_who_made_and_used_it(client_of, artifacts):
    client = client_of(artifacts)
    text = client.get("/artifacts/net").text
    assert re.findall(r'id="v(\d)"', text) == ["2", "1"]
    first = text.partition('id="v1"')[2]
    assert '<a href="/runs/1">' in first.partition("used by")[0]
    assert '<a href="/runs/2">' in first.partition("used by")[2]
    assert EVIL not in text
    for path in ("/artifacts/nothing", "/artifacts/..%2f..%2fetc", "/artifacts/%00"):
        assert client.get(path).status_code == 404


def test_files_are_downloaded_and_never_run(client_of, artifacts):
    client = client_of(artifacts)
    answer = client.get("/artifact-file", params={"name": "net", "version": 2, "path": "layer.txt"})
    assert answer.content == b"weights 2"
    answer = client.get("/artifact-file", params={"name": "net", "version": 2, "path": "page.html"})
    assert "sandbox" in answer.headers["content-security-policy"]
    for query in ({"version": 3, "path": "layer.txt"}, {"version": 1, "path": "../v1.json"}):
        assert client.get("/artifact-file", params={"name": "net", **query}).status_code == 404


def test_checkpoints_have_their_scores(client_of, artifacts):
    client = client_of(artifacts)
    text = client.get("/models").text
    rows = [re.findall(r">([^<>\n]*)</(?:a|td)>", row) for row in text.split("<tr>") if "checkpoints/" in row]
    assert {row[-6].removeprefix("checkpoints/"): row[-5:-1] for row in rows} == {
        "best.pt": ["2", "20", "val/loss (less is better)", "1"],
        "last.pt": ["3", "30", "val/loss (less is better)", "2"],
        "best-000001.pt": ["1", "10", "val/loss (less is better)", "3"],
        "step-000000020.pt": ["2", "20", "val/loss (less is better)", "1"],
        "step-000000025.pt": ["2.5", "25", "", "–"],
        "start/best.pt": ["–", "–", "", "–"],
    }
    file = {"tab": "files", "kind": "checkpoint", "name": "checkpoints/best-000001.pt"}
    assert "val/loss 3 (less is better), step 10, epoch 1" in client.get("/runs/1", params=file).text
    href = re.search(r'href="([^"]+best\.pt[^"]+)"', text)[1]
    assert client.get(href.replace("&amp;", "&")).content == b"12345"


def test_models_are_listed_with_aliases_and_results(client_of, aliased):
    text = client_of(aliased).get("/models").text.partition("<h2>Checkpoints")[0]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in text.split("<tr>")[2:]]
    assert [row[:3] for row in rows] == [["net:v2", "latest", "best"], ["net:v1", "champion", "0.5"]]


def test_alias_moves_on_the_page_and_the_second_of_two_is_told(client_of, aliased):
    client = client_of(aliased)
    form = {"name": "net", "alias": "champion", "version": "2", "was": "1"}
    assert client.post("/artifact-alias", data=form).json() == {"done": "net:champion names v2"}
    refused = client.post("/artifact-alias", data=form)
    assert refused.status_code == 409
    assert "net:champion names v2 since" in refused.json()["error"]
    for change in (
        {"alias": "../x"},
        {"alias": "v7"},
        {"version": "9", "was": ""},
        {"version": "x"},
        {"name": "../net"},
    ):
        assert client.post("/artifact-alias", data=form | change).status_code in (400, 404, 409)
    assert client.post("/artifact-alias", data=form | {"version": "", "was": "2"}).status_code == 200
    text = client.get("/artifacts/net").text
    assert "3 moves of aliases" in text or "4 moves of aliases" in text


def test_a_damaged_manifest_hides_no_other(client_of, tmp_path):
    folder = tmp_path / "_artifacts" / "versions" / "torn"
    folder.mkdir(parents=True)
    (folder / "v1.json").write_text("{")
    assert client_of(tmp_path).get("/artifacts").status_code == 200


def test_alias_is_moved_by_keyboard_on_a_phone_and_a_stale_page_is_told(aliased, watched, serve):
    watch = watched(viewport={"width": 390, "height": 800})
    page = watch.page
    page.goto(f"{serve(aliased)}/artifacts/net")
    page.get_by_role("combobox", name="Alias").focus()
    page.keyboard.type("stable")
    page.keyboard.press("Enter")
    page.locator('[data-alias="stable"][data-version="2"]').wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with open_store(str(aliased)) as store:
        store.aliases.move("net", "stable", 1)
    page.locator('[data-remove-alias="stable"]').focus()
    page.keyboard.press("Enter")
    page.get_by_text("net:stable names v1 since").wait_for()
    assert [error.partition("409")[1] for error in watch.errors] == ["409"]
    watch.errors.clear()
    page.goto(f"{serve(aliased)}/models")
    page.get_by_role("button", name="accuracy").focus()
    page.keyboard.press("Enter")
    names = page.locator("table[data-sortable] tbody th").all_inner_texts()
    page.keyboard.press("Enter")
    assert page.locator("table[data-sortable] tbody th").all_inner_texts() == names[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(logged, aliased, watched, serve, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = watched(color_scheme=scheme).page
    pages = [(logged["folder"], path) for path in ("/artifacts", "/artifacts/net", "/models")]
    for store, path in [*pages, (aliased, "/artifacts/net"), (aliased, "/models")]:
        page.goto(f"{serve(store)}{path}")
        found = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
