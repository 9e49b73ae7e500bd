"""A job of Slurm is queued again unless it was cancelled; against a stand-in for `scontrol`."""

import signal

import pytest

from sacristan.configs import slurm

# Prints the state of the job, and notes what it was asked.
SCONTROL = """#!/bin/bash
echo "$*" >> {folder}/asked
[ -e {folder}/away ] && rm {folder}/away && echo "Unable to contact slurm controller (connect failure)" >&2 && exit 1
[ "$1" = requeue ] && [ -e {folder}/ends ] && touch {folder}/done && kill -$(cat {folder}/ends) $$
[ "$1" = requeue ] && [ -e {folder}/refuses ] && echo "Only batch jobs are accepted" >&2 && exit 1
restarts=$(({restarts} + $(ls {folder} | grep -c ^done)))
[ "$1" = requeue ] || echo "JobId=7 JobName=a=b JobState={state} Reason={reason} Restarts=$restarts ExitCode=0:0"
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "_WAIT_S", 0)

    def make(state="RUNNING", restarts=0, reason="None"):
        values = {"folder": tmp_path, "state": state, "restarts": restarts, "reason": reason}
        (tmp_path / "scontrol").write_text(SCONTROL.format(**values))
        (tmp_path / "scontrol").chmod(0o755)
        return lambda: (tmp_path / "asked").read_text().splitlines()

    return make


def test_a_running_job_is_queued_again(job):
    asked = job()
    assert slurm.requeue() == ""
    assert asked() == ["show job --oneliner 7", "requeue 7"]


def test_a_task_of_an_array_is_queued_again_by_itself(job, monkeypatch):
    asked = job()
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert slurm.requeue() == ""
    assert asked()[-1] == "requeue 5_2"


def test_a_job_is_queued_again_while_it_is_preempted_and_at_its_time_limit(job):
    job("SIGNALING")
    assert slurm.requeue() == ""
    job("COMPLETING", reason="TimeLimit")
    assert slurm.requeue() == ""


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED"])
def test_a_cancelled_job_stays_away(job, state):
    asked = job(state)
    assert slurm.requeue() == f"job 7 is {state}, as a cancelled one is"
    assert len(asked()) == 1


@pytest.mark.parametrize(("number", "last"), [("TERM", "requeue 7"), ("KILL", "show job --oneliner 7")])
def test_slurm_may_end_the_command_that_has_queued_the_job_again(job, tmp_path, number, last):
    asked = job()
    (tmp_path / "ends").write_text(number)
    assert slurm.requeue() == ""
    assert asked()[-1] == last
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_job_that_slurm_has_queued_again_itself_is_not_queued_twice(job, monkeypatch):
    asked = job("COMPLETING", restarts=3)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert slurm.requeue() == ""
    assert len(asked()) == 1


def test_a_controller_that_is_away_is_asked_again(job, tmp_path):
    asked = job()
    (tmp_path / "away").touch()
    assert slurm.requeue() == ""
    assert len(asked()) == 3


def test_what_slurm_refuses_is_said(job, tmp_path, monkeypatch):
    job()
    (tmp_path / "refuses").touch()
    assert slurm.requeue() == "job 7: Only batch jobs are accepted"
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm.requeue() == "job 7: [Errno 2] No such file or directory: 'scontrol'"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert slurm.requeue() == "this process belongs to no job of Slurm"
