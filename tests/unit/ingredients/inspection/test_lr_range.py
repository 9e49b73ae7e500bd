from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.ingredients import Loss, MixedPrecision, OptimizerError, TensorBatches
from sacristan.ingredients.inspection.searches import LrRange, draw_range, print_range, step, try_rates

CPU = torch.device("cpu")


def parts(optimizer=torch.optim.SGD, **settings):
    """Return model, loss, batches, optimizer and precision of a line through points."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(44, 3, generator=generator)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1, affine=False), nn.Dropout(0.1), nn.Linear(1, 1))
    loss = Loss(nn.MSELoss(), "values", 1)
    batches = TensorBatches(inputs, targets, 8, shuffle=True)
    return model, loss, batches, optimizer(model.parameters(), lr=0.1), MixedPrecision(CPU, **settings)


def test_micro_batch_whose_targets_are_all_ignored_leaves_the_loss_finite():
    model = nn.Linear(3, 2)
    loss = Loss(nn.CrossEntropyLoss(ignore_index=0), "classes", 2)
    group = [
        (torch.ones(4, 3), targets) for targets in (torch.ones(4, dtype=torch.long), torch.zeros(4, dtype=torch.long))
    ]
    assert math.isfinite(step(model, loss, group, torch.optim.SGD(model.parameters(), lr=0.1), MixedPrecision(CPU)))
    assert model.weight.isfinite().all()


def test_rates_rise_until_the_loss_diverges_and_the_suggestion_is_where_it_falls():
    found = try_rates(*parts(), highest=1e4)
    assert found.rates[0] == pytest.approx(1e-7)
    assert np.diff(np.log(found.rates)) == pytest.approx(math.log(1e11) / 99)
    assert found.diverged
    assert 1e-3 < found.suggestion < found.lowest < 10


def test_suggestion_is_at_the_steepest_descent_before_the_lowest_loss():
    rates = np.geomspace(1e-4, 1e1, 51).tolist()
    losses = (2 - np.tanh(np.linspace(-3, 3, 51) - 0.6)).tolist()  # steepest at the 31st
    losses[46:] = [5.0, 4.0, 3.0, 2.9, 2.8]  # steeper still, but diverged before
    assert LrRange(rates, losses, True).suggestion == pytest.approx(rates[30])


def test_loss_that_never_falls_gives_no_suggestion(capsys):
    found = LrRange(np.geomspace(1e-4, 1.0, 20).tolist(), list(range(20)), False)
    assert found.suggestion is None
    print_range(found)
    assert "the loss did not fall at any rate" in capsys.readouterr().out


def test_weights_statistics_optimizer_modes_and_random_streams_are_unchanged():
    model, loss, batches, optimizer, amp = parts(torch.optim.Adam)
    step(model, loss, [next(batches.epoch(1))], optimizer, amp)
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moments = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    stream = torch.get_rng_state()
    try_rates(model, loss, batches, optimizer, amp)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moments)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(torch.get_rng_state(), stream)
    assert model[0].training
    assert not model[2].training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_groups_keep_the_ratio_of_their_rates():
    model, loss, batches, _, amp = parts()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.01}]
    optimizer, seen = torch.optim.SGD(groups), []
    optimizer.register_step_post_hook(lambda *_: seen.append([group["lr"] for group in optimizer.param_groups]))
    try_rates(model, loss, batches, optimizer, amp, highest=1e-3)
    assert all(first == pytest.approx(10 * second) for first, second in seen)


def test_micro_batches_have_the_gradients_of_one_batch():
    model, loss, batches, optimizer, amp = parts()
    model.eval()
    whole = next(batches.epoch(1))
    told = loss(model(whole[0]), whole[1])
    told.backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad.clone() for p in model.parameters()))
    group = [tuple(part[:5] for part in whole), tuple(part[5:] for part in whole)]
    assert step(model, loss, group, optimizer, amp) == pytest.approx(told.item())
    assert all(torch.allclose(got, expected) for got, expected in zip(seen, wanted, strict=True))


@pytest.mark.parametrize(
    ("optimizer", "scale", "message"),
    [(torch.optim.LBFGS, 1.0, "got optimizer.name=LBFGS"), (torch.optim.SGD, math.nan, "NaN or infinite at the first")],
)
def test_what_cannot_be_tried_is_refused(optimizer, scale, message):
    model, *others = parts(optimizer)
    with torch.no_grad():
        model[3].weight.mul_(scale)
    with pytest.raises(OptimizerError, match=message):
        try_rates(model, *others)


def test_picture_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    draw_range(LrRange([1e-3, 1e-2, 1e-1, 1.0, 10.0], [5.0, 4.0, 2.0, 1.0, 3.0], False), tmp_path / "range.png")
    assert (tmp_path / "range.png").read_bytes().startswith(b"\x89PNG")
