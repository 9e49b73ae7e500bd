"""Agents that are killed while a trial still imports: its attempt goes to another, and each point completes once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

import psutil
import pytest

from sacristan.observers.mongo import Destination
from sacristan.observers.record.identity import lease
from sacristan.runs import open_store
from sacristan.runs.sweeps.study.home import Place
from tests.integration.test_sweeps import FAST, TINY
from tests.processes import PIPE, STDOUT, Process

# The first trial imports until it is let go, deaf to SIGTERM, as libraries may make it.
SLOW_TO_IMPORT = """
import os, signal, time
if "SACRISTAN_TRIAL" in os.environ and not os.path.exists("first"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("partial", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename("partial", "first")
    while not os.path.exists("go"):
        time.sleep(0.05)
"""


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


def is_running(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
def test_a_trial_that_imports_while_its_agent_is_killed_is_refused_at_its_start(tmp_path):
    (tmp_path / "tiny.py").write_text(SLOW_TO_IMPORT + TINY)
    words = ("sweep.run", "with", "sweep.over={x: [1.0]}", "sweep.metric=loss", FAST)
    with Process([sys.executable, "tiny.py", *words], cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True) as process:
        while not (tmp_path / "first").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        first = int((tmp_path / "first").read_text())
        (agent,) = [json.loads(path.read_text()) for path in tmp_path.glob("my_runs/sweeps/*/agents/*.json")]
        os.kill(agent["pid"], signal.SIGKILL)
        out, _ = process.communicate(120)
        assert "1 of 1 done" in out
        (tmp_path / "go").touch()
        while is_running(first):
            time.sleep(0.02)
    with open_store(tmp_path / "my_runs") as store:
        assert [(run.status, run["meta.sweep.attempt"]) for run in store.find()] == [("COMPLETED", 1)]
    (log,) = tmp_path.glob("my_runs/sweeps/*/output.log")
    assert "trial 0, attempt 0: its agent is gone, so another one may have this trial" in log.read_text()


@pytest.mark.parametrize("where", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_either_a_process_begins_or_its_trial_goes_to_another(tmp_path, where, request):
    store = ""
    if where == "database":
        store = Destination(request.getfixturevalue("mongo_url"), request.getfixturevalue("database").name).address
    else:
        (tmp_path / "sweeps" / "s" / "claims").mkdir(parents=True)
    with contextlib.closing(Place(tmp_path, store).home("s")) as home:
        first, second = home.claims(3, "a"), home.claims(3, "b")
        assert first.add(0)
        assert first.earlier_processes(0) == []
        assert first.begin(0, lease(5.0))
        assert second.add(1)
        assert [process["pid"] for process in second.earlier_processes(1)] == [os.getpid()]
        assert not first.begin(0, lease(5.0))
        assert second.begin(1, lease(5.0))
