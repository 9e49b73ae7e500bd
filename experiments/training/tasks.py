"""`Supervised`: the task of the ingredient `loss`, on batches of inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sacristan.experiments.training.gradients import LossValue
from sacristan.experiments.training.meters import Meter, OfLoss, OfTask
from sacristan.experiments.training.trainer import Task
from sacristan.ingredients.errors import LossError
from sacristan.ingredients.losses.building import Loss, check_loss
from sacristan.ingredients.losses.modules import WeightedLosses

if TYPE_CHECKING:
    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.precision.mixed_precision import MixedPrecision

__all__ = ["Supervised", "as_task"]


class Supervised(Task):
    """The task of a `Loss`, on batches of inputs and targets.

    If a subclass overrides `loss` or `measure`, validations log its values beside the metrics of the `Loss`.

    Args:
        loss: From `loss.make_loss`.

    Example:
        opt = optimizer.make_optimizer(network)
        loop.fit(network, batches, Supervised(criterion), opt, log=_run.log_scalar, **training)
    """

    def __init__(self, loss: Loss) -> None:
        self.criterion = loss
        self.module: nn.Module = loss.module
        if loss.averaging == "sum" and self.reduction == "mean":
            self.sums = frozenset(("loss", *(loss.module.losses if isinstance(loss.module, WeightedLosses) else ())))
        module = loss.module
        self._loss_of: Callable[[Tensor, Tensor], LossValue] = module
        if isinstance(module, WeightedLosses):
            self._loss_of = module.terms
        self._measures = loss.measures.clone() if loss.measures is not None and loss.measures_training else None

    def loss(self, model: nn.Module, batch: Any) -> LossValue:
        inputs, targets = batch
        if self._measures is None:
            return self._loss_of(model(inputs), targets)
        outputs = model(inputs)
        if torch.is_grad_enabled():
            self._measures.update(outputs, targets)
        return self._loss_of(outputs, targets)

    def of_epoch(self) -> Mapping[str, float]:
        if self._measures is None or self._measures.is_empty:
            return {}
        metrics = self._measures.compute()
        self._measures.reset()
        return metrics

    @property
    def keeps_state(self) -> bool:
        return self._measures is not None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._measures is None else self._measures.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._measures is not None and state:
            self._measures.load_state_dict(state)

    def weight(self, batch: Any) -> Tensor | int:
        return self.criterion.normalizer(batch[1])

    def meter(self) -> Meter:
        own = type(self).loss is not Supervised.loss or type(self).measure is not Supervised.measure
        return OfTask(self.criterion, self) if own else OfLoss(self.criterion)

    def predict(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        inputs, targets = batch
        outputs = model(inputs)
        parts = {"predictions": self.criterion.predict(outputs), "targets": self.criterion.own_unit(targets)}
        probabilities = self.criterion.probabilities(outputs)
        return parts if probabilities is None else {**parts, "probabilities": probabilities}

    def check(self, model: nn.Module, data: Data, amp: MixedPrecision) -> Sequence[str]:
        check_loss(self.criterion, model, data)
        if self.criterion.measures is not None or not isinstance(self.meter(), OfLoss):
            return super().check(model, data, amp)
        return self.meter().names if data.val.num_samples else ()

    @property
    def may_be_nan(self) -> bool:
        """True if the loss may ignore every target of a batch, and be NaN there."""
        ignored = getattr(self.module, "ignore_index", None)
        return ignored is not None and ignored >= 0

    @property
    def is_changed_by_training(self) -> bool:
        return self.criterion.is_changed_by_training


def as_task(loss: Task | Loss) -> Task:
    """Return the task of a loss, or a task unchanged."""
    if isinstance(loss, Task):
        return loss
    if isinstance(loss, Loss):
        return Supervised(loss)
    raise LossError(
        f"loss: got {type(loss).__name__}, expected a Loss, as loss.make_loss returns it, or a Task; "
        "for a module of torch: Loss(module, 'classes', num_outputs)"
    )
