import io
import os
import signal
import sys

import pytest

from sacristan.runs.sweeps.agents import agent_process
from sacristan.runs.sweeps.agents.agent_process import main


@pytest.mark.parametrize("stdin", ["", "{}\n", "[1]\n", "no JSON\n", "[" * 100_000, None])
def test_worker_that_is_told_nothing_to_work_on_says_how_to_start_one(monkeypatch, capsys, stdin):
    monkeypatch.setattr(sys, "stdin", None if stdin is None else io.StringIO(stdin))
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("python exp.py sweep.agent with sweep.id=...")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_worker_with_the_exit_code_of_a_shell(monkeypatch, number):
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    monkeypatch.setattr(
        agent_process, "_request", lambda: {"place": {}, "id": "", "means": {"base": None, "lab": None}}
    )
    monkeypatch.setattr(agent_process.Place, "of", lambda _: os.kill(os.getpid(), number))
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert end.value.code == 128 + number
