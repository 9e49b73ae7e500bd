"""Targets of data that a model was not trained on."""

import dataclasses
import logging

import numpy as np
import pytest

from sacristan.ingredients import DataError, Source
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.targets import known_targets

DEFAULTS = ingredient.configurations[0]()
WHERE = "data.path=x.csv"


def source(targets, classes=None):
    targets = None if targets is None else np.asarray(targets)
    count = 20 if targets is None else len(targets)
    return Source(np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32), targets, classes)


def trained_on(targets, classes=None, **config):
    return prepare(source(targets, classes), DEFAULTS | config, 0).preparation


ANIMALS = trained_on(np.array(["cat", "dog", "eel", "fox"] * 5))
NUMBERS = trained_on(np.array([3, 5, 7, 9] * 5))
VALUES = trained_on(np.linspace(0, 1, 20))
LABELS = trained_on(np.array([[0, 1], [1, 1]] * 10))


@pytest.mark.parametrize(
    ("trained", "targets", "classes", "expected"),
    [
        (ANIMALS, ["fox", "cat", "fox"], None, [3, 0, 3]),
        (ANIMALS, [["dog"], ["eel"]], None, [1, 2]),
        (ANIMALS, [1, 0], ("cat", "fox"), [3, 0]),
        (NUMBERS, [9, 5], None, [3, 1]),
        (NUMBERS, [9.0, 5.0], None, [3, 1]),
        (NUMBERS, ["9", "5"], None, [3, 1]),
    ],
)
def test_labels_are_told_by_the_names_of_their_classes(trained, targets, classes, expected):
    found = known_targets(source(targets, classes), trained, WHERE, needed=True)
    assert (found.tolist(), found.dtype) == (expected, np.int64)


def test_values_stay_in_their_own_unit_and_labels_zeros_and_ones():
    assert known_targets(source([2, 3]), VALUES, WHERE, needed=True).tolist() == [[2], [3]]
    assert known_targets(source([[1, 0]]), LABELS, WHERE, needed=True).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("trained", "targets", "message"),
    [
        (
            ANIMALS,
            ["cat", "gnu", "yak"],
            "the checkpoint knows no class gnu, yak; its classes are cat, dog, eel, fox; re",
        ),
        (
            ANIMALS,
            [0, 1],
            "the checkpoint knows no class 0, 1; its classes are cat, dog, eel, fox; rename or remove them",
        ),
        (ANIMALS, np.array(["cat", None, np.nan], object), "2 of the 3 labels are missing; remove those samples"),
        (ANIMALS, [["cat", "dog"]], r"got targets of shape \(1, 2\), expected one label per sample"),
        (VALUES, [0.5, np.nan], "1 of the 2 targets are not numbers; correct or remove them"),
        (VALUES, [[0.5, 1.0]], "got 2 targets a sample, expected 1 as the checkpoint was trained on"),
        (VALUES, ["a", "b"], "got targets of text, expected numbers as the checkpoint was trained on"),
        (LABELS, [[0, 2]], "1 of the 2 targets are not 0 or 1; correct or remove them"),
    ],
)
def test_targets_that_the_model_was_not_trained_for_are_refused_where_they_are_needed(trained, targets, message):
    with pytest.raises(DataError, match=f"{WHERE}: {message}"):
        known_targets(source(targets), trained, WHERE, needed=True)


def test_labels_that_are_not_needed_are_left_out_where_they_are_missing_or_not_known(caplog):
    targets = np.array(["dog", None, np.nan, "yak", 2.0], object)
    with caplog.at_level(logging.WARNING):
        assert known_targets(source(targets), ANIMALS, WHERE, needed=False).tolist() == [1, -1, -1, -1, -1]
    assert (
        "the checkpoint knows no class 2, yak; its classes are cat, dog, eel, fox; such targets are left out"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("trained", "targets", "expected"),
    [
        (VALUES, [0.5, np.nan], [[0.5], [np.nan]]),
        (LABELS, [[0.0, np.nan]], [[0, -1]]),
        (ANIMALS, None, [-1] * 20),
        (VALUES, None, [[np.nan]] * 20),
        (LABELS, None, [[-1, -1]] * 20),
    ],
)
def test_targets_that_are_not_needed_may_be_missing(trained, targets, expected):
    np.testing.assert_array_equal(known_targets(source(targets), trained, WHERE, needed=False), expected)


def test_classes_of_whole_numbers_in_floats_are_called_like_ints():
    assert trained_on(np.array([1.0, 2.0] * 10), task="classification").classes == ("1", "2")


def test_labels_in_named_columns_are_called_after_them():
    named = dataclasses.replace(source(np.array([[0, 1], [1, 1]] * 10)), target_names=("round", "red"))
    assert prepare(named, DEFAULTS, 0).preparation.classes == ("round", "red")
