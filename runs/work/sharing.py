"""Sharing of the machine between processes: CPU threads and GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["divided_threads", "visible_gpus"]


def divided_threads(workers: int) -> dict[str, str]:
    """Return the variables that divide the CPU's threads among workers, unless the user has divided them.

    One worker alone has what a run by itself has. Two trainings that each take both cores of two are 5 to 10 times
    slower than with one each.
    """
    if "OMP_NUM_THREADS" in os.environ or workers == 1:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(cores // workers, 1))}


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that processes see, as `CUDA_VISIBLE_DEVICES` names them; no context is opened on any."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # without a driver, or one that does not answer
        return []
