"""Passes through a part of the data: what a model measures there, and what it predicts.

Shapes: N samples in a part of the data, K classes or labels, D target values.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from experiments.training.meters import Mergeable, Meter
from experiments.training.modes import evaluating
from experiments.training.tasks import Task, as_task
from ingredients.config.seed import look_stream
from ingredients.datasets.batches import Batches
from ingredients.errors import ConfigError
from ingredients.losses.building import Loss
from ingredients.precision.mixed_precision import MixedPrecision
from ingredients.ranks.group import ALONE, Ranks

__all__ = ["evaluate", "evaluate_and_predict", "predict"]


def evaluate(
    model: nn.Module,
    batches: Batches,
    loss: Loss | Task,
    amp: MixedPrecision | None = None,
    *,
    inference_mode: bool = False,
) -> dict[str, float]:
    """Return the loss and the metrics of a model over a part of the data; empty if the part is.

    The model is in evaluation mode meanwhile; afterwards every module of it is in the mode it was in. Random numbers
    come from a stream that begins at the same place each time; the global generators stay where they were.

    Args:
        model: On the device of the data.
        batches: Such as `data.val` or `data.test`.
        loss: The loss, or the task, that the model was trained with.
        amp: The precision to compute in; float32 without one.
        inference_mode: Whether to compute in `torch.inference_mode`, and not just without gradients. Tensors that are
            made meanwhile, and kept, cannot take part in a training afterwards.

    Returns:
        `loss` and `accuracy`, from 0 to 1; of regression `loss`, `r2`, `mae` and `rmse`, the last two in the targets'
        own unit. Each is over all samples together, whatever the size of the batches. Of a task what it measures.

    Example:
        metrics = loop.evaluate(network, batches.test, criterion)
        print(metrics["accuracy"])
    """
    with torch.inference_mode() if inference_mode else torch.no_grad():
        return _passed(model, batches, loss, amp, measures=True)[0]


@torch.no_grad()
def predict(
    model: nn.Module, batches: Batches, loss: Loss | Task, amp: MixedPrecision | None = None
) -> dict[str, Tensor]:
    """Return what the model makes of `batches`, in their order, on the CPU; their targets may be missing.

    The model is in evaluation mode meanwhile; afterwards every module of it is in the mode it was in.

    Args:
        model: On the device of the data.
        batches: Such as `data.test`.
        loss: The loss that the model was trained with, which says how its outputs are read; or its task.
        amp: The precision to compute in; float32 without one.

    Returns:
        `predictions`: classes (N,), labels (N, K) as 0 and 1, or values (N, D) in the targets' own unit; `targets`
        likewise; `probabilities` (N, K), unless the loss is one of values. Empty if the part is. Of a task what its
        `predict` returns.

    Example:
        found = loop.predict(network, batches.test, criterion)
        wrong = found["predictions"] != found["targets"]
    """
    return _passed(model, batches, loss, amp, predicts=True)[1]


@torch.no_grad()
def evaluate_and_predict(
    model: nn.Module, batches: Batches, loss: Loss | Task, amp: MixedPrecision | None = None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return what `evaluate` and what `predict` return, of one pass: the model computes each batch once.

    Args:
        model: On the device of the data.
        batches: Such as `data.test`.
        loss: The loss, or the task, that the model was trained with.
        amp: The precision to compute in; float32 without one.

    Example:
        metrics, found = loop.evaluate_and_predict(network, batches.test, criterion)
        print(metrics["accuracy"], found["predictions"])
    """
    return _passed(_Once(model), batches, loss, amp, measures=True, predicts=True)


def _passed(
    model: nn.Module,
    batches: Batches,
    loss: Loss | Task,
    amp: MixedPrecision | None,
    *,
    measures: bool = False,
    predicts: bool = False,
) -> tuple[dict[str, float], dict[str, Tensor]]:
    amp, task = amp or MixedPrecision(next(model.parameters()).device), as_task(loss)
    meter = task.meter() if measures else None
    found: list[dict[str, Tensor]] = []
    ranks = getattr(batches, "ranks", ALONE)
    with look_stream(*ranks.stream), evaluating(*task.modules(model)):
        for batch in batches.epoch():
            if meter is not None:
                meter.update(model, batch, amp)
            if predicts:
                with amp.autocast():
                    parts = task.predict(model, batch)
                found.append({name: part.cpu() for name, part in parts.items()})
    metrics = {} if meter is None else _computed(meter, ranks)
    return metrics, _joined(found, ranks)


def _computed(meter: Meter, ranks: Ranks) -> dict[str, float]:
    """Return what was measured, by all ranks together."""
    if ranks.size == 1:
        return meter.compute()
    if not isinstance(meter, Mergeable):
        raise ConfigError(
            f"{type(meter).__name__} measures the batches of one process; write its method merge(ranks), or train in "
            "one process"
        )
    meter.merge(ranks)
    found = meter.compute()
    return ranks.from_first(lambda: found)


def _joined(found: Sequence[dict[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Return the predictions of all batches, and all ranks, in the order of the samples."""
    if ranks.size > 1:
        # Of each batch every rank has predicted its share, but for the last ones of a short last batch.
        shares = itertools.zip_longest(*ranks.gather(found))
        found = [share for batch in shares for share in batch if share is not None]
    return {name: torch.cat([parts[name] for parts in found]) for name in (found[0] if found else ())}


class _Once(nn.Module):
    """A model that computes a batch once, for however many ask for it, one after the other.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # The last inputs, and what the model made of them.
        self._last: tuple[tuple[Any, ...], Any] | None = None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return what the model makes of inputs; of the very same ones as the last time, what it made then."""
        asked = (*inputs, *itertools.chain(*sorted(options.items())))
        if self._last is not None and [*map(id, self._last[0])] == [*map(id, asked)]:
            return self._last[1]
        outputs = self.model(*inputs, **options)
        self._last = (asked, outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)
