"""Identity of a run and of its writer: the globally unique id, the user, and the lease."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import platform
import re
import time
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeGuard

from sacristan.observers.record import run_clock
from sacristan.observers.record.folders import RecordLock, is_locked
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.schema import FORMAT, LEASE, RUN

_log = logging.getLogger(__name__)

# The uid of the run that starts this one.
PARENT_VARIABLE = "SACRISTAN_PARENT"
# The named configs of the recorded run whose config is used again: they may set more than its defaults say.
NAMED_CONFIGS_VARIABLE = "SACRISTAN_NAMED_CONFIGS"
# The folder of runs that replaces the one of every `FileObserver`.
RECORD_TO_VARIABLE = "SACRISTAN_RECORD_TO"
# The fingerprint of the data that the reproduced run was trained on.
EXPECT_DATA_VARIABLE = "SACRISTAN_EXPECT_DATA"
# The expected content of files that are opened as resources: a JSON object of path and SHA-256.
EXPECT_RESOURCES_VARIABLE = "SACRISTAN_EXPECT_RESOURCES"
# The versions that the reproduced run used: a JSON object of a reference, such as `net:champion`, and `net@DIGEST`.
USED_ARTIFACTS_VARIABLE = "SACRISTAN_USED_ARTIFACTS"
# The folder of the run to resume.
RESUME_VARIABLE = "SACRISTAN_RESUME"
# If set, `print_config` rejects settings that the main function could not start with.
CHECK_VARIABLE = "SACRISTAN_CHECK"
# The state of another run that a script starts from.
FORK_VARIABLE = "SACRISTAN_FORK"
# The folder of the queued run to start.
START_VARIABLE = "SACRISTAN_START"
# For a process started by a sweep or a queue: a JSON object with the descriptor of a socket to the parent as `fd`, and
# for a sweep also `sweep`, `trial`, `attempt`, `parameters`, `metric`, `prunes` and `asks`.
TRIAL_VARIABLE = "SACRISTAN_TRIAL"
# The user whose runs these are, instead of the one of the operating system.
USER_VARIABLE = "SACRISTAN_USER"

# A lease is valid for this many heartbeats, and seconds at least: a machine that swaps is not dead.
_BEATS, _SECONDS = 10, 30.0
# The same for stock Sacred, whose heartbeats wait for the database, and for the interpreter's lock.
_STOCK_BEATS, _STOCK_BEAT_S = 60, 10.0


def new_uid() -> str:
    """Return a new id, which sorts by time: 12 hex digits of milliseconds since 1970, then 20 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def is_uid(value: Any) -> TypeGuard[str]:
    """Return whether a value has the form of a run's uid: 32 digits 0-9 and a-f."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def parent_uid(meta_info: MutableMapping[str, Any]) -> str | None:
    """Return the parent's uid from the meta entry, which receives it, or `SACRISTAN_PARENT`; ignore an invalid one."""
    source = 'meta_info["parent"]' if "parent" in meta_info else PARENT_VARIABLE
    parent = meta_info.get("parent") if "parent" in meta_info else os.environ.get(PARENT_VARIABLE) or None
    if parent is None:
        return meta_info.get("started_from")
    if not is_uid(parent):
        _log.warning(
            "%s: got %.100r, expected the uid in a run's run.json, 32 digits 0-9 and a-f; no parent is recorded",
            source,
            parent,
        )
        parent = None
    # Noted even if it is None, so that a second observer does not warn again.
    meta_info["parent"] = parent
    return parent


def user_name() -> str | None:
    """Return the user of this process: `SACRISTAN_USER`, as runners for many people set, or the account's name.

    `USER` and the like count only without one: `su` and `sudo` may leave them. None if unknown, as in a container.
    """
    if user := os.environ.get(USER_VARIABLE, "").strip():
        return user
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):  # Windows; an account without a name
        pass
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None


def is_anonymous(meta_info: Mapping[str, Any]) -> bool:
    """Tell whether the record of a run names neither user nor machine: option `--anonymous`."""
    options = meta_info.get("options")
    return isinstance(options, Mapping) and bool(options.get("--anonymous"))


def lease(beat_interval_s: float, *, locked: bool = False, is_anonymous: bool = False) -> dict[str, Any]:
    """Return this process's lease as of now; an interval of 0 means no heartbeats, and anonymous no machine's name."""
    return {
        **({} if is_anonymous else {"host": platform.node()}),
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


def read_lease(folder: Path, own_lock: RecordLock | None = None) -> dict[str, Any] | None:
    """Return a run's lease, with `held`: whether a writer other than `own_lock` holds the record's lock now.

    A damaged or lost lease is as old as its file. None for a record that never had one, such as stock Sacred's.
    """
    try:
        lease = load_json(folder / LEASE)
    except (OSError, ValueError, RecursionError):
        lease = None
    if not isinstance(lease, dict) or not is_time(lease.get("heartbeat")):
        last = _last_change(folder)
        if last is None:
            return None
        lease = {"heartbeat": last, "locked": True}
    return {**lease, "held": False if own_lock is not None and own_lock.is_held else is_locked(folder)}


def _last_change(folder: Path) -> float | None:
    """Return when a run's lease was written; without a lease, its `run.json`; None for a record without leases."""
    for name in (LEASE, RUN):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if name == LEASE or load_json(folder / RUN).get("format") == FORMAT:
                return (folder / name).stat().st_mtime
    return None


def is_alive(lease: Mapping[str, Any], now: float | None = None) -> bool:
    """Tell whether the process with a lease still writes its run.

    A held lock means alive, anywhere; under the same kernel, an unheld lock or, in the same PID namespace, a missing
    process means dead. Otherwise the age of the last heartbeat decides, for which clocks must agree within seconds.
    Without heartbeats the process counts as alive.
    """
    held = lease.get("held") if lease.get("locked") else None
    if held:
        return True
    if lease.get("boot_id") and lease["boot_id"] == _boot_id():
        is_running = False if held is False else _is_running(lease)
        if is_running is not None:
            return is_running
    interval, heartbeat = lease.get("beat_interval", 1.0), lease.get("heartbeat")
    if interval == 0:
        return True
    allowed = max(_SECONDS, _BEATS * interval) if is_time(interval) else _SECONDS
    return (time.time() if now is None else now) - (heartbeat if is_time(heartbeat) else 0) <= allowed


def _is_running(lease: Mapping[str, Any]) -> bool | None:
    """Tell whether the process with a lease of this kernel exists; None if it may be in another PID namespace."""
    is_running = lease.get("pid_start") is not None and start_of(lease.get("pid")) == lease["pid_start"]
    # Early leases have no namespace: an existing process is theirs, a missing one may be in another namespace.
    namespace = lease.get("pid_namespace")
    if is_running and namespace in (None, _pid_namespace()):
        return True
    return False if namespace and namespace == _pid_namespace() else None


def last_beat(lease: Mapping[str, Any]) -> datetime | None:
    """Return the time of the run at the last heartbeat, in UTC without a time zone; None if the lease has none."""
    for name in ("run_time", "heartbeat"):  # early leases have the wall time only
        if is_time(lease.get(name)):
            return datetime.fromtimestamp(lease[name], UTC).replace(tzinfo=None)
    return None


def last_sign(status: Any, lease: Any) -> datetime | None:
    """Return when a run without a recorded end was last known to be alive: now for a running one."""
    beat = last_beat(lease) if isinstance(lease, Mapping) else None
    if status == "DEAD":
        return beat
    if status != "RUNNING":
        return None
    if beat is None or not is_time(lease.get("heartbeat")):
        return datetime.now(UTC).replace(tzinfo=None)
    # Wall time counts only since the heartbeat: the clock may have been set before it.
    return beat + timedelta(seconds=max(0.0, time.time() - lease["heartbeat"]))


def is_time(value: Any) -> TypeGuard[float]:
    """Tell whether a value from a lease is a valid time in seconds, up to the year 9999."""
    return isinstance(value, int | float) and 0 <= value < 2.5e11


def true_status(run: Mapping[str, Any], lease: Any) -> str | None:
    """Return the status of a run: RUNNING without a living process is DEAD. `run` also needs its heartbeat and times.

    Stock Sacred writes no lease, but a heartbeat every ten seconds: such a run is dead ten minutes, or sixty
    heartbeats, after the last. Any `lease` is accepted, because others may write to a database.
    """
    status = run.get("status", "RUNNING")
    if status == "RUNNING":
        # An invalid lease is no evidence.
        lives = is_alive(lease) if isinstance(lease, Mapping) else lease is not None or _beats(run)
        return status if lives else "DEAD"
    return status if status is None or isinstance(status, str) else str(status)


def _beats(run: Mapping[str, Any]) -> bool:
    """Tell whether a run without a lease still has heartbeats, as far as the record says."""
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
    option = options.get("--beat-interval") if isinstance(options, Mapping) else None
    try:
        interval = float(option or _STOCK_BEAT_S)
    except (TypeError, ValueError):
        interval = _STOCK_BEAT_S
    return age_s < _STOCK_BEATS * max(interval, _STOCK_BEAT_S)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str | None:
    """Return the PID namespace of this process; None if /proc is missing, or shows other pids."""
    proc = Path("/proc/self")
    try:
        if str(proc.readlink()) != str(os.getpid()):  # a container with the machine's /proc
            return None
        return str((proc / "ns" / "pid").readlink())
    except OSError:
        return None


def start_of(pid: Any) -> int | None:
    """Return a process's start in clock ticks since boot, which tells it from later ones with its pid; or None."""
    if not isinstance(pid, int):
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])
