"""Counters of the machine and of this process: on Linux from `/proc`, because importing psutil takes 12 ms."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sacristan.configs.later import Later

__all__ = ["COUNTERS", "LinuxCounters", "PsutilCounters"]

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
