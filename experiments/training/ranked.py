"""Steps of a training by several processes: each computes the gradients of its share of a batch, and they are summed.

The gradients are those of the whole batch: DistributedDataParallel takes the mean over ranks, so a rank's loss is
multiplied by its share of the batch and the number of ranks. Micro-batches are added up before the exchange.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from experiments.training.tasks import Supervised
from experiments.training.trainer import Task, Trainer
from ingredients.datasets.structure import tensors_of
from ingredients.errors import ConfigError
from ingredients.models.synced_norms import sync_batch_norms
from ingredients.ranks.group import Ranks

__all__ = ["RankedSteps"]


class _Touched(nn.Module):
    """Returns a zero that depends on all parameters of a model; backward reaches the last one first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        sparse = {id(each.weight) for each in self.model.modules() if getattr(each, "sparse", False)}
        terms = []
        for parameter in self.model.parameters():
            if id(parameter) in sparse:
                first = torch.zeros(1, dtype=torch.long, device=parameter.device)
                terms.append((nn.functional.embedding(first, parameter, sparse=True) * 0).sum())
            elif parameter.requires_grad:
                terms.append((parameter * 0).sum())
        return torch.stack([term.float() for term in terms]).sum()


def _settle_buckets(wrapped: nn.parallel.DistributedDataParallel) -> None:
    """Let DistributedDataParallel group the gradients of one exchange before the first step.

    It regroups them after the first backward pass of a process, and the place of a number decides the order in which
    three ranks or more sum it up. For a resumed session to compute the bits of the uncut one, that pass is one of zeros
    here, in an order that follows from the parameters alone.
    """
    model = wrapped.module
    wrapped.module = _Touched(model)
    try:
        wrapped().backward()
    finally:
        wrapped.module = model
    for parameter in model.parameters():
        parameter.grad = None


class RankedSteps:
    """The optimizer steps of one of several ranks.

    Args:
        trainer: The training; with `sync_batch_norm`, batch normalisation of its model becomes that of all ranks.
        ranks: The processes of the training.

    Attributes:
        model: The model to train, wrapped in torch's DistributedDataParallel.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        # The trainer holds this object, and a reference cycle would keep the workers of a loader alive.
        self._trainer: Trainer = weakref.proxy(trainer)
        self._ranks = ranks
        self._batches = trainer.data.train
        if ranks.options["sync_batch_norm"]:
            sync_batch_norms(trainer.model)
        self.model = self._wrapped(trainer.model)
        # Whether the weight of a share is its number of samples, which is known without an exchange.
        task = trainer.task
        known = type(task)
        self._counts_samples = known.weight is Task.weight or (
            known.weight is Supervised.weight and known.loss is Supervised.loss
        )
        self._is_sum = "loss" in task.sums

    def _wrapped(self, model: nn.Module) -> nn.Module:
        """Return a wrapper that trains the parameters of a model."""
        device = self._trainer.amp.device
        wrapped = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=self._ranks.options["find_unused_parameters"],
        )
        if not wrapped.find_unused_parameters:
            _settle_buckets(wrapped)
        return wrapped

    def _adding_up(self) -> contextlib.AbstractContextManager[None]:
        """Add up gradients on each rank, without exchanging them."""
        return self.model.no_sync()  # type: ignore[operator]  # of DistributedDataParallel

    def step(self, group: Sequence[Any], optimizer: torch.optim.Optimizer) -> tuple[Tensor | None, bool]:
        """Let the optimizer take one step on the batch that all ranks share.

        Args:
            group: This rank's shares of the micro-batches.
            optimizer: The optimizer.

        Returns:
            This rank's part of the loss, whose mean over ranks is the mean over the whole batch; and whether the
            optimizer stepped.

        Raises:
            ConfigError: If the task skips the batch.
        """
        task, amp, size = self._trainer.task, self._trainer.amp, self._ranks.size
        weights = [task.weight(batch) for batch in group]
        total = self._total(sum(weights))
        total = total if isinstance(total, Tensor) else total or 1.0
        whole: Tensor | None = None
        scalars: dict[str, Any] = {}
        for number, (batch, weight) in enumerate(zip(group, weights, strict=True), start=1):
            share = size * weight / total
            with contextlib.nullcontext() if number == len(group) else self._adding_up():
                parts = self._backward(batch, weight, size if self._is_sum else share)
            counted = _counted(parts["loss"].detach() * (size / total if self._is_sum else share), weight)
            whole = counted if whole is None else whole + counted
            for name, value in task.means_of(parts, batch).items() if len(parts) > 1 else ():
                scalars[name] = scalars.get(name, 0.0) + _counted(torch.as_tensor(value).detach() * share, weight)
        if scalars:
            self._trainer.note(scalars)
        return whole, amp.step(optimizer)

    def _backward(self, batch: Any, weight: Tensor | int, share: Any) -> Mapping[str, Tensor]:
        """Add the gradients of a share of a micro-batch, and return its loss and other scalars by name."""
        task, amp = self._trainer.task, self._trainer.amp
        with amp.autocast(), self._outputs_seen() as outputs:
            value = task.loss(self.model, batch)
            if value is None:
                raise ConfigError(
                    f"{type(task).__name__}.loss: skipped a batch, which one of several processes cannot; "
                    "return a loss of 0, or train in one process"
                )
            parts = value if isinstance(value, Mapping) else {"loss": value}
            loss = parts["loss"] * share if "loss" in parts else self._trainer.note(parts)
            if not self._counts_samples and not self._is_sum and not weight:
                loss = _nothing_of(outputs)  # a mean over nothing is NaN, and so are its gradients
        amp.backward(loss)
        return parts

    @contextlib.contextmanager
    def _outputs_seen(self) -> Iterator[list[Any]]:
        """Collect the outputs of the model in a list, where a share may have no weight."""
        seen: list[Any] = []
        if self._counts_samples:
            yield seen
            return
        hook = self.model.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs))
        try:
            yield seen
        finally:
            hook.remove()

    def _total(self, weight: Tensor | int) -> Tensor | float:
        """Return the weight of the shares of all ranks; in a full batch they are equal."""
        batches, place = self._batches, self._trainer.place
        is_even = place.batch < len(batches) or batches.last_batch_size % self._ranks.size == 0
        if self._counts_samples and not isinstance(weight, Tensor) and is_even:
            return weight * self._ranks.size
        return self._ranks.total(weight)

    def settle(self) -> None:
        """Update the model that is measured and saved on all ranks: here the statistics of its layers."""
        for model in {id(each): each for each in (self._trainer.model, self._trainer.evaluated)}.values():
            self._ranks.send_tensors(model, buffers_alone=True)

    def means(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the means over all ranks of values that each has measured.

        Args:
            values: Values of this rank by name, with the same names in the same order on each.

        Returns:
            The means by name, the same on each rank; NaN where a rank has NaN.
        """
        return dict(zip(values, self._ranks.mean(list(values.values())), strict=True))


def _nothing_of(outputs: Sequence[Any]) -> Tensor:
    """Return a zero whose gradients, all zeros, reach everything that outputs depend on, so they are exchanged."""
    zeros = [(part * 0).sum().float() for part in tensors_of(list(outputs)) if part.requires_grad]
    return torch.stack(zeros).sum()


def _counted(value: Tensor, weight: Tensor | int) -> Tensor:
    """Return the contribution of a share to a mean: 0 if it has no weight, where its own mean is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, value, 0.0)
    return value if weight else torch.zeros_like(value)
