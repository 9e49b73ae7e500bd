"""Results, infos and metadata that hold what NumPy and torch compute: stored as numbers, found by every store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import runs
from experiments import Experiment
from observers import FileObserver, MongoObserver

RESULT = {"acc": torch.tensor(0.5), "ci": (0.25, np.float32(0.75))}


def record(main, *observers):
    ex = Experiment("computed", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


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


@pytest.mark.parametrize("kind", ["files", "mongo"])
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
