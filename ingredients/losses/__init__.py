"""Losses, and what each implies: the outputs of the model, predictions and metrics. Without Sacred.

Shapes: B batch, K classes or labels, D target values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.errors import LossError
from sacristan.ingredients.losses.measures import Measures
from sacristan.ingredients.losses.modules import (
    LOSSES,
    Averaging,
    WeightedLosses,
    averaging_of,
    measured_averaging,
    normalizer,
)
from sacristan.ingredients.models.modules import evaluating
from sacristan.ingredients.models.tuned import uncompiled

__all__ = [
    "Loss",
    "WeightedLosses",
    "build_loss",
    "build_losses",
    "check_loss",
    "reading",
]


_DEFAULTS = {
    "classification": "cross_entropy",
    "segmentation": "cross_entropy",
    "multilabel": "bce",
    "regression": "mse",
}


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss, and how the outputs of the model are read with it.

    Attributes:
        module: Called as `module(outputs, targets)`; returns a scalar.
        kind: `classes` (argmax over K scores, of (B, K, ...) for each pixel), `binary` (one score above 0), `labels`
            (each of K scores above 0) or `values`.
        num_outputs: Number of outputs that the model must have.
        target_mean, target_std: Mean and deviation that normalised regression targets (D,), or None.
        averaging: Reduction over a batch; None takes it from the attributes of the module.
        measures: Metrics to measure besides the loss, or None.
        measures_training: Whether to measure training batches as well.
    """

    module: nn.Module
    kind: str
    num_outputs: int
    target_mean: Tensor | None = None
    target_std: Tensor | None = None
    averaging: Averaging | None = None
    measures: Measures | None = None
    measures_training: bool = False

    def __post_init__(self) -> None:
        if self.averaging is None:
            object.__setattr__(self, "averaging", averaging_of(self.module, self.kind))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar, for outputs (B, num_outputs) and targets (B,) or (B, D)."""
        return self.module(outputs, targets)

    @property
    def metric(self) -> str:
        """Name of the metric that a run returns: `accuracy` or `r2`."""
        return "r2" if self.kind == "values" else "accuracy"

    def normalizer(self, targets: Tensor) -> Tensor | int:
        """Return the divisor of the mean over a batch, so that means over micro-batches add up exactly.

        Args:
            targets: Targets of the batch.
        """
        return normalizer(self.module, self.averaging or "mean", targets)

    def mean(self, batch_loss: Tensor, num_samples: int) -> Tensor:
        """Return the loss of a batch as a mean over its samples, for logging.

        Args:
            batch_loss: The loss, a scalar; a sum is divided by the number of samples.
            num_samples: Samples in the batch.
        """
        return batch_loss / num_samples if self.averaging == "sum" else batch_loss

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters of the loss itself, by name."""
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    @property
    def is_changed_by_training(self) -> bool:
        """True if training changes its parameters or statistics, so that checkpoints must hold its state."""
        statistics = [name for name, _ in self.module.named_buffers() if name not in ("weight", "pos_weight")]
        return bool(self.parameters or statistics)

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the predictions for outputs of a model.

        Args:
            outputs: (B, num_outputs), or (B, K, ...) with a class for each pixel.

        Returns:
            Classes (B,) or (B, ...), labels (B, K) of 0 and 1, or values (B, D) in the targets' own unit.
        """
        if self.kind == "classes":
            return outputs.argmax(1)
        if self.kind == "binary":
            return outputs.gt(0).long()[:, 0]
        if self.kind == "labels":
            return outputs.gt(0).long()
        return self.own_unit(outputs.float())

    def own_unit(self, targets: Tensor) -> Tensor:
        """Return targets in the form of predictions, see `predict`: values in their own unit, others as integers."""
        if self.kind != "values":
            return targets.long()
        if self.target_mean is None or self.target_std is None:
            return targets
        return targets * self.target_std + self.target_mean

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """Return probabilities (B, K) for outputs of a model, of both classes for a binary loss; None for values."""
        if self.kind == "classes":
            # This also turns log-probabilities into probabilities.
            return outputs.float().softmax(1)
        if self.kind == "values":
            return None
        positive = outputs.float().sigmoid()
        return torch.cat([1 - positive, positive], -1) if self.kind == "binary" else positive


def build_losses(parts: Mapping[str, Any], data: Data, device: torch.device | str) -> Loss:
    """Build the weighted sum of losses: mappings with `name`, `weight`, `options`, `class_weights`, by log name."""
    losses, weights = {}, {}
    for name, part in parts.items():
        _check_part(name, part)
        losses[name] = build_loss(part.get("name"), part.get("options", {}), part.get("class_weights"), data, device)
        weights[name] = float(part.get("weight", 1.0))
    first, *others = losses.values()
    for other in others:
        _check_alike(first, other)
    module = WeightedLosses({name: loss.module for name, loss in losses.items()}, weights)
    for name in ("weight", "reduction"):
        if hasattr(first.module, name) and not isinstance(getattr(first.module, name), nn.Parameter):
            setattr(module, name, getattr(first.module, name))
    ignored = [loss.module.ignore_index for loss in losses.values() if hasattr(loss.module, "ignore_index")]
    if ignored:
        module.ignore_index = ignored[0]
    return Loss(module, first.kind, first.num_outputs, first.target_mean, first.target_std, first.averaging)


def _check_part(name: str, part: Any) -> None:
    allowed = ("name", "weight", "options", "class_weights")
    unknown = [key for key in part if key not in allowed] if isinstance(part, Mapping) else [repr(part)]
    if unknown or not name.isidentifier() or name == "loss":
        raise LossError(
            f"loss.parts: got {', '.join(unknown) or 'the name ' + repr(name)}; expected a mapping from a name, "
            "such as dice, to name, weight, options and class_weights"
        )


def _check_alike(first: Loss, other: Loss) -> None:
    if (other.kind, other.num_outputs) != (first.kind, first.num_outputs):
        raise LossError(
            f"loss.parts: the losses read outputs as {first.kind} and as {other.kind}; give losses of the same kind"
        )
    if other.averaging != first.averaging or _class_weights(other) != _class_weights(first):
        raise LossError(
            "loss.parts: the losses reduce a batch in different ways (mean, sum, class weights); give them the "
            "same reduction and the same class_weights"
        )

    if _ignored(other) != _ignored(first):
        raise LossError(
            f"loss.parts: the losses ignore different targets ({_ignored(first)} and {_ignored(other)}), so they are "
            "means over different ones; give them the same ignore_index"
        )


def _ignored(loss: Loss) -> int | None:
    """Return the class that a loss ignores; None for no class, as negative targets belong to none."""
    ignored = getattr(loss.module, "ignore_index", None)
    return None if ignored is None or ignored < 0 else ignored


def _class_weights(loss: Loss) -> list[float] | None:
    weight = getattr(loss.module, "weight", None)
    return weight.tolist() if loss.averaging == "weights" and isinstance(weight, Tensor) else None


def build_loss(
    name: str | None, options: Mapping[str, Any], class_weights: Any, data: Data, device: torch.device | str
) -> Loss:
    """Build one of `LOSSES`, a class by dotted path, or for None the task's default; lists may become tensors."""
    name = _DEFAULTS.get(data.task) if name is None else name
    if name is None:
        raise LossError(
            f"loss.name: got None, but there is no default for the task {data.task}; set loss.name, train with your "
            "own task, or return pairs of inputs and targets"
        )
    cls, tensors = _class_of(name, data)
    kind, num_outputs = reading(name, data)
    options = {**options, **_weights(name, class_weights, data, tensors, options)}
    module = _build_module(name, cls, options, tensors)
    is_own = name not in LOSSES
    _check_weights(module, kind, num_outputs, data, [key for key in tensors if key in options or not is_own])
    averaging = measured_averaging(module, kind, num_outputs, data.num_targets) if is_own else None
    return Loss(module.to(device), kind, num_outputs, data.target_mean, data.target_std, averaging)


def _class_of(name: str, data: Data) -> tuple[Any, tuple[str, ...]]:
    """Return the class of a loss that fits the task, and the names of its options that are tensors."""
    if name not in LOSSES:
        check_loss_name(name)
        return import_object(name, "loss.name"), ("weight", "pos_weight")
    entry = LOSSES[name]
    if data.task not in entry.tasks:
        fitting = ", ".join(other for other, loss in LOSSES.items() if data.task in loss.tasks)
        raise LossError(
            f"loss.name: {name} is for {' or '.join(entry.tasks)}, but the data are for {data.task}; use {fitting}"
        )
    if entry.is_binary and data.task == "classification" and data.num_targets != 2:
        raise LossError(f"loss.name: {name} needs two classes, but the data have {data.num_targets}; use cross_entropy")
    return entry.make, entry.tensors


def _build_module(name: str, cls: Any, options: Mapping[str, Any], tensors: Sequence[str]) -> nn.Module:
    check_options(cls, options, "loss.options")
    as_tensors = {key for key in tensors if isinstance(options.get(key), Sequence | int | float)}
    options = {key: torch.tensor(v, dtype=torch.float32) if key in as_tensors else v for key, v in options.items()}
    module = build(cls, options, "loss.options", LossError)
    if not isinstance(module, nn.Module):
        raise LossError(f"loss.name: {name} made a {type(module).__name__}, expected a torch.nn.Module")
    if getattr(module, "reduction", "mean") not in ("mean", "sum"):
        raise LossError(f"loss.options.reduction: got {module.reduction!r}, expected 'mean' or 'sum'")
    return module


def check_loss_name(name: str | None) -> None:
    """Reject an unknown loss."""
    if name is None or name in LOSSES:
        return
    if not is_dotted_path(name):
        hint = suggestion(name, LOSSES, f"there are: {', '.join(LOSSES)}, package.module:Class")
        raise LossError(f"loss.name: got {name!r}, which is unknown; {hint}")
    import_object(name, "loss.name")


def reading(name: str | None, data: Data | Preparation) -> tuple[str, int]:
    """Return how a loss reads the outputs of a model, and their number; see `kind` and `num_outputs` of `Loss`."""
    if data.task == "regression":
        return "values", data.num_targets
    if data.task == "multilabel":
        return "labels", data.num_targets
    return ("binary", 1) if name in LOSSES and LOSSES[name].is_binary else ("classes", data.num_targets)


def _weights(
    name: str, class_weights: Any, data: Data, tensors: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    if class_weights is None:
        return {}
    is_binary = name in LOSSES and LOSSES[name].is_binary
    if data.task not in ("classification", "segmentation") or is_binary or "weight" not in tensors:
        raise LossError(f"loss.class_weights: {name} takes none; use cross_entropy, focal or nll, or bce's pos_weight")
    if "weight" in options:
        raise LossError("loss: class_weights and options.weight set the same thing; give only one")
    if class_weights != "balanced":
        return {"weight": list(class_weights)}
    total, classes = sum(data.class_counts), len(data.class_counts)
    return {"weight": [total / (classes * max(count, 1)) for count in data.class_counts]}


def _check_weights(module: nn.Module, kind: str, num_outputs: int, data: Data, names: Sequence[str]) -> None:
    for name in names:
        weight = getattr(module, name, None)
        if (
            isinstance(weight, Tensor)
            and weight.ndim == 1
            and weight.numel() not in (num_outputs, *([1] if kind != "classes" else []))
        ):
            raise LossError(
                f"loss: {name} has {weight.numel()} values, expected {num_outputs}, one each of {list(data.classes)}"
            )


def check_loss(loss: Loss, model: nn.Module, data: Data) -> None:
    """Check on a batch that the loss takes the model's outputs, without broadcasting, and is a finite scalar."""
    inputs, targets = _first_batch(data)
    try:
        with torch.no_grad(), uncompiled(model), evaluating(model, loss.module):
            outputs = model(inputs)
            _check_outputs(outputs, targets, loss)
            value = loss(outputs, targets)
    except LossError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise LossError(
            f"loss: {type(loss.module).__name__} does not fit the model's outputs and the data's targets "
            f"of shape {tuple(targets.shape)}: {reason}"
        ) from error
    _check_value(value, loss, targets)
    if isinstance(loss.module, nn.NLLLoss) and not _are_log_probabilities(outputs):
        raise LossError("loss.name: nll needs log-probabilities, which these outputs are not; use cross_entropy")


def _check_value(value: Tensor, loss: Loss, targets: Tensor) -> None:
    if value.ndim:
        raise LossError(
            f"loss: {type(loss.module).__name__} returned shape {tuple(value.shape)}, expected a scalar; return the "
            "mean over the batch, as by .mean(), or its sum"
        )
    if not value.isfinite() and loss.normalizer(targets) > 0:
        raise LossError(
            f"loss: is {float(value)} before the first step; check inputs, targets and weights for infinite values"
        )


def _check_outputs(outputs: Any, targets: Tensor, loss: Loss) -> None:
    if not isinstance(outputs, Tensor):
        raise LossError(f"loss: the model returns a {type(outputs).__name__}, expected a tensor (batch, outputs)")
    # Regression losses broadcast (B,) against (B, 1) with no more than a warning.
    if loss.kind == "values" and outputs.shape != targets.shape:
        raise LossError(
            f"loss: the model returns shape {tuple(outputs.shape)}, expected that of the targets, "
            f"{tuple(targets.shape)}"
        )


def _first_batch(data: Data) -> tuple[Tensor, Tensor]:
    for inputs, targets in data.train.epoch(0):
        return inputs[:8], targets[:8]
    raise LossError("loss: the training part has no whole batch; lower data.batch_size or set data.drop_last=False")


def _are_log_probabilities(outputs: Tensor) -> bool:
    totals = outputs.float().exp().sum(-1)
    return bool(torch.allclose(totals, torch.ones_like(totals), atol=1e-2))
