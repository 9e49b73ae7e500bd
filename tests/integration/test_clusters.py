"""Agents on clusters: submitit's own processes in the place of Slurm, and a real Ray of this machine."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from runs.errors import MissingExtraError, SweepError
from runs.sweeps.clusters import start_agents_ray, start_agents_slurm

needs_submitit = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
# Notes its start, and its end by SIGTERM.
AGENT = """
import os, signal, sys, time
folder = sys.argv[1]

def note(what):
    with open(f"{folder}/{what}", "a") as stream:
        print(os.getpid(), os.getcwd(), file=stream)

def leave(*_):
    note("ended")
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
note("started")
while sys.argv[2] == "wait" and not os.path.exists(f"{folder}/enough"):
    time.sleep(0.02)
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def agent(tmp_path):
    def command(how="end", code=0):
        (tmp_path / "agent.py").write_text(AGENT)
        return [sys.executable, str(tmp_path / "agent.py"), str(tmp_path), how, str(code)]

    return command


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def wait_until(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(("package", "extra"), [("ray", "ray"), ("submitit", "slurm")])
def test_cluster_whose_package_is_missing_is_refused_with_the_extra(monkeypatch, tmp_path, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    start = {
        "ray": lambda: start_agents_ray(1, None, {}, ["true"], tmp_path),
        "slurm": lambda: start_agents_slurm(1, tmp_path, ["true"]),
    }[extra]
    with pytest.raises(MissingExtraError, match=rf"need the package '{package}'.*pip install -e '.\[{extra}\]'"):
        start()


@needs_submitit
def test_slurm_agents_run_the_command_and_tell_its_code(agent, tmp_path):
    with start_agents_slurm(2, tmp_path / "jobs", agent(code=3), cluster="local") as agents:
        assert agents.wait(120)
        assert agents.codes() == [3, 3]
    assert len(lines(tmp_path / "started")) == 2


@needs_submitit
def test_slurm_agents_are_ended_by_sigterm(agent, tmp_path):
    with start_agents_slurm(1, tmp_path / "jobs", agent("wait"), cluster="local"):
        wait_until(lambda: lines(tmp_path / "started"))
    wait_until(lambda: len(lines(tmp_path / "ended")) == 1)


@needs_submitit
def test_preempted_slurm_agent_is_started_again(agent, tmp_path):
    with start_agents_slurm(1, tmp_path / "jobs", agent("wait"), cluster="local", timeout_min=5) as agents:
        wait_until(lambda: lines(tmp_path / "started"))
        controller = psutil.Process(agents._jobs[0]._process.pid)
        (job,) = [child for child in controller.children() if "submitit.core._submit" in child.cmdline()]
        job.send_signal(signal.SIGUSR2)  # as Slurm does
        wait_until(lambda: len(lines(tmp_path / "started")) == 2)
        assert len(lines(tmp_path / "ended")) == 1
        (tmp_path / "enough").touch()
        assert agents.wait(120)
        assert agents.codes() == [0]


@needs_submitit
@pytest.mark.parametrize("options", [{"cluster": "moon"}, {"cluster": "local", "nonsense": 1}, {}], ids=str)
def test_jobs_that_cannot_be_submitted_are_refused_in_one_line(tmp_path, monkeypatch, options):
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm
    with pytest.raises(SweepError, match=r"^agents cannot be submitted to \w+ \([^\n]+\)$"):
        start_agents_slurm(1, tmp_path / "jobs", ["true"], **options)


@needs_ray
@pytest.mark.nightly
def test_ray_agents_run_the_command_in_the_folder_that_is_shipped(agent, tmp_path):
    command, folder = agent(code=3), tmp_path / "lab"
    folder.mkdir()
    (folder / "exp.py").touch()
    with start_agents_ray(2, None, {"CPU": 0.5}, command, folder) as agents:
        assert agents.wait(120)
        assert agents.codes() == [3, 3]
    places = {line.split()[1] for line in lines(tmp_path / "started")}
    assert len(places) == 1
    assert not places & {str(folder), str(Path.cwd())}


@needs_ray
@pytest.mark.nightly
def test_ray_agents_are_ended_by_sigterm_and_refused_where_they_do_not_fit(agent, tmp_path):
    folder = tmp_path / "lab"
    folder.mkdir()
    with start_agents_ray(1, None, {"CPU": 0.5}, agent("wait"), folder):
        wait_until(lambda: lines(tmp_path / "started"))
    assert len(lines(tmp_path / "ended")) == 1
    with pytest.raises(SweepError, match=r"^an agent takes 1000 CPU, and the whole Ray cluster has \d+$"):
        start_agents_ray(1, None, {"CPU": 1000}, agent(), folder)


@needs_ray
@pytest.mark.nightly
def test_ray_agent_whose_node_is_lost_is_started_again_on_another(agent, tmp_path):
    from ray.cluster_utils import Cluster

    folder = tmp_path / "lab"
    folder.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        lost = cluster.add_node(num_cpus=1)
        with start_agents_ray(1, cluster.address, {"CPU": 1}, agent("wait"), folder) as agents:
            wait_until(lambda: len(lines(tmp_path / "started")) == 1)
            cluster.remove_node(lost, allow_graceful=False)
            cluster.add_node(num_cpus=1)
            wait_until(lambda: len(lines(tmp_path / "started")) == 2)
            (tmp_path / "enough").touch()
            assert agents.wait(120)
            assert agents.codes() == [0]
    finally:
        cluster.shutdown()
