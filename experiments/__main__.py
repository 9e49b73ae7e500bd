"""`sacristan new` under its earlier name, `python -m experiments new`."""

import sys

from sacristan.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
