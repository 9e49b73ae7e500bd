"""Progress: the bar, the lines, and estimates of the time left by a clock that the tests set."""

from __future__ import annotations

import functools
import io
import logging
import os
import pty
import re
import sys
import termios

import pytest
import torch
from tqdm import tqdm

from sacristan.experiments import loop
from sacristan.experiments.running import captured_output
from sacristan.experiments.training.progress import TimeLeft, TrainingProgress
from sacristan.ingredients.losses import build_loss


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch):
    monkeypatch.setattr(captured_output, "_terminal", None)


@pytest.fixture
def watched(monkeypatch):
    """Let a pseudo-terminal be the terminal, and return what reads what is drawn on it."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as stream:

        def drawn():
            # A pseudo-terminal passes on what is written only some time later.
            print(end="\0", file=stream, flush=True)
            shown = b""
            while not shown.endswith(b"\0"):
                shown += os.read(master, 100_000)
            return shown.decode().rstrip("\0")

        monkeypatch.setattr(captured_output, "_terminal", stream)
        yield drawn
    os.close(master)


@pytest.fixture
def draws_at_once(monkeypatch):
    """Let a bar draw every change, instead of ten times a second."""
    monkeypatch.setattr(tqdm, "__init__", functools.partialmethod(tqdm.__init__, mininterval=0, miniters=1))


def epochs_told(caplog, num_epochs):
    with (
        caplog.at_level(logging.INFO, "sacristan.experiments.training.progress"),
        TrainingProgress(num_epochs, 3) as progress,
    ):
        for epoch in range(1, num_epochs + 1):
            progress.epoch(epoch, {"val/loss": 0.5})
    return [int(record.message.split()[1].partition("/")[0]) for record in caplog.records]


@pytest.mark.parametrize("num_epochs", [1, 3, 20, 21, 30, 1000])
def test_progress_tells_of_about_twenty_epochs_and_the_last(caplog, num_epochs):
    told = epochs_told(caplog, num_epochs)
    assert min(num_epochs, 10) <= len(told) <= 21
    assert told[-1] == num_epochs


def test_progress_tells_the_metrics(caplog):
    with caplog.at_level(logging.INFO, "sacristan.experiments.training.progress"), TrainingProgress(2, 3) as progress:
        progress.epoch(2, {"val/loss": 0.51234567, "val/accuracy": 1.0})
    assert caplog.messages == ["epoch 2/2  val/loss 0.5123  val/accuracy 1.0000"]


def test_progress_without_a_terminal_draws_nothing(capfd):
    with TrainingProgress(2, 6) as progress:
        progress.step(3, 0.5)
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal_draws_a_bar_there_alone(watched, capfd):
    with TrainingProgress(2, 6) as progress:
        progress.step(3, 0.5)
        progress.epoch(1, {})
        progress.step(6, 0.25)
    assert "0/6" in watched()
    assert capfd.readouterr() == ("", "")


def test_progress_clears_its_bar_before_any_line_that_is_logged(watched):
    handler = logging.StreamHandler(captured_output.terminal())
    logging.getLogger().addHandler(handler)
    try:
        with TrainingProgress(2, 6) as progress:
            logging.getLogger("elsewhere").warning("first")
            progress.step(3, 0.5)  # within 0.1 s: a line that is still on its way would be drawn into the bar
            logging.getLogger("elsewhere").warning("second")
        logging.getLogger("elsewhere").warning("last")
    finally:
        logging.getLogger().removeHandler(handler)
    rows = watched().replace("\r\n", "\n").split("\n")
    assert [row.rpartition("\r")[2] for row in rows] == ["first", "second", "last", ""]
    assert "0/6" in rows[0]
    assert "3/6" not in rows[1]


def test_terminal_is_none_where_stderr_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    captured_output.remember_terminal()
    assert captured_output.terminal() is None


@pytest.mark.parametrize(
    ("num_validations", "may_stop_early", "first", "later"),
    [
        (0, False, r"\d\d:\d\d", r"\d\d:\d\d"),
        (0, True, r"=\d\d:\d\d", r"=\d\d:\d\d"),
        (2, False, r"\d\d:\d\d\+", r"\d\d:\d\d"),
        (2, True, r"\?", r"=\d\d:\d\d"),
    ],
)
def test_progress_shows_bounds_of_the_time_left(watched, draws_at_once, num_validations, may_stop_early, first, later):
    with TrainingProgress(2, 40, num_validations=num_validations, may_stop_early=may_stop_early) as progress:
        progress.step(10, 0.5)
        assert "[00:00<?, " in watched()
        progress.step(20, 0.5)
        assert re.search(rf"20/40 \[\d\d:\d\d<{first}, ", watched())
        progress.trained(20)
        progress.epoch(1, {"val/loss": 0.5})
        progress.step(30, 0.5)
        assert re.search(rf"30/40 \[\d\d:\d\d<{later}, ", watched())


@pytest.mark.parametrize(("patience", "before", "after"), [(None, r"\d\d:\d\d\+", r"00:00"), (9, r"\?", r"=00:00")])
def test_fit_shows_the_time_left_by_its_validations(watched, draws_at_once, tensor_data, patience, before, after):
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    data = tensor_data((x, y), (x, y), (x, y))
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    criterion = build_loss(None, {}, None, data, torch.device("cpu"))
    loop.fit(model, data, criterion, optimizer, epochs=3, val_interval=2, log_interval=1, patience=patience, log=print)
    shown = re.findall(r"(\d+)/\d+ \[\d\d:\d\d<([^,]+), ", watched())
    num_steps = loop.steps_per_epoch(data.train, 1)
    left = {int(step): text for step, text in shown}
    assert all(re.fullmatch(before, left[step]) for step in range(2, 2 * num_steps))
    assert all(re.fullmatch(after, left[step]) for step in range(2 * num_steps + 1, 3 * num_steps + 1))


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_left_before_two_steps_is_unknown(clock):
    left = TimeLeft(100, 0, clock)
    assert left.seconds() is None
    left.step(1)
    clock.now = 60.0
    assert left.seconds() is None


def test_time_left_of_a_resumed_training_counts_the_steps_of_its_session(clock):
    left = TimeLeft(100, 0, clock)
    left.step(60)
    clock.now = 20.0
    left.step(70)
    assert left.seconds() == 60.0


def test_time_left_adds_validations_to_come(clock):
    left = TimeLeft(40, 4, clock)
    left.step(0)
    for epoch, now in enumerate((10.0, 25.0), start=1):
        clock.now = now
        left.step(10 * epoch)
        clock.now += 5.0
        left.validated()
    # 20 steps at 1 s, and 2 validations at 5 s
    assert left.seconds() == 30.0
    assert not left.lacks_validations


def test_time_left_at_the_end_is_none_of_it(clock):
    left = TimeLeft(10, 1, clock)
    left.step(0)
    clock.now = 10.0
    left.step(10)
    left.validated()
    left.validated()  # a callback may validate once more
    assert left.seconds() == 0.0
