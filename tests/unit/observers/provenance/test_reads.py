# ruff: noqa: PTH102, PTH106, PTH123, SIM115 - files are opened in all the ways there are
"""Environment variables and files that a run reads beside its config."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from sacristan.observers.provenance import sources
from sacristan.observers.provenance.sources import OpenedFiles, changed_reads, variables_in


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = OpenedFiles([tmp_path, Path("/nowhere")], tmp_path / "my_runs")
    opened.begin()
    yield opened
    opened.end()


def write(name, content=b"content"):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, content)
    os.close(fd)


def test_files_that_are_read_are_noted_however_they_are_opened(opened, tmp_path):
    opened.end()
    others = ("code.py", ".venv/x", "my_runs/1/run.json", "lib/site-packages/x/data.json")
    for name in ("text.txt", "by/descriptor", "bytes", "array.npy", "never", *others):
        write(name)
    np.save("array.npy", np.arange(3))
    opened.begin()
    Path("text.txt").read_text()
    os.close(os.open("by/descriptor", os.O_RDONLY))
    open(b"bytes").close()
    np.load(tmp_path / "array.npy")
    for name in others:
        Path(name).read_bytes()
    with pytest.raises(FileNotFoundError):
        open("missing")
    with pytest.raises(ValueError, match="null"):
        open("a\0b")
    Path("made.txt").write_text("made")
    Path("made.txt").read_text()
    opened.end()
    Path("never").read_text()
    digest = hashlib.md5(b"content").hexdigest()
    array = hashlib.md5(Path("array.npy").read_bytes()).hexdigest()
    assert opened.contents() == {"array.npy": array, "by/descriptor": digest, "bytes": digest, "text.txt": digest}


def test_large_files_are_known_by_their_length_and_data_sets_are_left_out(opened, monkeypatch):
    monkeypatch.setattr(sources, "_MAX_BYTES", 10)
    monkeypatch.setattr(sources, "_MAX_BYTES_IN_ALL", 12)
    monkeypatch.setattr(sources, "_MAX_FILES", 3)
    opened.end()
    for name, length in (("a", 5), ("b", 11), ("c", 10), ("d", 1)):
        write(name, b"x" * length)
    opened.begin()
    for name in "abc":
        Path(name).read_bytes()
    assert opened.contents() == {"a": hashlib.md5(b"xxxxx").hexdigest(), "b": "11 bytes", "c": "10 bytes"}
    Path("d").read_bytes()
    assert opened.contents() == {}


def test_working_folder_that_is_gone_stops_nobody_from_opening_files(opened, tmp_path):
    write("file")
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        open("file")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert list(opened.contents()) == []  # it was made by the run


def test_variables_that_sources_name_are_found(tmp_path, monkeypatch):
    for name, value in (("A", "1"), ("B_C", "mongodb://ann:s3cret@db/lab"), ("D", "4"), ("HF_TOKEN", "t"), ("G", "7")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("F", raising=False)
    (tmp_path / "a.py").write_text(
        "os.environ['A']; environ . get( \"B_C\", 1)\nos.getenv('D'); os.environ[name]; os.environ['HF_TOKEN']\n"
        "os.environ.get('F'); os.environ['SACRISTAN_STORE']; my_environ['G']"
    )
    assert variables_in([tmp_path / "a.py", tmp_path / "gone.py"]) == {
        "A": "1", "B_C": "mongodb://db/lab", "D": "4", "F": None,
    }  # fmt: skip


def test_only_what_both_runs_read_counts():
    assert changed_reads({"a": "1", "b": "2", "c": None}, {"a": "2", "b": "2", "d": "x"}) == {"a": ["1", "2"]}
