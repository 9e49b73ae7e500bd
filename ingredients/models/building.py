"""Building models: the network of `model.name`, its initial weights, and weights from a file. Without Sacred.

`model.init` chooses a function of `torch.nn.init` for each layer:

"xavier"                                       linear and convolution layers; their biases become zero
{"name": "kaiming_normal", "mode": "fan_out"}  these, attention, embeddings and recurrent layers
[{"match": "head", "name": "zeros"},           the same by globs on names of modules, the first match wins;
 {"match": "*", "name": "orthogonal"}]         layers without a match stay as built

Weights of a file are loaded into a model that may differ from the one that saved them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from sacristan.configs import to_plain
from sacristan.configs.map import abbreviated
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path, require
from sacristan.ingredients.config.seed import global_stream
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.models import modules
from sacristan.ingredients.models.networks import NETWORKS

_SHORT = {"xavier": "xavier_uniform", "kaiming": "kaiming_normal"}
_FUNCTIONS = {
    name.rstrip("_"): getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")
}
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
# Blocks in the weights of a recurrent layer, one for each gate.
_NUM_GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}
# Names of each kind that a message or the log shows.
_NUM_SHOWN = 6


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
    and `preparation` if it takes them. `dtype` is that of the inputs; None for float32.
    """
    with global_stream(seed, "init"):
        if name in NETWORKS:
            arguments = {"input_shape": input_shape, "num_outputs": num_outputs}
            model = build(NETWORKS[name], options, "model.options", ModelError, **arguments)
        elif name.startswith("torchvision:"):
            model = _torchvision(name.partition(":")[2], options, num_outputs)
        elif is_dotted_path(name):
            target = import_object(name, "model.name")
            parameters = inspect.signature(target).parameters
            arguments = {"input_shape": tuple(input_shape), "num_outputs": num_outputs, "preparation": preparation}
            arguments = {key: value for key, value in arguments.items() if key in parameters and key not in options}
            model = build(target, options, "model.options", ModelError, **arguments)
        else:
            raise _unknown(name)
        if not isinstance(model, nn.Module):
            raise ModelError(f"model.name: {name} made a {type(model).__name__}, expected a torch.nn.Module")
        # Lazy layers get their shape here, so weights are initialised afterwards.
        _check_outputs(model, name, torch.zeros(2, *input_shape, dtype=dtype), num_outputs)
        initialize(model, init)
    return model


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Reject an unknown model or option before data are loaded; options of a user's class are checked later."""
    if name in NETWORKS:
        check_options(NETWORKS[name], options, "model.options", {"input_shape": (), "num_outputs": 0})
    elif is_dotted_path(name):
        import_object(name, "model.name")
    elif not name.startswith("torchvision:"):
        raise _unknown(name)


def _unknown(name: str) -> ModelError:
    names = [*NETWORKS, "torchvision:NAME", "package.module:Class"]
    hint = suggestion(name, NETWORKS, f"there are: {', '.join(names)}")
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
        with torch.no_grad(), modules.evaluating(model):
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


@dataclasses.dataclass(frozen=True)
class _InitRule:
    """The initialisation of layers that match a glob; without `draw` they stay as built."""

    match: str
    draw: Callable[[Tensor], Any] | None
    forget_bias: float = 0.0
    linear_only: bool = False


def check_init(init: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[_InitRule]:
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


def _rule(entry: Mapping[str, Any]) -> _InitRule:
    options = {key: to_plain(value) for key, value in entry.items() if key not in ("match", "name", "forget_bias")}
    forget_bias = entry.get("forget_bias", 0.0)
    if isinstance(forget_bias, bool) or not isinstance(forget_bias, int | float):
        raise ModelError(f"model.init: got forget_bias={forget_bias!r}, expected a number such as 1.0")
    match, name = entry.get("match", "*"), entry["name"]
    if name == "default":
        extra = [key for key in entry if key not in ("match", "name")]
        if extra:
            raise ModelError(f"model.init: default leaves weights as built, and takes no {', '.join(extra)}")
        return _InitRule(match, None)
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

    return _InitRule(match, draw, forget_bias)


def _function(name: str) -> Callable[..., Any]:
    if is_dotted_path(name):
        return import_object(name, "model.init")
    function = _FUNCTIONS.get(_SHORT.get(name, name))
    if function is None:
        names = ["default", *_SHORT, *sorted(_FUNCTIONS)]
        hint = suggestion(name, names, f"there are: {', '.join(names)}, package.module:function")
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
        number = next(
            (n for n, rule in enumerate(rules) if modules.matches(modules.plain_name(name), [rule.match])), None
        )
        if number is None or not isinstance(module, (*_LINEAR, *_EMBEDDINGS, *_RECURRENT, nn.MultiheadAttention)):
            continue
        used.add(number)
        rule = rules[number]
        if rule.draw is not None and (isinstance(module, _LINEAR) or not rule.linear_only):
            _draw(module, rule.draw, rule.forget_bias)
            drawn.update(map(id, module.parameters(recurse=False)))
    if isinstance(init, str):
        return
    _zero_padding(model, drawn)
    modules.check_globs(model, [rule.match for rule in rules], "model.init")
    for number in sorted(set(range(len(rules))) - used):
        raise ModelError(
            f"model.init: {rules[number].match!r} matches no layer whose weights can be drawn, or only those of entries"
            " before it; remove it, or put it first"
        )


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


@dataclasses.dataclass(frozen=True)
class WeightsReport:
    """Comparison of the weights in a file with a model."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: Mapping[str, tuple[list[int], list[int]]]

    @classmethod
    def of(cls, theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> WeightsReport:
        """Compare the state dicts of a file (`theirs`) and the model (`mine`), both with plain names."""
        shared = [name for name in mine if name in theirs]
        reshaped = {
            name: (_shape(theirs[name]), _shape(mine[name]))
            for name in shared
            if _shape(theirs[name]) != _shape(mine[name])
        }
        return cls(
            tuple(name for name in shared if name not in reshaped),
            tuple(name for name in mine if name not in theirs),
            tuple(name for name in theirs if name not in mine),
            reshaped,
        )

    @property
    def is_exact(self) -> bool:
        """True if file and model have the same names and shapes."""
        return not (self.missing or self.unexpected or self.reshaped)

    def differences(self) -> list[str]:
        """Return a line for each kind of difference, with its first names."""
        reshaped = [f"{name} {theirs} there, {mine} here" for name, (theirs, mine) in self.reshaped.items()]
        kinds = (("of another shape", reshaped), ("missing there", self.missing), ("unexpected", self.unexpected))
        return [f"{kind}: {_first(names)}" for kind, names in kinds if names]

    def describe(self, source: str) -> str:
        """Return the report for the log: a line of counts, and a line for each kind of difference."""
        total = len(self.loaded) + len(self.missing) + len(self.reshaped)
        left = ", the others stay as initialised" if self.missing or self.reshaped else ""
        first = f"weights of {source}: loaded {len(self.loaded)} of the model's {total} tensors{left}"
        return "\n  ".join([first, *self.differences()])

    def as_dict(self) -> dict[str, Any]:
        reshaped = [{"name": name, "there": there, "here": here} for name, (there, here) in self.reshaped.items()]
        lists = {"loaded": self.loaded, "missing": self.missing, "unexpected": self.unexpected}
        return {**{name: list(names) for name, names in lists.items()}, "reshaped": reshaped}


def _shape(value: Any) -> list[int]:
    return list(value.shape) if isinstance(value, Tensor) else []


def _first(names: Sequence[str]) -> str:
    return abbreviated(names, _NUM_SHOWN, ", and {} more")


def check_rename(rules: Iterable[Any]) -> list[tuple[re.Pattern[str], str]]:
    """Check `model.rename`, entries `{match: REGEX, to: TEXT}`, and return its compiled rules."""
    compiled = []
    for rule in rules:
        is_rule = isinstance(rule, Mapping) and rule.keys() == {"match", "to"}
        if not is_rule or not all(isinstance(value, str) for value in rule.values()):
            raise ModelError(f"model.rename: got {rule!r}, expected an entry like {{match: '^backbone\\.', to: ''}}")
        try:
            pattern = re.compile(rule["match"])
            pattern.sub(rule["to"], "")
        except (re.error, IndexError) as error:
            raise ModelError(
                f"model.rename: got {dict(rule)!r}, which is not a valid regular expression: {error}"
            ) from error
        compiled.append((pattern, rule["to"]))
    return compiled


def rename(state: Mapping[str, Any], rules: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    r"""Rename entries as `re.sub` does; raise ModelError if a rule matches no name, or two get the same one."""
    names = {name: name for name in state}
    for pattern, text in check_rename(rules):
        if not any(map(pattern.search, names.values())):
            raise ModelError(
                f"model.rename: {pattern.pattern!r} matches no name in the file; it has: {_first([*names.values()])}"
            )
        names = {old: pattern.sub(text, new) for old, new in names.items()}
    taken: dict[str, str] = {}
    for old, new in names.items():
        if new in taken:
            raise ModelError(
                f"model.rename: both {taken[new]!r} and {old!r} become {new!r}; give more exact expressions"
            )
        taken[new] = old
    return {new: state[old] for new, old in taken.items()}


def load_weights_into(model: nn.Module, state: Mapping[str, Any], *, strict: bool, source: str) -> WeightsReport:
    """Load a state dict, or leave the model unchanged; if not `strict`, one tensor at least must fit."""
    theirs, mine = modules.plain_names(state), modules.plain_state_dict(model)
    report = WeightsReport.of(theirs, mine)
    if strict and not report.is_exact:
        raise ModelError(
            f"model.weights: {source} does not fit this model ({'; '.join(report.differences())}); load what fits with "
            "model.strict=False, or rename the entries of the file with model.rename"
        )
    if not report.loaded:
        raise ModelError(
            f"model.weights: nothing in {source} fits this model; the file has {_first([*theirs])}, the model "
            f"{_first([*mine])}; see model.rename"
        )
    modules.load_plain_state_dict(model, {name: theirs[name] for name in report.loaded}, strict=report.is_exact)
    return report
