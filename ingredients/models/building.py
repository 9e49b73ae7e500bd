"""Building models, without Sacred."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path, require
from sacristan.ingredients.config.seed import global_stream
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.models.initialising import initialize
from sacristan.ingredients.models.modes import evaluating
from sacristan.ingredients.models.networks import NETWORKS

__all__ = ["build_model", "check_model"]


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
    """Build a model on the CPU, its parameters drawn from the stream `init` of `seed`.

    `name` is one of `NETWORKS`, `torchvision:NAME`, or a dotted path. A user's class gets `input_shape`, `num_outputs`
    and `preparation` (None if unknown) if it takes them. `dtype` is that of the inputs; None for float32.
    """
    with global_stream(seed, "init"):
        if name in NETWORKS:
            given = {"input_shape": input_shape, "num_outputs": num_outputs}
            model = build(NETWORKS[name], options, "model.options", ModelError, **given)
        elif name.startswith("torchvision:"):
            model = _torchvision(name.partition(":")[2], options, num_outputs)
        elif is_dotted_path(name):
            target = import_object(name, "model.name")
            parameters = inspect.signature(target).parameters
            given = {"input_shape": tuple(input_shape), "num_outputs": num_outputs, "preparation": preparation}
            given = {key: value for key, value in given.items() if key in parameters and key not in options}
            model = build(target, options, "model.options", ModelError, **given)
        else:
            raise _unknown(name)
        if not isinstance(model, nn.Module):
            raise ModelError(f"model.name: {name} made a {type(model).__name__}, expected a torch.nn.Module")
        # Lazy layers get their shape here, so weights are initialised afterwards.
        _check_outputs(model, name, torch.zeros(2, *input_shape, dtype=dtype), num_outputs)
        initialize(model, init)
    return model


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Reject an unknown model, or options that it does not take, before data are loaded.

    Options of a user's class are checked when it is built.
    """
    if name in NETWORKS:
        check_options(NETWORKS[name], options, "model.options", {"input_shape": (), "num_outputs": 0})
    elif is_dotted_path(name):
        import_object(name, "model.name")
    elif not name.startswith("torchvision:"):
        raise _unknown(name)


def _unknown(name: str) -> ModelError:
    known = [*NETWORKS, "torchvision:NAME", "package.module:Class"]
    hint = suggestion(name, NETWORKS, f"there are: {', '.join(known)}")
    return ModelError(f"model.name: got {name!r}, which is unknown; {hint}")


def _torchvision(name: str, options: Mapping[str, Any], num_outputs: int) -> nn.Module:
    models = require("torchvision.models", "torchvision", f"model.name=torchvision:{name}")
    if name not in models.list_models(models):
        hint = suggestion(name, models.list_models(models), "", "torchvision:{}".format)
        raise ModelError(f"model.name: torchvision has no model {name!r}{hint and f'; {hint}'}")
    return build(models.get_model_builder(name), options, "model.options", ModelError, num_classes=num_outputs)


def _check_outputs(model: nn.Module, name: str, inputs: torch.Tensor, num_outputs: int) -> None:
    """Check the outputs for two inputs of zeros, in evaluation mode, which leaves the model unchanged."""
    try:
        with torch.no_grad(), evaluating(model):
            outputs = model(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        kind = "" if inputs.dtype == torch.float32 else f" and type {inputs.dtype}"
        shape = tuple(inputs.shape[1:])
        raise ModelError(f"model.name={name} does not take inputs of shape {shape}{kind}: {reason}") from error
    if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and outputs.shape[1] != num_outputs:
        raise ModelError(
            f"model.name={name} returns {outputs.shape[1]} outputs, expected {num_outputs} for these data and loss"
        )
