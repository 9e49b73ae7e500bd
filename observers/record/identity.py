"""Identity of a run and of its writer: the globally unique id, and the lease."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

from observers.record import run_clock
from observers.record.json_text import parse_json
from observers.record.locking import RecordLock, is_locked
from observers.record.regular_file import read_regular
from observers.record.schema import FORMAT, LEASE, RUN

__all__ = [
    "CHECK_VARIABLE",
    "EXPECT_DATA_VARIABLE",
    "EXPECT_RESOURCES_VARIABLE",
    "PARENT_VARIABLE",
    "RECORD_TO_VARIABLE",
    "RESUME_VARIABLE",
    "START_VARIABLE",
    "TRIAL_VARIABLE",
    "is_alive",
    "is_time",
    "last_beat",
    "lease",
    "new_uid",
    "parent_uid",
    "read_lease",
    "start_of",
    "true_status",
]

_log = logging.getLogger(__name__)

# Holds the uid of the run that starts another one, for that other one.
PARENT_VARIABLE = "SACRISTAN_PARENT"
# Holds the folder that every `FileObserver` records below, in the place of its own.
RECORD_TO_VARIABLE = "SACRISTAN_RECORD_TO"
# Holds the fingerprint of the data that a run which is reproduced was trained on.
EXPECT_DATA_VARIABLE = "SACRISTAN_EXPECT_DATA"
# Files that are to have a content where they are opened as resources: a JSON object of path and SHA-256.
EXPECT_RESOURCES_VARIABLE = "SACRISTAN_EXPECT_RESOURCES"
# Holds the folder of the run that this process is to resume.
RESUME_VARIABLE = "SACRISTAN_RESUME"
# Set where `print_config` is to refuse settings with which the main function could not start.
CHECK_VARIABLE = "SACRISTAN_CHECK"
# Holds the folder of the queued run that this process is to start.
START_VARIABLE = "SACRISTAN_START"
# Holds what a process is told by the one that started it for a sweep or from a queue: a JSON object with the descriptor
# of a socket between the two as `fd`; of a sweep's, `sweep`, `trial`, `attempt`, `parameters`, `metric`, `prunes`,
# `asks`, too.
TRIAL_VARIABLE = "SACRISTAN_TRIAL"

# How many heartbeats a lease outlives, and how many seconds at least: a machine that swaps is not dead.
_BEATS, _SECONDS = 10, 30.0
# The same of stock Sacred, whose heartbeats wait for the database, and for whatever holds the interpreter's lock.
_STOCK_BEATS, _STOCK_BEAT_S = 60, 10.0


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


def lease(beat_interval_s: float, *, locked: bool = False) -> dict[str, Any]:
    """Return the lease of this process, as of now.

    Args:
        beat_interval_s: Seconds between two heartbeats; 0 for a run without any.
        locked: Whether the process holds the lock on the record, too.
    """
    return {
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "pid": os.getpid(),
        "pid_start": start_of(os.getpid()),
        "ppid": os.getppid(),
        "beat_interval": beat_interval_s,
        "heartbeat": time.time(),
        "run_time": run_clock.now(),
        "locked": locked,
    }


def read_lease(folder: Path, ours: RecordLock | None = None) -> dict[str, Any] | None:
    """Return the lease in a run's folder, and as `held` whether a writer holds the record's lock now.

    A lease that is damaged, or that a power cut has taken, is as old as the file, and tells nothing else. None is that
    of a record that never had one, such as stock Sacred's.

    Args:
        folder: The run's folder.
        ours: A lock on it that the caller holds, and that says nothing of a writer.
    """
    try:
        lease = parse_json(read_regular(folder / LEASE))
    except (OSError, ValueError, RecursionError):
        lease = None
    if not isinstance(lease, dict) or not is_time(lease.get("heartbeat")):
        last = _last_change(folder)
        if last is None:
            return None
        lease = {"heartbeat": last, "locked": True}
    return {**lease, "held": False if ours is not None and ours.is_held else is_locked(folder)}


def _last_change(folder: Path) -> float | None:
    """Return when a run's lease was written; without one when its `run.json` was; None of a record without leases."""
    for name in (LEASE, RUN):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if name == LEASE or parse_json(read_regular(folder / RUN)).get("format") == FORMAT:
                return (folder / name).stat().st_mtime
    return None


def is_alive(lease: Mapping[str, Any], now: float | None = None) -> bool:
    """Tell whether the process that holds a lease still writes its run.

    Whoever holds the record's lock lives, wherever that is. Under the kernel that it was written under, a lock that
    nobody holds, or in the same PID namespace a process that is gone, are the end. From anywhere else, and where there
    are no locks, the time since the last heartbeat counts, which wants clocks that agree to some seconds; without
    heartbeats there is no telling, and the run is taken to be alive.

    Args:
        lease: What `lease` returned then, or `read_lease` of what is in a folder.
        now: The time, in seconds since 1970.
    """
    held = lease.get("held") if lease.get("locked") else None
    if held:
        return True
    if lease.get("boot_id") and lease["boot_id"] == _boot_id():
        if held is False:
            return False
        is_running = lease.get("pid_start") is not None and start_of(lease.get("pid")) == lease["pid_start"]
        # Leases of before do not name their namespace: a process that is there is theirs, one that is not may be.
        namespace = lease.get("pid_namespace")
        if is_running and namespace in (None, _pid_namespace()):
            return True
        if namespace and namespace == _pid_namespace():
            return False
    interval, heartbeat = lease.get("beat_interval", 1.0), lease.get("heartbeat")
    if interval == 0:
        return True
    allowed = max(_SECONDS, _BEATS * interval) if is_time(interval) else _SECONDS
    return (time.time() if now is None else now) - (heartbeat if is_time(heartbeat) else 0) <= allowed


def last_beat(lease: Mapping[str, Any]) -> datetime | None:
    """Return the time of the run at the last heartbeat of a lease, in UTC without a time zone; None if it has none."""
    for name in ("run_time", "heartbeat"):  # leases of before have the wall time alone
        if is_time(lease.get(name)):
            return datetime.fromtimestamp(lease[name], UTC).replace(tzinfo=None)
    return None


def is_time(value: Any) -> TypeGuard[float]:
    """Tell whether a value from a lease is a number of seconds that a clock can show: up to the year 9999."""
    return isinstance(value, int | float) and 0 <= value < 2.5e11


def true_status(run: Mapping[str, Any], lease: Any) -> str | None:
    """Return the status of a run: RUNNING without a living process is DEAD.

    Stock Sacred keeps no lease, but notes its heartbeats, one every ten seconds. A run without any for ten minutes, or
    sixty of its heartbeats, is dead, which wants clocks that agree to some minutes.

    Args:
        run: What is in its `run.json`; at least `status`, and of a run without a lease `heartbeat`, `start_time` and
            `meta`, too.
        lease: Its lease, from `read_lease` or a database; anything, as others may have written there.

    Returns:
        The status as text; None if it is recorded as null.
    """
    status = run.get("status", "RUNNING")
    if status == "RUNNING":
        # A lease that is no lease says nothing.
        lives = is_alive(lease) if isinstance(lease, Mapping) else lease is not None or _beats(run)
        return status if lives else "DEAD"
    return status if status is None or isinstance(status, str) else str(status)


def _beats(run: Mapping[str, Any]) -> bool:
    """Tell whether the heartbeats of a run without a lease go on, as far as it tells."""
    if run.get("uid") is not None:  # recorded by the lab, which has leases
        return True
    last = run.get("heartbeat") or run.get("start_time")
    try:
        time_of = last if isinstance(last, datetime) else datetime.fromisoformat(str(last))
        age_s = time.time() - (time_of if time_of.tzinfo else time_of.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return True
    meta = run.get("meta")
    options = meta.get("options") if isinstance(meta, Mapping) else None
    given = options.get("--beat-interval") if isinstance(options, Mapping) else None
    try:
        interval = float(given or _STOCK_BEAT_S)
    except (TypeError, ValueError):
        interval = _STOCK_BEAT_S
    return age_s < _STOCK_BEATS * max(interval, _STOCK_BEAT_S)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str | None:
    """Return the PID namespace of this process; None where pids in /proc are not those of it, or there is no /proc."""
    proc = Path("/proc/self")
    try:
        if str(proc.readlink()) != str(os.getpid()):  # of a container whose /proc is that of the machine
            return None
        return str((proc / "ns" / "pid").readlink())
    except OSError:
        return None


def start_of(pid: Any) -> int | None:
    """Return when a process started, in clock ticks since boot, so that a reused pid is not taken for it."""
    if not isinstance(pid, int):
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])
