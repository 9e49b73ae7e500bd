"""Users and machines of runs: recorded, found, left out on request, and kept by queues, sessions and imports."""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import bson
import pytest
from starlette.testclient import TestClient

from sacristan import runs
from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs.board.access import Policy
from sacristan.runs.board.serving import create_app

# In two parts: the sources of a run are recorded as they are.
ADA = "ada-love" + "lace"
HOST = "enchanted-" + "forest"
LIST = "/runs?column=user&column=host"
STOCK = {"experiment": {"name": "old"}, "status": "COMPLETED", "start_time": "2020-01-01T00:00:00", "host": {}}


@pytest.fixture
def record(tmp_path, monkeypatch, database, mongo_url):
    """Record a run of a user in a folder and in a database; return its folder."""

    def recorded(user: str, options: dict | None = None, body=lambda _run: None, **meta_info) -> Path:
        monkeypatch.setenv("SACRISTAN_USER", user)
        ex = Experiment("shared", base_dir=Path(__file__).parent, save_git_info=False, system_metrics_s=None)
        ex.observers += [FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, database.name)]
        ex.main(body)
        run = ex.run(options={"--capture": "no", **(options or {})}, meta_info=meta_info)
        return Path(run.observers[0].dir)

    return recorded


def entry(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_runs_are_found_by_user_and_host_in_every_store(record, tmp_path, database, mongo_url, monkeypatch, capsys):
    for user in (ADA, "bob", ADA, ""):
        record(user)
    old = tmp_path / "runs" / "5"
    old.mkdir()
    (old / "run.json").write_text(json.dumps(STOCK))
    (old / "config.json").write_text("{}")
    database.runs.insert_one({"_id": 5, "config": {}, **STOCK})
    monkeypatch.setenv("SACRISTAN_USER", "bob")
    for where in (str(tmp_path / "runs"), f"{mongo_url}/{database.name}"):
        with runs.open_store(where) as store:
            found = {
                words: [run.id for run in store.find(words, sort="id")]
                for words in (f"user={ADA}", "user=me", "user!=me", "user in (me, nobody)", "user=None", "user~^ada")
            }
            assert list(found.values()) == [["1", "3"], ["2"], ["1", "3", "4", "5"], ["2"], ["5"], ["1", "3"]]
            assert [run.id for run in store.find({"user": "me"})] == ["2"]
            assert [run.id for run in store.find(runs.Words(ADA), sort="id")] == ["1", "3"]
            assert store.count(f"host={socket.gethostname()}") == 4
            assert store.get("4")["user"] == pwd.getpwuid(os.geteuid()).pw_name
        columns = ["--columns", "user,host", "--json"]
        assert runs_command(["ls", "--store", where, "--mine", *columns]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["id"], row["user"], row["host"]) for row in rows] == [("2", "bob", socket.gethostname())]
        assert runs_command(["show", "--store", where, "1"]) == 0
        assert ["user", ADA] in [line.split() for line in capsys.readouterr().out.splitlines()]
        assert runs_command(["rm", "--store", where, "1", "--mine"]) == 1
        assert "--tag, --mine and --sweep" in capsys.readouterr().err


def test_anonymous_run_names_neither_user_nor_machine(record, database):
    told = []

    def body(_run):
        _run.log_scalar("loss", 1.0)
        told.append((Path(_run.observers[0].dir) / "lease.json").read_text())

    folder = record(ADA, {"--anonymous": True}, body)
    assert not {"hostname", "user"} & entry(folder)["host"].keys()
    stored = database.runs.find_one()
    assert not {"hostname", "user"} & stored["host"].keys()
    assert "host" not in stored["lease"]
    texts = [*told, *(path.read_text("latin-1") for path in folder.rglob("*") if path.is_file()), str(stored)]
    assert [text for text in texts if ADA in text or f'"{socket.gethostname()}"' in text] == []
    resumed = record("bob", {"--anonymous": True}, body, resume=folder)
    assert resumed == folder
    assert [session["host"] for session in entry(folder)["sessions"]] == [None, None]
    assert "bob" not in (folder / "run.json").read_text()


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield all files of a folder, and what is in archives."""
    for path in folder.rglob("*"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path.name} {name}", archive.read(name)) for name in archive.namelist())
        elif path.is_file():
            yield path.name, path.read_bytes()


def pages_of(where: str) -> Iterator[tuple[str, bytes]]:
    """Yield the pages of the board that show run 1, and its tables and downloads."""
    with TestClient(create_app(lambda: runs.open_store(where), Policy()), base_url="http://127.0.0.1") as client:
        paths = ["/runs", LIST, "/compare?run=1", "/runs/1"]
        tabs = ("curves", "system", "output", "media", "files", "sources", "environment")
        for path in (*paths, *(f"/runs/1?tab={tab}" for tab in tabs)):
            answer = client.get(path)
            assert answer.status_code == 200
            yield path, answer.content


@pytest.mark.slow
def test_no_byte_of_files_documents_pages_and_exports_of_an_anonymous_run_names_user_or_machine(
    record, tmp_path, database, mongo_url, monkeypatch, capsys
):
    named = (ADA.encode(), HOST.encode())

    def body(_run):
        _run.log_scalar("loss", 1.0)
        _run.alert("look here")
        print("trained")

    def places_that_name() -> set[str]:
        found = [("file " + name, content) for name, content in files_below(tmp_path / "runs")]
        for name in database.list_collection_names():
            found += [(f"document of {name}", bson.encode(document)) for document in database[name].find()]
        for where in (str(tmp_path / "runs"), f"{mongo_url}/{database.name}"):
            found += pages_of(where)
            out = tmp_path / f"out{len(found)}"
            for format in ("zip", "rocrate", "csv", "json"):
                (out / format).mkdir(parents=True)
                words = ["--format", format, "-o", str(out / format / f"x.{'zip' if len(format) > 4 else format}")]
                assert runs_command(["--store", where, "export", "1", *words]) == 0
            assert runs_command(["--store", where, "report", "1", "-o", str(out / "report.html")]) == 0
            found += files_below(out)
            capsys.readouterr()
            for words in (["show", "1", "--json"], ["show", "1"], ["ls", "--columns", "user,host"]):
                assert runs_command(["--store", where, *words]) == 0
                found.append((words[0], capsys.readouterr().out.encode()))
        return {place for place, content in found if any(word in content for word in named)}

    def recorded(**options) -> None:
        with monkeypatch.context() as there:
            there.setattr(socket, "gethostname", lambda: HOST)
            there.setattr(platform, "node", lambda: HOST)
            record(ADA, options, body)
        monkeypatch.setenv("SACRISTAN_USER", "reader")

    recorded(**{"--anonymous": True})
    assert places_that_name() == set()
    (tmp_path / "runs" / "1").rename(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    database.client.drop_database(database.name)
    recorded()
    # The search finds them where they are.
    expected = {
        "file run.json",
        "document of runs",
        LIST,
        "/runs/1",
        "x.zip 1/run.json",
        "x.zip ro-crate-metadata.json",
    }
    assert places_that_name() >= expected | {"x.csv", "x.json", "report.html", "show", "ls"}


def test_sessions_and_queued_runs_name_who_started_them(record):
    folder = record(ADA)
    assert record("bob", resume=folder) == folder
    assert entry(folder)["host"]["user"] == ADA
    assert [session["user"] for session in entry(folder)["sessions"]] == [ADA, "bob"]
    queued = record(ADA, {"--queue": True})
    assert entry(queued)["status"] == "QUEUED"
    assert record("bob", queued=queued) == queued
    assert (entry(queued)["status"], entry(queued)["host"]["user"]) == ("COMPLETED", ADA)
