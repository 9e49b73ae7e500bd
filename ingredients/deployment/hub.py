"""Entry points of `hubconf.py`: networks by name, and models from checkpoints, which record how to build them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sacristan.ingredients.checkpoints.files import find_weights, load_checkpoint, preparation_of, read_weights
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.transforms import shape_after
from sacristan.ingredients.deployment.formats import PreparedModel
from sacristan.ingredients.errors import CheckpointError, ModelError
from sacristan.ingredients.losses.building import reading
from sacristan.ingredients.models.building import build_model, load_weights_into
from sacristan.observers.file.recorded_values import read_back

__all__ = ["load_network", "load_trained"]


def load_network(
    name: str,
    input_shape: Sequence[int],
    num_outputs: int,
    weights: str | None,
    store: str | Path,
    seed: int,
    options: Mapping[str, Any],
) -> nn.Module:
    """Return a network of the lab, with weights or newly initialised."""
    if not _is_size(num_outputs):
        raise ModelError(f"num_outputs: got {num_outputs!r}, expected a whole number of at least 1")
    if not isinstance(input_shape, Sequence) or not input_shape or not all(map(_is_size, input_shape)):
        raise ModelError(f"input_shape: got {input_shape!r}, expected sizes of at least 1, such as (1, 8, 8)")
    model = build_model(name, options, "default", tuple(input_shape), num_outputs, seed)
    if weights is not None:
        path = find_weights(weights, Path(store), "weights")
        load_weights_into(model, read_weights(path), strict=True, source=str(path))
    return model


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def load_trained(checkpoint: str, store: str | Path, *, prepared: bool = False) -> nn.Module:
    """Return the model of a checkpoint (`run:ID`, `run:ID@NAME`, `artifact:NAME:VERSION` or a path) in evaluation mode.

    It is built from the config in the checkpoint. `prepared` wraps it in the preparation of its data, see
    `PreparedModel`.
    """
    path = find_weights(checkpoint, Path(store), "checkpoint")
    state = load_checkpoint(path)
    by, config = preparation_of(state, path), read_back(state.get("config", {}))
    if by is None or by.task == "custom" or not {"data", "loss", "model"} <= config.keys():
        raise CheckpointError(
            f"{path}: does not tell how its model is built from inputs and targets; build it as its experiment does, "
            "and load the weights there"
        )
    model = _build(by, config)
    load_weights_into(model, state["model"], strict=True, source=str(path))
    return (PreparedModel(model, by) if prepared else model).eval()


def _build(by: Preparation, config: Mapping[str, Any]) -> nn.Module:
    loss, model = config["loss"], config["model"]
    name = next((part.get("name") for part in loss.get("parts", {}).values()), loss["name"])
    transforms = config["data"].get("transforms")
    shape = shape_after(transforms, by.input_shape) if transforms else by.input_shape
    _, num_outputs = reading(name, by)
    dtype = getattr(torch, by.dtype)
    return build_model(model["name"], model["options"], "default", shape, num_outputs, 0, dtype, by)
