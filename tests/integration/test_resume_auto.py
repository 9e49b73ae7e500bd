"""`checkpoint.resume=auto`: which unfinished run is continued, and what of it has to be as it was."""

from __future__ import annotations

import json

import pytest

from experiments import Experiment
from ingredients import checkpoint, data, device
from ingredients.errors import DataError
from observers import FileObserver


def run(folder, *, fails=False):
    """Run an experiment of which an unfinished run is continued; return the number of its record."""
    parts = (checkpoint.ingredient, data.ingredient, device.ingredient)
    experiment = Experiment("auto", ingredients=parts, save_git_info=False, system_metrics_s=None)
    experiment.observers.append(FileObserver(folder / "runs"))

    @experiment.main
    def main(_run, seed):
        data.make_data(seed, device.make_device(seed))
        _run.rewind()
        if fails:
            raise OSError("the disk is full")

    settings = {"data": {"name": "csv", "path": str(folder / "table.csv"), "batch_size": 2}, "device": {"name": "cpu"}}
    return experiment.run(config_updates={**settings, "seed": 0, "checkpoint": {"resume": "auto"}})._id


@pytest.fixture
def folder(tmp_path):
    """A folder with a table, and an unfinished run that was trained on it."""
    (tmp_path / "table.csv").write_text("x,class\n" + "".join(f"{row},{'ab'[row % 2]}\n" for row in range(40)))
    with pytest.raises(OSError, match="the disk is full"):
        run(tmp_path, fails=True)
    return tmp_path


def test_unfinished_run_is_continued_and_a_completed_one_is_not(folder):
    assert [run(folder), run(folder)] == ["1", "2"]


def test_unfinished_run_whose_data_have_changed_is_refused(folder):
    with (folder / "table.csv").open("a") as stream:
        stream.write("5,a\n")
    with pytest.raises(DataError, match=r"data\.path=.*table\.csv: got data with the fingerprint"):
        run(folder)
    assert json.loads((folder / "runs" / "1" / "run.json").read_text())["status"] == "FAILED"


def test_killed_run_whose_lease_a_power_cut_has_taken_is_continued(folder):
    record = folder / "runs" / "1" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "RUNNING"}))
    record.with_name("lease.json").write_text("")
    assert run(folder) == "1"
