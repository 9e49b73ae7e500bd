"""Ingredient `model`: the network, its initialisation, and a summary of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from configs import Map
from ingredients.config.ingredient import Ingredient
from ingredients.config.pictures import print_drawn
from ingredients.errors import ModelError
from ingredients.ranks.group import current

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ingredients.datasets.fitted import Preparation
    from ingredients.models.freezing import Freezing

__all__ = ["OPTIONS", "ingredient", "make_model"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("model")

# Settings that change the memory and the speed of a model, and nothing else; see `ingredients.models.tuned.tune`.
_TUNED = ("gradient_checkpointing", "channels_last", "compile", "compile_options")

# The options of the networks that ship with the lab, so that they can be seen and checked without torch.
OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [128, 128], "activation": "relu", "dropout": 0.0},
    "cnn": {"widths": [32, 64], "blocks": 1, "activation": "relu", "dropout": 0.0},
    "vit": {
        "patch": 2,
        "width": 64,
        "depth": 3,
        "heads": 4,
        "mlp_ratio": 2.0,
        "activation": "gelu",
        "dropout": 0.0,
    },
}


@ingredient.config
def config() -> None:
    # mlp, cnn, vit, torchvision:NAME, or package.module:Class
    name = "mlp"
    # arguments of the network; your own class takes any in its signature
    options = OPTIONS.get(name, {})
    # initial weights: default, xavier, kaiming, orthogonal; {name: normal, std: 0.1}; [{match: head, name: zeros}]
    init: str | list[dict] | dict = "default"
    # weights to start from: PATH.pt, PATH.safetensors, run:ID (its best weights) or run:ID@last; None for none
    weights: str | None = None
    # require all names and shapes to match; False loads those that match and reports the others
    strict = True
    # renames for tensors of the file: a list of {match: regular expression, to: text}, applied in order
    rename: list[dict] = []
    # parts to freeze: globs on the names of modules and parameters, such as features.*; model.summary shows the names
    freeze: list[str] = []
    # parts to freeze until an epoch: a list of {epoch: the first that trains them, match: glob or list of globs}
    unfreeze: list[dict] = []
    # frozen layers that stay in evaluation mode: norm (normalisation layers), all (also dropout)
    frozen_eval: Literal["norm", "all"] = "norm"
    # recompute activations in the backward pass instead of keeping them: globs on the names of modules
    gradient_checkpointing: list[str] = []
    # keep images, and weights of convolutions, with channels last in memory, which is faster on tensor cores
    channels_last = False
    # compile the network (torch.compile, which needs a C++ compiler): its mode, or None
    compile: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = None
    # further arguments of torch.compile, such as backend, fullgraph, dynamic
    compile_options: dict[str, Any] = {}


config.document(
    options__hidden="mlp: widths of the hidden layers",
    options__widths="cnn: channels of each stage; each but the first halves height and width",
    options__blocks="cnn: residual blocks in a stage",
    options__patch="vit: height and width of a patch, pixels; must divide the image's",
    options__width="vit: width of a token",
    options__depth="vit: encoder layers",
    options__heads="vit: attention heads; must divide the width",
    options__mlp_ratio="vit: width of the hidden layer over that of a token",
    options__activation="relu, gelu, silu, tanh",
    options__dropout="probability of zeroing a hidden unit",
)


@ingredient.named_config
def fast() -> None:
    """A network of a few hundred parameters, to try things out."""
    name = "mlp"
    options = {"hidden": [16]}


@ingredient.check
def check_config(config: Map) -> None:
    """Refuse a network or options that cannot be, before the data are there."""
    from ingredients.checkpoints.weights import parse_run, read_weights
    from ingredients.models.building import check_model
    from ingredients.models.freezing import check_unfreeze
    from ingredients.models.initialising import check_init
    from ingredients.models.tuned import check_compile
    from ingredients.models.weights import check_rename

    check_model(config.name, config.options)
    check_init(config.init)
    check_rename(config.rename)
    check_unfreeze(config.unfreeze)
    check_compile(config.compile, config.compile_options)
    if config.weights is not None and parse_run(config.weights) is None:
        path = Path(config.weights).expanduser()
        if path.is_file():  # commands that load a checkpoint do without it
            read_weights(path)


@ingredient.capture
def make_model(
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    _config: Map,
    _run: Any,
    dtype: torch.dtype | None = None,
    pretrained: bool = True,
    preparation: Preparation | None = None,
    tuned: bool = True,
) -> nn.Module:
    """Return the configured model, on the CPU: initialised from the stream `init` of `seed`, with `model.weights`.

    Parts of it are frozen as `model.freeze` and `model.unfreeze` say. What of the weights was loaded goes to the log,
    and to the run's info as `weights`.

    Args:
        input_shape: Shape of one input, such as (channels, height, width).
        num_outputs: Outputs for each input; `Loss.num_outputs` says it.
        seed: Seed of the experiment; the same gives the same weights, whatever was drawn before.
        dtype: Type of inputs, `Data.input_dtype`; float32 without it.
        preparation: `Data.preparation`, for models that take it.
        pretrained: Whether to load `model.weights`; False where a checkpoint is loaded into the model afterwards.
        tuned: Whether `gradient_checkpointing`, `channels_last` and `compile` count.

    Returns:
        A module that takes inputs (B, *input_shape) and returns raw scores (B, num_outputs).

    Raises:
        ModelError: If there is no such model, or it does not fit the data.
        ConfigError: If an option is none of the model's.
        CheckpointError: If the weights cannot be read.

    Example:
        network = model.make_model(batches.input_shape, criterion.num_outputs, seed).to(where)
        scores = network(torch.zeros(8, *batches.input_shape))
    """
    from ingredients.models.building import build_model

    how = (_config.name, _config.options, _config.init)
    model = build_model(*how, input_shape, num_outputs, seed, dtype, preparation)
    if pretrained and _config.weights is not None:
        _load_weights(model, _config, _run)
    if _config.freeze or _config.unfreeze:
        _freezing(model, _config)
    if tuned:
        _tune(model, _config, len(input_shape))
    return model


def _tune(model: nn.Module, config: Map, num_dims: int) -> None:
    from ingredients.models.tuned import check_compile, tune

    if config.compile is not None:  # the settings of a run that is not recorded have not been checked
        check_compile(config.compile, config.compile_options)
    if config.channels_last and num_dims != 3:
        raise ModelError(
            f"model.channels_last: inputs have {num_dims} dimensions, expected images (channels, height, width)"
        )
    tune(model, **{name: config[name] for name in _TUNED})


def _freezing(model: nn.Module, config: Map) -> Freezing:
    from ingredients.models.freezing import Freezing

    return Freezing(model, config.freeze, config.unfreeze, whole=config.frozen_eval == "all")


def _load_weights(model: nn.Module, config: Map, run: Any) -> None:
    """Load the configured weights into a model, and report what fitted."""
    from ingredients.checkpoints.weights import find_weights, read_weights
    from ingredients.models.weights import load_weights_into, rename

    folder = getattr(run, "folder", None)
    # Rank 0 alone is recorded, and knows where the folder of runs is.
    path = current().from_first(lambda: find_weights(config.weights, None if folder is None else folder.parent))
    state = rename(read_weights(path), config.rename)
    report = load_weights_into(model, state, strict=config.strict, source=config.weights)
    _log.info("%s", report.describe(config.weights))
    if run is not None:
        others = [entry for entry in run.info.get("weights", []) if entry["source"] != config.weights]
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        told = {"source": config.weights, "path": str(path), "sha256": digest, **report.as_dict()}
        run.info["weights"] = [*others, told]


@ingredient.command(unobserved=True, needs=("data", "loss"))
def summary(_config: Map, _run: Any) -> None:
    """Show per layer output shape, parameters, operations and memory, and the totals."""
    import torch

    from ingredients.models.summarizing import summarize

    seed = _run.config["seed"]
    source = _run.ingredients["data"].make_data(seed, torch.device("cpu"))
    num_outputs = _run.ingredients["loss"].make_loss(source).num_outputs
    told: dict[str, Any] = {"dtype": source.input_dtype, "preparation": source.preparation}
    model = make_model(source.input_shape, num_outputs, seed, pretrained=False, tuned=False, **told)
    print_summary(summarize(model, source.input_shape, source.input_dtype))


@ingredient.command(unobserved=True, needs=("data", "loss"))
def probe(_config: Map, _run: Any) -> None:
    """Show activations and gradients of the layers for one training batch, and draw them as probe.png."""
    import torch

    from ingredients.config.seed import global_stream
    from ingredients.inspection.one_batch import draw, look, print_seen

    seed = _run.config["seed"]
    source = _run.ingredients["data"].make_data(seed, torch.device("cpu"))
    criterion = _run.ingredients["loss"].make_loss(source)
    told: dict[str, Any] = {"dtype": source.input_dtype, "preparation": source.preparation}
    network = make_model(source.input_shape, criterion.num_outputs, seed, **told)
    modules = _run.config.get("probe", {}).get("modules", [])
    globs = [modules] if isinstance(modules, str) else modules
    with global_stream(seed, "probe"):
        found = look(network, criterion, next(iter(source.train.epoch(1))), globs)
    print_seen(found)
    print_drawn(draw, found, Path("probe.png"))


def print_summary(found: dict) -> None:
    """Print what `models.summarizing.summarize` found as a table."""
    from ingredients.config.tables import print_table

    rows = [
        [
            row["name"],
            row["type"],
            _times(row["output"]),
            row["parameters"],
            row["operations"],
            f"{row['output_bytes'] / 1024:.1f}",
        ]
        for row in found["layers"]
    ]
    print_table(["layer", "type", "output", "parameters", "FLOPs", "output KiB"], rows)
    print(f"parameters: {found['parameters']:,} ({found['trainable']:,} trainable)")
    print(f"operations per sample, forward: {found['operations']:,} FLOPs")
    parameters, outputs = found["parameter_bytes"] / 2**20, found["output_bytes"] / 2**20
    print(f"memory: parameters and buffers {parameters:.2f} MiB, outputs of layers {outputs:.3f} MiB a sample")


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
