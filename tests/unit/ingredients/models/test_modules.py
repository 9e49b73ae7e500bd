"""What is asked of any module: its layers in order, its features."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sacristan.ingredients import CNN, MLP, ModelError, ViT
from sacristan.ingredients.models import make_feature_extractor
from sacristan.ingredients.models.modules import Freezing, layers_of, will_train


class Encoder(nn.Module):
    """As transformers are written: a list of blocks within modules of their own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(nn.TransformerEncoderLayer(4, 2, 8) for _ in range(2))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.body = nn.Module()
        self.body.words = nn.Embedding(10, 4)
        self.body.encoder = Encoder()
        self.head = nn.Linear(4, 10)
        self.head.weight = self.body.words.weight  # tied


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (MLP((1, 8, 8), 10, [16, 8]), ["1", "3", "5"]),
        (CNN((1, 8, 8), 10, [4, 8]), ["0", "3", "4", "7"]),
        (ViT((1, 8, 8), 10, depth=2), ["embed.1", "encoder.0", "encoder.1", "head.2"]),
        (Text(), ["body.words", "body.encoder.layer.0", "body.encoder.layer.1", "head"]),
        (nn.Linear(3, 2), [""]),
        (nn.ReLU(), []),
    ],
)
def test_layers_have_each_parameter_once_in_order(model, names):
    layers = layers_of(model)
    assert [name for name, _ in layers] == names
    assert sorted(name for _, own in layers for name in own) == sorted(name for name, _ in model.named_parameters())


def test_layers_take_norms_to_the_layer_before_and_other_parameters_to_the_first():
    layers = dict(layers_of(ViT((1, 8, 8), 10, depth=1)))
    assert "positions" in layers["embed.1"]
    assert "head.0.weight" in layers["encoder.0"]


def test_layers_of_a_compiled_model_have_plain_names():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    assert layers_of(torch.compile(model, backend="eager")) == layers_of(model)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Sequential(nn.Linear(4, 5), nn.ReLU()), "norm": nn.BatchNorm1d(5)})
        self.head = nn.Linear(5, 3)
        self.spare = nn.Linear(5, 1)

    def forward(self, inputs):
        return self.head(self.body["norm"](self.body["first"](inputs)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def num_hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def test_features_are_what_nested_layers_return_under_the_names_that_were_given(net):
    inputs = torch.randn(6, 4)
    extract = make_feature_extractor(net, {"head": "scores", "body.first.0": "linear", "body.first": "hidden"})
    found = extract.eval()(inputs)
    assert list(found) == ["scores", "linear", "hidden"]
    assert torch.equal(found["scores"], net(inputs))
    assert torch.equal(found["linear"], net.body["first"][0](inputs))
    assert torch.equal(found["hidden"], found["linear"].relu())
    assert num_hooks(net) == 0


def test_extractor_shares_mode_weights_and_gradients_with_the_model(net):
    extract = make_feature_extractor(net, {"body.norm": "hidden"})
    inputs = torch.randn(6, 4)
    before = net.body["norm"].running_mean.clone()
    trained = extract.train()(inputs)["hidden"]
    assert not torch.equal(net.body["norm"].running_mean, before)
    assert not torch.equal(extract.eval()(inputs)["hidden"], trained)
    trained.square().sum().backward()
    assert net.body["first"][0].weight.grad is not None
    assert {id(p) for p in extract.parameters()} == {id(p) for p in net.parameters()}


def test_hooks_are_gone_after_an_error(net):
    extract = make_feature_extractor(net, {"head": "scores"})
    with pytest.raises(RuntimeError, match="shapes"):
        extract(torch.randn(6, 7))
    assert num_hooks(net) == 0


def test_layers_that_are_not_there_or_not_called_are_refused(net):
    with pytest.raises(ModelError, match=r"Net has no layer 'body.frist'; did you mean body.first\?"):
        make_feature_extractor(net, {"body.frist": "x"})
    with pytest.raises(ModelError, match=r"has no layer 'q'; there are: body, body.first"):
        make_feature_extractor(net, {"q": "x"})
    with pytest.raises(ModelError, match="got the names x, x; expected a different one for each layer"):
        make_feature_extractor(net, {"head": "x", "body": "x"})
    with pytest.raises(ModelError, match="the model did not call spare for this input"):
        make_feature_extractor(net, {"spare": "x"})(torch.randn(2, 4))


def test_room_exports_nothing_else():
    from sacristan.ingredients import models

    with pytest.raises(AttributeError, match=r"module 'sacristan\.ingredients\.models' has no attribute 'nothing'"):
        _ = models.nothing


class NetWithHead(nn.Module):
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
    return NetWithHead()


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
