"""What the modules of a model compute: probes of a training, one batch as a table and a picture, and a summary.

Shapes: B samples in a batch, C channels, F features, T places in a sequence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.commands import print_table
from sacristan.ingredients.config.construct import require
from sacristan.ingredients.datasets.collating import tensors_of
from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.models.modules import evaluating, plain_name

# Values in a histogram, at most.
_MOST_VALUES = 1 << 16
# Feature maps in an image.
_MOST_MAPS = 16

# Rows of the picture.
_MOST_DRAWN = 16


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

    Of several calls in a step, the last counts; calls without gradients do not. Hooks on the returned tensors see
    gradients, because hooks on modules would forbid changing these in place.
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
        """Keep weights and gradient norms before a step that changes the `parameters` of these ids (None: all)."""
        for key, parameter in self._parameters():
            if parameter.grad is not None and (parameters is None or id(parameter) in parameters):
                self._grad_norms[key] = parameter.grad.norm().float()
                self._before[key] = parameter.detach().clone()

    def _parameters(self) -> Iterator[tuple[tuple[str, str], nn.Parameter]]:
        for name, module in self._modules.items():
            for own, parameter in module.named_parameters(recurse=False):
                yield (name, own), parameter

    def figures(self, scale: float = 1.0) -> dict[str, float]:
        """Return statistics by `MODULE/NAME`, waiting for the device once; `scale` is the loss scale of float16."""
        figures: dict[str, Tensor] = {}
        if "inputs" in self._what:
            figures |= _of_tensors("input", self._inputs)
        if "activations" in self._what:
            figures |= _of_tensors("output", self.outputs)
            figures |= {
                f"{name}/output_dead": _dead(tensor) for name, tensor in self.outputs.items() if tensor.ndim > 1
            }
        if "gradients" in self._what:
            figures |= _of_tensors("gradient", {name: tensor / scale for name, tensor in self.gradients.items()})
        if "weights" in self._what:
            figures |= self._of_weights()
        if not figures:
            return {}
        device = next(iter(figures.values())).device
        return dict(zip(figures, torch.stack([value.to(device) for value in figures.values()]).tolist(), strict=True))

    def _of_weights(self) -> dict[str, Tensor]:
        figures = {}
        for key, parameter in self._parameters():
            name = "/".join(key)
            figures[f"{name}_norm"] = parameter.detach().norm().float()
            if key in self._before:
                before = self._before[key]
                figures[f"{name}_grad_norm"] = self._grad_norms[key]
                moved = (parameter.detach() - before).norm().float()
                figures[f"{name}_update_ratio"] = moved / before.norm().float().clamp_min(1e-12)
        return figures

    def histograms(self, scale: float = 1.0) -> dict[str, Tensor]:
        """Return at most 65,536 evenly spaced values by `MODULE/NAME`, on the CPU; empty without histograms."""
        if "histograms" not in self._what:
            return {}
        histograms = {f"{name}/output": tensor for name, tensor in self.outputs.items()}
        histograms |= {f"{name}/gradient": tensor / scale for name, tensor in self.gradients.items()}
        histograms |= {"/".join(key): parameter.detach() for key, parameter in self._parameters()}
        return {name: _some(tensor).float().cpu() for name, tensor in histograms.items()}

    def images(self) -> dict[str, Tensor]:
        """Return the feature maps of the first sample as one image (H, W) from 0 to 1, by `MODULE/maps`."""
        if "images" not in self._what:
            return {}
        return {f"{name}/maps": feature_maps(tensor[0]) for name, tensor in self.outputs.items() if tensor.ndim == 4}


def feature_maps(maps: Tensor) -> Tensor:
    """Return the first 16 feature maps (C, H, W) of a sample as one image, each scaled from 0 to 1."""
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


@dataclasses.dataclass(frozen=True)
class Seen:
    """Observations of a module."""

    name: str
    kind: str
    output: Tensor
    gradient: Tensor | None
    figures: dict[str, float]
    weight_norm: float | None
    grad_norm: float | None


def look(model: nn.Module, loss: Any, batch: tuple[Tensor, Tensor], globs: Sequence[str] = ()) -> list[Seen]:
    """Pass a batch forward and backward in training mode, clear gradients, and return observations in order."""
    modules = matching(model, globs or ["*"])
    if not globs:
        modules = {name: module for name, module in modules.items() if not any(module.children())}
    model.train()
    inputs, targets = batch
    with Probe(model, modules, ["activations", "gradients"]) as probe:
        loss(model(inputs), targets).backward()
    figures: dict[str, dict[str, float]] = {name: {} for name in probe.outputs}
    for what, value in probe.figures().items():
        name, _, figure = what.rpartition("/")
        figures.setdefault(name, {})[figure] = value
    seen = []
    for name, output in probe.outputs.items():
        own = list(modules[name].parameters(recurse=False))
        norms = _norm(own), _norm([parameter.grad for parameter in own if parameter.grad is not None])
        seen.append(Seen(name, type(modules[name]).__name__, output, probe.gradients.get(name), figures[name], *norms))
    model.zero_grad()
    return seen


def _norm(tensors: Sequence[Tensor]) -> float | None:
    return float(torch.nn.utils.get_total_norm(tensors)) if tensors else None


def print_seen(modules: Sequence[Seen]) -> None:
    """Print a table of modules: output shape without the batch, statistics, gradients and weights."""
    columns = ["layer", "type", "output", "mean", "std", "zeros", "dead", "gradient std", "weight norm", "its gradient"]
    rows = []
    for seen in modules:
        shown = [seen.figures.get(f"output_{what}") for what in ("mean", "std", "zeros", "dead")]
        shown += [seen.figures.get("gradient_std"), seen.weight_norm, seen.grad_norm]
        shape = "x".join(map(str, seen.output.shape[1:]))
        rows.append([seen.name, seen.kind, shape, *("" if value is None else f"{value:.3g}" for value in shown)])
    print_table(columns, rows)


def draw(modules: Sequence[Seen], path: Path) -> None:
    """Draw the first 16 modules as a PNG: histograms of outputs and gradients, and feature maps of a sample."""
    drawn = modules[:_MOST_DRAWN]
    size = (9, 1.6 * len(drawn))
    figure = require("matplotlib.figure", "plot", "drawing a probe").Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(drawn), 3, squeeze=False)
    for row, seen in zip(grid, drawn, strict=True):
        for axes, values in zip(row, (seen.output, seen.gradient), strict=False):
            if values is not None:
                finite = values.flatten().float().cpu()
                axes.hist(finite[finite.isfinite()].numpy(), bins=50, histtype="stepfilled")  # one shape, not 50
            axes.tick_params(labelsize=6)
            axes.locator_params(axis="x", nbins=4)
            axes.set_yticks([])
        row[0].set_ylabel(seen.name, fontsize=7)
        row[2].axis("off")
        if seen.output.ndim == 4:
            row[2].imshow(feature_maps(seen.output[0]).numpy(), cmap="gray", vmin=0, vmax=1)
    for axes, title in zip(grid[0], ("output", "gradient by the output", "feature maps"), strict=True):
        axes.set_title(title, fontsize=8)
    figure.savefig(path)


def summarize(model: nn.Module, input_shape: Sequence[int], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Run one sample of zeros through a model, and summarise its layers for `model.summary`.

    The totals are `parameters`, `trainable`, `operations`, `parameter_bytes` (with buffers) and `output_bytes`.
    `layers` has a row for each module that is a leaf, or has parameters or operations of its own: name, type, output
    shape without the batch, parameters (shared ones once), operations and output bytes. Operations are those of one
    forward sample, as `torch.utils.flop_counter` counts them (a multiply and an add are two). Output bytes are those of
    leaf modules, roughly what training keeps for the backward pass.
    """
    shapes: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    handles = [
        module.register_forward_hook(_shape_recorder(shapes, None if any(module.children()) else sizes, name))
        for name, module in model.named_modules()
    ]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    inputs = torch.zeros(1, *input_shape, dtype=dtype, device=device)
    try:
        with torch.no_grad(), evaluating(model), _countable(model), FlopCounterMode(display=False) as counter:
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    kept = [*model.parameters(), *model.buffers()]
    return {
        "layers": _layers(model, shapes, sizes, counter),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "operations": counter.get_total_flops(),
        "parameter_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept),
        "output_bytes": sum(sizes.values()),
    }


@contextlib.contextmanager
def _countable(model: nn.Module) -> Iterator[None]:
    """Compute attention and recurrent layers by matrix products, which the counter supports, not fused kernels."""
    has_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn] if has_recurrent else []
    before = [library.enabled for library in libraries]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for library in libraries:
            library.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library, enabled in zip(libraries, before, strict=True):
            library.enabled = enabled
        torch.backends.mha.set_fastpath_enabled(fast)


def _shape_recorder(shapes: dict[str, list[int]], sizes: dict[str, int] | None, name: str) -> Any:
    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        shapes[name] = list(output.shape[1:]) if isinstance(output, Tensor) else []
        if sizes is not None:
            sizes[name] = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(output))

    return record


def _layers(
    model: nn.Module,
    shapes: dict[str, list[int]],
    sizes: dict[str, int],
    counter: FlopCounterMode,
) -> list[dict[str, Any]]:
    operations = _own_operations(counter, type(model).__name__, shapes)
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in seen]
        seen.update(map(id, own))
        if own or operations.get(name) or name in sizes:
            row = {
                "name": name or "(model)",
                "type": type(module).__name__,
                "output": shapes.get(name, []),
                "parameters": sum(map(Tensor.numel, own)),
                "operations": operations.get(name, 0),
                "output_bytes": sizes.get(name, 0),
            }
            layers.append(row)
    return layers


def _own_operations(counter: FlopCounterMode, root: str, called: Collection[str]) -> dict[str, int]:
    """Return the operations of each called module, without those of the modules that it called."""
    counts = counter.get_flop_counts()
    totals = {name: sum(counts.get(f"{root}.{name}" if name else root, {}).values()) for name in called}
    own = dict(totals)
    for name, total in totals.items():
        caller = name.rpartition(".")[0]
        while caller and caller not in totals:
            caller = caller.rpartition(".")[0]
        if name and caller in totals:
            own[caller] -= total
    return own
