"""Trainings that a signal, a full disk or a second process ends or meets, and that go on with the same bits."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from sacristan.ingredients.checkpoints.files import load_checkpoint

# Dozens of processes that each import torch, on a machine that may be busy.
pytestmark = pytest.mark.timeout(900)

COMMON = (
    "resume=auto",
    "data.val_fraction=0.25",
    "data.test_fraction=0.25",
    "data.batch_size=8",
    "training.log_interval=4",
    "checkpoint.interval_steps=7",
)
WITH_WORKERS = (
    *("data.name=image_folder", "data.path={data}/images", "data.num_workers=2", "data.augment.flip=True"),
    *("model.name=cnn", "model.options.widths=[4]", "model.options.dropout=0.2", "amp.dtype=float16", "epochs=8"),
)
# Large enough for its checkpoints to be the largest files of a run.
IN_MEMORY = (
    *("data.name=npz", "data.path={data}/arrays.npz", "data.augment.crop=1"),
    *("model.name=mlp", "model.options.hidden=[128,128]", "model.options.dropout=0.2", "epochs=12"),
)
# An npz whose reading waits for a file in the working folder.
SLOW = """
import time
from pathlib import Path
import numpy as np

def make(path):
    Path("asked").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    with np.load(path) as arrays:
        return arrays["x"], arrays["y"]
"""


def settings(words, data):
    return [word.format(data=data) for word in (*COMMON, *words)]


@pytest.fixture
def training_on(judge):
    """Wait until a process has taken up a run and logged some points more: `training_on(process, run)`."""

    def wait(process, run, num_sessions=1):
        found = process.until(
            lambda: judge.sessions(run)[num_sessions - 1 :][:1] and judge.sessions(run)[-1]["step"] is not None, "step"
        )
        assert found, process.output()
        there = judge.num_logged(run)
        process.until(lambda: judge.num_logged(run) > there + 8, "points")
        assert process.poll() is None, process.output()

    return wait


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param([("SIGTERM",)], marks=pytest.mark.slow),
        pytest.param([("SIGINT",), ("SIGUSR1",), ("SIGINT", "SIGTERM")], marks=pytest.mark.nightly),
        pytest.param([("SIGHUP",), ("SIGHUP", "SIGINT"), ("SIGINT", "SIGUSR1")], marks=pytest.mark.nightly),
    ],
)
def test_training_with_workers_stopped_by_signals_ends_with_the_same_bits(make_lab, data, judge, training_on, stops):
    words = WITH_WORKERS if len(stops) > 1 else (*WITH_WORKERS, "epochs=3", "checkpoint.keep=20")
    whole, lab = (make_lab(settings(words, data)) for _ in range(2))
    whole.start().end()
    run, ended = lab.run(), []
    for names in stops:
        process = lab.start(resume=run if ended else None, cold=len(stops) > 1)
        training_on(process, run, len(ended) + 1)
        # Stopped meanwhile, it sees both at once; which one as the second is up to the system.
        for name in ("SIGSTOP", *names, "SIGCONT"):
            os.killpg(process.pid, signal.Signals[name])
        process.wait()
        found = judge.entry(run)
        name = found["meta"].get("interrupted_by")
        assert (found["status"], name in names) == ("INTERRUPTED", True), process.output()
        said = process.end(75)  # whether its state is saved or not, the same command resumes it
        assert "Traceback" not in said
        assert "Forcibly terminating" not in said  # Sacred does, where a worker outlives the training
        assert (f"interrupted ({name}); the state after step " in said) == (len(names) == 1)
        ended.append(("INTERRUPTED", name))
    lab.start(resume=run).end()
    assert judge.differences(judge.outcome(run), judge.outcome(whole.run())) == []
    history = [(session["status"], session.get("interrupted_by")) for session in judge.sessions(run)]
    assert history == [*ended, ("COMPLETED", None)]


@pytest.mark.nightly
def test_training_with_workers_that_keeps_no_state_is_ended_by_a_signal_at_once(make_lab, data, judge):
    lab = make_lab([*settings(WITH_WORKERS, data), "checkpoint.last=False"])
    process = lab.start()
    process.until(lambda: judge.num_logged(lab.run()), "points")
    os.killpg(process.pid, signal.SIGTERM)
    assert "Traceback" not in process.end(75)
    assert judge.entry(lab.run())["status"] == "INTERRUPTED"


@pytest.mark.nightly
def test_signal_while_data_are_prepared_ends_at_once_and_the_run_is_continued(make_lab, data, judge):
    words = ("data.name=slow.make", f"data.options.path={data}/arrays.npz", *IN_MEMORY[2:])
    whole, lab = (make_lab(settings(words, data)) for _ in range(2))
    for each in (whole, lab):
        (each.folder / "slow.py").write_text(SLOW)
    (whole.folder / "go").touch()
    whole.start().end()
    process = lab.start()
    process.until((lab.folder / "asked").exists, "the data to be asked for")
    os.killpg(process.pid, signal.SIGTERM)
    assert "Traceback" not in process.end(75)
    found = judge.entry(lab.run())
    assert (found["status"], found["meta"]["interrupted_by"]) == ("INTERRUPTED", "SIGTERM")
    (lab.folder / "go").touch()
    lab.start().end()
    assert judge.differences(judge.outcome(lab.run()), judge.outcome(whole.run())) == []
    assert [session["status"] for session in judge.sessions(lab.run())] == ["INTERRUPTED", "COMPLETED"]


def fill_disk(process, num_bytes):
    """Let no file of a process grow any more beyond so many bytes."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


@pytest.mark.nightly
def test_resume_auto_continues_the_unfinished_run_of_the_same_settings_alone(make_lab, data, judge, training_on):
    lab = make_lab(settings(IN_MEMORY, data))
    first, second, third = (lab.run(number) for number in (1, 2, 3))

    # One that failed, for want of room on the disk.
    process = lab.start()
    training_on(process, first)
    process.until((first / "checkpoints" / "last.pt").exists, "a checkpoint")
    fill_disk(process, 80_000)
    said = process.end(1)
    [error] = [line for line in said.splitlines() if line.startswith("error:")]
    assert error.endswith("File too large; the checkpoint before it stays")
    assert "Traceback" not in said
    assert judge.entry(first)["status"] == "FAILED"
    assert load_checkpoint(first / "checkpoints" / "last.pt")["step"] > 0
    assert list((first / "checkpoints").glob(".*")) == []

    # Another seed is another run.
    lab.start("seed=1", "epochs=1").end()
    assert judge.entry(second)["status"] == "COMPLETED"

    # The same settings while the first one is alive again are a run of their own, which is never cut off.
    continuing = lab.start()
    training_on(continuing, first, 2)
    os.killpg(continuing.pid, signal.SIGSTOP)
    lab.start().end()
    os.killpg(continuing.pid, signal.SIGCONT)
    continuing.end()
    assert judge.differences(judge.outcome(first), judge.outcome(third)) == []
    assert [session["status"] for session in judge.sessions(first)] == ["FAILED", "COMPLETED"]
    assert len(judge.sessions(third)) == 1

    # Now all of them are completed. Of two that want to continue the same one, one does.
    process = lab.start()
    training_on(process, lab.run(4))
    process.kill()
    process.wait()
    pair = [lab.start(), lab.start()]
    codes = sorted(process.wait() for process in pair)
    said = "".join(process.output() for process in pair)
    assert codes in ([0, 0], [0, 1]), said
    assert codes[1] == 0 or "4 cannot be resumed: " in said
    assert lab.runs() == [str(number) for number in range(1, 5 + (codes == [0, 0]))]
    assert judge.differences(judge.outcome(lab.run(4)), judge.outcome(third)) == []
    assert [session["status"] for session in judge.sessions(lab.run(4))] == ["DEAD", "COMPLETED"]


@pytest.mark.nightly
def test_run_on_a_disk_without_any_room_is_continued_with_the_same_bits(make_lab, data, judge, training_on):
    whole, lab = (make_lab(settings(IN_MEMORY, data)) for _ in range(2))
    whole.start().end()
    process = lab.start()
    training_on(process, lab.run())
    process.until((lab.run() / "checkpoints" / "last.pt").exists, "a checkpoint")
    fill_disk(process, 1)
    process.end(1)  # what it says has no room, either
    lab.start().end()
    assert judge.differences(judge.outcome(lab.run()), judge.outcome(whole.run())) == []
    assert len(judge.sessions(lab.run())) == 2
