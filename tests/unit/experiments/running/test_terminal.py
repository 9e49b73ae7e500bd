"""Who watches is drawn for, past what is captured."""

import contextlib
import os
import sys

import pytest

from experiments.running import terminal


@pytest.fixture
def forgotten(monkeypatch):
    monkeypatch.setattr(terminal, "_terminal", None)


@contextlib.contextmanager
def screen():
    """Make stderr a terminal, and give the end that shows what is drawn on it."""
    shows, draws = os.openpty()
    with os.fdopen(draws, "w") as stream, contextlib.redirect_stderr(stream):
        yield shows
    os.close(shows)


def test_terminal_without_one_is_none(forgotten, monkeypatch, tmp_path):
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        terminal.remember_terminal()
    monkeypatch.setattr(sys, "stderr", None)
    terminal.remember_terminal()
    assert terminal.terminal() is None


def test_terminal_is_drawn_on_though_stderr_goes_elsewhere(forgotten, tmp_path):
    with screen() as shows:
        terminal.remember_terminal()
        elsewhere = os.open(tmp_path / "captured", os.O_WRONLY | os.O_CREAT)
        os.dup2(elsewhere, sys.stderr.fileno())
        os.close(elsewhere)
        with terminal.terminal() as stream:
            print("50%", file=stream, flush=True)
        assert os.read(shows, 100).strip() == b"50%"
    assert (tmp_path / "captured").read_bytes() == b""


def test_terminal_remembered_twice_is_the_same(forgotten):
    with screen():
        terminal.remember_terminal()
        first = terminal.terminal()
        terminal.remember_terminal()
        with terminal.terminal() as stream:
            assert stream is first
