"""Nothing that a record says is on the disk is only in the memory of the kernel, which a power cut takes."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients.checkpoints.files import save_checkpoint
from sacristan.observers import FileObserver, Image, read_metrics


@pytest.fixture
def synced(monkeypatch):
    """Return the inodes of files and folders in the order of their last fsync; the number of fsyncs is no promise."""
    found: dict[int, int] = {}
    fsync = os.fsync

    def noted(descriptor):
        fsync(descriptor)
        inode = os.fstat(descriptor).st_ino
        found.pop(inode, None)
        found[inode] = len(found)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def unsynced(root, synced):
    """Return what below a folder, and the folder itself, no fsync was for."""
    return [path.name for path in (root, *root.rglob("*")) if path.stat().st_ino not in synced]


def record(tmp_path, main):
    ex = Experiment("durable", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(main)
    ex.run(options={"--capture": "sys", "--beat-interval": 100})


def test_flushed_points_media_and_output_are_on_the_disk(tmp_path, synced):
    def main(_run):
        print("hello")
        _run.log({"loss": 0.5, "picture": Image(np.zeros((2, 3)))}, 0)
        _run.flush()
        for name in ("metrics.bin", "metrics.sums", "metrics.names.jsonl", "media.jsonl", "cout.txt", "media"):
            assert (_run.folder / name).stat().st_ino in synced, name
        assert unsynced(_run.folder / "media", synced) == []

    record(tmp_path, main)


def test_run_that_says_how_it_ended_is_on_the_disk_with_all_it_names(tmp_path, synced):
    (tmp_path / "data.csv").write_text("1,2")

    def main(_run):
        print("hello")
        _run.log({"loss": 0.5, "picture": Image(np.zeros((2, 3)))}, 0)
        _run.open_resource(str(tmp_path / "data.csv")).close()
        _run.add_artifact(tmp_path / "data.csv", "sub/made.csv")

    record(tmp_path, main)
    folder = tmp_path / "runs" / "1"
    # Nobody needs to know after a power cut when the process lived last.
    assert set(unsynced(tmp_path / "runs", synced)) <= {"lease.json", "lease.lock"}
    order = list(synced)
    end = order.index((folder / "run.json").stat().st_ino)
    for path in (folder / "metrics.json", folder / "summary.json", folder / "media", folder / "sub" / "made.csv"):
        assert order.index(path.stat().st_ino) < end, path


def test_checkpoint_and_version_of_an_artifact_are_on_the_disk_with_their_new_folders(tmp_path, synced):
    (tmp_path / "data.csv").write_text("1,2")

    def main(_run):
        save_checkpoint({"step": 1}, _run.folder / "checkpoints" / "last.pt")
        for path in (_run.folder, _run.folder / "checkpoints", _run.folder / "checkpoints" / "last.pt"):
            assert path.stat().st_ino in synced, path
        _run.log_artifact("data", tmp_path / "data.csv")
        store = _run.folder.parent / "_artifacts"
        wanted = [store, *store.rglob("*.json"), *store.glob("**/contents/**/*")]
        folders = {path.parent for path in wanted}
        assert len(wanted) > 3
        assert [path for path in {*wanted, *folders} if path.stat().st_ino not in synced] == []

    record(tmp_path, main)


def test_tests_that_the_docs_name_are_there():
    lab = Path(__file__).parents[2]
    code = "".join(path.read_text() for path in (lab / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", (lab / "docs" / "durability.md").read_text()))
    assert len(named) > 9
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []


# The system answers EINVAL to fsync and fdatasync, as some file systems do: prctl's PR_SET_SECCOMP with a filter.
WITHOUT_FSYNC = """
import ctypes, errno, platform, struct
SYSCALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}[platform.machine()]
RULES = [(0x20, 0, 0, 0), (0x15, 1, 0, SYSCALLS[0]), (0x15, 0, 1, SYSCALLS[1])]
RULES += [(0x06, 0, 0, 0x00050000 | errno.EINVAL), (0x06, 0, 0, 0x7FFF0000)]
rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in RULES))
program = ctypes.create_string_buffer(struct.pack("HP", len(RULES), ctypes.addressof(rules)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(program)) == 0
try: os.fsync(1)
except OSError as error: assert error.errno == errno.EINVAL
else: raise AssertionError
ex.observers.append(FileObserver("runs"))

@ex.automain
def main(_run):
    _run.log_scalar("loss", 0.5, 0)
    _run.flush()
    _run.add_artifact(__file__)
    _run.log_artifact("code", __file__)
    return 3
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="system calls have other numbers")
def test_file_system_without_fsync_keeps_a_run_as_any_other(tmp_path, start):
    said = start(tmp_path, WITHOUT_FSYNC).finish()
    assert [line for line in said.splitlines() if not line.startswith("INFO")] == []
    run = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())
    assert (run["status"], run["result"], run["artifacts"]) == ("COMPLETED", 3, ["recorded.py"])
    assert read_metrics(tmp_path / "runs" / "1")["loss"].values.tolist() == [0.5]
