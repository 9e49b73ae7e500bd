from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.ingredients.models.modules import layers_of
from sacristan.ingredients.models.networks import CNN, MLP, ViT


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
