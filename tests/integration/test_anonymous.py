"""Anonymous exports: no byte names a person, a machine or a place, and the runs can still be read and compared."""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import json
import os
import pickle
import signal
import sqlite3
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas
import pymongo
import pytest
import torch

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Image, MongoObserver, Text
from sacristan.runs import StoreError, export_runs, import_foreign, import_runs, open_store
from sacristan.runs.transfer.anonymous import anonymised
from sacristan.runs.transfer.packed_files import Budget, members
from tests.folders import read_files
from tests.processes import Process

USER, HOST, HOME = "adalove", "box17.lab.example", "/home/adalove"
COMMIT = "8cd7fc8ede9be0e8557418787a2d15edc8b4f779"
WORDS = (USER, HOST, "ada.love@uni.edu", "enchantress", "secretlab", COMMIT[:7])


def every_byte(name, data):
    """Yield names and contents, unpacked without the lab's own code."""
    yield name.encode() + b"\n" + data
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                yield from every_byte(info.filename, archive.read(info))
    elif data[:2] == b"\x1f\x8b":
        yield from every_byte("", gzip.decompress(data))
    elif data[:3] == b"BZh":
        yield from every_byte("", bz2.decompress(data))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                yield from every_byte(member.name, tar.extractfile(member).read())
    elif data[:4] == b"PAR1":
        yield pandas.read_parquet(io.BytesIO(data)).to_csv().encode()
    elif data[:6] == b"SQLite":
        database = sqlite3.connect(":memory:")
        database.deserialize(data)
        yield "".join(database.iterdump()).encode()
        database.close()
    elif data[:4] == b":W&B":
        yield from (record for _, record in members(name, data, Budget()))


def left_in(place, words=WORDS):
    """Return the words that are left in a file, or in the names and files of a folder."""
    files = [place] if place.is_file() else place.rglob("*")
    pieces = [every_byte(str(path.relative_to(place)), path.read_bytes() if path.is_file() else b"") for path in files]
    text = b"\n".join(piece for each in pieces for piece in each).lower()
    assert text
    return {word for word in words for code in ("utf-8", "utf-16-le") if word.lower().encode(code) in text}


def nested(text):
    """Return a ZIP in a gzip in a tar."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(f"{USER}/notes.txt", text)
    data = gzip.compress(inner.getvalue())
    outer = io.BytesIO()
    with tarfile.open(fileobj=outer, mode="w") as tar:
        info = tarfile.TarInfo(f"of_{USER}.zip.gz")
        info.uname, info.size = USER, len(data)
        tar.addfile(info, io.BytesIO(data))
    return outer.getvalue()


def database_that_splits(word):
    """Return a database that holds a word on two pages, so that none has all of it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE people (name)")
        # Pages of 4092 bytes are filled from the end of a long value.
        database.execute("INSERT INTO people VALUES (?)", ["x" * 4000 + f" {word} " + "x" * (2 * 4092 - 4)])
        data = database.serialize()
    assert word.encode() not in data
    return data


def files():
    """Return contents that hide the user in many ways, by name."""
    weights = io.BytesIO()
    torch.save({"w": torch.ones(3), "path": f"{HOME}/secretlab/data"}, weights)
    notebook = {"cells": [{"source": [f"open('{HOME}/x')"], "outputs": [{"text": f"{USER.upper()}@{HOST}"}]}]}
    table = io.BytesIO()
    pandas.DataFrame({"who": [USER, "b"]}).to_parquet(table, compression="gzip")
    return {
        "table.parquet": table.getvalue(),
        "people.db": database_that_splits(USER),
        f"{USER}_report.txt": f"by {USER.title()} of SECRETLAB, see http://x/?p=%2Fhome%2F{USER}%2Fa".encode(),
        "deep.tar": nested(f"{USER} was here"),
        "packed.bz2": bz2.compress(f"{USER}\n".encode()),
        "book.ipynb": json.dumps(notebook).encode(),
        "weights.pt": weights.getvalue(),
        "odd.pickle": pickle.dumps({"user": USER}),
        "wide.txt": USER.encode("utf-16"),
        "coded.txt": base64.b64encode(f"by {USER}!".encode()),
        "events.out.tfevents.1": b"\0\1\2\3" + f"{HOME}\xff".encode("latin-1"),
        "plain.bin": bytes(range(256)),
        "words.txt": b"annual Ann banana",
    }


def named(record):
    """Return a record with the person, the machine and the places."""
    record["host"] |= {"hostname": HOST, "user": USER}
    record["experiment"]["repositories"] = [
        {"url": "git@github.com:enchantress/engine.git", "commit": COMMIT, "dirty": False}
    ]
    return record | {"cwd": f"{HOME}/work", "command_line": ["exp.py", "-m", f"{HOST}:27017"]}


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    """Two runs whose records name a person, a machine and places in every part."""
    return record(tmp_path_factory.mktemp("named"), lambda folder: FileObserver(folder / "runs"))


def record(folder, observer):
    ex = Experiment("review", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(observer(folder))
    ex.add_config(lr=0.1, root=f"{HOME}/secretlab/data", secretlab={"rate": 1})

    @ex.main
    def run(_run, lr):
        for step in range(5):
            _run.log_scalar("train/loss", lr / (step + 1), step)
            _run.log_scalar("secretlab/score", step, step)
        _run.log_media("words", Text(f"written by {USER}"), 0)
        _run.log_media("image", Image(np.eye(4)), 0)
        _run.info["who"] = f"{USER} <ada.love@uni.edu>"
        for name, data in files().items():
            (folder / name).write_bytes(data)
            _run.add_artifact(folder / name, name)
        print(f"reading {HOME}/secretlab/data on {HOST}, commit {COMMIT[:7]}")
        return lr

    ex.run()
    ex.run(config_updates={"lr": 0.2})
    for id in "12" if (folder / "runs").exists() else ():
        path = folder / "runs" / id / "run.json"
        path.write_text(json.dumps(named(json.loads(path.read_text()))))
    if not (folder / "runs").exists():
        return None
    with open_store(folder / "runs") as store:
        store.write_note(store.tag(store.get("1"), [USER]), f"ask {USER} in {HOME}")
    return folder / "runs"


def export_anonymous(runs, path, hide=(), keep=()):
    with anonymised(runs, path, hide, keep=keep) as anonymous:
        export_runs(anonymous.runs, anonymous.output)
    return anonymous


@pytest.fixture(scope="module")
def archive(runs_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "review.zip"
    with open_store(runs_folder) as store:
        return path, export_anonymous([store.get("1"), store.get("2")], path, ["secretlab", "ann"], ["plain.bin"])


def test_no_byte_of_an_anonymous_archive_names_anyone(archive):
    path, done = archive
    assert left_in(path) == set()
    replaced = {word.lower() for word in done.replaced}
    assert {USER, HOST, "secretlab", "enchantress"} <= replaced
    told = " ".join(done.left_out)
    for name in ("odd.pickle", "wide.txt", "events.out.tfevents.1", "table.parquet", "people.db"):
        assert f"'{name}'" in told
    assert "weights.pt" not in told
    assert "plain.bin" not in told
    assert done.removed == {"text in base64": 2}
    assert done.unsearched.keys() == {"its format cannot be searched", "numbers", "pixels"}
    listed = path.with_name("review.zip.replaced.json")
    assert listed.stat().st_mode & 0o777 == 0o600
    assert json.loads(listed.read_text())["replaced"][USER]["by"] == "person-1"
    assert sorted(file.name for file in path.parent.iterdir()) == ["review.zip", "review.zip.replaced.json"]


WANDB = pytest.mark.skipif(find_spec("wandb") is None, reason="needs the extra wandb")
FORMATS = {
    "runs.csv": (),
    "points.csv": ("--metrics",),
    "secret.json": ("--metrics", "secretlab/score"),
    "runs.parquet": (),
    "crate.zip": ("--format", "rocrate"),
    "logs": ("--format", "tensorboard"),
    "wandb": ("--format", "wandb"),
    "mlflow": ("--format", "mlflow"),
}


@pytest.mark.parametrize(
    "name",
    [
        "secret.json",
        pytest.param("logs", marks=pytest.mark.slow),
        pytest.param("wandb", marks=[pytest.mark.slow, WANDB]),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("runs.csv", "points.csv", "runs.parquet", "crate.zip", "mlflow")
        ),
    ],
)
def test_no_format_names_anyone(name, runs_folder, tmp_path, capsys):
    home = tmp_path / USER  # whose own path must not be in the output either
    words = ["--store", str(runs_folder), "export", "1", "2", "--anonymous", "--hide", "secretlab", "--keep", "plain.*"]
    words += FORMATS[name]
    assert main([*words, "-o", str(home / name)]) == 0
    out, err = capsys.readouterr()
    assert left_in(home / name) == set()
    assert "none of the replaced words is left in what was searched" in out
    assert f"replaced '{USER}' by 'person-" in err
    assert sorted(path.name for path in home.iterdir()) == sorted([name, f"{name}.replaced.json"])
    if name == "secret.json":
        assert [point["name"] for point in json.loads((home / name).read_text())] == ["hidden-1/score"] * 10
    if not (home / name).is_dir():
        return
    assert main([*words, "-o", str(home / name)]) == 1
    assert "has files, which would not be searched; name a new folder" in capsys.readouterr().err
    sources = {"logs": home.glob("logs/*"), "mlflow": [home / "mlflow" / "mlflow.db"]}
    for source in sources.get(name, [home / name]):
        with open_store(tmp_path / "back", create=True) as back:
            assert {run.outcome for run in import_foreign(source, back)} == {"new"}
    with open_store(tmp_path / "back") as back:
        values = [run.metric("hidden-1/score").values.tolist() for run in back]
        assert values == [[0, 1, 2, 3, 4]] * 2
        if name == "mlflow":
            assert all(run.artifacts["files/plain.bin"].read() == bytes(range(256)) for run in back)


def test_anonymous_table_goes_to_stdout(runs_folder, capfd):
    words = [
        "--store",
        str(runs_folder),
        "export",
        "1",
        "--anonymous",
        "--format",
        "csv",
        "--columns",
        "root,host.user",
    ]
    assert main(words) == 0
    header, row = capfd.readouterr().out.splitlines()
    assert header == "id,root,host.user"
    assert row.startswith("1,/path-")
    assert USER not in row


@pytest.mark.slow
def test_runs_of_a_database_are_anonymous(tmp_path, mongo_url, capsys):
    record(tmp_path, lambda folder: MongoObserver(mongo_url, "reviewed", failure_dir=folder / "spool"))
    with pymongo.MongoClient(mongo_url) as client:
        for document in client.reviewed.runs.find():
            client.reviewed.runs.replace_one({"_id": document["_id"]}, named(document))
    words = ["--store", f"{mongo_url}/reviewed", "export", "1", "2", "--anonymous", "--hide", "secretlab", "-o"]
    address = mongo_url.removeprefix("mongodb://")
    for name in ("review.zip", "runs.csv"):
        assert main([*words, str(tmp_path / "out" / name)]) == 0
        assert left_in(tmp_path / "out" / name, (*WORDS, address)) == set()
        assert "none of the replaced words is left in what was searched" in capsys.readouterr().out
    with open_store(tmp_path / "back", create=True) as back:
        import_runs(tmp_path / "out" / "review.zip", back)
        assert back.get("1").metric("hidden-1/score").values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "moment"), [("review.zip", "runs/2"), pytest.param("logs", "output/*", marks=pytest.mark.slow)]
)
def test_killed_export_leaves_nothing_visible_and_the_next_one_cleans_up(name, moment, runs_folder, tmp_path):
    words = ["--store", str(runs_folder), "export", "1", "2", "--anonymous", *FORMATS.get(name, ()), "-o"]
    for at in ("killed", "whole"):
        (tmp_path / at).mkdir()
    place = tmp_path / "killed" / name
    with Process([sys.executable, "-m", "sacristan", *words, str(place)], cwd=tmp_path) as process:
        while process.poll() is None and not any(place.parent.glob(f".{name}.incomplete/content/{moment}")):
            os.sched_yield()  # the moment is shorter than the pause of `wait_for`
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [path.name for path in place.parent.iterdir()] == [f".{name}.incomplete"]
    for path in (place, tmp_path / "whole" / name):
        assert main([*words, str(path)]) == 0
        assert sorted(each.name for each in path.parent.iterdir()) == [name, f"{name}.replaced.json"]
    assert contents(place) == contents(tmp_path / "whole" / name)


def contents(place):
    if place.is_file():
        return place.read_bytes()
    return read_files(place)


def test_anonymous_runs_can_be_read_and_compared(archive, runs_folder, tmp_path):
    with open_store(tmp_path / "back", create=True) as back, open_store(runs_folder) as store:
        import_runs(archive[0], back)
        runs = sorted(back, key=lambda run: run.start_time)
        for run, original in zip(runs, (store.get("1"), store.get("2")), strict=True):
            assert (run.uid, run.status, run.result) == (original.uid, "COMPLETED", original.result)
            assert run.metric("train/loss").values.tolist() == original.metric("train/loss").values.tolist()
            assert run.config.lr == original.config.lr
            assert [medium.name for medium in run.media] == ["words", "image"]
            assert run.media[0].content.read() == b"written by person-1"
            assert run.artifacts["plain.bin"].read() == bytes(range(256))
            assert run.artifacts["words.txt"].read() == b"annual hidden-2 banana"
            weights = torch.load(io.BytesIO(run.artifacts["weights.pt"].read()), weights_only=True)
            assert weights["w"].tolist() == [1, 1, 1]
            assert run.host == ""
        assert main(["--store", back.where, "compare", "--by", "lr", "--metric", "result", "--max"]) == 0
        assert main(["--store", back.where, "show", "1"]) == 0
        assert main(["--store", back.where, "diff", "1", "2"]) in (0, 1)


def test_common_word_stays_but_for_fields_and_home_folders(runs_folder, tmp_path):
    with open_store(runs_folder) as store:
        run = store.get("1")
        run.document["host"]["user"] = "root"
        done = export_anonymous([run], tmp_path / "one.zip")
    assert "root" in done.common
    assert "root" not in done.replaced
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert "root" in json.loads(archive.read("1/config.json"))
        assert "user" not in json.loads(archive.read("1/run.json"))["host"]


def test_archive_in_which_a_word_is_left_is_not_written(runs_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sacristan.runs.transfer.hidden_words.HiddenWords.text", lambda self, text: text)
    with (
        open_store(runs_folder) as store,
        pytest.raises(StoreError, match="words to hide are left, so nothing is writ"),
    ):
        export_anonymous([store.get("1")], tmp_path / "one.zip")
    assert not list(tmp_path.iterdir())


def test_run_that_goes_on_is_refused(tmp_path):
    ex = Experiment("going", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.main
    def run(_run):
        refused = pytest.raises(StoreError, match="run 1 is RUNNING; export it when it is whole")
        with open_store(tmp_path / "runs") as store, refused:
            export_anonymous([store.get("1")], tmp_path / "one.zip")
        return 1

    assert ex.run().result == 1
    assert not (tmp_path / "one.zip").exists()


def test_command_says_what_was_replaced_and_what_cannot_be_proven(runs_folder, tmp_path, capsys):
    words = ["--store", str(runs_folder), "export", "1", "--anonymous", "--hide", "secretlab", "-o"]
    assert main([*words, str(tmp_path / "one.zip")]) == 0
    out, err = capsys.readouterr()
    assert "none of the replaced words is left in what was searched" in out
    assert f"replaced '{USER}' by 'person-1'" in err
    assert "not searched: numbers (" in out
    assert "artifact 'plain.bin': it is left out, as its format cannot be searched; --keep plain.bin exports it" in err
    assert "one.zip.replaced.json to yourself" in err
    assert main([*words, "http://ann:pw@h", "--format", "mlflow"]) == 1
    assert "got --anonymous and the address http://ann:***@h, expected a folder" in capsys.readouterr().err
    assert main([*words[:-5], "--hide", "a", "-o", "x.zip"]) == 1
    assert "got --hide without --anonymous" in capsys.readouterr().err


def test_name_in_the_name_of_a_metric_is_hidden_or_kept_as_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SACRISTAN_USER", USER)
    ex = Experiment("mine", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.main
    def run(_run):
        _run.log_scalar(f"{USER}/loss", 1.0, 0)
        print(f"whoami:\\n{USER}")

    ex.run()
    path = next((tmp_path / "runs").glob("*/provenance.json"))
    coded = base64.b64encode(f"by {USER}".encode()).decode()
    provenance = json.loads(path.read_text())
    provenance["git"] = {"root": "", "commit": None, "untracked": {"a.py": f"TOKEN = '{coded}'"}}
    path.write_text(json.dumps(provenance))
    words = ["--store", str(tmp_path / "runs"), "export", "1", "--anonymous", "-o", str(tmp_path / "o.zip")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert f"'{USER}' names a person or machine, and is part of the name of a setting, metric or source" in error
    assert f"--hide {USER}, or leave it with --keep {USER}" in error
    assert not (tmp_path / "o.zip").exists()
    assert main([*words, "--hide", USER]) == 0
    assert left_in(tmp_path / "o.zip", [USER]) == set()
    out, err = capsys.readouterr()
    assert USER not in out
    assert "removed text in base64: 1 time" in err
    assert main([*words, "--keep", USER, "--force"]) == 0
    assert f"removed from fields for users and machines only: '{USER}'" in capsys.readouterr().out.replace(
        "'Seed', ", ""
    )
    assert left_in(tmp_path / "o.zip", [USER]) == {USER}
