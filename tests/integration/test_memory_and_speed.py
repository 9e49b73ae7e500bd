"""Settings of memory and speed, each in a training that is cut off and resumed: to the bit, and recorded."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import rich.style  # noqa: F401 - it draws from the global generator when it is first imported
import torch

import exp
from sacristan.ingredients import MLP, ConfigError, ModelError
from sacristan.ingredients.checkpoints.files import load_checkpoint

WINE = {"data.name": "wine", "model.options.hidden": [8], "model.options.dropout": 0.5}
DIGITS = {
    "data.limit": 120,
    "data.batch_size": 32,
    "model.name": "cnn",
    "model.options": {"widths": [4, 4], "dropout": 0.5},
}
FLOAT16 = {"amp.dtype": "float16", "amp.init_scale": 1024.0}
COMPILED = {"model.compile": "default"}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return what trains, and returns the run, its folder and its newest state."""
    monkeypatch.chdir(tmp_path)

    def train(**settings):
        done = exp.ex.run(config_updates={"training.log_interval": 2, **settings})
        folder = tmp_path / "my_runs" / done._id
        return done, folder, load_checkpoint(folder / "checkpoints" / "last.pt")

    return train


def differing(one, other, where=""):
    """Return the places where two states differ."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        return [place for name in one for place in differing(one[name], other[name], f"{where}.{name}")]
    if isinstance(one, list | tuple):
        assert len(one) == len(other), where
        return [
            place for n, pair in enumerate(zip(one, other, strict=True)) for place in differing(*pair, f"{where}.{n}")
        ]
    return [] if one == other else [where]


def dtypes_in(state):
    if isinstance(state, torch.Tensor):
        return {state.dtype}
    items = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return {dtype for item in items for dtype in dtypes_in(item)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(DIGITS | {"model.gradient_checkpointing": ["3", "4"]}, marks=pytest.mark.slow),
        pytest.param(DIGITS | {"model.channels_last": True}, marks=pytest.mark.nightly),
        DIGITS | {"training.inference_mode": True, "training.average": "ema"} | FLOAT16,
        pytest.param(WINE | COMPILED | {"model.compile_options.backend": "eager"}, marks=pytest.mark.slow),
        pytest.param(WINE | COMPILED | {"model.compile_options.backend": "aot_eager"}, marks=pytest.mark.nightly),
        pytest.param(
            DIGITS | COMPILED | {"model.gradient_checkpointing": ["3"], "model.channels_last": True},
            marks=[pytest.mark.nightly, pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")],
        ),
        pytest.param(WINE | {"optimizer.implementation": "foreach"}, marks=pytest.mark.slow),
        pytest.param(WINE | {"optimizer.implementation": "for_loop"}, marks=pytest.mark.nightly),
        WINE | FLOAT16 | {"optimizer.implementation": "fused", "amp.clip_norm": 1.0},
        pytest.param(WINE | {"device.cudnn_benchmark": True}, marks=pytest.mark.nightly),
        pytest.param(
            # Smaller parameters keep states of 32 bits.
            WINE | {"model.options.hidden": [64, 64], "optimizer.name": "bitsandbytes.optim.AdamW8bit"},
            marks=pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs the extra bitsandbytes"),
        ),
    ],
    ids=lambda settings: ",".join(str(value) for value in settings.values())[-60:],
)
def test_resumed_training_ends_with_the_bits_of_an_unbroken_one(train, settings):
    _, first, whole = train(**settings, epochs=3, **{"checkpoint.interval": 2, "checkpoint.keep": 2})
    (middle,) = (first / "checkpoints").glob("step-*.pt")
    assert 0 < load_checkpoint(middle)["step"] < whole["step"]
    done, folder, resumed = train(**settings, epochs=3, **{"checkpoint.resume": str(middle)})
    parts = ("model", "optimizer", "amp", "monitor", "streams", "step", "callbacks")
    assert differing(*({name: state[name] for name in parts if name in state} for state in (resumed, whole))) == []
    assert not settings.get("optimizer.name") or torch.uint8 in dtypes_in(resumed["optimizer"])
    assert done.result is not None
    assert not [name for name in resumed["model"] if "_orig_mod" in name]
    kept = json.loads((folder / "config.json").read_text())
    for name, value in settings.items():
        part, _, entry = name.partition(".")
        assert "." in entry or kept[part][entry] == value or entry == "options"


def test_settings_of_memory_compute_what_is_computed_without_them(train):
    _, _, plain = train(**DIGITS, epochs=2)
    for settings in ({"model.gradient_checkpointing": ["3", "4"]}, {"training.inference_mode": True}):
        _, _, state = train(**DIGITS, epochs=2, **settings)
        assert differing(state["model"], plain["model"]) == []
        assert differing(state["streams"], plain["streams"]) == []


def test_validation_alone_is_in_inference_mode(train, monkeypatch):
    seen = set()
    forward = MLP.forward

    def spied(self, *args):
        seen.add((self.training, torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return forward(self, *args)

    monkeypatch.setattr(MLP, "forward", spied)
    train(**WINE, epochs=1, **{"training.inference_mode": True})
    # Validating; training; a first look at the model, and the test part at the end.
    assert seen == {(False, True, False), (True, False, True), (False, False, False)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.nightly), "bfloat16"])
def test_checkpoint_is_evaluated_in_half_the_memory_and_says_so(train, dtype):
    train(**WINE, epochs=2)
    settings = WINE | {"checkpoint.path": "run:1", "checkpoint.dtype": dtype}
    done = exp.ex.run("evaluate", config_updates=settings)
    plain = exp.ex.run("evaluate", config_updates=settings | {"checkpoint.dtype": "float32"})
    assert done.info["weights_in"]["dtype"] == dtype
    assert done.info["weights_in"]["bytes"] * 2 == done.info["weights_in"]["float32_bytes"]
    assert done.info["test"]["loss"] != plain.info["test"]["loss"]
    assert done.info["test"]["loss"] == pytest.approx(plain.info["test"]["loss"], rel=0.02)
    assert "weights_in" not in plain.info
    assert all(one.info["speed"]["samples_per_s"] > 0 for one in (done, plain))
    with pytest.raises(ModelError, match=r"export: files are in float32; leave out checkpoint.dtype"):
        exp.ex.run("export", config_updates=settings)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model.channels_last": True}, ModelError, "model.channels_last: inputs have 1 dimensions, expected images"),
        ({"model.gradient_checkpointing": ["x"]}, ModelError, "model.gradient_checkpointing: 'x' matches no module"),
        ({"model.compile_options.backend": "x", **COMPILED}, ModelError, "backend: got 'x', which is unknown"),
        ({"model.compile": "fast"}, ConfigError, "model.compile: got 'fast'"),
        ({"model.compile": "defualt"}, ConfigError, "did you mean model.compile=default?"),
        ({"optimizer.implementation": "quick"}, ConfigError, "optimizer.implementation: got 'quick'"),
    ],
)
def test_settings_that_cannot_be_are_refused(train, settings, error, message):
    with pytest.raises(error, match=message):
        train(**WINE, epochs=1, **settings)


def test_unknown_backend_of_a_run_that_is_not_recorded_is_refused_with_the_nearest():
    settings = WINE | COMPILED | {"model.compile_options.backend": "aot_eagr"}
    with pytest.raises(ModelError, match=r"backend: got 'aot_eagr', which is unknown; did you mean aot_eager\?"):
        exp.ex.run(config_updates=settings, options={"--unobserved": True})


@pytest.fixture
def flags():
    """Put the flags of torch that are the process's back."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]
