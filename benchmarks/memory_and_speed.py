"""Effect of settings of memory and speed on a training step: time, peak memory, gradients.

python benchmarks/memory_and_speed.py [--device cuda] [--batch N] [--size N] [--steps N] [--no-compile]

On images of `--size` by `--size` pixels: a residual network and a vision transformer, with each setting alone, against
none of them.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sacristan import ingredients  # noqa: F401, I001 - before torch, whose threads sleep then while they wait
import torch
from torch import nn

from sacristan.ingredients.losses import Loss
from sacristan.ingredients.models.networks import CNN, ViT
from sacristan.ingredients.models.tuned import tune
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.precision import MixedPrecision
from benchmarks.step_cost import measure, print_costs


def tuned(network: nn.Module, implementation: str | None = None, **settings):
    """Return a network with settings, and its optimizer."""
    tune(network, **settings)
    return network, build_optimizer(network, "AdamW", 1e-3, implementation=implementation)


def settings_of(blocks: list[str]) -> dict[str, Callable]:
    """Return what makes a network ready, by setting; `blocks` are the modules whose activations are not kept."""
    return {
        "none": tuned,
        "model.gradient_checkpointing": functools.partial(tuned, gradient_checkpointing=blocks),
        "model.channels_last": functools.partial(tuned, channels_last=True),
        "model.compile": functools.partial(tuned, compile="default"),
        "optimizer.implementation=foreach": functools.partial(tuned, implementation="foreach"),
        "optimizer.implementation=fused": functools.partial(tuned, implementation="fused"),
    }


def compare(device: torch.device, *, batch: int = 64, size: int = 32, steps: int = 10, names: Collection[str]) -> None:
    """Print what some settings change, a table for each network."""
    shape = (3, size, size)
    torch.manual_seed(0)
    samples = torch.randn(batch, *shape, device=device), torch.randint(0, 10, (batch,), device=device)
    data = SimpleNamespace(train=SimpleNamespace(epoch=lambda epoch: [samples]))
    loss = Loss(nn.CrossEntropyLoss(), "classes", 10)
    networks = {
        "cnn": (CNN(shape, 10, widths=[32, 64], blocks=2), ["[3-6]"]),
        "vit": (ViT(shape, 10, patch=4, width=64, depth=6), ["encoder.*"]),
    }
    for name, (network, blocks) in networks.items():
        variants = {key: value for key, value in settings_of(blocks).items() if key == "none" or key in names}
        print(f"{name} on {device}, {torch.get_num_threads()} threads")
        amp = MixedPrecision(device)
        print_costs(measure(variants, network.to(device), loss, data, amp, num_steps=steps))


def main() -> None:
    """Print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    names = settings_of([]).keys() - ({"model.compile"} if given.no_compile else set())
    compare(torch.device(given.device), batch=given.batch, size=given.size, steps=given.steps, names=names)


if __name__ == "__main__":
    main()
