"""Folders and modules that hide a package of the lab. The processes are cold: warm ones have the packages already."""

import os
import sys
from pathlib import Path

import pytest

from configs.packages import other_lab
from tests.processes import run

LAB = Path(__file__).parents[3]
NAMES = ("configs", "experiments", "ingredients", "observers", "runs")


def python(*words, cwd):
    """Run a cold Python that finds the lab after the working folder or the script's."""
    environment = {**os.environ, "PYTHONPATH": str(LAB)}
    return run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, cold=True)


@pytest.mark.parametrize(
    ("file", "imported"),
    [
        ("configs.py", "runs"),
        ("configs/__init__.py", "observers"),
        ("runs/__init__.py", "configs"),
        ("observers.py", "experiments"),
        ("experiments/__init__.py", "ingredients"),
    ],
)
def test_module_or_package_that_hides_one_of_the_lab_is_named_and_not_imported(tmp_path, file, imported):
    hiding = tmp_path / file
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("print('imported')\n")
    (tmp_path / "exp.py").write_text(f"import {imported}\n")
    name = file.partition("/")[0].removesuffix(".py")
    other = tmp_path / file.removesuffix("/__init__.py")
    done = python(str(tmp_path / "exp.py"), cwd="/")
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {other} hides the package {name} of Sacristan, which is in {LAB}: rename it, or move it out of "
        f"{tmp_path}; beside it, only commands such as `sacristan runs ls` work"
    )


def test_module_is_not_run_where_something_hides_another(tmp_path):
    (tmp_path / "configs.py").touch()
    done = python("-m", "runs", "ls", cwd=tmp_path)
    assert f"{tmp_path}/configs.py hides the package configs of Sacristan" in done.stderr.splitlines()[-1]


def test_module_that_was_imported_before_is_named(tmp_path):
    (tmp_path / "configs.py").touch()
    done = python("-c", "import configs, runs", cwd=tmp_path)
    assert f"{tmp_path}/configs.py hides the package configs" in done.stderr.splitlines()[-1]


def test_folders_without_modules_hide_nothing(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
    done = python("-m", "runs", "ls", "--store", ".", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_command_does_not_look_in_the_working_folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    # as a console script does
    program = "import sys; sys.path.remove(''); from configs.command import main; sys.exit(main())"
    listed = python("-c", program, "runs", "ls", "--store", ".", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "Wrote vision.yaml" in python("-c", program, "new", "vision", cwd=tmp_path).stdout
    assert python("-c", program, cwd=tmp_path).stdout.startswith("usage: sacristan runs")
    unknown = python("-c", program, "ls", cwd=tmp_path)
    assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (2, "error: ls: there is no such command")


def test_lab_in_the_working_folder_is_told_from_the_one_that_runs(tmp_path, monkeypatch):
    for file in ("configs/map.py", "experiments/experiment.py", "runs/__main__.py"):
        monkeypatch.chdir(tmp_path)
        assert other_lab() is None
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    note = f"note: this is the lab in {LAB}; for the one in this folder, write python -m runs"
    assert other_lab() == note
    done = python("-P", "-m", "runs", "ls", "--store", ".", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, f"{note}\n")
    monkeypatch.chdir(LAB)
    assert other_lab() is None
