"""Targets with a class for each place, and those that mixup and cutmix mix: their loss, averages and metrics."""

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.experiments import cases_table, loop
from sacristan.experiments.training.results import record_predictions
from sacristan.ingredients import DataError, LossError, Source
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.targets import VOID
from sacristan.ingredients.losses import build_loss

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")


@pytest.fixture
def data():
    """Images whose masks say where they are bright, with some places that have no class."""
    inputs = np.random.default_rng(0).normal(size=(40, 3, 6, 6)).astype(np.float32)
    masks = (inputs[:, 0] > 0).astype(np.uint8)
    masks[:20, :3] = 255
    config = {**DEFAULTS, "batch_size": 8}
    return make_batches(prepare(Source(inputs, masks), config, 0), config, 0, CPU)


def test_masks_are_learnt_and_measured_where_they_have_a_class(data):
    torch.manual_seed(0)
    model, loss = nn.Conv2d(3, data.num_targets, 1), build_loss(None, {}, None, data, CPU)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    loop.fit(model, data, loss, optimizer, log=lambda *point: None, epochs=8)
    metrics = loop.evaluate(model, data.test, loss)
    outputs = [(model(inputs), targets) for inputs, targets in data.test.epoch()]
    hits = torch.cat([outputs.argmax(1)[targets != VOID] == targets[targets != VOID] for outputs, targets in outputs])
    assert metrics["accuracy"] == pytest.approx(float(hits.float().mean()))
    assert metrics["accuracy"] > 0.95
    found = loop.predict(model, data.test, loss)
    assert found["predictions"].shape == (6, 6, 6)
    table = cases_table(data, found, ignore_index=VOID)
    assert table.columns == ["case", "sample", "image", "label", "prediction", "accuracy"]
    counted = found["targets"] != VOID
    right = [((found["predictions"] == found["targets"]) & counted)[k].sum() / counted[k].sum() for k in range(6)]
    assert sorted(row[-1] for row in table._rows) == pytest.approx(sorted(map(float, right)))


@pytest.mark.parametrize("class_weights", [None, "balanced"])
def test_micro_batches_of_masks_weigh_as_the_whole(data, class_weights):
    loss = build_loss(None, {}, class_weights, data, CPU)
    inputs, targets = (torch.cat(parts) for parts in zip(*data.train.epoch(1), strict=True))
    outputs = torch.randn(len(inputs), 2, 6, 6)
    parts = [(loss(outputs[at], targets[at]), loss.normalizer(targets[at])) for at in (slice(0, 5), slice(5, None))]
    total = sum(weight for _, weight in parts)
    joined = sum(value * weight / total for value, weight in parts)
    torch.testing.assert_close(joined, loss(outputs, targets))


@pytest.mark.parametrize("weights", [None, [1.0, 5.0]])
def test_micro_batches_of_mixed_targets_weigh_as_the_whole(weights):
    source = Source(np.random.default_rng(0).normal(size=(40, 1, 4, 4)).astype(np.float32), np.arange(40) % 2)
    config = {**DEFAULTS, "batch_size": 6, "transforms": ["mixup"]}
    data = make_batches(prepare(source, config, 0), config, 0, CPU)
    loss = build_loss(None, {}, weights, data, CPU)
    inputs, targets = (torch.cat(parts) for parts in zip(*data.train.epoch(1), strict=True))
    outputs = torch.randn(len(inputs), 2)
    parts = [(loss(outputs[at], targets[at]), loss.normalizer(targets[at])) for at in (slice(0, 5), slice(5, None))]
    joined = sum(value * weight / len(inputs) for value, weight in parts)
    torch.testing.assert_close(joined, loss(outputs, targets))


def test_samples_of_any_structure_have_no_usual_loss():
    config = {**DEFAULTS, "batch_size": 4}
    samples = [{"text": "a"}] * 40
    source = Source(samples, None, digest="", is_structured=True)
    data = make_batches(prepare(source, config, 0), config, 0, CPU)
    with pytest.raises(DataError, match="the predictions for data of the task custom are no table"):
        record_predictions(None, {"predictions": torch.zeros(4)}, data)
    with pytest.raises(
        LossError, match=r"loss.name: got None, but there is no default for the task custom; set loss.name"
    ):
        build_loss(None, {}, None, data, CPU)
