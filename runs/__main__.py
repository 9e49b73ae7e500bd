# PYTHON_ARGCOMPLETE_OK
"""The command line under its earlier name: `runs` and `python -m sacristan.runs` are `sacristan`."""

import sys

from sacristan.__main__ import main
from sacristan.command_line import make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(main())
