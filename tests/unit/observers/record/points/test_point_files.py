"""`PointFiles`: points that are logged are in the record at once, each once, whatever becomes of the process."""

import contextlib
import json
import logging
import shutil
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacristan.observers import read_metrics
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import POINT, POINT_BYTES, SLOT, SLOT_BYTES, intact_points, live_points
from sacristan.observers.record.points.intact_points import read_all_points, read_live, read_metric
from sacristan.observers.record.points.live_points import Half
from sacristan.observers.record.schema import LIVE, NAMES, POINTS

START = 1_700_000_000.0


def begun(folder, half_points=50):
    folder.mkdir(exist_ok=True)
    journal = Journal(folder)
    journal.points.begin(START, half_points)
    return journal


def log(points, name, step, value):
    metric = points.metric(name, float_steps=isinstance(step, float))
    while not points.live.add_any(metric, step, value, START + 1.5):
        points.drain()


def steps_in(folder, name="loss"):
    found = read_metrics(folder).get(name)
    return [] if found is None else found.steps.tolist()


def test_point_is_read_as_soon_as_it_is_logged(tmp_path):
    points = begun(tmp_path).points
    log(points, "loss", 3, 0.5)
    log(points, "loss", 0.25, float("nan"))
    log(points, "other", -(2**63), 1e-300)
    found = read_metrics(tmp_path)
    assert found["loss"].steps.tolist() == [3, 0.25]
    assert found["loss"].values[0] == 0.5
    assert np.isnan(found["loss"].values[1])
    assert found["loss"].times.tolist() == [1.5, 1.5]
    assert (found["other"].steps.tolist(), found["other"].values.tolist()) == ([-(2**63)], [1e-300])
    assert (tmp_path / POINTS).stat().st_size == 0


@pytest.mark.parametrize("piece", [7, 2**20])
def test_one_metric_is_read_as_all_are_piece_by_piece(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(intact_points, "_PIECE", piece)
    points = begun(tmp_path).points
    assert read_metric(tmp_path, "loss") is None
    for step in range(120):  # of which some are in memory yet
        log(points, "loss", step if step % 3 else step + 0.5, step / 7)
        log(points, "other", step, 1.0)
    assert 0 < (tmp_path / POINTS).stat().st_size < 240 * POINT_BYTES
    for name, expected in read_metrics(tmp_path).items():
        found = read_metric(tmp_path, name)
        np.testing.assert_array_equal(found.to_pandas(), expected.to_pandas())
        assert list(found.to_pandas().columns) == ["step", "value", "time"]
    (tmp_path / POINTS).unlink()
    assert read_metric(tmp_path, "nope") is None
    read_metric(tmp_path, "loss")


def test_points_move_to_the_journal_in_24_bytes_each_and_the_file_goes_at_the_end(tmp_path):
    journal = begun(tmp_path)
    for step in range(30):
        log(journal.points, "loss", step, step)
    journal.points.keeps_new = True
    journal.points.drain()
    assert np.frombuffer(journal.points.take_new(), POINT)["value"].tolist() == list(range(30))
    assert journal.points.take_new() == b""
    assert (tmp_path / POINTS).stat().st_size == 30 * POINT_BYTES
    log(journal.points, "loss", 30, 30)
    assert steps_in(tmp_path) == list(range(31))
    journal.close()
    assert not (tmp_path / LIVE).exists()
    assert steps_in(tmp_path) == list(range(31))
    assert journal.points.summary["loss"]["count"] == 31
    assert not journal.points.live.add_any(journal.points.metric("loss"), 31, 1.0, START)


@pytest.mark.parametrize(
    "place",
    [(AppendFile, "append"), (Half, "clear"), pytest.param((Half, "set_base"), marks=pytest.mark.slow), (Half, "open")],
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=6))
def test_reader_sees_every_point_once_at_any_step_of_a_heartbeat(tmp_path, place, turns):
    """And so does who takes the record over from a process that was killed there."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    logged = 0

    def look():
        assert steps_in(folder) == list(range(logged))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        again = Journal(copy)
        again.recall()
        assert not (copy / LIVE).exists()
        assert steps_in(copy) == list(range(logged))
        assert sum(row["count"] for row in again.points.summary.values()) == logged
        again.close()

    with pytest.MonkeyPatch.context() as patch:
        holder, name = place
        original = getattr(holder, name)

        def watched(self, *args):
            if folder.exists() and getattr(self, "path", folder).is_relative_to(folder):
                patch.setattr(holder, name, original)
                look()
                original(self, *args)
                look()
                patch.setattr(holder, name, watched)
                return None
            return original(self, *args)

        points = begun(folder, half_points=8).points
        patch.setattr(holder, name, watched)
        for count, num_holes in turns:
            for _ in range(num_holes):
                with contextlib.suppress(struct.error):  # a slot that is taken, and never written
                    points.live.add(points.metric("loss"), 2**70, 1.0, START)
            for _ in range(count):
                log(points, "loss", logged, logged)
                logged += 1
            points.drain()
        patch.setattr(holder, name, original)
        look()


def test_point_that_was_half_written_is_none_and_hides_no_other(tmp_path):
    points = begun(tmp_path).points
    for step in range(3):
        log(points, "loss", step, step)
    # The process is killed in the middle of the second one: its tag, which comes last, is not there yet.
    data = np.memmap(tmp_path / LIVE, np.uint8)
    slots = data[24 : 24 + 3 * SLOT_BYTES].view(SLOT)
    slots["tag"][1] = 0
    assert steps_in(tmp_path) == [0, 2]
    # A page of an earlier filling, which a power cut has left.
    slots["tag"][2] += 1 << 24
    assert steps_in(tmp_path) == [0]


def test_value_that_comes_later_keeps_its_place(tmp_path):
    points = begun(tmp_path).points
    log(points, "loss", 0, lambda: 0.5)
    log(points, "loss", 1, 1.5)
    log(points, "loss", 2.5, lambda: 2.5)
    assert read_metrics(tmp_path)["loss"].values.tolist() == [1.5]
    assert points.position() == {"loss": [3, 2.5]}
    points.drain()
    assert read_metrics(tmp_path)["loss"].values.tolist() == [0.5, 1.5, 2.5]


def test_value_that_cannot_be_fetched_is_said_and_counted_and_takes_no_other_with_it(tmp_path, caplog):
    journal = begun(tmp_path)

    def lost():
        raise RuntimeError("the device is gone")

    log(journal.points, "loss", 0, 0.5)
    log(journal.points, "loss", 1, lost)
    log(journal.points, "loss", 2, 2.5)
    journal.close()
    assert steps_in(tmp_path) == [0, 2]
    assert journal.num_lost_bytes == POINT_BYTES
    assert "the device is gone" in caplog.text


def test_more_points_than_there_is_room_for_are_written_by_who_logs_them(tmp_path):
    journal = begun(tmp_path, half_points=16)
    start = threading.Barrier(4)

    def fill(number):
        start.wait()
        for step in range(1000):
            log(journal.points, f"loss{number}", step, step)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert steps_in(tmp_path, f"loss{number}") == list(range(1000))
    assert journal.points.position() == {f"loss{number}": [1000, 999] for number in range(4)}
    journal.close()
    assert len(read_all_points(tmp_path)) == 4000


def test_reader_of_a_run_that_goes_on_never_misses_a_point(tmp_path):
    points = begun(tmp_path, half_points=64).points
    num_reads, logged = threading.Semaphore(0), [0]

    def fill():
        # A read each time it has come that far, so that they are spread over the run.
        for step in range(10_000):
            log(points, "loss", step, step)
            logged[0] = step + 1
            if step % 7 == 0:
                points.drain()
            if step % 100 == 0:
                num_reads.acquire()

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    while thread.is_alive():
        num_reads.release()
        before = logged[0]
        steps = steps_in(tmp_path)
        assert steps == list(range(len(steps)))
        assert len(steps) >= before
    assert logged[0] == 10_000


def test_automatic_steps_of_several_threads_are_each_taken_once(tmp_path):
    points = begun(tmp_path, half_points=40_000).points
    metric = points.metric("loss")
    start = threading.Barrier(4)

    def fill():
        start.wait()
        for _ in range(10_000):
            assert points.live.add(metric, None, 1.0, START)

    threads = [threading.Thread(target=fill) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    # A thread may be switched after it took its step and before it writes the point: the next thread's comes first.
    assert sorted(steps_in(tmp_path)) == list(range(40_000))
    assert metric.count == 40_000


def test_drain_that_an_exception_breaks_off_is_made_good_by_the_next(tmp_path, monkeypatch):
    journal = begun(tmp_path)
    for step in range(5):
        log(journal.points, "loss", step, step)

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Half, "clear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.points.drain()
    log(journal.points, "loss", 5, 5)
    assert steps_in(tmp_path) == list(range(6))
    journal.close()
    assert steps_in(tmp_path) == list(range(6))
    assert journal.points.summary["loss"]["count"] == 6


def test_name_is_written_before_its_first_point(tmp_path):
    points = begun(tmp_path).points
    points.metric("loss")
    assert b'"loss"' in (tmp_path / NAMES).read_bytes()
    assert len(read_all_points(tmp_path)) == 0


def test_old_file_is_taken_in_once_and_a_torn_tail_goes(tmp_path):
    points = begun(tmp_path).points
    for step in range(7):
        log(points, "loss", step, step)
        if step == 3:
            points.drain()
    with (tmp_path / POINTS).open("ab") as stream:
        stream.write(b"torn")
    assert [len(found) for _, found in read_live(tmp_path)] == [3]
    again = Journal(tmp_path)
    again.recover()
    assert json.loads((tmp_path / "summary.json").read_text())["loss"]["count"] == 7
    again.recover()
    assert (tmp_path / POINTS).stat().st_size == 7 * POINT_BYTES
    assert steps_in(tmp_path) == list(range(7))
    again.recall()
    assert again.points.position() == {"loss": [7, 6]}


def test_rewound_log_counts_what_is_not_written_yet(tmp_path):
    journal = begun(tmp_path)
    for step in range(10):
        log(journal.points, "loss", step, step)
    position = {"metrics": {"loss": [4, 3]}, "media": {}}
    assert journal.rewind(position) == position
    log(journal.points, "loss", 4, 44)
    log(journal.points, "late", 0, 1)
    assert journal.points.position() == {"loss": [5, 4], "late": [1, 0]}
    assert read_metrics(tmp_path)["loss"].values.tolist() == [0, 1, 2, 3, 44]
    journal.rewind({"metrics": {}, "media": {}})
    assert read_metrics(tmp_path) == {}
    log(journal.points, "late", 0, 2)
    assert read_metrics(tmp_path)["late"].values.tolist() == [2]


def test_file_system_that_is_not_known_to_keep_what_is_mapped_is_said_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(live_points, "_SAFE_FILE_SYSTEMS", frozenset())
    with caplog.at_level(logging.WARNING):
        journal = begun(tmp_path)
        log(journal.points, "loss", 0, 1)
        assert steps_in(tmp_path) == []
        journal.points.drain()
    assert steps_in(tmp_path) == [0]
    assert not (tmp_path / LIVE).exists()
    [record] = caplog.records
    assert "those since the last heartbeat are lost" in record.message
    journal.close()


def test_file_that_is_created_again_on_such_a_file_system_is_said_too(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    journal = begun(folder)
    log(journal.points, "loss", 0, 1)
    monkeypatch.setattr(live_points, "_SAFE_FILE_SYSTEMS", frozenset())
    shutil.rmtree(folder)
    folder.mkdir()
    with caplog.at_level(logging.WARNING):
        journal.recreate(folder)
    assert "those since the last heartbeat are lost" in caplog.text
    journal.close()
    assert steps_in(folder) == [0]


def test_points_that_are_being_moved_count_once(tmp_path):
    journal = begun(tmp_path)
    for step in range(3):
        log(journal.points, "loss", step, 0.5)
    before = (tmp_path / LIVE).read_bytes()
    journal.points.drain()
    log(journal.points, "loss", 3, 0.5)
    journal.close()
    (tmp_path / LIVE).write_bytes(before)  # as one who reads it first sees it
    assert read_metric(tmp_path, "loss").steps.tolist() == steps_in(tmp_path) == [0, 1, 2, 3]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from sacristan.observers.record.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))   # as on a disk with so little room
journal = Journal(Path({folder!r}))
journal.points.begin(0.0)
metric = journal.points.metric("loss")
for step in range(100):
    journal.points.live.add(metric, step, 0.5, 1.0)
journal.close()
"""


def test_disk_without_room_for_the_file_is_said_and_ends_nothing(tmp_path, request):
    script = FULL_DISK.format(root=str(request.config.rootpath), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("File too large") == 1
    assert steps_in(tmp_path) == list(range(100))


def test_process_killed_while_threads_log_leaves_every_point(tmp_path, request):
    script = f"""
import mmap, os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, {str(request.config.rootpath)!r})
from sacristan.observers.record.journal import Journal
journal = Journal(Path({str(tmp_path)!r}))
journal.points.begin(0.0, 500)
with open({str(tmp_path / "counts")!r}, "wb+") as stream:
    stream.truncate(32)
    counts = memoryview(mmap.mmap(stream.fileno(), 32)).cast("Q")
def fill(number):
    metric = journal.points.metric(f"loss{{number}}")
    step = 0
    while True:
        while not journal.points.live.add(metric, step, step / 7, 1.0):
            journal.points.drain()
        step += 1
        counts[number] = step
        if number == 0 and step >= 20_000 and all(counts):
            os.kill(os.getpid(), signal.SIGKILL)
for number in range(4):
    threading.Thread(target=fill, args=(number,), daemon=True).start()
threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    counts = np.fromfile(tmp_path / "counts", np.uint64).tolist()
    assert counts[0] >= 20_000
    for number, count in enumerate(counts):
        steps = steps_in(tmp_path, f"loss{number}")
        assert steps == list(range(len(steps)))
        assert count <= len(steps) <= count + 1
        assert read_metrics(tmp_path)[f"loss{number}"].values.tolist() == [step / 7 for step in steps]
    assert (tmp_path / LIVE).stat().st_size == 2 * 24 * 501
