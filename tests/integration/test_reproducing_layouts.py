"""`sacristan reproduce` of labs that are laid out or started in other ways than a script among its modules."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.runs import open_store
from tests.processes import run, warm_children

ROOT = Path(__file__).resolve().parents[2]

READING = """
import os

def scale():
    open("notes.txt").close()
    return float(open("scale.txt").read()) * float(os.environ.get("SCALE", 1))
"""
TRAIN = """
from sacristan.experiments import Experiment
from sacristan.observers import file_observer
IMPORTS

ex = Experiment("train", system_metrics_s=None)
ex.observers.append(file_observer("my_runs"))


@ex.automain
def main(_run):
    for step in range(3):
        _run.log_scalar("loss", 1 / (step + 1), step)
"""


class Lab:
    """A lab of a few files, whose runs are recorded in `my_runs`; the folder is the current one."""

    def __init__(self, folder, capsys, search):
        self.folder, self.capsys = folder, capsys
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, [ROOT, *search]))

    def write(self, name, text="", *, imports=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or TRAIN.replace("IMPORTS", imports))

    def record(self, *words):
        done = run([sys.executable, *words], cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def reproduce(self, *words):
        """Reproduce run 1 and return exit code, stdout and stderr."""
        code = main(["--store", str(self.folder / "my_runs"), "reproduce", "1", *words])
        return code, *self.capsys.readouterr()


@pytest.fixture
def lab(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    (tmp_path / "lab").mkdir()
    (tmp_path / "library").mkdir()
    monkeypatch.chdir(tmp_path / "lab")
    with warm_children():
        yield Lab(tmp_path / "lab", capfd, [tmp_path / "library"])


def sources(lab, key="1"):
    with open_store(lab.folder / "my_runs") as store:
        return sorted(store.get(key).sources)


@pytest.mark.slow
def test_module_with_relative_imports_is_started_as_one(lab):
    lab.write("pack/__init__.py", "value = 1\n")
    lab.write("pack/sub/__init__.py", "\n")
    lab.write("pack/part.py", "from . import value\n")
    lab.write("pack/sub/train.py", imports="from ..part import value\nassert value == 1")
    lab.record("-m", "pack.sub.train")
    lab.write("pack/__init__.py", "value = 2\n")
    code, out, err = lab.reproduce()
    assert (code, out.splitlines()[0]) == (0, "IDENTICAL"), err
    assert "differ" not in out
    assert sources(lab) == ["pack/__init__.py", "pack/part.py", "pack/sub/__init__.py", "pack/sub/train.py"]
    code, out, err = lab.reproduce("--in-place")
    assert (code, "AssertionError" in err) == (2, True)


@pytest.mark.slow
def test_main_file_behind_a_link_is_reproduced(lab, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    lab.write("../elsewhere/train.py", imports="import part")
    lab.write("../elsewhere/part.py", "\n")
    (lab.folder / "main.py").symlink_to(tmp_path / "elsewhere" / "train.py")
    lab.record("main.py")
    assert sources(lab) == ["part.py", "train.py"]
    code, out, err = lab.reproduce()
    assert (code, out.splitlines()[0]) == (0, "IDENTICAL"), err
    assert "differ" not in out


@pytest.mark.slow
def test_source_that_is_a_link_out_of_the_lab_is_recorded_and_restored(lab, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    lab.write("../elsewhere/part.py", "value = 1\n")
    (lab.folder / "linked.py").symlink_to(tmp_path / "elsewhere" / "part.py")
    lab.write("train.py", imports="import linked\nassert linked.value == 1")
    lab.record("train.py")
    lab.write("../elsewhere/part.py", "value = 2\n")
    code, out, err = lab.reproduce()
    assert (code, out.splitlines()[0]) == (0, "IDENTICAL"), err
    assert "differ" not in out
    assert sources(lab) == ["linked.py", "train.py"]


def test_library_that_has_changed_is_told_before_the_run_and_beside_the_verdict(lab, tmp_path):
    lab.write("../library/shape/__init__.py", "\n")
    lab.write("../library/shape/size.py", "factor = 1.0\n")
    lab.write("train.py", TRAIN.replace("1 /", "shape.size.factor /"), imports="")
    lab.write("train.py", (lab.folder / "train.py").read_text().replace("IMPORTS", "import shape.size"))
    lab.record("train.py")
    lab.write("../library/shape/size.py", "factor = 2.0\n")
    code, out, err = lab.reproduce("--in-place")
    where = tmp_path / "library"
    said = f"library shape: recorded in {where}, now shape/size.py changed in {where}"
    assert (code, out.splitlines()[0]) == (1, "DIVERGED: loss at step 0: recorded 1.0, now 2.0"), err
    assert f"differs: {said}" in err[: err.index("Running command")]
    assert out.count(said) == 1
    assert "the sources are the same: the difference comes from the environment (shape)" in out
    assert "PYTHONHASHSEED" not in out
    with open_store(lab.folder / "my_runs") as store:
        entry = store.get("1").provenance["libraries"]["shape"]
    assert (entry["folder"], entry["commit"], len(entry["digest"])) == (str(where), None, 64)
    assert sorted(entry["files"]) == ["shape/__init__.py", "shape/size.py"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("value", "is_of_hashes"),
    [("time.time()", False), ("random.Random().random()", False), ("(time.time() + hash('a') % 2)", True)],
)
def test_cause_that_no_record_holds_is_not_laid_on_the_hash_seed(lab, value, is_of_hashes):
    lab.write("train.py", TRAIN.replace("1 /", f"{value} /").replace("IMPORTS", "import random, time"))
    lab.record("train.py")
    for words in ((), ("--in-place",)):
        code, out, err = lab.reproduce("--rtol", "0", *words)
        assert (code, out.splitlines()[0].partition(":")[0]) == (1, "DIVERGED"), err
        assert "nothing recorded differs; a record does not include the time, random generators without a seed" in out
        assert "are the same" not in out
        assert ("train.py may depend on the order of a set or on hash()" in out) is is_of_hashes
        assert ("PYTHONHASHSEED was not set for run 1" in out) is is_of_hashes
        if not is_of_hashes:
            break


def test_file_and_variable_that_the_run_read_are_named_where_they_differ(lab, monkeypatch):
    lab.write("scale.txt", "1")
    lab.write("notes.txt", "read, and the same")
    lab.write("train.py", TRAIN.replace("1 /", "scale() /").replace("IMPORTS", READING))
    monkeypatch.setenv("SCALE", "1")
    lab.record("train.py")
    with open_store(lab.folder / "my_runs") as store:
        reads = store.get("1").provenance["reads"]
    assert sorted(reads["files"]) == ["notes.txt", "scale.txt"]
    assert reads["variables"] == {"SCALE": "1"}
    lab.write("scale.txt", "2")
    monkeypatch.setenv("SCALE", "3")
    code, out, err = lab.reproduce("--in-place")
    assert (code, out.splitlines()[0].partition(":")[0]) == (1, "DIVERGED"), err
    assert "the sources are the same: the difference comes from the environment (scale.txt, SCALE)" in out
    assert "variable SCALE: recorded 1, now 3" in out
    assert "file scale.txt: recorded c4ca4238" in out
    assert "notes.txt" not in out
    lab.record("train.py", "-R")
    with open_store(lab.folder / "my_runs") as store:
        assert "reads" not in store.get("latest").provenance


@pytest.mark.slow
def test_copy_that_shadows_an_installed_package_is_named(lab, tmp_path, monkeypatch):
    installed = tmp_path / "site-packages"
    lab.write(f"{installed}/shape/__init__.py", "factor = 1.0\n")
    lab.write(f"{installed}/shape-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: shape\nVersion: 1.5\n")
    lab.write(f"{installed}/shape-1.5.dist-info/RECORD", "shape/__init__.py,,\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(installed)]))
    monkeypatch.syspath_prepend(installed)
    lab.write("train.py", TRAIN.replace("1 /", "shape.factor /").replace("IMPORTS", "import shape"))
    lab.record("train.py")
    lab.write("../library/shape/__init__.py", "factor = 2.0\n")
    code, out, err = lab.reproduce("--in-place")
    said = f"library shape: recorded of the installed package shape 1.5, now in {tmp_path / 'library'}"
    assert (code, out.splitlines()[0]) == (1, "DIVERGED: loss at step 0: recorded 1.0, now 2.0"), err
    assert f"differs: {said}" in err[: err.index("Running command")]
    assert out.count(said) == 1
    assert "the difference comes from the environment (shape)" in out


@pytest.mark.slow
@pytest.mark.parametrize("is_stock", [False, True])
def test_resource_that_has_changed_is_refused_in_a_repository_too(lab, is_stock):
    # Of one piece: Sacred's `tee`s of stdout and stderr write between each other.
    body = "    print('read ' + _run.open_resource('table.csv').read())\n    for step"
    text = TRAIN.replace("IMPORTS", "").replace("    for step", body)
    if is_stock:
        text = text.replace("from sacristan.experiments import Experiment", "from sacred import Experiment")
        text = text.replace(", system_metrics_s=None", "")
    lab.write("train.py", text)
    lab.write("table.csv", "1,2\n")
    lab.write(".gitignore", "my_runs\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *words], check=True)
    lab.record("train.py")
    lab.write("table.csv", "1,3\n")
    code, out, err = lab.reproduce()
    assert (code, out) == (2, ""), err
    assert "has changed: the run is refused unless it reads" in err
    assert err.splitlines()[-1].startswith("error: ")
    assert "read another" in err.splitlines()[-1] if is_stock else "DataError: " in err.splitlines()[-1]
    assert ("read 1,3" in err) == is_stock
    with open_store(lab.folder / "my_runs") as store:
        assert store.get("1").reproductions == []


def test_run_that_the_store_refuses_in_the_end_is_kept_elsewhere(lab):
    lab.write("train.py", imports="")
    lab.record("train.py")
    path = lab.folder / "my_runs" / "1" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "copied_from": "elsewhere"}))
    (lab.folder / "my_runs" / ".taking").write_text("where runs are copied to first")
    code, out, err = lab.reproduce()
    assert (code, out.splitlines()[0]) == (0, "IDENTICAL"), err
    where = lab.folder / "reproduce-1" / "runs"
    assert f"the new run could not be put into {lab.folder}/my_runs (" in out
    assert f"; it is in {where}" in out
    with open_store(where) as own:
        assert [entry["verdict"] for entry in own.get("1").reproductions] == ["IDENTICAL"]
    with open_store(lab.folder / "my_runs") as store:
        assert store.get("1").reproductions == []


def test_run_that_cannot_be_written_to_gets_its_verdict_said_all_the_same(lab):
    lab.write("train.py", imports="")
    lab.record("train.py")
    (lab.folder / "my_runs" / "1" / "notes.json").write_text(json.dumps({"note": "x" * 2**22}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, before[1]))
    try:
        code, out, err = lab.reproduce()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, out.splitlines()[0]) == (0, "IDENTICAL"), err
    assert f"the verdict is noted with run 2 alone: {lab.folder}/my_runs/1 cannot be written" in out
    with open_store(lab.folder / "my_runs") as store:
        assert [entry["verdict"] for entry in store.get("2").reproductions] == ["IDENTICAL"]


def test_source_that_is_not_imported_now_is_no_difference(lab):
    lab.write("once.py", "\n")
    lab.write("train.py", imports="import os\nif 'ONCE' in os.environ: import once")
    os.environ["ONCE"] = "1"
    lab.record("train.py")
    del os.environ["ONCE"]
    code, out, err = lab.reproduce("--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["sources"], found["notes"][1:]) == (0, "IDENTICAL", {}, []), err
