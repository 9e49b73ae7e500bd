"""The live lines of a sweep in a real terminal: what else is said stands on lines of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import sys

from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.home import Place
from tests.integration.test_sweeps import GRID, ROOT
from tests.processes import Process

# The handler is made before, as Sacred makes its own.
SCRIPT = """
import contextlib, logging, pathlib, sys
logging.basicConfig(format="%(message)s")
from sacristan.runs.sweeps.study.home import _log
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import Watcher
from sacristan.runs.sweeps.agents.engines import display
with contextlib.closing(Place(pathlib.Path("my_runs")).home("s")) as home:
    watcher = Watcher(home)
    status = watcher.look()
    with display(status, watcher) as look:
        look(status)
        _log.warning("MongoDB is away")
        look(status)
_log.warning("at the end")
"""


def test_a_warning_does_not_run_into_the_live_line(tmp_path):
    where = {"script": "tiny.py", "module": "", "base": str(tmp_path), "cwd": str(tmp_path), "experiment": "tiny"}
    how = {"settings": (), "options": (), "seed": 0, "count": None, "storage": "", "created": ""}
    Place(tmp_path / "my_runs").home("s").create(Definition(id="s", spec=read_spec(GRID).document, **where, **how))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    printed = b""
    with Process([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs) as shown:
        os.close(theirs)
        with contextlib.suppress(OSError):  # once nobody holds the other end
            while read := os.read(ours, 65536):
                printed += read
        assert shown.wait() == 0, printed
    os.close(ours)
    before, _, after = printed.decode().partition("MongoDB is away")
    assert "sweep s: 0 of 4 done" in before
    assert before.endswith(("\n", "\x1b[2K")), printed
    assert after.startswith("\r\n"), printed
    assert printed.count(b"at the end") == 1
