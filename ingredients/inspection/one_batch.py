"""One batch through a model, forward and backward: statistics of each module as a table and a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.config.tables import print_table
from sacristan.ingredients.inspection.probes import Probe, feature_maps, matching

__all__ = ["Seen", "draw", "look", "print_seen"]

# Rows of the picture.
_MOST_DRAWN = 16


@dataclasses.dataclass(frozen=True)
class Seen:
    """Observations of a module.

    Attributes:
        kind: Its class.
        output: Its output, detached.
        gradient: The gradient of the loss by the output; None if there is none.
        figures: Statistics by name, see `Probe.figures`.
        weight_norm, grad_norm: Norms of all its own parameters together, and of their gradients; None without any.
    """

    name: str
    kind: str
    output: Tensor
    gradient: Tensor | None
    figures: dict[str, float]
    weight_norm: float | None
    grad_norm: float | None


def look(model: nn.Module, loss: Any, batch: tuple[Tensor, Tensor], globs: Sequence[str] = ()) -> list[Seen]:
    """Run a training-mode forward and backward pass on a batch, and return observations of modules, in order.

    The model's gradients are cleared. Without `globs`, all leaf modules are observed.
    """
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
