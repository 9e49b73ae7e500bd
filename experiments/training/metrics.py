"""Metrics over a pass through data, summed up on the device and fetched once."""

from __future__ import annotations

import torch
from torch import Tensor

from ingredients.losses.building import Loss
from ingredients.ranks.group import Ranks

__all__ = ["RunningMetrics", "metric_names", "on_device"]


def metric_names(loss: Loss) -> tuple[str, ...]:
    """Return the names of what `RunningMetrics` measures."""
    return ("loss", "r2", "mae", "rmse") if loss.kind == "values" else ("loss", "accuracy")


class RunningMetrics:
    """Loss and metrics of all batches given to `update`, weighted by their samples. Shapes: as in `loop`.

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
        self._sums: list[Tensor] | None = None

    def update(self, outputs: Tensor, targets: Tensor, batch_loss: Tensor) -> None:
        """Add a batch: outputs (B, K) or (B, D), targets as the loss takes them, its loss."""
        weight = on_device(self._loss.normalizer(targets), _precise(outputs.device), outputs.device)
        batch_loss = self._loss.mean(batch_loss, len(targets))
        # The mean over nothing is NaN: a batch whose targets are all ignored adds nothing.
        sums = [torch.where(weight > 0, _double(batch_loss) * weight, 0.0), weight]
        sums += self._value_sums(outputs, targets) if self._loss.kind == "values" else self._hits(outputs, targets)
        self._sums = sums if self._sums is None else [old + new for old, new in zip(self._sums, sums, strict=True)]

    def _hits(self, outputs: Tensor, targets: Tensor) -> list[Tensor]:
        hits = self._loss.predict(outputs).eq(targets)
        ignored = getattr(self._loss.module, "ignore_index", None)
        if ignored is None or self._loss.kind != "classes":
            return [_double(hits.sum()), on_device(hits.numel(), torch.int64, outputs.device)]
        counted = targets.ne(ignored)
        return [_double((hits & counted).sum()), counted.sum()]

    def _value_sums(self, outputs: Tensor, targets: Tensor) -> list[Tensor]:
        scale = 1.0 if self._loss.target_std is None else self._loss.target_std
        targets = _double(targets * scale)
        errors = targets - _double(outputs.float() * scale)
        count = on_device(targets.numel(), targets.dtype, targets.device)
        return [errors.abs().sum(), (errors**2).sum(), targets.sum(0), (targets**2).sum(0), count]

    def merge(self, ranks: Ranks) -> None:
        """Add what the other ranks have summed up."""
        own = None if self._sums is None else [part.cpu() for part in self._sums]
        found = [sums for sums in ranks.gather(own) if sums is not None]
        self._sums = [torch.stack(parts).sum(0) for parts in zip(*found, strict=True)] if found else None

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; empty if there was no batch. Waits for the device."""
        if self._sums is None:
            return {}
        loss, weight, *rest = self._sums
        metrics = {"loss": float(loss / weight)}
        if self._loss.kind != "values":
            return {**metrics, "accuracy": float(rest[0] / rest[1])}
        absolute, squared, total, squares, count = rest
        variance = squares.sum() - (total**2 * total.numel() / count).sum()
        r2 = float(1 - squared / variance) if float(variance) > 0 else float("nan")
        return {**metrics, "r2": r2, "mae": float(absolute / count), "rmse": float((squared / count).sqrt())}


def on_device(value: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a scalar of a type on a device; a number is written there, where copying it would wait for the device."""
    return value.to(device, dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=device)


def _precise(device: torch.device) -> torch.dtype:
    """Return double precision, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _double(values: Tensor) -> Tensor:
    return values.to(_precise(values.device))
