from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from sacristan.experiments import Callback, Task, fit
from sacristan.ingredients import ModelError
from sacristan.ingredients.losses import build_loss
from sacristan.ingredients.models.modules import Freezing
from sacristan.ingredients.optimizer import build_optimizer


class Reconstruction(Task):
    def loss(self, model, batch):
        return (model(batch[0]) - batch[0]).square().mean()


class Recording(Callback):
    """Keeps the weights at the beginning and after each step."""

    def start(self, trainer):
        self.states = [self.state_of(trainer)]

    def after_step(self, trainer):
        self.states.append(self.state_of(trainer))

    def state_of(self, trainer):
        return {name: value.clone() for name, value in trainer.model.state_dict().items()}


class Wrapped(nn.Module):
    """Has a model of the lab within."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, inputs):
        return self.network(inputs)


@pytest.fixture
def data(tensor_data):
    inputs, targets = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(24).long()
    return tensor_data((inputs, targets), (inputs, targets), task="classification", classes=["a"])


@pytest.mark.parametrize("wrap", [lambda network: network, Wrapped])
def test_parts_are_trained_from_the_first_step_of_their_epoch_on(data, wrap, caplog):
    caplog.set_level("INFO", "sacristan.experiments.training.callbacks")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 4))
    Freezing(network, ["0", "1", "2"], [{"epoch": 2, "match": "2"}, {"epoch": 3, "match": ["1"]}])
    model, seen = wrap(network), Recording()
    optimizer = build_optimizer(model, "AdamW", lr=0.1, weight_decay=0.5)
    fit(model, data, Reconstruction(), optimizer, log=lambda *point: None, epochs=3, callbacks=[seen])
    prefix = "network." if wrap is Wrapped else ""
    for part, first_epoch in (("0.weight", 4), ("1.weight", 3), ("1.running_mean", 3), ("2.weight", 2), ("3.bias", 1)):
        changes = [
            not torch.equal(one[prefix + part], other[prefix + part]) for one, other in itertools.pairwise(seen.states)
        ]
        assert changes == [step >= 3 * (first_epoch - 1) for step in range(9)], part
    assert caplog.messages == ["from epoch 2 on, 2 are trained", "from epoch 3 on, 1 are trained"]


def test_parts_that_the_training_never_comes_to_are_warned_of(data, caplog):
    network = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    Freezing(network, [], [{"epoch": 3, "match": "0"}])
    optimizer = build_optimizer(network, "SGD", lr=0.1)
    fit(network, data, Reconstruction(), optimizer, log=lambda *point: None, epochs=2)
    assert "model.unfreeze: 0 stay frozen: the training has 2 epochs" in caplog.messages


def test_first_epoch_in_which_nothing_is_trained_is_refused_before_the_first_step(data):
    network = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    Freezing(network, ["0"], [{"epoch": 3, "match": "1"}])
    with pytest.raises(ModelError, match=r"^model.unfreeze: nothing is trained in the first epoch, as 1 and all else"):
        fit(network, data, Reconstruction(), build_optimizer(network, "SGD", lr=0.1), log=print, epochs=4)


def test_last_batch_of_one_sample_is_fine_for_a_frozen_norm(tensor_data):
    inputs, targets = torch.randn(9, 4), torch.zeros(9).long()
    data = tensor_data((inputs, targets), (inputs, targets), task="classification", classes=["a", "b"])
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    Freezing(network, ["1"])
    loss = build_loss(None, {}, None, data, torch.device("cpu"))
    fit(network, data, loss, build_optimizer(network, "SGD", lr=0.1), log=lambda *point: None, epochs=1)
