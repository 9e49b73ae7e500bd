"""`sacristan reproduce` on real labs: repositories whose experiments are recorded, changed, and run again."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.ingredients import checkpoint
from sacristan.observers import FileObserver
from sacristan.runs import copy, export_runs, open_store
from tests.documents import checked
from tests.labs import copy_lab
from tests.processes import DEVNULL, Process, run

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import random
from pathlib import Path

from sacristan.experiments import Experiment
from sacristan.observers import file_observer
from steps import advance

ex = Experiment("train", system_metrics_s=None)
OBSERVE


@ex.config
def config():
    # the seed
    seed = 0
    # what to do
    how = "well"


@ex.automain
def main(_run, seed, how):
    stream, loss = random.Random(seed), 1.0
    for step in range(20):
        loss = advance(loss, stream.random(), step)
        _run.log_scalar("train/loss", loss, step)
        if step % 5 == 4:
            _run.log_scalar("val/loss", 2 * loss, step)
    if how == "resource":
        _run.add_resource("table.csv")
    while how == "forever":
        pass
    if how == "badly":
        raise ValueError(f"it went badly at {loss}")
    return {"loss": loss}
"""
ADVANCE = "def advance(loss, noise, step):\n    return loss * (0.9 + noise / 100)\n"
STOCK = """
import sacred
from sacred.observers import FileStorageObserver

ex = sacred.Experiment("stock", save_git_info=False)
ex.observers.append(FileStorageObserver("there"))

@ex.config
def config():
    factor = 2.0

@ex.automain
def main(_run, factor, seed):
    for step in range(5):
        _run.log_scalar("loss", factor / (step + 1), step)
    return seed
"""
MAKE = """
from pathlib import Path

from sacristan.experiments import Experiment
from sacristan.observers import file_observer

ex = Experiment("make", system_metrics_s=None)
ex.observers.append(file_observer("my_runs"))


@ex.automain
def main(_run):
    Path("words.txt").write_text("words")
    _run.log_artifact("words", "words.txt")
"""


SAFE = "git config --global --add safe.directory"


def git(folder, *words):
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


class Lab:
    """A lab in a repository, with packages of its own if it is whole; else it takes them from the lab under test.

    Attributes:
        folder: Where it is.
        store: Where its runs are.
    """

    def __init__(self, folder, observe='ex.observers.append(file_observer("my_runs"))', *, whole=False):
        self.folder, self.store, self._whole = folder, folder / "my_runs", whole
        if whole:
            copy_lab(folder)
        (folder / "train.py").write_text(TRAIN.replace("OBSERVE", observe))
        (folder / "steps.py").write_text(ADVANCE)
        (folder / ".gitignore").write_text("my_runs/\n__pycache__/\n")
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "first")

    def run(self, *words, script="train.py", code=0):
        """Run an experiment as a user does."""
        done = self.process([script, *words])
        assert done.returncode == code, done.stderr

    def process(self, words):
        # Without the tests' search path: a lab's own packages have to be found by themselves.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {} if self._whole else {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, *map(str, words)]
        options = {"capture_output": True, "text": True, "timeout": 120, "stdin": DEVNULL}
        return run(command, cwd=self.folder, env=environment, **options)


def reproduce(*words, store, cwd, path=ROOT):
    """Run the command as a user does, with the lab under test, and perhaps with another one ahead of it."""
    command = [sys.executable, "-m", "sacristan", "--store", str(store), "reproduce", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def lab(tmp_path):
    return Lab(make(tmp_path / "lab"))


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory):
    """A lab with one run, beside what its folder held then."""
    folder = tmp_path_factory.mktemp("recorded")
    lab = Lab(make(folder / "lab"))
    lab.run()
    shutil.copytree(lab.folder, folder / "as it was")
    return lab


@pytest.fixture
def recorded(recorded_once):
    """The lab with one run as it was made, for one test, which may change it."""
    shutil.rmtree(recorded_once.folder)
    shutil.copytree(recorded_once.folder.with_name("as it was"), recorded_once.folder)
    return recorded_once


@pytest.fixture
def reproduce_here(recorded, tmp_path, monkeypatch, capfd):
    """Reproduce the run in this process, for what starts no other."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(["--store", str(recorded.store), "reproduce", "1", *map(str, words)])
        out, err = capfd.readouterr()
        return types.SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return run


@pytest.fixture
def whole_lab(tmp_path):
    return Lab(make(tmp_path / "lab"), whole=True)


def make(folder):
    folder.mkdir()
    return folder


def values(store, key, metric="train/loss"):
    with open_store(store) as opened:
        return opened.get(key).metric(metric).values.tolist()


def edit(store, key, name, change):
    path = store / key / name
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def without_the_first(path):
    path.write_bytes(path.read_bytes().partition(b"\n")[2])


def flip_a_value(path):
    data = bytearray(path.read_bytes())
    data[16] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "change", "told", "is_listed"),
    [
        ("config.json", Path.unlink, "config.json is missing", True),
        ("metrics.bin", flip_a_value, "metrics.bin: points 0 to", False),
        ("metrics.bin", lambda path: path.write_bytes(path.read_bytes()[:240]), "metrics.bin: 14 points are", False),
        ("metrics.bin", Path.unlink, "metrics.bin: 24 points are missing", False),
        ("metrics.names.jsonl", Path.unlink, "metrics.names.jsonl", True),
        ("metrics.names.jsonl", without_the_first, "metrics.names.jsonl: it lacks the names of 20 points", False),
    ],
)
def test_damaged_record_is_rejected_before_anything_starts(
    recorded, reproduce_here, capfd, name, change, told, is_listed
):
    change(recorded.store / "1" / name)
    done = reproduce_here()
    assert done.returncode == 2
    assert done.stderr.startswith("error: the record of run 1 is damaged, so nothing could be compared with it: ")
    assert told in done.stderr
    assert not (recorded.store / "2").exists()
    assert main(["--store", str(recorded.store), "show", "1"]) == 0
    assert f"note: 1 run cannot be read completely: run 1 ({told}" in capfd.readouterr().err
    assert main(["--store", str(recorded.store), "ls"]) == 0
    assert (name in capfd.readouterr().out) is is_listed


def test_run_without_its_config_is_neither_resumed_nor_forked(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    ex = Experiment("e", ingredients=[checkpoint.ingredient], base_dir=str(tmp_path), system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "my_runs"))
    ex.main(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ex.run()
    (tmp_path / "my_runs" / "1" / "config.json").unlink()
    for command in ("resume", "fork"):
        assert main([command, "1"]) != 0
        assert "config.json" in capfd.readouterr().err
    assert not (tmp_path / "my_runs" / "2").exists()


@pytest.mark.slow
def test_run_is_reproduced_after_its_working_tree_has_moved_on(whole_lab, tmp_path):
    (whole_lab.folder / "steps.py").write_text(ADVANCE.replace("0.9", "0.8"))
    (whole_lab.folder / "more.py").write_text("")
    (whole_lab.folder / "train.py").write_text("import more\n" + (whole_lab.folder / "train.py").read_text())
    whole_lab.run("with", "seed=3")
    for name in ("steps.py", "more.py"):
        (whole_lab.folder / name).unlink()
    (whole_lab.folder / "train.py").write_text("raise SystemExit('moved on')\n")
    git(whole_lab.folder, "commit", "-qam", "moved on")
    before = git(whole_lab.folder, "status", "--porcelain"), git(whole_lab.folder, "log", "--all", "--oneline")
    done = reproduce("1", store=whole_lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    assert "Completed after" in done.stderr  # what the process printed
    assert "config.json" not in done.stderr  # `--dry` alone shows the command, which is long
    assert (
        git(whole_lab.folder, "status", "--porcelain"),
        git(whole_lab.folder, "log", "--all", "--oneline"),
    ) == before
    with open_store(whole_lab.store) as store:
        old, new = store.get("1"), store.get("2")
        assert new.parent == old
        assert old.reproductions == new.reproductions
        [entry] = old.reproductions
        assert (entry["verdict"], entry["mode"]) == ("IDENTICAL", "restored")
        assert (entry["of"], entry["by"], entry["by_id"]) == (old.uid, new.uid, "2")
        assert sorted(path.name for path in whole_lab.store.iterdir() if path.name.isdigit()) == ["1", "2"]
    command = [sys.executable, "-m", "sacristan", "--store", whole_lab.store, "show", "1"]
    shown = run(command, cwd=ROOT, capture_output=True, text=True)
    assert "reproduced  IDENTICAL, by run 2 (restored, " in shown.stdout


def test_one_changed_line_diverges_where_it_takes_effect(recorded, tmp_path):
    changed = ADVANCE.replace("return", "loss += 0.5 * (step == 7)\n    return")
    (recorded.folder / "steps.py").write_text(changed)
    done = reproduce("1", "--in-place", store=recorded.store, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    before, now = values(recorded.store, "1"), values(recorded.store, "2")
    assert before[:7] == now[:7]
    first = f"DIVERGED: train/loss at step 7: recorded {before[7]!r}, now {now[7]!r}"
    assert done.stdout.splitlines()[0] == first
    assert "the environment is the same: the difference comes from the code (steps.py)" in done.stdout
    assert "+    loss += 0.5 * (step == 7)" in done.stdout
    # Its own sources still give the same.
    done = reproduce("1", "--json", store=recorded.store, cwd=tmp_path)
    assert (done.returncode, checked("reproduce", done.stdout)["verdict"]) == (0, "IDENTICAL")
    with open_store(recorded.store) as store:
        assert [entry["mode"] for entry in store.get("1").reproductions] == ["in place", "restored"]


@pytest.mark.slow
def test_small_change_is_within_a_tolerance_that_is_stated(recorded, tmp_path):
    (recorded.folder / "steps.py").write_text(ADVANCE.replace("return", "return 1e-9 +"))
    done = reproduce("1", "--in-place", "--rtol", "1e-6", store=recorded.store, cwd=tmp_path)
    assert (done.returncode, done.stdout[:32]) == (0, "WITHIN TOLERANCE (1e-06 relative"), done.stderr
    words = ["1", "--in-place", "--rtol", "0", "--tolerance", "train/loss=1", "--tolerance", "result=inf"]
    done = reproduce(*words, store=recorded.store, cwd=tmp_path)
    assert (done.returncode, done.stdout[:29]) == (1, "DIVERGED: val/loss at step 4:"), done.stderr
    done = reproduce("1", "--tolerance", "trian/loss=1", store=recorded.store, cwd=tmp_path)
    assert done.returncode == 2
    assert "has no metric 'trian/loss'; did you mean train/loss?" in done.stderr


@pytest.mark.slow
def test_another_seed_and_another_package_are_noticed(recorded, tmp_path):
    edit(recorded.store, "1", "config.json", lambda config: config.update(seed=1))
    edit(recorded.store, "1", "provenance.json", lambda found: found["packages"].update(sacred="0.7.0"))
    done = reproduce("1", "--json", store=recorded.store, cwd=tmp_path)
    found = checked("reproduce", done.stdout)
    assert (done.returncode, found["verdict"], found["first"]["metric"], found["first"]["step"]) == (
        1,
        "DIVERGED",
        "train/loss",
        0,
    )
    assert [one["name"] for one in found["environment"] if one["is_loud"]] == ["sacred"]
    assert "differs: package sacred: recorded 0.7.0, now 0.8" in done.stderr


@pytest.mark.slow
def test_run_is_reproduced_from_an_archive_without_its_lab(whole_lab, tmp_path):
    (whole_lab.folder / "steps.py").write_text(ADVANCE.replace("0.9", "0.8"))
    whole_lab.run()
    with open_store(whole_lab.store) as store:
        export_runs([store.get("1")], tmp_path / "run.zip")
    shutil.rmtree(whole_lab.folder)
    (tmp_path / "machine").mkdir()
    command = [
        sys.executable,
        "-m",
        "sacristan",
        "--store",
        tmp_path / "machine" / "store",
        "import",
        tmp_path / "run.zip",
    ]
    run(command, check=True, cwd=ROOT, capture_output=True)
    done = reproduce("1", store=tmp_path / "machine" / "store", cwd=tmp_path / "machine")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    assert "only the recorded sources are restored" in done.stderr
    assert f"was started in {whole_lab.folder}, which is not there" in done.stderr


@pytest.mark.slow
def test_run_in_a_database_is_reproduced_into_it(recorded, tmp_path, mongo_url, database):
    url = f"{mongo_url}/{database.name}"
    with open_store(recorded.store) as store, open_store(url) as target:
        copy(store.get("1"), target)
    done = reproduce("1", store=url, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    with open_store(url) as store:
        old, new = store.get("1"), store.get("2")
        assert new.parent == old
        assert new.metric("train/loss").values.tolist() == old.metric("train/loss").values.tolist()
        assert [entry["verdict"] for entry in old.reproductions + new.reproductions] == ["IDENTICAL"] * 2
        with open_store(recorded.store) as back:
            assert copy(new, back).run.reproductions == new.reproductions


@pytest.mark.slow
def test_run_of_stock_sacred_is_reproduced_as_far_as_its_record_goes(tmp_path):
    (tmp_path / "stock.py").write_text(STOCK)
    run([sys.executable, "stock.py"], cwd=tmp_path, check=True, capture_output=True)
    done = reproduce("1", store=tmp_path / "there", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    for missing in ("names no commit", "no list of all packages", "no determinism flags", "in which folder"):
        assert missing in done.stderr
    with open_store(tmp_path / "there") as store:
        assert [run.id for run in store.find(sort="id")] == ["1", "2"]
        assert store.get("1").reproductions == store.get("2").reproductions != []
    # Read in another place, it is copied there.
    with open_store(tmp_path / "there") as store, open_store(make(tmp_path / "other")) as other:
        copy(store.get("1"), other)
    done = reproduce("1", store=tmp_path / "other", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    with open_store(tmp_path / "other") as other:
        assert other.get("2").parent == other.get("1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "observe", ["", pytest.param('ex.observers.append(file_observer("my_runs"))', marks=pytest.mark.slow)]
)
def test_run_recorded_by_an_option_is_recorded_once(tmp_path, observe):
    lab = Lab(make(tmp_path / "lab"), observe)
    lab.run("-F", "my_runs", "--name", "mine")
    done = reproduce("1", store=lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    with open_store(lab.store) as store:
        assert [run.id for run in store.find(sort="id")] == ["1", "2"]
        assert store.get("2").name == "mine"


@pytest.mark.slow
def test_experiment_in_a_subfolder_takes_its_packages_from_the_restored_root(whole_lab, tmp_path):
    """Its base folder is its own, so the packages beside it are no recorded sources: git has them."""
    (whole_lab.folder / "sub").mkdir()
    (whole_lab.folder / "steps.py").rename(whole_lab.folder / "sub" / "steps.py")
    (whole_lab.folder / "train.py").rename(whole_lab.folder / "sub" / "train.py")
    (whole_lab.folder / "shared.py").write_text("factor = 1\n")
    script = whole_lab.folder / "sub" / "train.py"
    script.write_text(
        script.read_text()
        .replace("advance(", "shared.factor * advance(")
        .replace("import random", "import random, shared")
    )
    git(whole_lab.folder, "add", "-A")
    git(whole_lab.folder, "commit", "-qm", "a subfolder")
    environment = {**os.environ, "PYTHONPATH": str(whole_lab.folder)}
    run([sys.executable, "sub/train.py"], cwd=whole_lab.folder, env=environment, check=True, capture_output=True)
    (whole_lab.folder / "shared.py").write_text("factor = 2\n")
    done = reproduce("1", store=whole_lab.store, cwd=tmp_path, path=whole_lab.folder)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr


@pytest.mark.slow
def test_failure_that_is_repeated_is_reproduced(lab, tmp_path):
    lab.run("with", "how=badly", code=1)
    done = reproduce("1", store=lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr


def test_run_that_cannot_be_run_is_refused_with_the_reason(recorded, tmp_path):
    (recorded.folder / "steps.py").write_text(ADVANCE.replace("return", "raise KeyError('gone') #"))
    done = reproduce("1", "--in-place", store=recorded.store, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "error: run 1 could not be run again: run 2 failed: KeyError: 'gone'"
    (recorded.folder / "steps.py").write_text("no python\n")
    done = reproduce("1", "--in-place", store=recorded.store, cwd=tmp_path)
    assert done.returncode == 2
    assert "its process recorded no run, and ended with exit code 1" in done.stderr.splitlines()[-1]
    edit(recorded.store, "1", "run.json", lambda run: run.update(status="QUEUED"))
    done = reproduce("1", store=recorded.store, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "error: run 1 is queued and was never started: there is nothing to compare with\n",
    )
    assert reproduce("7", store=recorded.store, cwd=tmp_path).returncode == 2


# Code of the new run, options, exit code, verdict, and a value of the first point beyond the tolerance.
VERDICTS = {
    "the same": (ADVANCE, (), 0, "IDENTICAL", None),
    "close": (ADVANCE.replace("return", "return 1e-9 +"), ("--rtol", "1e-6"), 0, "WITHIN TOLERANCE", None),
    "another number": (ADVANCE.replace("return", "return (step == 7) +"), (), 1, "DIVERGED", 7),
    "no number": (ADVANCE.replace("return", "return float('nan' if step == 7 else 'inf') *"), (), 1, "DIVERGED", 0),
    "another end": (
        ADVANCE.replace("return", "return (step == 19) +"),
        ("--tolerance", "train/loss=inf"),
        1,
        "DIVERGED",
        19,
    ),
    "impossible": (ADVANCE.replace("return", "raise KeyError('gone') #"), (), 2, None, None),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case != "impossible" else ()) for case in VERDICTS]
)
def test_each_verdict_prints_one_document_of_the_schema(recorded, tmp_path, case):
    code, options, exit_code, verdict, step = VERDICTS[case]
    (recorded.folder / "steps.py").write_text(code)
    done = reproduce("1", "--in-place", "--json", *options, store=recorded.store, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    if verdict is None:
        assert done.stdout == ""
        assert done.stderr.splitlines()[-1].startswith("error: run 1 could not be run again: ")
        return
    found = checked("reproduce", done.stdout)
    assert (found["verdict"], found["of"]["id"], found["by"]["id"]) == (verdict, "1", "2")
    assert found["text"].startswith(verdict)
    assert (found["first"] and found["first"]["step"]) == step
    assert {metric["name"] for metric in found["metrics"]} == {"train/loss", "val/loss"}
    assert bool(found["largest"]) == (verdict != "IDENTICAL")
    if case == "no number":
        assert (found["first"]["new"], found["metrics"][0]["largest_relative"]) == ("Infinity", "Infinity")


def test_changed_file_that_the_run_read_is_refused_before_anything_runs(lab, tmp_path):
    (lab.folder / "table.csv").write_text("1,2\n")
    lab.run("with", "how=resource")
    (lab.folder / "table.csv").write_text("1,3\n")
    done = reproduce("1", "--in-place", store=lab.store, cwd=tmp_path)
    assert done.returncode == 2
    assert f"'{lab.folder}/table.csv', which the run read, has another content now" in done.stderr
    assert not (lab.store / "2").exists()


@pytest.mark.slow
def test_changed_data_file_is_refused_before_training(lab, tmp_path):
    shutil.copy(ROOT / "exp.py", lab.folder)
    rows = [f"{i},{i % 7},{'ab'[i % 2]}" for i in range(60)]
    (lab.folder / "table.csv").write_text("\n".join(["x,y,class", *rows]))
    lab.run("with", "data.name=csv", "data.path=table.csv", "epochs=1", "data.batch_size=8", script="exp.py")
    done = reproduce("1", store=lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    (lab.folder / "table.csv").write_text("\n".join(["x,y,class", *rows[:-1], "0,0,a"]))
    done = reproduce("1", store=lab.store, cwd=tmp_path)
    assert done.returncode == 2
    assert "data.path=table.csv: got data with the fingerprint" in done.stderr.splitlines()[-1]
    with open_store(lab.store) as store:
        assert [name for name in store.get("3").metrics if not name.startswith("system/")] == []
        assert len(store.get("1").reproductions) == 1


@pytest.fixture
def endless(recorded, tmp_path, wait_for):
    """Start to reproduce a run that does not end by itself: `endless(**options)` waits until that goes on."""
    edit(recorded.store, "1", "config.json", lambda config: config.update(how="forever"))
    command = [sys.executable, "-m", "sacristan", "--store", recorded.store, "reproduce", "1"]
    processes = []

    def start(**options):
        options |= {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "cold": True}
        processes.append(Process(command, stdout=DEVNULL, stderr=DEVNULL, **options))
        wait_for((recorded.store / "2" / "metrics.bin").exists, "the new run to go on")
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def is_ignored(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) & 1 << (number - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    [
        (signal.SIGINT, 130, ()),
        pytest.param(signal.SIGTERM, 143, (), marks=pytest.mark.slow),
        # As a script starts what stands before an `&`, by nohup or without.
        pytest.param(signal.SIGTERM, 143, (signal.SIGINT, signal.SIGHUP), marks=pytest.mark.slow),
    ],
)
def test_signals_end_the_process_too(recorded, endless, number, code, ignored):
    process = endless(ignore=ignored)
    assert signal.SIGHUP not in ignored or is_ignored(process.pid, signal.SIGHUP)
    process.send_signal(number)
    assert process.wait(60) == code
    with open_store(recorded.store) as store:
        new = store.get("2")
        assert new.status == "INTERRUPTED"
        assert not Path(f"/proc/{new.lease['pid']}").exists()
        assert store.get("1").reproductions == []


@pytest.mark.slow
def test_killed_command_takes_its_process_along(recorded, endless, wait_for):
    process = endless()
    with open_store(recorded.store) as store:
        pid = store.get("2").lease["pid"]
        process.kill()
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of its process")
        assert store.get("2").status == "INTERRUPTED"


@pytest.mark.slow
def test_dry_shows_all_and_runs_nothing(recorded, tmp_path, reproduce_here):
    edit(recorded.store, "1", "provenance.json", lambda found: found["packages"].update(sacred="0.7.0", ruff="0.0.1"))
    done = reproduce_here("--dry")
    assert done.returncode == 0
    assert "package sacred: recorded 0.7.0" in done.stdout
    assert "package ruff: recorded 0.0.1" in done.stdout
    assert str(recorded.folder) in done.stdout
    found = checked("reproduce", reproduce_here("--dry", "--json").stdout)
    assert found["command"][2:4] == ["main", "with"]
    assert found["commit"] == git(recorded.folder, "rev-parse", "HEAD").strip()
    assert not (recorded.store / "2").exists()
    next((recorded.store / "_sources").glob("steps_*")).unlink()
    done = reproduce_here("--dry")
    assert (done.returncode, "'steps.py' is not there" in done.stderr) == (2, True)


def test_kept_folder_holds_what_was_restored(recorded, tmp_path, reproduce_here):
    done = reproduce_here("--dry", "--keep", tmp_path / "kept")
    assert done.returncode == 0
    assert ["record", str(recorded.store)] in [line.split() for line in done.stdout.splitlines()]
    assert (tmp_path / "kept" / "code" / "steps.py").read_text() == ADVANCE
    assert json.loads((tmp_path / "kept" / "config.json").read_text()) == {"seed": 0, "how": "well"}
    done = reproduce_here("--dry", "--keep", tmp_path / "kept")
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "updates"),
    [
        # A run that went on where another one was cut off is run from its beginning.
        ({"resume": "auto", "checkpoint": {"resume": "auto"}}, ["checkpoint.resume=None"]),
        # Here it is something else.
        ({"resume": "auto"}, []),
    ],
)
def test_config_is_the_recorded_one_but_for_a_start_that_depends_on_other_runs(
    recorded, tmp_path, reproduce_here, config, updates
):
    edit(recorded.store, "1", "config.json", lambda recorded: recorded.update(config))
    done = reproduce_here("--dry", "--json", "--keep", tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "config.json").read_text()) == {"seed": 0, "how": "well", **config}
    command = json.loads(done.stdout)["command"]
    assert [word for word in command[5:] if not word.startswith("--")] == updates


@pytest.mark.slow
def test_run_that_starts_another_one_is_judged_itself(lab, tmp_path):
    script = lab.folder / "train.py"
    child = 'subprocess.run([sys.executable, "make.py"], check=True)\n    stream, loss'
    script.write_text("import subprocess, sys\n" + script.read_text().replace("stream, loss", child, 1))
    (lab.folder / "make.py").write_text(MAKE)
    lab.run()
    edit(lab.store, "1", "run.json", lambda run: run.pop("cwd"))  # so that it is recorded elsewhere, and then copied
    done = reproduce("1", store=lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr


def test_env_writes_requirements_and_says_how_to_build_them(recorded, tmp_path, reproduce_here):
    done = reproduce_here("--env", "built")
    assert done.returncode == 0
    assert "sacred==0.8" in (tmp_path / "built" / "requirements.txt").read_text()
    build, again = done.stdout.splitlines()
    version = ".".join(map(str, sys.version_info[:2]))
    assert (
        build == f"python{version} -m venv built/venv && built/venv/bin/python -m pip install -r built/requirements.txt"
    )
    assert again == f"built/venv/bin/sacristan --store {recorded.store} reproduce 1"
    assert not (tmp_path / "built" / "venv").exists()
    found = checked("reproduce", reproduce_here("--env", "built", "--json").stdout)
    assert (found["build"], found["reproduce"]) == (build, again)


@pytest.mark.slow
def test_artifacts_that_the_run_used_are_there_for_it(lab, tmp_path, mongo_url, database):
    script = lab.folder / "train.py"
    used = '    _run.use_artifact("words:latest")\n    stream, loss'
    script.write_text(script.read_text().replace("    stream, loss", used, 1))
    (lab.folder / "make.py").write_text(MAKE)
    lab.run(script="make.py")
    lab.run("with", "seed=1")
    done = reproduce("2", store=lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    url = f"{mongo_url}/{database.name}"
    with open_store(lab.store) as store, open_store(url) as target:
        copy(store.get("2"), target)
    done = reproduce("1", store=url, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr


@pytest.mark.slow
def test_record_from_before_it_said_where_it_started_makes_one_run(recorded, tmp_path):
    edit(recorded.store, "1", "run.json", lambda run: run.pop("cwd"))
    done = reproduce("1", store=recorded.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr
    assert "does not say in which folder it was started" in done.stderr
    with open_store(recorded.store) as store:
        assert [run.id for run in store.find(sort="id")] == ["1", "2"]
        assert store.get("2").parent == store.get("1")


@pytest.mark.slow
def test_switches_are_set_as_they_were(lab, tmp_path, monkeypatch):
    script = lab.folder / "train.py"
    script.write_text(script.read_text().replace("random.Random(seed), 1.0", "random.Random(seed), 1.0 + hash('a')"))
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    lab.run()
    monkeypatch.delenv("PYTHONHASHSEED")
    done = reproduce("1", store=lab.store, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "IDENTICAL"), done.stderr


def test_run_whose_repository_git_refused_says_so_at_its_start_and_when_it_is_reproduced(
    lab, monkeypatch, tmp_path, capfd
):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    done = lab.process(["train.py"])
    assert done.returncode == 0
    assert (
        f"because git refuses the repository, which belongs to another user; if you trust it: {SAFE} {lab.folder}"
        in (done.stderr)
    )
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    assert main(["--store", str(lab.store), "show", "1"]) == 0
    assert "no commit recorded: git refuses the repository" in capfd.readouterr().out
    assert main(["--store", str(lab.store), "reproduce", "1", "--dry"]) == 0
    assert "recorded without a commit, because git refuses the repository, which belongs to" in capfd.readouterr().out


RESUMED = """
from pathlib import Path

import torch

from sacristan.experiments import Experiment
from sacristan.ingredients import checkpoint
from sacristan.observers import file_observer, run_folder

ex = Experiment("resumed", ingredients=[checkpoint.ingredient], save_git_info=False, system_metrics_s=None)
ex.observers.append(file_observer("my_runs"))


@ex.automain
def main(_config, _run):
    model = torch.nn.Linear(1, 1)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    with run_folder(_run) as folder:
        keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
        place, loss = keeper.begin(parts), 1.0
        with keeper.session():
            while place.epoch < 4:
                place.epoch, place.step, loss = place.epoch + 1, place.step + 1, loss / 2
                _run.log_scalar("loss", loss, place.step)
                keeper.save(place, parts, final=place.epoch == 4)
                if place.epoch == 2 and Path("fail").exists():
                    raise RuntimeError("asked to")
"""


@pytest.mark.slow
def test_session_that_did_not_continue_exactly_is_named(lab):
    (lab.folder / "resumed.py").write_text(RESUMED)  # whose loss starts over when it is resumed
    (lab.folder / "fail").touch()
    lab.run(script="resumed.py", code=1)
    (lab.folder / "fail").unlink()
    done = lab.process(["-m", "sacristan", "resume", "1"])
    assert done.returncode == 0, done.stderr
    done = reproduce("1", store=lab.store, cwd=lab.folder)
    assert (done.returncode, done.stdout[:8]) == (1, "DIVERGED"), done.stderr
    assert "run 1 was resumed: its session 2 of 2 began at step 2, before the first difference, and is a suspect" in (
        done.stdout + done.stderr
    )
