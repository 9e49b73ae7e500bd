"""Out of the lab: a checkpoint as a file of another program, its predictions as tables, in this process."""

from __future__ import annotations

import csv
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import exp
from sacristan.ingredients import CheckpointError, ConfigError, ModelError
from sacristan.ingredients.checkpoints.files import load_checkpoint, save_checkpoint
from sacristan.ingredients.deployment import load_network, load_trained, read_metadata
from tests import processes

WINE = {"data.name": "wine", "epochs": 2, "lr": 0.05, "model.options.hidden": [8], "checkpoint.path": "run:1"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Return a folder with a run in it, the first of its `my_runs`."""
    folder = tmp_path_factory.mktemp("lab")
    before = Path.cwd()
    os.chdir(folder)
    exp.ex.run(config_updates=WINE | {"checkpoint.path": None})
    os.chdir(before)
    return folder


@pytest.fixture
def run(lab, monkeypatch):
    """Return what runs a command of the main experiment there, on the checkpoint."""
    monkeypatch.chdir(lab)
    return lambda command, **settings: exp.ex.run(command, config_updates=WINE | settings)


@pytest.mark.slow
def test_export_of_a_run_is_an_artifact_that_tells_what_it_is(run, lab):
    from sklearn.datasets import load_wine

    done = run("export", **{"export.format": "pt2", "export.preparation": True})
    path = next((lab / "my_runs" / done._id).rglob("model.pt2"))
    told = done.info["export"]
    assert told["difference"]["samples"] == 27
    assert told["difference"]["absolute"] == done.result < 1e-4
    kept = read_metadata(path)
    assert kept["checkpoint"] == "my_runs/1/checkpoints/best.pt"
    assert (kept["experiment"], kept["outputs_are"], kept["classes"]) == (
        "exp",
        "classes",
        ["class_0", "class_1", "class_2"],
    )
    inputs, targets = load_wine(return_X_y=True)
    scores = torch.export.load(path).module()(torch.from_numpy(inputs.astype(np.float32)))
    assert (scores.argmax(1).numpy() == targets).mean() > 0.6
    state = torch.load(lab / kept["checkpoint"], weights_only=True)
    assert (kept["run"], kept["epoch"], kept["step"]) == tuple(state[name] for name in ("run", "epoch", "step"))


@pytest.mark.slow
def test_export_to_a_file_replaces_it_only_when_asked(run, lab):
    settings = {"export.format": "pt2", "export.path": "mine.pt2"}
    run("export", **settings)
    first = (lab / "mine.pt2").stat().st_mtime_ns
    with pytest.raises(ModelError, match=r"export.path: mine.pt2 already exists"):
        run("export", **settings)
    assert (lab / "mine.pt2").stat().st_mtime_ns == first
    run("export", **settings, **{"export.overwrite": True})
    assert (lab / "mine.pt2").stat().st_mtime_ns > first


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"checkpoint.path": "run:77"}, CheckpointError, "checkpoint.path: got 'run:77', but .* has no run 77"),
        ({"checkpoint.path": "run:1@x"}, CheckpointError, "checkpoint.path: got 'run:1@x', .* it has run:1@best"),
        ({"checkpoint.path": "run:"}, CheckpointError, "checkpoint.path: got 'run:'; write run:ID"),
        ({"export.tolerance": -1.0}, ConfigError, "export.tolerance: got -1.0, expected 0 or more"),
        ({"export.num_batches": 0}, ConfigError, "export.num_batches: got 0, expected at least 1"),
    ],
)
def test_export_of_what_is_not_there_or_cannot_be_raises(run, settings, error, message):
    with pytest.raises(error, match=message):
        run("export", **settings)


def test_export_with_preparation_refuses_transforms(lab, monkeypatch):
    monkeypatch.chdir(lab)
    digits = {"data.limit": 60, "epochs": 1, "model.options.hidden": [8]}
    number = exp.ex.run(config_updates=digits)._id
    digits |= {"data.transforms": [{"name": "center_crop", "size": 8}], "checkpoint.path": f"run:{number}"}
    with pytest.raises(ModelError, match=r"export.preparation: data.transforms are not part of the file"):
        exp.ex.run("export", config_updates=digits | {"export.preparation": True})


def predictions_of(done, lab):
    return next((lab / "my_runs" / done._id).rglob("predictions.*"))


def test_predictions_are_the_same_in_every_format(run, lab):
    found = {}
    for format in ("csv", "parquet", "npz"):
        done = run("predict", **{"export.predictions": format})
        path = predictions_of(done, lab)
        assert (path.suffix, done.result) == (f".{format}", 27)
        found[format] = path
    with found["csv"].open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    table = pyarrow.parquet.read_table(found["parquet"]).to_pylist()
    arrays = np.load(found["npz"])
    assert list(rows[0]) == list(table[0]) == ["index", "target", "prediction", *(f"p(class_{n})" for n in range(3))]
    for number, (row, typed) in enumerate(zip(rows, table, strict=True)):
        assert int(row["index"]) == typed["index"] == arrays["index"][number]
        for name in ("target", "prediction"):
            assert row[name] == typed[name] == arrays["classes"][arrays[name][number]]
        for place in range(3):
            name = f"p(class_{place})"
            assert float(row[name]) == pytest.approx(typed[name], rel=1e-5)
            assert typed[name] == arrays["probabilities"][number, place]


@pytest.mark.slow
def test_parts_of_the_data_that_a_checkpoint_was_trained_on_are_predicted(run, lab, caplog):
    caplog.set_level(logging.INFO, "sacristan.ingredients.data")
    indices = {}
    for part in ("test", "val", "train", "all"):
        done = run("predict", **{"export.predictions": "npz", "data.part": part})
        indices[part] = np.load(predictions_of(done, lab))["index"].tolist()
        assert done.info["data"]["part"] == part
    assert "testing on all of data.name=wine: 178 of 178 samples" in caplog.text
    trained = "testing on the train part of data.name=wine: 124 of 178 samples; the checkpoint was trained on them"
    assert trained in caplog.text
    assert indices["all"] == list(range(178)) == sorted(indices["test"] + indices["val"] + indices["train"])
    assert [len(indices[part]) for part in ("test", "val", "train")] == [27, 27, 124]
    assert run("evaluate", **{"data.part": "train"}).result > 0.6


LAB = Path(__file__).resolve().parents[2]
HUB = """
import sys
import torch

load = lambda name, **options: torch.hub.load(sys.argv[1], name, source="local", **options)
with torch.no_grad():
    inputs = torch.randn(3, 13)
    trained = load("trained", checkpoint="run:1")
    named = load("mlp", input_shape=[13], num_outputs=3, hidden=[8], weights="run:1").eval()
    assert not trained.training
    assert torch.equal(trained(inputs), named(inputs))
    prepared = load("trained", checkpoint="run:1", prepared=True)
    assert torch.allclose(prepared(inputs * prepared.std + prepared.mean), trained(inputs), atol=1e-4)
    assert load("cnn", input_shape=[1, 8, 8], num_outputs=2, widths=[2])(torch.zeros(1, 1, 8, 8)).shape == (1, 2)
    assert load("vit", input_shape=[1, 8, 8], num_outputs=2, width=8, heads=2)(torch.zeros(1, 1, 8, 8)).shape == (1, 2)
    try:
        load("trained", checkpoint="run:77")
    except Exception as error:
        print(error)
"""


def test_hub_gives_networks_and_trained_models(lab):
    command = [sys.executable, "-c", HUB, str(LAB)]
    done = processes.run(command, cwd=lab, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "checkpoint: got 'run:77', but my_runs has no run 77" in done.stdout


@pytest.mark.parametrize("checkpoint", [5, None])
def test_hub_refuses_a_checkpoint_that_is_no_text(lab, checkpoint):
    with pytest.raises(CheckpointError, match=rf"^checkpoint: got {checkpoint}, expected PATH.pt, run:ID,"):
        load_trained(checkpoint, lab / "my_runs")


@pytest.mark.parametrize(
    ("input_shape", "num_outputs", "message"),
    [
        ((1, 8, 8), 0, "num_outputs: got 0, expected a whole number of at least 1"),
        ((1, 8, 8), "3", "num_outputs: got '3', expected a whole number"),
        (8, 3, "input_shape: got 8, expected sizes of at least 1"),
        ((0, 8, 8), 3, r"input_shape: got \(0, 8, 8\), expected sizes"),
    ],
)
def test_hub_refuses_sizes_that_no_network_has(input_shape, num_outputs, message):
    with pytest.raises(ModelError, match=f"^{message}"):
        load_network("cnn", input_shape, num_outputs, None, "my_runs", 0, {})


def test_hub_refuses_a_checkpoint_that_does_not_tell_how_it_is_built(lab, tmp_path):
    state = load_checkpoint(lab / "my_runs" / "1" / "checkpoints" / "best.pt")
    del state["preparation"]
    save_checkpoint(state, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match=r"old.pt: does not tell how its model is built from inputs and targets"):
        load_trained(str(tmp_path / "old.pt"), lab)
