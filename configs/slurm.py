"""The job of Slurm that this process belongs to, and how it is queued again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from sacristan.configs.shielding import shielded

# States of a job that has not ended. Slurm shows SIGNALING for a moment when it preempts a job.
_GOING_ON = ("RUNNING", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING")
# Attempts to reach a controller that is busy or restarts, and the seconds between two of them.
_ATTEMPTS, _WAIT_S = 5, 2.0
_BOUND_S = 60


def job_id() -> str | None:
    """Return the id of the job as Slurm's commands take it; None outside of Slurm."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    # The number of an array's last task is also that of the whole array.
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def requeue(ask: Callable[[], None] | None = None) -> str:
    """Have Slurm queue this job again, unless it was cancelled; return why it is not queued, or an empty text."""
    job = job_id()
    if job is None:
        return "this process belongs to no job of Slurm"
    with shielded(signal.SIGTERM):  # Slurm ends all of a job that is queued again, and who asks for it
        try:
            fields = _fields(job)
            if _is_queued_again(fields):
                return ""  # Slurm has done so itself, as it does with a job that it preempts without a grace time
            if fields.get("JobState") not in _GOING_ON and fields.get("Reason") != "TimeLimit":
                return f"job {job} is {fields.get('JobState')}, as a cancelled one is"
            if ask is None:
                _scontrol("requeue", job)
            else:
                ask()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                if _is_queued_again(_fields(job)):
                    return ""
            return f"job {job}: {getattr(error, 'stderr', None) or error}".strip()
    return ""


def _fields(job: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", _scontrol("show", "job", "--oneliner", job)))


def _is_queued_again(fields: Mapping[str, str]) -> bool:
    return int(fields.get("Restarts", 0)) > int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _scontrol(*words: str) -> str:
    for left in reversed(range(_ATTEMPTS)):
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=_BOUND_S)
        if done.returncode and left and "contact" in done.stderr:
            time.sleep(_WAIT_S)
            continue
        done.check_returncode()
        return done.stdout
    raise AssertionError("unreachable")
