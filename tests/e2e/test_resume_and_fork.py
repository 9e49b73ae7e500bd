"""`sacristan resume` and `fork`, as typed: a run that was cut off, and new ones that start from its states."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.observers import read_metrics
from sacristan.observers.record.points import POINT
from sacristan.observers.record.points.intact_points import entries_of, read_all_points, read_points
from sacristan.observers.record.schema import read_names
from tests.processes import DEVNULL, Process, run

ROOT = Path(__file__).parents[2]
SETTINGS = ("epochs=24", "data.limit=400", "model.options.dropout=0.3", "training.log_interval=3", "checkpoint.keep=4")


# A task of one's own with two optimizers, which draws, and a callback that draws and keeps a state.
OWN = """
import torch
from torch import nn

from sacristan.experiments import Callback, Experiment, Task, loop
from sacristan.ingredients import checkpoint, data, device, optimizer, training
from sacristan.ingredients.config.seed import global_stream
from sacristan.observers import file_observer, run_folder

ex = Experiment("own", [part.ingredient for part in (device, data, optimizer, training, checkpoint)])
ex.alias(epochs="training.epochs")
ex.observers.append(file_observer("my_runs"))


class Game(Task):
    def step(self, trainer, group):
        painter, critic = trainer.model["painter"], trainer.model["critic"]

        def painted(batch):
            return painter(torch.randn(len(batch[0]), 4)).view_as(batch[0])

        gap = trainer.minimize(lambda b: critic(painted(b).detach()).mean() - critic(b[0]).mean(), group, "critic")
        loss = trainer.minimize(lambda b: -critic(painted(b)).mean(), group, "painter")
        return {"loss": loss, "gap": gap}

    def measure(self, model, batch):
        return {"loss": -model["critic"](batch[0]).mean()}


class Smoothed(Callback):
    metrics = ("val/smoothed",)
    value = 0.0

    def after_step(self, trainer):
        self.value = 0.9 * self.value + 0.1 * torch.rand(()).item()

    def after_validation(self, trainer, metrics):
        metrics["val/smoothed"] = self.value
        trainer.log("val/smoothed", self.value, trainer.place.step)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@ex.config
def config(training):
    # passes
    epochs = training["epochs"]
    # of all random streams
    seed = 0


@ex.automain
def main(_config, _run, seed, training):
    where = device.make_device(seed)
    batches = data.make_data(seed, where, start=checkpoint.load_split(_run))
    with global_stream(seed, "init"):
        critic = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 1))
        parts = nn.ModuleDict({"painter": nn.Linear(4, 64), "critic": critic}).to(where)
    optimizers = {name: optimizer.make_optimizer(part) for name, part in parts.items()}
    with run_folder(_run) as folder:
        keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
        options = {"checkpointer": keeper, "log": _run.log_scalar, "callbacks": [Smoothed()], **training}
        return loop.fit(parts, batches, Game(), optimizers, **options).best
"""


class Lab:
    """A folder to work in, with runs that are started there."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, *words, script=ROOT / "exp.py"):
        command = [sys.executable, str(script), "with", *words]
        return Process(command, cwd=self.folder, stdout=DEVNULL, stderr=DEVNULL)

    def runs(self, *words):
        command = [sys.executable, "-m", "sacristan", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, env=env)

    def numbers(self):
        return {int(path.name) for path in (self.folder / "my_runs").iterdir() if path.name.isdigit()}

    def cut_off(self, *words, by, **options):
        """Start a run, end it by a signal once it has saved three states; return its number and its exit code."""
        before = self.numbers()
        with self.start(*words, **options) as process:
            deadline = time.monotonic() + 100
            while not (new := self.numbers() - before) or len(self.states(max(new))) < 3:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(by)
            return max(new), process.wait(60)

    def states(self, number):
        return sorted((self.folder / "my_runs" / str(number) / "checkpoints").glob("step-*.pt"))

    def record(self, number):
        return json.loads((self.folder / "my_runs" / str(number) / "run.json").read_text())

    def points(self, number):
        metrics = read_metrics(self.folder / "my_runs" / str(number))
        named = {name: series for name, series in metrics.items() if not name.startswith("system/")}
        return {name: (series.steps.tolist(), series.values.tolist()) for name, series in named.items()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab with a whole run, 1, and one that SIGTERM cut off after some epochs, 2."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    assert lab.start(*SETTINGS).wait(120) == 0
    assert lab.cut_off(*SETTINGS, by=signal.SIGTERM) == (2, 75)
    return lab


def test_run_cut_off_is_verified_and_goes_on_to_the_same_end(lab):
    done = lab.runs("resume", "2", "--verify", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("IDENTICAL: "), done.stdout
    assert re.search(r"^run 2 is resumed from last\.pt, step \d+$", done.stderr, re.MULTILINE)
    assert lab.points(2) == lab.points(1)
    assert lab.record(2)["result"] == lab.record(1)["result"]
    assert [session["status"] for session in lab.record(2)["sessions"]] == ["INTERRUPTED", "COMPLETED"]
    again = lab.runs("resume", "2")
    assert again.returncode == 1
    assert again.stderr.startswith("error: run 2 is COMPLETED: nothing is left to do;")


@pytest.mark.slow
def test_run_of_an_own_task_and_a_callback_is_verified_resumed_and_reproduced(lab):
    script = lab.folder / "own.py"
    script.write_text(OWN)
    settings = ("epochs=12", "data.limit=200", "training.log_interval=1", "checkpoint.keep=4")
    assert lab.start(*settings, script=script).wait(120) == 0
    whole = max(lab.numbers())
    run, _ = lab.cut_off(*settings, by=signal.SIGKILL, script=script)
    done = lab.runs("resume", str(run), "--verify", "5")
    assert (done.returncode, done.stdout[:10]) == (0, "IDENTICAL:"), done.stdout + done.stderr
    points = lab.points(run)
    assert {"train/critic/lr", "train/gap", "val/smoothed"} <= points.keys()
    assert points == lab.points(whole)
    assert lab.record(run)["result"] == lab.record(whole)["result"]
    done = lab.runs("reproduce", str(run))
    assert (done.returncode, done.stdout[:10]) == (0, "IDENTICAL\n"), done.stdout + done.stderr


@pytest.mark.slow
def test_run_whose_record_was_changed_is_not_verified_and_does_not_go_on(lab):
    run, _ = lab.cut_off("seed=3", *SETTINGS, by=signal.SIGKILL)
    folder = lab.folder / "my_runs" / str(run)
    settle(folder)
    points = bytearray((folder / "metrics.bin").read_bytes())
    names = [json.loads(line) for line in (folder / "metrics.names.jsonl").read_text().splitlines()]
    number = next(row["id"] for row in names if row["name"] == "train/loss")
    places = [at for at in range(0, len(points) - 23, 24) if int.from_bytes(points[at : at + 4], "little") == number]
    step = int.from_bytes(points[places[-1] + 8 : places[-1] + 16], "little")
    points[places[-1] + 16] ^= 1
    (folder / "metrics.bin").write_bytes(points)
    (folder / "metrics.sums").unlink()  # as if it had been recorded so
    before = lab.record(run), lab.numbers()
    done = lab.runs("resume", str(run), "--verify", "2")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"DIVERGED: train/loss at step {step} was "), done.stdout
    assert (lab.record(run), lab.numbers()) == before


@pytest.mark.slow
def test_killed_verification_takes_its_replay_along(lab):
    run, _ = lab.cut_off("seed=6", "epochs=4000", *SETTINGS[1:], by=signal.SIGKILL)
    # It replays up to the last recorded step, which is put beyond what it reaches.
    append_point(lab.folder / "my_runs" / str(run), step=10**6)
    command = [sys.executable, "-m", "sacristan", "resume", str(run), "--verify", str(10**6)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Process(command, cwd=lab.folder, env=env, stdout=DEVNULL, stderr=DEVNULL, cold=True) as process:
        deadline = time.monotonic() + 60
        command = psutil.Process(process.pid)
        while not (replays := [one for one in command.children() if "exp.py" in str(one.cmdline())]):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        while psutil.pid_exists(replays[0].pid):
            assert time.monotonic() < deadline + 60
            time.sleep(0.01)


def append_point(folder, step):
    """Append a point of the training's loss to a record."""
    number = next(number for number, (name, _) in read_names(folder).items() if name == "train/loss")
    with (folder / "metrics.bin").open("ab") as stream:
        stream.write(np.array([(number, 0, step, 0.0)], POINT).tobytes())


def settle(folder):
    """Have all points of a killed process in `metrics.bin` alone, each in a block of its own, for damage to be done."""
    points = read_all_points(folder)
    points.tofile(folder / "metrics.bin")
    sums = [entries_of(point.tobytes(), place) for place, point in enumerate(points)]
    (folder / "metrics.sums").write_bytes(b"".join(sums))
    (folder / "metrics.live").unlink()


def places_of(folder, metric):
    """Return which points of a run's file are those of a metric."""
    names = {name: number for number, (name, _) in read_names(folder).items()}
    return np.flatnonzero(read_points(folder)["metric"] == names[metric]).tolist()


@pytest.mark.slow
def test_run_whose_record_lacks_its_last_points_goes_back_to_the_state_before_them(lab):
    run, _ = lab.cut_off("seed=4", *SETTINGS, by=signal.SIGKILL)
    folder = lab.folder / "my_runs" / str(run)
    settle(folder)
    states = [load_checkpoint(path) for path in (folder / "checkpoints" / "last.pt", *newest_first(folder))]
    last = places_of(folder, "train/loss")[states[0]["position"]["metrics"]["train/loss"][0] - 1]
    os.truncate(folder / "metrics.bin", 24 * last)
    done = lab.runs("resume", folder.name)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"last\.pt: \d+ entries of the record up to this state are missing; trying the state before it", done.stderr
    )
    before = next(state["step"] for state in states if state["step"] < states[0]["step"])
    assert lab.record(folder.name)["sessions"][1]["step"] == before
    assert lab.record(folder.name)["status"] == "COMPLETED"
    assert lab.start("seed=4", *SETTINGS).wait(120) == 0
    assert lab.points(run) == lab.points(max(lab.numbers()))


@pytest.mark.slow
def test_run_whose_record_is_whole_at_no_state_ends_with_loss(lab):
    run, _ = lab.cut_off("seed=5", *SETTINGS, by=signal.SIGKILL)
    folder = lab.folder / "my_runs" / str(run)
    settle(folder)
    points = read_points(folder)
    points["value"][places_of(folder, "train/loss")[0]] += 1e-9
    points.tofile(folder / "metrics.bin")
    done = lab.runs("resume", folder.name)
    assert done.returncode == 0, done.stderr
    assert "the record is not complete at any state that is kept; resuming from the newest good one" in done.stderr
    assert "are damaged: their checksum differs, 1 left out" in done.stderr
    assert "1 points of 1 series are lost; the run cannot end as COMPLETED" in done.stderr
    record = lab.record(folder.name)
    assert (record["status"], record["lost_points"]) == ("COMPLETED_WITH_LOSS", 1)


def newest_first(folder):
    return sorted((folder / "checkpoints").glob("step-*.pt"), reverse=True)


def test_fork_is_a_new_run_with_a_changed_config_and_its_parent(lab):
    done = lab.runs("fork", "1", "with", "epochs=26", "lr=1e-4", "--", "--comment=a fork")
    assert done.returncode == 0, done.stderr
    number = max(lab.numbers())
    record, parent = lab.record(number), lab.record(1)
    assert record["parent"] == parent["uid"] != record["uid"]
    assert (record["status"], record["meta"]["comment"]) == ("COMPLETED", "a fork")
    assert set(lab.points(number)["train/lr"][1]) == {1e-4}
    first = min(lab.points(number)["train/loss"][0])
    assert first > max(lab.points(1)["train/loss"][0])


@pytest.mark.slow
def test_dry_fork_is_refused_as_the_fork_itself_is_and_runs_nothing(lab):
    before = lab.numbers()
    told = [lab.runs("fork", "1", *dry, "with", "epochs=26", "data.limit=100") for dry in ((), ("--dry",))]
    assert [done.returncode for done in told] == [1, 1]
    line = told[1].stderr
    assert line.startswith("error: data: the state that this run starts from was trained with data.limit=")
    assert told[0].stderr.endswith(f"\n{line}")
    done = lab.runs("fork", "1", "--dry", "with", "epochs=26", "data.limit=100", "data.new_split=True")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("a new run starts from a state of run 1:\n  cd ")
    assert lab.numbers() == before


@pytest.mark.slow
def test_fork_is_reproduced_from_its_state_though_its_parent_has_that_no_more(lab):
    state = min((lab.folder / "my_runs" / "1" / "checkpoints").glob("step-*.pt"))
    assert lab.runs("fork", "1", "--state", state.name, "with", "lr=3e-4").returncode == 0
    fork = lab.folder / "my_runs" / str(max(lab.numbers()))
    state.unlink()
    done = lab.runs("reproduce", fork.name)
    assert (done.returncode, done.stdout[:10]) == (0, "IDENTICAL\n"), done.stdout + done.stderr
    shutil.rmtree(fork / "checkpoints" / "start")
    done = lab.runs("reproduce", fork.name)
    assert done.returncode == 2
    assert f"run {fork.name} started from the state {state}, which does not exist; restore it\n" in done.stderr


def test_fork_and_resume_that_make_no_sense_are_refused_in_a_line(lab):
    for words, message in (
        (("fork", "1", "lr=1"), "error: got 'lr=1'; a setting is written after `with`: with lr=1; see"),
        (("fork", "1", "--state", "best.pt"), "error: run 1 has no state best.pt; good ones are: last.pt, step-"),
        (("resume", "9"), "error: "),
        (("resume", "2", "--verify", "x"), "error: argument --verify: got 'x', expected a number of steps, at least 1"),
    ):
        done = lab.runs(*words)
        assert done.returncode in (1, 2)
        assert done.stderr.startswith(message), done.stderr
        assert done.stderr.count("\n") == 1


def test_start_that_names_no_state_is_refused_before_anything_runs(lab):
    command = [sys.executable, str(ROOT / "exp.py"), "with", "resume=my_runs/1"]
    done = run(command, cwd=lab.folder, capture_output=True, text=True)
    assert done.returncode == 1
    message = "checkpoint.resume: got 'my_runs/1', expected auto, or a checkpoint such as my_runs/3/checkpoints/last.pt"
    assert message in done.stderr
