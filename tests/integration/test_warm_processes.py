"""Processes forked from a warm Python: as fresh ones, apart from each other, gone with their agent; trials in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from sacristan.runs import LaunchError, open_store
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.resuming import resume_launch
from sacristan.runs.work import warm_server
from sacristan.runs.work.warm import WarmPython
from tests.processes import PIPE, Process

ROOT = Path(__file__).parents[2]
PACKAGES = ("numpy", "torch", "torch.utils.data", "psutil", "sacred", "sacred.observers", "sacred.commandline_options")
# What a process finds when it starts, and ways to end.
SCRIPT = """
import json, os, signal, sys, threading
streams = [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.isatty()] for s in (sys.stdout, sys.stderr)]
found = {
    "name": __name__, "file": __file__, "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path,
    "cwd": os.getcwd(), "env": {name: value for name, value in os.environ.items() if name != "SACRISTAN_TRIAL"},
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32],
    "mask": list(signal.pthread_sigmask(0, ())), "streams": streams, "stdin": sys.stdin.read(),
    "threads": [thread.name for thread in threading.enumerate()], "descriptors": len(os.listdir("/proc/self/fd")),
    "leads": os.getpgid(0) == os.getpid(), "main": sys.modules["__main__"].__dict__ is globals(),
    "lab": sorted({"sacristan"} & sys.modules.keys()),
}
print(json.dumps(found))
sys.stdout.flush()
exec(os.environ.get("END", ""))
"""
TRIAL = {"sweep": "s1", "trial": 4, "attempt": 1, "parameters": {"lr": 0.1}, "metric": "val/loss", "prunes": True}
EXPERIMENT = """
import os, sys, time
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
ex = Experiment("tried", system_metrics_s=None)
"""
REPORTING = """
@ex.automain
def main(_run):
    for step in range(6):
        _run.log_scalar("other", step, step)
        _run.log({"val/loss": 1.0 / (step + 1), "val/accuracy": 0.5}, step)
    return "end"
"""
GRANDCHILD = """
    import subprocess
    tell = "import os; print(os.environ.get('SACRISTAN_TRIAL'), sorted(os.listdir('/proc/self/fd')))"
    subprocess.run([sys.executable, "-S", "-c", tell], close_fds=False)
"""
WAITING = """
@ex.automain
def main(_run):
    _run.log_scalar("val/loss", 1.0)
    while True:
        time.sleep(0.05)  # a signal that comes right before a long sleep would be handled after it
"""


@pytest.fixture(scope="module")
def warm():
    with WarmPython(PACKAGES) as warm:
        yield warm


@pytest.fixture
def write(tmp_path):
    """Write a script, and return how it is launched."""

    def write(text, *words, name="tried.py", **environment):
        (tmp_path / name).write_text(text)
        command = (sys.executable, str(tmp_path / name), *words)
        return Launch(command, tmp_path, {"PYTHONPATH": str(ROOT), **environment}, ())

    return write


def finish(warm, launch, folder, trial=None, prune_at=None):
    """Run a launch to its end; return its exit code, what it printed, and its events."""
    events = []
    with (folder / "output").open("w+b") as out, warm.start(launch, output=out.fileno(), trial=trial) as job:
        while job.poll() is None:
            for event in job.events(60):
                events.append(event)
                if event.kind == "report" and (trial or {}).get("prunes"):
                    job.answer(event.step == prune_at)
        out.seek(0)
        return job.poll(), out.read().decode(), events


@pytest.mark.slow
def test_ended_processes_leave_no_descriptor_open(warm, write, tmp_path):
    launch = write("pass")
    finish(warm, launch, tmp_path)
    before = psutil.Process().num_fds()
    for _ in range(3):
        assert finish(warm, launch, tmp_path)[0] == 0
    assert psutil.Process().num_fds() == before


def cold(launch):
    done = subprocess.run(
        launch.command,
        cwd=launch.cwd,
        env=launch.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    return done.returncode, done.stdout.decode()


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


# ------------------------------------------------------------------ as a fresh process


@pytest.mark.slow
@pytest.mark.parametrize("form", [["sub/tell.py"], ["-m", "sub.tell"], ["-P", "-m", "sub.tell"]], ids=" ".join)
def test_forked_process_finds_what_a_fresh_one_does(warm, tmp_path, form):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tell.py").write_text(SCRIPT)
    more = {"PYTHONPATH": f"{tmp_path / 'more'}:{tmp_path}", "GIVEN": "x", "HOME": ""}
    launch = Launch((sys.executable, *form, "a", "b c"), tmp_path, more, ())
    (code, text, _), (cold_code, cold_text) = finish(warm, launch, tmp_path), cold(launch)
    found, expected = json.loads(text), json.loads(cold_text)
    # Which setuptools appends; and beside what a fresh one has, there is the line to the agent.
    found["path"] = [path for path in found["path"] if not path.endswith("setuptools/_vendor")]
    found["descriptors"] -= 1
    assert (code, found) == (cold_code, expected)


@pytest.mark.parametrize(
    "how",
    [
        "sys.exit('a reason')",
        "raise ValueError('no')",
        "raise MemoryError",
        "import ctypes; ctypes.string_at(0)",
        "os._exit(7)",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 2)",
        "threading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()",
    ],
)
def test_process_ends_as_a_fresh_one_and_the_next_is_not_touched(warm, write, tmp_path, how):
    launch = write(SCRIPT, END=how)
    code, text, _ = finish(warm, launch, tmp_path)
    cold_code, cold_text = cold(launch)
    assert (code, text.splitlines()[1:]) == (cold_code, cold_text.splitlines()[1:])
    assert finish(warm, write("print('well')"), tmp_path)[:2] == (0, "well\n")


def test_forked_process_has_imported_packages_but_a_fresh_one_that_differs_not(warm, write, tmp_path):
    tell = "import os, sys; print('torch' in sys.modules, 'SACRISTAN_TRIAL' in os.environ)"
    assert finish(warm, write(tell), tmp_path)[1] == "True True\n"
    assert finish(warm, write(tell, PYTHONHASHSEED="3"), tmp_path)[1] == "False True\n"
    (tmp_path / "yaml.py").touch()
    with warm.start(write(tell)) as job:
        assert job.wait() == 0
        assert job.cold == f"{tmp_path} has a yaml of its own"


def test_process_started_afresh_reports_and_is_pruned_as_a_forked_one(warm, write, tmp_path):
    body = REPORTING.replace("    for step", GRANDCHILD + "    for step")
    launch = write(EXPERIMENT + body, PYTHONHASHSEED="3")
    code, text, events = finish(warm, launch, tmp_path, TRIAL, prune_at=1)
    assert (code, [event.step for event in events[1:]]) == (0, [0, 1]), text
    assert "pruned by its sweep at step 1, where val/loss was 0.5\n" in text
    assert "None ['0', '1', '2', '3']\n" in text  # of a grandchild: no variable, no line


def test_packages_with_threads_keep_processes_from_being_forked(monkeypatch):
    monkeypatch.setattr(warm_server, "LAB", "not_imported")
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert "threads, which a fork does not copy" in warm_server.hindrance()
    end.set()
    thread.join()


def test_launch_in_no_folder_is_refused(warm, tmp_path):
    with pytest.raises(LaunchError, match=r"cannot be started in .*gone"):
        warm.start(Launch((sys.executable, "a.py"), tmp_path / "gone", {}, ()))


# ------------------------------------------------------------------ what is left behind


def test_fifty_processes_leave_neither_zombies_nor_descriptors(write, tmp_path):
    # Each with a grandchild that would live on.
    launch = write("import os, time\nif os.fork() == 0:\n    time.sleep(300)")
    with WarmPython(()) as warm:
        finish(warm, launch, tmp_path)
        server, ours = psutil.Process(warm.pid), psutil.Process()
        wait_until(lambda: not server.children())
        before = server.num_fds(), ours.num_fds()
        for _ in range(50):
            assert finish(warm, launch, tmp_path)[0] == 0
        wait_until(lambda: not server.children())
        assert (server.num_fds(), ours.num_fds()) == before
    assert is_gone(server.pid)


def test_leaving_the_block_interrupts_the_run(warm, write, tmp_path):
    with (tmp_path / "output").open("wb") as out:
        with warm.start(write(EXPERIMENT + WAITING), output=out.fileno(), trial={**TRIAL, "prunes": False}) as job:
            assert [event.kind for event in job.events(60)][:1] == ["started"]
        assert job.poll() == 130
    with open_store(tmp_path / "my_runs") as store:
        assert store.get(1).status == "INTERRUPTED"


AGENT = """
import sys
from pathlib import Path
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.work.warm import WarmPython
warm = WarmPython(["sacred"])
job = warm.start(Launch((sys.executable, "tried.py"), Path.cwd(), {}, ()))
event, = job.events(None)
print(warm.pid, job.pid, event.folder, flush=True)
job.wait()
print("over", flush=True)
"""


@pytest.mark.slow
def test_killed_agent_takes_the_warm_process_and_its_runs_along(tmp_path):
    (tmp_path / "tried.py").write_text(EXPERIMENT + WAITING)
    (tmp_path / "agent.py").write_text(AGENT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Process([sys.executable, "agent.py"], cwd=tmp_path, env=environment, stdout=PIPE, text=True) as agent:
        server, pid, folder = agent.stdout.readline().split()
        agent.kill()
        wait_until(lambda: is_gone(int(server)) and is_gone(int(pid)))
    with open_store(Path(folder).parent) as store:
        run = store.get(1)
        assert (run.status, run["meta.interrupted_by"]) == ("INTERRUPTED", "SIGTERM")


def test_a_signal_right_behind_the_fork_is_not_lost(warm, write):
    for _ in range(20):
        with warm.start(write("import sys; sys.stdin.read(); import time; time.sleep(60)")) as job:
            os.kill(job.pid, signal.SIGTERM)
            assert job.wait(30) == -signal.SIGTERM


@pytest.mark.slow
def test_killed_warm_process_ends_its_runs_and_is_started_again(write, tmp_path):
    with WarmPython(["sacred"]) as warm:
        with warm.start(write(EXPERIMENT + WAITING)) as job:
            assert [event.kind for event in job.events(60)] == ["started"]
            os.kill(warm.pid, signal.SIGKILL)
            assert job.wait(60) == -signal.SIGKILL
        with open_store(tmp_path / "my_runs") as store:
            assert store.get(1).status == "INTERRUPTED"
        assert finish(warm, write("print('well')"), tmp_path)[1] == "well\n"


# ------------------------------------------------------------------ trials


def test_process_that_starts_the_ranks_of_a_run_is_given_no_line(warm, write, tmp_path):
    launch = write("import os; print(os.environ.get('SACRISTAN_TRIAL'))")
    with (tmp_path / "output").open("w+b") as out, warm.start(launch, output=out.fileno(), hears=False) as job:
        assert job.wait(60) == 0
        out.seek(0)
        assert out.read() == b"None\n"


def test_pruned_run_keeps_its_record_and_is_listed_as_pruned(warm, write, tmp_path, database, mongo_url):
    observers = f"ex.observers += [FileObserver('runs'), MongoObserver({mongo_url!r}, {database.name!r})]\n"
    launch = write(EXPERIMENT + observers + REPORTING)
    code, text, events = finish(warm, launch, tmp_path, TRIAL, prune_at=2)
    assert code == 0, text
    started, *reports = events
    assert (started.kind, started.folder) == ("started", str(tmp_path / "runs" / "1"))
    assert [(event.name, event.value, event.step) for event in reports] == [
        ("val/loss", 1.0 / (step + 1), step) for step in range(3)
    ]
    for where in (tmp_path / "runs", f"{mongo_url}/{database.name}"):
        with open_store(where) as store:
            run = store.get(started.uid)
            assert (run.status, run.result) == ("PRUNED", None)
            assert run["meta.sweep"] == {"id": "s1", "trial": 4, "attempt": 1, "parameters": {"lr": 0.1}}
            # All that was logged with the report is there.
            assert [len(run.metric(name).values) for name in ("other", "val/loss", "val/accuracy")] == [3, 3, 3]
            assert [found.id for found in store.find("status=PRUNED")] == [run.id]
            with pytest.raises(LaunchError, match=r"is PRUNED: its sweep ended it.*: sacristan .*fork 1$"):
                resume_launch(run)


def test_pruned_run_that_catches_all_errors_ends_at_its_next_report(warm, write, tmp_path):
    body = """
@ex.automain
def main(_run):
    for step in range(6):
        try:
            _run.log_scalar("val/loss", 1.0, step)
        except Exception as error:
            print(type(error).__name__, step, flush=True)
            if step == 3:
                raise
"""
    code, text, events = finish(warm, write(EXPERIMENT + body), tmp_path, TRIAL, prune_at=1)
    assert code == 0
    assert [event.step for event in events[1:]] == [0, 1]
    assert [line for line in text.splitlines() if line.startswith("Pruned")] == ["Pruned 1", "Pruned 2", "Pruned 3"]


def test_children_of_a_trial_are_no_trials(warm, write, tmp_path):
    body = """
import torch
from torch.utils.data import DataLoader

class Logging(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        ex.current_run.log_scalar("val/loss", float(i), i)
        return i

@ex.automain
def main(_run):
    import subprocess
    tell = "import os; print(os.environ.get('SACRISTAN_TRIAL'), sorted(os.listdir('/proc/self/fd')))"
    told = subprocess.run([sys.executable, "-S", "-c", tell], capture_output=True, text=True, close_fds=False).stdout
    batches = [batch.tolist() for batch in DataLoader(Logging(), 2, num_workers=2)]
    _run.log_scalar("val/loss", 9.0, 9)
    return [told, batches]
"""
    code, text, events = finish(warm, write(EXPERIMENT + body), tmp_path, TRIAL)
    assert (code, [event.step for event in events[1:]]) == (0, [9]), text
    with open_store(tmp_path / "my_runs") as store:
        told, batches = store.get(1).result
        assert batches == [[0, 1], [2, 3]]
        assert told.startswith("None ['0', '1', '2', '3']")
        assert len(store.get(1).metric("val/loss").values) == 5


def test_interrupted_trial_ends_as_interrupted(warm, write, tmp_path):
    with (tmp_path / "output").open("wb") as out:
        launch = write(EXPERIMENT + WAITING)
        with warm.start(launch, output=out.fileno(), trial=TRIAL) as job:
            while not any(event.kind == "report" for event in job.events(60)):
                pass
            job.interrupt()  # while it waits for the verdict
            assert job.wait(60) == 130
    with open_store(tmp_path / "my_runs") as store:
        assert store.get(1).status == "INTERRUPTED"
    again = write(EXPERIMENT + REPORTING, SACRISTAN_RESUME=str(tmp_path / "my_runs" / "1"))
    assert finish(warm, again, tmp_path, {**TRIAL, "attempt": 2})[0] == 0
    with open_store(tmp_path / "my_runs") as store:
        assert (store.get(1).status, store.get(1)["meta.sweep.attempt"]) == ("COMPLETED", 2)


def test_failed_trial_is_recorded_as_failed(warm, write, tmp_path):
    body = "@ex.automain\ndef main(_run):\n    raise MemoryError('too much')\n"
    code, text, _ = finish(warm, write(EXPERIMENT + body), tmp_path, TRIAL)
    assert (code, text.splitlines()[-2]) == (1, "MemoryError: too much"), text
    with open_store(tmp_path / "my_runs") as store:
        assert store.get(1).status == "FAILED"


def test_variable_that_names_no_socket_is_refused(warm, tmp_path):
    (tmp_path / "tried.py").write_text(EXPERIMENT + REPORTING)
    launch = Launch((sys.executable, "tried.py"), tmp_path, {"PYTHONPATH": str(ROOT)}, ())
    environment = {**launch.environ(), "SACRISTAN_TRIAL": '{"fd": 77}'}
    with Process(launch.command, cwd=tmp_path, env=environment, stderr=PIPE, text=True) as run:
        _, error = run.communicate()
    assert run.returncode == 1
    assert "error: SACRISTAN_TRIAL: got '{\"fd\": 77}', expected what an agent of a sweep sets" in error
