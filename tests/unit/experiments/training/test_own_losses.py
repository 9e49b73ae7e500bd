"""Losses of the user's own: how they join samples, what of them is trained, and that checkpoints hold it."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Supervised, Trainer, evaluate, fit, steps_per_epoch
from sacristan.experiments.training.gradients import add_gradients
from sacristan.ingredients import Checkpointer, CheckpointError, LossError, MixedPrecision, TrainingError, seed_globals
from sacristan.ingredients.checkpoints.files import load_checkpoint, load_weights
from sacristan.ingredients.losses import build_loss
from sacristan.ingredients.losses.modules import averaging_of
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.scheduler import build_schedule

CPU = torch.device("cpu")
_GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(24, 4, generator=_GENERATOR)
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()


class Scaled(nn.Module):
    """Cross entropy at a temperature that is learnt: a parameter called `weight`, as long as there are classes."""

    def __init__(self, size=3):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 2.0))

    def forward(self, outputs, targets):
        return functional.cross_entropy(outputs * self.weight.mean(), targets) + 0.1 * self.weight.square().mean()


class Summed(nn.Module):
    def forward(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum")


class PlainlyWeighted(nn.Module):
    """Weighs classes, and divides by the number of samples, not by their weights."""

    def __init__(self, weight=None):
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 5.0]) if weight is None else weight)

    def forward(self, outputs, targets):
        return (functional.cross_entropy(outputs, targets, reduction="none") * self.weight[targets]).mean()


class TwoTasks(PlainlyWeighted):
    """Has a buffer called `weight` that has nothing to do with classes."""

    def __init__(self):
        super().__init__(torch.tensor([1.0, 3.0]))

    def forward(self, outputs, targets):
        return self.weight[0] * functional.cross_entropy(outputs, targets) + self.weight[1] * outputs.square().mean()


class Weighted(nn.CrossEntropyLoss):
    """A subclass of torch's: divides by the weights."""


class Drifting(nn.Module):
    """Keeps a statistic of what it has seen in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs, targets):
        if self.training:
            self.seen += len(targets)
        return functional.cross_entropy(outputs, targets) * (1 + 0.01 * self.seen)


class Fussy(nn.Module):
    """Refuses all but the outputs of its own model."""

    def forward(self, outputs, targets):
        if len(outputs) == 6:
            raise RuntimeError("not mine")
        return functional.cross_entropy(outputs, targets)


OWN = {
    "Scaled": "mean",
    "Summed": "sum",
    "PlainlyWeighted": "mean",
    "TwoTasks": "mean",
    "Weighted": "weights",
    "Drifting": "mean",
    "Fussy": "mean",
}


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Let this file be imported as `own`, as a user's module is."""
    monkeypatch.setitem(sys.modules, "own", sys.modules[__name__])


@pytest.fixture
def data(tensor_data):
    return tensor_data((INPUTS, LABELS), (INPUTS, LABELS), batch_size=10)


def backward(model, group, loss, amp):
    """Return the loss of one effective batch, after adding its gradients to the model's."""
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters.values()], lr=1.0)
    trainer = Trainer(model, Supervised(loss), None, {"": optimizer}, {}, amp, None)
    return add_gradients(
        lambda batch: trainer.task.loss(model, batch), group, trainer.task, amp, optimizer, trainer.note
    )


def loss_for(data, name, options=None):
    given = {"weight": [1.0, 2.0, 5.0]} if name == "Weighted" else {}
    return build_loss(f"own:{name}", given if options is None else options, None, data, CPU)


def make_model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def train(data, loss, *, epochs=3, optimizer_loss=None, **settings):
    model, log = make_model(), []
    seed_globals(3)
    optimizer = build_optimizer(model, "SGD", 0.1, loss=loss if optimizer_loss is None else optimizer_loss)
    schedule = build_schedule(optimizer, epochs, steps_per_epoch(data.train, 1))
    settings = {"scheduler": schedule, "log_interval": 1, "epochs": epochs, **settings}
    fit(model, data, loss, optimizer, log=lambda *point: log.append(point), **settings)
    return model, log


@pytest.mark.parametrize("name", OWN)
def test_own_loss_says_how_it_joins_samples(data, name):
    assert loss_for(data, name).averaging == OWN[name]


def test_parameter_called_weight_is_no_weight_of_classes():
    assert averaging_of(Scaled(), "classes") == "mean"


@pytest.mark.parametrize("name", [name for name in OWN if name != "Drifting"])
@pytest.mark.parametrize("parts", [[8, 8, 8], [20, 3, 1]])
def test_own_loss_under_accumulation_has_the_gradients_of_one_big_batch(data, name, parts):
    found = []
    for sizes in ([24], parts):
        model, loss = make_model(), loss_for(data, name)
        group = list(zip(INPUTS.split(sizes), LABELS.split(sizes), strict=True))
        value = backward(model, group, loss, MixedPrecision(CPU)).item()
        own = [parameter.grad.flatten() for parameter in loss.parameters.values()]
        found.append(torch.cat([model.weight.grad.flatten(), *own, torch.tensor([value])]))
    assert torch.allclose(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in OWN if name != "Drifting"])
def test_own_loss_is_evaluated_as_on_one_big_batch_per_sample(data, name):
    model, loss = make_model(), loss_for(data, name)
    with torch.no_grad():
        whole = loss(model(INPUTS), LABELS).item() / (24 if name == "Summed" else 1)
    assert evaluate(model, data.val, loss)["loss"] == pytest.approx(whole, rel=1e-5)


def test_sum_is_logged_per_sample_in_training_and_validation(data):
    model, log = make_model(), []
    optimizer = build_optimizer(model, "SGD", 1e-9)
    fit(model, data, loss_for(data, "Summed"), optimizer, log=lambda *point: log.append(point), epochs=1)
    values = {name: value for name, value, _ in log}
    assert values["val/loss"] == pytest.approx(functional.cross_entropy(model(INPUTS), LABELS).item(), rel=1e-4)
    assert values["train/loss"] == pytest.approx(values["val/loss"], rel=0.2)


def test_sum_of_torch_is_a_sum(data):
    assert build_loss("cross_entropy", {"reduction": "sum"}, None, data, CPU).averaging == "sum"


def test_measuring_a_loss_leaves_its_statistics_and_the_generators(data):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert loss_for(data, "Drifting").module.seen == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_of_a_loss_are_trained(data):
    loss = loss_for(data, "Scaled")
    train(data, loss)
    assert (loss.module.weight < 2.0).all()


def test_parameters_of_a_loss_that_the_optimizer_lacks_are_refused(data):
    loss = loss_for(data, "Scaled")
    with pytest.raises(LossError, match=r"Scaled has parameters of its own \(weight\) .*make_optimizer\(network, crit"):
        train(data, loss, optimizer_loss=loss_for(data, "Summed"))


def test_parameters_of_a_loss_that_become_nan_stop_the_training(data):
    data.train.batch_size, loss = 24, loss_for(data, "Scaled")
    loss.module.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(TrainingError, match=r"weights are NaN or infinite \(weight\)"):
        train(data, loss, epochs=1, log_interval=100)


@pytest.mark.parametrize("name", ["Scaled", "Drifting"])
def test_loss_that_training_changes_is_resumed_to_the_same_bits(data, tmp_path, name):
    whole, others = loss_for(data, name), loss_for(data, name)
    model, log = train(data, whole)
    train(data, loss_for(data, name), epochs=2, checkpointer=Checkpointer(tmp_path, {}))
    again, rest = train(data, others, checkpointer=Checkpointer(tmp_path, {}, resume=True))
    assert torch.equal(again.weight, model.weight)
    assert rest == log[-len(rest) :] != []
    states = [loss.module.state_dict() for loss in (whole, others)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_best_checkpoint_holds_the_loss_for_evaluation(data, tmp_path):
    loss, keeper = loss_for(data, "Scaled"), Checkpointer(tmp_path, {})
    model, log = train(data, loss, checkpointer=keeper)
    best = min(value for name, value, _ in log if name == "val/loss")
    again, fresh = make_model(), loss_for(data, "Scaled")
    load_weights(again, keeper.best_path, {}, fresh.module)
    assert evaluate(again, data.val, fresh)["loss"] == best
    loss.module.weight.data.zero_()
    keeper.restore_best(model)
    assert evaluate(model, data.val, loss)["loss"] == best
    with pytest.raises(CheckpointError, match=r"best.pt: its loss does not fit this one"):
        load_weights(again, keeper.best_path, {}, loss_for(data, "Scaled", {"size": 5}).module)


def test_loss_that_training_does_not_change_is_in_no_checkpoint(data, tmp_path):
    keeper = Checkpointer(tmp_path, {})
    train(data, loss_for(data, "Weighted"), checkpointer=keeper)
    assert "loss" not in load_checkpoint(keeper.last_path) | load_checkpoint(keeper.best_path)
