"""One batch through a model, and `model.summary` of networks whose figures are known, or counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.ingredients import ConfigError
from sacristan.ingredients.inspection.probes import Probe, draw, feature_maps, look, print_seen, summarize


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(3 * 16, 2))


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(8, 1, 6, 6), torch.arange(8) % 2


def test_all_leaves_are_looked_at_and_nothing_stays(model, batch):
    found = look(model, nn.functional.cross_entropy, batch)
    assert [(seen.name, seen.kind) for seen in found] == [
        ("0", "Conv2d"),
        ("1", "ReLU"),
        ("2", "Flatten"),
        ("3", "Linear"),
    ]
    model.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    last = found[-1]
    norms = torch.stack([parameter.grad.norm() for parameter in model[3].parameters()])
    assert last.grad_norm == pytest.approx(norms.norm().item(), rel=1e-4)
    assert last.figures["output_mean"] == pytest.approx(model(batch[0]).mean().item(), abs=1e-5)
    assert all(not module._forward_hooks for module in model.modules())
    assert found[2].weight_norm is None


def test_globs_choose_and_a_glob_without_a_module_is_refused(model, batch):
    assert [seen.name for seen in look(model, nn.functional.cross_entropy, batch, ["[13]"])] == ["1", "3"]
    with pytest.raises(ConfigError, match=r"probe\.modules: got 'x', which is no module's name; there are: 0, 1, 2, 3"):
        look(model, nn.functional.cross_entropy, batch, ["x"])


@pytest.mark.slow
def test_what_was_seen_is_printed_and_drawn(model, batch, capsys, tmp_path):
    found = look(model, nn.functional.cross_entropy, batch)
    print_seen(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "type", "output"]
    assert lines[1].split()[:3] == ["0", "Conv2d", "3x4x4"]
    draw(found, tmp_path / "probe.png")
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")


def test_feature_maps_stand_side_by_side_each_over_its_own_range():
    maps = torch.stack([torch.linspace(0, 1, 9).view(3, 3), torch.full((3, 3), 7.0), torch.eye(3) * 1e3])
    image = feature_maps(maps)
    assert image.shape == (8, 8)
    assert (image.min(), image.max()) == (0, 1)
    torch.testing.assert_close(image[:3, :3], maps[0])
    torch.testing.assert_close(image[4:7, :3], torch.eye(3))


def test_probe_that_is_attached_again_has_forgotten_what_it_saw():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with Probe(model, dict(model.named_children()), ("inputs", "gradients")) as probe:
        model(torch.ones(1, 2)).sum().backward()
        assert list(probe.outputs) == list(probe.gradients)[::-1] == ["0", "1"]
        probe.attach()
        assert probe.outputs == probe.gradients == {}
        assert probe.is_attached
    assert not probe.is_attached
    model(torch.ones(1, 2)).sum().backward()
    assert probe.outputs == {}


# VGG-16, with a sixteenth of its channels; Simonyan and Zisserman 2015, https://arxiv.org/abs/1409.1556
VGG = [4, 4, "pool", 8, 8, "pool", *[16] * 3, "pool", *[32] * 3, "pool", *[32] * 3, "pool"]


def vgg():
    layers, channels = [], 3
    for width in VGG:
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers)


def test_vgg_has_the_operations_that_are_counted_by_hand():
    model = vgg()
    found = summarize(model, (3, 32, 32))
    layers = {layer["name"]: layer for layer in found["layers"]}
    operations, parameters, channels, size = 0, 0, 3, 32
    for name, module in model.named_children():
        own = 0
        if isinstance(module, nn.Conv2d):
            own = 2 * 9 * channels * module.out_channels * size * size
            parameters += (9 * channels + 1) * module.out_channels
            channels = module.out_channels
        elif isinstance(module, nn.MaxPool2d):
            size //= 2
        operations += own
        assert layers[name]["operations"] == own
        assert layers[name]["output"] == [channels, size, size]
        assert layers[name]["output_bytes"] == 4 * channels * size * size
    assert found["operations"] == operations
    assert found["parameters"] == found["trainable"] == parameters
    assert found["parameter_bytes"] == 4 * parameters


def test_operations_of_attention_are_those_that_are_counted_by_hand():
    length, width, hidden = 7, 8, 16
    model = nn.TransformerEncoderLayer(width, 2, hidden, batch_first=True)
    projections = 2 * length * width * (3 * width + width)
    attention = 2 * (2 * length * length * width)
    layers = 2 * (2 * length * width * hidden)
    assert summarize(model, (length, width))["operations"] == projections + attention + layers


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(10, 20, batch_first=True)
        self.head = nn.Linear(20, 3)

    def forward(self, inputs):
        return self.head(self.rnn(inputs)[0][:, -1])


@pytest.mark.parametrize(("kind", "num_gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_layers_have_the_operations_of_their_products(kind, num_gates):
    by_hand = 2 * 16 * num_gates * (10 * 20 + 20 * 20)
    found = summarize(Recurrent(kind), (16, 10))
    assert {row["name"]: row["operations"] for row in found["layers"]} == {"rnn": by_hand, "head": 2 * 20 * 3}
    assert found["operations"] == by_hand + 2 * 20 * 3
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == (True, True)


def test_every_operation_stands_in_the_row_of_the_module_that_does_it():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = summarize(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (8, 16))
    rows = {row["name"]: row["operations"] for row in found["layers"]}
    attention = 2 * 8 * 16 * 48 + 2 * 2 * 8 * 8 * 16 + 2 * 8 * 16 * 16  # in, scores and values, out
    assert rows["layers.0.self_attn"] == rows["layers.1.self_attn"] == attention
    assert sum(rows.values()) == found["operations"] > 0
