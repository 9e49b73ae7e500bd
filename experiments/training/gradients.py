"""Gradients of one optimizer step: from the losses of its micro-batches, and for optimizers that recompute their loss.

A loss function returns a scalar; a mapping with `loss` and further scalars to log; or None to skip the micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sacristan.experiments.training.meters import WeightedMeans
from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.precision import MixedPrecision, parameters_of, with_shares

LossValue = Tensor | Mapping[str, Tensor] | None
LossOf = Callable[[Any], LossValue]
Note = Callable[[Mapping[str, Tensor]], Tensor]


class _Skipped(Exception):  # noqa: N818 - no error
    """The task skipped the batch before the optimizer changed anything."""


def add_gradients(
    loss_of: LossOf,
    group: Sequence[Any],
    task: Any,
    amp: MixedPrecision,
    optimizer: torch.optim.Optimizer,
    note: Note,
) -> Tensor | None:
    """Add the gradients of one effective batch, and return its loss, detached; None if every micro-batch is skipped.

    Each micro-batch counts by its share of the whole, so gradients are those of one big batch, also when the last one
    is smaller, classes are weighted, or the loss is a sum. (BatchNorm still sees one micro-batch at a time.) If some
    are skipped, the others are rescaled. `note` keeps scalars to log, and returns the loss among them.
    """
    is_sum = "loss" in task.sums
    is_whole = is_sum or len(group) == 1
    total: Tensor | None = None
    means = WeightedMeans()
    skipped: Any = 0.0
    for batch, share in with_shares(group, task.weight, is_sum=is_sum):
        with amp.context:
            value = loss_of(batch)
            if value is None:
                skipped = skipped + (task.weight(batch) if is_sum else share)
                continue
            parts = value if isinstance(value, Mapping) else {"loss": value}
            loss = parts["loss"] if "loss" in parts else note(parts)
            loss = loss if is_whole else loss * share
        amp.backward(loss)
        total = loss.detach() if len(group) == 1 else precise(loss.detach()) + (0.0 if total is None else total)
        if len(parts) > 1 and len(group) == 1:
            note(task.means_of(parts, batch))
        elif len(parts) > 1:
            means.add(task.means_of(parts, batch), task.weight(batch))
    if total is not None and not is_whole and skipped > 0:
        rest = 1 / (1 - skipped)
        total = total * rest
        _scale(optimizer, rest)
    if total is not None and is_sum and skipped > 0:
        whole = sum(map(task.weight, group))
        total = total * (whole / (whole - skipped))  # the log divides it by the whole
    if scalars := means.means():
        note(scalars)
    return total


def _scale(optimizer: torch.optim.Optimizer, factor: Any) -> None:
    for gradient in (p.grad for p in parameters_of(optimizer) if p.grad is not None):
        gradient.mul_(factor)


def precise(loss: Tensor) -> Tensor:
    """Return a loss in float32 or better, so that sums of parts lose no digits."""
    return loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss


def step_with_closure(
    gradients: Callable[[], Tensor | None], amp: MixedPrecision, optimizer: torch.optim.Optimizer
) -> tuple[Tensor | None, bool]:
    """Step an optimizer like LBFGS; return the loss before, None if skipped, and whether the optimizer stepped."""
    losses: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = gradients()
        if loss is None and losses:
            raise ConfigError(
                f"task: skipped a batch that it had a loss of; {type(optimizer).__name__} computes the loss of a batch "
                "several times, so skipping must depend on the batch alone"
            )
        if loss is None:
            raise _Skipped
        losses.append(loss)
        return loss

    try:
        stepped = amp.step(optimizer, closure)
    except _Skipped:
        return None, False
    return losses[0], stepped


def grouped(batches: Iterable, size: int) -> Iterator[list]:
    """Return an iterator over lists of batches, one list for each optimizer step; it keeps no reference to a batch."""
    if size == 1:
        return map(_alone, batches)
    iterator = iter(batches)
    return iter(lambda: list(itertools.islice(iterator, size)), [])


def _alone(batch: Any) -> list[Any]:
    return [batch]
