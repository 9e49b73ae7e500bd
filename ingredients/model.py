"""Ingredient `model`: the network, its initial weights, and a summary."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.ingredients.commands import print_drawn
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.ranks.group import current

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.datasets.fitted import Preparation

__all__ = ["OPTIONS", "ingredient", "make_model", "model_for"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("model")

# Settings that change only the memory and speed of a model; see `sacristan.ingredients.models.tuned.tune`.
_TUNED = ("gradient_checkpointing", "channels_last", "compile", "compile_options")

# Options of the lab's networks, which can be shown and checked without torch.
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
    # arguments of the network, or of your own class
    options = OPTIONS.get(name, {})
    # initial weights: default, xavier, kaiming, orthogonal, ...; {name: normal, std: 0.1}; [{match: head, name: zeros}]
    init: str | list[dict] | dict = "default"
    # weights to start from: PATH.pt, PATH.safetensors, run:ID (its best weights), run:ID@last or artifact:NAME:ALIAS
    weights: str | None = None
    # require the weights to match in every name and shape; False loads those that match and reports the others
    strict = True
    # rename the weights in the file: a list of {match: regular expression, to: text}, applied in order
    rename: list[dict] = []
    # parts to freeze: globs on names of modules and parameters, such as features.*; model.summary lists the names
    freeze: list[str] = []
    # parts to freeze until an epoch: a list of {epoch: first epoch that trains them, match: glob or list of globs}
    unfreeze: list[dict] = []
    # layers of frozen parts that stay in evaluation mode: norm (normalisation), all (dropout as well)
    frozen_eval: Literal["norm", "all"] = "norm"
    # modules that recompute activations in the backward pass to save memory: globs on their names
    gradient_checkpointing: list[str] = []
    # keep images and weights of convolutions in channels-last format, which is faster on tensor cores
    channels_last = False
    # mode of torch.compile, which needs a C++ compiler; None does not compile
    compile: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = None
    # further arguments of torch.compile, such as backend, fullgraph, dynamic
    compile_options: dict[str, Any] = {}


config.legacy(name="")  # an experiment without this ingredient has another model


config.document(
    options__hidden="mlp: widths of the hidden layers",
    options__widths="cnn: channels of each stage; each stage after the first halves height and width",
    options__blocks="cnn: residual blocks in a stage",
    options__patch="vit: height and width of a patch, pixels; must divide those of the image",
    options__width="vit: width of a token",
    options__depth="vit: encoder layers",
    options__heads="vit: attention heads; must divide the width",
    options__mlp_ratio="vit: width of the hidden layer relative to a token",
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
    """Reject an unknown network and invalid options before data are loaded."""
    from sacristan.ingredients.checkpoints.files import parse_run, read_weights
    from sacristan.ingredients.models.building import check_init, check_model, check_rename
    from sacristan.ingredients.models.modules import check_unfreeze
    from sacristan.ingredients.models.tuned import check_compile

    check_model(config.name, config.options)
    check_init(config.init)
    check_rename(config.rename)
    check_unfreeze(config.unfreeze)
    check_compile(config.compile, config.compile_options)
    if config.weights is not None and parse_run(config.weights) is None:
        path = Path(config.weights).expanduser()
        if path.is_file():  # commands that load a checkpoint do not need it
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
    """Build the configured model on the CPU, initialised from the stream `init` of `seed`.

    Loads `model.weights` and freezes parts as configured. The log and the run's info (`weights`) report what is loaded.

    Args:
        input_shape: Shape of one input, such as (channels, height, width).
        num_outputs: Number of outputs per input, `Loss.num_outputs`.
        seed: Seed of the experiment; it determines the weights, whatever was drawn before.
        dtype: Type of the inputs, `Data.input_dtype`; None for float32.
        preparation: `Data.preparation`, for models that take it.
        pretrained: Whether to load `model.weights`; False if a checkpoint is loaded into the model afterwards.
        tuned: Whether to apply `gradient_checkpointing`, `channels_last` and `compile`.

    Returns:
        A module that takes inputs (B, *input_shape) and returns raw scores (B, num_outputs).

    Raises:
        ModelError: If there is no such model, or it does not fit the data.
        ConfigError: If the model does not take an option.
        CheckpointError: If the weights cannot be read.

    Example:
        network = model.make_model(batches.input_shape, criterion.num_outputs, seed).to(where)
        scores = network(torch.zeros(8, *batches.input_shape))
    """
    from sacristan.ingredients.models.building import build_model

    settings = (_config.name, _config.options, _config.init)
    model = build_model(*settings, input_shape, num_outputs, seed, dtype, preparation)
    if pretrained and _config.weights is not None:
        _load_weights(model, _config, _run)
    if _config.freeze or _config.unfreeze:
        from sacristan.ingredients.models.modules import Freezing

        Freezing(model, _config.freeze, _config.unfreeze, whole=_config.frozen_eval == "all")
    if tuned:
        _tune(model, _config, len(input_shape))
    return model


def _tune(model: nn.Module, config: Map, num_dims: int) -> None:
    from sacristan.ingredients.models.tuned import check_compile, tune

    if config.compile is not None:  # settings of an unrecorded run have not been checked
        check_compile(config.compile, config.compile_options)
    if config.channels_last and num_dims != 3:
        raise ModelError(
            f"model.channels_last: inputs have {num_dims} dimensions, expected images (channels, height, width)"
        )
    tune(model, **{name: config[name] for name in _TUNED})


def _load_weights(model: nn.Module, config: Map, run: Any) -> None:
    """Load the configured weights into a model, and report the loaded parameters."""
    from sacristan.ingredients.checkpoints.files import find_weights, read_weights
    from sacristan.ingredients.models.building import load_weights_into, rename

    folder = getattr(run, "folder", None)
    # Only rank 0 is recorded and knows the folder of runs.
    path = current().from_first(
        lambda: find_weights(config.weights, None if folder is None else folder.parent, run=run)
    )
    state = rename(read_weights(path), config.rename)
    report = load_weights_into(model, state, strict=config.strict, source=config.weights)
    _log.info("%s", report.describe(config.weights))
    if run is not None:
        others = [entry for entry in run.info.get("weights", []) if entry["source"] != config.weights]
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        entry = {"source": config.weights, "path": str(path), "sha256": digest, **report.as_dict()}
        run.info["weights"] = [*others, entry]


@ingredient.command(unobserved=True, needs=("data", "loss"))
def summary(_config: Map, _run: Any) -> None:
    """Show output shape, parameters, operations and memory of each layer, and the totals."""
    import torch

    from sacristan.ingredients.inspection.probes import summarize

    data = _run.ingredients["data"].make_data(_run.config["seed"], torch.device("cpu"))
    num_outputs = _run.ingredients["loss"].make_loss(data).num_outputs
    model = model_for(data, num_outputs, _run.config["seed"], pretrained=False, tuned=False)
    print_summary(summarize(model, data.input_shape, data.input_dtype))


def model_for(data: Data, num_outputs: int, seed: int, **options: bool) -> nn.Module:
    """Build the configured model for the shape and type of some data; `options` are those of `make_model`."""
    dtype, preparation = data.input_dtype, data.preparation
    return make_model(data.input_shape, num_outputs, seed, dtype=dtype, preparation=preparation, **options)


@ingredient.command(unobserved=True, needs=("data", "loss"))
def probe(_config: Map, _run: Any) -> None:
    """Show activations and gradients of the layers for one training batch, and draw them as probe.png."""
    import torch

    from sacristan.ingredients.config.seed import global_stream
    from sacristan.ingredients.inspection.probes import draw, look, print_seen

    seed = _run.config["seed"]
    data = _run.ingredients["data"].make_data(seed, torch.device("cpu"))
    criterion = _run.ingredients["loss"].make_loss(data)
    network = model_for(data, criterion.num_outputs, seed)
    modules = _run.config.get("probe", {}).get("modules", [])
    globs = [modules] if isinstance(modules, str) else modules
    with global_stream(seed, "probe"):
        seen = look(network, criterion, next(iter(data.train.epoch(1))), globs)
    print_seen(seen)
    print_drawn(draw, seen, Path("probe.png"))


def print_summary(summary: dict[str, Any]) -> None:
    """Print a summary as a table and totals."""
    from sacristan.ingredients.commands import print_table

    rows = [
        [
            row["name"],
            row["type"],
            _times(row["output"]),
            row["parameters"],
            row["operations"],
            f"{row['output_bytes'] / 1024:.1f}",
        ]
        for row in summary["layers"]
    ]
    print_table(["layer", "type", "output", "parameters", "FLOPs", "output KiB"], rows)
    print(f"parameters: {summary['parameters']:,} ({summary['trainable']:,} trainable)")
    print(f"operations per sample, forward: {summary['operations']:,} FLOPs")
    parameters, outputs = summary["parameter_bytes"] / 2**20, summary["output_bytes"] / 2**20
    print(f"memory: parameters and buffers {parameters:.2f} MiB, outputs of layers {outputs:.3f} MiB a sample")


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
