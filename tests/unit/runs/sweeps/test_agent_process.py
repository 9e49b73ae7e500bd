import io
import sys

import pytest

from sacristan.runs.sweeps.agents.agent_process import main


@pytest.mark.parametrize("stdin", ["", "{}\n", "[1]\n", "no JSON\n", "[" * 100_000, None])
def test_worker_that_is_told_nothing_to_work_on_says_how_to_start_one(monkeypatch, capsys, stdin):
    monkeypatch.setattr(sys, "stdin", None if stdin is None else io.StringIO(stdin))
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("python exp.py sweep.agent with sweep.id=...")
