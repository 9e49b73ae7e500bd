"""Drawing for a person at the terminal, past the captured output."""

import contextlib
import os
import sys

import pytest

from sacristan.experiments.running import captured_output


@pytest.fixture
def forgotten(monkeypatch):
    monkeypatch.setattr(captured_output, "_terminal", None)


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
        captured_output.remember_terminal()
    monkeypatch.setattr(sys, "stderr", None)
    captured_output.remember_terminal()
    assert captured_output.terminal() is None


def test_terminal_is_drawn_on_though_stderr_goes_elsewhere(forgotten, tmp_path):
    with screen() as shows:
        captured_output.remember_terminal()
        elsewhere = os.open(tmp_path / "captured", os.O_WRONLY | os.O_CREAT)
        os.dup2(elsewhere, sys.stderr.fileno())
        os.close(elsewhere)
        with captured_output.terminal() as stream:
            print("50%", file=stream, flush=True)
        assert os.read(shows, 100).strip() == b"50%"
    assert (tmp_path / "captured").read_bytes() == b""


def test_terminal_remembered_twice_is_the_same(forgotten):
    with screen():
        captured_output.remember_terminal()
        first = captured_output.terminal()
        captured_output.remember_terminal()
        with captured_output.terminal() as stream:
            assert stream is first
