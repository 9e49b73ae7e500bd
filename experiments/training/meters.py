"""Meters sum up what is measured in a pass through data, on the device, to be fetched once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from experiments.training.metrics import RunningMetrics, metric_names, on_device
from ingredients.losses.building import Loss
from ingredients.losses.modules import WeightedLosses
from ingredients.ranks.group import Ranks

if TYPE_CHECKING:
    from ingredients.precision.mixed_precision import MixedPrecision

__all__ = ["Means", "Mergeable", "Meter", "OfLoss"]


class Meter(Protocol):
    """Takes batches, and returns what was measured over all of them."""

    @property
    def names(self) -> Sequence[str]:
        """The names of what is measured, as far as they are known."""

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        """Add a batch."""

    def compute(self) -> dict[str, float]:
        """Return what was measured, by name; empty if there was nothing. Waits for the device."""


@runtime_checkable
class Mergeable(Protocol):
    """A meter that several processes may share."""

    def merge(self, ranks: Ranks) -> None:
        """Add what the other ranks have measured; called by all, before `compute`."""


class _Measuring(Protocol):
    def measure(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]: ...

    def weight(self, batch: Any) -> Tensor | int: ...


class Means:
    """The means of what a task measures, each batch weighted by the task.

    Args:
        task: Measures and weighs a batch; None where only `add` is called.
    """

    def __init__(self, task: _Measuring | None = None) -> None:
        self._task = task
        self._sums: dict[str, list[Tensor]] = {}

    @property
    def names(self) -> Sequence[str]:
        """The names of what was measured so far."""
        return tuple(self._sums)

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        """Add a batch; a mean over nothing, which has no weight, adds nothing."""
        if self._task is None:
            raise TypeError("there is no task to measure a batch; give one, or add what was measured")
        with amp.autocast():
            found = self._task.measure(model, batch)
        if found:
            self.add(found, self._task.weight(batch))

    def add(self, found: Mapping[str, Tensor], weight: Tensor | int) -> None:
        """Add scalars of a batch by name, and how much it counts."""
        for name, value in found.items():
            value = torch.as_tensor(value).detach()
            value = value.float() if value.device.type == "mps" else value.double()
            counted = on_device(weight, value.dtype, value.device)
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = [total + torch.where(counted > 0, value * counted, 0.0), weights + counted]

    def merge(self, ranks: Ranks) -> None:
        """Add what the other ranks have measured."""
        own = {name: torch.stack(list(map(torch.as_tensor, sums))).cpu() for name, sums in self._sums.items()}
        self._sums = {}
        for sums in ranks.gather(own):
            for name, (total, weight) in sums.items():
                before = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = [before[0] + total, before[1] + weight]

    def compute(self) -> dict[str, float]:
        """Return the means by name; empty if there was no batch. Waits for the device once."""
        if not self._sums:
            return {}
        means = torch.stack([total / weight for total, weight in self._sums.values()]).tolist()
        return dict(zip(self._sums, means, strict=True))


class OfLoss:
    """Loss and accuracy, or loss, r2, mae and rmse; see `RunningMetrics`.

    Args:
        loss: Says how outputs are read.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._metrics = RunningMetrics(loss)
        self._terms = Means()
        if loss.measures is not None:
            loss.measures.reset()

    @property
    def names(self) -> Sequence[str]:
        """The names of the metrics; those beside the loss are known once they have measured something."""
        terms = self._loss.module.losses if isinstance(self._loss.module, WeightedLosses) else ()
        return (*metric_names(self._loss), *terms)

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        """Add a batch."""
        inputs, targets = batch
        with amp.autocast():
            outputs = model(inputs)
            if isinstance(self._loss.module, WeightedLosses):
                terms = self._loss.module.terms(outputs, targets)
                batch_loss = terms.pop("loss")
            else:
                batch_loss, terms = self._loss(outputs, targets), {}
        self._metrics.update(outputs, targets, batch_loss)
        if self._loss.measures is not None:
            self._loss.measures.update(outputs, targets)
        if terms:
            mean = {name: self._loss.mean(value, len(targets)) for name, value in terms.items()}
            self._terms.add(mean, self._loss.normalizer(targets))

    def merge(self, ranks: Ranks) -> None:
        """Add what the other ranks have measured; torchmetrics does so by itself, when it computes."""
        self._metrics.merge(ranks)
        self._terms.merge(ranks)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; empty if there was no batch."""
        found = {**self._metrics.compute(), **self._terms.compute()}
        return {**found, **self._loss.measures.compute()} if found and self._loss.measures is not None else found
