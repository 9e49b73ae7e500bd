"""Taking a journal back to a position: what is left, and what is left when it is killed on the way."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacristan.observers import MediaEntry, read_media, read_metrics
from sacristan.observers.record import files
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.media_files import Content
from sacristan.observers.record.points.rewinding import (
    held,
    missing_from,
    next_step,
    num_missing,
    read_position,
    rewound_files,
)
from sacristan.observers.record.schema import MEDIA, NAMES, POINTS, VALUES, read_json_lines, read_names

# What may be logged: whole and broken steps, numbers and what is none, of two metrics and the machine.
VALUE = st.sampled_from([0.5, 3, float("nan"), "text", 2**80])
POINT = st.tuples(st.sampled_from(["a", "b", "system/cpu"]), st.sampled_from([1, 2.5, 7]), VALUE)


def log(journal, points):
    for name, step, value in points:
        journal.points.add_batch(name, [step], [value], np.zeros(1, np.uint32))


def log_media(journal, names):
    for number, name in enumerate(names):
        content = Content(f"{name} {number}".encode(), ".txt", "text/plain", {})
        journal.media.add(MediaEntry(name, "text", number, 0.0, content), 1.5)


def everything(folder):
    """Return all that readers see of a record, numbers and what is none."""
    metrics = {
        name: [series.steps.tolist(), [repr(value) for value in series.values.tolist()], series.times.tolist()]
        for name, series in read_metrics(folder).items()
    }
    odd = [(row["name"], row["step"], row["value"], row["after"]) for row in read_json_lines(folder / VALUES)]
    return metrics, sorted(odd, key=repr), [(r.name, r.step, r.sha256) for r in read_media(folder)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(POINT, max_size=12), after=st.lists(POINT, max_size=12), torn=st.integers(0, 23))
def test_rewound_journal_is_as_if_nothing_had_come_after(tmp_path, before, after, torn):
    wanted, folder = tmp_path / "wanted", tmp_path / "rewound"
    for path in (wanted, folder):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    machine = [point for point in after if point[0].startswith("system/")]
    expected = Journal(wanted)
    log(expected, before)
    expected.retry()
    log_media(expected, ["x", "y", "x"])
    position = read_position(wanted)
    log(expected, machine)
    expected.close()

    journal = Journal(folder)
    log(journal, before)
    log_media(journal, ["x", "y", "x"])
    assert read_position(journal.folder) == position
    log(journal, after)
    log_media(journal, ["y", "z"])
    journal.close()
    for name, data in ((POINTS, b"\0" * torn), (VALUES, b'{"name"' * (torn % 2)), (MEDIA, b"{" * (torn % 2))):
        if (folder / name).exists():
            with (folder / name).open("ab") as stream:
                stream.write(data)
    journal = Journal(folder)
    journal.recall()
    assert journal.rewind(position) == position == read_position(folder)
    assert everything(folder) == everything(wanted)
    assert {name: row["count"] for name, row in journal.points.summary.items()} == {
        name: len(series) for name, series in read_metrics(folder).items()
    }
    # It goes on as if it had never been elsewhere.
    log(journal, after)
    log(expected, after)
    journal.close()
    expected.close()
    without = [{n: m for n, m in everything(path)[0].items() if n != "system/cpu"} for path in (folder, wanted)]
    assert without[0] == without[1]


def test_rewinding_killed_at_each_step_is_made_right_by_the_next(tmp_path):
    (tmp_path / "first").mkdir()
    journal = Journal(tmp_path / "first")
    points = [("a", 0, 1.0), ("a", 1, "one"), ("b", 0, 1.0), ("a", 2, 2.0), ("a", 3, "two"), ("a", 4.5, 3.0)]
    log(journal, points[:4])
    log_media(journal, ["x", "x"])
    position = read_position(journal.folder)
    log(journal, [*points[4:], ("late", 0, 1.0)])
    log_media(journal, ["x"])
    journal.close()
    shutil.copytree(tmp_path / "first", tmp_path / "whole")
    whole = Journal(tmp_path / "whole")
    whole.recall()
    assert whole.rewind(position) == position
    whole.close()
    # Each replacement of a file may be the last thing that the process did, or just not have been done.
    num_steps = len(list(rewound_files(tmp_path / "first", position)))
    assert num_steps == 4
    for stop in range(num_steps + 1):
        folder = tmp_path / f"killed{stop}"
        shutil.copytree(tmp_path / "first", folder)
        for number, (name, data) in enumerate(rewound_files(folder, position)):
            if number == stop:
                break
            AppendFile(folder / name).replace(data)
        again = Journal(folder)
        again.recall()
        assert again.rewind(position) == position
        again.close()
        assert everything(folder) == everything(tmp_path / "whole")
        assert read_names(folder) == read_names(tmp_path / "whole")
        assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []


def test_rewinding_on_a_full_disk_raises_and_can_be_done_again(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    log(journal, [("a", 0, 1.0), ("a", 1, "one"), ("a", 2, 2.0)])
    before = everything(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            journal.rewind({"metrics": {"a": [1, 0]}, "media": {}})
    assert everything(tmp_path) == before
    journal.rewind({"metrics": {"a": [1, 0]}, "media": {}})
    assert read_metrics(tmp_path)["a"].values.tolist() == [1.0]
    log(journal, [("a", 1, 5.0)])
    journal.close()
    assert read_metrics(tmp_path)["a"].values.tolist() == [1.0, 5.0]


def test_metric_without_points_is_gone_and_others_keep_their_ids(tmp_path):
    journal = Journal(tmp_path)
    log(journal, [("a", 0, 1.0), ("late", 0, 1.0), ("system/cpu", 1, 9.0)])
    journal.rewind({"metrics": {"a": [1, 0]}, "media": {}})
    assert read_names(tmp_path) == {0: ("a", False), 2: ("system/cpu", False)}
    log(journal, [("late", 0, 2.0), ("b", 0, 3.0)])
    journal.close()
    values = {name: series.values.tolist() for name, series in read_metrics(tmp_path).items()}
    assert values == {"a": [1.0], "system/cpu": [9.0], "late": [2.0], "b": [3.0]}


def test_points_whose_name_is_lost_come_under_no_other(tmp_path):
    journal = Journal(tmp_path)
    log(journal, [("a", 0, 1.0), ("b", 0, 2.0)])
    journal.close()
    (tmp_path / NAMES).write_text((tmp_path / NAMES).read_text().splitlines(keepends=True)[0])
    journal = Journal(tmp_path)
    journal.recall()
    log(journal, [("c", 0, 3.0)])
    journal.close()
    assert {name: series.values.tolist() for name, series in read_metrics(tmp_path).items()} == {"a": [1.0], "c": [3.0]}


def test_record_with_less_than_its_position_is_told_apart(tmp_path):
    journal = Journal(tmp_path)
    log(journal, [("a", 0, 1.0)])
    wanted = {"metrics": {"a": [3, 2], "b": [1, 0]}, "media": {"x": [2, 1]}}
    reached = journal.rewind(wanted)
    assert reached == {"metrics": {"a": [1, 0]}, "media": {}}
    assert list(missing_from(reached, wanted)) == [("a", 1, 3), ("b", 0, 1), ("x", 0, 2)]


def test_values_without_their_place_are_told_by_their_time(tmp_path):
    journal = Journal(tmp_path)
    for tick, value in enumerate([0.5, "odd", 1.5, "later"]):
        journal.points.add_batch("a", [tick], [value], np.array([100 * tick], np.uint32))
    journal.close()
    rows = list(read_json_lines(tmp_path / VALUES))
    (tmp_path / VALUES).write_text(
        "".join(json.dumps({k: v for k, v in r.items() if k != "after"}) + "\n" for r in rows)
    )
    journal = Journal(tmp_path)
    journal.recall()
    journal.rewind({"metrics": {"a": [3, 2]}, "media": {}})
    assert read_metrics(tmp_path)["a"].values.tolist() == [0.5, 1.5]
    assert [row["value"] for row in read_json_lines(tmp_path / VALUES)] == ["odd"]


@pytest.mark.parametrize(
    ("entries", "step"), [({}, 0), ({"a": [3, 2], "b": [1, 7.5]}, 8), ({"a": [1, None], "b": [1, float("inf")]}, 0)]
)
def test_next_step_follows_the_greatest(entries, step):
    assert next_step({"metrics": entries, "media": {}}) == step


def test_damaged_line_is_left_out(tmp_path, caplog):
    journal = Journal(tmp_path)
    log_media(journal, ["x", "x"])
    journal.close()
    first, second = (tmp_path / MEDIA).read_bytes().splitlines(keepends=True)
    (tmp_path / MEDIA).write_bytes(b"\0" * 20 + b"\n" + first + second)
    journal = Journal(tmp_path)
    journal.rewind({"metrics": {}, "media": {"x": [1, 0]}})
    assert [record.step for record in read_media(tmp_path)] == [0]
    assert "a line of 20 bytes is damaged, and left out" in caplog.text


@pytest.mark.parametrize(
    ("lost", "held_points", "kept"),
    [
        ([], 5, [3, 6, 9, 12, 15]),
        ([0], 4, [6, 9, 12, 15]),
        ([1, 3], 3, [3, 9, 15]),
        ([4], 4, [3, 6, 9, 12]),
        ([6], 5, [3, 6, 9, 12, 15]),
        ([0, 1, 2, 3, 4], 0, []),
    ],
)
def test_points_that_are_lost_within_a_series_are_not_made_up_by_later_ones(tmp_path, lost, held_points, kept):
    steps = [3, 6, 9, 12, 15, 18, 21, 24]
    journal = Journal(tmp_path)
    log(journal, [("loss", step, 0.5) for place, step in enumerate(steps) if place not in lost])
    log_media(journal, ["x", "x", "x"])
    journal.close()
    wanted = {"metrics": {"loss": [5, 15]}, "media": {"x": [2, 1]}}
    assert held(tmp_path, wanted) == {"metrics": {"loss": [held_points, 15]}, "media": {"x": [2, 1]}}
    journal = Journal(tmp_path)
    journal.recall()
    reached = journal.rewind(wanted)
    assert [step for series in read_metrics(tmp_path).values() for step in series.steps.tolist()] == kept
    assert num_missing(reached, wanted) == 5 - held_points


def test_values_that_are_no_numbers_count_among_the_steps_of_a_series(tmp_path):
    journal = Journal(tmp_path)
    log(journal, [("loss", 1, 0.5), ("loss", 2, "text"), ("loss", 3, 0.5), ("loss", 4, "text"), ("loss", 5, 0.5)])
    journal.close()
    assert read_position(tmp_path)["metrics"] == {"loss": [5, 5]}
    assert held(tmp_path, {"metrics": {"loss": [4, 4]}, "media": {}})["metrics"] == {"loss": [4, 4]}
    assert held(tmp_path, {"metrics": {"loss": [4, 3]}, "media": {}})["metrics"] == {"loss": [3, 3]}
    assert held(tmp_path, {"metrics": {"gone": [4, None]}, "media": {}})["metrics"] == {"gone": [0, None]}
