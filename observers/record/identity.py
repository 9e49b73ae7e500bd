"""Who a run is, and who writes it: the globally unique id, and the lease."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

__all__ = [
    "EXPECT_DATA_VARIABLE",
    "PARENT_VARIABLE",
    "RECORD_TO_VARIABLE",
    "RESUME_VARIABLE",
    "claimed",
    "is_alive",
    "lease",
    "new_uid",
    "parent_uid",
    "true_status",
]

_log = logging.getLogger(__name__)

# Holds the uid of the run that starts another one, for that other one.
PARENT_VARIABLE = "SACRISTAN_PARENT"
# Holds the folder that every `FileObserver` records below, in the place of its own.
RECORD_TO_VARIABLE = "SACRISTAN_RECORD_TO"
# Holds the fingerprint of the data that a run which is reproduced was trained on.
EXPECT_DATA_VARIABLE = "SACRISTAN_EXPECT_DATA"
# Holds the folder of the run that this process is to resume.
RESUME_VARIABLE = "SACRISTAN_RESUME"

# How many beats a lease outlives, and how many seconds at least: a machine that swaps is not dead.
_BEATS, _SECONDS = 10, 30.0


def new_uid() -> str:
    """Return a new id: 12 hex digits of milliseconds since 1970, then 20 random ones; it sorts by time."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def parent_uid(meta_info: MutableMapping[str, Any]) -> str | None:
    """Return the uid of the run that this one belongs to: `meta_info["parent"]`, else what `SACRISTAN_PARENT` holds.

    It is noted in `meta_info`. What is no uid is warned of once, and not taken.
    """
    source = 'meta_info["parent"]' if "parent" in meta_info else PARENT_VARIABLE
    given = meta_info.get("parent") if "parent" in meta_info else os.environ.get(PARENT_VARIABLE) or None
    if given is None:
        return None
    if not isinstance(given, str) or not re.fullmatch("[0-9a-f]{32}", given):
        _log.warning(
            "%s: got %.100r, expected the uid in a run's run.json, 32 digits 0-9 and a-f; no parent is recorded",
            source,
            given,
        )
        given = None
    # With the refusal noted, a second observer does not warn again.
    meta_info["parent"] = given
    return given


def lease(beat_interval_s: float) -> dict[str, Any]:
    """Return the lease of this process, as of now."""
    return {
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "pid": os.getpid(),
        "pid_start": _start_of(os.getpid()),
        "beat_interval": beat_interval_s,
        "heartbeat": time.time(),
    }


@contextlib.contextmanager
def claimed(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold `folder` against every other process that claims it, after waiting for it; one that dies lets go of it.

    Without effect where the folder is gone, or the system has no such locks.

    Raises:
        BlockingIOError: If it is not to `wait`, and another process has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, number)
            fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except (ImportError, OSError):
            _log.debug("%s cannot be held against others", folder)
        yield


def is_alive(lease: dict[str, Any], now: float | None = None) -> bool:
    """Tell whether the process that holds a lease still writes its run.

    On the machine that wrote it, the process itself is looked at; from anywhere else the time since its last beat
    counts, which wants clocks that agree to some seconds.
    """
    # A system without /proc tells nothing of its processes.
    is_known = lease.get("boot_id") and lease.get("pid_start") is not None
    if is_known and lease.get("host") == socket.gethostname() and lease["boot_id"] == _boot_id():
        return _start_of(lease["pid"]) == lease["pid_start"]
    allowed = max(_SECONDS, _BEATS * lease.get("beat_interval", 1.0))
    return (time.time() if now is None else now) - lease.get("heartbeat", 0) <= allowed


def true_status(run: dict[str, Any], lease: Any) -> str | None:
    """Return the status of a run: RUNNING without a living process is DEAD.

    Args:
        run: What is in its `run.json`.
        lease: What is in its `lease.json`; anything, as others may have written there.

    Returns:
        The status as text; None if it is recorded as null.
    """
    status = run.get("status", "RUNNING")
    # A lease that is no lease says nothing.
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        if status == "RUNNING" and lease is not None and not is_alive(lease):
            return "DEAD"
    return status if status is None or isinstance(status, str) else str(status)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, so that a reused pid is not taken for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])
