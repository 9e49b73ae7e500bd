"""`python exp.py ...` as a process: what looks is quick, what is mistyped stops, Ctrl-C ends."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from sacristan.observers.record.sealed_zip import read_note
from tests.processes import DEVNULL, PIPE, Process, run

EXP = Path(__file__).parents[2] / "exp.py"
# Runs a script where torch has not been imported, in a warm process too, and cannot be.
WITHOUT_TORCH = """
import os, runpy, sys
torch = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "torch"}
class Refusing:
    def find_spec(name, path=None, target=None):
        if name == "torch": raise AssertionError("torch is imported")
sys.meta_path.insert(0, Refusing)
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Python runs it at its start, so that what a process has imported can be read when it has ended.
SITECUSTOMIZE = """
import atexit, os, sys
atexit.register(lambda: open(os.environ["IMPORTED"], "w").write("\\n".join(sys.modules)))
"""


class Lab:
    """A folder to work in, and `exp.py` started there."""

    def __init__(self, folder):
        self.folder = folder
        self.records = folder / "my_runs"
        self._site = folder / "site"
        self._site.mkdir()
        (self._site / "sitecustomize.py").write_text(SITECUSTOMIZE)

    @property
    def command(self):
        return [sys.executable, str(EXP)]

    @property
    def env(self):
        return {**os.environ, "PYTHONPATH": str(self._site), "IMPORTED": str(self._site / "imported")}

    def run(self, *words, cold=False):
        options = {"env": self.env, "capture_output": True, "text": True, "cold": cold}
        return run([*self.command, *words], cwd=self.folder, **options)

    def run_without_torch(self, *words):
        """Run it where importing torch ends it."""
        command = [sys.executable, "-c", WITHOUT_TORCH, str(EXP), *words]
        return run(command, cwd=self.folder, capture_output=True, text=True)

    def imported(self):
        """Return the modules that the last process has imported."""
        return set((self._site / "imported").read_text().split("\n"))


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


# Looking


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["print_config", "with", "model.name=vit"], "heads = 4"),
        (["print_named_configs"], "A few hundred samples, to try things out."),
        (["help", "evaluate"], "Measure a checkpoint"),
        (["-h"], "data.stats"),
    ],
)
def test_looking_shows_it_without_torch_and_records_nothing(lab, words, shown):
    done = lab.run_without_torch(*words)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert done.stderr == ""
    assert not lab.records.exists()


@pytest.mark.slow
def test_looking_with_a_python_that_starts_afresh_imports_no_torch(lab):
    assert lab.run("print_config", cold=True).returncode == 0
    assert "sacred" in lab.imported()
    assert "torch" not in lab.imported()


def test_importing_torch_ends_what_runs_without(lab):
    done = lab.run_without_torch("with", "data.fast", "epochs=1")
    assert done.returncode == 1
    assert "torch is imported" in done.stderr


def test_save_config_writes_a_file_that_with_takes(lab):
    done = lab.run_without_torch("save_config", "with", "lr=1", "data.fast", "config_filename=mine.yaml")
    assert done.returncode == 0, done.stderr
    done = lab.run("print_config", "with", "mine.yaml", "model.init=xavier")
    assert done.returncode == 0
    for line in ("lr = 1.0", "  limit = 300", "  batch_size = 32", "  init = 'xavier'"):
        assert f"\n{line} " in f"\n{done.stdout}"
    assert not lab.records.exists()


# Typos


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "named", "meant"),
    [
        (["with", "lr=abc"], "lr", "expected a float"),
        (["with", "lr="], "lr", "got nothing"),
        (["with", "data.batch_size=3.7"], "data.batch_size", "expected an int"),
        (["with", "optimizer.nmae=adam"], "optimizer.nmae", "did you mean optimizer.name?"),
        (["with", "model.optoins.hidden=[3]"], "model.optoins.hidden", "did you mean model.options.hidden?"),
        (["with", "data.seed=3"], "data.seed", "set seed=3"),
        (["with", "data.fats"], "data.fats", "did you mean data.fast?"),
        (["data.stast"], "data.stast", "did you mean data.stats?"),
    ],
)
def test_typo_ends_with_one_line_that_names_it_and_records_nothing(lab, words, named, meant):
    done = lab.run_without_torch(*words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {named}: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1
    assert meant in done.stderr
    assert not lab.records.exists()


def test_force_trains_with_an_entry_that_does_not_exist(lab):
    done = lab.run("--force", "with", "training.fast", "data.fast", "data.note=tried")
    assert done.returncode == 0, done.stderr
    assert json.loads((lab.records / "1" / "config.json").read_text())["data"]["note"] == "tried"


# Ctrl-C


def interrupted(lab, *settings, cold=False):
    """Interrupt a training, as a terminal does, once epoch 20 of 400 is done; return its exit code and what it said."""
    command = [*lab.command, "with", "epochs=400", "data.fast", *settings]
    options = {"stdout": DEVNULL, "stderr": PIPE, "text": True, "start_new_session": True, "cold": cold}
    with Process(command, cwd=lab.folder, env=lab.env, **options) as process:
        seen = next((line for line in process.stderr if "epoch 20/400" in line), None)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        process.wait()
    assert seen is not None
    assert "Traceback" not in rest
    assert json.loads((lab.records / "1" / "run.json").read_text())["status"] == "INTERRUPTED"
    return process.returncode, rest


@pytest.mark.slow
def test_interrupt_ends_with_130_and_no_traceback(lab):
    code, said = interrupted(lab, "checkpoint.last=False", cold=True)
    assert code == 130
    assert said.endswith("interrupted (Ctrl-C)\n")


def test_interrupt_that_saves_the_state_ends_with_75(lab):
    code, said = interrupted(lab)
    assert code == 75
    assert "SIGINT: saving a checkpoint after this step; once more ends the run at once" in said
    message = (
        r"interrupted \(SIGINT\); the state after step (\d+) is saved; resume with: \S*( -m)? ?sacristan resume 1\n$"
    )
    step = re.search(message, said)[1]
    note = json.loads(read_note(lab.records / "1" / "checkpoints" / "last.pt"))
    assert note["step"] == int(step)
    command = [sys.executable, "-m", "sacristan", "resume", "1", "--dry"]
    done = run(command, cwd=lab.folder, env=lab.env, capture_output=True, text=True)
    assert f"run 1 is resumed from last.pt, step {step}" in done.stderr
