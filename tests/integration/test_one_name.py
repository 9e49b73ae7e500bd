"""The lab is imported as `sacristan`, whatever else is called like its packages. The processes are cold."""

import json
import os
import sys
from pathlib import Path

import pytest

import sacristan
from tests.labs import copy_lab
from tests.processes import run

LAB = Path(__file__).parents[2]
NAMES = ("configs", "experiments", "ingredients", "observers", "runs")
# A file that is in `sys.modules` as two modules, and modules that are not of the checkout at `ROOT`.
LOOK = """
import os, sys
def look(root):
    files, twice, elsewhere = {}, [], []
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not file or name == "__main__" or not any(f"/{part}/" in file for part in PARTS):
            continue
        if files.setdefault(os.path.realpath(file), module) is not module:
            twice.append(name)
        if name.startswith("sacristan") and not file.startswith(root):
            elsewhere.append(name)
    print(len(files) > 3, twice, elsewhere, file=sys.stderr)
"""
LOOK = LOOK.replace("PARTS", repr(NAMES))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return the folder of a checkout that is not installed."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_lab(folder)
    return folder


# Sacred calls `datetime.utcnow`, which is deprecated from Python 3.12 on.
STRICT = "error,ignore:datetime.datetime.utc:DeprecationWarning"


def python(*words, cwd, path="", warnings=STRICT):
    """Run a cold Python, which looks for modules below `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONWARNINGS": warnings}
    return run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, cold=True)


OLD_SCRIPT = """
import experiments.training.evaluation
from experiments import Experiment
from observers.media import Image
import sacristan.experiments, sacristan.observers.media, sacristan.experiments.training.evaluation
assert Experiment is sacristan.experiments.Experiment and Image is sacristan.observers.media.Image
assert sacristan.experiments.training.evaluation is sacristan.experiments.training.evaluation
"""


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "sacristan", "schema", "ls"],
        ["-m", "sacristan.runs", "schema", "ls"],
        ["-m", "runs", "schema", "ls"],
        ["-m", "sacristan", "text", "print_config"],
        ["-m", "experiments.text", "print_config"],
        ["exp.py", "print_config"],
        ["old.py"],
    ],
    ids=" ".join,
)
def test_no_module_is_loaded_twice_or_from_elsewhere(checkout, tmp_path, words):
    # At the end, whatever was imported.
    (tmp_path / "sitecustomize.py").write_text(f"{LOOK}\nimport atexit\natexit.register(look, {str(checkout)!r})\n")
    (checkout / "old.py").write_text(OLD_SCRIPT)
    done = python(*words, cwd=checkout, path=tmp_path, warnings="ignore")
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) == (words != ["old.py"])
    assert done.stderr.splitlines()[-1] == "True [] []"


def test_old_name_in_a_script_says_the_new_one(checkout):
    (checkout / "old.py").write_text("from experiments import Experiment\nfrom runs import open_store\n")
    done = python("old.py", cwd=checkout, warnings="default")
    said = [line.partition("DeprecationWarning: ")[2] for line in done.stderr.splitlines() if "Deprecation" in line]
    assert said == [
        "import experiments is now import sacristan.experiments",
        "import runs is now import sacristan.runs",
    ]


def test_old_name_of_no_module_is_not_found(checkout):
    done = python("-c", "import runs.nothing", cwd=checkout, warnings="ignore")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'runs.nothing'"


PROJECT = """
import configs, experiments, ingredients, observers, runs
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
ex = Experiment("own")

@ex.config
def config():
    n = 3

@ex.automain
def main(_run, n):
    owners = {module.__name__: module.OWNER for module in (configs, experiments, ingredients, observers, runs)}
    assert set(owners.values()) == {"me"}, owners
    _run.log_scalar("loss", n, 0)
    return n
"""


def test_project_has_packages_of_these_names(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'me'\n")
    (tmp_path / "own.py").write_text(PROJECT)
    trained = python("own.py", "with", "n=4", cwd=tmp_path, path=LAB)
    assert trained.returncode == 0, trained.stderr
    listed = python("-m", "sacristan", "ls", cwd=tmp_path, path=LAB)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "COMPLETED" in listed.stdout
    again = python("-m", "sacristan", "reproduce", "1", cwd=tmp_path, path=LAB)
    assert again.stdout.startswith("IDENTICAL"), again.stderr


def test_runs_of_two_checkouts_are_told_apart(checkout, tmp_path):
    script = tmp_path / "tiny.py"
    script.write_text(
        "from sacristan.experiments import Experiment\nex = Experiment('tiny', system_metrics_s=None)\n"
        "@ex.automain\ndef main(_run):\n    return 1\n"
    )
    for lab in (LAB, checkout):
        done = python(str(script), cwd=tmp_path, path=lab, warnings="default")
        assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / "my_runs" / id / "provenance.json").read_text())["lab"] for id in ("1", "2")]
    assert [lab["folder"] for lab in found] == [str(LAB), str(checkout)]
    assert found[0]["version"] == sacristan.__version__
    difference = python("-m", "sacristan", "diff", "1", "2", cwd=tmp_path, path=LAB).stdout
    assert f"in {LAB}" in difference


def test_lab_in_the_working_folder_is_told_from_the_one_that_runs(checkout):
    done = python("-P", "-m", "sacristan", "schema", "ls", cwd=checkout, path=LAB)
    assert done.stderr == f"note: this is the lab in {LAB}; for the one in this folder, write python -m sacristan\n"
    assert python("-m", "sacristan", "schema", "ls", cwd=checkout, path=LAB).stderr == ""
