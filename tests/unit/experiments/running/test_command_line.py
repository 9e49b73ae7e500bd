"""Options of the command line and their values; the rest is in integration/test_ways_in.py."""

import re

import pytest

from sacristan.experiments import Experiment
from sacristan.experiments.running.command_line import check_command_line
from sacristan.ingredients import ConfigError

OPTIONS = Experiment("x", interactive=True).all_cli_options


@pytest.mark.parametrize(
    "words",
    [
        ["--beat-interval=0.5", "-b", "2"],
        ["--capture=no", "-C", "sys"],
        ["--loglevel=DEBUG", "-l", "30", "-l", "-10"],
        ["--priority=-1.5", "-P7"],
        ["--beat=3", "--comment=--strange", "-c", "-x"],
        ["help", "train"],
        ["help"],
        ["-F", "my_runs", "train"],
        ["with", "fast"],
        ["train", "with", "lr=0.1", "model.width=3", "-F", "my_runs"],
    ],
)
def test_words_that_make_sense_pass(words):
    check_command_line(["exp.py", *words], OPTIONS)
    check_command_line(" ".join(["exp.py", *words]), OPTIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--beat-interval=abc"], "--beat-interval: got 'abc', expected seconds, more than 0"),
        (["-b", "0"], "-b: got '0', expected seconds, more than 0"),
        (["--beat-interval=-1"], "--beat-interval: got '-1', expected seconds, more than 0"),
        (["--beat-interval=inf"], "--beat-interval: got 'inf', expected seconds, more than 0"),
        (["--capture=all"], "--capture: got 'all', expected one of no, sys, fd"),
        (
            ["-l", "loud"],
            "-l: got 'loud', expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number",
        ),
        (["--priority=high"], "--priority: got 'high', expected a number"),
    ],
)
def test_value_that_an_option_cannot_take_is_refused(words, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check_command_line(["exp.py", *words], OPTIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wth", "data.fast"], "wth: there is no such command; did you mean with?"),
        (["-u", "main", "wiht", "fast"], "wiht: there is no such command; did you mean with?"),
        (["main", "fast"], "fast: got a second word after main, expected one command; write settings and named"),
        (["with"], "with: got nothing after it, expected settings or named configs; write with NAME=VALUE"),
        (["main", "with", "-F", "my_runs"], "with: got nothing after it"),
    ],
)
def test_words_around_a_command_that_make_no_sense_are_refused(words, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check_command_line(["exp.py", *words], OPTIONS)


def test_option_that_cannot_take_its_value_ends_the_command_line_with_one_line(capsys):
    ex = Experiment("x", interactive=True)
    ex.main(lambda: None)
    with pytest.raises(SystemExit, match="1"):
        ex.run_commandline(["x", "--capture=all"])
    assert capsys.readouterr().err == "error: --capture: got 'all', expected one of no, sys, fd\n"


@pytest.mark.parametrize("given", [-1, "-0.5", "abc", float("nan"), float("inf"), [1]])
def test_time_between_heartbeats_that_is_none_is_refused_in_a_call(given):
    ex = Experiment("x", interactive=True)
    ex.main(lambda: None)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'--beat-interval: got {given!r}, expected seconds')}"):
        ex.run(options={"--beat-interval": given})
