"""`LabRun.position`, `flush` and `rewind` while a run goes on."""

import contextlib
import importlib.metadata
import itertools
import json
import logging
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sacred.observers import FileStorageObserver

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver, ResumeError, Text, read_media, read_metrics
from sacristan.observers.record.points.intact_points import read_points


def record(tmp_path, main, *observers, beat_interval=0.05, **options):
    ex = Experiment("rewound", base_dir=Path(__file__).parent, system_metrics_s=options.pop("system_metrics_s", None))
    ex.observers.extend(observers or [FileObserver(tmp_path / "runs")])
    ex.main(main)
    ex.run(options={"--capture": "sys", "--beat-interval": beat_interval}, **options)
    return tmp_path / "runs" / "1"


def test_position_counts_all_that_was_logged_and_is_plain(tmp_path):
    def main(_run):
        assert _run.position() == {"metrics": {}, "media": {}}
        for _ in range(3):
            _run.log_scalar("loss", 0.5)
        _run.log({"loss": 0.25, "other": torch.tensor(1.0)}, step=torch.tensor(9))
        _run.log_scalar("half", 1.0, np.float32(2.5))
        _run.log_scalar("system/mine", 1.0, 5)
        _run.log_media("note", Text("a"))
        expected = {"metrics": {"loss": [4, 9], "other": [1, 9], "half": [1, 2.5]}, "media": {"note": [1, 0]}}
        assert _run.position() == expected == json.loads(json.dumps(_run.position()))
        torch.save(_run.position(), tmp_path / "position.pt")
        assert torch.load(tmp_path / "position.pt", weights_only=True) == expected
        _run.flush()
        assert _run.position() == expected

    record(tmp_path, main)


def test_flushed_points_and_media_are_in_the_files_while_others_log(tmp_path):
    def main(_run):
        stop, seen = threading.Event(), []

        def flush():
            while not stop.is_set():
                position = _run.position()
                _run.flush()
                points = read_metrics(folder)
                media = Counter(record.name for record in read_media(folder))
                for name, (count, _) in position["metrics"].items():
                    seen.append(len(points[name]) >= count)
                seen.extend(media[name] >= count for name, (count, _) in position["media"].items())

        folder = Path(_run.observers[0].dir)
        threads = [threading.Thread(target=flush) for _ in range(2)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(seen) < 40:
            assert time.monotonic() < deadline
            for _ in range(100):
                _run.log_scalar("loss", next(steps))
            _run.log_media("note", Text("x"))
            time.sleep(0)
        stop.set()
        for thread in threads:
            thread.join()
        assert all(seen)

    steps = itertools.count()
    folder = record(tmp_path, main, beat_interval=0.01)
    count = next(steps)
    assert read_metrics(folder)["loss"].values.tolist() == list(range(count))
    assert [record.step for record in read_media(folder)] == list(range(count // 100))


def test_rewinding_within_a_run_goes_on_from_the_position(tmp_path):
    def main(_run):
        position: dict = {}
        for turn in range(3):
            if turn:
                _run.rewind(position)
                assert _run.position() == position
            for _ in range(10):
                _run.log_scalar("loss", turn)
                _run.log_media("note", Text(f"{turn}"))
            if not turn:
                position = _run.position()
                _run.log_scalar("late", 1.0)
        _run.log_scalar("system/mine", 1.0, 1)
        _run.rewind(None)
        assert _run.position() == {"metrics": {}, "media": {}}
        _run.rewind(position)
        for _ in range(2):
            _run.log_scalar("loss", 7)

    folder = record(tmp_path, main)
    metrics = read_metrics(folder)
    assert metrics.keys() == {"loss", "system/mine"}
    # The record had nothing left, so that it lacks what the position tells of; steps go on from where they were.
    assert (metrics["loss"].steps.tolist(), metrics["loss"].values.tolist()) == ([10, 11], [7, 7])
    assert read_media(folder) == []
    assert json.loads((folder / "run.json").read_text())["revision"] == 4
    assert json.loads((folder / "summary.json").read_text())["loss"]["count"] == 2


def test_record_that_lacks_points_is_said_and_counts_from_what_there_is(tmp_path, caplog):
    def first(_run):
        for step in range(10):
            _run.log_scalar("loss", step)

    def second(_run):
        _run.rewind({"metrics": {"loss": [10, 9]}, "media": {}}, step=10)
        assert _run.position()["metrics"] == {"loss": [7, 9]}
        for step in range(10, 13):
            _run.log_scalar("loss", step)
        position = _run.position()
        _run.log_scalar("loss", 99)
        _run.rewind(position)

    folder = record(tmp_path, first)
    with (folder / "metrics.bin").open("r+b") as stream:
        stream.truncate(7 * 24 + 11)
    with caplog.at_level(logging.WARNING):
        record(tmp_path, second, meta_info={"resume": str(folder)})
    assert "loss has 7 points, expected 10; the others are lost" in caplog.text
    assert read_metrics(folder)["loss"].values.tolist() == [*range(7), 10, 11, 12]
    run = json.loads((folder / "run.json").read_text())
    assert run["sessions"][-1]["step"] == 13
    assert "3 points of 1 series are lost; the run cannot end as COMPLETED" in caplog.text
    assert (run["status"], run["lost_points"]) == ("COMPLETED_WITH_LOSS", 3)


@pytest.mark.slow
def test_points_lost_in_one_session_are_told_at_the_end_of_a_later_one_unless_all_is_recorded_anew(tmp_path):
    def main(_run):
        missing.append(_run.num_missing(position or {"metrics": {}, "media": {}}))
        _run.rewind(position)
        for _ in range(10 if position is None else 1):
            _run.log_scalar("loss", 0.5)
        positions.append(_run.position())
        if fails:
            raise ZeroDivisionError

    def session(start, *, failing=True):
        nonlocal position, fails
        position, fails = start, failing
        meta_info = {"resume": str(folder)} if folder.exists() else {}
        with contextlib.suppress(ZeroDivisionError):
            record(tmp_path, main, meta_info=meta_info)
        run = json.loads((folder / "run.json").read_text())
        return run["status"], run.get("lost_points")

    folder, missing, positions = tmp_path / "runs" / "1", [], []
    position, fails = None, False
    assert session(None) == ("FAILED", None)
    with (folder / "metrics.bin").open("r+b") as stream:
        stream.truncate(7 * 24)
    assert session(positions[0]) == ("FAILED", 3)
    assert session(positions[1]) == ("FAILED", 3)
    assert session(positions[1], failing=False) == ("COMPLETED_WITH_LOSS", 3)
    assert read_metrics(folder)["loss"].steps.tolist() == [*range(7), 10, 11]
    assert session(None, failing=False) == ("COMPLETED", None)
    assert missing == [0, 3, 0, 0, 0]


def test_steps_go_on_where_a_continued_run_takes_nothing_back(tmp_path):
    def main(_run):
        for _ in range(3):
            _run.log_scalar("loss", 1.0)
            _run.log_media("note", Text("x"))

    folder = record(tmp_path, main)
    record(tmp_path, main, meta_info={"resume": str(folder)})
    assert read_metrics(folder)["loss"].steps.tolist() == list(range(6))
    assert [record.step for record in read_media(folder)] == list(range(6))
    assert json.loads((folder / "summary.json").read_text())["loss"]["count"] == 6
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["loss"]["steps"] == list(range(6))


def test_damaged_block_is_lost_to_whoever_takes_nothing_back_and_gone_where_the_record_is_rewound(tmp_path, caplog):
    positions = []

    def first(_run):
        for number in range(3):
            _run.log({"loss": number, "accuracy": number})
            positions.append(_run.position())
            _run.flush()

    def second(_run):
        missing.extend(map(_run.num_missing, positions))
        if position is not None:
            _run.rewind(position)
        _run.log({"loss": 3, "accuracy": 3})

    def resumed(start):
        nonlocal position
        position = start
        record(tmp_path, second, meta_info={"resume": str(folder)})
        run = json.loads((folder / "run.json").read_text())
        losses = read_metrics(folder)["loss"].values.tolist()
        return run["status"], run.get("damaged_points"), run.get("lost_points"), losses

    missing, position = [], None
    folder = record(tmp_path, first, beat_interval=100)
    with (folder / "metrics.bin").open("r+b") as stream:
        stream.seek(2 * 24 + 20)  # of the second block
        stream.write(b"\xff")
    assert resumed(None) == ("COMPLETED_WITH_LOSS", 2, None, [0, 2, 3])
    assert missing == [0, 2, 2]
    assert "points 2 to 3 are damaged: their checksum differs, 2 left out" in caplog.text
    assert resumed(positions[0]) == ("COMPLETED", None, None, [0, 3])


@pytest.mark.slow
def test_samples_of_the_machine_share_no_step_over_sessions(tmp_path):
    def main(_run):
        _run.log_scalar("loss", 1.0)
        deadline = time.monotonic() + 30
        while "system/memory_percent" not in read_metrics(Path(_run.observers[0].dir)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        _run.rewind(None)

    folder = record(tmp_path, main, system_metrics_s=1.0, beat_interval=100)
    for _ in range(2):
        record(tmp_path, main, system_metrics_s=1.0, beat_interval=100, meta_info={"resume": str(folder)})
    steps = read_metrics(folder)["system/memory_percent"].steps
    assert len(steps) >= 3
    assert (np.diff(steps) > 0).all()
    assert "loss" not in read_metrics(folder)


def test_continued_run_keeps_provenance_and_notes_what_differs(tmp_path):
    folder = record(tmp_path, lambda: None)
    first = json.loads((folder / "provenance.json").read_text())
    first["packages"] |= {"torch": "0.0.1", "no-such-package": "1.0"}
    first["machine"]["cpu"] = "an abacus"
    (folder / "provenance.json").write_text(json.dumps(first))
    record(tmp_path, lambda: None, meta_info={"resume": str(folder)})
    assert json.loads((folder / "provenance.json").read_text()) == first
    changed = json.loads((folder / "run.json").read_text())["sessions"][-1]["changed_environment"]
    there = importlib.metadata.version("torch")
    assert changed["packages"] == {
        "no-such-package": ["1.0", None],
        "torch": ["0.0.1", there],
    }
    assert changed["machine"]["cpu"][0] == "an abacus"


def test_observer_that_cannot_take_back_is_named(tmp_path, caplog):
    def main(_run):
        _run.log_scalar("loss", 1.0)
        _run.rewind(None)

    observers = [FileObserver(tmp_path / "runs"), FileStorageObserver(tmp_path / "stock")]
    with caplog.at_level(logging.WARNING):
        folder = record(tmp_path, main, *observers)
    assert "the record of FileStorageObserver cannot be rewound; it keeps what was logged beyond" in caplog.text
    assert len(read_points(folder)) == 0


def test_record_that_cannot_be_written_is_not_rewound(tmp_path):
    def main(_run):
        _run.log_scalar("loss", 1.0)
        folder = Path(_run.observers[0].dir)
        _run.flush()
        (folder / "run.json").rename(tmp_path / "kept")
        (folder / "run.json").mkdir()  # stands in the way
        with pytest.raises(ResumeError, match="cannot be rewound"):
            _run.rewind(None)
        (folder / "run.json").rmdir()
        (tmp_path / "kept").rename(folder / "run.json")
        assert len(read_points(folder)) == 1
        _run.rewind(None)

    folder = record(tmp_path, main, beat_interval=100)
    assert len(read_points(folder)) == 0
    assert "rewinding" not in json.loads((folder / "run.json").read_text())


def test_run_without_a_folder_is_rewound_in_its_spool(tmp_path, database, mongo_url):
    def main(_run):
        for step in range(10):
            _run.log_scalar("loss", step)
        _run.rewind({"metrics": {"loss": [4, 3]}, "media": {}})
        _run.log_scalar("loss", 99)

    record(tmp_path, main, MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool"))
    document = database.metrics.find_one({"name": "loss"})
    assert (document["steps"], document["values"]) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 99])
