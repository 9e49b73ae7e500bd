"""A bundle is there as a whole, or not at all: whatever fails, and wherever the process is killed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys

import pytest
import torch

from sacristan.experiments.training.triage import read_bundle, write_bundle
from sacristan.ingredients import CheckpointError
from sacristan.ingredients.checkpoints.folder import CheckpointFolder

NAME = "nonfinite-000000007"
# What Python says before it does something to files.
STEPS = {"ctypes.dlsym", "open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}


def write(folder, what, size=2000):
    """Write a bundle whose files all differ from those of another one."""
    state = {"model": {"weight": torch.full((size,), float(len(what)))}, "step": 6}
    incident = {"step": 7, "epoch": 1, "training": "checkpoints", "summary": what}
    return write_bundle(folder, incident, {"what": what}, state, [(torch.ones(size * 2), what)])


def content(folder):
    """Return what the bundle there is, which must be whole, and of one piece; None if there is none."""
    if not (folder / NAME).exists():
        return None
    found = read_bundle(folder / NAME)
    what = found.incident["summary"]
    assert found.group[0][1] == what
    assert found.state["model"]["weight"][0] == len(what)
    return what


def write_and_die(folder, at):
    """Write a bundle in a child that is killed before its step `at`; return whether it has lived to the end."""
    child = os.fork()
    if child == 0:
        left = at

        def step(event, arguments):
            nonlocal left
            if event in STEPS:  # os.kill is an event, too
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(step)
        try:
            write(folder, "new")
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_kill_at_every_step_leaves_the_old_bundle_or_the_new_one_and_the_next_session_clears_the_rest(tmp_path):
    write(tmp_path / "before", "old")
    found, at, lives = [], 0, False
    while not lives:
        at += 1
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "before", folder)
        lives = write_and_die(folder, at)
        found.append(content(folder))
        CheckpointFolder(folder, 1).clear()
        assert [path.name for path in folder.iterdir()] == ([NAME] if found[-1] else [])
    assert at > 10
    # Where two folders cannot be exchanged, there is neither between two renames.
    assert found.count(None) <= (sys.platform != "linux")
    assert [what for what in found if what] == ["old"] * found.count("old") + ["new"] * found.count("new")
    assert found.count("old") > 10
    assert found[-1] == "new"


@pytest.mark.parametrize("is_there", [False, True])
def test_bundle_that_finds_no_room_for_one_of_its_files_leaves_things_as_they_were(tmp_path, is_there):
    sizes = sorted(path.stat().st_size for path in write(tmp_path / "whole", "new").iterdir())
    folder = tmp_path / "checkpoints"
    if is_there:
        write(folder, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in [size - 1 for size in sizes]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            with pytest.raises((OSError, CheckpointError), match="File too large"):
                write(folder, "new")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert content(folder) == ("old" if is_there else None)
        assert [path.name for path in folder.iterdir()] == [NAME] * is_there
    write(folder, "new")
    assert content(folder) == "new"
