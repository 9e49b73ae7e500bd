"""`Supervised`, the task of the ingredient `loss`; and evaluation: metrics, predictions, the metric that decides.

Shapes: N samples in a part of the data, K classes or labels, D target values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sacristan.experiments.training import LossValue, Task
from sacristan.experiments.training.meters import Meter, OfLoss, OfTask, Once, check_merges
from sacristan.ingredients.config.seed import look_stream
from sacristan.ingredients.datasets.batches import Batches
from sacristan.ingredients.errors import ConfigError, LossError
from sacristan.ingredients.losses import Loss, WeightedLosses, check_loss
from sacristan.ingredients.models.modules import evaluating
from sacristan.ingredients.precision import MixedPrecision
from sacristan.ingredients.ranks.group import ALONE, Ranks
from sacristan.ingredients.training import check_patience
from sacristan.observers.record.directions import monitored_direction

if TYPE_CHECKING:
    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.precision import MixedPrecision


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


class Monitor:
    """Follows one metric: its best epoch, and the validations since the last improvement.

    Args:
        name: Name of the metric, such as `val/loss`.
        mode: `min`, `max`, or `auto`: max for accuracy and r2, else min.
        patience: Validations without improvement that exhaust it; None for no end.
        min_delta: Smallest change that patience counts as an improvement; the best epoch needs no minimum.

    Raises:
        ConfigError: If `patience` or `min_delta` is out of range.

    Example:
        best = Monitor("val/accuracy", patience=2)
        for epoch, accuracy in enumerate([0.5, 0.7, 0.6, 0.6], start=1):
            best.update({"val/accuracy": accuracy}, epoch)
        assert (best.epoch, best.value, best.exhausted) == (2, 0.7, True)
    """

    def __init__(self, name: str, mode: str = "auto", patience: int | None = None, min_delta: float = 0.0) -> None:
        check_patience(patience, min_delta)
        self.name = name
        self.larger_is_better = monitored_direction(name, mode) == "max"
        self.patience = patience
        self.min_delta = min_delta
        self.value = math.nan
        self.epoch = 0
        self.waited = 0
        # The value that the next improvement is counted from.
        self._mark = math.nan

    @property
    def exhausted(self) -> bool:
        """True if patience has run out."""
        return self.patience is not None and self.waited >= self.patience

    def check(self, metrics: Collection[str]) -> None:
        """Check that validations measure the metric.

        Args:
            metrics: Names of the metrics of validations, such as `val/loss`.

        Raises:
            ConfigError: If they do not; the message lists the names.
        """
        if self.name not in metrics:
            raise ConfigError(
                f"training.monitor: got {self.name!r}, which is not measured; there are: {', '.join(metrics)}"
            )

    def update(self, metrics: Mapping[str, float], epoch: int) -> bool:
        """Add the metrics of a validation.

        Args:
            metrics: The metrics by name.
            epoch: The epoch before the validation, from 1.

        Returns:
            Whether they are the best so far; the first ones are, and a number is better than NaN.

        Raises:
            ConfigError: If the metric is not among them.
        """
        self.check(metrics)
        value = metrics[self.name]
        is_first = self.epoch == 0
        if is_first or self._is_better(value, self._mark, self.min_delta):
            self._mark, self.waited = value, 0
        else:
            self.waited += 1
        better = is_first or self._is_better(value, self.value, 0.0)
        if better:
            self.value, self.epoch = value, epoch
        return better

    def _is_better(self, value: float, other: float, least: float) -> bool:
        """Tell whether a value is better by more than `least`; a number is better than NaN."""
        if math.isnan(other):
            return not math.isnan(value)
        return (value - other if self.larger_is_better else other - value) > least

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {"value": self.value, "epoch": self.epoch, "waited": self.waited, "mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the value of `state_dict`."""
        self.value, self.epoch, self.waited = state["value"], state["epoch"], state["waited"]
        # States of earlier versions lack it.
        self._mark = state.get("mark", self.value)


def evaluate(
    model: nn.Module,
    batches: Batches,
    loss: Loss | Task,
    amp: MixedPrecision | None = None,
    *,
    inference_mode: bool = False,
) -> dict[str, float]:
    """Return the loss and the metrics of a model over a part of the data; empty if the part is.

    The model computes in evaluation mode; then each module returns to its own mode. Random numbers come from a stream
    that begins at the same place each time; the global generators stay where they are.

    Args:
        model: On the device of the data.
        batches: Such as `data.val` or `data.test`.
        loss: The loss, or the task, that the model was trained with.
        amp: The precision to compute in; float32 without one.
        inference_mode: Whether to compute in `torch.inference_mode`, and not just without gradients. A module cannot
            train with tensors that it keeps from there.

    Returns:
        `loss` and `accuracy`, from 0 to 1; of regression `loss`, `r2`, `mae` and `rmse`, the last two in the targets'
        own unit. Each is over all samples together, whatever the size of the batches. Of a task its own metrics.

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
    """Return the predictions of a model for `batches`, in their order, on the CPU; targets may be missing.

    The model computes in evaluation mode; then each module returns to its own mode.

    Args:
        model: On the device of the data.
        batches: Such as `data.test`.
        loss: The loss that the model was trained with, which says how its outputs are read; or its task.
        amp: The precision to compute in; float32 without one.

    Returns:
        `predictions`: classes (N,), labels (N, K) as 0 and 1, or values (N, D) in the targets' own unit; `targets`
        likewise; `probabilities` (N, K), unless the loss is one of values. Empty if the part is. Of a task the values
        of its `predict`.

    Example:
        found = loop.predict(network, batches.test, criterion)
        wrong = found["predictions"] != found["targets"]
    """
    return _passed(model, batches, loss, amp, predicts=True)[1]


@torch.no_grad()
def evaluate_and_predict(
    model: nn.Module, batches: Batches, loss: Loss | Task, amp: MixedPrecision | None = None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the results of `evaluate` and of `predict` from one pass, in which the model computes each batch once.

    Example:
        metrics, found = loop.evaluate_and_predict(network, batches.test, criterion)
        print(metrics["accuracy"], found["predictions"])
    """
    return _passed(Once(model), batches, loss, amp, measures=True, predicts=True)


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
    outputs: list[dict[str, Tensor]] = []
    ranks = getattr(batches, "ranks", ALONE)
    with look_stream(*ranks.stream), evaluating(*task.modules(model)):
        for batch in batches.epoch():
            if meter is not None:
                meter.update(model, batch, amp)
            if predicts:
                with amp.autocast():
                    parts = task.predict(model, batch)
                outputs.append({name: part.cpu() for name, part in parts.items()})
    return _computed(meter, ranks), _joined(outputs, ranks)


def _computed(meter: Meter | None, ranks: Ranks) -> dict[str, float]:
    """Return the metrics of all ranks together; none without a meter."""
    if meter is None:
        return {}
    if ranks.size == 1:
        return meter.compute()
    check_merges(meter)
    meter.merge(ranks)  # type: ignore[attr-defined]  # it has one
    metrics = meter.compute()
    return ranks.from_first(lambda: metrics)


def _joined(outputs: Sequence[dict[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Return the predictions of all batches, and all ranks, in the order of the samples."""
    if ranks.size > 1:
        # Each rank has predicted its share of each batch; a short last batch may have no share for the last ranks.
        shares = itertools.zip_longest(*ranks.gather(outputs))
        outputs = [share for batch in shares for share in batch if share is not None]
    return {name: torch.cat([parts[name] for parts in outputs]) for name in (outputs[0] if outputs else ())}
