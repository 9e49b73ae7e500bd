from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from sacristan.ingredients import ConfigError, ModelError
from sacristan.ingredients.models.building import check_init, initialize


class Net(nn.Module):
    """Has a layer of each kind."""

    def __init__(self, padding_idx=3):
        super().__init__()
        self.words = nn.Embedding(50, 64, padding_idx=padding_idx)
        self.attention = nn.MultiheadAttention(64, 4)
        self.cross = nn.MultiheadAttention(64, 4, kdim=32, vdim=16)
        self.lstm = nn.LSTM(64, 64, 2, bidirectional=True, proj_size=8)
        self.gru = nn.GRU(64, 64)
        self.cell = nn.LSTMCell(64, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Sequential(nn.Conv1d(64, 64, 3), nn.Linear(64, 50))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def is_orthogonal(block, gain=1.0):
    rows = block if block.shape[0] <= block.shape[1] else block.T
    return torch.allclose(rows @ rows.T, gain**2 * torch.eye(len(rows)), atol=1e-4)


def test_init_draws_each_block_of_attention_by_itself(model):
    initialize(model, {"name": "orthogonal", "gain": 2.0})
    assert all(is_orthogonal(block, 2.0) for block in model.attention.in_proj_weight.chunk(3))
    assert not is_orthogonal(model.attention.in_proj_weight, 2.0)
    for name in ("q", "k", "v"):
        assert is_orthogonal(getattr(model.cross, f"{name}_proj_weight"), 2.0)
    assert is_orthogonal(model.attention.out_proj.weight, 2.0)
    assert (model.attention.in_proj_bias == 0).all()
    assert (model.attention.out_proj.bias == 0).all()


@pytest.mark.parametrize(("layer", "num_gates"), [("lstm", 4), ("gru", 3), ("cell", 4)])
def test_init_draws_each_gate_by_itself(model, layer, num_gates):
    initialize(model, {"name": "orthogonal"})
    weights = {name: value for name, value in getattr(model, layer).named_parameters() if "weight_hr" not in name}
    for name, value in weights.items():
        if name.startswith("weight"):
            assert all(is_orthogonal(block) for block in value.chunk(num_gates)), name
        else:
            assert (value == 0).all(), name
    assert is_orthogonal(model.lstm.weight_hr_l0)


def test_init_has_the_deviation_of_a_gate_and_not_of_all_gates(model):
    initialize(model, {"name": "xavier_normal"})
    assert model.gru.weight_ih_l0.std().item() == pytest.approx(math.sqrt(2 / 128), rel=0.05)


def test_init_sets_the_bias_of_forget_gates_alone(model):
    initialize(model, {"name": "orthogonal", "forget_bias": 1.0})
    for name, value in (*model.lstm.named_parameters(), *model.cell.named_parameters()):
        if name.startswith("bias_ih"):
            expected = torch.zeros(256)
            expected[64:128] = 1.0
            assert torch.equal(value, expected), name
        elif name.startswith("bias_hh"):
            assert (value == 0).all(), name
    assert (model.gru.bias_ih_l0 == 0).all()


def test_init_draws_embeddings_and_leaves_their_padding_zero(model):
    initialize(model, {"name": "normal", "mean": 5.0, "std": 0.1})
    rows = torch.arange(50) != 3
    assert model.words.weight[rows].mean().item() == pytest.approx(5.0, rel=0.01)
    assert (model.words.weight[3] == 0).all()


def test_init_of_tied_weights_leaves_the_padding_zero(model):
    model.head[1].weight = model.words.weight
    initialize(model, {"name": "normal"})
    assert (model.words.weight[3] == 0).all()
    assert (model.words.weight[4] != 0).any()


def test_init_takes_the_first_entry_that_matches_and_leaves_the_rest_as_built(model):
    before = copy.deepcopy(model.state_dict())
    initialize(model, [{"match": "head.1", "name": "zeros"}, {"match": "head", "name": "constant", "val": 2.0}])
    assert (model.head[1].weight == 0).all()
    assert (model.head[0].weight == 2).all()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items() if "head" not in name)


def test_init_with_default_keeps_a_part_as_built(model):
    before = model.head[1].weight.clone()
    initialize(model, [{"match": "head.1", "name": "default"}, {"match": "*", "name": "zeros"}])
    assert torch.equal(model.head[1].weight, before)
    assert (model.gru.weight_hh_l0 == 0).all()


def test_init_by_name_alone_draws_linear_and_convolution_layers_as_ever(model):
    before = copy.deepcopy(model.state_dict())
    initialize(model, "zeros")
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    linear = ["attention.out_proj", "cross.out_proj", "head.0", "head.1"]
    assert changed <= {f"{layer}.{name}" for layer in linear for name in ("weight", "bias")}
    assert {f"{layer}.weight" for layer in linear} <= changed


@pytest.mark.parametrize("name", ["xavier", "kaiming"])
def test_init_by_short_name_draws_what_it_stands_for(model, name):
    found = []
    for init in (name, {"xavier": "xavier_uniform", "kaiming": "kaiming_normal"}[name]):
        torch.manual_seed(0)
        initialize(model, init)
        found.append(model.head[0].weight.clone())
    assert torch.equal(*found)


def test_init_by_a_function_of_ones_own(model):
    initialize(model, {"name": "torch.nn.init:constant_", "val": 7.0})
    assert (model.head[0].weight == 7).all()


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("kaimin", r"got 'kaimin', which is unknown; did you mean kaiming\?"),
        ("", r"there are: default, xavier, kaiming, constant, "),
        ({"gain": 1.0}, r"expected an entry like \{match"),
        ([{"name": "zeros"}], r"expected an entry like \{match"),
        (["zeros"], r"got 'zeros', expected an entry like \{match"),
        ({"name": "orthogonal", "gian": 1.0}, r"model.init.gian: .* takes no option 'gian'; did you mean 'gain'"),
        ({"name": "constant"}, r"needs a value for 'val'"),
        ({"name": "normal", "tensor": 1}, r"gets 'tensor' from the lab"),
        ({"name": "default", "forget_bias": 1.0}, r"default leaves weights as built, and takes no forget_bias"),
        ({"name": "default", "std": 1.0}, r"default leaves weights as built, and takes no std"),
        ({"name": "zeros", "forget_bias": "1"}, r"got forget_bias='1', expected a number"),
    ],
)
def test_init_that_cannot_be_raises(init, message):
    with pytest.raises((ModelError, ConfigError), match=rf"model.init.*{message}|{message}"):
        check_init(init)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"name": "dirac"}, r"dirac refuses weights of shape \[50, 64\]: "),
        ({"name": "kaiming_normal", "mode": "fan"}, r"kaiming_normal, mode='fan' refuses weights of shape"),
        ([{"match": "haed", "name": "zeros"}], r"'haed' matches no module and no parameter; did you mean head\?"),
        ([{"match": "norm", "name": "zeros"}], r"'norm' matches no layer whose weights can be drawn"),
        (
            [{"match": "*", "name": "zeros"}, {"match": "head", "name": "ones"}],
            r"'head' matches no layer .*put it first",
        ),
    ],
)
def test_init_that_does_not_fit_the_model_raises(model, init, message):
    with pytest.raises(ModelError, match=rf"model.init: {message}"):
        initialize(model, init)
