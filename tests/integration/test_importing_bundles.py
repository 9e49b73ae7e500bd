"""Offline runs of Comet and ClearML: all points arrive, also of files that are cut, killed or hostile."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from sacristan.__main__ import main
from sacristan.runs.transfer.trackers import comet_files, reader_for, source_files
from tests.trackers import LOSSES, SAMPLES, digest_of, points_of, take, unpack

ODD = ([0, 1, 2], ["nan", "inf", "-inf"])


def by_title(store):
    return {run["meta.comment"]: run for run in store}


def test_experiments_of_comet_are_what_its_own_command_reads(store, tmp_path):
    path = unpack("comet", tmp_path) / "comet"
    before = digest_of(path)
    outcomes = take(path, store, tags=["old"])
    assert sorted(each.outcome for each in outcomes) == ["failed", "new", "new"]
    [killed] = [each for each in outcomes if each.outcome == "failed"]
    assert killed.left_out == ("it is empty: the process was killed before Comet wrote it",)
    expected = json.loads((SAMPLES / "expected_comet.json").read_text())
    assert {run.document["imported"]["key"] for run in store} == expected.keys()
    for run in store:
        theirs = dict(expected[run.document["imported"]["key"]])
        assert theirs.pop("word") == ["text"]
        theirs["validate_accuracy"] = theirs.pop("accuracy")  # their command leaves the context out
        values = {name: [repr(float(value)) for value in run.metric(name).values] for name in run.metrics}
        assert values == {name: [repr(float(value)) for value in each] for name, each in theirs.items()}
    runs = by_title(store)
    assert {title: run.status for title, run in runs.items()} == {"completed": "COMPLETED", "failed": "FAILED"}
    run = runs["completed"]
    points = points_of(run)
    assert points["train/loss"] == ([*range(40)], [*map(repr, LOSSES)])
    assert (points["odd"], points["validate_accuracy"]) == (ODD, ([7], ["0.5"]))
    [file] = path.glob(f"{run.document['imported']['key']}.zip")
    with zipfile.ZipFile(file) as archive:
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
    times = [each["payload"]["local_timestamp"] for each in messages if '"train/loss"' in json.dumps(each)]
    assert run.metric("train/loss").times + run.start_time.timestamp() == pytest.approx(
        np.array(times) / 1000, abs=0.011
    )
    assert {name: run.config[name] for name in ("lr", "net", "nesterov", "decay", "optimizer")} == {
        "lr": 0.1, "net": {"width": 3}, "nesterov": False, "decay": None, "optimizer": "adam",
    }  # fmt: skip
    assert (run.name, sorted(run.tags)) == ("digits", ["baseline", "first-try", "old"])
    assert b"hello from the run" in run.read_output()[0]
    assert (run.artifacts["files/notes/a.txt"].read(), run.artifacts["files/net/asset.txt"].read()) == (b"hello",) * 2
    assert {entry["name"]: (entry["kind"], entry["step"]) for entry, _ in run.media_entries()} == {
        "html": ("html", 0), "text": ("text", 3), "image": ("image", 5),
    }  # fmt: skip
    assert run["info.comet.other.best"] == 0.9
    [left_out] = [each.left_out for each in outcomes if each.id == run.id]
    assert left_out == (
        "file 'data.csv' is at s3://bucket/data.csv, and stays there",
        "1 values of 'word' are no numbers",
    )
    assert digest_of(path) == before
    assert sorted(each.outcome for each in take(path, store)) == ["failed", "present", "present"]


def test_tasks_of_clearml_have_every_logged_value(store, tmp_path):
    path = unpack("clearml", tmp_path) / "clearml"
    before = digest_of(path)
    outcomes = take(path, store)
    assert [(each.outcome, each.left_out) for each in outcomes] == [("new", ())] * 3
    runs = by_title(store)
    assert runs.keys() == {"completed", "failed", "killed"}
    for run in runs.values():
        assert run.status == "UNKNOWN"
        assert points_of(run) == {
            "train/loss": ([*range(40)], [*map(repr, LOSSES)]),
            "odd/odd": ([0, 1, 2], ["0.0"] * 3),  # as ClearML writes them
        }
        assert run.config == {
            "General": {"lr": 0.1, "net": {"width": 3}, "nesterov": False, "decay": None, "optimizer": "adam"},
            "Model": {"depth": 2},
        }
        assert (run.name, run.note, sorted(run.tags)) == ("digits", "a note", ["baseline", "first-try"])
        assert run.artifacts["files/notes/asset.txt"].read() == b"hello"
        assert json.loads(run.artifacts["files/plots/counts/all_2.json"].read())["data"][0]["y"] == [1, 2, 3]
        assert [(entry["name"], entry["kind"], entry["step"]) for entry, _ in run.media_entries()] == [
            ("images/image", "image", 5)
        ]
        assert run["info.summary.best"] == 0.9
        assert b"hello from the run" in run.read_output()[0]
        assert run["info.clearml.configuration.data.value"] == "a = [1, 2]"
    assert b"Traceback" in runs["failed"].read_output()[0]
    key = runs["completed"].document["imported"]["key"]
    lines = [json.loads(line) for line in next(path.rglob(f"{key}/metrics.jsonl")).read_text().splitlines()]
    times = [event["timestamp"] / 1000 for events in lines for event in events if event["metric"] == "train"]
    run = runs["completed"]
    assert run.metric("train/loss").times + run.start_time.timestamp() == pytest.approx(times, abs=0.011)
    assert digest_of(path) == before
    assert {each.outcome for each in take(path, store)} == {"present"}
    # The folder of a task that has a ZIP file is the same task.
    take(next(path.rglob(key)), store)
    assert len(store) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("tracker", "name"), [("comet", "messages.json"), ("clearml", "metrics.jsonl")])
def test_bundle_cut_anywhere_keeps_whole_lines_and_is_completed_later(tracker, name, store, tmp_path):
    [file, *_] = [file for file in sorted(unpack(tracker, tmp_path).rglob("*.zip")) if file.stat().st_size > 100]
    data, folder = file.read_bytes(), tmp_path / "cut" / file.stem
    for size in np.linspace(1, len(data) - 1, 20).astype(int):
        file.write_bytes(data[:size])
        [outcome] = take(file, store, kind=tracker)
        assert outcome.outcome == "failed"
        assert outcome.left_out[0].startswith("it is no whole ZIP file")
    assert len(store) == 0
    file.write_bytes(data)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    text = (folder / name).read_bytes()
    counts = []
    for size in [*np.linspace(0, len(text) - 2, 20).astype(int), len(text)]:
        (folder / name).write_bytes(text[:size])
        [outcome] = take(folder, store)
        assert outcome.outcome != "failed", outcome
        is_torn = text[:size].endswith(b"\n") or size in (0, len(text))
        assert any(name in sentence and "no JSON" in sentence for sentence in outcome.left_out) != is_torn
        counts.append(outcome.num_points)
    assert counts == sorted(counts)
    [run] = store
    assert points_of(run)["train/loss"] == ([*range(40)], [*map(repr, LOSSES)])
    [whole] = take(file, store, kind=tracker)
    assert (whole.num_points, len(store)) == (counts[-1], 1)


def test_zip_file_of_comet_is_not_taken_for_an_archive_of_runs(tmp_path, capsys):
    [file, *_] = sorted((unpack("comet", tmp_path) / "comet").glob("*.zip"), key=lambda file: -file.stat().st_size)
    assert main(["--store", str(tmp_path / "store"), "import", str(file), "--tag", "old"]) == 0
    assert f"imported into {tmp_path}/store: 1 new" in capsys.readouterr().out


def _experiment(messages, **files):
    """Return a ZIP file of Comet."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("experiment.json", json.dumps({"offline_id": "x", "start_time": 1e12, "stop_time": 1e12}))
        archive.writestr("messages.json", "\n".join(map(json.dumps, messages)))
        for name, data in files.items():
            archive.writestr(name.replace("_", "/"), data)
    return stream.getvalue()


def _upload(member, name):
    options = {"fileName": name, "step": 1}
    payload = {"additional_params": options, "file_path": member, "upload_type": "asset", "local_timestamp": 1e12}
    return {"type": "file_upload", "payload": payload}


def test_zip_file_of_a_hostile_sender_stays_inside_the_store(tmp_path, store):
    path = tmp_path / "from" / "x.zip"
    path.parent.mkdir()
    messages = [
        _upload("../../evil", "../../../evil"),
        _upload("gone", "gone"),
        {"type": "metric_msg", "payload": {}},
        {"type": "unknown", "payload": {}},
        {"type": "parameter_msg", "payload": {"param": {"paramName": "a", "paramValue": 1}}},
        {"type": "parameter_msg", "payload": {"param": {"paramName": "a|b", "paramValue": 2}}},
        ["no object"],
    ]
    path.write_bytes(_experiment(messages, **{".._.._evil": b"evil"}))
    [outcome] = take(path, store)
    assert outcome.left_out == (
        "file 'gone': it has no file 'gone'",
        "1 messages of the type 'metric_msg' that lack an entry",
        "1 messages of the type 'unknown'",
        "1 messages of the type None",
        "file '../../../evil': no file of a run may be called so",
    )
    [run] = store
    assert run.config == {"a": 1, "a|b": 2}
    assert [each.name for each in tmp_path.rglob("*evil*")] == []


def test_zip_bomb_fails_before_it_unpacks(tmp_path, store, monkeypatch):
    monkeypatch.setattr(source_files, "PLAIN_BYTES", 10_000)
    path = tmp_path / "x.zip"
    path.write_bytes(_experiment([_upload("zeros", "zeros")], zeros=bytes(10**6)))
    [outcome] = take(path, store)
    assert outcome.outcome == "new"
    assert "file 'zeros': its files unpack to more than 100 times" in outcome.left_out[0]
    path.write_bytes(_experiment(["x" * 10**6]))
    [outcome] = take(path, store)
    assert outcome.outcome == "failed"
    assert "unpack to more than 100 times" in outcome.left_out[0]


def test_member_that_is_damaged_hides_no_points_before_it(tmp_path, store):
    def point(step):
        metric = {"metricName": "loss", "metricValue": 1.0, "step": step}
        return {"type": "metric_msg", "payload": {"metric": metric, "local_timestamp": 1e12}}

    path = tmp_path / "x.zip"
    stream = io.BytesIO(_experiment([point(step) for step in range(1000)]))
    data = bytearray(stream.getvalue())
    with zipfile.ZipFile(stream) as archive:
        info = archive.getinfo("messages.json")
    at = info.header_offset + info.compress_size
    data[at : at + 10] = bytes(10)
    path.write_bytes(data)
    assert reader_for(path) is comet_files
    [outcome] = take(path, store)
    assert outcome.outcome == "new"
    assert "where it is damaged" in outcome.left_out[0]


def test_system_details_of_comet_become_host_and_command(tmp_path, store):
    payload = {"hostname": "node7", "os": "Linux", "python_version": "3.11.7", "user": "ada", "command": ["a.py", "-x"]}
    (tmp_path / "x.zip").write_bytes(
        _experiment(
            [
                {"type": "system_details", "payload": {**payload, "env": {"SECRET": "s3cret"}}},
                {"type": "os_packages", "payload": {"message_id": 2, "os_packages": ["bash=5"]}},
            ]
        )
    )
    take(tmp_path / "x.zip", store)
    [run] = store.find("user=ada")
    assert (run.document["host"]["hostname"], run.document["command_line"]) == ("node7", ["a.py", "-x"])
    assert run["info.comet.os_packages.os_packages"] == ["bash=5"]
    assert "s3cret" not in json.dumps(run.document, default=str)


@pytest.mark.slow
def test_interrupted_import_says_what_it_read_and_is_continued(tmp_path, capsys):
    (tmp_path / "from").mkdir()
    for number in range(200):
        (tmp_path / "from" / f"{number:03}.csv").write_text("step,loss\n0,1\n")
    words = [sys.executable, "-m", "sacristan", "--store", str(tmp_path / "store"), "import", str(tmp_path / "from")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert "interrupted; runs imported so far are kept" in err
    count = int(re.search(r"^imported into .*: (\d+) new; \d+ points?$", out, re.M)[1])
    assert 1 <= count < 200
    assert main(words[3:]) == 0
    counts = [int(number) for number in re.findall(r"(\d+) (?:new|present)", capsys.readouterr().out.splitlines()[-1])]
    # A run that was added when the signal came is in no sum.
    assert (sum(counts), counts[1] - count in (0, 1)) == (200, True)
