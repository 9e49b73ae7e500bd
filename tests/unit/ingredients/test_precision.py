from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import nn

from sacristan.ingredients import MixedPrecision, PrecisionError
from sacristan.ingredients.precision import auto_dtype

CPU = torch.device("cpu")
INPUTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(amp, model, factor=1.0):
    """Compute without autocast, so that a power of two as scale changes no bit."""
    amp.backward(model(INPUTS).square().mean() * factor)


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def stepped_once(dtype, factor=1.0, **options):
    amp, model = MixedPrecision(CPU, dtype, **options), make_model()
    optimizer = sgd(model)
    backward(amp, model, factor)
    amp.step(optimizer)
    return model, amp, optimizer


@pytest.mark.parametrize("dtype", ["off", "bfloat16", "float16"])
def test_amp_of_each_dtype_trains(dtype):
    amp, model = MixedPrecision(CPU, dtype), make_model()
    optimizer, losses = sgd(model), []
    for _ in range(30):
        with amp.autocast():
            loss = (model(INPUTS) - INPUTS[:, :1]).square().mean()
        amp.backward(loss)
        amp.step(optimizer)
        amp.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("dtype", "expected"), [("off", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_autocast_computes_in_the_dtype(dtype, expected):
    amp = MixedPrecision(CPU, dtype)
    for _ in range(2):
        with amp.autocast():
            assert make_model()(INPUTS).dtype == expected


@pytest.mark.parametrize(("dtype", "scale"), [("off", 1.0), ("bfloat16", 1.0), ("float16", 65536.0)])
def test_scale_is_one_but_for_float16(dtype, scale):
    assert MixedPrecision(CPU, dtype).scale() == scale


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"avx2": True}, "off")],
)
def test_auto_on_a_cpu_is_bfloat16_where_hardware_has_it(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert auto_dtype(CPU) == expected
    assert MixedPrecision(CPU, "auto").dtype == expected


def test_auto_on_other_devices_is_off():
    assert auto_dtype(torch.device("meta")) == "off"


@pytest.mark.parametrize(
    "options", [{"clip_norm": 0.01}, {"clip_value": 0.002}, {"clip_norm": 0.01, "clip_value": 0.002}]
)
def test_clipping_under_a_scale_gives_the_gradients_of_clipping_without(options):
    scaled, _, _ = stepped_once("float16", init_scale=1024.0, **options)
    plain, _, _ = stepped_once("off", **options)
    assert torch.equal(gradients(scaled), gradients(plain))
    assert torch.equal(weights(scaled), weights(plain))
    assert not torch.equal(gradients(plain), gradients(stepped_once("off")[0]))


def test_clip_norm_bounds_the_norm_of_all_gradients_together():
    model, _, _ = stepped_once("off", clip_norm=0.01)
    free = gradients(stepped_once("off")[0])
    assert torch.allclose(gradients(model), free * 0.01 / free.norm(), rtol=1e-4)


def test_clip_value_bounds_each_gradient():
    model, _, _ = stepped_once("off", clip_value=0.002)
    assert torch.equal(gradients(model), gradients(stepped_once("off")[0]).clamp(-0.002, 0.002))


@pytest.mark.parametrize("dtype", ["off", "float16"])
@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 0.01}, {"clip_value": 0.002}, {"clip_norm": 0.01, "clip_value": 0.002}]
)
def test_grad_norm_is_that_before_clipping(dtype, options):
    _, amp, optimizer = stepped_once(dtype, **options)
    assert float(amp.grad_norm(optimizer)) == pytest.approx(gradients(stepped_once("off")[0]).norm().item())


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.01}, {"clip_value": 0.002}])
def test_grad_norm_of_several_optimizers_is_that_of_each(options):
    amp, model = MixedPrecision(CPU, **options), make_model()
    optimizers = sgd(model[0]), sgd(model[2])
    backward(amp, model)
    expected = [gradients(part).norm().item() for part in (model[0], model[2])]
    for optimizer in optimizers:
        amp.step(optimizer)
    assert [float(amp.grad_norm(optimizer)) for optimizer in optimizers] == pytest.approx(expected)


def test_grad_norm_of_sparse_gradients_counts_them():
    model = nn.Embedding(5, 3, sparse=True)
    model(torch.tensor([1, 1, 3])).sum().backward()
    norm = MixedPrecision(CPU).grad_norm(torch.optim.SparseAdam(model.parameters()))
    assert float(norm) == pytest.approx((3 * 2**2 + 3 * 1**2) ** 0.5)


def test_step_without_scale_tells_that_it_took_place():
    amp, model = MixedPrecision(CPU), make_model()
    backward(amp, model)
    assert amp.step(sgd(model)) is True


def overflow(optimizer_of, **options):
    """Overflow in the first step, and train on."""
    amp, model = MixedPrecision(CPU, "float16", init_scale=2.0**16, **options), make_model()
    optimizer, found = optimizer_of(model), []
    for factor in (1e38, 1.0, 1.0):
        before = weights(model)
        backward(amp, model, factor)
        stepped = amp.step(optimizer)
        amp.update()
        optimizer.zero_grad()
        found.append((stepped, not torch.equal(before, weights(model)), amp.scale(), amp.num_skipped))
    assert weights(model).isfinite().all()
    return found


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


@pytest.mark.parametrize("optimizer_of", [sgd, fused])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"clip_value": 1.0}])
def test_overflow_is_skipped_and_counted_and_backs_the_scale_off(optimizer_of, options):
    found = overflow(optimizer_of, backoff_factor=0.25, growth_interval=2, growth_factor=8.0, **options)
    assert found == [(False, False, 2.0**14, 1), (True, True, 2.0**14, 1), (True, True, 2.0**17, 1)]


@pytest.mark.parametrize("optimizer_of", [sgd, fused])
def test_overflow_of_one_optimizer_leaves_the_other_its_step(optimizer_of):
    amp, one, other = MixedPrecision(CPU, "float16"), make_model(), make_model()
    optimizers, before = (optimizer_of(one), optimizer_of(other)), weights(one)
    backward(amp, one, 1e38)
    backward(amp, other)
    assert [amp.step(optimizer) for optimizer in optimizers] == [False, True]
    amp.update()
    assert torch.equal(weights(one), before)
    assert not torch.equal(weights(other), before)
    assert (amp.scale(), amp.num_skipped) == (32768.0, 1)


@pytest.mark.parametrize("dtype", ["off", "float16"])
def test_fused_optimizer_steps_as_a_plain_one(dtype):
    results = []
    for is_fused in (False, True):
        amp, model = MixedPrecision(CPU, dtype, clip_norm=0.01), make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=is_fused)
        for _ in range(3):
            backward(amp, model)
            assert amp.step(optimizer)
            amp.update()
            optimizer.zero_grad()
        results.append(weights(model))
    assert torch.allclose(*results, atol=1e-6)


def test_fused_momenta_after_first_steps_that_overflowed_are_those_of_a_plain_optimizer():
    results = []
    for is_fused in (False, True):
        model, amp = nn.Linear(300, 300), MixedPrecision(CPU, "float16", init_scale=2.0**120, backoff_factor=2.0**-64)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.01)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=is_fused)
        for step in range(4):
            with amp.autocast():
                loss = model(torch.full((2, 300), 0.1)).square().mean()
            amp.backward(loss)
            # What is freed here is what new momenta are likely to be made of.
            del [torch.full((300, 300), math.nan) for _ in range(8)][:]
            stepped = amp.step(optimizer)
            amp.update()
            assert stepped == (step > 1)
            assert (
                all(("momentum_buffer" in optimizer.state[one]) == stepped for one in model.parameters())
                or not is_fused
            )
            optimizer.zero_grad()
        momenta = [optimizer.state[one]["momentum_buffer"].flatten() for one in model.parameters()]
        results.append(torch.cat([weights(model), *momenta]))
    assert torch.allclose(*results, rtol=1e-5)


def test_step_with_a_closure_clips_in_each_evaluation():
    amp, model = MixedPrecision(CPU, "bfloat16", clip_norm=0.01), make_model()
    optimizer, norms = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), []

    def closure():
        optimizer.zero_grad()
        loss = model(INPUTS).square().mean()
        loss.backward()
        norms.append(gradients(model).norm().item())
        return loss

    before = weights(model)
    assert amp.step(optimizer, closure)
    assert min(norms) > 0.01
    assert gradients(model).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert float(amp.grad_norm(optimizer)) == pytest.approx(norms[-1])
    assert not torch.equal(before, weights(model))


def test_step_with_a_closure_under_float16_raises():
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(PrecisionError, match=r"amp.dtype: LBFGS recomputes its loss, .* use bfloat16"):
        MixedPrecision(CPU, "float16").step(optimizer, lambda: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "half"}, "amp.dtype: got 'half', expected one of off, float16, bfloat16, auto"),
        ({"clip_norm": 0.0}, "amp.clip_norm: got 0.0, expected more than 0, or None for no limit"),
        ({"clip_norm": float("nan")}, "amp.clip_norm: got nan"),
        ({"clip_value": -1.0}, "amp.clip_value: got -1.0, expected more than 0, or None for no limit"),
        ({"accumulate": 0}, "amp.accumulate: got 0, expected at least 1"),
        ({"init_scale": 0.0}, "amp: got init_scale=0.0, .* expected above 0, above 1, between 0 and 1, at least 1"),
        ({"growth_factor": 1.0}, "growth_factor=1.0"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0"),
        ({"growth_interval": 0}, "growth_interval=0"),
    ],
)
def test_amp_with_a_value_out_of_range_raises(options, message):
    with pytest.raises(PrecisionError, match=message):
        MixedPrecision(CPU, **options)


def test_state_loaded_goes_on_with_scale_and_count():
    amp = MixedPrecision(CPU, "float16", init_scale=8.0, growth_interval=2)
    amp.num_skipped = 3
    model = make_model()
    backward(amp, model)
    amp.step(sgd(model))
    amp.update()
    again = MixedPrecision(CPU, "float16", growth_interval=2)
    again.load_state_dict(amp.state_dict())
    assert (again.scale(), again.num_skipped) == (8.0, 3)
    backward(again, model)
    again.step(sgd(model))
    again.update()
    assert again.scale() == 16.0


@pytest.mark.parametrize(("saved", "loaded"), [("float16", "off"), ("off", "float16")])
def test_state_of_another_dtype_leaves_the_scale(saved, loaded):
    amp = MixedPrecision(CPU, loaded)
    scale = amp.scale()
    amp.load_state_dict(MixedPrecision(CPU, saved, init_scale=8.0).state_dict())
    assert amp.scale() == scale


def test_autocast_within_itself_ends_where_it_began():
    amp = MixedPrecision(torch.device("cpu"), "bfloat16")
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError), amp.autocast():
            with amp.autocast():
                assert torch.is_autocast_enabled("cpu")
                with torch.autocast("cpu", enabled=False), amp.autocast():
                    assert torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")
            1 / 0  # noqa: B018
        assert not torch.is_autocast_enabled("cpu")
