"""Steps of a training by several processes: each computes the gradients of its share of a batch, and all add them up.

The gradients are those of the whole batch: DistributedDataParallel takes the mean over ranks, so a rank's loss counts
by its share of the batch, times the number of ranks. Micro-batches are added up before gradients are exchanged.
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
from ingredients.datasets.structure import map_tensors
from ingredients.errors import ConfigError
from ingredients.models.synced_norms import sync_batch_norms
from ingredients.ranks.group import Ranks

__all__ = ["RankedSteps"]


class _Touched(nn.Module):
    """Returns a zero to which all parameters of a model contribute, the last one first when it goes backward."""

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
    """Let DistributedDataParallel lay out the gradients that it exchanges together before the first step.

    It lays them out anew after the first backward pass of a process, and where a number lies decides in which order
    three ranks or more sum it up. So that a resumed session computes the bits of the uncut one, that pass is one of
    zeros here, in an order that follows from the parameters alone.
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
        trainer: The training; batch normalisation of its model becomes that of all ranks, if that is asked for.
        ranks: All of them.

    Attributes:
        model: What is trained: the model within torch's DistributedDataParallel.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        # The trainer has these steps, and a reference cycle would hold on to the workers of a loader.
        self._trainer: Trainer = weakref.proxy(trainer)
        self._ranks = ranks
        self._batches = trainer.data.train
        if ranks.options["sync_batch_norm"]:
            sync_batch_norms(trainer.model)
        self.model = self._wrapped(trainer.model)
        # Whether the weight of a share is its part of the batch, which is known without asking the others.
        task = trainer.task
        self._counts_samples = type(task).weight is Task.weight or isinstance(task, Supervised)

    def _wrapped(self, model: nn.Module) -> nn.Module:
        """Return the model that is trained in the place of another one, which has its parameters."""
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
        """Add gradients up on each rank, without exchanging them."""
        return self.model.no_sync()  # type: ignore[operator]  # of DistributedDataParallel

    def step(self, group: Sequence[Any], optimizer: torch.optim.Optimizer) -> tuple[Tensor | None, bool]:
        """Let the optimizer take one step on the batch that all ranks share.

        Args:
            group: This rank's shares of the micro-batches.
            optimizer: The optimizer.

        Returns:
            This rank's part of the loss, whose mean over ranks is that of the whole batch; and whether it stepped.
        """
        task, amp, trainer = self._trainer.task, self._trainer.amp, self._trainer
        weights = [task.weight(batch) for batch in group]
        total = self._total(sum(weights))
        total = total if isinstance(total, Tensor) else total or 1.0
        # The loss of a sum is divided by this rank's samples where it is logged; what is beside it adds up.
        share_of_all = self._ranks.size * sum(weights) / total
        whole: Tensor | None = None
        beside: dict[str, Any] = {}
        for number, (batch, weight) in enumerate(zip(group, weights, strict=True), start=1):
            is_empty = not self._counts_samples and not task.is_sum and not weight
            share = self._ranks.size * weight / total
            is_last = number == len(group)
            with contextlib.nullcontext() if is_last else self._adding_up():
                with amp.autocast(), self._outputs_seen() as outputs:
                    found = task.loss(self.model, batch)
                    if found is None:
                        raise ConfigError(
                            f"{type(task).__name__}.loss: skipped a batch, which one of several processes cannot; "
                            "return a loss of 0, or train in one process"
                        )
                    parts = found if isinstance(found, Mapping) else {"loss": found}
                    own = parts["loss"] if "loss" in parts else trainer.note(parts)
                    loss = own * (self._ranks.size if task.is_sum else share)
                    if is_empty:  # its mean is one over nothing, which is NaN, and so would all gradients be
                        loss = _nothing_of(outputs)
                amp.backward(loss)
            counted = _counted(own.detach() * (share_of_all if task.is_sum else share), weight)
            whole = counted if whole is None else whole + counted
            factor = self._ranks.size if task.is_sum else share
            for name, value in parts.items():
                beside[name] = beside.get(name, 0.0) + _counted(torch.as_tensor(value).detach() * factor, weight)
        if len(beside) > 1:
            trainer.note(beside)
        return whole, amp.step(optimizer)

    @contextlib.contextmanager
    def _outputs_seen(self) -> Iterator[list[Any]]:
        """Give a list that what the model returns meanwhile is put into, where a share may have no weight."""
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
        """Return the weight of the shares of all ranks; those of a full batch are alike."""
        batches, place = self._batches, self._trainer.place
        is_even = place.batch < len(batches) or batches.last_batch_size % self._ranks.size == 0
        if self._counts_samples and not isinstance(weight, Tensor) and is_even:
            return weight * self._ranks.size
        return self._ranks.total(weight)

    def settle(self) -> None:
        """Bring the model that is measured and saved up to date on all ranks: here the statistics of its layers."""
        for model in {id(each): each for each in (self._trainer.model, self._trainer.evaluated)}.values():
            self._ranks.send_tensors(model, buffers_alone=True)

    def means(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return what was measured by each rank as means over all; NaN where a rank has NaN."""
        return dict(zip(values, self._ranks.mean(list(values.values())), strict=True))


def _nothing_of(outputs: Sequence[Any]) -> Tensor:
    """Return a zero that gives zeros as gradients to all that outputs depend on, so that they are exchanged."""
    found: list[Tensor] = []

    def add(part: Any) -> None:
        if isinstance(part, Tensor) and part.requires_grad:
            found.append((part * 0).sum())

    map_tensors(list(outputs), add)
    return torch.stack([each.float() for each in found]).sum()


def _counted(value: Tensor, weight: Tensor | int) -> Tensor:
    """Return what a share adds to a mean: nothing if it has no weight, and its own mean is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, value, 0.0)
    return value if weight else torch.zeros_like(value)
