from __future__ import annotations

import os
import re
import resource

import pytest
import torch

from sacristan.ingredients import CheckpointError
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.checkpoints.folder import CheckpointFolder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def state(step, best=0):
    return {"model": {"w": torch.full((4,), float(step))}, "step": step, "monitor": {"epoch": best}}


def weights(epoch):
    return {"model": {"w": torch.full((4,), float(epoch))}, "epoch": epoch}


def steps(folder, *paths):
    return [load_checkpoint(folder / path)["step"] for path in paths]


def newest(files):
    return files.newest(lambda state, path: None)


@pytest.mark.parametrize(
    ("keep", "older"),
    [(1, []), (2, ["step-000000030.pt"]), (9, ["step-000000010.pt", "step-000000020.pt", "step-000000030.pt"])],
)
def test_last_keeps_that_many(tmp_path, keep, older):
    files = CheckpointFolder(tmp_path, keep)
    for step in (10, 20, 30, 40):
        files.write_last(state(step))
    assert names(tmp_path) == ["last.pt", *older]
    assert steps(tmp_path, "last.pt", *older) == [40, *(int(name[5:14]) for name in older)]


def test_state_of_a_signal_gives_way_to_the_next_one(tmp_path):
    files = CheckpointFolder(tmp_path, 3)
    for step in (10, 20):
        files.write_last(state(step))
    files.write_last({**state(25), "interim": True})
    there = ["last.pt", "step-000000010.pt", "step-000000020.pt"]
    assert (names(tmp_path), steps(tmp_path, "last.pt")) == (there, [25])
    again = CheckpointFolder(tmp_path, 3)
    again.resume_from(*newest(again), best=True)
    again.write_last(state(30))
    assert (names(tmp_path), steps(tmp_path, "last.pt")) == (there, [30])
    again.write_last({**state(30), "interim": True})  # after the epoch that step 30 ends
    assert "interim" not in load_checkpoint(tmp_path / "last.pt")


def test_best_weights_that_no_kept_state_needs_go_after_a_resume_too(tmp_path):
    kept = []
    for resumes in (False, True):
        files = CheckpointFolder(tmp_path / str(resumes), 3)
        for number in range(1, 5):
            files.write_best(weights(number))
            files.write_last(state(10 * number, best=number))
            if resumes and number == 3:
                files = CheckpointFolder(files.path, 3)
                files.resume_from(*newest(files), best=True)
        kept.append(names(files.path))
    assert kept[0] == kept[1]


@pytest.fixture
def without_links(monkeypatch):
    """Stand for a file system that has no hard links."""

    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)


def test_last_on_a_file_system_without_links_is_copied(tmp_path, without_links):
    files = CheckpointFolder(tmp_path, 2)
    files.write_last(state(1))
    files.write_last(state(2))
    assert steps(tmp_path, "last.pt", "step-000000001.pt") == [2, 1]
    assert names(tmp_path) == ["last.pt", "step-000000001.pt"]


def test_last_that_cannot_be_read_back_raises_at_the_first_time(tmp_path):
    with pytest.raises(CheckpointError, match=r"last.pt: is damaged, or holds more than tensors and plain values"):
        CheckpointFolder(tmp_path, 2).write_last({**state(1), "device": re.compile("x")})
    assert names(tmp_path) == []


def test_last_that_cannot_be_read_back_leaves_that_of_an_earlier_session(tmp_path):
    CheckpointFolder(tmp_path, 1).write_last(state(1))
    files = CheckpointFolder(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"last.pt: is damaged.*; the checkpoint before it stays"):
        files.write_last({**state(2), "device": re.compile("x")})
    assert steps(tmp_path, "last.pt") == [1]
    assert names(tmp_path) == ["last.pt"]


def test_best_stays_as_long_as_a_state_has_it_for_the_best(tmp_path):
    files = CheckpointFolder(tmp_path, 2)
    files.write_best(weights(1))
    files.write_last(state(10, best=1))
    files.write_best(weights(2))
    assert names(tmp_path) == ["best-000001.pt", "best.pt", "last.pt"]
    files.write_last(state(20, best=2))
    assert names(tmp_path) == ["best-000001.pt", "best.pt", "last.pt", "step-000000010.pt"]
    files.write_last(state(30, best=2))
    assert [name for name in names(tmp_path) if name.startswith("best-")] == []
    assert load_checkpoint(files.best)["epoch"] == 2


def test_best_that_no_state_has_for_the_best_is_replaced(tmp_path):
    files = CheckpointFolder(tmp_path, 2)
    files.write_best(weights(1))
    files.write_best(weights(2))
    assert names(tmp_path) == ["best.pt"]


def test_newest_of_an_empty_folder_is_none(tmp_path):
    assert newest(CheckpointFolder(tmp_path / "nowhere", 2)) is None


def filled(folder):
    files = CheckpointFolder(folder, 3)
    for number in (1, 2, 3):
        files.write_best(weights(number))
        files.write_last(state(10 * number, best=number))
    return files


def test_state_before_a_damaged_one_is_taken_up_with_its_best_weights(tmp_path, caplog):
    filled(tmp_path)
    (tmp_path / "last.pt").write_bytes(b"nothing")
    files = CheckpointFolder(tmp_path, 3)
    path, found = newest(files)
    assert path.name == "step-000000020.pt"
    assert f"{tmp_path / 'last.pt'}: is damaged" in caplog.text
    files.resume_from(path, found, best=True)
    assert steps(tmp_path, "last.pt", "step-000000010.pt", "step-000000020.pt") == [20, 10, 20]
    assert load_checkpoint(files.best)["epoch"] == 2
    files.write_last(state(30, best=2))
    assert steps(tmp_path, "last.pt", "step-000000010.pt", "step-000000020.pt") == [30, 10, 20]


def test_state_that_the_disk_refuses_to_read_is_not_passed_over(tmp_path):
    filled(tmp_path)
    # Reading the beginning of this one is an error of the system.
    (tmp_path / "last.pt").unlink()
    (tmp_path / "last.pt").symlink_to("/proc/self/mem")
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match=r"last.pt: cannot be read \(.*\); try again when it can"):
        newest(CheckpointFolder(tmp_path, 3))
    assert names(tmp_path) == before


def test_state_two_before_is_taken_up_and_the_damaged_ones_go(tmp_path):
    filled(tmp_path)
    (tmp_path / "last.pt").unlink()
    (tmp_path / "step-000000020.pt").write_bytes(b"nothing")
    files = CheckpointFolder(tmp_path, 3)
    files.resume_from(*newest(files), best=True)
    assert names(tmp_path) == [
        "best-000001.pt",
        "best-000002.pt",
        "best.pt",
        "last.pt",
        "step-000000010.pt",
    ]
    assert load_checkpoint(files.best)["epoch"] == 1


def test_last_whose_link_a_killed_process_has_made_leaves_nothing_beside_it(tmp_path):
    files = CheckpointFolder(tmp_path, 2)
    files.write_last(state(1))
    os.link(files.last, tmp_path / "step-000000001.pt")
    files.write_last(state(2))
    assert names(tmp_path) == ["last.pt", "step-000000001.pt"]


def test_clear_removes_what_was_written_half_alone(tmp_path):
    files = filled(tmp_path)
    before = names(tmp_path)
    (tmp_path / ".last.pt.abc.tmp").write_bytes(b"half")
    files.clear()
    assert names(tmp_path) == before
    CheckpointFolder(tmp_path / "nowhere", 2).clear()


def test_state_from_before_the_first_best_is_taken_up_without_one(tmp_path):
    files = CheckpointFolder(tmp_path, 2)
    files.write_last(state(5))
    files.write_best(weights(1))
    again = CheckpointFolder(tmp_path, 2)
    again.resume_from(*newest(again), best=True)
    assert names(tmp_path) == ["last.pt"]


def test_states_of_which_none_is_good_raise_with_the_newest_fault(tmp_path):
    filled(tmp_path)
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(path.read_bytes()[:-9])
    message = r"none of its 3 states .* can be loaded; the newest: .*last.pt: is damaged.*; put a good one back, or"
    with pytest.raises(CheckpointError, match=message):
        newest(CheckpointFolder(tmp_path, 3))


def test_state_whose_best_weights_are_gone_raises(tmp_path):
    filled(tmp_path)
    for path in tmp_path.glob("best*.pt"):
        path.unlink()
    files = CheckpointFolder(tmp_path, 3)
    with pytest.raises(CheckpointError, match=r"best.pt: the weights of epoch 3, the best so far, are missing or dam"):
        files.resume_from(*newest(files), best=True)


@pytest.fixture
def full_disk():
    """Let no file grow beyond 4 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_last_on_a_full_disk_leaves_all_as_it_was(tmp_path, full_disk):
    files = CheckpointFolder(tmp_path, 2)
    files.write_last(state(1))
    files.write_last(state(2))
    large = {**state(3), "model": {"w": torch.zeros(10_000)}}
    with pytest.raises(
        CheckpointError, match=r"last.pt: cannot be written: .*File too large; the checkpoint before it stays"
    ):
        files.write_last(large)
    again = CheckpointFolder(tmp_path, 2)
    assert newest(again)[1]["step"] == 2
    assert [name for name in names(tmp_path) if name.endswith(".tmp")] == []
