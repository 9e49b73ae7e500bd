"""The default place of records, and the ways to choose another."""

from __future__ import annotations

import contextlib
import json

import pytest
from sacred.observers import FileStorageObserver, RunObserver

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, TensorBoardObserver

# Before the fixture for all tests sets it to None.
DEFAULT = Experiment.__init__.__kwdefaults__["record_to"]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return what makes a small experiment, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def make(*observers, record_to=DEFAULT):
        ex = Experiment("small", base_dir=tmp_path, record_to=record_to, system_metrics_s=None)
        ex.observers.extend(observers)
        ex.main(lambda: 1)
        ex.command(nothing, unobserved=True)
        return ex

    return make


def nothing():
    """Do nothing."""


def test_experiment_without_observers_records_in_my_runs(make, tmp_path):
    ex = make()
    assert [ex.run()._id, ex.run()._id] == ["1", "2"]
    assert json.loads((tmp_path / "my_runs" / "2" / "run.json").read_text())["status"] == "COMPLETED"
    assert ex.observers == []


def test_experiment_records_in_the_folder_that_it_is_made_with(make, tmp_path):
    make(record_to=tmp_path / "deep" / "kept").run()
    assert (tmp_path / "deep" / "kept" / "1" / "run.json").is_file()
    assert not (tmp_path / "my_runs").exists()


@pytest.mark.parametrize(
    "words", [["-u"], ["--unobserved"], ["print_config"], ["print_named_configs"], ["nothing"], ["-h"]]
)
def test_experiment_that_is_not_to_record_leaves_no_folder(make, tmp_path, words):
    with contextlib.suppress(SystemExit):
        make().run_commandline(["small.py", *words])
    assert list(tmp_path.iterdir()) == []


def test_experiment_made_to_record_nowhere_leaves_no_folder(make, tmp_path):
    make(record_to=None).run()
    assert list(tmp_path.iterdir()) == []


def test_option_for_a_folder_takes_the_place_of_the_default(make, tmp_path):
    make().run_commandline(["small.py", "-F", "elsewhere"])
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("kind", [FileObserver, FileStorageObserver])
def test_attached_observer_takes_the_place_of_the_default(make, tmp_path, kind):
    make(kind(tmp_path / "theirs")).run()
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_attached_observer_of_any_kind_takes_the_place_of_the_default(make, tmp_path):
    make(RunObserver()).run()
    assert list(tmp_path.iterdir()) == []


def test_an_observer_that_keeps_no_record_comes_on_top_of_the_default(make, tmp_path):
    make(TensorBoardObserver(tmp_path / "events")).run()
    assert (tmp_path / "my_runs" / "1" / "run.json").is_file()


def test_option_for_a_database_comes_on_top_of_the_default(make, tmp_path, mongo_url, database):
    make().run_commandline(["small.py", "-m", f"{mongo_url.rstrip('/')}/{database.name}"])
    uid = json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())["uid"]
    assert database.runs.find_one()["uid"] == uid


def test_queued_run_is_queued_in_my_runs(make, tmp_path):
    make().run_commandline(["small.py", "-q"])
    assert json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())["status"] == "QUEUED"


def test_run_started_by_another_one_is_recorded_beside_it(make, tmp_path):
    outer, inner = make(), make()
    outer.main(lambda _run: inner.run()._id)
    assert outer.run(outer.default_command).result == "2"
    inner_record = json.loads((tmp_path / "my_runs" / "2" / "run.json").read_text())
    assert inner_record["parent"] == json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())["uid"]
