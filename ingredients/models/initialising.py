"""Initial weights: `model.init` chooses a function of `torch.nn.init` for each layer.

"xavier"                                       linear and convolution layers; their biases become zero
{"name": "kaiming_normal", "mode": "fan_out"}  these, attention, embeddings and recurrent layers
[{"match": "head", "name": "zeros"},           the same by globs on names of modules, the first match wins;
 {"match": "*", "name": "orthogonal"}]         layers without a match stay as built
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from sacristan.configs import to_plain
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import check_options, import_object, is_dotted_path
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.models.compiled import plain_name
from sacristan.ingredients.models.freezing import check_globs, matches

__all__ = ["check_init", "initialize"]

_SHORT = {"xavier": "xavier_uniform", "kaiming": "kaiming_normal"}
_FUNCTIONS = {
    name.rstrip("_"): getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")
}
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
# Blocks in the weights of a recurrent layer, one for each gate.
_NUM_GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The initialisation of the layers that match a glob.

    Attributes:
        draw: Initialises a tensor in place; None leaves it as built.
        forget_bias: Bias of the forget gates of LSTMs.
        linear_only: Whether it applies to linear and convolution layers only.
    """

    match: str
    draw: Callable[[Tensor], Any] | None
    forget_bias: float = 0.0
    linear_only: bool = False


def check_init(init: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[_Rule]:
    """Check `model.init`, and return its rules; see `initialize`."""
    if isinstance(init, str):
        return [dataclasses.replace(_rule({"name": init}), linear_only=True)]
    entries = [{"match": "*", **init}] if isinstance(init, Mapping) else init
    for entry in entries:
        if not isinstance(entry, Mapping) or not all(isinstance(entry.get(key), str) for key in ("match", "name")):
            raise ModelError(
                f"model.init: got {entry!r}, expected an entry like {{match: '*', name: orthogonal, gain: 1.4}}"
            )
    return [_rule(entry) for entry in entries]


def _rule(entry: Mapping[str, Any]) -> _Rule:
    options = {key: to_plain(value) for key, value in entry.items() if key not in ("match", "name", "forget_bias")}
    forget_bias = entry.get("forget_bias", 0.0)
    if isinstance(forget_bias, bool) or not isinstance(forget_bias, int | float):
        raise ModelError(f"model.init: got forget_bias={forget_bias!r}, expected a number such as 1.0")
    match, name = entry.get("match", "*"), entry["name"]
    if name == "default":
        extra = [key for key in entry if key not in ("match", "name")]
        if extra:
            raise ModelError(f"model.init: default leaves weights as built, and takes no {', '.join(extra)}")
        return _Rule(match, None)
    function = _function(name)
    check_options(function, options, "model.init", {"tensor": (), "generator": None})

    def draw(tensor: Tensor) -> None:
        try:
            with torch.no_grad():
                function(tensor, **options)
        except (ValueError, TypeError, RuntimeError) as error:
            shown = "".join(f", {key}={value!r}" for key, value in options.items())
            raise ModelError(
                f"model.init: {name}{shown} refuses weights of shape {list(tensor.shape)}: {error}"
            ) from error

    return _Rule(match, draw, forget_bias)


def _function(name: str) -> Callable[..., Any]:
    if is_dotted_path(name):
        return import_object(name, "model.init")
    function = _FUNCTIONS.get(_SHORT.get(name, name))
    if function is None:
        known = ["default", *_SHORT, *sorted(_FUNCTIONS)]
        hint = suggestion(name, known, f"there are: {', '.join(known)}, package.module:function")
        raise ModelError(f"model.init: got {name!r}, which is unknown; {hint}")
    return function


def initialize(model: nn.Module, init: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Initialise the weights of a model in place, and zero their biases.

    `init` is `default` (as built), `xavier` (Glorot and Bengio 2010), `kaiming` (He et al. 2015), `orthogonal` (Saxe et
    al. 2013) or another function of `torch.nn.init`, a mapping with arguments, or a list by globs on names of modules
    (see the docstring of this module). `forget_bias` is the bias of an LSTM's forget gate (Jozefowicz et al. 2015, Gers
    et al. 2000).

    Queries, keys and values of attention and the gates of recurrent layers are drawn separately. The row of an
    embedding's `padding_idx` becomes zero.
    """
    rules = check_init(init)
    used: set[int] = set()
    drawn: set[int] = set()
    for name, module in model.named_modules():
        number = next((n for n, rule in enumerate(rules) if matches(plain_name(name), [rule.match])), None)
        if number is None or not _has_weights(module):
            continue
        used.add(number)
        rule = rules[number]
        if rule.draw is not None and (isinstance(module, _LINEAR) or not rule.linear_only):
            _draw(module, rule.draw, rule.forget_bias)
            drawn.update(map(id, module.parameters(recurse=False)))
    if isinstance(init, str):
        return
    _zero_padding(model, drawn)
    check_globs(model, [rule.match for rule in rules], "model.init")
    for number in sorted(set(range(len(rules))) - used):
        raise ModelError(
            f"model.init: {rules[number].match!r} matches no layer whose weights can be drawn, or only those of entries"
            " before it; remove it, or put it first"
        )


def _has_weights(module: nn.Module) -> bool:
    return isinstance(module, (*_LINEAR, *_EMBEDDINGS, *_RECURRENT, nn.MultiheadAttention))


def _draw(module: nn.Module, draw: Callable[[Tensor], Any], forget_bias: float) -> None:
    """Initialise the weights of one layer, without its children, and zero its biases."""
    for block in _blocks(module):
        draw(block)
    with torch.no_grad():
        for name, parameter in module.named_parameters(recurse=False):
            if name in ("bias", "in_proj_bias") or name.startswith(("bias_ih", "bias_hh")):
                parameter.zero_()
            if name.startswith("bias_ih") and isinstance(module, nn.LSTM | nn.LSTMCell):
                parameter[module.hidden_size : 2 * module.hidden_size] = forget_bias


def _zero_padding(model: nn.Module, drawn: set[int]) -> None:
    """Zero the rows of `padding_idx` in embeddings that were initialised, directly or through tied weights."""
    for module in model.modules():
        if isinstance(module, _EMBEDDINGS) and module.padding_idx is not None and id(module.weight) in drawn:
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()


def _blocks(module: nn.Module) -> Iterator[Tensor]:
    """Yield the blocks of a layer's weights that are drawn separately, as views."""
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is not None:
            yield from module.in_proj_weight.detach().chunk(3)
        else:
            yield from (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    elif isinstance(module, _RECURRENT):
        num_gates = next((n for kind, n in _NUM_GATES.items() if isinstance(module, getattr(nn, kind))), 1)
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith(("weight_ih", "weight_hh")):
                yield from parameter.detach().chunk(num_gates)
            elif name.startswith("weight_hr"):
                yield parameter
    else:
        yield cast(Tensor, module.weight)
