from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from sacristan.ingredients import CNN, ConfigError, ModelError
from sacristan.ingredients.models.modules import plain_state_dict
from sacristan.ingredients.models.tuned import cast, check_compile, tune, uncompiled

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return CNN((1, 8, 8), 3, widths=[4, 4], dropout=0.5)


def step(model):
    """Return the gradients, the statistics and the random state that a step leaves."""
    model.train()
    torch.manual_seed(1)
    model(IMAGES).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return gradients | {f"buffer {name}": value for name, value in model.named_buffers()}, torch.get_rng_state()


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("globs", [["3", "4"], ["*"], ["[45]*", "3.body*"], ["3.body.1"]])
def test_recomputed_modules_give_the_same_gradients_statistics_and_random_stream(model, globs):
    tuned = copy.deepcopy(model)
    tune(tuned, gradient_checkpointing=globs)
    tune(model)  # a convolution that has no stride any more rounds otherwise
    for _ in range(2):
        (found, stream), (expected, own) = step(tuned), step(model)
        assert_equal(found, expected)
        assert torch.equal(stream, own)
    assert tuned.state_dict().keys() == model.state_dict().keys()


def test_recomputed_modules_whose_buffers_matter_give_the_same_gradients():
    class Scaled(nn.Module):
        """Multiplies by a number that each call raises."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs):
            self.calls += 1
            return self.linear(inputs) * self.calls.clone()

    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), Scaled())
    tuned = copy.deepcopy(model)
    tune(tuned, gradient_checkpointing=["0", "1"])
    inputs = torch.randn(3, 4)
    for each in (model, tuned, model, tuned):
        each(inputs).square().sum().backward()
    assert_equal({n: p.grad for n, p in tuned.named_parameters()}, {n: p.grad for n, p in model.named_parameters()})
    assert [each[0].calls.item() for each in (model, tuned)] == [2, 2]


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@needs_cuda
def test_recomputed_modules_on_a_gpu_draw_the_same_random_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2))).cuda()
    tuned = copy.deepcopy(model)
    tune(tuned, gradient_checkpointing=["1"])
    inputs = torch.randn(8, 4, device="cuda")
    states = []
    for each in (model, tuned):
        torch.cuda.manual_seed(1)
        each(inputs).square().sum().backward()
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(*states)
    assert_equal({n: p.grad for n, p in tuned.named_parameters()}, {n: p.grad for n, p in model.named_parameters()})


@needs_cuda
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_tuned_model_on_a_gpu_computes_the_same(model):
    tuned = copy.deepcopy(model).cuda()
    tune(tuned, compile="default", channels_last=True, gradient_checkpointing=["3", "4"])
    model.eval(), tuned.eval()
    assert torch.allclose(tuned(IMAGES.cuda()).cpu(), model(IMAGES), atol=1e-3)


def kept_bytes(model, inputs):
    """Return the largest memory that a step takes."""
    step = lambda: model(inputs).sum().backward()  # noqa: E731
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        step()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def test_recomputed_modules_take_less_memory():
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()) for _ in range(6)]
    model = nn.Sequential(*blocks)
    tuned = copy.deepcopy(model)
    tune(tuned, gradient_checkpointing=["?"])
    inputs = torch.randn(2048, 32)
    assert kept_bytes(tuned, inputs) < 0.7 * kept_bytes(model, inputs)


def test_copy_of_a_model_recomputes_by_itself(model):
    tune(model, gradient_checkpointing=["3"])
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found, _ = step(copied)
    assert found["3.body.0.weight"].abs().max() > 0
    assert model[3].body[0].weight.grad is None


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        (["blocks.*"], r"model.gradient_checkpointing: 'blocks.\*' matches no module; there are 0, 0.0, 1"),
        (["0"], r"model.gradient_checkpointing: '0' is a ModuleList, which is never called; write 0.\* for"),
    ],
)
def test_globs_that_match_nothing_to_call_are_refused(globs, message):
    with pytest.raises(ModelError, match=message):
        tune(nn.Sequential(nn.ModuleList([nn.Linear(1, 1)]), nn.Linear(1, 1)), gradient_checkpointing=globs)


def test_channels_last_lays_weights_and_images_that_way_and_computes_the_same(model):
    tuned = copy.deepcopy(model)
    tune(tuned, channels_last=True)
    seen = []
    tuned[0].register_forward_hook(lambda module, args, outputs: seen.append(outputs))
    found, _ = step(tuned)
    expected, _ = step(model)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert tuned[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert tuned.state_dict().keys() == model.state_dict().keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-4) for name in expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    ("settings", "channels", "stride", "size"),
    [
        ({}, 1, 2, (8, 8)),
        ({"channels_last": True}, 4, 2, (16, 16)),
        ({}, 7, (1, 3), (9, 10)),
        pytest.param({"compile": "default"}, 4, 2, (8, 8), marks=pytest.mark.slow),
    ],
)
def test_strided_pointwise_convolution_leaves_memory_intact_and_has_right_gradients(settings, channels, stride, size):
    # Without its guard, oneDNN writes behind a buffer on CPUs with AVX2: this process is aborted within some steps.
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(channels, 8, 1, stride))
    tuned, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    tune(tuned, **settings)
    tuned = tuned if settings.get("compile") else copy.deepcopy(tuned)
    images = torch.randn(32, channels, *size).to(memory_format=torch.channels_last)
    exact(images.double()).square().mean().backward()
    for _ in range(20):
        tuned.zero_grad()
        tuned(images).square().mean().backward()
        for found, expected in zip(tuned.parameters(), exact.parameters(), strict=True):
            assert torch.allclose(found.grad, expected.grad.float(), atol=1e-5)
    assert (tuned[0].stride, repr(tuned)) == (plain[0].stride, repr(plain))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    "backend",
    ["eager", pytest.param("aot_eager", marks=pytest.mark.slow), pytest.param("inductor", marks=pytest.mark.nightly)],
)
def test_compiled_model_computes_the_same_and_has_the_same_names(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    compiled = copy.deepcopy(model)
    globs = [] if backend == "eager" else ["1"]
    tune(compiled, compile="default", compile_options={"backend": backend}, gradient_checkpointing=globs)
    inputs = torch.randn(6, 4)
    for each in (model, compiled):
        each(inputs).square().sum().backward()
    for (name, mine), (_, theirs) in zip(compiled.named_parameters(), model.named_parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-6), name
    for (name, mine), (_, theirs) in zip(compiled.named_buffers(), model.named_buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6), name
    assert list(compiled.state_dict()) == list(plain_state_dict(compiled)) == list(model.state_dict())
    copied = copy.deepcopy(compiled)
    assert copied._compiled_call_impl is None


def test_every_shape_is_compiled_for_itself():
    shapes = []

    def backend(graph, examples):
        shapes.append([list(value.shape) for value in examples if value.ndim == 2][-1])
        return graph.forward

    # Of torch's own modules alone, which `Module.compile` would not compile.
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    tune(model, compile="default", compile_options={"backend": backend})
    for size in (6, 3, 6, 5):
        model(torch.randn(size, 4))
    assert shapes == [[6, 4], [3, 4], [5, 4]]
    with uncompiled(model):
        model(torch.randn(7, 4))
    assert len(shapes) == 3
    model(torch.randn(7, 4))
    assert len(shapes) == 4


@pytest.mark.parametrize(
    ("mode", "options", "error", "message"),
    [
        (
            None,
            {"backend": "eager"},
            ModelError,
            "model.compile_options: got .* but model.compile=None; write model.com",
        ),
        ("default", {"bakend": "eager"}, ConfigError, "model.compile_options.bakend: .* did you mean 'backend'?"),
        (
            "default",
            {"backend": "aot_eagr"},
            ModelError,
            "backend: got 'aot_eagr', which is unknown; did you mean aot",
        ),
    ],
)
def test_compile_options_that_cannot_be_are_refused(mode, options, error, message):
    with pytest.raises(error, match=message):
        check_compile(mode, options)


def test_compile_without_a_compiler_is_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert shutil.which("g++") is None
    with pytest.raises(ModelError, match=r"model.compile: torch.compile needs a C\+\+ compiler, but there is no "):
        check_compile("default", {})
    check_compile("default", {"backend": "aot_eager"})
    monkeypatch.setenv("CXX", "/nowhere/mycc -O2")
    with pytest.raises(ModelError, match=r"there is no /nowhere/mycc -O2; install one"):
        check_compile("default", {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cast_model_takes_and_returns_float32_with_half_the_weights(model, dtype):
    model.eval()
    with torch.no_grad():
        expected = model(IMAGES)
        before, after = cast(model, dtype)
        found = model(IMAGES)
    counts = sum(value.nbytes for value in model.buffers() if not value.is_floating_point())
    assert (before - counts) == 2 * (after - counts)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    assert torch.allclose(found, expected, atol=0.05)


def test_recomputing_within_the_eager_backend_is_refused(model):
    with pytest.raises(ModelError, match=r"the backend eager of torch.compile would update buffers twice"):
        tune(model, compile="default", compile_options={"backend": "eager"}, gradient_checkpointing=["3"])
