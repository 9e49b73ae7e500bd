"""A disk or a quota that fills: what does not get to the disk is written when there is room, or counted and told."""

import contextlib
import importlib
import json
import logging
import re
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver, Text, read_media, read_metrics
from sacristan.observers.record.identity import read_lease, true_status
from sacristan.observers.record.points.intact_points import read_points

# More than there is room for in `metrics.live`, which is given back before anything is lost.
MANY = 140_000


def quota_of(bytes_a_file):
    """Let no file grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    return SimpleNamespace(
        fill=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, before[1])),
        empty=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before),
    )


@pytest.fixture
def quota(tmp_path):
    """A quota, in a folder; a file may not grow beyond 100 kB."""
    limit = quota_of(100_000)
    yield SimpleNamespace(folder=tmp_path, fill=limit.fill, empty=limit.empty)
    limit.empty()


@pytest.fixture
def disk(small_disk):
    """A disk of 6 MiB of its own."""
    filler = small_disk / "filler"

    def fill():
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.write(bytes(4096)):
                pass

    return SimpleNamespace(folder=small_disk, fill=fill, empty=filler.unlink)


@pytest.fixture(params=["disk", "quota"])
def small(request):
    """A folder on something that can be filled, and emptied again: `folder`, `fill()`, `empty()`."""
    return request.getfixturevalue(request.param)


def record(main, *observers, base_dir=Path(__file__).parent, **options):
    ex = Experiment("recorded", base_dir=base_dir, system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys", "--beat-interval": 0.05}, **options)


def load(folder, name="run.json"):
    return json.loads((folder / name).read_text())


@pytest.mark.sampled(1)
def test_points_that_are_not_written_to_the_end_are_counted_and_told(small, caplog):
    def main(_run):
        for step in range(100):
            _run.log_scalar("before", float(step), step)
        _run.flush()
        small.fill()
        for step in range(MANY):
            _run.log_scalar("after", float(step), step)
        _run.log_scalar("late", 0.5, 0)

    with caplog.at_level(logging.WARNING):
        record(main, FileObserver(small.folder / "runs"))
    folder = small.folder / "runs" / "1"
    run, kept = load(folder), read_metrics(folder)
    assert kept["before"].steps.tolist() == list(range(100))
    num_kept = sum(len(series) for series in kept.values())
    num_lost = 100 + MANY + 1 - num_kept
    assert num_lost > 0
    assert (run["status"], run["lost_points"]) == ("COMPLETED_WITH_LOSS", num_lost)
    assert run["lost_bytes"] >= 24 * num_lost
    assert sum(row["count"] for row in load(folder, "summary.json").values()) == num_kept
    assert caplog.text.count("cannot be written") == 1
    assert f"{num_lost} points and 0 media could not be written and are lost" in caplog.text
    assert caplog.messages[-1].endswith(f"runs/1, but not whole: it lacks {num_lost} points")
    assert not list(folder.glob("metrics.live"))


def test_points_are_written_when_there_is_room_again(small, caplog):
    read = []

    def main(_run):
        small.fill()
        for step in range(10_000):
            _run.log_scalar("loss", float(step), step)
        _run.log_media("note", Text("a"))
        _run.flush()
        small.empty()
        _run.flush()
        read.extend([len(read_metrics(_run.folder)["loss"]), len(read_media(_run.folder))])

    with caplog.at_level(logging.WARNING):
        record(main, FileObserver(small.folder / "runs"))
    assert read == [10_000, 1]
    run = load(small.folder / "runs" / "1")
    assert run["status"] == "COMPLETED"
    assert not [key for key in run if "lost" in key]
    assert caplog.text.count("cannot be written") == 1


def test_points_that_have_waited_get_the_room_of_the_live_ones_at_the_end(disk):
    def main(_run):
        disk.fill()
        for step in range(10_000):
            _run.log_scalar("loss", float(step), step)

    record(main, FileObserver(disk.folder / "runs"))
    folder = disk.folder / "runs" / "1"
    assert load(folder)["status"] == "COMPLETED"
    assert len(read_metrics(folder)["loss"]) == load(folder, "summary.json")["loss"]["count"] == 10_000


def test_end_that_cannot_be_written_is_told_and_the_run_reads_as_dead(tmp_path, caplog):
    limit = quota_of(0)

    def main(_run):
        _run.log_scalar("loss", 0.5, 0)
        _run.flush()
        limit.fill()
        _run.log_scalar("loss", 1.5, 1)

    try:
        record(main, FileObserver(tmp_path / "runs"))
    finally:
        limit.empty()
    folder = tmp_path / "runs" / "1"
    assert true_status(load(folder), read_lease(folder)) == "DEAD"
    assert "1 points and 0 media could not be written and are lost" in caplog.text
    assert re.search(r"run.json\b.* could not be written", caplog.text.splitlines()[-2])
    assert caplog.text.splitlines()[-1].endswith("it lacks 1 points and its end, so that it reads as DEAD")


def test_no_point_is_written_ahead_of_its_name(quota):
    def main(_run):
        quota.fill()
        for number in range(2000):
            _run.log_scalar(f"{number}/{'x' * 100}", 0.5, 0)

    record(main, FileObserver(quota.folder / "runs"))
    folder = quota.folder / "runs" / "1"
    num_kept = sum(len(series) for series in read_metrics(folder).values())
    assert num_kept == read_points(folder).size
    assert num_kept < 1000
    assert load(folder)["lost_points"] == 2000 - num_kept


def test_database_is_told_of_points_that_are_lost(quota, mongo_url, database):
    def main(_run):
        quota.fill()
        for step in range(10_000):
            _run.log_scalar("loss", float(step), step)

    files = FileObserver(quota.folder / "runs")
    mongo = MongoObserver(mongo_url, db_name=database.name)
    record(main, files, mongo)
    num_kept = len(read_metrics(quota.folder / "runs" / "1")["loss"])
    document = database.runs.find_one()
    assert (document["status"], document["lost_points"]) == ("COMPLETED_WITH_LOSS", 10_000 - num_kept)
    assert document["summary"]["loss"]["count"] == num_kept
    assert database.metrics.find_one({"name": "loss"})["count"] == num_kept


@pytest.mark.parametrize(("is_rewound", "lost"), [(True, 0), (False, 10_000)])
def test_points_lost_at_an_end_are_no_longer_lost_where_a_later_session_records_them(quota, is_rewound, lost):
    positions = []

    def main(_run):
        if not positions:
            _run.log_scalar("loss", 0.5, 0)
            _run.flush()
            positions.append(_run.position())
            quota.fill()
            for step in range(1, 10_001):
                _run.log_scalar("loss", float(step), step)
        elif is_rewound:
            _run.rewind(positions[0])
        _run.log_scalar("end", 0.5)

    observer = FileObserver(quota.folder / "runs")
    record(main, observer)
    quota.empty()
    folder = quota.folder / "runs" / "1"
    assert load(folder)["status"] == "COMPLETED_WITH_LOSS"
    record(main, FileObserver(quota.folder / "runs"), meta_info={"resume": str(folder)})
    run = load(folder)
    assert (run["status"] == "COMPLETED", run.get("lost_points", 0) > 0) == (is_rewound, not is_rewound), run


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder of sources, on another disk; `write` writes a module there and imports it."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(name, text):
        (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        importlib.import_module(name)

    yield SimpleNamespace(folder=folder, write=write)
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("when", ["in mid-run, for a while", "in mid-run, to the end", "from the start, for a while"])
def test_sources_and_resources_of_a_full_disk_are_kept_later_or_counted(disk, lab, caplog, when):
    (lab.folder / "table.csv").write_text("x" * 10_000)
    lab.write("first_source", f"a = {'1' * 2_000}")

    def main(_run):
        if "mid-run" in when:
            disk.fill()
        lab.write("late_source", f"b = {'2' * 10_000!r}")
        _run.flush()
        _run.add_resource(lab.folder / "table.csv")
        _run.log_scalar("loss", 0.5, 0)
        if "while" in when:
            disk.empty()
            _run.add_resource(lab.folder / "table.csv")

    if "start" in when:
        disk.fill()
    with caplog.at_level(logging.WARNING):
        record(main, FileObserver(disk.folder / "runs"), base_dir=lab.folder)
    folder = disk.folder / "runs" / "1"
    run = load(folder)
    stored = {name: (folder.parent / where).read_text() for name, where in run["experiment"]["sources"]}
    assert stored["first_source.py"].startswith("a = 1")
    assert "table.csv cannot be kept as a resource" in caplog.text
    assert caplog.text.count("sources are not stored, which is retried with each heartbeat") == 1
    if "while" in when:
        assert stored["late_source.py"].startswith("b = ")
        assert run["status"] == "COMPLETED"
        assert not [key for key in run if "lost" in key]
        assert len(run["resources"]) == 1
    else:
        assert (run["status"], run["lost_sources"]) == ("COMPLETED_WITH_LOSS", ["late_source.py"])
        assert run["lost_resources"] == [str(lab.folder / "table.csv")]
        assert "1 sources are not stored, and are lost: late_source.py" in caplog.text
    assert not list(disk.folder.rglob("*.tmp"))
