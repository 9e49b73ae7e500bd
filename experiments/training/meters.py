"""Meters add up metrics over a pass through data, on the device, and fetch them once.

Shapes: B samples in a batch, K classes or labels, D target values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.losses.modules import WeightedLosses
from sacristan.ingredients.ranks.group import Ranks

if TYPE_CHECKING:
    from sacristan.ingredients.precision import MixedPrecision


class Meter(Protocol):
    """Takes batches, and returns metrics over all; with a method `merge(ranks)` also of several processes."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the metrics, as far as they are known."""

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        """Add a batch."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; empty if there was no batch. Waits for the device."""


def check_merges(meter: Meter) -> None:
    """Reject a meter that measures the batches of one process, as it has no method `merge`."""
    if not hasattr(meter, "merge"):
        raise ConfigError(
            f"{type(meter).__name__} measures the batches of one process; write its method merge(ranks), or train in "
            "one process"
        )


class WeightedMeans:
    """The means of the scalars that a task measures, each batch weighted by the task."""

    def __init__(self, task: Any = None) -> None:
        self._task = task
        self._sums: dict[str, list[Tensor]] = {}

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._sums)

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        with amp.autocast():
            scalars = self._task.measure(model, batch)
        if scalars:
            self.add(scalars, self._task.weight(batch))

    def add(self, scalars: Mapping[str, Tensor], weight: Tensor | int) -> None:
        """Add the scalars of a batch; with weight 0, its means are over nothing, NaN, and add nothing."""
        for name, scalar in scalars.items():
            value = _double(torch.as_tensor(scalar).detach())
            counted = on_device(weight, value.dtype, value.device)
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = [total + torch.where(counted > 0, value * counted, 0.0), weights + counted]

    def merge(self, ranks: Ranks) -> None:
        own = {name: torch.stack(list(map(torch.as_tensor, sums))).cpu() for name, sums in self._sums.items()}
        self._sums = {}
        for sums in ranks.gather(own):
            for name, (total, weight) in sums.items():
                before = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = [before[0] + total, before[1] + weight]

    def means(self) -> dict[str, Tensor]:
        """Return the means by name, on the device."""
        return {name: total / weight for name, (total, weight) in self._sums.items()}

    def compute(self) -> dict[str, float]:
        """Return the means by name; empty if there was no batch. Waits for the device once."""
        means = self.means()
        return dict(zip(means, torch.stack(list(means.values())).tolist(), strict=True)) if means else {}


class OfLoss:
    """Loss and accuracy, or loss, r2, mae and rmse, and the metrics of `metrics.use`; see `RunningMetrics`."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._metrics = RunningMetrics(loss)
        self._terms = WeightedMeans()
        if loss.measures is not None:
            loss.measures.reset()

    @property
    def names(self) -> Sequence[str]:
        """The names of the metrics; those of `metrics.use` are known once they have measured something."""
        terms = self._loss.module.losses if isinstance(self._loss.module, WeightedLosses) else ()
        return (*metric_names(self._loss), *terms)

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        inputs, targets = batch
        terms: dict[str, Tensor] = {}
        with amp.autocast():
            outputs = model(inputs)
            if isinstance(self._loss.module, WeightedLosses):
                terms = self._loss.module.terms(outputs, targets)
                batch_loss = terms.pop("loss")
            else:
                batch_loss = self._loss(outputs, targets)
        self._metrics.update(outputs, targets, batch_loss)
        if self._loss.measures is not None:
            self._loss.measures.update(outputs, targets)
        if terms:
            means = {name: self._loss.mean(value, len(targets)) for name, value in terms.items()}
            self._terms.add(means, self._loss.normalizer(targets))

    def merge(self, ranks: Ranks) -> None:
        """Add the measurements of the other ranks; torchmetrics exchanges its own when it computes."""
        self._metrics.merge(ranks)
        self._terms.merge(ranks)

    def compute(self) -> dict[str, float]:
        metrics = {**self._metrics.compute(), **self._terms.compute()}
        if metrics and self._loss.measures is not None:
            metrics |= self._loss.measures.compute()
        return metrics


class OfTask:
    """The metrics of a loss, beside the scalars that a task measures, which replace metrics of the same name."""

    def __init__(self, loss: Loss, task: Any) -> None:
        self._parts = OfLoss(loss), WeightedMeans(task)

    @property
    def names(self) -> Sequence[str]:
        return tuple(dict.fromkeys(name for part in self._parts for name in part.names))

    def update(self, model: nn.Module, batch: Any, amp: MixedPrecision) -> None:
        once = Once(model)
        for part in self._parts:
            part.update(once, batch, amp)

    def merge(self, ranks: Ranks) -> None:
        for part in self._parts:
            part.merge(ranks)

    def compute(self) -> dict[str, float]:
        return {name: value for part in self._parts for name, value in part.compute().items()}


class Once(nn.Module):
    """A model that computes each batch once, for a meter and for predictions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # The last inputs and outputs.
        self._last: tuple[tuple[Any, ...], Any] | None = None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the outputs for inputs; for the same objects as the last time, the last outputs."""
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


@dataclasses.dataclass(frozen=True)
class LossMetric:
    """Metrics of kinds of losses: what a batch adds to each sum, and a value for each name from the sums."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    sums: Callable[[Loss, Tensor, Tensor], list[Tensor]]
    values: Callable[..., tuple[Tensor | float, ...]]


def _hits(loss: Loss, outputs: Tensor, targets: Tensor) -> list[Tensor]:
    hits = loss.predict(outputs).eq(targets)
    ignored = getattr(loss.module, "ignore_index", None)
    if ignored is None or loss.kind != "classes":
        return [_double(hits.sum()), on_device(hits.numel(), torch.int64, outputs.device)]
    counted = targets.ne(ignored)
    return [_double((hits & counted).sum()), counted.sum()]


def _accuracy(hits: Tensor, count: Tensor) -> tuple[Tensor]:
    return (hits / count,)


def _errors(loss: Loss, outputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Return sums of errors and of targets, in the targets' own unit."""
    scale = 1.0 if loss.target_std is None else loss.target_std
    targets = _double(targets * scale)
    errors = targets - _double(outputs.float() * scale)
    count = on_device(targets.numel(), targets.dtype, targets.device)
    return [errors.abs().sum(), (errors**2).sum(), targets.sum(0), (targets**2).sum(0), count]


def _fit(
    absolute: Tensor, squared: Tensor, total: Tensor, squares: Tensor, count: Tensor
) -> tuple[Tensor | float, Tensor, Tensor]:
    """Return r2 over all outputs together, and the mean absolute and the root of the mean squared error."""
    variance = squares.sum() - (total**2 * total.numel() / count).sum()
    r2 = 1 - squared / variance if float(variance) > 0 else math.nan
    return r2, absolute / count, (squared / count).sqrt()


# The metrics beside `loss`. To add one, add a row here, and to `observers.record.directions` which way it is better.
METRICS = (
    LossMetric(("accuracy",), ("classes", "binary", "labels"), _hits, _accuracy),
    LossMetric(("r2", "mae", "rmse"), ("values",), _errors, _fit),
)


def metric_names(loss: Loss) -> tuple[str, ...]:
    """Return the names of the metrics of `RunningMetrics`."""
    return ("loss", *(name for metric in METRICS if loss.kind in metric.kinds for name in metric.names))


class RunningMetrics:
    """Loss and metrics of all batches passed to `update`, weighted by their samples.

    Of classes: `loss`, `accuracy`, without the targets that the loss ignores. Of values: `loss`, `r2` (over all outputs
    together), `mae` and `rmse` in the targets' own unit.

    Args:
        loss: Says how outputs are read.

    Example:
        metrics = RunningMetrics(criterion)
        with torch.no_grad():
            for inputs, targets in batches.val.epoch():
                outputs = network(inputs)
                metrics.update(outputs, targets, criterion(outputs, targets))
        print(metrics.compute())
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._measured = [metric for metric in METRICS if loss.kind in metric.kinds]
        # Those of the loss, then of each metric.
        self._sums: list[list[Tensor]] | None = None

    def update(self, outputs: Tensor, targets: Tensor, batch_loss: Tensor) -> None:
        """Add a batch, without waiting for the device.

        Args:
            outputs: Scores (B, K) or values (B, D), as the model returns them.
            targets: As the loss takes them: classes (B,), labels (B, K) or values (B, D).
            batch_loss: The loss of the batch, a scalar.
        """
        weight = on_device(self._loss.normalizer(targets), _precise(outputs.device), outputs.device)
        batch_loss = self._loss.mean(batch_loss, len(targets))
        # The mean over nothing is NaN: a batch whose targets are all ignored adds nothing.
        sums = [[torch.where(weight > 0, _double(batch_loss) * weight, 0.0), weight]]
        sums += [metric.sums(self._loss, outputs, targets) for metric in self._measured]
        if self._sums is not None:
            sums = [[old + new for old, new in zip(*pair, strict=True)] for pair in zip(self._sums, sums, strict=True)]
        self._sums = sums

    def merge(self, ranks: Ranks) -> None:
        """Add the sums of the other ranks."""
        own = None if self._sums is None else [[part.cpu() for part in sums] for sums in self._sums]
        gathered = [sums for sums in ranks.gather(own) if sums is not None]
        merged = [
            [torch.stack(parts).sum(0) for parts in zip(*of_ranks, strict=True)]
            for of_ranks in zip(*gathered, strict=True)
        ]
        self._sums = merged or None

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; empty if there was no batch. Waits for the device."""
        if self._sums is None:
            return {}
        (loss, weight), *others = self._sums
        metrics = {"loss": float(loss / weight)}
        for metric, sums in zip(self._measured, others, strict=True):
            metrics |= dict(zip(metric.names, map(float, metric.values(*sums)), strict=True))
        return metrics


def per_weight(value: Any, weight: Tensor | float) -> Tensor:
    """Return a sum divided by its weight; a sum over nothing stays as it is."""
    nothing = weight == 0
    weight = torch.where(nothing, 1, weight) if isinstance(nothing, Tensor) else 1 if nothing else weight
    return torch.as_tensor(value) / weight


def on_device(value: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a scalar on a device; a number is written there by a kernel, as copying it would wait for the device."""
    return value.to(device, dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=device)


def _precise(device: torch.device) -> torch.dtype:
    """Return double precision, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _double(values: Tensor) -> Tensor:
    return values.to(_precise(values.device))
