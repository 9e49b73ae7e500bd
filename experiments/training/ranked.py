"""Steps of a training by several processes: each computes the gradients of its share of a batch, and they are summed.

The gradients are those of the whole batch: DistributedDataParallel takes the mean over ranks, so a rank's loss is
multiplied by its share of the batch and the number of ranks. Micro-batches are added up before the exchange. Each
optimizer has a wrapper that exchanges the gradients of its parameters alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sacristan.configs.map import abbreviated
from sacristan.experiments.training import Step, Task, Trainer
from sacristan.experiments.training.evaluation import Supervised
from sacristan.experiments.training.gradients import LossOf, LossValue, precise
from sacristan.ingredients.errors import ConfigError, TrainingError
from sacristan.ingredients.models.modules import SyncedBatchNorm, sync_batch_norms
from sacristan.ingredients.precision import parameters_of, recomputes_loss
from sacristan.ingredients.ranks.group import Ranks


class ForwardScope(nn.Module):
    """Calls a function inside a wrapper's forward pass, so that a task reaches all parts and methods of the model."""

    def __init__(self, model: nn.Module, module: nn.Module | None = None) -> None:
        super().__init__()
        self.model = model
        self.module = module

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


class Share(NamedTuple):
    """A rank's share of a micro-batch, which counts by its `weight`.

    `of_mean` is the factor of a mean over it, `of_loss` of the loss, which may be a sum: the mean of the products over
    ranks is that over the whole batch. Gradients are exchanged after the last. The loss of nothing may be NaN.
    """

    batch: Any
    weight: Tensor | float
    of_mean: Any
    of_loss: Any
    is_last: bool
    is_nothing: bool


def _zero_of(module: nn.Module, parameters: Collection[Tensor]) -> Tensor:
    """Return a zero that depends on parameters of a module; backward reaches the last one first."""
    sparse = {id(each.weight) for each in module.modules() if getattr(each, "sparse", False)}
    terms = []
    for parameter in parameters:
        if id(parameter) in sparse:
            first = torch.zeros(1, dtype=torch.long, device=parameter.device)
            terms.append((nn.functional.embedding(first, parameter, sparse=True) * 0).sum())
        else:
            terms.append((parameter * 0).sum())
    return torch.stack([term.float() for term in terms]).sum()


class RankedSteps:
    """The optimizer steps of one of several ranks."""

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        # The trainer holds this object, and a reference cycle would keep the workers of a loader alive.
        self._trainer: Trainer = weakref.proxy(trainer)
        self._ranks = ranks
        self._batches = trainer.data.train
        task = trainer.task
        modules = task.modules(trainer.model)
        for module in modules if ranks.options["sync_batch_norm"] else ():
            sync_batch_norms(module)
        self.model = trainer.model
        self.scope = ForwardScope(*modules)
        self._trained = {name: self._trained_by(optimizer) for name, optimizer in trainer.optimizers.items()}
        self.wrappers = {name: self._wrapped(trained) for name, trained in self._trained.items()}
        # Outputs of layers for a share over nothing, see `watching`.
        self._outputs: list[Tensor] = []
        # Whether weights were compared after a step of this session.
        self._is_compared = False
        # Whether the weight of a share is its number of samples, which is known without an exchange.
        task_class = type(task)
        self._counts_samples = task_class.weight is Task.weight or (
            task_class.weight is Supervised.weight and task_class.loss is Supervised.loss
        )
        self._is_sum = "loss" in task.sums

    def _trained_by(self, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
        """Return the parameters that an optimizer trains, by name."""
        held = {*map(id, parameters_of(optimizer))}
        return {
            name.removeprefix("model."): parameter
            for name, parameter in self.scope.named_parameters()
            if parameter.requires_grad and id(parameter) in held
        }

    def _wrapped(self, trained: Mapping[str, nn.Parameter]) -> nn.Module:
        """Return the module that exchanges the gradients of these parameters."""
        mine, finds = {*map(id, trained.values())}, self._ranks.options["find_unused_parameters"]
        others = [each for each in self.scope.parameters() if each.requires_grad and id(each) not in mine]
        for parameter in others:
            parameter.requires_grad_(False)
        wrapped = nn.parallel.DistributedDataParallel(self.scope, find_unused_parameters=finds)
        wrapped.broadcast_buffers = False  # `take` sends them; torch has renamed the argument
        for parameter in others:
            parameter.requires_grad_(True)
        if not finds:
            # Gradients are grouped again after the first backward pass of a process, and the place of a number decides
            # the order in which three ranks or more sum it up. For a resumed session to compute the bits of the uncut
            # one, that pass is one of zeros here, in an order that follows from the parameters alone.
            wrapped(lambda: _zero_of(self.scope, trained.values())).backward()
            for parameter in trained.values():
                parameter.grad = None
        return wrapped

    def take(self, step: Step, group: list[Any]) -> tuple[Tensor | None, bool]:
        """Take a step of the training, with the same buffers on all ranks."""
        self._ranks.send_tensors(self.scope, buffers_alone=True)
        taken = step(group)
        self._outputs.clear()
        if not self._is_compared:
            self._is_compared = True
            self._compare_weights(self._trainer.place.step + 1)
        return taken

    def add_gradients(self, loss_of: LossOf, group: Sequence[Any], name: str) -> Tensor | None:
        """Add the gradients of the batch of all ranks; return its loss, or this rank's part; None without samples."""
        task, amp = self._trainer.task, self._trainer.amp
        losses = []
        scalars: dict[str, Any] = {}
        for share in self.shares(group):
            parts: dict[str, Tensor] = {}
            with amp.autocast():
                loss = self.exchanged(functools.partial(self._loss, loss_of, share, parts), share, name)
                loss = loss * share.of_loss
            amp.backward(loss)
            losses.append(_counted(precise(loss.detach()), share.weight))
            for key, value in task.means_of(parts, share.batch).items() if len(parts) > 1 else ():
                part = _counted(torch.as_tensor(value) * share.of_mean, share.weight)
                scalars[key] = scalars.get(key, 0.0) + part
        if scalars:
            self._trainer.note(scalars)
        if not losses:
            return None
        self._check_exchange(name)
        loss = torch.stack(losses).sum()
        trainer = self._trainer
        decides = task.steps_itself or trainer.look is not None or recomputes_loss(trainer.optimizers[name])
        return self._joined(loss) if decides else loss

    def shares(self, group: Sequence[Any]) -> list[Share]:
        """Return this rank's shares of the micro-batches of a step; none if no rank has samples."""
        task, size = self._trainer.task, self._ranks.size
        weights = [task.weight(batch) for batch in group]
        if not task.steps_itself:
            total = self.weight_of(sum(weights))
        else:  # batches of its own differ between ranks, also in the kind of their weights
            weights_of_rank = torch.tensor([float(sum(weights)), not group], dtype=torch.float64)
            total, num_without = torch.as_tensor(self._ranks.total(weights_of_rank)).tolist()
            if not total:
                return []
            if num_without:
                raise ConfigError(
                    f"{type(task).__name__}.step: minimises a loss over no micro-batch on {num_without:.0f} of {size} "
                    "ranks; give each rank at least one, which may be without samples"
                )
        means = [size * weight / _positive(total) for weight in weights]
        return [
            Share(
                batch,
                weight,
                mean,
                size if self._is_sum else mean,
                is_last=number == len(group),
                is_nothing=not self._is_sum and (not self._counts_samples or task.steps_itself) and not weight,
            )
            for number, (batch, weight, mean) in enumerate(zip(group, weights, means, strict=True), start=1)
        ]

    def exchanged(self, compute: Callable[[], Tensor], share: Share, name: str) -> Tensor:
        """Return the loss of a share, whose gradients are exchanged in its backward pass, after the last share."""

        def compute_counted() -> Tensor:
            with self.watching(share):
                loss = compute()
            return self._nothing_of(loss, name) if share.is_nothing else loss

        return self._called(compute_counted, share, name)

    @contextlib.contextmanager
    def watching(self, share: Share) -> Iterator[None]:
        """Keep the outputs of layers in whose backward passes ranks wait for each other, if a share is over nothing."""
        layers = self._waiting_layers() if share.is_nothing else []
        hooks = [layer.register_forward_hook(lambda *call: self._outputs.append(call[-1])) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _waiting_layers(self) -> list[nn.Module]:
        return [each for each in self.scope.modules() if isinstance(each, SyncedBatchNorm | nn.SyncBatchNorm)]

    def _called(self, compute: Callable[[], Tensor], share: Share, name: str) -> Tensor:
        return self.wrappers[name](compute) if share.is_last else compute()

    def _loss(self, loss_of: LossOf, share: Share, parts: dict[str, Tensor]) -> Tensor:
        """Return the loss of a share, and put it and other scalars, detached, into `parts`."""
        value = loss_of(share.batch)
        if value is None:
            raise ConfigError(
                f"{type(self._trainer.task).__name__}: skipped a batch, which one of several processes cannot; "
                "return a loss of 0, or train in one process"
            )
        values = value if isinstance(value, Mapping) else {"loss": value}
        loss = values["loss"] if "loss" in values else self._trainer.note(values)
        parts |= {name: torch.as_tensor(part).detach() for name, part in values.items()}
        return loss

    def _nothing_of(self, loss: Tensor, name: str) -> Tensor:
        """Return a zero with the gradients, all zeros, that a loss has, so they are exchanged."""
        nodes, finds = _nodes_of(loss), self._ranks.options["find_unused_parameters"]
        leaves = [node.variable for node in nodes if hasattr(node, "variable")]
        zero = _zero_of(self.scope, leaves if finds else self._trained[name].values())
        for output in self._outputs:
            if output.grad_fn in nodes:
                zero = zero + (output * 0).sum()
        return zero

    def whole(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the losses of the whole batch, from this rank's parts, by the optimizers that minimise them."""
        for name in losses:
            self._check_exchange(name)
        return {name: self._joined(loss) for name, loss in losses.items()}

    def _joined(self, loss: Tensor) -> Tensor:
        return torch.as_tensor(self._ranks.total(loss)) / self._ranks.size

    def parts_of(self, value: LossValue, group: Sequence[Any]) -> LossValue:
        """Return values that a step of the task gave for the group as parts, whose mean over ranks is that of them."""
        weight = sum(map(self._trainer.task.weight, group))
        total = self.weight_of(weight)

        def part_of(mean: Any) -> Tensor:
            return _counted(torch.as_tensor(mean) * (self._ranks.size * weight / _positive(total)), weight)

        return {name: part_of(mean) for name, mean in value.items()} if isinstance(value, Mapping) else part_of(value)

    def _check_exchange(self, name: str) -> None:
        """Reject a loss on which trained parameters do not depend: their gradients are still awaited."""
        try:
            self.wrappers[name]._check_reducer_finalized()  # type: ignore[operator]  # of DistributedDataParallel
        except RuntimeError as error:
            unused_numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            if unused_numbers is None:
                raise
            names = list(self._trained[name])
            unused = [names[int(number)] for number in unused_numbers[1].split()]
            raise ConfigError(
                f"distributed: the loss of rank {self._ranks.rank} does not depend on {abbreviated(unused, 3)}, so "
                "this exchange of gradients has no end; set distributed.find_unused_parameters=True, or freeze what is "
                "never used"
            ) from error

    def weight_of(self, weight: Tensor | float) -> Tensor | float:
        """Return the weight of a batch of the data from that of this rank's share; in a full batch they are equal."""
        batches, place = self._batches, self._trainer.place
        is_even = place.batch < len(batches) or batches.last_batch_size % self._ranks.size == 0
        if self._counts_samples and not isinstance(weight, Tensor) and is_even:
            return weight * self._ranks.size
        return self._ranks.total(weight)

    def settle(self) -> None:
        """Update the modules that are measured and saved on all ranks: here the statistics of their layers."""
        trainer = self._trainer
        modules = (*trainer.task.modules(trainer.model), trainer.evaluated)
        for module in {id(each): each for each in modules}.values():
            self._ranks.send_tensors(module, buffers_alone=True)
        self._compare_weights(trainer.place.step)

    def _compare_weights(self, step: int) -> None:
        """Check that all ranks have the same weights after a step, by sums of their bits."""
        ranks = self._ranks
        if not ranks.options["check_weights"]:
            return
        parameters = dict(ForwardScope(*self._trainer.task.modules(self._trainer.model)).named_parameters())
        sums = torch.stack([_bits(parameter) for parameter in parameters.values()]).tolist()
        if len(set(ranks.gather(hashlib.sha256(repr(sums).encode()).digest()))) == 1:
            return
        columns = zip(*ranks.gather(sums), strict=True)
        name, values = next(
            (name, column) for name, column in zip(parameters, columns, strict=True) if len({*column}) > 1
        )
        other = next(rank for rank, value in enumerate(values) if value != values[0])
        raise TrainingError(
            f"distributed: the weights of ranks 0 and {other} differ after step {step}, first in "
            f"{name.removeprefix('model.')}, so they no longer train one model; compute the whole loss in Task.loss, "
            "or in the function that minimize gets, and change weights elsewhere in the same way on all ranks; "
            "distributed.check_weights=False trains on anyway"
        )

    def means(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the means over all ranks of values that each has measured; NaN where a rank has NaN."""
        by_rank = self._ranks.gather(dict(values))
        for rank, theirs in enumerate(by_rank):
            if theirs.keys() != by_rank[0].keys():
                only = sorted(theirs.keys() ^ by_rank[0].keys())
                raise ConfigError(
                    f"distributed: ranks 0 and {rank} log different values ({abbreviated(only, 3)}); a task gives "
                    "values of the same names on all ranks"
                )
        # Added in the order of the ranks, so that each gets the same bits.
        return {name: sum(theirs[name] for theirs in by_rank) / len(by_rank) for name in values}


def _nodes_of(loss: Tensor) -> dict[Any, None]:
    """Return the nodes of the graph of a loss; those of parameters have them as `variable`."""
    seen: dict[Any, None] = {}
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen[node] = None
            nodes += [function for function, _ in node.next_functions]
    return seen


def _bits(weights: Tensor) -> Tensor:
    """Return the sum of the bits of weights, as integers of their size, which any change is likely to change."""
    flat = weights.detach().reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)).sum()


def _positive(total: Tensor | float) -> Tensor | float:
    """Return a weight to divide by: 1 if nothing counts."""
    return torch.where(total > 0, total, 1) if isinstance(total, Tensor) else total or 1.0


def _counted(value: Tensor, weight: Tensor | float) -> Tensor:
    """Return the contribution of a share to a mean: 0 if it has no weight, where its own mean is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, value, 0.0)
    return value if weight else torch.zeros_like(value)
