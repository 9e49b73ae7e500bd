"""`Measures`: metrics of torchmetrics besides a loss. Without Sacred; torchmetrics is imported when used."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sacristan.configs.nearest import suggestion
from sacristan.configs.packages import missing_package
from sacristan.ingredients.config.construct import check_options, import_object, is_dotted_path
from sacristan.ingredients.errors import ConfigError, LossError

# Batches to measure at once on an asynchronous device, and the maximum number of values to hold back for that.
_HELD_BACK, _MOST_NUMBERS = 50, 2**24


class Measures:
    """Metrics over a pass through data, updated on `held_back` batches at once: many synchronise each time."""

    def __init__(
        self, metrics: Mapping[str, Any], loss: Any, classes: tuple[str, ...], held_back: int | None = None
    ) -> None:
        self.metrics = dict(metrics)
        self._held_back = held_back
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._loss = loss
        self.classes = classes
        self._found: dict[str, Tensor] = {}

    def reset(self) -> None:
        self._pending.clear()
        for metric in self.metrics.values():
            metric.reset()

    @torch.no_grad()
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        held_back = self._held_back or (1 if outputs.device.type == "cpu" else _HELD_BACK)
        # The next replay of a CUDA graph (model.compile=reduce-overhead) overwrites the outputs.
        self._pending.append((outputs.detach() if held_back == 1 else outputs.detach().clone(), targets))
        if len(self._pending) >= held_back or sum(each.numel() for each, _ in self._pending) > _MOST_NUMBERS:
            self._measure()

    @torch.no_grad()
    def _measure(self) -> None:
        pending, self._pending = self._pending, []
        for outputs, targets in pending:
            self._measure_batch(outputs, targets)

    def _measure_batch(self, outputs: Tensor, targets: Tensor) -> None:
        predictions = self._loss.probabilities(outputs)
        if predictions is None:
            predictions, targets = self._loss.predict(outputs), self._loss.own_unit(targets)
        elif self._loss.kind == "binary":
            predictions = predictions[:, 1]
        targets = _as_labels(targets, self._loss.kind)
        for metric in self.metrics.values():
            if _reads_tokens(type(metric)):
                metric.update(*_as_tokens(predictions, targets))
            else:
                metric.update(predictions, targets)

    def compute(self) -> dict[str, float]:
        """Return the values by name, those of single classes as NAME/CLASS; `matrices` returns the rest."""
        self._measure()
        self._found = {name: metric.compute() for name, metric in self.metrics.items()}
        numbers: dict[str, float] = {}
        for name, result in self._found.items():
            parts = result if isinstance(result, Mapping) else {"": result}
            for part, value in parts.items():
                numbers |= self._numbers(f"{name}/{part}" if part else name, value)
        return numbers

    def _numbers(self, name: str, value: Any) -> dict[str, float]:
        if not isinstance(value, Tensor) or value.ndim > 1:
            return {}
        if value.ndim == 0:
            return {name: value.item()}
        labels = self.classes if len(self.classes) == len(value) else range(len(value))
        return {f"{name}/{label}": number for label, number in zip(labels, value.tolist(), strict=True)}

    def matrices(self) -> dict[str, Tensor]:
        """Return the matrices of the last `compute`, such as confusion matrices (true classes, predicted classes)."""
        return {
            name: result.cpu()
            for name, result in self._found.items()
            if isinstance(result, Tensor) and result.ndim == 2
        }

    @property
    def directions(self) -> dict[str, str]:
        """`max` or `min` by name: the better direction, for metrics whose direction torchmetrics knows."""
        better = {name: getattr(metric, "higher_is_better", None) for name, metric in self.metrics.items()}
        return {name: "max" if higher else "min" for name, higher in better.items() if higher is not None}

    def clone(self) -> Measures:
        copied = {name: metric.clone() for name, metric in self.metrics.items()}
        fresh = Measures(copied, self._loss, self.classes, self._held_back)
        fresh.reset()
        return fresh

    @property
    def is_empty(self) -> bool:
        return not self._pending and not any(metric.update_count for metric in self.metrics.values())

    def state_dict(self) -> dict[str, Any]:
        self._measure()
        return {
            name: {"count": metric.update_count, "state": dict(metric.metric_state)}
            for name, metric in self.metrics.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, metric in self.metrics.items():
            for key, value in state[name]["state"].items():
                there = metric.device
                moved = value.to(there) if isinstance(value, Tensor) else [part.to(there) for part in value]
                setattr(metric, key, moved)
            metric._update_count = state[name]["count"]


def build_measures(use: Mapping[str, Any], loss: Any, classes: tuple[str, ...], device: torch.device | str) -> Measures:
    """Build `metrics.use`: classes of torchmetrics or `package.module:Class`, or mappings with arguments, by name."""
    metrics = {name: _build(name, entry, loss).to(device) for name, entry in use.items()}
    return Measures(metrics, loss, classes)


def _build(name: str, entry: Any, loss: Any) -> Any:
    options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    kind = options.pop("name", None)
    if not isinstance(kind, str):
        raise ConfigError(f"metrics.use.{name}: got {entry!r}, expected a class of torchmetrics, such as F1Score")
    cls = _class_of(kind, name)
    if _reads_tokens(cls) and loss.kind != "classes":
        raise LossError(f"metrics.use.{name}: {kind} is of classes or tokens, but the loss is of {loss.kind}")
    options = {**_usual(cls, loss), **options}
    if not _is_wrapper(cls):  # wrappers pass unknown arguments on to a class that rejects them
        check_options(cls, options, f"metrics.use.{name}")
    try:
        if options.get("validate_args") is False:
            cls(**{**options, "validate_args": True})  # validates the arguments once, but no batches
        return cls(**options)
    except (TypeError, ValueError) as error:
        raise LossError(f"metrics.use.{name}: {kind} refuses its arguments: {error}") from error


def _class_of(kind: str, name: str) -> Any:
    if is_dotted_path(kind):
        return import_object(kind, f"metrics.use.{name}")
    try:
        package = importlib.import_module("torchmetrics")
    except ImportError as error:
        raise LossError(missing_package(f"metrics.use.{name}={kind} needs", "torchmetrics", "metrics")) from error
    if kind not in package.__all__:
        hint = suggestion(kind, package.__all__, "see https://lightning.ai/docs/torchmetrics")
        raise ConfigError(f"metrics.use.{name}: got {kind!r}, which torchmetrics does not have; {hint}")
    cls = getattr(package, kind)
    # A deprecated name is a subclass that warns.
    return cls.__bases__[0] if cls.__module__.endswith("._deprecated") else cls


def _reads_tokens(cls: type) -> bool:
    """Return whether a metric takes scores (B, T, C) and targets (B, T)."""
    return any(base.__name__ == "Perplexity" and base.__module__.startswith("torchmetrics.") for base in cls.__mro__)


def _as_labels(targets: Tensor, kind: str) -> Tensor:
    """Return the class with the largest share of mixed targets (B, K, ...), labels of at least one half as 1."""
    if kind == "values" or not targets.is_floating_point():
        return targets
    return targets.argmax(1) if kind == "classes" else targets.ge(0.5).long()


def _as_tokens(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities (B, C) or (B, C, ...) as scores (B, T, C), and targets (B) or (B, ...) as (B, T)."""
    scores = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
    scores = scores.flatten(2) if scores.ndim > 2 else scores.unsqueeze(2)
    return scores.movedim(1, 2), targets.reshape(len(targets), -1)


def _is_wrapper(cls: Any) -> bool:
    return "task" in inspect.signature(cls.__new__).parameters


def _usual(cls: Any, loss: Any) -> dict[str, Any]:
    """Return the default arguments for a loss: the task, and the number of classes or labels."""
    ignored = getattr(loss.module, "ignore_index", None)
    if _reads_tokens(cls):
        return {"ignore_index": ignored}
    if not _is_wrapper(cls) or loss.kind == "values":
        return {}
    accepted = inspect.signature(cls.__new__).parameters
    of_kind: dict[str, dict[str, Any]] = {
        "classes": {"task": "multiclass", "num_classes": loss.num_outputs},
        "binary": {"task": "binary"},
        "labels": {"task": "multilabel", "num_labels": loss.num_outputs},
    }
    # Validating each batch would synchronise with the device.
    usual: dict[str, Any] = {**of_kind[loss.kind], "validate_args": False}
    if loss.kind == "classes" and ignored is not None:
        usual["ignore_index"] = ignored
    return {key: value for key, value in usual.items() if key in accepted}
