"""Anonymous archives: no byte names a person, a machine or a place, and the runs can still be read and compared."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import Experiment
from observers import FileObserver, Image, Text
from runs.__main__ import main
from runs.errors import StoreError
from runs.stores.opening import open_store
from runs.transfer.anonymous import export_anonymous
from runs.transfer.archives import import_runs

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


def left_in(path, words=WORDS):
    """Return the words that are left in an archive."""
    text = b"\n".join(every_byte("", path.read_bytes())).lower()
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


def files():
    """Return contents that hide the user in many ways, by name."""
    weights = io.BytesIO()
    torch.save({"w": torch.ones(3), "path": f"{HOME}/secretlab/data"}, weights)
    notebook = {"cells": [{"source": [f"open('{HOME}/x')"], "outputs": [{"text": f"{USER.upper()}@{HOST}"}]}]}
    return {
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


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    """Two runs whose records name a person, a machine and places in every part."""
    folder = tmp_path_factory.mktemp("named")
    ex = Experiment("review", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(folder / "runs"))
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
    for id in "12":
        path = folder / "runs" / id / "run.json"
        record = json.loads(path.read_text())
        record["host"] |= {"hostname": HOST, "user": USER}
        record |= {"cwd": f"{HOME}/work", "command_line": ["exp.py", "-m", f"{HOST}:27017"]}
        record["experiment"]["repositories"] = [
            {"url": "git@github.com:enchantress/engine.git", "commit": COMMIT, "dirty": False}
        ]
        path.write_text(json.dumps(record))
    with open_store(folder / "runs") as store:
        store.write_note(store.tag(store.get("1"), [USER]), f"ask {USER} in {HOME}")
    return folder / "runs"


@pytest.fixture(scope="module")
def archive(runs_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "review.zip"
    with open_store(runs_folder) as store:
        return path, export_anonymous([store.get("1"), store.get("2")], path, ["secretlab", "ann"])


def test_no_byte_of_an_anonymous_archive_names_anyone(archive):
    path, done = archive
    assert left_in(path) == set()
    replaced = {word.lower() for word in done.replaced}
    assert {USER, HOST, "secretlab", "enchantress"} <= replaced
    told = " ".join(done.left_out)
    for name in ("odd.pickle", "wide.txt", "coded.txt", "events.out.tfevents.1"):
        assert f"'{name}'" in told
    assert "weights.pt" not in told


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
    monkeypatch.setattr("runs.transfer.hidden_words.HiddenWords.text", lambda self, text: text)
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
    assert "no word was found in it" in out
    assert f"replaced '{USER}' by 'person-1'" in err
    assert "pixels of pictures" in err
    assert main([*words, str(tmp_path / "one"), "--format", "wandb"]) == 1
    assert "import the anonymous archive into a new folder" in capsys.readouterr().err
