"""Steps of a training by several processes: each computes the gradients of its share of a batch, and they are summed.

The gradients are those of the whole batch: DistributedDataParallel takes the mean over ranks, so a rank's loss is
multiplied by its share of the batch and the number of ranks. Micro-batches are added up before the exchange.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from experiments.training.tasks import Supervised
from experiments.training.trainer import Task, Trainer
from ingredients.config.construct import listed
from ingredients.errors import ConfigError, TrainingError
from ingredients.models.synced_norms import sync_batch_norms
from ingredients.ranks.group import Ranks

__all__ = ["RankedSteps", "Scope"]


class Scope(nn.Module):
    """Calls a function inside a wrapper's forward pass, so that a task reaches all parts and methods of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


def _zero_of(model: nn.Module, parameters: Collection[Tensor]) -> Tensor:
    """Return a zero that depends on parameters of a model; backward reaches the last one first."""
    sparse = {id(each.weight) for each in model.modules() if getattr(each, "sparse", False)}
    terms = []
    for parameter in parameters:
        if id(parameter) in sparse:
            first = torch.zeros(1, dtype=torch.long, device=parameter.device)
            terms.append((nn.functional.embedding(first, parameter, sparse=True) * 0).sum())
        else:
            terms.append((parameter * 0).sum())
    return torch.stack([term.float() for term in terms]).sum()


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _settle_buckets(wrapped: nn.parallel.DistributedDataParallel, model: nn.Module) -> None:
    """Let DistributedDataParallel group the gradients of one exchange before the first step.

    It regroups them after the first backward pass of a process, and the place of a number decides the order in which
    three ranks or more sum it up. For a resumed session to compute the bits of the uncut one, that pass is one of zeros
    here, in an order that follows from the parameters alone.
    """
    trained = _trained(model)
    wrapped(lambda: _zero_of(model, trained.values())).backward()
    for parameter in trained.values():
        parameter.grad = None


class RankedSteps:
    """The optimizer steps of one of several ranks.

    Args:
        trainer: The training; with `sync_batch_norm`, batch normalisation of its model becomes that of all ranks.
        ranks: The processes of the training.

    Attributes:
        model: The model to train, as the task gets it.
        wrapper: Exchanges the gradients of what is computed in its forward pass: torch's DistributedDataParallel.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        # The trainer holds this object, and a reference cycle would keep the workers of a loader alive.
        self._trainer: Trainer = weakref.proxy(trainer)
        self._ranks = ranks
        self._batches = trainer.data.train
        if ranks.options["sync_batch_norm"]:
            sync_batch_norms(trainer.model)
        self.model = trainer.model
        self.wrapper = self._wrapped(trainer.model)
        # Whether weights were compared after a step of this session.
        self._is_compared = False
        # Whether the weight of a share is its number of samples, which is known without an exchange.
        task = trainer.task
        known = type(task)
        self._counts_samples = known.weight is Task.weight or (
            known.weight is Supervised.weight and known.loss is Supervised.loss
        )
        self._is_sum = "loss" in task.sums

    def _wrapped(self, model: nn.Module) -> nn.Module:
        """Return the module that exchanges the gradients of a model."""
        finds = self._ranks.options["find_unused_parameters"]
        wrapped = nn.parallel.DistributedDataParallel(Scope(model), find_unused_parameters=finds)
        if not finds:
            _settle_buckets(wrapped, model)
        return wrapped

    def _adding_up(self) -> contextlib.AbstractContextManager[None]:
        """Add up gradients on each rank, without exchanging them."""
        return self.wrapper.no_sync()  # type: ignore[operator]  # of DistributedDataParallel

    def step(self, group: Sequence[Any], optimizer: torch.optim.Optimizer) -> tuple[Tensor | None, bool]:
        """Let the optimizer take one step on the batch that all ranks share.

        Args:
            group: This rank's shares of the micro-batches.
            optimizer: The optimizer.

        Returns:
            This rank's part of the loss, whose mean over ranks is the mean over the whole batch; and whether the
            optimizer stepped.

        Raises:
            ConfigError: If the task skips the batch, or its loss does not depend on all trained parameters.
            TrainingError: If weights differ between ranks after the first step.
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
        self._check_exchange()
        stepped = amp.step(optimizer)
        if not self._is_compared:
            self._is_compared = True
            self._compare_weights(self._trainer.place.step + 1)
        return whole, stepped

    def _backward(self, batch: Any, weight: Tensor | int, share: Any) -> Mapping[str, Tensor]:
        """Add the gradients of a share of a micro-batch, and return its loss and other scalars by name."""
        task, amp = self._trainer.task, self._trainer.amp
        with amp.autocast():
            parts = self.wrapper(lambda: self._parts(batch, weight))
            loss = parts["loss"] * share
        amp.backward(loss)
        return parts

    def _parts(self, batch: Any, weight: Tensor | int) -> dict[str, Tensor]:
        """Return the loss of a share of a micro-batch, and other scalars, detached."""
        task = self._trainer.task
        value = task.loss(self.model, batch)
        if value is None:
            raise ConfigError(
                f"{type(task).__name__}.loss: skipped a batch, which one of several processes cannot; "
                "return a loss of 0, or train in one process"
            )
        parts = value if isinstance(value, Mapping) else {"loss": value}
        loss = parts["loss"] if "loss" in parts else self._trainer.note(parts)
        if not self._counts_samples and not self._is_sum and not weight:
            loss = self._nothing_of(loss)  # a mean over nothing is NaN, and so are its gradients
        return {**{name: torch.as_tensor(part).detach() for name, part in parts.items()}, "loss": loss}

    def _nothing_of(self, loss: Tensor) -> Tensor:
        """Return a zero with the gradients, all zeros, that a loss has, so they are exchanged."""
        finds = self._ranks.options["find_unused_parameters"]
        return _zero_of(self.model, _leaves_of(loss) if finds else _trained(self.model).values())

    def _check_exchange(self) -> None:
        """Reject a loss on which trained parameters do not depend: their gradients are still awaited."""
        try:
            self.wrapper._check_reducer_finalized()  # type: ignore[operator]  # of DistributedDataParallel
        except RuntimeError as error:
            found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            if found is None:
                raise
            names = list(_trained(self.model))
            unused = [names[int(number)] for number in found[1].split()]
            raise ConfigError(
                f"distributed: the loss of rank {self._ranks.rank} does not depend on {listed(unused, 3)}, so this "
                "exchange of gradients has no end; set distributed.find_unused_parameters=True, or freeze what is "
                "never used"
            ) from error

    def _total(self, weight: Tensor | int) -> Tensor | float:
        """Return the weight of the shares of all ranks; in a full batch they are equal."""
        batches, place = self._batches, self._trainer.place
        is_even = place.batch < len(batches) or batches.last_batch_size % self._ranks.size == 0
        if self._counts_samples and not isinstance(weight, Tensor) and is_even:
            return weight * self._ranks.size
        return self._ranks.total(weight)

    def settle(self) -> None:
        """Update the model that is measured and saved on all ranks: here the statistics of its layers.

        Raises:
            TrainingError: If weights differ between ranks.
        """
        for model in {id(each): each for each in (self._trainer.model, self._trainer.evaluated)}.values():
            self._ranks.send_tensors(model, buffers_alone=True)
        self._compare_weights(self._trainer.place.step)

    def _compare_weights(self, step: int) -> None:
        """Check that all ranks have the same weights after a step, by sums of their bits."""
        ranks = self._ranks
        if not ranks.options["check_weights"]:
            return
        parameters = dict(self._trainer.model.named_parameters())
        sums = torch.stack([_bits(parameter) for parameter in parameters.values()]).tolist()
        if len(set(ranks.gather(hashlib.sha256(repr(sums).encode()).digest()))) == 1:
            return
        columns = zip(*ranks.gather(sums), strict=True)
        name, values = next((name, found) for name, found in zip(parameters, columns, strict=True) if len({*found}) > 1)
        other = next(rank for rank, value in enumerate(values) if value != values[0])
        raise TrainingError(
            f"distributed: the weights of ranks 0 and {other} differ after step {step}, first in {name}, so they no "
            "longer train one model; compute the whole loss in Task.loss, and change weights elsewhere in the same way "
            "on all ranks; distributed.check_weights=False trains on anyway"
        )

    def means(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the means over all ranks of values that each has measured.

        Args:
            values: Values of this rank by name, with the same names in the same order on each.

        Returns:
            The means by name, the same on each rank; NaN where a rank has NaN.
        """
        return dict(zip(values, self._ranks.mean(list(values.values())), strict=True))


def _leaves_of(loss: Tensor) -> list[Tensor]:
    """Return the parameters that a loss depends on."""
    leaves, seen, nodes = [], set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        nodes += [function for function, _ in node.next_functions]
    return leaves


def _bits(weights: Tensor) -> Tensor:
    """Return the sum of the bits of weights, as integers of their size, which any change is likely to change."""
    flat = weights.detach().reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)).sum()


def _counted(value: Tensor, weight: Tensor | int) -> Tensor:
    """Return the contribution of a share to a mean: 0 if it has no weight, where its own mean is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, value, 0.0)
    return value if weight else torch.zeros_like(value)
