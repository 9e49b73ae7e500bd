"""Signals to trainings, at moments that a kill from outside seldom meets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from sacred.observers import RunObserver
from torch import nn

from sacristan.experiments import Experiment, Terminated, fit
from sacristan.experiments.running.endings import ending_of
from sacristan.experiments.running.resuming import going_on_later
from sacristan.experiments.running.signals import SAVED_CODE, Signals
from sacristan.ingredients import Checkpointer, ConfigError, Data, TensorBatches, checkpoint
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.losses import build_loss
from sacristan.observers import FileObserver, run_folder


class Interrupted(TensorBatches):
    """Batches of which a signal to all processes of a job takes the loader away."""

    def _batches(self, epoch, start):
        yield from super()._batches(epoch, start)
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")


def make_data(val):
    inputs, targets = torch.randn(8, 3), torch.tensor([0, 1] * 4)
    parts = {name: TensorBatches(inputs, targets, 4) for name in ("train", "test")}
    parts["val"] = val(inputs, targets, 4)
    of_targets = {"num_targets": 2, "classes": ("a", "b"), "class_counts": (4, 4)}
    of_targets |= {"target_mean": None, "target_std": None}
    return Data(**parts, **of_targets, task="classification", input_shape=(3,), fingerprint="")


def run(tmp_path, main, *observers):
    experiment = Experiment("stopping", save_git_info=False, system_metrics_s=None)
    experiment.observers += [FileObserver(tmp_path), *observers]
    experiment.main(main)
    return experiment.run()


@pytest.fixture(autouse=True)
def _hangups_end_processes():
    """Take back what nohup does to the tests: a signal that is ignored ends no run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_signal_during_an_evaluation_that_fails_of_it_saves_the_state(tmp_path):
    data = make_data(Interrupted)

    def main(_run):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with run_folder(_run) as folder:
            keeper = Checkpointer(folder / "checkpoints", {}, record=_run)
            loss = build_loss(None, {}, None, data, torch.device("cpu"))
            fit(model, data, loss, optimizer, log=_run.log_scalar, epochs=3, checkpointer=keeper)

    with pytest.raises(Terminated, match="ended by SIGTERM") as ended:
        run(tmp_path, main)
    assert (ended.value.code, ended.value.step) == (SAVED_CODE, 2)
    state = load_checkpoint(tmp_path / "1" / "checkpoints" / "last.pt")
    assert (state["epoch"], state["batch"], state["step"]) == (0, 2, 2)
    assert "val/loss" not in state["position"]["metrics"]


def test_evaluation_that_fails_without_a_signal_raises(tmp_path):
    keeper = Checkpointer(tmp_path, {})
    with pytest.raises(RuntimeError, match="on its own"), keeper.saving_if_stopped(lambda: None):
        raise RuntimeError("on its own")


def test_signal_after_the_last_step_ends_the_run(tmp_path):
    def main(_run):
        parts = {"model": nn.Linear(1, 1)}
        keeper = Checkpointer(tmp_path / "1" / "checkpoints", {}, record=_run)
        place = keeper.begin(parts)
        with keeper.session():
            place.epoch, place.step = 1, 4
            keeper.save(place, parts, final=True)
            os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    with pytest.raises(Terminated, match="ended by SIGTERM") as ended:
        run(tmp_path, main)
    assert (ended.value.code, ended.value.step) == (SAVED_CODE, 4)


def test_signal_whose_message_cannot_be_written_is_held_back_all_the_same():
    signals, stderr, full = Signals(), os.dup(2), os.open("/dev/full", os.O_WRONLY)

    def main():
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGHUP)

    os.dup2(full, 2)
    try:
        with signals.handled():
            signals.interruptible(main)()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(full)
    assert signals.stopping == signal.SIGHUP


class Ending(RunObserver):
    """Sends one more signal while the end of the run is written down."""

    priority = 50

    def interrupted_event(self, interrupt_time, status):
        os.kill(os.getpid(), signal.SIGHUP)


def test_signal_while_the_end_is_written_waits_for_it(tmp_path):
    def main(_run):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated, match="ended by SIGTERM"):
        run(tmp_path, main, Ending())
    record = json.loads((tmp_path / "1" / "run.json").read_text())
    assert (record["status"], record["meta"]["interrupted_by"]) == ("INTERRUPTED", "SIGTERM")


class Starting(RunObserver):
    """Sends a signal while the run is about to be recorded."""

    priority = 50

    def started_event(self, *args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)


def test_signal_while_the_run_is_about_to_begin_ends_it_before_its_command(tmp_path, capfd):
    def main(_run):
        raise AssertionError("it was run")

    with pytest.raises(Terminated, match="ended by SIGTERM"):
        run(tmp_path, main, Starting())
    record = json.loads((tmp_path / "1" / "run.json").read_text())
    assert (record["status"], record["meta"]["interrupted_by"]) == ("INTERRUPTED", "SIGTERM")
    assert "SIGTERM: the record of this run is completed first" in capfd.readouterr().err


class Completing(RunObserver):
    """Sends a signal while the end of a completed run is written down."""

    priority = 50

    def completed_event(self, stop_time, result):
        os.kill(os.getpid(), signal.SIGHUP)


def test_signal_while_a_completed_run_ends_is_raised_afterwards(tmp_path):
    with pytest.raises(Terminated, match="ended by SIGHUP"):
        run(tmp_path, lambda: 7, Completing())
    record = json.loads((tmp_path / "1" / "run.json").read_text())
    assert (record["status"], record["result"]) == ("COMPLETED", 7)


def test_handlers_are_those_of_before_when_an_interrupted_run_is_over(tmp_path):
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(Terminated):
        run(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert [signal.getsignal(number) for number in numbers] == before


def test_signal_in_a_run_within_a_run_ends_both(tmp_path):
    def main():
        run(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM), Ending())

    with pytest.raises(Terminated, match="ended by SIGTERM"):
        run(tmp_path, main)
    records = [json.loads((tmp_path / number / "run.json").read_text()) for number in ("1", "2")]
    assert [record["status"] for record in records] == ["INTERRUPTED", "INTERRUPTED"]


LIMITED = """
import signal

def leave(number, frame):
    raise TimeoutError("a time limit")

ex.observers.append(FileObserver("runs"))
signal.signal(signal.SIGALRM, leave)

@ex.main
def main(_run):
    stop = _run._stop_heartbeat
    def stopping():
        signal.raise_signal(signal.SIGALRM)
        stop()
    _run._stop_heartbeat = stopping

ex.run()
"""


def test_time_limit_that_strikes_while_a_run_ends_does_not_leave_the_process_alive(tmp_path, start):
    recorded = start(tmp_path, LIMITED)
    assert recorded.process.wait(60) == 1
    assert "TimeoutError: a time limit" in recorded.err.read_text()


def test_signal_is_not_held_up_by_code_that_catches_every_error(tmp_path):
    def main(_run):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            raise AssertionError("it was held up") from None

    with pytest.raises(Terminated, match="ended by SIGTERM"):
        run(tmp_path, main)


def test_training_in_a_folder_of_any_name_goes_on(tmp_path):
    class Record:
        """The record of a continued run, as a checkpointer uses it."""

        uid = "0"

        def rewind(self, position, step):
            self.step = step

    record = Record()
    Checkpointer(tmp_path / "my-states", {}, resume=True, record=record).begin({"model": nn.Linear(1, 1)})
    assert record.step == 0


# ---------------------------------------------------------------------- going on later

# Notes what it is asked, and the status of the run at that time.
SCONTROL = """#!/bin/sh
[ "$1" = show ] && echo "JobId=7 JobState={state} Reason=None Restarts=0" && exit
echo "$*" $(grep -o '"status": "[A-Z]*"' {folder}/runs/1/run.json) >> {folder}/asked
"""


@pytest.fixture
def in_slurm(tmp_path, monkeypatch):
    def begin(state="RUNNING"):
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        (tmp_path / "scontrol").write_text(SCONTROL.format(folder=tmp_path, state=state))
        (tmp_path / "scontrol").chmod(0o755)
        return tmp_path / "asked"

    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return begin


def end_of(tmp_path, *numbers, **settings):
    """Return the end of a run that signals meet before there is a state; the first of several is held back."""
    experiment = Experiment("early", [checkpoint.ingredient], save_git_info=False, system_metrics_s=None)
    experiment.observers.append(FileObserver(tmp_path / "runs"))

    @experiment.main
    def main(_run):
        with _run.signals_deferred() if len(numbers) > 1 else contextlib.nullcontext():
            for number in numbers:
                os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt) as ended:
        experiment.run(config_updates={"checkpoint": settings})
    return ended.value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_before_the_first_state_ends_with_75_where_the_same_command_resumes(tmp_path, number):
    message, code = ending_of(end_of(tmp_path, number), None, 0, debug=False)
    assert (message.startswith("interrupted ("), code) == (True, 128 + number)
    assert end_of(tmp_path, number, resume="auto").code == SAVED_CODE


@pytest.mark.parametrize("names", [*itertools.permutations(("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"), 2)])
def test_two_signals_end_with_75_where_the_same_command_resumes(tmp_path, names):
    end = end_of(tmp_path, *(signal.Signals[name] for name in names), resume="auto")
    assert (end.code, end.signal) == (SAVED_CODE, names[1])
    record = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())
    assert (record["status"], record["meta"]["interrupted_by"]) == ("INTERRUPTED", end.signal)


def test_a_run_has_slurm_queue_its_job_again_once_it_is_recorded(tmp_path, in_slurm):
    asked = in_slurm()
    assert end_of(tmp_path, signal.SIGUSR1, resume="auto", requeue=True).code == SAVED_CODE
    assert asked.read_text() == 'requeue 7 "status": "INTERRUPTED"\n'


def test_nothing_is_queued_again_after_ctrl_c_or_scancel(tmp_path, in_slurm, caplog):
    asked = in_slurm()
    end_of(tmp_path, signal.SIGINT, resume="auto", requeue=True)
    in_slurm("COMPLETING")
    end_of(tmp_path, signal.SIGTERM, resume="auto", requeue=True)
    assert not asked.exists()
    assert "the job is not queued again: job 7 is COMPLETING, as a cancelled one is" in caplog.text


def test_a_run_of_an_agent_leaves_the_job_to_it(tmp_path, in_slurm):
    asked = in_slurm()
    run = SimpleNamespace(is_resumed=False, notices=None, config={"checkpoint": {"resume": "auto", "requeue": True}})
    with pytest.raises(Terminated) as ended, going_on_later(run, owns_job=False):
        raise Terminated(signal.SIGTERM)
    assert ended.value.code == SAVED_CODE
    assert not asked.exists()


def test_requeue_outside_of_slurm_is_said_at_the_end(tmp_path, in_slurm, caplog):
    assert end_of(tmp_path, signal.SIGTERM, resume="auto", requeue=True).code == SAVED_CODE
    assert "the job is not queued again: this process belongs to no job of Slurm" in caplog.text


@pytest.mark.parametrize("resume", [None, "my_runs/3/checkpoints/last.pt"])
def test_a_job_that_would_start_over_is_rejected(tmp_path, resume):
    experiment = Experiment("early", [checkpoint.ingredient], save_git_info=False, system_metrics_s=None)
    experiment.main(lambda: None)
    with pytest.raises(ConfigError, match=f"checkpoint.requeue: got True with checkpoint.resume={resume}"):
        experiment.run(config_updates={"checkpoint": {"resume": resume, "requeue": True}})


def test_in_slurm_a_signal_that_comes_twice_does_not_keep_the_state_from_being_saved(in_slurm):
    in_slurm()
    signals = Signals()

    @signals.interruptible
    def send(number):
        os.kill(os.getpid(), number)

    with contextlib.suppress(KeyboardInterrupt), signals.handled(), signals.deferred():
        for _ in range(3):
            send(signal.SIGTERM)
        assert signals.stopping == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    with pytest.raises(Terminated):
        signals.stop(None)
