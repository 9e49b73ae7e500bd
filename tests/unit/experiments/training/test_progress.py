from __future__ import annotations

import io
import logging
import os
import pty
import sys
import termios

import pytest

from experiments.running import terminal
from experiments.training.progress import Progress


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch):
    monkeypatch.setattr(terminal, "_terminal", None)


@pytest.fixture
def watched(monkeypatch):
    """Let a pseudo-terminal be the terminal, and return what reads what is drawn on it."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    os.set_blocking(master, False)
    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(terminal, "_terminal", stream)
        yield lambda: os.read(master, 100_000).decode()
    os.close(master)


def epochs_told(caplog, num_epochs):
    with caplog.at_level(logging.INFO, "experiments.training.progress"), Progress(num_epochs, 3) as progress:
        for epoch in range(1, num_epochs + 1):
            progress.epoch(epoch, {"val/loss": 0.5})
    return [int(record.message.split()[1].partition("/")[0]) for record in caplog.records]


@pytest.mark.parametrize("num_epochs", [1, 3, 20, 21, 30, 1000])
def test_progress_tells_of_about_twenty_epochs_and_the_last(caplog, num_epochs):
    told = epochs_told(caplog, num_epochs)
    assert min(num_epochs, 10) <= len(told) <= 21
    assert told[-1] == num_epochs


def test_progress_tells_the_metrics(caplog):
    with caplog.at_level(logging.INFO, "experiments.training.progress"), Progress(2, 3) as progress:
        progress.epoch(2, {"val/loss": 0.51234567, "val/accuracy": 1.0})
    assert caplog.messages == ["epoch 2/2  val/loss 0.5123  val/accuracy 1.0000"]


def test_progress_without_a_terminal_draws_nothing(capfd):
    with Progress(2, 6) as progress:
        progress.step(3, 0.5)
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal_draws_a_bar_there_alone(watched, capfd):
    with Progress(2, 6) as progress:
        progress.step(3, 0.5)
        progress.epoch(1, {})
        progress.step(6, 0.25)
    assert "0/6" in watched()
    assert capfd.readouterr() == ("", "")


def test_terminal_is_none_where_stderr_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    terminal.remember_terminal()
    assert terminal.terminal() is None
