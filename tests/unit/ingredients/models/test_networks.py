"""The networks that ship with the lab, and the GPT."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sacristan.ingredients import CNN, MLP, ViT
from sacristan.ingredients.models.networks import ACTIVATIONS, GPT, continue_tokens

IMAGE = (1, 8, 8)


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (MLP(IMAGE, 10), 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
        (MLP(IMAGE, 10, hidden=[16]), 64 * 16 + 16 + 16 * 10 + 10),
        (MLP(IMAGE, 10, hidden=[]), 64 * 10 + 10),
        (CNN(IMAGE, 10), 77_290),
        (CNN(IMAGE, 10, widths=[8], blocks=2), 72 + 16 + 2 * (2 * 8 * 8 * 9 + 4 * 8) + 8 * 10 + 10),
        (ViT(IMAGE, 10), 102_538),
    ],
)
def test_network_by_default_has_the_pinned_number_of_parameters(network, count):
    assert num_parameters(network) == count


@pytest.mark.parametrize("network", [MLP, CNN])
def test_network_without_its_last_layer_is_a_slice(network):
    model = network(IMAGE, 10).eval()
    images = torch.rand(2, *IMAGE)
    assert torch.equal(model[-1](model[:-1](images)), model(images))
    assert list(model[:-1].state_dict()) == [name for name in model.state_dict() if name in model[:-1].state_dict()]


@pytest.mark.parametrize("network", [MLP, CNN, ViT])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 12)])
def test_network_on_images_returns_one_row_of_scores_each(network, shape):
    assert network(shape, 7).eval()(torch.zeros(5, *shape)).shape == (5, 7)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 2, 2, 2)])
def test_mlp_on_inputs_of_any_shape_flattens_them(shape):
    assert MLP(shape, 2, hidden=[3])(torch.zeros(5, *shape)).shape == (5, 2)


@pytest.mark.parametrize("network", [MLP, CNN, ViT])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_network_with_activation_uses_it(network, name):
    used = {type(module) for module in network(IMAGE, 2, activation=name).modules()}
    assert used & set(ACTIVATIONS.values()) == {ACTIVATIONS[name]}


@pytest.mark.parametrize("network", [MLP, CNN, ViT])
def test_network_with_dropout_is_random_in_training_only(network):
    model, inputs = network(IMAGE, 2, dropout=0.5), torch.randn(4, *IMAGE)
    model.train()
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))


@pytest.mark.parametrize("network", [MLP, CNN, ViT])
def test_network_with_unknown_activation_raises(network):
    with pytest.raises(ValueError, match="activation is 'rleu', expected one of relu, gelu, silu, tanh"):
        network(IMAGE, 2, activation="rleu")


@pytest.mark.parametrize("network", [MLP, CNN, ViT])
@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_network_with_dropout_out_of_range_raises(network, dropout):
    with pytest.raises(ValueError, match=f"dropout is {dropout}, expected at least 0 and below 1"):
        network(IMAGE, 2, dropout=dropout)


@pytest.mark.parametrize("network", [CNN, ViT])
def test_network_of_images_on_vectors_raises(network):
    with pytest.raises(ValueError, match=r"inputs have shape \(30,\), expected images \(channels, height, width\)"):
        network((30,), 2)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (MLP, {"hidden": [8, 0]}, "hidden is 0"),
        (CNN, {"blocks": 0}, "blocks is 0"),
        (CNN, {"widths": [8, -1]}, r"widths\[1\] is -1"),
        (ViT, {"patch": 0}, "patch is 0"),
        (ViT, {"heads": 0}, "heads is 0"),
        (ViT, {"width": 0}, "width is 0"),
        (ViT, {"depth": 0}, "depth is 0"),
        (ViT, {"mlp_ratio": 0.0}, r"width \* mlp_ratio is 0"),
    ],
)
def test_network_with_a_size_below_one_raises(network, options, message):
    with pytest.raises(ValueError, match=f"{message}, expected at least 1"):
        network(IMAGE, 2, **options)


def test_cnn_without_widths_raises():
    with pytest.raises(ValueError, match="widths is empty, expected the channels of at least one stage"):
        CNN(IMAGE, 2, widths=[])


def test_cnn_with_more_stages_than_the_image_has_halves_raises():
    with pytest.raises(ValueError, match="5 stages halve images of 8x8 pixels to nothing; give fewer widths"):
        CNN(IMAGE, 2, widths=[4] * 5)


def test_cnn_stages_but_the_first_halve_height_and_width():
    stages = list(CNN(IMAGE, 2, widths=[4, 6, 8], blocks=2))[3:-3]
    images, shapes = torch.zeros(2, 4, 8, 8), []
    for block in stages:
        images = block(images)
        shapes.append(tuple(images.shape[1:]))
    assert shapes == [(4, 8, 8), (4, 8, 8), (6, 4, 4), (6, 4, 4), (8, 2, 2), (8, 2, 2)]


def test_vit_with_patches_that_do_not_divide_the_image_raises():
    with pytest.raises(ValueError, match="patches of 3 do not divide images of 8x8 pixels"):
        ViT(IMAGE, 2, patch=3)


def test_vit_with_heads_that_do_not_divide_the_width_raises():
    with pytest.raises(ValueError, match="5 heads do not divide a width of 64"):
        ViT(IMAGE, 2, heads=5)


def test_vit_without_its_positions_does_not_see_the_order_of_patches():
    model, images = ViT(IMAGE, 2).eval(), torch.randn(2, *IMAGE)
    turned = images.roll(4, dims=-1)
    assert not torch.allclose(model(images), model(turned), atol=1e-5)
    nn.init.zeros_(model.positions)
    assert torch.allclose(model(images), model(turned), atol=1e-5)


def test_scores_each_next_token_from_earlier_ones_alone():
    torch.manual_seed(0)
    model = GPT((8,), 11, width=16, depth=2, heads=2).eval()
    tokens = torch.randint(0, 11, (3, 8))
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % 11
    scores, others = model(tokens), model(changed)
    assert scores.shape == (3, 8, 11)
    torch.testing.assert_close(scores[:, :5], others[:, :5])
    assert not torch.allclose(scores[:, 5:], others[:, 5:])
    torch.testing.assert_close(model(tokens[:, :4]), scores[:, :4])


def test_untrained_model_finds_all_tokens_about_as_likely():
    torch.manual_seed(0)
    model = GPT((32,), 64)
    tokens = torch.randint(0, 64, (4, 33))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(64), rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (1, 8, 8)}, r"shape \(1, 8, 8\), expected sequences of tokens"),
        ({"heads": 3}, "3 heads do not divide a width of 128"),
        ({"depth": 0}, "depth is 0, expected at least 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0, expected at least 0 and below 1"),
    ],
)
def test_size_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GPT(**{"input_shape": (8,), "num_outputs": 11, **arguments})


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(ValueError, match="got 9 tokens, expected at most 8, the context"):
        GPT((8,), 11)(torch.zeros(1, 9, dtype=torch.int64))


def test_tokens_continue_by_what_the_last_ones_in_the_context_make_likely():
    torch.manual_seed(0)
    model = GPT((4,), 11, width=16, depth=1, heads=2).eval()
    start = torch.tensor([1, 2, 3, 4, 5, 6])
    likeliest = continue_tokens(model, start, 3, temperature=0.0)
    assert likeliest[:6].tolist() == start.tolist()
    assert likeliest[6] == model(start[None, -4:])[0, -1].argmax()
    drawn = [continue_tokens(model, start, 20, 1.0, torch.Generator().manual_seed(seed)).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert continue_tokens(model, start, 20, generator=torch.Generator().manual_seed(0)).tolist() == drawn[0]
    cold = continue_tokens(model, start, 3, 1e-6, torch.Generator().manual_seed(0))
    assert cold.tolist() == likeliest.tolist()


def test_nothing_to_continue_is_refused():
    model = GPT((4,), 11)
    with pytest.raises(ValueError, match="got no token to continue"):
        continue_tokens(model, torch.zeros(0, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match=r"got length 3 and temperature -1\.0"):
        continue_tokens(model, torch.zeros(1, dtype=torch.int64), 3, -1.0)
