"""Building and describing models, without Sacred."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ingredients.config.construct import build, check_options, import_object, is_dotted_path, require
from ingredients.config.nearest import nearest
from ingredients.config.seed import global_stream
from ingredients.datasets.fitted import Preparation
from ingredients.errors import ModelError
from ingredients.models.initialising import initialize
from ingredients.models.networks import CNN, MLP, ViT

__all__ = ["NETWORKS", "build_model", "check_model", "summarize"]

NETWORKS = {"mlp": MLP, "cnn": CNN, "vit": ViT}


def build_model(
    name: str,
    options: Mapping[str, Any],
    init: str | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    dtype: torch.dtype | None = None,
    preparation: Preparation | None = None,
) -> nn.Module:
    """Return a model on the CPU, its parameters drawn from the stream `init` of `seed`.

    Args:
        name: One of `NETWORKS`, `torchvision:NAME`, or a dotted path to a class or function.
        options: Its arguments. A class of the user's also gets `input_shape`, `num_outputs` and `preparation`, if it
            takes them.
        init: How to initialise, see `initialize`.
        input_shape: Shape of one input.
        num_outputs: Scores that the loss wants.
        seed: Seed of the experiment.
        dtype: Type of inputs; None for float32.
        preparation: What the data were prepared by, such as the number of values of each category; None if not known.

    Raises:
        ModelError: If there is no such model, or it does not fit the inputs.
    """
    with global_stream(seed, "init"):
        if name in NETWORKS:
            given = {"input_shape": input_shape, "num_outputs": num_outputs}
            model = build(NETWORKS[name], options, "model.options", ModelError, **given)
        elif name.startswith("torchvision:"):
            model = _torchvision(name.partition(":")[2], options, num_outputs)
        elif is_dotted_path(name):
            target = import_object(name, "model.name")
            takes = inspect.signature(target).parameters
            given = {"input_shape": tuple(input_shape), "num_outputs": num_outputs, "preparation": preparation}
            given = {key: value for key, value in given.items() if key in takes and key not in options}
            model = build(target, options, "model.options", ModelError, **given)
        else:
            raise _unknown(name)
        if not isinstance(model, nn.Module):
            raise ModelError(f"model.name: {name} made a {type(model).__name__}, expected a torch.nn.Module")
        # Lazy layers take their shape here, so weights are drawn anew only after.
        _check_outputs(model, name, torch.zeros(2, *input_shape, dtype=dtype), num_outputs)
        initialize(model, init)
    return model


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a model that is not there, or takes no such options, before the data are.

    Raises:
        ModelError, ConfigError: If it is so.
    """
    if name in NETWORKS:
        check_options(NETWORKS[name], options, "model.options", {"input_shape": (), "num_outputs": 0})
    elif is_dotted_path(name):
        import_object(name, "model.name")
    elif not name.startswith("torchvision:"):
        raise _unknown(name)


def _unknown(name: str) -> ModelError:
    near = nearest(name, list(NETWORKS))
    known = ", ".join([*NETWORKS, "torchvision:NAME", "package.module:Class"])
    hint = f"did you mean {near}?" if near else f"there are: {known}"
    return ModelError(f"model.name: got {name!r}, which is unknown; {hint}")


def _torchvision(name: str, options: Mapping[str, Any], num_outputs: int) -> nn.Module:
    models = require("torchvision.models", "torchvision", f"model.name=torchvision:{name}")
    if name not in models.list_models(models):
        near = nearest(name, models.list_models(models))
        hint = f"; did you mean torchvision:{near}?" if near else ""
        raise ModelError(f"model.name: torchvision has no model {name!r}{hint}")
    return build(models.get_model_builder(name), options, "model.options", ModelError, num_classes=num_outputs)


def _check_outputs(model: nn.Module, name: str, inputs: torch.Tensor, num_outputs: int) -> None:
    """Run two inputs of zeros through the model, which leaves no trace in evaluation mode."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        kind = "" if inputs.dtype == torch.float32 else f" and type {inputs.dtype}"
        shape = tuple(inputs.shape[1:])
        raise ModelError(f"model.name={name} does not take inputs of shape {shape}{kind}: {reason}") from error
    finally:
        model.train(training)
    if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and outputs.shape[1] != num_outputs:
        raise ModelError(
            f"model.name={name} returns {outputs.shape[1]} outputs, expected {num_outputs} for these data and loss"
        )


def summarize(model: nn.Module, input_shape: Sequence[int], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Return what `model.summary` shows.

    Returns:
        `layers`: per leaf module name, type, output shape without the batch, parameters (of shared ones, once);
        `parameters` and `trainable`: totals; `operations`: floating-point operations of one sample forward, as
        `torch.utils.flop_counter` counts them (a multiply and an add are two).
    """
    shapes: dict[str, list[int]] = {}
    handles = []
    for name, module in model.named_modules():
        if not any(module.children()):
            handles.append(module.register_forward_hook(_shape_recorder(shapes, name)))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _countable(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, *input_shape, dtype=dtype, device=device))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return {
        "layers": _layers(model, shapes),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "operations": counter.get_total_flops(),
    }


@contextlib.contextmanager
def _countable() -> Iterator[None]:
    """Let attention be computed by matrix products, which the counter knows, instead of by fused kernels."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _shape_recorder(shapes: dict[str, list[int]], name: str) -> Any:
    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        shapes[name] = list(output.shape[1:]) if isinstance(output, torch.Tensor) else []

    return record


def _layers(model: nn.Module, shapes: dict[str, list[int]]) -> list[dict[str, Any]]:
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in seen]
        seen.update(id(parameter) for parameter in own)
        if own or name in shapes:
            count = sum(parameter.numel() for parameter in own)
            row = {
                "name": name or "(model)",
                "type": type(module).__name__,
                "output": shapes.get(name, []),
                "parameters": count,
            }
            layers.append(row)
    return layers
