"""Ends of workers, with processes that are only noted."""

import signal
import tempfile
from pathlib import Path

import pytest

from sacristan.runs import StoreError
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.work import Output, TaskSource, Worker, WorkerTask


class NotedJob:
    """A process that ends once it is interrupted, and notes by which signals."""

    def __init__(self):
        self.numbers = []

    def start(self, launch, **_):
        return self

    def poll(self):
        return 0 if self.numbers else None

    def events(self):
        return []

    def watched(self):
        return []

    def interrupt(self, number):
        self.numbers.append(number)

    def close(self):
        pass


class NotedTask(WorkerTask):
    name = "1"
    launch = Launch((), Path(), {}, ())
    end = None

    def open_output(self):
        return Output(tempfile.TemporaryFile())

    def ended(self, end):
        return True

    def interrupted(self, end):
        self.end = end


class Failing(TaskSource):
    """A source that has one task, and fails afterwards."""

    def __init__(self, error):
        self.error, self.task = error, NotedTask()
        self.tasks = [self.task]

    def take(self):
        if self.tasks:
            return self.tasks.pop()
        raise self.error


class Idle(TaskSource):
    """A source without tasks, which is interrupted when it is asked for the fourth time."""

    idle_text = "nothing to do"

    def __init__(self):
        self.num_asked = 0

    def take(self):
        self.num_asked += 1
        if self.num_asked == 4:
            raise KeyboardInterrupt


def test_worker_that_finds_nothing_to_do_says_so_once(monkeypatch):
    monkeypatch.setattr("sacristan.runs.work._IDLE_S", 0.0)
    said = []
    with pytest.raises(KeyboardInterrupt):
        Worker(Idle(), said.append, num_places=1, warm=NotedJob()).work()
    assert said == ["nothing to do"]


# A queue takes a run that SIGINT has ended for one that a person has ended, which it does not resume.
@pytest.mark.parametrize(
    ("error", "number"),
    [
        (KeyboardInterrupt(), signal.SIGINT),
        pytest.param(SystemExit(143), signal.SIGTERM, marks=pytest.mark.slow),
        (StoreError("the database is away"), signal.SIGTERM),
    ],
)
def test_runs_of_a_worker_that_fails_do_not_end_as_if_a_person_had_interrupted_them(error, number):
    job = NotedJob()
    with pytest.raises(type(error)):
        Worker(Failing(error), lambda text: None, num_places=2, warm=job).work()
    assert job.numbers == [number]


# A sweep counts an attempt that a signal has cut off as none, and one that an error has cut off as a kill.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("error", "by_signal"),
    [
        (KeyboardInterrupt(), True),
        pytest.param(SystemExit(143), True, marks=pytest.mark.slow),
        (StoreError("away"), False),
    ],
)
def test_tasks_learn_whether_a_signal_ended_their_worker(error, by_signal):
    source = Failing(error)
    with pytest.raises(type(error)):
        Worker(source, lambda text: None, num_places=2, warm=NotedJob()).work()
    assert source.task.end.by_signal is by_signal
