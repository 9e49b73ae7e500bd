"""Reading never executes code, whatever a folder or a database holds: payloads that would leave a file behind."""

from __future__ import annotations

import json
import os
import pickle
import uuid
from datetime import datetime
from pathlib import Path

import bson
import gridfs
import pymongo
import pytest

from sacristan.__main__ import main
from sacristan.runs import copy, open_store

UID = "0" * 31 + "1"
NAMES = [
    "../evil",
    "/tmp/evil-absolute",
    "a/../../evil",
    "ok.pkl",
    "Case.txt",
    "case.txt",
    "esc\x1b[31m\nname",
    "sub/x",
]


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def hostile(evil):
    """Return documents that decoders of jsonpickle, pickle and YAML would execute."""
    reduce = {"py/reduce": [{"py/type": "os.mkdir"}, {"py/tuple": [str(evil)]}]}
    return {
        "a": reduce,
        "b": {"py/object": "pathlib.Path", "py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(evil)]}]},
        "c": f"!!python/object/apply:os.mkdir ['{evil}']",
        "d": {"py/repr": f"os/os.mkdir({str(evil)!r})"},
        "e": {"py/tuple": [1, reduce]},
        "f": {"py/type": "os.system"},
    }


@pytest.fixture(params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
def store(request, tmp_path, mongo_url):
    """A store with one hostile run."""
    evil = tmp_path / "evil"
    files = {name: b"content of " + name.encode() for name in NAMES}
    files["ok.pkl"] = pickle.dumps(Payload(evil))
    entry = {
        "uid": UID,
        "status": "COMPLETED",
        "format": "sacristan-1",
        "command": f"\x1b]0;{evil}\x07",
        "start_time": "2026-01-01T00:00:00",
        "result": hostile(evil)["a"],
        "meta": hostile(evil),
        "resources": [],
    }
    experiment = {"name": "x\x1b[2J", "base_dir": str(tmp_path)}
    if request.param == "files":
        folder = tmp_path / "store" / "1"
        folder.mkdir(parents=True)
        run = entry | {"artifacts": NAMES, "experiment": experiment | {"sources": [[n, "1/ok.pkl"] for n in NAMES]}}
        (folder / "run.json").write_text(json.dumps(run))
        for name in ("config", "info", "provenance"):
            (folder / f"{name}.json").write_text(json.dumps(hostile(evil)))
        (folder / "config.yaml").write_text(hostile(evil)["c"])
        for name in NAMES[3:]:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(files[name])
        with open_store(tmp_path / "store") as opened:
            yield opened
    else:
        database = f"safety_{uuid.uuid4().hex}"
        with pymongo.MongoClient(mongo_url) as client:
            fs = gridfs.GridFS(client[database])
            ids = {name: fs.put(content, filename=name) for name, content in files.items()}
            run = entry | {name: hostile(evil) for name in ("config", "info", "provenance")}
            run |= {
                "start_time": datetime(2026, 1, 1),
                "experiment": experiment | {"sources": [[n, ids[n]] for n in NAMES]},
            }
            artifacts = [{"name": name, "file_id": ids[name]} for name in NAMES]
            code = {"code": bson.Code(f"os.mkdir({str(evil)!r})")}
            client[database].runs.insert_one(run | {"_id": 1, "artifacts": artifacts, "extra": code})
            with open_store(f"{mongo_url}/{database}") as opened:
                yield opened
            client.drop_database(database)
    assert not evil.exists()
    assert not Path("/tmp/evil-absolute").exists()


@pytest.fixture
def runs(store, capsys, monkeypatch, mongo_url):
    where = store.where if not store.where.startswith("mongodb") else f"{mongo_url}/{store.backend.mongo.database.name}"
    monkeypatch.setenv("SACRISTAN_STORE", where)

    def call(*words, code=0):
        assert main([str(word) for word in words]) == code
        return capsys.readouterr()

    return call


def test_payloads_for_jsonpickle_stay_data(store, runs):
    run = store.get("1")
    assert run.info["a"]["py/reduce"][0] == {"py/type": "os.mkdir"}
    assert run.config["d"]["py/repr"].startswith("os/os.mkdir")
    assert run.result["py/reduce"]
    assert store.find("info.c~python")[0].id == "1"
    store.frame()
    assert json.loads(runs("show", "1", "--json").out)["info"]["d"]["py/repr"].startswith("os/")


def test_tags_of_yaml_stay_text(store, runs, tmp_path):
    import yaml

    text = runs("config", "1").out
    assert yaml.safe_load(text)["c"].startswith("!!python/object/apply")


def test_pickle_as_an_artifact_stays_bytes(store, runs, tmp_path):
    data = store.get("1").artifacts["ok.pkl"].read()
    assert b"mkdir" in data
    runs("artifacts", "get", "1", "ok.pkl", "-o", tmp_path / "out")
    assert (tmp_path / "out" / "ok.pkl").read_bytes() == data


@pytest.mark.parametrize("kind", ["artifacts", "sources"])
def test_names_do_not_leave_the_folder_and_overwrite_nothing(store, runs, tmp_path, kind):
    out = tmp_path / "deep" / "out"
    printed = runs(kind, "get", "1", "-o", out, "--json", code=1)
    done = json.loads(printed.out)
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == {"ok.pkl", "Case.txt", "case.txt", "sub/x"}
    assert len(done["refused"]) == 4
    assert "\x1b" not in printed.err
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"out"}
    (out / "ok.pkl").write_bytes(b"mine")
    assert (
        "already exists; choose another folder, or use --force"
        in runs(kind, "get", "1", "ok.pkl", "-o", out, code=1).err
    )
    assert (out / "ok.pkl").read_bytes() == b"mine"
    runs(kind, "get", "1", "ok.pkl", "-o", out, "--force")
    assert (out / "ok.pkl").read_bytes() != b"mine"
    assert "expected one of: '../evil'" in runs(kind, "get", "1", "nope", "-o", out, code=1).err


def test_links_in_the_way_are_not_followed(store, runs, tmp_path):
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "sub").symlink_to(outside)
    (out / "ok.pkl").symlink_to(outside / "target")
    said = runs("artifacts", "get", "1", "sub/x", "ok.pkl", "-o", out, code=1).err
    assert "a link leads out of" in said
    assert "already exists" in said
    runs("artifacts", "get", "1", "sub/x", "ok.pkl", "-o", out, "--force", code=1)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("ls",), ("show", "1"), ("artifacts", "ls", "1"), ("sources", "ls", "1"), ("config", "1")]
)
def test_control_characters_are_printed_harmless(runs, words):
    out = runs(*words).out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_copies_and_archives_of_a_hostile_run_stay_in_their_place(store, runs, tmp_path, mongo_url, database):
    for target in (str(tmp_path / "target"), f"{mongo_url}/{database.name}"):
        with open_store(target, create=True) as there:
            copied = copy(store.get("1"), there)
            assert len([text for text in copied.left_out if "artifact" in text]) == 4
            assert set(copied.run.artifacts) == {"ok.pkl", "Case.txt", "case.txt", "sub/x"}
            assert copied.run.info["a"]["py/reduce"]
    runs("export", "1", "-o", tmp_path / "x.zip")
    runs("--store", tmp_path / "imported", "import", tmp_path / "x.zip")
    runs("rm", "1", "--yes")
    assert (tmp_path / "target" / "1" / "run.json").exists()
