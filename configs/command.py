"""The command `sacristan`: `sacristan runs ls`, `sacristan new NAME`.

It runs the lab's modules as `python -m` does, but does not look for them in the working folder.
"""

from __future__ import annotations

import runpy
import sys

__all__ = ["main"]

_MODULES = {"new": "experiments", "runs": "runs"}
_USAGE = """\
usage: sacristan runs ...          list, inspect, compare and manage past runs
       sacristan new NAME ...      start an experiment or a project of your own
"""


def main() -> int:
    """Run one command, and return its exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0
    if command not in _MODULES:
        sys.stderr.write(f"error: {command}: there is no such command\n{_USAGE}")
        return 2
    sys.argv = [sys.argv[0], *sys.argv[2 if command == "runs" else 1 :]]
    runpy.run_module(_MODULES[command], run_name="__main__", alter_sys=True)
    return 0
