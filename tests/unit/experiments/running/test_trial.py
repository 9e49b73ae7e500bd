"""A trial and its agent, which talk over a socket: questions, answers, and an agent that is gone."""

from __future__ import annotations

import json
import os
import socket

import pytest

from sacristan.experiments.running.trial import Pruned, take_trial
from sacristan.ingredients import ConcurrentRunError
from sacristan.observers.record.identity import TRIAL_VARIABLE

QUEUED = {"asks": True}
SWEPT = {"asks": True, "prunes": True, "sweep": "s", "trial": 3, "attempt": 2, "metric": "loss"}


@pytest.fixture
def agent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def trial_of(theirs, trial, monkeypatch):
    monkeypatch.setenv(TRIAL_VARIABLE, json.dumps({"fd": os.dup(theirs.fileno()), **trial}))
    theirs.close()
    return take_trial()


def test_run_begins_when_its_agent_says_so(agent, monkeypatch):
    ours, theirs = agent
    trial = trial_of(theirs, QUEUED, monkeypatch)
    ours.sendall(b'{"begin": true}\n')
    trial.wait_for_begin()
    assert json.loads(ours.recv(4096))["kind"] == "ready"
    trial.leave()


@pytest.mark.parametrize(
    ("given", "answer", "message"),
    [
        (QUEUED, b'{"begin": false}\n', "queued run: another worker has this run by now; nothing was recorded"),
        (QUEUED, b"", "queued run: its worker is gone, so another one may have this run; nothing was recorded"),
        (SWEPT, b'{"begin": false}\n', "trial 3, attempt 2: another agent has this trial by now; nothing was recorded"),
        (SWEPT, b'{"beg', "trial 3, attempt 2: its agent is gone, so another one may have this trial; nothing was"),
    ],
)
def test_run_that_may_not_begin_says_why(agent, monkeypatch, given, answer, message):
    ours, theirs = agent
    trial = trial_of(theirs, given, monkeypatch)
    ours.sendall(answer)
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(ConcurrentRunError, match=f"^{message}"):
        trial.wait_for_begin()
    trial.leave()


def test_run_ends_at_the_report_that_its_agent_prunes_and_at_each_later_one(agent, monkeypatch):
    ours, theirs = agent
    trial = trial_of(theirs, SWEPT, monkeypatch)
    ours.sendall(b'{"prune": false}\n')
    trial.report("loss", 0.5, 0)
    ours.sendall(b'{"prune": true}\n')
    for step in (1, 2):
        with pytest.raises(Pruned, match=r"pruned by its sweep at step 1, where loss was 0\.25"):
            trial.report("loss", 0.25, step)
    trial.leave()


def test_run_whose_agent_is_gone_goes_on_and_is_not_pruned(agent, monkeypatch):
    ours, theirs = agent
    trial = trial_of(theirs, SWEPT, monkeypatch)
    ours.close()
    for step in range(3):
        trial.report("loss", 0.5, step)
