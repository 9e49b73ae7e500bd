"""Ingredient `optimizer`: every class of `torch.optim` by name, with parameter groups by pattern."""

from __future__ import annotations

import fnmatch
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path, require
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import OptimizerError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sacristan.ingredients.losses import Loss

__all__ = ["build_optimizer", "ingredient", "make_optimizer", "parameter_groups"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("optimizer")

# Parameters that share options: the position of their group, whether they are not decayed, their own learning rate.
_Bucket = tuple[int, bool, float | None]


@ingredient.config
def config() -> None:
    # class of torch.optim (AdamW, SGD, Muon, ...), or package.module:Class
    name = "AdamW"
    # learning rate
    lr = 1e-3
    # weight decay; None uses the default of the class: 0.01 for AdamW, 0 for most others
    weight_decay: float | None = None
    # further arguments of the class, such as momentum, betas, nesterov
    options: dict[str, Any] = {}
    # parameter groups: a list of {match: glob on parameter names, lr: ..., weight_decay: ...}; the first match wins
    groups: list[dict] = []
    # apply weight decay to biases and parameters of normalisation layers as well
    decay_bias_and_norm = True
    # factor on lr from each layer to the previous one, such as 0.75; the last layer has lr; None uses one rate
    layer_decay: float | None = None
    # implementation of the step: for_loop, foreach (all parameters at once), fused (one kernel); None lets torch choose
    implementation: Literal["for_loop", "foreach", "fused"] | None = None


config.legacy(name="")  # an experiment without this ingredient has another optimizer


@ingredient.check
def check_config(config: Map) -> None:
    """Reject an unknown class, and invalid rates and options, before the model is built."""
    _check_rate(config.lr)
    _check_layer_decay(config.layer_decay)
    cls = _optimizer_class(config.name)
    check_options(cls, config.options, "optimizer.options", {"params": (), "lr": config.lr})
    _flags(cls, config.implementation, config.options)


@ingredient.capture
def make_optimizer(model: nn.Module, loss: Loss | None = None, _config: Any = None) -> torch.optim.Optimizer:
    """Build the configured optimizer for the trainable parameters of a model, and of a loss.

    Args:
        model: The model, on its device already. `optimizer.groups` matches its parameters by name.
        loss: The loss; its own parameters are called `loss.NAME`.

    Returns:
        An optimizer whose groups have the `names` of their parameters.

    Raises:
        OptimizerError: If there is no such class, a group matches nothing, or the class rejects the parameters.
        ConfigError: If the class does not take an option.

    Example:
        opt = optimizer.make_optimizer(network, criterion)
        print(opt.param_groups[0]["lr"])
    """
    return build_optimizer(model, **_config, loss=loss)


def build_optimizer(
    model: nn.Module,
    name: str,
    lr: float,
    weight_decay: float | None = None,
    options: Mapping[str, Any] = {},
    groups: Sequence[Mapping[str, Any]] = (),
    decay_bias_and_norm: bool = True,
    layer_decay: float | None = None,
    implementation: str | None = None,
    loss: Loss | None = None,
) -> torch.optim.Optimizer:
    """Build an optimizer without Sacred; groups have `names`, as torch's `param_names` rule out groups added later."""
    import inspect

    cls = _optimizer_class(name)
    _check_rate(lr)
    _check_layer_decay(layer_decay)
    arguments: dict[str, Any] = {"lr": lr, **_flags(cls, implementation, options)}
    has_decay = "weight_decay" in inspect.signature(cls).parameters
    if not has_decay and (weight_decay or not decay_bias_and_norm or any("weight_decay" in group for group in groups)):
        raise OptimizerError(f"optimizer: {name} has no weight decay to set; choose another class, such as AdamW")
    if has_decay and weight_decay is not None:
        arguments["weight_decay"] = weight_decay
    rates = {} if layer_decay is None else _layer_rates(model, lr, layer_decay)
    parameters = parameter_groups(model, groups, decay_bias_and_norm, {} if loss is None else loss.parameters, rates)
    check_options(cls, options, "optimizer.options", {"params": parameters, **arguments})
    for group in groups:
        _check_group(cls, group, lr, {**arguments, **options}, parameters)
    return build(cls, options, "optimizer.options", OptimizerError, params=parameters, **arguments)


def _check_group(
    cls: type, group: Mapping[str, Any], lr: float, options: Mapping[str, Any], parameters: list[dict[str, Any]]
) -> None:
    # torch.optim accepts any key in a group, even a misspelt one.
    own = {key: value for key, value in group.items() if key != "match"}
    check_options(cls, {**options, **own}, "optimizer.groups", {"params": parameters})
    own_lr = own.get("lr", lr)
    if not isinstance(own_lr, int | float) or not own_lr > 0:
        raise OptimizerError(f"optimizer.groups: got lr={own_lr!r} for {group['match']!r}, expected more than 0")


def _flags(cls: type, implementation: str | None, options: Mapping[str, Any]) -> dict[str, bool]:
    """Return the arguments of an optimizer class that choose the implementation of its step."""
    import inspect

    if implementation is None:
        return {}
    flags = [name for name in ("foreach", "fused") if name in inspect.signature(cls).parameters]
    if implementation != "for_loop" and implementation not in flags:
        raise OptimizerError(
            f"optimizer.implementation: {cls.__name__} has no {implementation} implementation; it has "
            f"{', '.join(['for_loop', *flags])}"
        )
    both = [name for name in flags if name in options]
    if both:
        raise OptimizerError(f"optimizer: implementation and options.{both[0]} set the same thing; give only one")
    return {name: name == implementation for name in flags}


def _check_rate(lr: float) -> None:
    if not 0 < lr < math.inf:
        raise OptimizerError(f"optimizer.lr: got {lr}, expected more than 0")


def _check_layer_decay(layer_decay: float | None) -> None:
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise OptimizerError(f"optimizer.layer_decay: got {layer_decay}, expected more than 0 and at most 1, or None")


def _layer_rates(model: nn.Module, lr: float, layer_decay: float) -> dict[str, float]:
    """Return the learning rate of each parameter by name, `lr` for the last layer, and log the rate of each layer.

    Source: Clark et al., ELECTRA, https://arxiv.org/abs/2003.10555; Bao et al., BEiT, https://arxiv.org/abs/2106.08254
    """
    from sacristan.ingredients.models.modules import layers_of

    layers = layers_of(model)
    rates = [lr * layer_decay**distance for distance in reversed(range(len(layers)))]
    shown = ", ".join(f"{name} {rate:.3g}" for (name, _), rate in zip(layers, rates, strict=True))
    _log.info("lr by layer: %s", shown)
    return {name: rate for (_, names), rate in zip(layers, rates, strict=True) for name in names}


def _optimizer_class(name: str) -> type:
    import torch

    if is_dotted_path(name):
        if name.startswith("bitsandbytes"):
            require("bitsandbytes", "bitsandbytes", f"optimizer.name={name}")
        return import_object(name, "optimizer.name")
    classes = {
        key: value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name not in classes:
        hint = suggestion(name, classes, f"there are: {', '.join(sorted(classes))}")
        raise OptimizerError(f"optimizer.name: got {name!r}, which torch.optim does not have; {hint}")
    return classes[name]


def parameter_groups(
    model: nn.Module,
    groups: Sequence[Mapping[str, Any]] = (),
    decay_bias_and_norm: bool = True,
    of_loss: Mapping[str, nn.Parameter] = {},
    rates: Mapping[str, float] = {},
) -> list[dict[str, Any]]:
    """Group the parameters of a model for an optimizer: dicts with `params`, their `names`, and options.

    Each parameter belongs to the first of `groups` whose glob `match` fits its name; those without a match come first,
    so that the first learning rate is that of the config. Permanently frozen parameters are left out. Those that
    `model.unfreeze` trains later are included from the start, so that schedules reach them; optimizers skip parameters
    without gradients. Parameters of the loss are called `loss.NAME`. `rates` are learning rates by parameter name,
    which `lr` of a group overrides.
    """
    from sacristan.ingredients.models.modules import plain_name, will_train

    named = [(plain_name(name), parameter) for name, parameter in model.named_parameters() if will_train(parameter)]
    named += [(f"loss.{name}", parameter) for name, parameter in of_loss.items()]
    if not named:
        raise OptimizerError(
            "optimizer: the model has no parameters that require gradients, so there is nothing to train"
        )
    undecayed = set() if decay_bias_and_norm else _biases_and_norms(model)
    buckets: dict[_Bucket, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in named:
        matching = (index for index, group in enumerate(groups) if fnmatch.fnmatchcase(name, _pattern(group)))
        position = next(matching, len(groups))
        has_rate = position < len(groups) and "lr" in groups[position]
        bucket = (position, name in undecayed, None if has_rate else rates.get(name))
        buckets.setdefault(bucket, []).append((name, parameter))
    for position in set(range(len(groups))) - {position for position, _, _ in buckets}:
        names = ", ".join(name for name, _ in named[:6])
        raise OptimizerError(
            f"optimizer.groups: {_pattern(groups[position])!r} matches no parameter; there are {names}, ..."
        )
    # Parameters without a match come first, and among them those with the highest rate, that of the config.
    ordered = sorted(buckets, key=lambda key: (key[0] < len(groups), key[0], -(key[2] or math.inf), key[1]))
    return [_as_group(bucket, buckets[bucket], groups) for bucket in ordered]


def _as_group(
    bucket: _Bucket, named: list[tuple[str, nn.Parameter]], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    position, without_decay, rate = bucket
    group: dict[str, Any] = {
        "params": [parameter for _, parameter in named],
        "names": [name for name, _ in named],
    }
    if position < len(groups):
        group |= {key: value for key, value in groups[position].items() if key != "match"}
    if without_decay:
        group["weight_decay"] = 0.0
    if rate is not None:
        group["lr"] = rate
    return group


def _pattern(group: Mapping[str, Any]) -> str:
    if not isinstance(group, Mapping) or not isinstance(group.get("match"), str):
        raise OptimizerError(
            f"optimizer.groups: got {group!r}, expected an entry like {{match: '*.bias', weight_decay: 0.0}}"
        )
    return group["match"]


def _biases_and_norms(model: nn.Module) -> set[str]:
    from sacristan.ingredients.models.modules import NORMS, plain_name

    return {
        plain_name(f"{prefix}.{name}" if prefix else name)
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
        if name == "bias" or name.endswith("_bias") or isinstance(module, NORMS)
    }
