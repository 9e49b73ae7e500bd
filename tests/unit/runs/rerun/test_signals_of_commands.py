"""Signals to commands that wait for processes: the first one interrupts these, and the second one kills them."""

from __future__ import annotations

import os
import signal

import pytest

from sacristan.runs.rerun.launching import raising_signals


@pytest.mark.parametrize("job", [None, "7"])
def test_slurm_may_send_the_same_signal_twice(monkeypatch, job):
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    ends = []
    with raising_signals():
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except SystemExit as error:
                ends.append(error.code)
    assert ends == ([143] if job else [143, 143])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
