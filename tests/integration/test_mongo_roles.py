"""The roles of docs/howto/limit_rights_in_mongodb.md, created as the page says, on a server that asks for passwords."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pymongo
import pytest
import yaml
from starlette.testclient import TestClient

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import Mongod, open_store
from sacristan.runs.board.security import Policy
from sacristan.runs.board.serving import create_app
from tests.processes import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "limit_rights_in_mongodb.md").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the page's roles and a user of each; URLs by role, and a client of the administrator."""
    with Mongod(tmp_path_factory.mktemp("roles"), options=["--auth"]) as server:
        with pymongo.MongoClient(server.url) as first:
            first.admin.command("createUser", "root", pwd="root", roles=["root"])
        with pymongo.MongoClient(server.url, username="root", password="root") as admin:
            for text in re.findall(r"^db\.createRole\((\{.*?^\})\)", PAGE, re.MULTILINE | re.DOTALL):
                role = yaml.safe_load(text)  # the page's JavaScript is YAML, too
                admin.lab.command("createRole", role.pop("role"), **role)
            urls = {}
            for role in ("reader", "recorder", "keeper"):
                admin.lab.command("createUser", f"a-{role}", pwd="word", roles=[role])
                urls[role] = f"mongodb://a-{role}:word@127.0.0.1:{server.port}/lab"
            yield urls, admin


@pytest.mark.skipif(shutil.which("mongosh") is None, reason="mongosh is not installed (npm install -g mongosh)")
def test_blocks_of_the_page_run_in_mongosh_as_they_are(tmp_path):
    blocks = re.findall(r"^```js\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    with Mongod(tmp_path / "server", options=["--auth"]) as server:
        with pymongo.MongoClient(server.url) as first:
            first.admin.command("createUser", "root", pwd="root", roles=["root"])
        url = f"mongodb://root:root@127.0.0.1:{server.port}/admin"
        typed = "\n".join(blocks).replace("passwordPrompt()", '"word"')  # which reads the terminal
        (tmp_path / "typed.js").write_text(typed)
        with (tmp_path / "typed.js").open() as stdin:
            done = run(["mongosh", "--quiet", url], stdin=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        with pymongo.MongoClient(f"mongodb://ada:word@127.0.0.1:{server.port}/lab") as ada:
            ada.lab.runs.insert_one({})
            ada.lab.metrics.delete_many({})  # the right of the second block
            with pytest.raises(pymongo.errors.OperationFailure, match="not authorized"):
                ada.lab.runs.delete_many({})


@pytest.fixture
def urls(server):
    """The URLs; the runs are gone afterwards."""
    yield server[0]
    for name in server[1].lab.list_collection_names():
        server[1].lab.drop_collection(name)


@pytest.fixture
def record(tmp_path, caplog):
    """Record a run in a folder and, as a user, in the database; return the lines about MongoDB."""

    def recorded(url, body=lambda _run: _run.log_scalar("loss", 1.0), **meta_info):
        caplog.clear()
        ex = Experiment("small", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
        ex.add_config(lr=0.1)
        ex.observers += [FileObserver(tmp_path / "runs"), MongoObserver(url, "lab")]
        ex.main(body)
        (tmp_path / "made.txt").write_text("made")
        ex.pre_run_hook(lambda _run: _run.add_artifact(tmp_path / "made.txt"))
        ex.run(options={"--capture": "no"}, meta_info=meta_info)
        return [line.getMessage() for line in caplog.records if "MongoDB at" in line.getMessage()]

    return recorded


@pytest.fixture
def refused(capsys):
    """Call a command of `runs` that is refused in one line; check the right that it names."""

    def call(url, right, *words):
        assert runs_command([words[0], "--store", url, *words[1:]]) in (1, 2), words
        err = capsys.readouterr().err
        assert f"the user has no rights to {right} (not authorized)" in err, err
        assert "a-re" not in err

    return call


@pytest.mark.slow
def test_recorder_records_and_changes_runs_and_removes_none(tmp_path, server, urls, record, refused, capsys):
    url, lab = urls["recorder"], server[1].lab
    assert record(url) == []
    assert lab.runs.find_one()["status"] == "COMPLETED"
    assert len(lab.runs.index_information()) > 1
    for words in (["tag", "1", "good"], ["note", "1", "so"], ["reap"], ["ls"]):
        assert runs_command([words[0], "--store", url, *words[1:]]) == 0, words
    for words in (["rm", "1"], ["rm", "1", "--now"], ["gc"]):
        refused(url, "remove in lab.runs", *words, *(["--yes"] if words[0] == "rm" else []))
    assert lab.removed.count_documents({}) == 0
    with open_store(url) as store:
        assert [(run.status, run.tags) for run in store] == [("COMPLETED", ["good"])]
    capsys.readouterr()
    assert runs_command(["copy", "1", "--store", url, "--to", str(tmp_path / "other")]) == 0
    lab.runs.delete_one({})
    assert runs_command(["copy", "1", "--store", str(tmp_path / "other"), "--to", url]) == 0
    for collection in ("runs", "metrics", "fs.files", "artifacts"):
        with pytest.raises(pymongo.errors.OperationFailure), pymongo.MongoClient(url) as client:
            client.lab[collection].delete_many({})
        with pytest.raises(pymongo.errors.OperationFailure), pymongo.MongoClient(url) as client:
            client.lab[collection].drop()


@pytest.mark.slow
def test_reader_looks_at_runs_and_is_told_which_right_it_lacks(tmp_path, server, urls, record, refused, capsys):
    record(urls["recorder"])
    record(urls["recorder"])
    url = urls["reader"]
    looks = (
        ["ls"],
        ["show", "1"],
        ["compare", "--by", "lr", "--metric", "loss.last"],
        ["diff", "1", "2"],
        ["metrics", "1"],
    )
    for words in (*looks, ["log", "1"], ["artifacts", "ls", "1"], ["export", "1", "-o", str(tmp_path / "one.zip")]):
        assert runs_command([words[0], "--store", url, *words[1:]]) == 0, (words, capsys.readouterr().err)
    capsys.readouterr()
    refused(url, "update in lab.runs", "tag", "1", "good")
    refused(url, "update in lab.runs", "note", "1", "so")
    for words in (["rm", "1", "--yes"], ["gc"]):
        refused(url, "remove in lab.runs", *words)
    policy = Policy()
    with TestClient(create_app(lambda: open_store(url), policy), base_url="http://127.0.0.1") as board:
        for page in ("/runs", "/runs?where=user=me", "/runs/1", "/compare?run=1&run=2", "/artifacts", "/sweeps"):
            assert board.get(page).status_code == 200, page
        form = {"run": ["1"], "add": "good", "csrf": ""}
        answer = board.post("/list/tag", data=form, headers={"origin": "http://127.0.0.1"})
        assert answer.status_code >= 400
        assert "the user has no rights to update in lab.runs" in answer.text
    # A reader who records: nothing is lost, and a recorder delivers it.
    first, last = record(url)
    assert "the user has no rights to insert in lab.runs (not authorized)" in first
    assert "sacristan sync" in last
    assert runs_command(["sync", str(tmp_path / "runs"), "--url", url]) == 1
    assert "no rights to insert in lab.runs" in capsys.readouterr().err
    assert runs_command(["sync", str(tmp_path / "runs"), "--url", urls["recorder"]]) == 0
    assert server[1].lab.runs.count_documents({"status": "COMPLETED"}) == 3


@pytest.mark.slow
def test_keeper_does_all_that_runs_can(tmp_path, server, urls, record, capsys):
    url, lab = urls["keeper"], server[1].lab
    for _ in range(3):
        assert record(url) == []
    for words in (["rm", "1", "--yes"], ["restore", "1"], ["rm", "1", "--now", "--yes"], ["rm", "2", "--yes"], ["gc"]):
        assert runs_command([words[0], "--store", url, *words[1:]]) == 0, (words, capsys.readouterr().err)
    assert [run["_id"] for run in lab.runs.find()] == [3]
    assert lab.metrics.count_documents({}) == 1
    # The page's role of earlier versions has no right to list indexes.
    right = [{"resource": {"db": "lab", "collection": ""}, "actions": ["listIndexes"]}]
    lab.command("revokePrivilegesFromRole", "keeper", privileges=right)
    assert runs_command(["gc", "--store", url]) == 0, capsys.readouterr().err
    lab.command("grantPrivilegesToRole", "keeper", privileges=right)


def test_rewound_run_waits_for_the_right_that_the_page_adds(tmp_path, server, urls, record, capsys):
    positions = []

    def body(_run):
        if positions:
            _run.rewind(positions[0], 1)
        _run.log_scalar("loss", 1.0, 1)
        positions.append(_run.position())
        _run.log_scalar("loss", 2.0, 2)

    url, admin = urls["recorder"], server[1]
    assert record(url, body) == []
    first, _ = record(url, body, resume=tmp_path / "runs" / "1")
    assert "the user has no rights to remove in lab.metrics (not authorized)" in first
    names = re.search(r'db\.grantPrivilegesToRole\("recorder", (\[.*?\])\.map', PAGE)
    more = [{"resource": {"db": "lab", "collection": name}, "actions": ["remove"]} for name in yaml.safe_load(names[1])]
    admin.lab.command("grantPrivilegesToRole", "recorder", privileges=more)
    try:
        assert runs_command(["sync", str(tmp_path / "runs"), "--url", url]) == 0, capsys.readouterr().err
    finally:
        admin.lab.command("revokePrivilegesFromRole", "recorder", privileges=more)
    assert admin.lab.runs.find_one()["revision"] == 1


SCRIPT = """
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
ex = Experiment("tiny", system_metrics_s=None)

@ex.config
def config():
    x = 0.0

@ex.main
def main(_run, x):
    _run.log_scalar("loss", (x - 2) ** 2, 0)
    return x

if __name__ == "__main__":
    ex.run_commandline()
"""


@pytest.mark.slow
def test_recorder_queues_works_and_sweeps(tmp_path, server, urls):
    (tmp_path / "tiny.py").write_text(
        SCRIPT.replace('"tiny",', '"tiny", ingredients=[sweep.ingredient],').replace(
            "\nex =", "\nfrom ingredients import sweep\nex =", 1
        )
    )
    url, lab = urls["recorder"], server[1].lab

    def call(*words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SACRISTAN_DRAIN_S": "30"}
        done = run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "no rights" not in done.stdout + done.stderr
        return done.stdout

    call("tiny.py", "--queue", "-m", url, "with", "x=1.0")
    call("-m", "sacristan", "--store", url, "work", "--until-empty", "--", "-m", url)
    assert [run["status"] for run in lab.runs.find()] == ["COMPLETED"]
    (tmp_path / "spec.yaml").write_text(
        "method: grid\nmetric: {name: loss, goal: minimize}\nparameters: {x: {values: [0.0, 1.0]}}\n"
    )
    out = call("tiny.py", "sweep.run", "with", "sweep.spec=spec.yaml", "sweep.id=s", "-m", url)
    assert "2 of 2 done" in out
    assert lab.sweep_agents.count_documents({}) == 0
