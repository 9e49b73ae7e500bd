"""The files that `report`, `card`, `export`, `plot` and `get` write: a file is replaced, a pipe is written into."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import zipfile

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from tests.processes import PIPE, run

COMMANDS = {
    "report.html": ("report", "1"),
    "card.md": ("card", "1"),
    "table.csv": ("export", "1", "--format", "csv"),
    "table.parquet": ("export", "1", "--format", "parquet"),
    "runs.zip": ("export", "1"),
    "plot.svg": ("plot", "1", "--metric", "loss"),
    "plot.png": ("plot", "1", "--metric", "loss"),
}
BEGINS = {
    "report.html": b"<!doctype html>",
    "card.md": b"# ",
    "table.csv": b"id,name,",
    "table.parquet": b"PAR1",
    "runs.zip": b"PK",
    "plot.svg": b"<?xml",
    "plot.png": b"\x89PNG",
}


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    ex = Experiment("written", base_dir=folder, save_git_info=False, system_metrics_s=None)
    ex.observers.append(FileObserver(folder / "store"))

    @ex.main
    def train(_run):
        for step in range(5):
            _run.log_scalar("loss", 1 / (1 + step), step)
        (folder / "weights.txt").write_text("weights")
        ex.add_artifact(folder / "weights.txt")

    ex.run(options={"--capture": "no"})
    return str(folder / "store")


def read_all(descriptor):
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_pipe_is_written_into_and_stays(where, tmp_path, capsys, name):
    pipe, got = tmp_path / name, []
    os.mkfifo(pipe)
    # Open for reading before it is written to, and for writing, so that the reader gets an end if nothing is written.
    source, hold = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), os.open(pipe, os.O_WRONLY)
    os.set_blocking(source, True)
    reader = threading.Thread(target=lambda: got.append(read_all(source)))
    reader.start()
    code = main(["--store", where, *COMMANDS[name], "-o", str(pipe), "--force"])
    os.close(hold)
    reader.join()
    assert (code, stat.S_ISFIFO(pipe.lstat().st_mode)) == (0, True)
    assert got[0].lower().startswith(BEGINS[name].lower())
    assert capsys.readouterr().out == ""
    if name == "runs.zip":
        (tmp_path / "whole.zip").write_bytes(got[0])
        assert zipfile.ZipFile(tmp_path / "whole.zip").testzip() is None


@pytest.mark.parametrize("name", COMMANDS)
def test_socket_is_refused_and_stays(where, tmp_path, capsys, name):
    path = tmp_path / name
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert main(["--store", where, *COMMANDS[name], "-o", str(path), "--force"]) == 1
    assert capsys.readouterr().err == f"error: {path} is a socket or a disk; give the name of a file or a pipe\n"
    assert stat.S_ISSOCK(path.lstat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_links_and_files_stay_what_they_are(where, tmp_path, capsys, name):
    words = ["--store", where, *COMMANDS[name], "-o"]
    (link := tmp_path / name).symlink_to(tmp_path / "file")
    assert main([*words, str(link)]) == 0
    first = (tmp_path / "file").read_bytes()
    assert link.is_symlink()
    (tmp_path / "file").write_bytes(b"precious")
    capsys.readouterr()
    assert main([*words, str(link)]) == 1
    assert capsys.readouterr().err == f"error: {link} already exists; choose another name, or use --force\n"
    assert main([*words, str(tmp_path), "--force"]) == 1
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert main([*words, str(link), "--force"]) == 0
    assert (tmp_path / "file").read_bytes()[:9] == first[:9]
    link.unlink()
    link.symlink_to(os.devnull)
    assert main([*words, str(link), "--force"]) == 0
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", name])


def test_report_goes_to_stdout_alone(where, tmp_path):
    command = [sys.executable, "-m", "sacristan", "--store", where, "report", "1", "-o", "/dev/fd/1"]
    with (tmp_path / "all.html").open("wb") as stream:
        stream.write(b"before\n")
        stream.flush()
        done = run(command, stdout=stream, stderr=PIPE)
    assert (done.returncode, done.stderr) == (0, b"/dev/fd/1: 1 run\n")
    content = (tmp_path / "all.html").read_bytes()
    assert content.lower().startswith(b"before\n<!doctype html>")
    assert content.endswith(b"</html>\n")


def test_get_replaces_files_alone(where, tmp_path, capsys):
    os.mkfifo(tmp_path / "weights.txt")
    assert main(["--store", where, "artifacts", "get", "1", "-o", str(tmp_path), "--force"]) == 1
    assert "is no regular file; move it away" in capsys.readouterr().err
    assert stat.S_ISFIFO((tmp_path / "weights.txt").lstat().st_mode)
