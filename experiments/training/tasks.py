"""`Task`: what a training does with a batch. `Supervised` is the task of the ingredient `loss`.

A task says what the loss of a batch is, and what to measure on a validation batch. That is enough for any model and any
structure of batches:

    class Autoencoder(Task):
        def loss(self, model, batch):
            inputs, _ = batch
            return (model(inputs) - inputs).square().mean()

    loop.fit(network, batches, Autoencoder(), opt, log=_run.log_scalar, **training)

One that takes more than one optimizer step with a batch, such as a GAN, writes `step`, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from experiments.training.meters import Means, Meter, OfLoss
from experiments.training.modes import evaluating
from experiments.training.trainer import Found, Trainer
from ingredients.datasets.structure import num_samples
from ingredients.errors import ConfigError, LossError
from ingredients.losses.building import Loss, check_loss
from ingredients.losses.modules import WeightedLosses

if TYPE_CHECKING:
    from ingredients.datasets.batches import Data
    from ingredients.precision.mixed_precision import MixedPrecision

__all__ = ["Supervised", "Task", "as_task"]


class Task:
    """Work of a training on one batch: the loss to minimise, the values to measure, or the whole step.

    A subclass writes `loss`, and of the rest what it wants otherwise.

    Attributes:
        module: What of the task itself has parameters to train or buffers to keep, or None. Checkpoints hold it; give
            its parameters to the optimizer.
        is_sum: Whether a loss adds up samples, where others take their mean. Micro-batches are joined accordingly.

    Example:
        class Smooth(Task):
            def loss(self, model, batch):
                inputs, targets = batch
                return torch.nn.functional.cross_entropy(model(inputs), targets, label_smoothing=0.1)

        opt = optimizer.make_optimizer(network)
        loop.fit(network, batches, Smooth(), opt, log=_run.log_scalar, **training)
    """

    module: nn.Module | None = None
    is_sum: bool = False

    def loss(self, model: nn.Module, batch: Any) -> Found:
        """Return the loss of a batch, a scalar; called under autocast, in training and, by `measure`, in validation.

        Returns:
            The scalar; or a mapping with `loss` and other scalars, which are logged as `train/NAME`, their mean since
            the last logged value; or None to skip the batch.
        """
        raise NotImplementedError(f"{type(self).__name__}.loss is not written")

    def weight(self, batch: Any) -> Tensor | int:
        """Return the weight of a batch in means over several: by default its number of samples.

        It also weights the losses of micro-batches, so return the number of terms that the loss averages, such as
        tokens.

        Args:
            batch: A batch as the data yield it.
        """
        return num_samples(batch)

    def step(self, trainer: Trainer, group: Sequence[Any]) -> Found:
        """Take one step of the training: minimise what is to be minimised, and return what is logged.

        By default one optimizer takes one step on `loss`. A step may minimise several losses, one after the other, each
        with an optimizer of its own; see `Trainer.minimize`.

        Args:
            trainer: The training.
            group: The micro-batches of the step: one, unless gradients are accumulated.

        Returns:
            As `loss` does.
        """
        return trainer.minimize(lambda batch: self.loss(trainer.model, batch), group)

    def measure(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Return scalars of a validation batch by name: by default what `loss` returns.

        The mean over all batches is logged, as `val/NAME`. Called under autocast, without gradients, with the model in
        evaluation mode.
        """
        found = self.loss(model, batch)
        if found is None:
            return {}
        return found if isinstance(found, Mapping) else {"loss": found}

    def of_epoch(self) -> Mapping[str, float]:
        """Return what was measured in the training batches of an epoch, at its end; logged as `train/NAME`."""
        return {}

    def meter(self) -> Meter:
        """Return what sums up a pass through a part of the data: by default the means of `measure`."""
        return Means(self)

    def predict(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Return the predictions for a batch, by name, such as `predictions` and `targets`; each a tensor (B, ...).

        Called by `loop.predict` under autocast, without gradients, with the model in evaluation mode.

        Args:
            model: The model.
            batch: A batch as the data yield it.

        Raises:
            ConfigError: If the task does not define this method.
        """
        raise ConfigError(f"{type(self).__name__} predicts nothing; write its method predict(model, batch)")

    def check(self, model: nn.Module, data: Data, amp: MixedPrecision) -> Sequence[str]:
        """Refuse, before the first step, what does not fit, and return the names of what validations measure.

        By default one validation batch is measured, so that what `measure` raises is raised at once.
        """
        if not data.val.num_samples:
            return ()
        meter = self.meter()
        with torch.no_grad(), evaluating(*self.modules(model)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that one batch does not hold all classes
            for batch in data.val.epoch():
                meter.update(model, batch, amp)
                break
            return tuple(meter.compute())

    def state_dict(self) -> dict[str, Any]:
        """Return what else the task keeps from one step to the next, such as a hidden state; checkpoints hold it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned."""

    @property
    def steps_itself(self) -> bool:
        """True if the task defines its own `step`."""
        return type(self).step is not Task.step

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters of the task itself, by name."""
        if self.module is None:
            return {}
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    @property
    def may_be_nan(self) -> bool:
        """True if the loss of a batch may be NaN without harm, such as when all of its targets are ignored."""
        return False

    @property
    def is_changed_by_training(self) -> bool:
        """True if checkpoints hold the state of `module`."""
        return self.module is not None and bool(self.module.state_dict())

    @property
    def keeps_state(self) -> bool:
        """True if checkpoints hold `state_dict`."""
        return type(self).state_dict is not Task.state_dict

    def modules(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """Return the modules to put in a mode: the model, and that of the task."""
        return (model,) if self.module is None else (model, self.module)


class Supervised(Task):
    """The task of a `Loss`: batches are pairs of inputs and targets, and targets say what the outputs should be.

    Args:
        loss: Such as `loss.make_loss` returns.

    Example:
        opt = optimizer.make_optimizer(network)
        loop.fit(network, batches, Supervised(criterion), opt, log=_run.log_scalar, **training)
    """

    def __init__(self, loss: Loss) -> None:
        self.criterion = loss
        self.module: nn.Module = loss.module
        self.is_sum = loss.averaging == "sum"

        module = loss.module
        self._loss_of: Callable[[Tensor, Tensor], Found] = module
        if isinstance(module, WeightedLosses):
            self._loss_of = module.terms
        self._measures = loss.measures.clone() if loss.measures is not None and loss.measures_training else None

    def loss(self, model: nn.Module, batch: Any) -> Found:
        """Return the loss of the model's outputs and the targets; with several losses, also each of them."""
        inputs, targets = batch
        if self._measures is None:
            return self._loss_of(model(inputs), targets)
        outputs = model(inputs)
        if torch.is_grad_enabled():
            self._measures.update(outputs, targets)
        return self._loss_of(outputs, targets)

    def of_epoch(self) -> Mapping[str, float]:
        """Return the metrics of the training batches, if they are measured; once for each epoch."""
        if self._measures is None or self._measures.is_empty:
            return {}
        found = self._measures.compute()
        self._measures.reset()
        return found

    @property
    def keeps_state(self) -> bool:
        """True if training batches are measured."""
        return self._measures is not None

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured of the epoch so far."""
        return {} if self._measures is None else self._measures.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        if self._measures is not None and state:
            self._measures.load_state_dict(state)

    def weight(self, batch: Any) -> Tensor | int:
        """Return the number that the mean over the batch is divided by."""
        return self.criterion.normalizer(batch[1])

    def meter(self) -> Meter:
        """Return the meter of loss and accuracy, or of loss, r2, mae and rmse."""
        return OfLoss(self.criterion)

    def predict(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Return `predictions`, `targets`, and of classes `probabilities`."""
        inputs, targets = batch
        outputs = model(inputs)
        found = {"predictions": self.criterion.predict(outputs), "targets": self.criterion.own_unit(targets)}
        probabilities = self.criterion.probabilities(outputs)
        return found if probabilities is None else {**found, "probabilities": probabilities}

    def check(self, model: nn.Module, data: Data, amp: MixedPrecision) -> Sequence[str]:
        """Put a batch through model and loss, and return the names of the metrics."""
        check_loss(self.criterion, model, data)
        if self.criterion.measures is not None:
            return super().check(model, data, amp)
        return self.meter().names if data.val.num_samples else ()

    @property
    def may_be_nan(self) -> bool:
        """True if the loss may ignore every target of a batch, and is NaN then."""
        ignored = getattr(self.module, "ignore_index", None)
        return ignored is not None and ignored >= 0

    @property
    def is_changed_by_training(self) -> bool:
        """True if the loss has parameters to train, or statistics of its own."""
        return self.criterion.is_changed_by_training


def as_task(given: Task | Loss) -> Task:
    """Return the task of a loss, or a task as it is.

    Raises:
        LossError: If it is neither.
    """
    if isinstance(given, Task):
        return given
    if isinstance(given, Loss):
        return Supervised(given)
    raise LossError(
        f"loss: got {type(given).__name__}, expected a Loss, as loss.make_loss returns it, or a Task; "
        "for a module of torch: Loss(module, 'classes', num_outputs)"
    )
