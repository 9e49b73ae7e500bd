from __future__ import annotations

import csv
import io
import json
import logging
import math
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch
from sacred.observers import FileStorageObserver
from torch import nn

from sacristan.experiments import Experiment
from sacristan.experiments.training.results import record_predictions, report_test
from sacristan.ingredients import Data, DataError, Loss, TensorBatches

CLASSES = Loss(nn.CrossEntropyLoss(), "classes", 2)
VALUES = Loss(nn.MSELoss(), "values", 1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "1"


@pytest.fixture
def in_run(tmp_path):
    """Return what calls a function with a run that is recorded in `folder`."""

    def run(function):
        experiment = Experiment("results", interactive=True)
        experiment.observers.append(FileStorageObserver(tmp_path))
        experiment.main(lambda _run: function(_run))
        return experiment.run().result

    return run


def written(folder):
    with (folder / "predictions.csv").open(newline="") as stream:
        return list(csv.reader(stream))


@pytest.mark.parametrize(
    ("loss", "metrics", "counts"),
    [
        (CLASSES, {"loss": 0.25, "accuracy": 0.5}, 0.5),
        (VALUES, {"loss": 0.25, "r2": -1.0, "mae": 2.0, "rmse": 3.0}, -1.0),
    ],
)
def test_report_records_the_metrics_and_returns_the_one_that_counts(in_run, folder, loss, metrics, counts):
    assert in_run(lambda run: report_test(run, metrics, loss)) == counts
    info = json.loads((folder / "info.json").read_text())
    assert info["test"] == metrics
    assert info["better"] == {"result": "max", loss.metric: "max"}


def test_report_without_a_test_part_says_so(in_run, folder, caplog):
    with caplog.at_level(logging.WARNING, "sacristan.experiments.training.results"):
        assert in_run(lambda run: report_test(run, {}, CLASSES)) is None
    assert "there is no test part to measure; train with data.test_fraction above 0" in caplog.messages


def data_of(classes=(), task="classification", **options):
    """Return data with a test part that such predictions were made of."""
    empty = TensorBatches(torch.zeros(0, 1), torch.zeros(0), 1)
    parts = {"train": empty, "val": empty, "test": empty, "task": task, "input_shape": (1,), "fingerprint": ""}
    counts = {"num_targets": len(classes) or 1, "class_counts": (), "target_mean": None, "target_std": None}
    return Data(**parts, **counts, classes=classes, **options)


class Recorded:
    """A run that keeps what is logged."""

    def __init__(self):
        self.info, self.media = {}, {}

    def log_media(self, name, medium):
        self.media[name] = medium


def test_confusion_is_a_table_of_counts_and_a_picture_of_shares():
    run, matrix = Recorded(), torch.tensor([[3, 1], [0, 0]])
    measures = SimpleNamespace(classes=("no", "yes"), matrices=lambda: {"confusion": matrix})
    loss = Loss(nn.CrossEntropyLoss(), "classes", 2, measures=measures)
    assert report_test(run, {"loss": 0.25, "accuracy": 0.5}, loss) == 0.5
    table, picture = (run.media[name] for name in ("test/confusion", "test/confusion/picture"))
    assert list(table.columns) == ["true \\ predicted", "no", "yes"]
    assert [table.get_column(name) for name in table.columns] == [["no", "yes"], [3, 0], [1, 0]]
    pixels = np.asarray(PIL.Image.open(io.BytesIO(picture.encode().data)))
    assert pixels.shape == (256, 256)
    # The darker, the larger the share of the true class; a class that does not occur is white.
    assert pixels[::128, ::128].tolist() == [[64, 191], [255, 255]]


def test_predictions_of_classes_are_their_names_and_probabilities(in_run, folder):
    found = {
        "targets": torch.tensor([0, 1]),
        "predictions": torch.tensor([1, 1]),
        "probabilities": torch.tensor([[0.25, 0.75], [1 / 3, 2 / 3]]),
    }
    data = data_of(("no", "yes, sure"), test_names=["a/1.png", "b/2.png"])
    assert in_run(lambda run: record_predictions(run, found, data)) == 2
    assert written(folder) == [
        ["file", "target", "prediction", "p(no)", "p(yes, sure)"],
        ["a/1.png", "no", "yes, sure", "0.25", "0.75"],
        ["b/2.png", "yes, sure", "yes, sure", "0.333333", "0.666667"],
    ]


def test_predictions_of_data_without_targets_have_no_column_for_them(in_run, folder, caplog):
    found = {"targets": torch.tensor([-1, -1]), "predictions": torch.tensor([1, 0])}
    data = data_of(("no", "yes"), test_names=[7, 9], has_targets=False)
    with caplog.at_level(logging.INFO, "sacristan.experiments.training.results"):
        assert in_run(lambda run: record_predictions(run, found, data)) == 2
    assert f"predictions of 2 samples: {folder}/predictions.csv" in caplog.messages
    assert written(folder) == [["index", "prediction"], ["7", "yes"], ["9", "no"]]


@pytest.mark.parametrize(
    ("task", "classes", "targets", "predictions", "rows"),
    [
        ("classification", "ab", [-1, 1], [0, 1], [["0", "", "a"], ["1", "b", "b"]]),
        (
            "multilabel",
            "ab",
            [[-1, 1], [0, -1]],
            [[0, 1], [0, 1]],
            [["0", "", "1", "0", "1"], ["1", "0", "", "0", "1"]],
        ),
        ("regression", "", [[math.nan], [-2.5]], [[1.5], [-1.0]], [["0", "", "1.5"], ["1", "-2.5", "-1.0"]]),
    ],
)
def test_predictions_leave_targets_that_are_missing_empty(in_run, folder, task, classes, targets, predictions, rows):
    found = {"targets": torch.tensor(targets), "predictions": torch.tensor(predictions)}
    in_run(lambda run: record_predictions(run, found, data_of(tuple(classes), task)))
    assert written(folder)[1:] == rows


def test_predictions_of_labels_are_a_column_each(in_run, folder):
    found = {
        "targets": torch.tensor([[0, 1]]),
        "predictions": torch.tensor([[1, 1]]),
        "probabilities": torch.tensor([[0.75, 0.5]]),
    }
    assert in_run(lambda run: record_predictions(run, found, data_of(("a", "b"), "multilabel"))) == 1
    assert written(folder) == [
        ["index", "target_a", "target_b", "prediction_a", "prediction_b", "p(a)", "p(b)"],
        ["0", "0", "1", "1", "1", "0.75", "0.5"],
    ]


@pytest.mark.parametrize(
    ("values", "header"),
    [
        ([[1.5], [2.5]], ["index", "target", "prediction"]),
        ([[1.5, 2.0], [2.5, 3.0]], ["index", "target_0", "target_1", "prediction_0", "prediction_1"]),
    ],
)
def test_predictions_of_values_are_the_numbers(in_run, folder, values, header):
    found = {"targets": torch.tensor(values), "predictions": torch.tensor(values) + 1}
    in_run(lambda run: record_predictions(run, found, data_of(task="regression")))
    rows = [[str(value) for value in (n, *row, *(value + 1 for value in row))] for n, row in enumerate(values)]
    assert written(folder) == [header, *rows]


def test_predictions_without_a_test_part_raise(in_run):
    with pytest.raises(DataError, match=r"there is no test part to predict; train with data.test_fraction above 0, or"):
        in_run(lambda run: record_predictions(run, {}, data_of()))
