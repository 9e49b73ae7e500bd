from __future__ import annotations

import csv
import json
import logging

import pytest
import torch
from sacred.observers import FileStorageObserver
from torch import nn

from experiments import Experiment
from experiments.training.results import record_predictions, report_test
from ingredients.errors import DataError
from ingredients.losses.building import Loss

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
    assert json.loads((folder / "info.json").read_text())["test"] == metrics


def test_report_without_a_test_part_says_so(in_run, folder, caplog):
    with caplog.at_level(logging.WARNING, "experiments.training.results"):
        assert in_run(lambda run: report_test(run, {}, CLASSES)) is None
    assert "there is no test part to measure; set data.test_fraction above 0" in caplog.messages


def test_predictions_of_classes_are_their_names_and_probabilities(in_run, folder):
    found = {
        "targets": torch.tensor([0, 1]),
        "predictions": torch.tensor([1, 1]),
        "probabilities": torch.tensor([[0.25, 0.75], [1 / 3, 2 / 3]]),
    }
    assert in_run(lambda run: record_predictions(run, found, ("no", "yes, sure"))) == 2
    assert written(folder) == [
        ["target", "prediction", "p(no)", "p(yes, sure)"],
        ["no", "yes, sure", "0.25", "0.75"],
        ["yes, sure", "yes, sure", "0.333333", "0.666667"],
    ]


def test_predictions_of_labels_are_a_column_each(in_run, folder):
    found = {
        "targets": torch.tensor([[0, 1]]),
        "predictions": torch.tensor([[1, 1]]),
        "probabilities": torch.tensor([[0.75, 0.5]]),
    }
    assert in_run(lambda run: record_predictions(run, found, ("a", "b"))) == 1
    assert written(folder) == [
        ["target_a", "target_b", "prediction_a", "prediction_b", "p(a)", "p(b)"],
        ["0", "1", "1", "1", "0.75", "0.5"],
    ]


@pytest.mark.parametrize(
    ("values", "header"),
    [
        ([[1.5], [2.5]], ["target", "prediction"]),
        ([[1.5, 2.0], [2.5, 3.0]], ["target_0", "target_1", "prediction_0", "prediction_1"]),
    ],
)
def test_predictions_of_values_are_the_numbers(in_run, folder, values, header):
    found = {"targets": torch.tensor(values), "predictions": torch.tensor(values) + 1}
    in_run(lambda run: record_predictions(run, found, ()))
    rows = [[str(value) for value in (*row, *(value + 1 for value in row))] for row in values]
    assert written(folder) == [header, *rows]


def test_predictions_without_a_test_part_raise(in_run):
    with pytest.raises(DataError, match=r"there is no test part to predict; set data.test_fraction above 0"):
        in_run(lambda run: record_predictions(run, {}, ()))
