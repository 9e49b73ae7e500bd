"""The good and bad cases of a model, on real digits and on made-up answers."""

import io
import json
import math

import numpy as np
import PIL.Image
import pytest
import torch

from sacristan.experiments import cases_table
from sacristan.experiments.training.results import as_images, choose_classes, choose_values
from sacristan.ingredients import Source
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.sources import load_source

DEFAULTS = ingredient.configurations[0]()


def written(table):
    content = table.encode()
    made = json.loads(content.data)
    return [dict(zip(made["columns"], row, strict=True)) for row in made["rows"]], {i.file: i for i in content.images}


def test_classes_are_chosen_by_how_sure_the_model_is():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    predictions = torch.tensor([0, 1, 1, 1, 1, 1, 1, 2])
    probability = torch.tensor([0.9, 0.6, 0.8, 0.5, 0.99, 0.7, 0.4, 1.0])
    assert choose_classes(labels, predictions, probability, 2) == {"wrong": [2, 1], "unsure": [6, 3], "right": [7, 4]}
    assert choose_classes(labels, predictions, probability, 1, ignore_index=2) == {
        "wrong": [2],
        "unsure": [6],
        "right": [4],
    }
    assert choose_classes(labels, predictions, probability, 5) == {
        "wrong": [2, 1],
        "unsure": [6, 3, 5, 0, 4],
        "right": [7],
    }
    assert choose_classes(labels, labels, probability, 0) == {"wrong": [], "unsure": [], "right": []}


def test_values_are_chosen_by_their_error():
    error = torch.tensor([0.5, 3.0, 0.1, 2.0, 1.0])
    assert choose_values(error, 2) == {"worst": [1, 3], "best": [2, 0]}
    assert choose_values(error, 3) == {"worst": [1, 3, 4], "best": [2, 0]}


@pytest.mark.parametrize("read_one_by_one", [False, True])
def test_images_are_those_before_they_were_normalised(read_one_by_one):
    source = load_source("digits")
    raw = source.inputs
    if read_one_by_one:

        class Items:
            def __len__(self):
                return len(raw)

            def __getitem__(self, index):
                return raw[index], int(source.targets[index])

        source = Source(Items(), source.targets, source.classes, digest="x", missing=np.zeros(len(raw), int))
    prepared = prepare(source, DEFAULTS, 0)
    data = make_batches(prepared, DEFAULTS, 0, torch.device("cpu"))
    targets = torch.cat([batch for _, batch in data.test.epoch()])
    probabilities = torch.nn.functional.one_hot((targets + (torch.arange(len(targets)) % 5 == 0)) % 10, 10).float()
    found = {"targets": targets, "predictions": probabilities.argmax(1), "probabilities": probabilities}
    rows, images = written(cases_table(data, found, num=3))
    assert [row["case"] for row in rows] == ["wrong"] * 3 + ["unsure"] * 3 + ["right"] * 3
    for row in rows:
        original = prepared.indices["test"][row["sample"]]
        assert row["label"] == str(source.targets[original])
        assert (row["label"] == row["prediction"]) == (row["case"] != "wrong")
        assert row["probability"] == 1
        pixels = np.array(PIL.Image.open(io.BytesIO(images[row["image"]["$image"]].data)))
        assert np.array_equal(pixels, np.rint(raw[original, 0] * 255).astype(np.uint8))


def test_images_beyond_0_to_1_are_scaled_together(tensor_data):
    inputs = torch.linspace(-3, 5, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    data = tensor_data((inputs, torch.tensor([0, 1])), test=(inputs, torch.tensor([0, 1])))
    images = as_images(data, [1, 0])
    assert (images.min(), images.max()) == (0, 1)
    assert torch.allclose(images[0] * 8 - 3, inputs[1])


def test_inputs_that_are_no_images_have_no_image_column(tensor_data):
    inputs, targets = torch.randn(4, 6), torch.tensor([0, 1, 0, 1])
    data = tensor_data((inputs, targets), test=(inputs, targets), classes=("cat", "dog"))
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [math.nan, math.nan]])
    found = {"targets": targets, "predictions": torch.tensor([0, 0, 0, 1]), "probabilities": probabilities}
    rows, _ = written(cases_table(data, found, num=1))
    assert [(row["case"], row["sample"], row["label"], row["prediction"]) for row in rows] == [
        ("wrong", 1, "dog", "cat"),
        ("unsure", 2, "cat", "cat"),
        ("right", 3, "dog", "dog"),
    ]
    assert rows[2]["probability"] == {"$number": "nan"}
    assert rows[0].keys() == {"case", "sample", "label", "prediction", "probability"}


def test_values_of_many_outputs_are_shown_as_text(tensor_data):
    inputs, targets = torch.randn(3, 6), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    data = tensor_data((inputs, targets), test=(inputs, targets))
    found = {"targets": targets, "predictions": targets + torch.tensor([[0.0, 0.5], [3.0, 1.0], [0.0, 0.0]])}
    rows, _ = written(cases_table(data, found, num=1))
    assert rows == [
        {"case": "worst", "sample": 1, "label": "3, 4", "prediction": "6, 5", "error": 2.0},
        {"case": "best", "sample": 2, "label": "5, 6", "prediction": "5, 6", "error": 0.0},
    ]


def test_no_test_part_and_many_labels_have_no_cases(tensor_data):
    inputs, targets = torch.randn(3, 6), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert cases_table(tensor_data((inputs, targets)), {}) is None
    many = tensor_data((inputs, targets), test=(inputs, targets), task="multilabel")
    assert cases_table(many, {"targets": targets.long(), "predictions": targets.long()}) is None
