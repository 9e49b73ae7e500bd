"""What the lab asks of any module: plain names, modes, layers, features, freezing; and batch normalisation over ranks.

Plain names lack `_orig_mod.`, which `torch.compile` adds. `SyncedBatchNorm` normalises with the statistics of all
ranks, like torch's SyncBatchNorm on GPUs, on the CPU; ranks may have shares of different sizes.

Parts of a model are frozen, permanently or until an epoch, by globs on names of modules and parameters. A glob that
matches a module freezes everything in it. Frozen parameters require no gradient. Normalisation layers of frozen parts
stay in evaluation mode despite `model.train()`, so their statistics are frozen with their weights.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.errors import ModelError

# Normalisation layers; in a chain, they belong to the layer before.
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase, nn.LocalResponseNorm)
_CHAINS = (nn.Sequential, nn.ModuleList)
# Attribute of a frozen parameter that is trained from a later epoch on.
_MARK = "_trained_later"
# Attribute of a model with its `Freezing`, if parts are unfrozen later.
_FREEZING = "_freezing"


def plain_name(name: str) -> str:
    """Return the name of a parameter or module without the prefix of `torch.compile`."""
    return name.replace("_orig_mod.", "")


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with plain names, see `plain_name`, in the same order."""
    return {plain_name(name): value for name, value in state.items()}


def plain_state_dict(module: nn.Module) -> dict[str, Any]:
    """Return the state dict of a module with plain names, see `plain_name`; `load_plain_state_dict` loads it."""
    return plain_names(module.state_dict())


def load_plain_state_dict(module: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load a state dict into a module; either may be compiled."""
    own = {plain_name(name): name for name in module.state_dict()}
    module.load_state_dict({own.get(name, name): value for name, value in plain_names(state).items()}, strict=strict)


@contextlib.contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode inside the block, then restore the mode of each module in them."""
    modes = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def switching(optimizers: Iterable[Any]) -> list[Any]:
    """Return the optimizers that switch between two sets of weights, as in https://arxiv.org/abs/2405.15682."""
    return [each for each in optimizers if all(callable(getattr(each, name, None)) for name in ("train", "eval"))]


@contextlib.contextmanager
def evaluation_weights(optimizers: Iterable[Any]) -> Iterator[None]:
    """Give a model the evaluation weights of `switching` optimizers in the block, then bit for bit its own again."""
    modal = switching(optimizers)
    weights = [weight for each in modal for group in each.param_groups for weight in group["params"]]
    with torch.no_grad():
        kept = [weight.clone() for weight in weights]
        for each in modal:
            each.eval()
    try:
        yield
    finally:
        with torch.no_grad():
            for each in modal:
                each.train()
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)  # the way back is rounded


def layers_of(model: nn.Module) -> list[tuple[str, list[str]]]:
    """Return the layers that have parameters, in order of registration, with the names of the parameters.

    The model, chains (`nn.Sequential`, `nn.ModuleList`) and modules that contain a `nn.ModuleList` consist of layers;
    every other module is one. Parameters outside of layers, such as positions, belong to the first.
    """
    layers: list[tuple[str, list[str]]] = []
    beside: list[str] = []
    seen: set[int] = set()

    def walk(name: str, module: nn.Module, *, is_root: bool = False) -> None:
        holds_list = any(isinstance(other, nn.ModuleList) for other in module.modules())
        if is_root or isinstance(module, _CHAINS) or holds_list:
            beside.extend(_new_names(name, module, seen, recurse=False))
            for child_name, child in module.named_children():
                walk(f"{name}.{child_name}".lstrip("."), child)
            return
        names = _new_names(name, module, seen, recurse=True)
        if layers and isinstance(module, NORMS):
            layers[-1][1].extend(names)
        elif names:
            layers.append((plain_name(name), names))

    root = getattr(model, "_orig_mod", model)
    walk("", root, is_root=True)
    if not layers:
        return [("", beside)] if beside else []
    layers[0][1][:0] = beside
    return layers


def _new_names(prefix: str, module: nn.Module, seen: set[int], *, recurse: bool) -> list[str]:
    """Return the plain names of parameters that are not in `seen`, and add these."""
    names = []
    for name, parameter in module.named_parameters(prefix, recurse=recurse):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            names.append(plain_name(name))
    return names


class FeatureExtractor(nn.Module):
    """A model that returns the outputs of some of its layers by name.

    The model is shared, not copied, and features have gradients. Its layers have hooks only during a call.

    Args:
        layers: Names of the features by the dotted names of layers.

    Example:
        features = make_feature_extractor(network, {"head": "scores"})
        scores = features(torch.zeros(8, *batches.input_shape))["scores"]
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, str]) -> None:
        super().__init__()
        self.model = model
        self._layers = dict(layers)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the features by name, the last ones of repeated layers; a layer that is not called is a ModelError."""
        outputs: dict[str, Any] = {}
        named = {plain_name(name): module for name, module in self.model.named_modules()}
        with contextlib.ExitStack() as stack:
            for layer, name in self._layers.items():
                stack.callback(named[layer].register_forward_hook(_keeper(outputs, name)).remove)
            self.model(*args, **kwargs)
        missing = [layer for layer, name in self._layers.items() if name not in outputs]
        if missing:
            raise ModelError(f"features: the model did not call {', '.join(missing)} for this input")
        return {name: outputs[name] for name in self._layers.values()}


def make_feature_extractor(model: nn.Module, layers: Mapping[str, str]) -> FeatureExtractor:
    """Return a module that returns the outputs of layers of `model`; see `FeatureExtractor`.

    `layers` maps layer names, as `model.summary` shows them, to feature names: `{"body.2": "hidden", "head":
    "scores"}`.
    """
    named = [plain_name(name) for name, _ in model.named_modules() if plain_name(name)]
    for layer in layers:
        if layer not in named:
            hint = suggestion(layer, named, f"there are: {', '.join(named[:8])}, ...")
            raise ModelError(f"features: {type(model).__name__} has no layer {layer!r}; {hint}")
    if len(set(layers.values())) < len(layers):
        raise ModelError(
            f"features: got the names {', '.join(layers.values())}; expected a different one for each layer"
        )
    return FeatureExtractor(model, layers)


def _keeper(outputs: dict[str, Any], name: str) -> Any:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        outputs[name] = output

    return keep


def is_held_in_eval(module: nn.Module) -> bool:
    """Return whether a module is kept in evaluation mode."""
    return "train" in module.__dict__


def sync_batch_norms(module: nn.Module) -> nn.Module:
    """Synchronise batch normalisation over ranks in place, except in frozen layers; return the new module."""
    if isinstance(module, _BatchNorm):
        if is_held_in_eval(module):
            return module
        is_on_gpu = any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers()))
        return nn.SyncBatchNorm.convert_sync_batchnorm(module) if is_on_gpu else SyncedBatchNorm(module)
    for name, child in module.named_children():
        synced = sync_batch_norms(child)
        if synced is not child:
            setattr(module, name, synced)
    return module


class SyncedBatchNorm(_BatchNorm):
    """Batch normalisation over the shares of all ranks: (B, C, ...) each, of any size."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self._parameters, self._buffers = norm._parameters, norm._buffers
        self.train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions (batch, channels, ...), got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise this rank's share (B, C, ...); the variance is computed after the mean, which is more exact."""
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            affine = self.weight, self.bias
            return functional.batch_norm(input, self.running_mean, self.running_var, *affine, False, 0.0, self.eps)
        others = [0, *range(2, input.ndim)]
        shape = (1, -1, *(1 for _ in range(2, input.ndim)))
        precise = input.float()
        count = precise.new_tensor([precise.numel() / precise.shape[1]])
        total = _Total.apply(torch.cat([precise.sum(others), count]))
        mean, count = total[:-1] / total[-1], total[-1].detach()
        centred = precise - mean.view(shape)
        variance = _Total.apply(centred.square().sum(others)) / count
        if self.training and self.running_mean is not None:
            self._follow(mean.detach(), variance.detach() * count / (count - 1))
        outputs = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            outputs = outputs * self.weight.view(shape) + self.bias.view(shape)
        return outputs.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics as torch does, with unbiased variances."""
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


class _Total(torch.autograd.Function):
    """The sum of a tensor over ranks; its gradient is the sum of the gradients on all ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        torch.distributed.all_reduce(total)
        return total


class Freezing:
    """Freezes parts of a model in place, some only until an epoch begins; `fit` unfreezes those.

    Args:
        globs: Parts to freeze permanently, such as `features.*` or `*.bias`.
        unfreeze: Parts to freeze until an epoch: mappings with `epoch`, the first (counted from 1) that trains them,
            and `match`, a glob or a list of globs. It overrides `globs` from that epoch on.
        whole: Whether all modules of frozen parts, such as dropout, stay in evaluation mode, or only normalisation.

    Example:
        freezing = Freezing(network, ["0", "1"], [{"epoch": 3, "match": "1"}])
        freezing.begin_epoch(3)
        assert [name for name, value in network.named_parameters() if not value.requires_grad] == ["0.weight", "0.bias"]
    """

    def __init__(
        self,
        model: nn.Module,
        globs: Sequence[str] = (),
        unfreeze: Iterable[Mapping[str, Any]] = (),
        *,
        whole: bool = False,
    ) -> None:
        self._model = model
        self._whole = whole
        self._later = check_unfreeze(unfreeze)
        self._globs = list(globs)
        check_globs(model, self._globs, "model.freeze")
        check_globs(model, [glob for _, later in self._later for glob in later], "model.unfreeze")
        for name, parameter in _named_parameters(model):
            if any(matches(name, later) for _, later in self._later):
                setattr(parameter, _MARK, True)
        if self._later:
            model.__dict__[_FREEZING] = self
        self.begin_epoch(1)

    def frozen_after(self, epoch: int) -> list[str]:
        """Return the globs of parts that are still frozen in an epoch, counted from 1, and trained later."""
        return [glob for first, globs in self._later if first > epoch for glob in globs]

    def opened_in(self, epoch: int) -> list[str]:
        """Return the globs of parts whose training begins in an epoch, counted from 1."""
        return [glob for first, globs in self._later if first == epoch for glob in globs]

    def begin_epoch(self, epoch: int) -> None:
        """Freeze the parts that are frozen in an epoch, from 1, and unfreeze the others that this object manages."""
        opened = [glob for first, globs in self._later if first <= epoch for glob in globs]
        closed = self.frozen_after(epoch)

        def is_frozen(name: str) -> bool:
            return matches(name, closed) or (matches(name, self._globs) and not matches(name, opened))

        own_globs = [*self._globs, *opened, *closed]
        for name, parameter in _named_parameters(self._model):
            if matches(name, own_globs):
                parameter.requires_grad_(not is_frozen(name))
        for name, module in self._model.named_modules(remove_duplicate=False):
            own = list(module.parameters(recurse=False))
            is_whole = is_frozen(plain_name(name)) or (own and not any(parameter.requires_grad for parameter in own))
            if self._whole or isinstance(module, nn.modules.batchnorm._NormBase):
                _hold_in_eval(module, bool(is_whole), self._model.training)


def freezings_of(model: nn.Module) -> list[Freezing]:
    """Return the `Freezing` of a model and of models in it, if parts of them are unfrozen later."""
    return [module.__dict__[_FREEZING] for module in model.modules() if _FREEZING in module.__dict__]


def will_train(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is trained, now or from a later epoch on."""
    return parameter.requires_grad or getattr(parameter, _MARK, False)


def check_unfreeze(entries: Iterable[Any]) -> list[tuple[int, list[str]]]:
    """Check `model.unfreeze`, and return its entries, `{epoch: 3, match: GLOB or a list}`, as epochs and globs."""
    parsed = []
    for entry in entries:
        if not isinstance(entry, Mapping) or entry.keys() != {"epoch", "match"}:
            raise ModelError(f"model.unfreeze: got {entry!r}, expected an entry like {{epoch: 3, match: 'features.*'}}")
        globs = [entry["match"]] if isinstance(entry["match"], str) else entry["match"]
        if not isinstance(globs, Sequence) or not globs or not all(isinstance(glob, str) for glob in globs):
            raise ModelError(
                f"model.unfreeze: got {entry['match']!r}, expected a glob such as 'features.*', or a list of them"
            )
        if type(entry["epoch"]) is not int or entry["epoch"] < 2:
            raise ModelError(
                f"model.unfreeze: got epoch={entry['epoch']!r}, expected the first that trains {globs[0]!r}: 2 or later"
            )
        parsed.append((entry["epoch"], list(globs)))
    return parsed


def check_globs(model: nn.Module, globs: Iterable[str], entry: str) -> None:
    """Reject globs that match no module and no parameter; the error suggests the nearest name."""
    parameters = [name for name, _ in _named_parameters(model)]
    names = [*(plain_name(name) for name, _ in model.named_modules() if name), *parameters]
    for glob in globs:
        if not any(matches(name, [glob]) for name in names):
            top = ", ".join(plain_name(name) for name, _ in model.named_children())
            hint = suggestion(glob.rstrip("*").rstrip("."), names, f"there are: {top}; model.summary shows all")
            raise ModelError(f"{entry}: {glob!r} matches no module and no parameter; {hint}")


def matches(name: str, globs: Iterable[str]) -> bool:
    """Return whether a glob matches a dotted name or that of a module that contains it."""
    parts = name.split(".")
    names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(prefix, glob) for glob in globs for prefix in names)


def _named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters; shared ones under each of their names."""
    return [(plain_name(name), parameter) for name, parameter in model.named_parameters(remove_duplicate=False)]


def _hold_in_eval(module: nn.Module, hold: bool, training: bool) -> None:
    """Keep a module in evaluation mode, or let it follow the model's `training` mode again."""
    if hold:
        # On the instance: `train` of any module around it calls this one. A copy of the module gets its own.
        module.__dict__["train"] = types.MethodType(train, module)
        module.train()
    elif module.__dict__.pop("train", None) is not None:
        module.train(training)


def train(self: nn.Module, mode: bool = True) -> nn.Module:
    """Stay in evaluation mode; replaces `nn.Module.train` of a frozen module."""
    return type(self).train(self, False)
