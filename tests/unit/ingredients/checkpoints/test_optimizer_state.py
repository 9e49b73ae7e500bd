"""Momenta that the `state_dict` of an optimizer lacks, and optimizers that share their state with one inside them."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Task, fit
from sacristan.ingredients import Checkpointer
from sacristan.ingredients.checkpoints.optimizer_state import unsaved
from tests.optimizers import SAM, Lookahead, ScheduleFreeSGD

INPUTS = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
OF_TORCH = [
    cls
    for cls in vars(torch.optim).values()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
]


class Classify(Task):
    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])


def train(tensor_data, make, keeper, epochs=3):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    data = tensor_data((INPUTS, LABELS), (INPUTS, LABELS))
    fit(model, data, Classify(), make(model.parameters()), log=lambda *point: None, epochs=epochs, checkpointer=keeper)
    return model.weight.detach()


def resumed(tensor_data, make, folder):
    train(tensor_data, make, Checkpointer(folder, {}), epochs=1)
    return train(tensor_data, make, Checkpointer(folder, {}, resume=True))


def stepped(make):
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = make([weight])

    def closure():
        weight.grad = None
        with torch.enable_grad():
            loss = functional.embedding(torch.tensor([0, 1]), weight, sparse=make is torch.optim.SparseAdam).sum()
            loss.backward()
        return loss

    for _ in range(2):
        closure()
        optimizer.step(closure)
    return optimizer


@pytest.mark.parametrize("cls", OF_TORCH)
def test_state_dicts_of_torch_lack_nothing(cls):
    assert unsaved(stepped(cls)) == []


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (SAM, ["base_optimizer"]),
        (functools.partial(SAM, base=torch.optim.SGD, momentum=0.9), ["base_optimizer"]),
        (functools.partial(SAM, base=torch.optim.SGD), []),
        (functools.partial(SAM, shares=True), []),
        (Lookahead, ["slow"]),
    ],
)
def test_attributes_with_momenta_that_a_state_dict_lacks_are_named(make, names):
    assert unsaved(stepped(make)) == names


@pytest.mark.parametrize(("make", "lacking"), [(SAM, "SAM lacks the tensors in base_optimizer"), (Lookahead, "slow")])
def test_momenta_that_checkpoints_lack_are_warned_of_once_and_truly_change_a_resumed_training(
    tensor_data, tmp_path, caplog, make, lacking
):
    unbroken = train(tensor_data, make, Checkpointer(tmp_path / "unbroken", {}, interval_steps=1))
    assert [lacking in record.message for record in caplog.records] == [True]
    assert not torch.equal(resumed(tensor_data, make, tmp_path / "resumed"), unbroken)


@pytest.mark.parametrize("make", [functools.partial(SAM, shares=True), ScheduleFreeSGD, torch.optim.AdamW])
def test_training_goes_on_with_the_same_bits_and_without_a_warning(tensor_data, tmp_path, caplog, make):
    unbroken = train(tensor_data, make, None)
    assert torch.equal(resumed(tensor_data, make, tmp_path), unbroken)
    assert not caplog.records
