"""`Probe`: hooks on modules of a model that keep their inputs, outputs and gradients, and summarise them.

Shapes: B samples in a batch, C channels, F features, T places in a sequence.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.datasets.structure import tensors_of
from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.models.compiled import plain_name

__all__ = ["Probe", "feature_maps", "matching"]

# Values in a histogram, at most.
_MOST_VALUES = 1 << 16
# Feature maps in an image.
_MOST_MAPS = 16


def matching(model: nn.Module, globs: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules whose dotted names, without `torch.compile`, match a glob, in the order of the model."""
    named = {plain_name(name): module for name, module in model.named_modules() if plain_name(name)}
    for glob in globs:
        if not fnmatch.filter(named, glob):
            hint = suggestion(glob, named, f"there are: {', '.join(list(named)[:8])}, ...")
            raise ConfigError(f"probe.modules: got {glob!r}, which is no module's name; {hint}")
    return {name: module for name, module in named.items() if any(fnmatch.fnmatchcase(name, glob) for glob in globs)}


class Probe:
    """Keeps the inputs, outputs and gradients of modules while it is attached, and summarises them.

    If a module is called several times in a step, such as with several micro-batches, the last call counts. Hooks on
    the returned tensors see gradients, because hooks on modules would forbid changing these tensors in place. Calls
    without gradients, as in a validation, are not recorded.

    Args:
        what: Any of inputs, activations, gradients, weights, histograms, images.

    Attributes:
        outputs: The last output of each module, detached.
        gradients: The gradients of the loss by the outputs; with float16 still scaled.
    """

    def __init__(self, model: nn.Module, modules: Mapping[str, nn.Module], what: Sequence[str]) -> None:
        self._model = model
        self._modules = modules
        self._what = frozenset(what)
        self._handles: list[RemovableHandle] = []
        self._inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self._before: dict[tuple[str, str], Tensor] = {}
        self._grad_norms: dict[tuple[str, str], Tensor] = {}

    def __enter__(self) -> Probe:
        self.attach()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.detach()

    @property
    def is_attached(self) -> bool:
        """True if the hooks are attached."""
        return bool(self._handles)

    def attach(self) -> None:
        """Attach hooks to the modules, and forget earlier observations."""
        self.detach()
        for kept in (self._inputs, self.outputs, self.gradients, self._before, self._grad_norms):
            kept.clear()
        for name, module in self._modules.items():
            if "inputs" in self._what:
                self._handles.append(module.register_forward_pre_hook(self._on_inputs(name)))
            self._handles.append(module.register_forward_hook(self._on_output(name)))

    def detach(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_inputs(self, name: str) -> Any:
        def look(module: nn.Module, args: Any) -> None:
            tensor = _first(args)
            if tensor is not None and torch.is_grad_enabled():
                self._inputs[name] = tensor.detach()

        return look

    def _on_output(self, name: str) -> Any:
        def look_at_gradient(gradient: Tensor) -> None:
            self.gradients[name] = gradient.detach()

        def look(module: nn.Module, args: Any, output: Any) -> None:
            tensor = _first(output)
            if tensor is None or not torch.is_grad_enabled():
                return
            # A copy, as later modules may change it in place.
            self.outputs[name] = tensor.detach().clone()
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(look_at_gradient))

        return look

    def before_step(self, parameters: set[int] | None = None) -> None:
        """Keep weights and gradient norms before an optimizer step, to measure how far it moves the weights.

        `parameters` are the ids of those that the optimizer changes; None for all.
        """
        for place, parameter in self._parameters():
            if parameter.grad is not None and (parameters is None or id(parameter) in parameters):
                self._grad_norms[place] = parameter.grad.norm().float()
                self._before[place] = parameter.detach().clone()

    def _parameters(self) -> Iterator[tuple[tuple[str, str], nn.Parameter]]:
        for name, module in self._modules.items():
            for own, parameter in module.named_parameters(recurse=False):
                yield (name, own), parameter

    def figures(self, scale: float = 1.0) -> dict[str, float]:
        """Return the statistics by `MODULE/NAME`, such as `head/output_mean`; docs/inspection.md lists them.

        Waits for the device once. `scale` is the loss scale of float16, which gradients of outputs are divided by.
        """
        found: dict[str, Tensor] = {}
        if "inputs" in self._what:
            found |= _of_tensors("input", self._inputs)
        if "activations" in self._what:
            found |= _of_tensors("output", self.outputs)
            found |= {f"{name}/output_dead": _dead(tensor) for name, tensor in self.outputs.items() if tensor.ndim > 1}
        if "gradients" in self._what:
            found |= _of_tensors("gradient", {name: tensor / scale for name, tensor in self.gradients.items()})
        if "weights" in self._what:
            found |= self._of_weights()
        if not found:
            return {}
        device = next(iter(found.values())).device
        return dict(zip(found, torch.stack([value.to(device) for value in found.values()]).tolist(), strict=True))

    def _of_weights(self) -> dict[str, Tensor]:
        found = {}
        for place, parameter in self._parameters():
            name = "/".join(place)
            found[f"{name}_norm"] = parameter.detach().norm().float()
            if place in self._before:
                before = self._before[place]
                found[f"{name}_grad_norm"] = self._grad_norms[place]
                moved = (parameter.detach() - before).norm().float()
                found[f"{name}_update_ratio"] = moved / before.norm().float().clamp_min(1e-12)
        return found

    def histograms(self, scale: float = 1.0) -> dict[str, Tensor]:
        """Return the values for histograms by `MODULE/NAME`, on the CPU: of outputs, their gradients and parameters.

        At most 65,536 evenly spaced values of each tensor; empty unless histograms were asked for. `scale` is the loss
        scale of float16, which gradients of outputs are divided by.
        """
        if "histograms" not in self._what:
            return {}
        found = {f"{name}/output": tensor for name, tensor in self.outputs.items()}
        found |= {f"{name}/gradient": tensor / scale for name, tensor in self.gradients.items()}
        found |= {"/".join(place): parameter.detach() for place, parameter in self._parameters()}
        return {name: _some(tensor).float().cpu() for name, tensor in found.items()}

    def images(self) -> dict[str, Tensor]:
        """Return the feature maps of the first sample as one image (H, W) from 0 to 1, by `MODULE/maps`."""
        if "images" not in self._what:
            return {}
        return {f"{name}/maps": feature_maps(tensor[0]) for name, tensor in self.outputs.items() if tensor.ndim == 4}


def feature_maps(maps: Tensor) -> Tensor:
    """Return the first 16 feature maps (C, H, W) of one sample side by side as one image, on the CPU.

    Each map is scaled to the range from 0 to 1, with white lines between maps.
    """
    maps = maps[:_MOST_MAPS].float().nan_to_num().cpu()
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = nn.functional.pad((maps - low) / (high - low).clamp_min(1e-12), (0, 1, 0, 1), value=1.0)
    columns = max(1, round(len(maps) ** 0.5))
    missing = -len(maps) % columns
    maps = torch.cat([maps, maps.new_ones(missing, *maps.shape[1:])])
    return torch.cat([torch.cat(list(row), -1) for row in maps.split(columns)], -2).clamp(0, 1)


def _first(values: Any) -> Tensor | None:
    return next((tensor for tensor in tensors_of(values) if tensor.is_floating_point() and tensor.numel()), None)


def _of_tensors(word: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        f"{name}/{word}_{what}": value
        for name, tensor in tensors.items()
        for what, value in _statistics(tensor).items()
    }


def _statistics(tensor: Tensor) -> dict[str, Tensor]:
    values = tensor.float()
    std, mean = torch.std_mean(values, correction=0)
    return {"mean": mean, "std": std, "zeros": (values == 0).float().mean(), "norm": values.norm()}


def _dead(tensor: Tensor) -> Tensor:
    """Return the share of units that are 0 in the whole batch: channels of (B, C, ...), features of (B, [T,] F)."""
    unit = 1 if tensor.ndim != 3 else 2
    return (tensor.movedim(unit, 0).flatten(1) == 0).all(1).float().mean()


def _some(tensor: Tensor) -> Tensor:
    values = tensor.reshape(-1)
    return values[:: -(-len(values) // _MOST_VALUES)] if len(values) > _MOST_VALUES else values
