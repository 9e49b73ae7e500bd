import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sacristan.runs import LaunchError, open_store
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.launching import OBSERVERS, recorded_launch


@pytest.fixture
def write_run(tmp_path):
    """Write a run with a script `lab/exp.py`; entries replace those of its record."""
    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "exp.py").write_text(
        "import sys, os\nprint(sys.argv[1:], os.getcwd(), sys.path[1], os.environ.get('GONE'))\n"
    )

    def write(provenance=None, **entries):
        folder = tmp_path / "store" / "1"
        folder.mkdir(parents=True)
        experiment = {"name": "exp", "base_dir": str(lab), "mainfile": "exp.py", "sources": []}
        record = {"experiment": experiment, "command": "main", "status": "COMPLETED", "cwd": str(lab), "meta": {}}
        record["meta"] = {"options": {"--force": False, "--comment": None}}
        (folder / "run.json").write_text(json.dumps({**record, **entries}))
        (folder / "provenance.json").write_text(json.dumps(provenance or {}))
        return Record(open_store(folder.parent).get("1"))

    return write


def test_launch_runs_the_recorded_script_in_the_recorded_folder(write_run, tmp_path, monkeypatch):
    monkeypatch.setenv("GONE", "still here")
    run = write_run()
    launch = recorded_launch(
        run, config=tmp_path / "config.json", updates=["lr=0.1"], options=["-F", "there"], environment={"GONE": ""}
    )
    done = subprocess.run(launch.command, cwd=launch.cwd, env=launch.environ(), capture_output=True, text=True)
    lab = tmp_path / "lab"
    words = ["main", "with", str(tmp_path / "config.json"), "lr=0.1", "-F", "there"]
    assert done.stdout == f"{words} {lab} {lab} None\n"
    assert launch.command[:2] == (sys.executable, str(lab / "exp.py"))
    assert launch.notes == ()


def test_launch_takes_over_options_that_do_not_change_what_is_done(write_run, tmp_path):
    options = {
        "--force": True,
        "--name": "mine",
        "--beat-interval": "2",
        "--file_storage": "there",
        "--tensorboard": True,
    }
    options |= {"--queue": True, "--pdb": True, "--debug": True, "--id": "7", "--print-config": True, "help": False}
    run = write_run(meta={"options": {**options, "with": True, "UPDATE": ["a=1"], "COMMAND": None}})
    command = recorded_launch(run, config=tmp_path / "c.json").command
    assert command[5:] == ("--force", "--name=mine", "--beat-interval=2", "--file_storage=there", "--tensorboard")
    command = recorded_launch(run, config=tmp_path / "c.json", without=[*OBSERVERS, "--force"]).command
    assert command[5:] == ("--name=mine", "--beat-interval=2", "--tensorboard")


@pytest.mark.parametrize("given", [["-m", "there", "-f"], ["-mthere", "--force"], ["--mongo_db=there", "-f"]])
def test_option_that_is_given_stands_in_the_place_of_the_recorded_one(write_run, tmp_path, given):
    run = write_run(meta={"options": {"--mongo_db": "mongodb://host/lab", "--force": True, "--name": "mine"}})
    launch = recorded_launch(run, config=tmp_path / "c.json", options=given)
    assert list(launch.command[5:]) == ["--name=mine", *given]


def test_launch_with_a_url_says_that_the_password_is_not_known(write_run, tmp_path):
    run = write_run(meta={"options": {"--mongo_db": "mongodb://host/lab"}})
    assert "never recorded" in recorded_launch(run, config=tmp_path / "c.json").notes[0]
    given = recorded_launch(run, config=tmp_path / "c.json", options=["-m", "mongodb://me:secret@host/lab"])
    assert given.notes == ()


def test_launch_of_a_copied_experiment_finds_its_packages_first(write_run, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    run = write_run(experiment={"base_dir": str(tmp_path), "mainfile": "lab/exp.py"})
    launch = recorded_launch(run, script=tmp_path / "copy" / "lab" / "exp.py", config=tmp_path / "c.json")
    # An earlier lab recorded it, as it does not say which: the old names of the packages can be imported.
    assert launch.environment["PYTHONPATH"].split(os.pathsep) == [
        str(tmp_path / "copy"),
        str(Path(__file__).parents[4]),
        "/elsewhere",
    ]
    assert launch.command[1] == str(tmp_path / "copy" / "lab" / "exp.py")


@pytest.mark.parametrize(
    ("cwd", "expected", "reason"),
    [
        ("/is/gone", "lab", "was started in /is/gone, which is not there"),
        (None, "lab", "does not say in which folder it was started"),
    ],
)
def test_launch_without_the_recorded_folder_says_where_it_starts(write_run, tmp_path, cwd, expected, reason):
    launch = recorded_launch(write_run(cwd=cwd), config=tmp_path / "c.json")
    assert launch.cwd == tmp_path / expected
    assert reason in launch.notes[0]
    assert str(tmp_path / expected) in launch.notes[0]


def test_launch_without_any_recorded_folder_starts_here(write_run, tmp_path):
    run = write_run(cwd="/is/gone", experiment={"base_dir": "/is/gone", "mainfile": "exp.py"})
    launch = recorded_launch(run, script=tmp_path / "lab" / "exp.py", config=tmp_path / "c.json")
    assert launch.cwd == Path.cwd()


@pytest.mark.parametrize(
    ("experiment", "reason"),
    [
        ({"base_dir": "/is/gone", "mainfile": "exp.py"}, "/is/gone/exp.py, which does not exist"),
        ({"mainfile": "exp.py"}, "exp.py, which does not exist"),
        ({"mainfile": None}, "notebook or an interpreter"),
        ({"mainfile": "../exp.py"}, r"'\.\./exp\.py', expected one within"),
        ({"mainfile": "/exp.py"}, "'/exp.py', expected one within"),
    ],
)
def test_launch_without_a_script_is_refused(write_run, tmp_path, experiment, reason):
    with pytest.raises(LaunchError, match=reason):
        recorded_launch(write_run(experiment=experiment), config=tmp_path / "c.json")


def test_launch_of_a_record_without_options_says_so(write_run, tmp_path):
    launch = recorded_launch(write_run(meta=None), config=tmp_path / "c.json")
    assert "names no options" in launch.notes[0]


def test_switches_are_those_before_the_run_changed_them(write_run):
    provenance = {
        "determinism": {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "num_threads": 1},
        "determinism_before": {"CUBLAS_WORKSPACE_CONFIG": None, "num_threads": 4},
    }
    found = write_run(provenance).flags
    assert found == {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": "", "OMP_NUM_THREADS": "4"}


def test_switches_of_a_record_without_them_are_none(write_run):
    assert write_run().flags == {}
