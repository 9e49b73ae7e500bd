"""A signal at any moment ends a run that has begun with a truthful record, and the process with it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
import sacred.run
from sacred.observers import RunObserver

from sacristan.experiments import Experiment, Terminated, running
from sacristan.experiments.running import recorder, signals
from tests.recording import logs_for_ever

NAMES = ("SIGTERM", "SIGINT", "SIGHUP")


def check_ended(recorded, folder):
    """See to it that a process to which signals were sent ends, and a run that it had begun is INTERRUPTED."""
    try:
        code = recorded.process.wait(60)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it never ended: {recorded.err.read_text()}") from None
    said = recorded.err.read_text()
    # By the run, or by Python's own handlers before it and after it.
    assert code in {sign * number for name in NAMES for number, sign in ((signal.Signals[name], -1),)} | {129, 130, 143}
    assert "TypeError" not in said
    status = json.loads((folder / "run.json").read_bytes())["status"] if (folder / "run.json").exists() else None
    assert status in ("INTERRUPTED", None), said
    return status


def send(recorded, chance):
    for _ in range(chance.choice((2, 3))):
        with contextlib.suppress(ProcessLookupError):
            recorded.process.send_signal(signal.Signals[chance.choice(NAMES)])
        time.sleep(0.05 * chance.random())


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_signals_within_50_ms_of_each_other_end_the_run(tmp_path, start, wait_for, count):
    chance = random.Random(count)
    for number in range(count):
        recorded = start(tmp_path / str(number), logs_for_ever(), "-b", "0.2")
        folder = tmp_path / str(number) / "runs" / "1"
        wait_for((folder / "metrics.bin").exists, "points")
        time.sleep(0.3 * chance.random())
        send(recorded, chance)
        assert check_ended(recorded, folder) == "INTERRUPTED"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_signals_while_a_process_starts_end_it(tmp_path, start, count):
    chance = random.Random(count)
    for number in range(count):
        recorded = start(tmp_path / str(number), logs_for_ever())
        # Into its imports, or the beginning of its run, as the machine has it.
        time.sleep(0.2 + 1.5 * chance.random())
        send(recorded, chance)
        check_ended(recorded, tmp_path / str(number) / "runs" / "1")


# ---------------------------------------------------------------------- at every step of the code that runs a run

FILES = {module.__file__ for module in (sacred.run, running, recorder, signals)}
OPCODES = {signals.__file__}


class Tracer:
    """Lets the handler of a run receive signals at one of the steps that the run's own code takes: lines, or opcodes.

    Args:
        at: The step, counted from the first one.
        numbers: The signals.
    """

    def __init__(self, at, numbers):
        self.at, self.numbers, self.count, self.where = at, numbers, 0, ""

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in FILES or frame.f_code is signals.Signals._receive.__code__:
            return None
        frame.f_trace_opcodes = frame.f_code.co_filename in OPCODES
        if event in ("line", "opcode"):
            self.count += 1
            if self.count == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_lasti}"
                handler = signal.getsignal(self.numbers[0])
                if isinstance(getattr(handler, "__self__", None), signals.Signals):
                    for number in self.numbers:
                        handler(number, frame)
        return self

    @contextlib.contextmanager
    def tracing(self):
        # Frames that are there are not traced by themselves.
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(None)


class Observer(RunObserver):
    def __init__(self):
        self.events = []

    def started_event(self, *args, **kwargs):
        self.events.append("started")

    def completed_event(self, *args, **kwargs):
        self.events.append("completed")

    def interrupted_event(self, *args, **kwargs):
        self.events.append("interrupted")

    def failed_event(self, *args, **kwargs):
        self.events.append("failed")

    def join(self):
        self.events.append("joined")


def make_experiment(error):
    ex = Experiment("traced", save_git_info=False, system_metrics_s=None)

    @ex.pre_run_hook
    def before():
        pass

    @ex.post_run_hook
    def after():
        pass

    @ex.main
    def main():
        if error is not None:
            raise error

    return ex


def run_traced(ex, tracer):
    """Run an experiment while it is traced; return what its observer was told, and what it raised."""
    ex.observers[:] = [Observer()]
    run = ex._create_run(options={"--capture": "no"})
    raised = None
    try:
        with tracer.tracing():
            run()
    except BaseException as caught:
        raised = caught
    return ex.observers[0].events, raised


@pytest.mark.parametrize("stride", [67, pytest.param(1, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize(
    "error",
    [
        None,
        pytest.param(Terminated(signal.SIGTERM), marks=pytest.mark.slow),
        pytest.param(ValueError("bad"), marks=pytest.mark.slow),
    ],
    ids=["well", "ended", "failed"],
)
@pytest.mark.parametrize(
    "numbers",
    [pytest.param((signal.SIGTERM,), marks=pytest.mark.slow), (signal.SIGHUP, signal.SIGTERM)],
    ids=["one", "two"],
)
def test_signal_at_any_step_leaves_a_run_with_one_end(stride, error, numbers):
    # Where a trace function raises, Python can take the error for one that is handled from then on: a child may.
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    try:
        check_every_step(stride, error, numbers)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def check_every_step(stride, error, numbers):
    before = {name: signal.getsignal(signal.Signals[name]) for name in (*NAMES, "SIGCHLD")}
    ex, whole = make_experiment(error), Tracer(0, numbers)
    run_traced(ex, whole)
    assert whole.count > 200  # 3.12 has fewer opcodes than 3.11
    for at in range(1, whole.count + 1, stride):
        tracer = Tracer(at, numbers)
        events, raised = run_traced(ex, tracer)
        if events:
            assert events[0] == "started", tracer.where
            assert len(events) == 3, (events, tracer.where)
            assert events[2] == "joined", (events, tracer.where)
        assert isinstance(raised, KeyboardInterrupt | type(error)) or not events, (raised, tracer.where)
        heartbeats = [thread for thread in threading.enumerate() if type(thread).__name__ == "IntervalTimer"]
        assert heartbeats == [], tracer.where
        assert {name: signal.getsignal(signal.Signals[name]) for name in before} == before, tracer.where
