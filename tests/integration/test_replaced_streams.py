"""Output of runs whose `sys.stdout` and `sys.stderr` are not the process's own, as in notebooks and under pytest."""

from __future__ import annotations

import os

import pytest

from sacristan.runs import open_store
from tests.integration.conftest import TEE

BODY = TEE
BODY += """
import contextlib, io, logging

class Cells(io.StringIO):
    "As a notebook's: no descriptor."


ex.observers.append(FileObserver("runs"))

@ex.main
def main():
    print("printed line")
    print("said line", file=sys.stderr)
    logging.getLogger("some").warning("logged line")
    os.system("echo line of a child")

def run():
    logging.basicConfig(force=True)
    before = sys.stdout, sys.stderr
    ex.run()
    assert (sys.stdout, sys.stderr) == before
    print("after the run")
    ex.run("print_config")

kind = sys.argv[1]
if kind == "cells":
    cells = Cells()
    with contextlib.redirect_stdout(cells), contextlib.redirect_stderr(cells):
        run()
    lines = cells.getvalue().splitlines()
    assert lines.count("printed line") == lines.count("said line") == lines.count("after the run") == 1, lines
else:
    sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)
    run()
"""
PYTEST = """
def test_run():
    ex.observers.append(FileObserver("runs"))

    @ex.main
    def main():
        print("printed line")
        print("said line", file=sys.stderr)
        os.system("echo line of a child")

    ex.run()

if __name__ == "__main__":
    import pytest
    sys.exit(pytest.main([__file__, "-p", "no:cacheprovider"]))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["cells", "tee"])
def test_output_to_a_replaced_stream_is_recorded_once(tmp_path, start, kind):
    # Two streams that are not buffered, and go to two files, are recorded as they come: parts of lines.
    start(tmp_path, BODY, kind, env={**os.environ, "PYTHONUNBUFFERED": ""}).finish()
    lines = _output(tmp_path).splitlines()
    expected = ["printed line", "said line", "WARNING:some:logged line", "line of a child"]
    assert [lines.count(line) for line in expected] == [1, 1, 1, 1], lines
    assert "after the run" not in lines


@pytest.mark.slow
def test_output_of_a_run_under_pytest_is_recorded_once(tmp_path, start):
    start(tmp_path, PYTEST).finish()
    lines = _output(tmp_path).splitlines()
    assert [lines.count(line) for line in ("printed line", "said line", "line of a child")] == [1, 1, 1], lines


def _output(folder) -> str:
    with open_store(folder / "runs") as store:
        return store.get("1").output
