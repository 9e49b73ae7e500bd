# PYTHON_ARGCOMPLETE_OK
"""The command line: `sacristan COMMAND`, which is `python -m sacristan COMMAND`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["runs"]:  # `sacristan runs ls`, as it was written before
        words = words[1:]
    if words[:1] == ["run"]:
        # The folder it starts in may have modules named like those of Python, which `python -m` finds first.
        if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib is not loaded yet
            sys.path[0] = os.path.dirname(sys.executable)  # noqa: PTH120
        from sacristan.experiments.scripts.program import run_program

        run_program(words[1:])
    from sacristan.command_line import run_command

    return run_command(words)


if __name__ == "__main__":
    sys.exit(main())
