"""What is asked of any module: its layers in order, its features."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.ingredients import CNN, MLP, ModelError, ViT
from sacristan.ingredients.models import make_feature_extractor
from sacristan.ingredients.models.modules import layers_of


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
