"""The loops of the page *Resume my own loop*, killed at random moments and started again."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from sacristan.runs import open_store
from tests.processes import Process, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "resume_my_own_loop.md"
LOOPS = dict(re.findall(r"```python file=(\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
WAIT_S = 300.0


def curve(folder):
    with open_store(folder / "my_runs") as store:
        newest = store.get("latest")
        loss = newest.metric("train/loss")
        return newest.status, loss.steps.tolist(), loss.values.tolist()


def num_points(folder):
    """Return how many points of the newest run are readable by now."""
    try:
        return len(curve(folder)[1])
    except Exception:  # there is no run, or no point yet
        return 0


def kill_at(folder, number, count):
    """Start the script, and end it once it has logged so many points; return its exit code."""
    script = Process([sys.executable, "script.py"], cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    until = time.monotonic() + WAIT_S
    while script.poll() is None and num_points(folder) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    if script.poll() is None:
        script.send_signal(number)
    return script.wait(WAIT_S)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([signal.SIGKILL, signal.SIGTERM], id="kill, term"),
        pytest.param([signal.SIGKILL] * 10, id="kills", marks=pytest.mark.nightly),
    ],
)
def test_loop_of_the_page_killed_at_random_ends_with_the_same_points(tmp_path, name, numbers):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        (folder / "script.py").write_text(LOOPS[name], encoding="utf-8")
    assert run([sys.executable, "script.py"], cwd=whole).returncode == 0
    expected = curve(whole)
    generator = random.Random(f"{name}{len(numbers)}")
    codes = {kill_at(cut, number, generator.randint(1, len(expected[1]) - 2)) for number in numbers}
    # SIGTERM may come before the loop has begun.
    assert codes <= {-signal.SIGKILL, -signal.SIGTERM, 75, 0}
    if 0 not in codes:
        assert run([sys.executable, "script.py"], cwd=cut).returncode == 0
    assert curve(cut) == expected
    assert sorted(path.name for path in (cut / "my_runs").iterdir() if path.name.isdigit()) == ["1"]
