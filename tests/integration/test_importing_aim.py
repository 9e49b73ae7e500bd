"""Repositories of Aim: all points arrive as Aim reads them, also of damaged ones, and the source stays as it is."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from sacristan.__main__ import main
from sacristan.runs import open_store
from tests.trackers import SAMPLES, digest_of, points_of, take, unpack

# The metrics of the sample as Aim and as the store names them.
NAMES = {
    'accuracy {"fold": 2, "subset": "val"}': "fold_2/val/accuracy",
    'loss {"subset": "train"}': "train/loss",
    "odd {}": "odd",
}


@pytest.fixture(scope="module", autouse=True)
def _has_aim():
    pytest.importorskip("aim")


@pytest.fixture
def source(tmp_path):
    return unpack("aim", tmp_path)


def test_runs_of_aim_are_what_aim_reads(source, store):
    before = digest_of(source)
    outcomes = take(source, store)
    left_out = "'images' of step 5: a image (got data that begin with"
    assert [each.outcome for each in outcomes] == ["new"] * 3
    assert all(len(each.left_out) == 1 and each.left_out[0].startswith(left_out) for each in outcomes)
    expected = json.loads((SAMPLES / "expected_aim.json").read_text())
    found = {run.document["imported"]["key"]: run for run in store}
    assert found.keys() == expected.keys()
    for key, theirs in expected.items():
        run = found[key]
        assert run["meta.comment"] == theirs["name"]
        assert run.status == ("DEAD" if theirs["name"] == "killed" else "UNKNOWN")
        assert run.start_time.timestamp() == pytest.approx(theirs["start"], abs=0.002)
        assert theirs["end"] is None or run.stop_time.timestamp() == pytest.approx(theirs["end"], abs=0.002)
        points = {NAMES[name]: each for name, each in theirs["metrics"].items()}
        assert points_of(run) == {
            name: ([step for step, _, _ in each], [value for _, value, _ in each]) for name, each in points.items()
        }
        for name, each in points.items():
            times = run.metric(name).times + run.start_time.timestamp()
            assert times == pytest.approx([time for _, _, time in each], abs=0.011)
        assert run.config == {"lr": 0.1, "net": {"width": 3}, "nesterov": False, "decay": None, "depth": 2}
        assert (run.name, run.note, run.tags) == ("digits", "a note", ["first-try"])
        assert sorted((entry["name"], entry["kind"], entry["step"]) for entry, _ in run.media_entries()) == [
            ("counts", "histogram", 2), ("image", "image", 5), ("images", "image", 5), ("words", "text", 3),
        ]  # fmt: skip
    assert digest_of(source) == before
    assert {each.outcome for each in take(source / ".aim", store)} == {"present"}


@pytest.mark.slow
def test_metrics_of_aim_that_are_named_alike_here_are_kept_apart(tmp_path, store):
    import aim

    run = aim.Run(repo=str(tmp_path / "repo"), system_tracking_interval=None, log_system_params=False)
    run.track(1.0, name="loss", context={"subset": "train"})
    run.track(2.0, name="train/loss")
    run.close()
    [outcome] = take(tmp_path / "repo", store)
    assert outcome.left_out == ("the name of another metric 'train/loss', which is 'train/loss_2' here",)
    [run] = store
    assert sorted(values for _, values in points_of(run).values()) == [["1.0"], ["2.0"]]


@pytest.mark.slow
def test_run_of_aim_cut_anywhere_fails_or_keeps_what_aim_can_read_and_is_completed_later(source, store):
    key = next(key for key, run in json.loads((SAMPLES / "expected_aim.json").read_text()).items() if run["end"])
    runs = source / ".aim" / "run_metadata.sqlite"
    whole = runs.read_bytes()
    _execute(runs, f"DELETE FROM run WHERE hash <> '{key}'")  # to be quicker
    files = [file for kind in ("meta", "seqs") for file in (source / ".aim" / kind / "chunks" / key).glob("*.sst")]
    assert len(files) == 2
    for file in files:
        data = file.read_bytes()
        for size in np.linspace(0, len(data) - 1, 10).astype(int):
            file.write_bytes(data[:size])
            [outcome] = take(source, store)
            assert outcome.outcome == "failed"
        if file is files[1]:
            runs.write_bytes(whole)
            assert sorted(each.outcome for each in take(source, store)) == ["failed", "new", "new"]
        file.write_bytes(data)
    assert sorted(each.outcome for each in take(source, store)) == ["new", "present", "present"]


@pytest.mark.nightly
def test_flipped_bit_in_a_run_of_aim_loses_no_point_without_a_word(source, tmp_path):
    def read():
        found = {}
        with open_store(tmp_path / str(len([*tmp_path.iterdir()])), create=True) as store:
            for run in take(source, store):
                found[run.place] = run.num_points, run.left_out
        return found

    whole = read()
    for file in sorted((source / ".aim").glob("*/chunks/*/*.sst"))[:4]:
        data = file.read_bytes()
        for number, place in enumerate(np.linspace(0, len(data) - 1, 10).astype(int)):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1 << number % 8]) + data[place + 1 :])
            for name, (num_points, left_out) in read().items():
                assert num_points >= whole[name][0] or left_out != whole[name][1], (file, place)
        file.write_bytes(data)


def _execute(database, statement):
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement)


@pytest.mark.slow
def test_import_from_aim_killed_at_any_moment_is_completed_by_the_next_one(source, tmp_path):
    words = [sys.executable, "-m", "sacristan", "--store", str(tmp_path / "killed"), "import", str(source)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for line in (1, 2):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
            for _ in range(line):
                process.stdout.readline()
            process.kill()
    assert main(words[3:]) == 0
    main(["--store", str(tmp_path / "whole"), "import", str(source)])
    with open_store(tmp_path / "killed") as killed, open_store(tmp_path / "whole") as whole:
        assert {run.uid: points_of(run) for run in killed} == {run.uid: points_of(run) for run in whole}
        assert (len(killed), killed.trash()) == (3, [])


def test_links_of_a_hostile_repository_are_not_followed(source, store, tmp_path):
    (tmp_path / "secret").write_text("secret")
    key = next(iter(json.loads((SAMPLES / "expected_aim.json").read_text())))
    (source / ".aim" / "link").symlink_to(tmp_path / "secret")
    chunk = source / ".aim" / "meta" / "chunks" / key
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    other = next(reversed(json.loads((SAMPLES / "expected_aim.json").read_text())))
    (tmp_path / "precious").write_text("kept")
    _execute(
        source / ".aim" / "run_metadata.sqlite", f"UPDATE run SET hash = '../../../..{tmp_path}' WHERE hash = '{other}'"
    )
    outcomes = [outcome.left_out[0] for outcome in take(source, store) if outcome.outcome == "failed"]
    assert sorted(outcomes) == [
        f"'meta/chunks/{key}' is no path in the run's folder",
        f"got the hash '../../../..{tmp_path}', expected letters and digits",
    ]
    assert len(store) == 1
    assert (tmp_path / "precious").read_text() == "kept"


def test_repository_that_is_no_database_is_rejected_in_one_sentence(tmp_path, capsys):
    (tmp_path / ".aim").mkdir()
    (tmp_path / ".aim" / "run_metadata.sqlite").write_bytes(b"no database")
    assert main(["--store", str(tmp_path / "store"), "import", str(tmp_path)]) == 1
    assert ".aim: it cannot be read (" in capsys.readouterr().err
