"""Trainings on numbers with a large offset, such as Unix times, from the file to the exported model."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import exp
from sacristan.ingredients.deployment import read_metadata

RANDOM = np.random.default_rng(0)
# Seconds within 20 minutes of 2023, and whether they are in the second half.
TIMES = 1.7e9 + RANDOM.permutation(np.arange(-600.0, 600.0, 3)) + 0.5
LABELS = (TIMES > 1.7e9).astype(int)
X = RANDOM.normal(size=400).astype(np.float32)
VALUES = 1.7e9 + 50 * X.astype(float)
TRAINED = {"epochs": 40, "lr": 0.03, "model.options.hidden": [16], "data.batch_size": 32}
CLASSES = TRAINED | {"data.path": "classes.csv"}
NUMBERS = TRAINED | {"data.path": "numbers.csv", "data.task": "regression"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Return a folder with two trainings in it: run 1 on times, run 2 on targets with an offset."""
    folder = tmp_path_factory.mktemp("lab")
    for name, inputs, targets in (("classes", TIMES, LABELS), ("numbers", X, VALUES)):
        rows = (f"{value!r},{target!r}" for value, target in zip(inputs.tolist(), targets.tolist(), strict=True))
        (folder / f"{name}.csv").write_text("\n".join(["x,y", *rows]))
    before = Path.cwd()
    os.chdir(folder)
    results = [exp.ex.run(config_updates=settings).result for settings in (CLASSES, NUMBERS)]
    os.chdir(before)
    return folder, results


@pytest.fixture
def run(lab, monkeypatch):
    """Return what runs a command there on the checkpoint of a run."""
    monkeypatch.chdir(lab[0])

    def run(command, settings, **more):
        number = 1 if settings is CLASSES else 2
        return exp.ex.run(command, config_updates=settings | {"checkpoint.path": f"run:{number}"} | more)

    return run


def test_trainings_reach_the_true_values(lab, run):
    accuracy, r2 = lab[1]
    assert accuracy == 1.0
    assert r2 > 0.999
    assert run("evaluate", CLASSES).result == accuracy
    assert run("evaluate", NUMBERS).result == pytest.approx(r2)


@pytest.mark.parametrize(("settings", "expected"), [(CLASSES, LABELS), (NUMBERS, VALUES)])
def test_predictions_for_a_single_row_are_those_for_all(run, settings, expected):
    lines = Path(settings["data.path"]).read_text().splitlines()
    found = []
    for name, stop in (("all.csv", None), ("one.csv", 2)):
        Path(name).write_text("\n".join(lines[:stop]))
        done = run("predict", settings, **{"data.path": name, "data.part": "all"})
        rows = csv.DictReader((Path("my_runs") / done._id / "predictions.csv").read_text().splitlines())
        found.append(np.array([(float(row["target"]), float(row["prediction"])) for row in rows]))
    np.testing.assert_allclose(found[0][:1], found[1], rtol=0, atol=1e-3)
    np.testing.assert_allclose(found[0][:, 0], expected, rtol=0, atol=1e-3)
    assert np.abs(found[0] - expected[:, None]).max() < 25


@pytest.mark.parametrize("format", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_exported_models_take_and_return_float64(run, format):
    outputs = []
    for settings, inputs in ((CLASSES, TIMES), (NUMBERS, X)):
        path = Path(f"{settings['data.path']}.{format}")
        run("export", settings, **{"export.format": format, "export.preparation": True, "export.path": str(path)})
        dtype = read_metadata(path)["inputs"][0]["dtype"]
        rows = inputs[:, None].astype(dtype)
        if format == "pt2":
            outputs.append(torch.export.load(path).module()(torch.from_numpy(rows)).detach().numpy())
        else:
            outputs.append(onnxruntime.InferenceSession(path).run(None, {"inputs": rows})[0])
        assert read_metadata(path)["outputs"][0]["dtype"] == outputs[-1].dtype.name
    scores, values = outputs
    assert (scores.argmax(1) == LABELS).mean() > 0.99
    assert 1 - ((values[:, 0] - VALUES) ** 2).sum() / ((VALUES - VALUES.mean()) ** 2).sum() > 0.999
