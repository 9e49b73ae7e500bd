"""`Trainer`: one training as its task and its callbacks see it, and the steps of optimizers in it."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ingredients.checkpoints.training_state import Place
from ingredients.datasets.batches import Data
from ingredients.errors import ConfigError, LossError
from ingredients.precision.closures import recomputes_loss
from ingredients.precision.mixed_precision import MixedPrecision, parameters_of
from ingredients.scheduler import Schedule

__all__ = ["Found", "LogScalar", "Ranked", "Trainer", "backward", "grouped"]

_log = logging.getLogger(__name__)

LogScalar = Callable[[str, float, int], None]
# A loss; a loss with other scalars by name, logged beside it; or None for a batch that is to be skipped.
Found = Tensor | Mapping[str, Tensor] | None
LossOf = Callable[[Any], Found]
# Takes one optimizer step on micro-batches; returns the loss, and whether the sole optimizer stepped.
Step = Callable[[list[Any]], tuple[Tensor | None, bool]]

# What `fit` logs itself, as train/NAME.
_OWN_NAMES = ("loss", "lr", "grad_norm")


class _Task(Protocol):
    """The part of `Task` that a training needs."""

    module: nn.Module | None
    is_sum: bool

    @property
    def steps_itself(self) -> bool: ...

    @property
    def may_be_nan(self) -> bool: ...

    @property
    def parameters(self) -> dict[str, nn.Parameter]: ...

    def loss(self, model: nn.Module, batch: Any) -> Found: ...

    def weight(self, batch: Any) -> Tensor | int: ...

    def measure(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]: ...

    def modules(self, model: nn.Module) -> tuple[nn.Module, ...]: ...

    def step(self, trainer: Trainer, group: Sequence[Any]) -> Found: ...


class Ranked(Protocol):
    """The part of `RankedSteps` that a training by several processes needs."""

    def step(self, group: Sequence[Any], optimizer: torch.optim.Optimizer) -> tuple[Tensor | None, bool]: ...

    def means(self, values: Mapping[str, float]) -> dict[str, float]: ...

    def settle(self) -> None: ...


class _Skipped(Exception):  # noqa: N818 - a turn of events, no error
    """The task skipped the batch, before the optimizer that asked for its loss changed anything."""


class Trainer:
    """A training: its parts, how far it is, and the optimizer steps that a task takes in it.

    Attributes:
        model: The model that is trained.
        evaluated: The model that validations measure: `model`, unless a callback put an average of it here.
        task: What is done with a batch.
        data: Its batches.
        optimizers: By name; a sole one has the name "".
        schedules: Of some of the optimizers, by the same names.
        amp: Mixed precision, clipping and accumulation.
        log: Called as `log(name, value, step)`.
        place: The epochs and steps done, and the batches done of the epoch after them.
        steps_itself: Whether the task takes its own steps.
        is_logged: Whether the step that is being taken is one that is logged.
        look: What is called before each step of an optimizer; see `look_before_steps`.
        batch_loss: The loss of the step that is being taken, detached; kept only where a callback has `before_step`,
            and not by several processes.
    """

    def __init__(
        self,
        model: nn.Module,
        task: _Task,
        data: Data,
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedules: Mapping[str, Schedule],
        amp: MixedPrecision,
        log: LogScalar,
    ) -> None:
        self.model = self.evaluated = model
        self.task = task
        self.data = data
        self.optimizers = dict(optimizers)
        self.schedules = dict(schedules)
        self.amp = amp
        self.log = log
        self.place = Place()
        self.steps_itself = task.steps_itself
        self.is_logged = False
        self.batch_loss: Tensor | None = None
        self.look: Callable[[Trainer, str], None] | None = None
        self._keeps_loss = False
        self._skips = self._is_skipped = False
        # The steps of this process as one of several; None where it is alone.
        self.ranked: Ranked | None = None
        self._norms: dict[str, Tensor | float] = {}
        self._stepped: set[str] = set()
        # Scalars beside the loss of which it was said that they are not finite.
        self._told: set[str] = set()

    def stop(self) -> None:
        """End the training after this step, or this validation. The epoch ends there; it is validated and saved."""
        self.place.stopped = True

    def skip_step(self) -> None:
        """Leave out the step that an optimizer is about to take; for `Callback.before_step`. Its loss is not logged."""
        self._skips = True

    def minimize(self, loss_of: LossOf, group: Iterable[Any], optimizer: str = "") -> Tensor | None:
        """Let an optimizer take one step on a loss, and return the loss, detached.

        Gradients of its parameters are cleared first. Precision, the scale of float16, clipping and accumulation are
        those of the training.

        Args:
            loss_of: Returns the loss of a micro-batch, under autocast; as `Task.loss` does.
            group: The micro-batches of the step.
            optimizer: Its name; needed if there are several.

        Returns:
            The loss; None if `loss_of` skipped each micro-batch, and there was no step.

        Raises:
            ConfigError: If there is no such optimizer.
        """
        chosen, group = self._optimizer(optimizer), list(group)
        chosen.zero_grad()
        if recomputes_loss(chosen):
            found, stepped = self._closure_step(loss_of, group, chosen)
        else:
            found = self.backward(loss_of, group, chosen)
            self.batch_loss = found.detach() if self._keeps_loss and found is not None else None
            stepped = found is not None and self.amp.step(chosen)
        if found is None:
            return None
        self._note_step(optimizer, stepped)
        self.amp.update()
        return found.detach()

    def minimize_each(
        self, losses_of: Callable[[Any], Mapping[str, Tensor]], group: Iterable[Any]
    ) -> dict[str, Tensor]:
        """Let several optimizers take one step, each on a loss of its own, where the losses share a forward pass.

        An optimizer's parameters get the gradients of its loss alone. All gradients are computed before any optimizer
        steps. Precision, the scale of float16, clipping and accumulation are those of the training.

        Args:
            losses_of: Returns the losses of a micro-batch by the names of the optimizers, under autocast; the same
                names for each micro-batch.
            group: The micro-batches of the step.

        Returns:
            The losses by name, detached.

        Raises:
            ConfigError: If there is no such optimizer, or one recomputes its loss.
        """
        losses: dict[str, Tensor] = {}
        for batch, share in self._shares(list(group)):
            with self.amp.context:
                found = {name: loss * share for name, loss in losses_of(batch).items()}
            if not losses:
                for name in found:
                    if recomputes_loss(self._optimizer(name)):
                        kind = type(self.optimizers[name]).__name__
                        raise ConfigError(f"optimizer: {kind} recomputes its loss; take its step by trainer.minimize")
                    self.optimizers[name].zero_grad()
            elif losses.keys() != found.keys():
                raise ConfigError(
                    f"task: got losses of {', '.join(found) or 'none'} for a micro-batch, expected those of "
                    f"{', '.join(losses)}, as for the first one"
                )
            for left, (name, loss) in zip(reversed(range(len(found))), found.items(), strict=True):
                trained = [p for p in parameters_of(self.optimizers[name]) if p.requires_grad]
                self.amp.backward(loss, trained, retain_graph=left > 0)
                losses[name] = losses.get(name, 0.0) + _precise(loss.detach())
        for name, loss in losses.items():
            self.batch_loss = loss if self._keeps_loss else None
            self._note_step(name, self.amp.step(self.optimizers[name]))
        if losses:
            self.amp.update()
        return losses

    def _shares(self, group: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield micro-batches with their shares of the whole, but those without weight."""
        if len(group) == 1 or self.task.is_sum:
            yield from ((batch, 1.0) for batch in group)
            return
        weights = [self.task.weight(batch) for batch in group]
        total, counted = sum(weights), _fetched(weights)
        for batch, weight, number in zip(group, weights, counted, strict=True):
            if number != 0 or not any(counted):  # the mean over nothing is NaN
                yield batch, weight / total

    def _optimizer(self, name: str) -> torch.optim.Optimizer:
        """Return an optimizer by its name.

        Raises:
            ConfigError: If there is none.
        """
        if name not in self.optimizers:
            there = ", ".join(self.optimizers) or "none"
            raise ConfigError(f"optimizer: the step asks for {name!r}; there are: {there}")
        return self.optimizers[name]

    def _note_step(self, name: str, stepped: bool) -> None:
        """Note for the log and the schedules what an optimizer did."""
        self._norms[name] = self.amp.grad_norm(self.optimizers[name]) if self.is_logged else 0.0
        if stepped:
            self._stepped.add(name)

    # ------------------------------------------------------------------ for the loop

    def look_before_steps(self, look: Callable[[Trainer, str], None] | None) -> None:
        """Have `look` called before each step of an optimizer, with its name; None calls nothing."""
        self.look = look
        self._keeps_loss, self.batch_loss, self._is_skipped = look is not None, None, False
        if look is None:
            self.amp.look_before_steps(None)
            return
        names = {id(optimizer): name for name, optimizer in self.optimizers.items()}

        def look_at(optimizer: torch.optim.Optimizer) -> bool:
            self._skips = False
            look(self, names[id(optimizer)])
            self._is_skipped |= self._skips
            return not self._skips

        self.amp.look_before_steps(look_at)

    def backward(self, loss_of: LossOf, group: Sequence[Any], optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Add the gradients of one effective batch, and return its loss; see `backward`."""
        return backward(loss_of, group, self.task, self.amp, optimizer, self.note)

    def bound_step(self) -> Step:
        """Return what takes the steps of an epoch: of a list of micro-batches, which it may empty.

        What the steps of an epoch have in common is looked up here: in each step, it would cost 3 us (measured).

        Returns:
            A function that returns the loss, None for a step that was skipped, and whether the sole optimizer stepped.
        """
        if self.steps_itself:
            return self._own_step
        optimizer, model, loss_of, amp = self.optimizers[""], self.model, self.task.loss, self.amp
        if self.ranked is not None:
            return functools.partial(self.ranked.step, optimizer=optimizer)
        if recomputes_loss(optimizer):
            return lambda group: self._closure_step(lambda batch: loss_of(model, batch), group, optimizer)
        if self._keeps_loss or amp.accumulate > 1:
            return lambda group: self._ordinary_step(lambda batch: loss_of(model, batch), group, optimizer)
        context, backward, step, note = amp.context, amp.backward, amp.step, self.note

        def take_step(group: list[Any]) -> tuple[Tensor | None, bool]:
            # As `_ordinary_step` does, but that nothing holds on to the batch: the next one takes its memory, while it
            # is still in the cache. The loss holds its graph: to let go of it before the optimizer steps costs 4 us.
            with context:
                found = loss_of(model, group.pop())
            if found is None:
                return None, False
            batch_loss = found if isinstance(found, Tensor) else note(found)
            backward(batch_loss)
            return batch_loss, step(optimizer)

        return take_step

    def _ordinary_step(
        self, loss_of: LossOf, group: Sequence[Any], optimizer: torch.optim.Optimizer
    ) -> tuple[Tensor | None, bool]:
        """Let the sole optimizer take one step on the task's loss; return the loss, and whether it stepped."""
        batch_loss = self.backward(loss_of, group, optimizer)
        if self._keeps_loss:
            self.batch_loss, self._is_skipped = None if batch_loss is None else batch_loss.detach(), False
        stepped = batch_loss is not None and self.amp.step(optimizer)
        return (None if self._is_skipped else batch_loss), stepped

    def _own_step(self, group: list[Any]) -> tuple[Tensor | None, bool]:
        """Let the task take its own step; return its loss, and that no sole optimizer stepped."""
        self._stepped.clear()
        self._is_skipped = False
        found = self.task.step(self, group)
        if self._is_skipped:
            return None, False
        return (self.note(found) if isinstance(found, Mapping) else found), False

    def after_step(self) -> None:
        """Move on the schedules of the optimizers that stepped."""
        for name in self._stepped & self.schedules.keys():
            self.schedules[name].after_step()

    def clear_added(self) -> None:
        """Clear the gradients that parameters gathered before a callback added them to an optimizer."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def _closure_step(
        self, loss_of: LossOf, group: Sequence[Any], optimizer: torch.optim.Optimizer
    ) -> tuple[Tensor | None, bool]:
        """Let an optimizer that recomputes its loss take one step; return the first loss, and whether it stepped."""
        losses: list[Tensor] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            found = self.backward(loss_of, group, optimizer)
            if found is None and losses:
                raise ConfigError(
                    f"task: skipped a batch that it had a loss of; {type(optimizer).__name__} computes the loss of a "
                    "batch several times, so whether it is skipped has to depend on the batch alone"
                )
            if found is None:
                raise _Skipped
            losses.append(found)
            return found

        try:
            stepped = self.amp.step(optimizer, closure)
        except _Skipped:
            return None, False
        return losses[0], stepped

    def note(self, found: Mapping[str, Tensor]) -> Tensor:
        """Keep the scalars beside a loss until they are logged, and return the loss.

        Raises:
            ConfigError: If there is no loss among them, or one has a name that is taken.
        """
        if "loss" not in found:
            raise ConfigError(f"task: its loss gave {', '.join(found) or 'nothing'}; expected 'loss' among the names")
        for name, value in found.items():
            if name == "loss":
                continue
            if name in _OWN_NAMES:
                raise ConfigError(f"task: its loss gave a scalar {name!r}, which the training logs itself; rename it")
            value = torch.as_tensor(value).detach()
            self.place.scalars.setdefault(name, []).append(value.item() if value.device.type == "cpu" else value)
        return found["loss"]

    def log_step(self, step: int) -> float:
        """Log what the training has come to at `step`, and return the mean of its losses since the last time.

        This is the one place in the loop that waits for the device, unless float16 looks for overflows, or
        micro-batches are weighed by their classes.
        """
        values: dict[str, list[Any]] = {"train/loss": [loss for loss in self.place.losses if loss is not None]}
        for name, optimizer in self.optimizers.items():
            norm = self._norms.get(name, 0.0) if self.steps_itself else self.amp.grad_norm(optimizer)
            values[_named("grad_norm", name)] = [norm]
        values |= {f"train/{name}": found for name, found in self.place.scalars.items()}
        means = _means({name: found for name, found in values.items() if found}, self.amp.device)
        if self.ranked is not None:
            means = self.ranked.means(means)
        for name, mean in means.items():
            self.log(name, mean, step)
        for name in self.place.scalars:
            if not math.isfinite(means[f"train/{name}"]) and name not in self._told:
                self._told.add(name)
                _log.warning(
                    "train/%s, which the task returns beside its loss, is %s by step %d; the loss does not depend on "
                    "it, so the training goes on",
                    *(name, means[f"train/{name}"], step),
                )
        for name, optimizer in self.optimizers.items():
            self.log(_named("lr", name), optimizer.param_groups[0]["lr"], step)
        if self.amp.dtype == "float16":
            self.log("amp/scale", self.amp.scale(), step)
            self.log("amp/skipped", self.amp.num_skipped, step)
        return means.get("train/loss", math.nan)

    def check_optimizers(self) -> None:
        """Refuse an optimizer that leaves out what of the task is to be trained, and several for one ordinary step.

        Raises:
            LabError: If it is so.
        """
        if not self.steps_itself and list(self.optimizers) != [""]:
            raise ConfigError(
                f"optimizer: got {', '.join(self.optimizers) or 'none'} by name, expected one optimizer; "
                f"{type(self.task).__name__} takes more only if it writes its own method step(trainer, group)"
            )
        unknown = self.schedules.keys() - self.optimizers.keys()
        if unknown:
            raise ConfigError(f"scheduler: got {', '.join(sorted(unknown))}, for which there is no optimizer")
        held = {
            id(parameter)
            for optimizer in self.optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        left = [name for name, parameter in self.task.parameters.items() if id(parameter) not in held]
        if left:
            raise LossError(
                f"loss: {type(self.task.module).__name__} has parameters of its own ({', '.join(left)}) that the "
                "optimizer does not have; give it the loss, too: make_optimizer(network, criterion)"
            )


def backward(
    loss_of: LossOf,
    group: Sequence[Any],
    task: _Task,
    amp: MixedPrecision,
    optimizer: torch.optim.Optimizer,
    note: Callable[[Mapping[str, Tensor]], Tensor],
) -> Tensor | None:
    """Add the gradients of one effective batch, given as micro-batches, and return its loss; None if all are skipped.

    Each micro-batch counts by its share of the whole, so that the gradients are those of one big batch, also when the
    last one is smaller, classes are weighted, or the loss is a sum. (BatchNorm still sees one micro-batch at a time.)

    Args:
        loss_of: Returns what `Task.loss` does.
        group: The micro-batches.
        task: Weighs them.
        amp: The precision.
        optimizer: Its gradients are made those of the rest, where a micro-batch is skipped.
        note: Keeps the scalars beside a loss, and returns the loss.
    """
    if len(group) == 1:
        with amp.context:
            found = loss_of(group[0])
        if found is None:
            return None
        batch_loss = found if isinstance(found, Tensor) else note(found)
        amp.backward(batch_loss)
        return batch_loss
    weights = [task.weight(batch) for batch in group]
    total = sum(weights)
    whole: Tensor | None = None
    beside: dict[str, Tensor] = {}
    skipped: Any = 0
    counted = _fetched(weights)
    for batch, weight, number in zip(group, weights, counted, strict=True):
        if number == 0 and any(counted):
            continue  # All its targets are ignored, and the mean over nothing is NaN.
        share = 1.0 if task.is_sum else weight / total
        with amp.autocast():
            found = loss_of(batch)
            if found is None:
                skipped = skipped + weight
                continue
            parts = found if isinstance(found, Mapping) else {"loss": found}
            batch_loss = parts["loss"] * share if "loss" in parts else note(parts)
        amp.backward(batch_loss)
        part = _precise(batch_loss.detach())
        whole = part if whole is None else whole + part
        for name, value in parts.items():
            beside[name] = beside.get(name, 0.0) + torch.as_tensor(value).detach() * share
    if whole is None:
        return None
    if not task.is_sum and skipped > 0:
        whole = whole * (total / (total - skipped))
        beside = {name: value * (total / (total - skipped)) for name, value in beside.items()}
        for parameter in (p for each in optimizer.param_groups for p in each["params"] if p.grad is not None):
            parameter.grad.mul_(total / (total - skipped))
    if len(beside) > 1:
        note(beside)
    return whole


def _precise(loss: Tensor) -> Tensor:
    """Return a part of a loss in a type that does not lose digits where parts are added up."""
    return loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss


def _fetched(weights: Sequence[Tensor | int]) -> Sequence[float]:
    """Return weights as numbers; for those on a device, as of targets that are ignored, it is waited for once."""
    tensors = [weight for weight in weights if isinstance(weight, Tensor)]
    if not tensors:
        return weights  # type: ignore[return-value]  # none is a tensor
    return torch.stack([torch.as_tensor(weight, device=tensors[0].device) for weight in weights]).tolist()


def grouped(batches: Iterable, size: int) -> Iterator[list]:
    """Return an iterator over lists of `size` batches, the last one possibly shorter; it holds on to none of them."""
    if size == 1:
        return map(_alone, batches)
    iterator = iter(batches)
    return iter(lambda: list(itertools.islice(iterator, size)), [])


def _alone(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [batch]


def _named(what: str, optimizer: str) -> str:
    """Return the name of a logged value of an optimizer; that of a sole one has no name in it."""
    return f"train/{optimizer}/{what}" if optimizer else f"train/{what}"


def _means(values: Mapping[str, Sequence[Any]], device: torch.device) -> dict[str, float]:
    """Return the means of numbers and scalars; those on a device are fetched at once."""
    if device.type == "cpu":
        return {name: sum(map(float, found)) / len(found) for name, found in values.items()}
    # Of a state that was saved on another device, some may be there, and some may be numbers.
    means = [
        torch.stack([torch.as_tensor(value, dtype=torch.float32, device=device) for value in found]).mean()
        for found in values.values()
    ]
    return dict(zip(values, torch.stack(means).tolist(), strict=True))
