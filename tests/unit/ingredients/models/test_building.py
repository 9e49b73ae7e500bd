from __future__ import annotations

import importlib.util
import re
import sys

import pytest
import torch
from torch import nn

from sacristan.configs.packages import install_command
from sacristan.ingredients import ConfigError, MissingDependencyError, ModelError
from sacristan.ingredients.inspection.probes import summarize
from sacristan.ingredients.models.building import build_model, initialize

IMAGE = (1, 8, 8)


class Net(nn.Linear):
    """Takes what the lab knows, and an option of its own."""

    def __init__(self, input_shape, num_outputs, scale=1.0):
        super().__init__(input_shape[0], num_outputs)
        self.scale = scale


def make_lazy(num_outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_outputs))


def make_text():
    return "no module"


def aware(input_shape, num_outputs, preparation):
    model = nn.Linear(input_shape[0], num_outputs)
    model.preparation = preparation
    return model


@pytest.fixture(autouse=True)
def nets(monkeypatch):
    """Let this file be imported as `nets`, as a user's module is."""
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])


def build(name="mlp", options={}, init="default", shape=IMAGE, num_outputs=10, seed=0):
    return build_model(name, options, init, shape, num_outputs, seed)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", ["mlp", "cnn", "vit"])
def test_model_by_name_has_the_outputs_asked_for(name):
    assert build(name, num_outputs=3)(torch.zeros(2, *IMAGE)).shape == (2, 3)


def test_model_of_a_dotted_path_gets_shape_outputs_and_options():
    model = build("nets:Net", {"scale": 2.0}, shape=(5,), num_outputs=3)
    assert (model.in_features, model.out_features, model.scale) == (5, 3, 2.0)


def test_model_that_takes_it_gets_what_the_data_were_prepared_by():
    given = object()
    assert build_model("nets:aware", {}, "default", (5,), 3, 0, preparation=given).preparation is given
    assert build("nets:aware", shape=(5,), num_outputs=3).preparation is None


def test_model_of_a_dotted_path_with_own_arguments_gets_nothing_else():
    model = build("torch.nn.Linear", {"in_features": 5, "out_features": 3}, shape=(5,), num_outputs=3)
    assert type(model) is nn.Linear


def test_model_of_a_function_with_lazy_layers_is_ready_to_use():
    model = build("nets:make_lazy", num_outputs=3)
    assert model[1].weight.shape == (3, 64)


def test_model_with_lazy_layers_and_init_is_initialised():
    assert (build("nets:make_lazy", init="xavier", num_outputs=3)[1].bias == 0).all()


def test_model_option_given_by_user_wins_over_the_lab():
    assert build("nets:Net", {"input_shape": (64,)}, shape=(64,), num_outputs=3).in_features == 64


def test_model_in_training_mode_after_building():
    assert all(module.training for module in build("cnn").modules())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mpl", "did you mean mlp?"),
        ("resnet", "there are: mlp, cnn, vit, torchvision:NAME, package.module:Class"),
    ],
)
def test_model_with_unknown_name_raises_with_what_there_is(name, hint):
    with pytest.raises(ModelError, match=rf"model.name: got '{name}', which is unknown; {hint}".replace("?", r"\?")):
        build(name)


def test_model_with_unknown_option_raises_with_the_nearest():
    with pytest.raises(ConfigError, match=r"model.options.hiden: MLP takes no option 'hiden'; did you mean 'hidden'\?"):
        build("mlp", {"hiden": [3]})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"activation": "rrelu"}, "MLP refuses activation='rrelu': activation is 'rrelu', expected one of relu"),
        ("vit", {"heads": 5}, "ViT refuses heads=5: 5 heads do not divide a width of 64"),
        ("vit", {"patch": 3}, "ViT refuses patch=3: patches of 3 do not divide images of 8x8 pixels"),
        ("vit", {"patch": 0}, "ViT refuses patch=0: patch is 0, expected at least 1"),
        ("mlp", {"hidden": 5}, "MLP refuses hidden=5: .* not int"),
    ],
)
def test_model_with_refused_option_raises_with_the_reason(name, options, message):
    with pytest.raises(ModelError, match=f"model.options: {message}"):
        build(name, options)


def test_model_of_images_on_vectors_raises():
    with pytest.raises(ModelError, match=r"CNN refuses its defaults: inputs have shape \(30,\), expected images"):
        build("cnn", shape=(30,))


def test_model_with_too_few_outputs_raises():
    options = {"in_features": 5, "out_features": 4}
    with pytest.raises(ModelError, match=r"model.name=torch.nn.Linear returns 4 outputs, expected 3 for these data"):
        build("torch.nn.Linear", options, shape=(5,), num_outputs=3)


def test_model_that_does_not_take_the_inputs_raises():
    options = {"in_features": 5, "out_features": 3}
    with pytest.raises(ModelError, match=r"model.name=torch.nn:Linear does not take inputs of shape \(6,\): mat1"):
        build("torch.nn:Linear", options, shape=(6,), num_outputs=3)


def test_model_that_is_no_module_raises():
    with pytest.raises(ModelError, match=r"model.name: nets:make_text made a str, expected a torch.nn.Module"):
        build("nets:make_text")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.nets:Net", "there is no module 'nowhere'"),
        ("nets:Nett", "nets has no 'Nett'; did you mean 'Net'"),
    ],
)
def test_model_of_a_dotted_path_to_nothing_raises(name, message):
    with pytest.raises(ConfigError, match=f"model.name: got '{name}', but {message}"):
        build(name)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_model_of_torchvision_without_it_raises_with_the_extra():
    install = re.escape(install_command("torchvision"))
    message = f"torchvision:resnet18 needs the package 'torchvision', which is not installed; .*{install}"
    with pytest.raises(MissingDependencyError, match=message):
        build("torchvision:resnet18")


@pytest.mark.parametrize("init", ["default", "xavier", "kaiming", "orthogonal"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "vit"])
def test_init_with_the_same_seed_is_the_same_whatever_was_drawn_before(name, init):
    first = build(name, init=init)
    torch.rand(7)
    assert torch.equal(weights(first), weights(build(name, init=init)))
    assert not torch.equal(weights(first), weights(build(name, init=init, seed=1)))


def test_init_leaves_the_global_generator_as_it_was():
    before = torch.random.get_rng_state()
    build("cnn")
    assert torch.equal(before, torch.random.get_rng_state())


def test_init_orthogonal_gives_orthogonal_rows():
    weight = build("mlp", {"hidden": [16]}, init="orthogonal")[1].weight.detach()
    assert torch.allclose(weight @ weight.T, torch.eye(16), atol=1e-5)


@pytest.mark.parametrize(
    ("init", "std"),
    [("xavier", (2 / (400 + 300)) ** 0.5), ("kaiming", (2 / 400) ** 0.5), ("default", (1 / 1200) ** 0.5)],
)
def test_init_has_the_deviation_of_its_source(init, std):
    layer = build("mlp", {"hidden": [300]}, init, shape=(400,))[1]
    assert layer.weight.std().item() == pytest.approx(std, rel=0.02)


@pytest.mark.parametrize("init", ["xavier", "kaiming", "orthogonal"])
def test_init_but_default_zeroes_biases(init):
    layers = [module for module in build("vit", init=init).modules() if isinstance(module, nn.Linear)]
    assert all((layer.bias == 0).all() for layer in layers)


def test_init_default_leaves_the_biases_as_built():
    assert (build("mlp")[1].bias != 0).any()


def test_init_of_a_convolution_without_bias_draws_its_weights():
    layer = nn.Conv2d(1, 2, 3, bias=False)
    before = layer.weight.detach().clone()
    initialize(layer, "kaiming")
    assert not torch.equal(layer.weight, before)


@pytest.mark.parametrize("name", ["mlp", "cnn", "vit"])
def test_summary_totals_are_the_sums_of_the_parameters(name):
    model = build(name)
    found = summarize(model, IMAGE)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert found["parameters"] == found["trainable"] == total
    assert sum(row["parameters"] for row in found["layers"]) == total


def test_summary_of_a_linear_layer_counts_two_operations_a_weight():
    assert summarize(nn.Linear(30, 7), (30,)) == {
        "layers": [
            {
                "name": "(model)",
                "type": "Linear",
                "output": [7],
                "parameters": 30 * 7 + 7,
                "operations": 2 * 30 * 7,
                "output_bytes": 4 * 7,
            }
        ],
        "parameters": 30 * 7 + 7,
        "trainable": 30 * 7 + 7,
        "operations": 2 * 30 * 7,
        "parameter_bytes": 4 * (30 * 7 + 7),
        "output_bytes": 4 * 7,
    }


def test_summary_of_a_convolution_counts_its_operations():
    layer = nn.Conv2d(3, 5, 3, padding=1)
    assert summarize(layer, (3, 8, 6))["operations"] == 2 * 3 * 3 * 3 * 5 * 8 * 6


def test_summary_of_a_vit_counts_attention():
    tokens, width, inner, depth = 16, 64, 128, 3
    linear = tokens * (4 * width + depth * (4 * width * width + 2 * width * inner)) + width * 10
    attention = depth * 2 * tokens * tokens * width
    assert summarize(build("vit"), IMAGE)["operations"] == 2 * (linear + attention)


def test_summary_of_a_transformer_layer_counts_what_its_fast_path_would_hide():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    linear, attention = 5 * (4 * 16 * 16 + 2 * 16 * 32), 2 * 5 * 5 * 16
    assert summarize(layer, (5, 16))["operations"] == 2 * (linear + attention)
    assert torch.backends.mha.get_fastpath_enabled()


def test_summary_with_frozen_and_shared_parameters_counts_them_right():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2).requires_grad_(False))
    found = summarize(model, (4,))
    assert (found["parameters"], found["trainable"]) == (30, 20)
    assert sum(row["parameters"] for row in found["layers"]) == 30


def test_summary_of_tied_weights_counts_them_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    found = summarize(model, (4,))
    assert found["parameters"] == 16
    assert [row["parameters"] for row in found["layers"]] == [16, 0]


def test_summary_leaves_mode_and_statistics_of_the_model():
    model = build("cnn")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    summarize(model, IMAGE)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_summary_says_of_each_layer_what_it_computes_and_keeps():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    found = summarize(model, (1, 4, 4))
    assert [row["operations"] for row in found["layers"]] == [2 * 9 * 2 * 4, 0, 0, 2 * 8 * 3]
    assert sum(row["operations"] for row in found["layers"]) == found["operations"]
    assert [row["output_bytes"] for row in found["layers"]] == [32, 32, 32, 12]
