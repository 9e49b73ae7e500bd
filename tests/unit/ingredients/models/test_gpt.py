import math

import pytest
import torch

from sacristan.ingredients.models.networks import GPT, continue_tokens


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
        ({"dropout": 1.0}, r"dropout is 1\.0, expected a probability"),
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
    cold = continue_tokens(model, start, 3, 1e-6, torch.Generator().manual_seed(0))
    assert cold.tolist() == likeliest.tolist()


def test_nothing_to_continue_is_refused():
    model = GPT((4,), 11)
    with pytest.raises(ValueError, match="got no token to continue"):
        continue_tokens(model, torch.zeros(0, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match=r"got length 3 and temperature -1\.0"):
        continue_tokens(model, torch.zeros(1, dtype=torch.int64), 3, -1.0)
