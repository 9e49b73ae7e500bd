import json
import os
import shutil

import numpy as np
import pytest

from sacristan.observers.record.points.points import POINT
from sacristan.runs.comparison import kept_curves
from sacristan.runs.comparison.kept_curves import KeptCurves, ThinCurve
from sacristan.runs.comparison.panels import View, make_panel
from sacristan.runs.drawing.curve import Curve
from sacristan.runs.stores.folders.run import FolderRun
from sacristan.runs.stores.opening import open_store


def write(run, values):
    """Write points of `loss` a while ago: of files that have just changed nothing is kept."""
    run.mkdir(parents=True, exist_ok=True)
    points = np.zeros(len(values), POINT)
    points["step"], points["value"] = np.arange(len(values)), values
    (run / "new").write_bytes(points.tobytes())
    (run / "new").replace(run / "metrics.bin")
    (run / "metrics.names.jsonl").write_text('{"id": 0, "name": "loss"}\n')
    (run / "run.json").write_text(json.dumps({"uid": "1" * 32, "status": "COMPLETED"}))
    for name in ("metrics.bin", "metrics.names.jsonl"):
        os.utime(run / name, (1e9, 1e9))


@pytest.fixture
def asked(monkeypatch):
    """Runs whose points were read."""
    read, asked = FolderRun._series, []

    def reading(run, name):
        asked.append(run.id)
        return read(run, name)

    monkeypatch.setattr(FolderRun, "_series", reading)
    return asked


def values(folder, kept, **view):
    with open_store(folder) as store:
        panel = make_panel("loss", ["loss"], store.get_all(["1"]), View(**view), kept=kept)
        return panel.curves[0].y.tolist()


def test_points_that_are_the_same_are_read_once(tmp_path, asked):
    write(tmp_path / "1", [1, np.nan, 3])
    kept = KeptCurves()
    for _ in range(3):
        np.testing.assert_equal(values(tmp_path, kept), [1, np.nan, 3])
        assert asked == ["1"]
    values(tmp_path, kept, smoothing=0.5)
    values(tmp_path, kept, x="time")
    values(tmp_path, kept, between=(0, 1))
    values(tmp_path, kept, num_points=4)
    assert asked == ["1"] * 5


def test_points_that_are_added_replaced_or_mapped_into_memory_are_read(tmp_path, asked):
    run, kept = tmp_path / "1", KeptCurves()
    write(run, [1, 2])
    assert values(tmp_path, kept) == [1, 2]
    write(run, [1, 2, 3])  # it was resumed
    assert values(tmp_path, kept) == [1, 2, 3]
    write(run, [4, 5, 6])  # of the same size and time: another file
    assert values(tmp_path, kept) == [4, 5, 6]
    shutil.rmtree(run)
    write(run, [7, 8, 9])  # another run of the same id
    assert values(tmp_path, kept) == [7, 8, 9]
    asked.clear()
    (run / "metrics.live").write_bytes(b"")
    for _ in range(2):
        assert values(tmp_path, kept) == [7, 8, 9]
    (run / "metrics.live").unlink()
    os.utime(run / "metrics.bin")  # just now, when a change within the clock's resolution would leave no trace
    for _ in range(2):
        assert values(tmp_path, kept) == [7, 8, 9]
    assert asked == ["1"] * 4


def test_runs_of_two_stores_have_curves_of_their_own(tmp_path):
    kept = KeptCurves()
    for name, found in (("a", [1, 2]), ("b", [3, 4])):
        write(tmp_path / name / "1", found)
    assert values(tmp_path / "a", kept) == [1, 2]
    assert values(tmp_path / "b", kept) == [3, 4]
    assert values(tmp_path / "a", kept) == [1, 2]


def test_gaps_of_kept_curves_are_counted(tmp_path):
    write(tmp_path / "1", [0, np.nan, 2, np.inf])
    with open_store(tmp_path) as store:
        kept = KeptCurves()
        for _ in range(2):
            panel = make_panel("loss", ["loss"], store.get_all(["1"]), View(log_y=True), kept=kept)
            assert panel.notes == ("gaps: 2 NaN or infinite", "gaps: 1 not above 0")
            assert make_panel("loss", ["loss"], store.get_all(["1"]), View(), kept=kept).notes == panel.notes[:1]


def test_curves_that_were_asked_for_longest_ago_are_dropped():
    kept = KeptCurves(3 * (kept_curves._OVERHEAD_BYTES + 16_000))
    curve = ThinCurve(Curve("", np.zeros(1000), np.zeros(1000)), 0, 0, is_any_above=False)
    for key in "abc":
        kept.keep(key, curve)
    assert kept.get("a") is curve
    kept.keep("d", curve)
    assert [key for key in "abcd" if kept.get(key)] == ["a", "c", "d"]
    kept.keep(None, curve)
    assert kept.get(None) is None
    kept.keep("e", ThinCurve(Curve("", np.zeros(9000), np.zeros(9000)), 0, 0, is_any_above=False))
    assert [key for key in "acde" if kept.get(key)] == []  # larger than all room
