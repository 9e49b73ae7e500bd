from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sacristan.ingredients import ModelError
from sacristan.ingredients.models.freezing import Freezing, will_train


class Net(nn.Module):
    """A body with normalisation and dropout, and a head."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.features(inputs))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def frozen(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def in_eval(model):
    return {name for name, module in model.named_modules() if not module.training}


def take_steps(model, num_steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.5, weight_decay=0.1)
    for _ in range(num_steps):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["features.*"], {f"features.{n}.{name}" for n in (0, 1, 3, 4) for name in ("weight", "bias")}),
        (["features"], {f"features.{n}.{name}" for n in (0, 1, 3, 4) for name in ("weight", "bias")}),
        (
            ["features.[01]", "head.bias"],
            {"features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias", "head.bias"},
        ),
        (["*.bias"], {f"features.{n}.bias" for n in (0, 1, 3, 4)} | {"head.bias"}),
    ],
)
def test_freezing_freezes_what_the_globs_match(model, globs, expected):
    Freezing(model, globs)
    assert frozen(model) == expected


def test_frozen_parts_are_bit_equal_after_training_with_their_statistics(model):
    Freezing(model, ["features.[01]"])
    before = copy.deepcopy(model.state_dict())
    take_steps(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name for name in before if name.startswith(("features.0", "features.1."))} & changed == set()
    assert {"features.4.running_mean", "features.3.weight", "head.bias"} <= changed


def test_frozen_norms_stay_in_evaluation_mode_whatever_is_asked_for(model):
    Freezing(model, ["features.0", "features.1"])
    model.train()
    assert in_eval(model) == {"features.1"}
    model.features.train()
    model.features[1].train()
    assert in_eval(model) == {"features.1"}


def test_norm_of_which_all_parameters_are_frozen_stays_in_evaluation_mode(model):
    Freezing(model, ["features.1.weight", "features.1.bias", "features.4.weight"])
    assert in_eval(model.train()) == {"features.1"}


def test_freezing_the_whole_keeps_dropout_in_evaluation_mode(model):
    Freezing(model, ["features"], whole=True)
    assert in_eval(model.train()) == {"features", *(f"features.{n}" for n in range(5))}


def test_copy_of_a_frozen_model_is_frozen_by_itself(model):
    freezing = Freezing(model, ["features.1"], [{"epoch": 2, "match": "features.4"}])
    other = copy.deepcopy(model)
    other.features[1].training = True
    freezing.begin_epoch(2)
    assert in_eval(model.train()) == {"features.1"}
    assert in_eval(other.train()) == {"features.1", "features.4"}


def test_unfreezing_follows_the_epochs_in_any_order(model):
    freezing = Freezing(
        model,
        ["features.*"],
        [{"epoch": 2, "match": ["features.3", "features.4"]}, {"epoch": 4, "match": "features.0"}],
    )
    upper = {"features.3.weight", "features.3.bias", "features.4.weight", "features.4.bias"}
    lower, norm = {"features.0.weight", "features.0.bias"}, {"features.1.weight", "features.1.bias"}
    assert frozen(model) == upper | lower | norm
    for epoch, closed, held in (
        (2, lower | norm, {"features.1"}),
        (4, norm, {"features.1"}),
        (1, upper | lower | norm, {"features.1", "features.4"}),
    ):
        freezing.begin_epoch(epoch)
        assert frozen(model) == closed
        assert in_eval(model.train()) == held


def test_unfreezing_leaves_what_others_froze(model):
    model.head.bias.requires_grad_(False)
    Freezing(model, [], [{"epoch": 2, "match": "features.*"}]).begin_epoch(2)
    assert frozen(model) == {"head.bias"}


def test_parameters_that_are_unfrozen_later_will_train(model):
    Freezing(model, ["features"], [{"epoch": 2, "match": "features.4"}])
    found = {name for name, parameter in model.named_parameters() if will_train(parameter)}
    assert found == {"features.4.weight", "features.4.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        (["featurs.*"], r"'featurs.\*' matches no module and no parameter; did you mean features\?"),
        (["head.weigth"], r"did you mean head.weight\?"),
        (["x"], r"there are: features, head; model.summary shows all"),
    ],
)
def test_glob_that_matches_nothing_raises_with_the_nearest(model, globs, message):
    with pytest.raises(ModelError, match=rf"model.freeze: .*{message}"):
        Freezing(model, globs)
    with pytest.raises(ModelError, match=rf"model.unfreeze: .*{message}"):
        Freezing(model, [], [{"epoch": 2, "match": globs}])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("features", "got 'features', expected an entry like"),
        ({"match": "features"}, "expected an entry like"),
        ({"epoch": 1, "match": "features"}, "got epoch=1, expected the first that trains 'features': 2 or later"),
        ({"epoch": "3", "match": "features"}, "got epoch='3', expected"),
        ({"epoch": 2, "match": []}, "expected a glob such as"),
        ({"epoch": 2, "match": [1]}, "expected a glob such as"),
        ({"epoch": 2, "match": 1}, "expected a glob such as"),
    ],
)
def test_unfreezing_that_cannot_be_raises(model, entry, message):
    with pytest.raises(ModelError, match=rf"model.unfreeze: .*{message}"):
        Freezing(model, [], [entry])
