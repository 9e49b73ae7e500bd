"""Nothing that a record says is on the disk is only in the memory of the kernel, which a power cut takes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import Experiment
from ingredients.checkpoints.files import save_checkpoint
from observers import FileObserver, Image


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
    named = set(re.findall(r"`(test_\w+)`", (lab / "docs" / "recording.md").read_text()))
    assert len(named) > 9
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []
