"""Receptive fields against the gradient of a middle value by the input, which is where it can depend on it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ingredients.models.networks import CNN
from ingredients.models.receptive_field import receptive_fields


def measured(model, layer, inputs):
    """Return how far the input places are apart on which a value in the middle of a layer depends."""
    kept = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output))
    found = inputs.clone().requires_grad_()
    model(found)
    handle.remove()
    (output,) = kept
    middle = tuple(size // 2 for size in output.shape[2:])
    output[(slice(None), slice(None), *middle)].sum().backward()
    places = found.grad.abs().sum((0, 1)).nonzero()
    return (places.amax(0) - places.amin(0) + 1).tolist()


class Residual(nn.Module):
    """A branch beside a shortcut, joined by a sum, then by channels."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 5, padding=2))
        self.joined = nn.Conv2d(2, 1, 3, padding=2, dilation=2)

    def forward(self, inputs):
        summed = self.branch(inputs) + inputs
        return self.joined(torch.cat([summed, inputs], 1))


MODELS = {
    "strides": (nn.Sequential(nn.Conv2d(1, 2, 7, 2, 3), nn.AvgPool2d(3, 2, 1), nn.Conv2d(2, 2, 3)), (1, 64, 64)),
    "one dimension": (nn.Sequential(nn.Conv1d(2, 3, 5, 2), nn.AvgPool1d(2), nn.Conv1d(3, 3, 3, dilation=2)), (2, 100)),
    "three dimensions": (nn.Sequential(nn.Conv3d(1, 1, 3), nn.Conv3d(1, 1, (1, 2, 3))), (1, 9, 9, 9)),
    "shortcut and channels": (Residual(), (1, 24, 24)),
    "norm, in place, dropout": (
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Hardswish(inplace=True), nn.Dropout(), nn.Conv2d(2, 2, 2)
        ),
        (1, 12, 12),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_field_is_where_gradients_reach(name):
    torch.manual_seed(0)
    model, shape = MODELS[name]
    inputs = torch.randn(1, *shape)
    found = receptive_fields(model.eval(), inputs)
    leaves = [name for name, module in model.named_modules() if not any(module.children())]
    assert list(found) == leaves
    assert found == {leaf: measured(model, leaf, inputs) for leaf in leaves}


def test_field_does_not_end_with_the_input():
    model = CNN((1, 8, 8), 10, widths=[32, 64]).eval()
    assert receptive_fields(model, torch.zeros(1, 1, 8, 8))["4.activation"] == [13, 13]


@pytest.mark.parametrize(
    "last",
    [
        nn.Flatten(),
        nn.AdaptiveAvgPool2d(1),
        nn.GroupNorm(1, 2),
        nn.ConvTranspose2d(2, 2, 3),
        nn.Upsample(scale_factor=2),
    ],
    ids=lambda module: type(module).__name__,
)
def test_field_that_is_not_defined_is_left_out_and_so_is_what_follows(last):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), last, nn.ReLU()).eval()
    assert receptive_fields(model, torch.zeros(1, 1, 8, 8)) == {"0": [3, 3]}


def test_values_have_no_field():
    assert receptive_fields(nn.Linear(4, 2).eval(), torch.zeros(1, 4)) == {}
