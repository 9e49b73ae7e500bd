"""Runs that are found in a database, and go on in the folder that they were recorded in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import checkpoint
from sacristan.ingredients.checkpoints.files import save_checkpoint
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import LaunchError, open_store
from sacristan.runs.rerun.resuming import kept_start, resume_launch, with_folder


@pytest.fixture
def run(tmp_path, database, mongo_url):
    """A run that failed, and was to start from a state of another one, as the database has it."""
    ex = Experiment("cut_off", [checkpoint.ingredient], base_dir=Path(__file__).parent, system_metrics_s=None)
    ex.observers += [FileObserver(tmp_path / "my_runs"), MongoObserver(mongo_url, database.name)]
    ex.main(lambda: 1 / 0)
    state = tmp_path / "state.pt"
    save_checkpoint({"model": {}, "epoch": 0, "batch": 0, "step": 1, "losses": [], "streams": {}}, state)
    with pytest.raises(ZeroDivisionError):
        ex.run(config_updates={"seed": 0, "checkpoint.resume": str(state)}, options={"--capture": "sys"})
    with open_store(f"{mongo_url}/{database.name}") as store:
        yield store.get("latest")


def test_run_in_a_database_goes_on_in_its_folder(run, tmp_path):
    found, folder = with_folder(run)
    assert (found.folder, folder, found.uid) == (folder, tmp_path / "my_runs" / "1", run.uid)
    environment = resume_launch(run).environment
    assert environment["SACRISTAN_RESUME"] == str(tmp_path / "my_runs" / "1")


def test_run_whose_folder_is_gone_or_another_ones_is_refused_with_where_it_was(run, tmp_path):
    folder = tmp_path / "my_runs" / "1"
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "uid": "0" * 32}))
    for _ in range(2):
        with pytest.raises(LaunchError, match=rf"recorded in {folder} on .*, which holds its states; continue there"):
            with_folder(run)
        shutil.rmtree(folder, ignore_errors=True)


def test_state_that_a_run_in_a_database_started_from_is_looked_for_in_its_folder(run, tmp_path):
    assert kept_start(run) is None
    kept = tmp_path / "my_runs" / "1" / "checkpoints" / "start" / "state.pt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert kept_start(run) == kept
