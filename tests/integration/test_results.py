"""Results, infos and metadata that hold what NumPy and torch compute: stored as numbers, found by every store."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sacristan import runs
from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError
from sacristan.observers import ArtifactError, FileObserver, MongoObserver, Table, read_media, read_table
from sacristan.observers.file.run_file import InfoFile

RESULT = {"acc": torch.tensor(0.5), "ci": (0.25, np.float32(0.75))}


def record(main, *observers, **options):
    ex = Experiment("computed", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"}, **options)


def test_numbers_of_a_run_are_stored_as_numbers(tmp_path, database, mongo_url):
    (tmp_path / "weights").write_text("w")

    def main(_run):
        _run.info["range"] = (np.int64(1), torch.tensor(2))
        _run.add_artifact(tmp_path / "weights", metadata={"shape": (2, 3), "loss": torch.tensor(0.5)})
        return RESULT

    record(main, FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, database.name))
    stored = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())
    assert stored["result"] == {"acc": 0.5, "ci": [0.25, 0.75]}
    assert stored["artifact_details"]["weights"]["metadata"] == {"shape": [2, 3], "loss": 0.5}
    assert json.loads((tmp_path / "runs" / "1" / "info.json").read_text())["range"] == [1, 2]
    delivered = database.runs.find_one()
    assert (delivered["result"], delivered["info"]["range"]) == (stored["result"], [1, 2])
    assert database.fs.files.find_one({"filename": {"$regex": "weights$"}})["metadata"] == {
        "shape": [2, 3],
        "loss": 0.5,
    }


@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_numbers_that_were_stored_by_their_type_are_found_as_numbers(tmp_path, database, mongo_url, kind):
    observer = (
        FileObserver(tmp_path / "runs")
        if kind == "files"
        else MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool")
    )
    for result in (0.25, 0.5, 0.75):
        record(lambda result=result: result, observer)
    old = {"dtype": "float64", "value": 0.5}  # as earlier versions wrote it
    if kind == "files":
        path = tmp_path / "runs" / "2" / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"result": old}))
    else:
        database.runs.update_one({"_id": 2}, {"$set": {"result": old}})
    where = tmp_path / "runs" if kind == "files" else f"{mongo_url}/{database.name}"
    with runs.open_store(where) as store:
        assert [run.result for run in store.find(sort="id")] == [0.25, 0.5, 0.75]
        assert [run.id for run in store.find("result>=0.5", sort="id")] == ["2", "3"]
        assert [run.id for run in store.find("result=0.5")] == ["2"]
        assert [run.id for run in store.find(sort="-result", limit=2)] == ["3", "2"]
        assert store.get(2).document["result"] == 0.5


def test_result_without_a_text_completes(tmp_path, caplog):
    class Textless:
        def __repr__(self):
            raise RuntimeError("no text")

    record(lambda: {"model": Textless(), "acc": 0.5}, FileObserver(tmp_path / "runs"))
    stored = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())
    assert stored["status"] == "COMPLETED"
    assert stored["result"]["acc"] == 0.5
    assert stored["result"]["model"]["py/object"].endswith("Textless")
    assert "the result, a dict, has no text (RuntimeError: no text); it is noted as" in caplog.text


class Unlisted(dict):
    def items(self):
        raise RuntimeError("no entries")


HUGE = 10**5000
DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]
ODD = {"integer": HUGE, "key": {HUGE: 1}, "unlisted": Unlisted(a=1), "deep": DEEP}


def test_entries_that_json_cannot_hold_are_told_and_noted_as_text(tmp_path, database, mongo_url, caplog):
    (tmp_path / "weights").write_text("w")

    def main(_run):
        _run.info |= ODD
        _run.flush()
        _run.log_media("cases", Table(["number"], [[HUGE], [5]]))
        _run.add_artifact(tmp_path / "weights", metadata=ODD)
        for metadata in ODD.values():
            with pytest.raises(ArtifactError, match="artifact metadata"):
                _run.log_artifact("weights", tmp_path / "weights", metadata={"value": metadata})
        _run.info["later"] = 1
        return {"accuracy": 0.5, **ODD}

    with caplog.at_level(logging.WARNING):
        observers = FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, database.name)
        record(main, *observers, meta_info={"odd": ODD})
    for where in (tmp_path / "runs", f"{mongo_url}/{database.name}"):
        with runs.open_store(where) as store:
            [run] = store.find("result.accuracy=0.5")
            assert run.status == "COMPLETED"
            odd = [run.info, run.result, run.document["meta"]["odd"], run.artifact_details()["weights"]["metadata"]]
            assert run.info["later"] == 1
        for found in odd:
            assert (found["integer"], found["key"], found["unlisted"]) == (hex(HUGE), {hex(HUGE): 1}, "{'a': 1}")
            assert found["deep"][0][0][0]
    [table] = read_media(tmp_path / "runs" / "1")
    assert read_table(table.path) == (["number"], [[hex(HUGE)], [5]])
    told = [line for line in caplog.messages if "noted as" in line]
    assert sum("info.integer (an integer of more than 4,300 digits)" in line for line in told) == 1
    for name in ("info.unlisted (RuntimeError: no entries)", "info.deep.0.0", "result", "meta.odd.integer"):
        assert any(name in line for line in told), name
    assert not any(entry.exc_info for entry in caplog.records)


def test_part_of_a_record_that_fails_takes_nothing_else_with_it(tmp_path, caplog, monkeypatch):
    def fail(self):
        raise RuntimeError("a fault of ours")

    def main(_run):
        _run.log_scalar("loss", 0.5, 0)
        monkeypatch.setattr(InfoFile, "write", fail)
        _run.flush()
        return 0.5

    record(main, FileObserver(tmp_path / "runs"))
    stored = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())
    assert (stored["status"], stored["lost_parts"]) == ("COMPLETED_WITH_LOSS", ["info"])
    assert stored["result"] == 0.5
    assert caplog.text.count("info failed; the run continues, and so does the rest of its record") == 1


def test_config_deeper_than_a_record_is_refused(tmp_path):
    ex = Experiment("computed", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda: None)
    with pytest.raises(ConfigError, match=r"add_config: got lists and dicts .* too many levels deep"):
        ex.add_config(data=DEEP)
    within: list = []
    within += [within, within]
    with pytest.raises(ConfigError, match=r"add_config: got lists and dicts that are within themselves"):
        ex.add_config(data=within)
    shallower: list = []
    for _ in range(180):
        shallower = [shallower]
    ex.add_config(data=shallower)
    with pytest.raises(ConfigError, match="data: got lists and dicts nested more than 180 levels deep"):
        ex.run()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("code", "status"), [(None, "COMPLETED"), (0, "COMPLETED"), (3, "FAILED"), ("bad", "FAILED")])
def test_main_that_exits_ends_the_run_as_its_code_says(tmp_path, code, status):
    def main(_run):
        _run.log_scalar("loss", 0.5)
        sys.exit(code)

    with pytest.raises(SystemExit) as end:
        record(main, FileObserver(tmp_path / "runs"))
    assert end.value.code == code
    with runs.open_store(tmp_path / "runs") as store:
        run = store.get(1)
        assert (run.status, run.result) == (status, None)
        assert run.metric("loss").values.tolist() == [0.5]


@pytest.mark.parametrize(
    ("file", "name"), [(b"bad\xff.txt", "bad%FF.txt"), (b"two\nlines.txt", "two%0Alines.txt"), (b"a\\b", "a%5Cb")]
)
def test_artifact_of_a_file_with_an_odd_name_is_kept(tmp_path, file, name):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + file))
    path.write_text("content")

    def main(_run):
        _run.add_artifact(path)

    assert record(main, FileObserver(tmp_path / "runs")).status == "COMPLETED"
    with runs.open_store(tmp_path / "runs") as store:
        [kept] = store.get(1).stored("artifacts")
        assert (kept.name, kept.read()) == (name, b"content")
