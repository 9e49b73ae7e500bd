import json
import logging
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacristan.observers import read_metrics
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import POINT_BYTES
from sacristan.observers.record.points.intact_points import read_points
from sacristan.observers.record.schema import NAMES, POINTS, VALUES


def fill(journal, count, start=0):
    steps = list(range(start, start + count))
    journal.points.add_batch("loss", steps, [step / 7 for step in steps], np.zeros(count, np.uint32))


def test_points_take_24_bytes_and_old_ones_are_not_touched(tmp_path):
    journal = Journal(tmp_path)
    fill(journal, 100)
    before = (tmp_path / POINTS).read_bytes()
    fill(journal, 50, start=100)
    after = (tmp_path / POINTS).read_bytes()
    assert len(after) == 150 * POINT_BYTES
    assert after.startswith(before)


def test_values_that_are_no_numbers_are_kept_as_text(tmp_path):
    journal = Journal(tmp_path)
    journal.points.add_batch("mixed", [1, 2], [0.5, "high"], np.zeros(2, np.uint32))
    journal.close()
    assert read_metrics(tmp_path)["mixed"].values.tolist() == [0.5]
    assert json.loads((tmp_path / VALUES).read_text())["value"] == "high"


@pytest.mark.parametrize(
    ("step", "value"), [(2**70, 1.0), (1, 2**2000), (1, 10**5000), ("seven", 1.0), (None, 1.0)], ids=range(5)
)
def test_step_or_value_beyond_64_bits_is_kept_as_text_beside_the_others(tmp_path, step, value):
    journal = Journal(tmp_path)
    journal.points.add_batch("odd", [0, step, 2], [0.5, value, 0.25], np.zeros(3, np.uint32))
    journal.close()
    assert read_metrics(tmp_path)["odd"].values.tolist() == [0.5, 0.25]
    assert json.loads((tmp_path / VALUES).read_text())["name"] == "odd"
    assert journal.points.summary["odd"]["count"] == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 40 * 24), names_cut=st.integers(0, 60))
def test_journal_cut_at_any_byte_reads_whole_points_and_goes_on(tmp_path, cut, names_cut):
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    journal = Journal(tmp_path)
    fill(journal, 40)
    journal.close()
    os.truncate(tmp_path / POINTS, cut)
    assert read_points(tmp_path)["step"].tolist() == list(range(cut // 24))

    again = Journal(tmp_path)
    fill(again, 3, start=100)
    again.close()
    assert read_metrics(tmp_path)["loss"].steps.tolist() == [*range(cut // 24), 100, 101, 102]

    names = tmp_path / NAMES
    os.truncate(names, min(names_cut, names.stat().st_size))
    read_metrics(tmp_path)  # whatever is left of the names, reading does not fail


@pytest.mark.parametrize("record_bytes", [None, 24])
def test_append_after_torn_tail_cuts_it_off(tmp_path, record_bytes):
    path = tmp_path / "file"
    whole = b"x" * 23 + b"\n"
    path.write_bytes(whole + b"torn")
    AppendFile(path, record_bytes).append(whole)
    assert path.read_bytes() == whole * 2


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {root!r})
from sacristan.observers.record.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path({folder!r}))
def fill(start, count):
    journal.points.add_batch("loss", list(range(start, start + count)), [0.5] * count, np.zeros(count, np.uint32))
fill(0, 100)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))   # no file may grow beyond: as on a full disk
fill(100, 100)
journal.write("run.json", {{"text": "x" * 10_000}})
assert (Path({folder!r}) / "metrics.bin").stat().st_size % 24 == 0
assert not list(Path({folder!r}).glob(".*.tmp"))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))   # there is room again
fill(200, 100)
journal.close()
"""


def test_full_disk_delays_points_and_loses_none(tmp_path, request):
    script = FULL_DISK.format(root=str(request.config.rootpath), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert read_metrics(tmp_path)["loss"].steps.tolist() == list(range(300))
    assert json.loads((tmp_path / "run.json").read_text()) == {"text": "x" * 10_000}
    assert done.stderr.count("cannot be written") == 1


def test_folder_that_is_gone_is_said_once_and_counted(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    journal = Journal(folder)
    shutil.rmtree(folder)
    monkeypatch.setattr("sacristan.observers.record.append_file.MAX_PENDING_BYTES", 24 * 150)
    with caplog.at_level(logging.WARNING):
        for start in range(0, 500, 100):
            fill(journal, 100, start=start)
        journal.close()
    assert [r.levelname for r in caplog.records] == ["WARNING", "ERROR"]
    assert journal.points.num_lost_points == 500
    assert "500 points and 0 media could not be written and are lost" in caplog.records[1].message
