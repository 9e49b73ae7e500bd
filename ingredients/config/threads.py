"""Threads of torch that sleep while they wait.

By default OpenMP's threads spin for some milliseconds before they sleep. On a busy machine, a spinning thread keeps a
core from the thread it waits for, and a step of a small model takes 5 to 60 times as long. Sleeping threads cost a busy
machine nothing, and an idle one next to nothing (`benchmarks/threads.py`). OpenMP reads its settings when torch is
loaded.
"""

from __future__ import annotations

import os
import sys

_POLICY = "OMP_WAIT_POLICY"


def let_threads_sleep() -> None:
    """Make threads sleep while they wait, unless the user has chosen otherwise or it is too late."""
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault(_POLICY, "passive")


def threads_sleep() -> bool:
    """Return whether torch's threads sleep while they wait."""
    return os.environ.get(_POLICY, "").lower() == "passive" or os.environ.get("GOMP_SPINCOUNT") == "0"


def is_asked_for_threads() -> bool:
    """Return whether the environment sets the number of threads."""
    return any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
