"""The cost of a run to its machine: CPU, memory, disk, network and GPUs, sampled beside it as `system/...` metrics.

The step of a sample is the whole seconds since sampling began, which is with the run. Where a run is resumed, they
count on from its start, so that no two samples share a step.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sacristan.experiments.running.machine_counters import COUNTERS
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.provenance.machine import load_nvml, open_gpus

__all__ = ["Sampler", "check_interval"]

_log = logging.getLogger(__name__)

# The first sample comes so soon after the start.
_FIRST_S = 1.0
# The CPU's clock ticks every 10 ms: over less than this a share of its time means nothing.
_SHORTEST_S = 0.2
# How long the end of a run waits for the last sample.
_STOP_BOUND_S = 1.0
_LOOPBACK = ("lo", "lo0", "Loopback")

Reader = Callable[[], Mapping[str, float]]


def check_interval(interval_s: float | None) -> float | None:
    """Return the interval of system metrics after checking that it is at least a second; None for no samples."""
    number = isinstance(interval_s, int | float) and not isinstance(interval_s, bool)
    if interval_s is None or (number and 1 <= interval_s < math.inf):
        return interval_s
    raise ConfigError(
        f"system_metrics_s: got {interval_s!r}, expected at least 1, in seconds, because a step of these metrics is a "
        "second; write for example 15.0, or None to turn them off"
    )


class Sampler:
    """Samples in a thread of its own: after a second, then at every multiple of the interval, and when it is stopped.

    A source that cannot be read is logged once and left out. `log` takes a metric's name, value and step;
    `system/disk_free_bytes` measures the disk of `folder`; `elapsed_s` are the seconds of the run's earlier sessions.
    """

    def __init__(
        self,
        log: Callable[[str, float, int], Any],
        folder: str | Path,
        interval_s: float,
        nvml: Any = None,
        elapsed_s: float = 0.0,
    ) -> None:
        self._nvml = nvml or load_nvml()
        self._log = log
        self._folder = folder
        self._interval_s = interval_s
        self._elapsed_s = elapsed_s
        self._readers: dict[str, Reader] = {}
        self._failed: set[str] = set()
        self._last_step: int | None = None
        self._stopping = threading.Event()
        self._abandoned = False
        # A daemon, because a driver that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name="sacristan-system-metrics", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample, and end the thread; one that hangs is abandoned after a second."""
        self._stopping.set()
        self._thread.join(_STOP_BOUND_S)
        if self._thread.is_alive():
            self._abandoned = True
            _log.info("system metrics: the last sample did not come within %s s, and is left out", _STOP_BOUND_S)

    def _run(self) -> None:
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            self._open(stack)
            due = min(_FIRST_S, self._interval_s)
            while not self._stopping.wait(min(max(0.0, began + due - time.monotonic()), threading.TIMEOUT_MAX)):
                elapsed = time.monotonic() - began
                self._sample(round(self._elapsed_s + elapsed))
                due = (max(elapsed, due) // self._interval_s + 1) * self._interval_s
            step = round(self._elapsed_s + time.monotonic() - began)
            if step != self._last_step:
                self._sample(step)

    def _open(self, stack: contextlib.ExitStack) -> None:
        """Create a reader for each source; counters start here."""
        sources: dict[str, Callable[[], Reader]] = {
            "cpu": _Cpu,
            "memory": lambda: _memory,
            "disk": lambda: _Growth(_disk),
            "free disk": lambda: functools.partial(_free, self._folder),
            "network": lambda: _Growth(_network),
        }
        for name, make in sources.items():
            with self._guard(name):
                self._readers[name] = make()
        with self._guard("gpus"):
            for index, handle in enumerate(stack.enter_context(open_gpus(self._nvml))):
                self._readers[f"gpu{index}"] = functools.partial(_gpu, self._nvml, handle, f"gpu{index}")

    def _sample(self, step: int) -> None:
        self._last_step = step
        for name, read in self._readers.items():
            values: Mapping[str, float] = {}
            with self._guard(name):
                values = read()
            if self._abandoned:
                return
            for key, value in values.items():
                self._log(f"system/{key}", value, step)

    @contextlib.contextmanager
    def _guard(self, name: str) -> Any:
        """Isolate the errors of a source; the first of each source is logged."""
        try:
            yield
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                reason = f"{type(error).__name__}: {error}"
                _log.warning("system metrics: %s cannot be read (%s); the others continue", name, reason)


class _Cpu:
    """Shares of CPU time since the last reading: of all cores, and of one core by this process and its descendants."""

    def __init__(self) -> None:
        self._at, self._used_s, self._times = time.monotonic(), COUNTERS.used_s(), COUNTERS.cpu_times()

    def __call__(self) -> dict[str, float]:
        at = time.monotonic()
        if at - self._at < _SHORTEST_S:
            return {}
        used_s, (busy, total) = COUNTERS.used_s(), COUNTERS.cpu_times()
        # They fall where a descendant ends without having been waited for, or a core is taken away.
        own = max(0.0, used_s - self._used_s) / (at - self._at)
        of_all = max(0.0, busy - self._times[0]) / max(1e-9, total - self._times[1])
        self._at, self._used_s, self._times = at, used_s, (busy, total)
        return {"cpu_percent": round(100 * min(1.0, of_all), 1), "process_cpu_percent": 100 * own}


class _Growth:
    """Growth of counters since the start, by device, so that a device that comes or goes spoils nothing."""

    def __init__(self, read: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        self._read = read
        self._last = read()
        self._grown: dict[str, int] = {}

    def __call__(self) -> dict[str, float]:
        now = self._read()
        for device, counters in now.items():
            for name, count in counters.items():
                before = self._last.get(device, counters)[name]
                self._grown[name] = self._grown.get(name, 0) + max(0, count - before)
        self._last = now
        return dict(self._grown)


def _memory() -> dict[str, float]:
    percent, own = COUNTERS.memory()
    return {"memory_percent": percent, "process_memory_bytes": own}


def _disk() -> dict[str, dict[str, int]]:
    counted = COUNTERS.disks()
    return {} if counted is None else {"all": {"disk_read_bytes": counted[0], "disk_write_bytes": counted[1]}}


def _free(folder: str | Path) -> dict[str, float]:
    return {"disk_free_bytes": shutil.disk_usage(folder).free}


def _network() -> dict[str, dict[str, int]]:
    return {
        name: {"network_sent_bytes": sent, "network_received_bytes": received}
        for name, (sent, received) in COUNTERS.networks().items()
        if not name.startswith(_LOOPBACK)
    }


def _gpu(nvml: Any, handle: Any, name: str) -> dict[str, float]:
    """Return use and memory of one GPU, without values it does not report, such as the use of a partitioned one."""
    samples: dict[str, float] = {}
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        samples[f"{name}_utilization_percent"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        samples[f"{name}_memory_bytes"] = nvml.nvmlDeviceGetMemoryInfo(handle).used
    return samples
