"""Damage to the points of a record: it is noticed, told, and takes the block with it that it is in."""

import json
import logging
import shutil
import zlib

import numpy as np
import pytest

from sacristan.observers import read_metrics
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import POINT, POINT_BYTES, intact_points
from sacristan.observers.record.points.intact_points import (
    ENTRY_BYTES,
    blocks_in,
    damaged,
    entries_of,
    read_blocks,
    read_intact_points,
    read_metric,
)
from sacristan.observers.record.points.rewinding import held, num_missing, read_position
from sacristan.observers.record.schema import LIVE, POINTS, SUMS, MetricNames

START = 1_700_000_000.0


def record(folder, blocks=(10, 10, 10)):
    """Log points in blocks, and return the journal, which is not closed, as that of a process that is killed."""
    folder.mkdir(exist_ok=True)
    journal = Journal(folder)
    journal.points.begin(START)
    write(journal, blocks)
    return journal


def write(journal, blocks, step=0):
    for size in blocks:
        for _ in range(size):
            journal.points.live.add(journal.points.metric("loss"), step, step / 8, START + 1)
            step += 1
        journal.points.drain()


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def steps_in(folder):
    return read_metrics(folder)["loss"].steps.tolist()


@pytest.mark.parametrize("at", [0, 7, 11, 17, 23])
def test_flipped_bit_costs_its_block_and_is_told_once(tmp_path, caplog, at):
    record(tmp_path).close()
    assert steps_in(tmp_path) == list(range(30))
    flip(tmp_path / POINTS, 13 * POINT_BYTES + at, at % 8)
    assert steps_in(tmp_path) == [*range(10), *range(20, 30)]
    assert steps_in(tmp_path) == [*range(10), *range(20, 30)]
    assert caplog.messages == [f"{tmp_path / POINTS}: points 10 to 19 are damaged: their checksum differs, 10 left out"]


def test_any_part_of_a_record_is_read_without_its_damaged_blocks(tmp_path):
    record(tmp_path, (3, 1, 5, 2, 7)).close()
    flip(tmp_path / POINTS, 5 * POINT_BYTES)
    for start in range(19):
        for stop in (*range(start, 20), None):
            points, count = read_intact_points(tmp_path, start, stop)
            wanted = range(start, min(18, 18 if stop is None else stop))
            assert points["step"].tolist() == [step for step in wanted if not 4 <= step < 9]
            assert count == len(wanted)


def test_points_without_checksums_are_taken_as_they_are(tmp_path, caplog):
    record(tmp_path).close()
    (tmp_path / SUMS).unlink()  # of an earlier version
    flip(tmp_path / POINTS, 13 * POINT_BYTES + 8, 1)
    assert steps_in(tmp_path) == [*range(13), 15, *range(14, 30)]
    again = Journal(tmp_path)
    again.recall()
    again.points.begin(START)
    write(again, [5], step=30)
    flip(tmp_path / POINTS, 31 * POINT_BYTES)
    assert steps_in(tmp_path) == [*range(13), 15, *range(14, 30)]


def test_flipped_bit_in_a_checksum_costs_no_point(tmp_path, caplog):
    record(tmp_path).close()
    for at in range(3 * ENTRY_BYTES):
        flip(tmp_path / SUMS, at)
        assert steps_in(tmp_path) == list(range(30))
        flip(tmp_path / SUMS, at)
    assert not caplog.messages


def test_process_killed_between_a_block_and_its_checksum_leaves_no_damage(tmp_path, monkeypatch):
    journal = record(tmp_path / "run")
    whole = AppendFile.append

    def killed(self, data):
        if self.path.name == SUMS:
            raise KeyboardInterrupt
        return whole(self, data)

    monkeypatch.setattr(AppendFile, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        write(journal, [5], step=30)
    monkeypatch.undo()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert steps_in(tmp_path / "copy") == list(range(35))
    again = Journal(tmp_path / "copy")
    again.recall()
    again.points.begin(START)
    write(again, [5], step=35)
    again.close()
    assert steps_in(tmp_path / "copy") == list(range(40))
    assert [block[:2] for block in read_blocks(tmp_path / "copy" / SUMS)] == [(0, 10), (10, 10), (20, 10), (35, 5)]


def test_points_that_are_moved_from_a_killed_process_get_their_checksum(tmp_path):
    journal = record(tmp_path / "run")
    for step in range(30, 33):
        journal.points.live.add(journal.points.metric("loss"), step, 1.0, START)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    Journal(tmp_path / "copy").recall()
    assert not (tmp_path / "copy" / LIVE).exists()
    assert read_blocks(tmp_path / "copy" / SUMS)[-1][:2] == (30, 3)


@pytest.mark.parametrize("left", [0, 7, 10, 25])
def test_record_that_lost_its_end_goes_on_without_the_checksums_of_it(tmp_path, caplog, left):
    record(tmp_path).close()
    with (tmp_path / POINTS).open("r+b") as stream:
        stream.truncate(left * POINT_BYTES + 5)
    assert steps_in(tmp_path) == list(range(left))
    assert caplog.messages == [f"{tmp_path / POINTS}: {30 - left} points are missing at its end"]
    caplog.clear()
    again = Journal(tmp_path)
    again.recall()
    again.points.begin(START)
    write(again, [20], step=100)
    again.close()
    assert steps_in(tmp_path) == [*range(left), *range(100, 120)]
    assert not caplog.messages


def test_points_that_wait_for_the_disk_get_their_checksum_when_they_are_written(tmp_path, monkeypatch):
    journal = record(tmp_path, [5])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sacristan.observers.record.append_file.pwrite", full)
        write(journal, [5, 5], step=5)
    assert len(read_blocks(tmp_path / SUMS)) == 1
    write(journal, [5], step=15)
    assert [block[:2] for block in read_blocks(tmp_path / SUMS)] == [(0, 5), (5, 15)]
    flip(tmp_path / POINTS, 19 * POINT_BYTES)
    assert steps_in(tmp_path) == list(range(5))


def test_rewinding_leaves_damaged_points_out_and_says_how_many_are_missing(tmp_path):
    journal = record(tmp_path)
    position = read_position(journal.folder)
    write(journal, [10], step=30)
    journal.close()
    flip(tmp_path / POINTS, 25 * POINT_BYTES)
    assert num_missing(held(tmp_path, position), position) == 10
    again = Journal(tmp_path)
    again.recall()
    assert again.points.summary["loss"]["count"] == 30
    assert again.rewind(position)["metrics"] == {"loss": [20, 19]}
    assert again.points.num_damaged() == 0
    assert steps_in(tmp_path) == list(range(20))
    assert [block[:2] for block in read_blocks(tmp_path / SUMS)] == [(0, 20)]


def test_reader_in_the_middle_of_rewinding_tells_of_no_damage(tmp_path, caplog, monkeypatch):
    journal = record(tmp_path)
    position = read_position(journal.folder)
    write(journal, [30], step=30)
    read = intact_points.read_blocks

    def slow(*args):
        found = read(*args)
        monkeypatch.setattr(intact_points, "read_blocks", read)
        journal.rewind({"metrics": {"loss": [15, 14]}, "media": position["media"]})
        return found

    monkeypatch.setattr(intact_points, "read_blocks", slow)
    assert steps_in(tmp_path) == list(range(15))
    assert not caplog.messages


def test_large_blocks_have_several_checksums(monkeypatch):
    monkeypatch.setattr(intact_points, "_MAX_POINTS", 4)
    points = np.arange(10 * 24, dtype=np.uint8).view(POINT)
    blocks = blocks_in(entries_of(points.tobytes(), 100))
    assert [block[:2] for block in blocks] == [(100, 4), (104, 4), (108, 2)]
    assert blocks[0][2] == zlib.crc32(points[:4].tobytes())
    assert damaged(blocks, points, 100) == []
    points["value"][5] = 0
    assert damaged(blocks, points, 100) == [(104, 108)]


def test_damaged_id_of_a_metric_is_not_counted_on_from(tmp_path, caplog):
    record(tmp_path).close()
    flip(tmp_path / POINTS, 3, 7)  # metric 2**31
    with caplog.at_level(logging.ERROR):
        again = Journal(tmp_path)
        again.recall()
        again.points.begin(START)
        assert again.points.metric("other").tag == 2
        again.close()
    assert json.loads((tmp_path / "metrics.names.jsonl").read_text().splitlines()[-1]) == {"id": 1, "name": "other"}


def test_many_metrics_read_one_by_one_are_those_read_at_once(tmp_path, monkeypatch):
    for name, number in (("_FEW_POINTS", 8), ("_MANY_READS", 2), ("_SPARSE", 2)):
        monkeypatch.setattr(intact_points, name, number)
    journal = Journal(tmp_path)
    for step in range(6):
        for name in "abcdef":
            steps = [step / 2 if name == "b" and step % 2 else step]
            journal.points.add_batch(name, steps, [step * ord(name)], np.array([step]))
    journal.close()
    names, sizes, read = MetricNames(tmp_path), [], intact_points.pread
    monkeypatch.setattr(intact_points, "pread", lambda *args: sizes.append(args[1]) or read(*args))

    def check(version):
        found = read_metrics(tmp_path)
        for name in "abcdef":
            series = read_metric(tmp_path, name, names, version)
            for field in ("steps", "values", "times"):
                np.testing.assert_array_equal(getattr(series, field), getattr(found[name], field))
                assert getattr(series, field).dtype == getattr(found[name], field).dtype
                assert getattr(series, field).flags.writeable

    check(1)
    assert sizes == [POINT_BYTES] * 6 * 4  # of the last four, each point by itself
    flip(tmp_path / POINTS, 5 * POINT_BYTES)
    check(2)
    check(None)
    assert len(sizes) == 6 * 4
