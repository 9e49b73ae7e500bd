import math
import multiprocessing
import subprocess
import sys
import threading
import time
import types

import psutil
import pytest

from sacristan.experiments import Experiment
from sacristan.experiments.running import system_metrics
from sacristan.experiments.running.system_metrics import LinuxCounters, PsutilCounters, Sampler, check_interval

ALWAYS = {
    "cpu_percent",
    "process_cpu_percent",
    "memory_percent",
    "process_memory_bytes",
    "disk_free_bytes",
}
HOUR_S = 3600.0
BY_EACH = pytest.mark.parametrize(
    "counters",
    [
        pytest.param(LinuxCounters(), marks=pytest.mark.skipif(sys.platform != "linux", reason="no /proc"), id="proc"),
        pytest.param(PsutilCounters(), id="psutil"),
    ],
)


class Log:
    """Keeps what is logged, and tells when so many values of a metric have come."""

    def __init__(self):
        self.points = {}
        self._new = threading.Condition()

    def __call__(self, name, value, step):
        with self._new:
            self.points.setdefault(name, []).append((step, value))
            self._new.notify_all()

    def wait_for(self, name, count):
        with self._new:
            assert self._new.wait_for(lambda: len(self.points.get(name, ())) >= count, 60), self.points


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def sample(log, tmp_path, nvml):
    """Return what starts a sampler, which is stopped at the end."""
    started = []

    def start(interval_s, nvml=nvml):
        started.append(Sampler(log, tmp_path, interval_s, nvml))
        started[-1].start()
        return started[-1]

    yield start
    for sampler in started:
        sampler.stop()


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "sacristan-system-metrics"]


# On this machine, for real


def test_sampler_measures_this_machine(log, sample):
    sample(0.25)
    log.wait_for("system/disk_free_bytes", 2)
    assert {f"system/{name}" for name in ALWAYS} <= log.points.keys()
    values = {name: [value for _, value in points] for name, points in log.points.items()}
    assert all(0 <= value <= 100 for value in values["system/cpu_percent"] + values["system/memory_percent"])
    assert all(0 <= value < math.inf for series in values.values() for value in series)
    assert values["system/process_memory_bytes"][0] == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
    assert all(type(step) is int for points in log.points.values() for step, _ in points)


# Ends with the tests, whose end closes its stdin.
BURNS = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True: pass
"""


@pytest.mark.slow
@BY_EACH
def test_cpu_of_a_child_counts_while_it_lives_and_once_it_was_waited_for(counters):
    child = subprocess.Popen([sys.executable, "-c", BURNS], stdin=subprocess.PIPE)
    try:
        used = psutil.Process(child.pid).cpu_times
        while used().user < 0.5:
            pass
        own = psutil.Process().cpu_times()
        living = counters.used_s()
        assert living >= own.user + own.system + own.children_user + own.children_system + 0.5
    finally:
        child.kill()
        child.communicate()
    assert counters.used_s() >= living


# A child that waits for its own child, which ends with its stdin.
USED_BY_A_GRANDCHILD = """
import os, time
if os.fork():
    os.wait()
    os._exit(0)
while time.process_time() < 0.1: pass
print(os.getpid(), flush=True)
input()
"""


@BY_EACH
def test_cpu_of_a_grandchild_counts(counters):
    command = [sys.executable, "-S", "-c", USED_BY_A_GRANDCHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        used = psutil.Process(int(child.stdout.readline())).cpu_times()
        own = psutil.Process().cpu_times()
        before = own.user + own.system + own.children_user + own.children_system
        assert counters.used_s() >= round(before + used.user + used.system, 6)
        child.communicate()


def test_cpu_over_next_to_no_time_is_left_out():
    cpu = system_metrics._Cpu()
    cpu._at += HOUR_S
    assert cpu() == {}
    cpu._at -= HOUR_S + 1
    assert set(cpu()) == {"cpu_percent", "process_cpu_percent"}


@BY_EACH
def test_share_of_all_cores_grows_with_what_burns_on_them(counters):
    busy, total = counters.cpu_times()
    deadline = time.thread_time() + 0.1
    while time.thread_time() < deadline:
        pass
    later, total_later = counters.cpu_times()
    assert 0 < later - busy <= total_later - total + 1e-6  # differences of floats


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_proc_and_psutil_count_the_same():
    ours, theirs = LinuxCounters(), PsutilCounters()
    (percent, own), (their_percent, their_own) = ours.memory(), theirs.memory()
    assert percent == pytest.approx(their_percent, abs=5)
    assert own == pytest.approx(their_own, rel=0.2)
    # What others do meanwhile only adds to it.
    before, found, after = theirs.disks(), ours.disks(), theirs.disks()
    assert (before is None) == (found is None)
    assert found is None or (before <= found <= after)
    before, found, after = theirs.networks(), ours.networks(), theirs.networks()
    assert before.keys() <= found.keys() | after.keys()
    assert all(before[name] <= found[name] <= after[name] for name in before.keys() & found.keys() & after.keys())


# Its thread


def test_stop_does_not_wait_for_the_interval_and_takes_a_last_sample(log, sample):
    sampler = sample(HOUR_S)
    assert len(alive()) == 1
    sampler.stop()
    assert alive() == []
    assert len(log.points["system/memory_percent"]) == 1


def test_stop_within_the_second_of_the_last_sample_takes_none_again(log, tmp_path, nvml, monkeypatch):
    monkeypatch.setattr(system_metrics, "time", types.SimpleNamespace(monotonic=lambda: 7.0))
    sampler = Sampler(log, tmp_path, HOUR_S, nvml)
    sampler._last_step = 0
    sampler._stopping.set()
    sampler.start()
    sampler.stop()
    assert log.points == {}


def test_source_that_hangs_is_left_behind_and_says_nothing_later(log, sample, nvml):
    hangs, released = threading.Event(), threading.Event()

    def hang(handle):
        hangs.set()
        released.wait()
        return types.SimpleNamespace(gpu=1)

    nvml.nvmlDeviceGetUtilizationRates = hang
    sampler = sample(0.01)
    hangs.wait()
    sampler.stop()
    assert len(alive()) == 1
    released.set()
    sampler._thread.join()
    assert not [name for name in log.points if "gpu" in name]


def _count_threads(queue):
    psutil.cpu_percent()
    queue.put(len(alive()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_forked_process_has_no_sampler_and_ends(log, sample):
    sample(0.001)
    log.wait_for("system/memory_percent", 1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_count_threads, args=(queue,)) for _ in range(8)]
    for child in children:
        child.start()
    assert [queue.get(timeout=60) for _ in children] == [0] * 8
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8


# Errors


def test_source_that_fails_is_said_once_and_the_rest_goes_on(log, sample, caplog, monkeypatch):
    def fail(folder):
        raise OSError("the disk is gone")

    monkeypatch.setattr(system_metrics.shutil, "disk_usage", fail)
    sampler = sample(0.02)
    log.wait_for("system/memory_percent", 3)
    sampler.stop()
    assert "system/disk_free_bytes" not in log.points
    said = [message for message in caplog.messages if message.startswith("system metrics")]
    assert said == ["system metrics: free disk cannot be read (OSError: the disk is gone); the others continue"]


def test_source_that_cannot_be_opened_is_said_once_and_the_rest_goes_on(log, sample, caplog, nvml):
    nvml.broken["nvmlInit"] = nvml.NVMLError("Driver/library version mismatch")
    sampler = sample(0.02)
    log.wait_for("system/memory_percent", 3)
    sampler.stop()
    assert [message for message in caplog.messages if "gpus cannot be read" in message] == [
        "system metrics: gpus cannot be read (NVMLError: Driver/library version mismatch); the others continue"
    ]


def test_container_without_disks_and_network_has_no_such_series(monkeypatch):
    bare = types.SimpleNamespace(disks=lambda: None, networks=lambda: {"lo": (9, 9)})
    monkeypatch.setattr(system_metrics, "COUNTERS", bare)
    assert system_metrics._disk() == {}
    assert system_metrics._network() == {}


def test_growth_counts_from_the_start_and_survives_devices_that_come_and_go():
    readings = iter(
        [
            {"a": {"sent": 1000}},
            {"a": {"sent": 1010}, "b": {"sent": 500}},
            {"b": {"sent": 507}},
            {"a": {"sent": 3}, "b": {"sent": 507}},
            {"a": {"sent": 5}, "b": {"sent": 507}},
        ]
    )
    growth = system_metrics._Growth(lambda: next(readings))
    assert [growth()["sent"] for _ in range(4)] == [10, 17, 17, 19]


# GPUs, by a stand-in for NVML


def test_every_gpu_is_sampled_and_nvml_is_shut_down(log, sample, nvml):
    sampler = sample(0.02)
    log.wait_for("system/gpu1_memory_bytes", 2)
    assert nvml.num_open == 1
    sampler.stop()
    assert nvml.num_open == 0
    found = {name: points[0][1] for name, points in log.points.items() if "gpu" in name}
    assert found == {
        "system/gpu0_utilization_percent": 70,
        "system/gpu0_memory_bytes": 2**20,
        "system/gpu1_utilization_percent": 71,
        "system/gpu1_memory_bytes": 2 * 2**20,
    }


def test_gpu_that_does_not_tell_its_use_still_tells_its_memory(log, sample, nvml):
    nvml.unsupported.add(("nvmlDeviceGetUtilizationRates", 0))
    sample(0.02)
    log.wait_for("system/gpu1_memory_bytes", 1)
    assert "system/gpu0_utilization_percent" not in log.points
    assert {"system/gpu0_memory_bytes", "system/gpu1_utilization_percent"} <= log.points.keys()


def test_machine_without_a_driver_has_no_gpu_series_and_says_nothing(log, sample, nvml, caplog):
    nvml.broken["nvmlInit"] = nvml.NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    sample(0.02)
    log.wait_for("system/memory_percent", 2)
    assert not [name for name in log.points if "gpu" in name]
    assert caplog.messages == []


# The interval


@pytest.mark.parametrize("interval_s", [None, 1, 2.5])
def test_check_interval_takes_seconds_and_none(interval_s):
    assert check_interval(interval_s) == interval_s


@pytest.mark.parametrize("interval_s", [0, 0.99, -1.0, True, "15", math.inf, math.nan])
def test_check_interval_refuses_what_is_no_time(interval_s):
    with pytest.raises(ValueError, match=rf"system_metrics_s: got {interval_s!r}, expected at least 1"):
        check_interval(interval_s)


def test_experiment_refuses_an_interval_below_a_second():
    with pytest.raises(ValueError, match=r"system_metrics_s: got 0\.5, expected at least 1"):
        Experiment("refused", system_metrics_s=0.5)
