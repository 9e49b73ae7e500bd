"""The cost of a run to its machine: CPU, memory, disk, network and GPUs, sampled beside it as `system/...` metrics.

The step of a sample is the whole seconds since sampling began, which is with the run. Where a run is resumed, they
count on from its start, so that no two samples share a step. On Linux, counters come from `/proc`, because importing
psutil takes 12 ms.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sacristan.configs.packages import Later
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.provenance.gathering import load_nvml, open_gpus

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

    A source that cannot be read is logged once and left out. `elapsed_s` are the seconds of earlier sessions.
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


_SECTOR_BYTES = 512


class LinuxCounters:
    """Counters read from `/proc`, with the values that psutil returns."""

    def cpu_times(self) -> tuple[float, float]:
        """Return the busy time and the whole time of all cores, in the same unit."""
        user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_bytes().split()[1:9])
        busy = user + nice + system + sum(others)
        return busy, busy + idle + iowait

    def used_s(self) -> float:
        """Return the CPU seconds of this process, its living descendants, and those that they have waited for."""
        ticks: dict[int, int] = {}
        children: dict[int, list[int]] = {}
        for pid, parent, used in _processes():
            ticks[pid] = used
            children.setdefault(parent, []).append(pid)
        total, left = 0, [os.getpid()]
        while left:
            pid = left.pop()
            total += ticks.pop(pid, 0)
            left += children.pop(pid, ())
        return total / os.sysconf("SC_CLK_TCK")

    def memory(self) -> tuple[float, int]:
        """Return the share of the machine's memory that is taken, in percent, and the bytes of this process."""
        lines = (line.split() for line in Path("/proc/meminfo").read_bytes().splitlines())
        sizes = {words[0]: int(words[1]) for words in lines}
        total = sizes[b"MemTotal:"]
        taken = max(0, total - sizes[b"MemAvailable:"])
        resident = int(Path("/proc/self/statm").read_bytes().split()[1])
        return round(100 * taken / total, 1), resident * os.sysconf("SC_PAGE_SIZE")

    def disks(self) -> tuple[int, int] | None:
        """Return the bytes that all disks have read and written; None where none are shown."""
        try:
            rows = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
        except FileNotFoundError:  # in some containers
            return None
        # Partitions are not listed there.
        rows = [row for row in rows if os.path.exists(f"/sys/block/{row[2].replace('/', '!')}")]  # noqa: PTH110
        read, written = (sum(int(row[column]) for row in rows) for column in (5, 9))
        return (read * _SECTOR_BYTES, written * _SECTOR_BYTES) if rows else None

    def networks(self) -> dict[str, tuple[int, int]]:
        """Return the bytes that each network interface has sent and received."""
        rows = (line.rpartition(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
        return {name.strip(): (int(row[8]), int(row[0])) for name, _, text in rows if (row := text.split())}


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield pid, parent and CPU time, with that of waited-for children, of each process that is shown."""
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # it may have just ended
            handle = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            try:
                row = os.read(handle, 4096).rpartition(b")")[2].split(None, 15)
            finally:
                os.close(handle)
            yield int(name), int(row[1]), sum(map(int, row[11:15]))


class PsutilCounters:
    """The same counters from psutil, for other systems."""

    def __init__(self) -> None:
        self._psutil = Later("psutil")

    def cpu_times(self) -> tuple[float, float]:
        times = self._psutil.cpu_times()
        total = sum(times)
        return total - times.idle - getattr(times, "iowait", 0), total

    def used_s(self) -> float:
        own, total = self._psutil.Process(), 0.0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(self._psutil.Error):  # it may have just ended
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return round(total, 6)  # of the same ticks the same, in whatever order they were added

    def memory(self) -> tuple[float, int]:
        return self._psutil.virtual_memory().percent, self._psutil.Process().memory_info().rss

    def disks(self) -> tuple[int, int] | None:
        counted = self._psutil.disk_io_counters(perdisk=False)
        return None if counted is None else (counted.read_bytes, counted.write_bytes)

    def networks(self) -> dict[str, tuple[int, int]]:
        counted = self._psutil.net_io_counters(pernic=True)
        return {name: (counts.bytes_sent, counts.bytes_recv) for name, counts in counted.items()}


COUNTERS: LinuxCounters | PsutilCounters = LinuxCounters() if sys.platform == "linux" else PsutilCounters()
