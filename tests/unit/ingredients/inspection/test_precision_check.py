from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.ingredients.inspection.profiling import measure, print_check, unaligned_layers
from sacristan.ingredients.losses import build_loss

CPU = torch.device("cpu")
INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.fixture
def found(tensor_data, model):
    data = tensor_data((INPUTS, torch.arange(12) % 3))
    return measure(model, build_loss(None, {}, None, data, CPU), data, CPU, num_steps=2)


def test_measure_has_a_row_for_each_supported_precision(found):
    assert [row["dtype"] for row in found["rows"]] == ["float32", "float16", "bfloat16"]
    assert found["supported"] == {"float16": True, "bfloat16": True}
    assert (found["device"], found["batch_size"]) == ("cpu", 8)
    assert found["auto"] in ("off", "bfloat16")


def test_measure_compares_with_float32(found):
    first, *others = found["rows"]
    assert (first["speed"], first["loss_difference"]) == (1.0, 0.0)
    for row in others:
        assert row["loss_difference"] == row["loss"] - first["loss"] != 0
        assert row["loss"] == pytest.approx(first["loss"], rel=0.05)
        assert row["speed"] == first["ms_per_step"] / row["ms_per_step"]


def test_measure_leaves_the_model_as_it_was(tensor_data, model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = tensor_data((INPUTS, torch.arange(12) % 3))
    measure(model, build_loss(None, {}, None, data, CPU), data, CPU, num_steps=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_unaligned_layers_are_those_with_sizes_that_are_no_multiples_of_eight():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3), nn.Linear(8, 10), nn.LayerNorm(10))
    assert unaligned_layers(model) == [
        {"name": "0", "type": "Conv2d", "sizes": {"in_channels": 3}},
        {"name": "2", "type": "Linear", "sizes": {"out_features": 10}},
    ]


def test_print_check_shows_device_rows_and_unaligned_layers(found, capsys):
    print_check(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"device: cpu; supports float16 yes, bfloat16 yes; amp.dtype=auto means {found['auto']}"
    assert lines[1] == "one training step on 8 samples:"
    assert [line.split()[0] for line in lines[2:6]] == ["precision", "float32", "float16", "bfloat16"]
    assert lines[3].split()[2:] == ["1.00x", f"{found['rows'][0]['loss']:.6f}", "+0.0e+00"]
    assert lines[6:] == [
        "not a multiple of 8: 0 (Linear, in_features=4)",
        "not a multiple of 8: 2 (Linear, out_features=3)",
    ]
