"""Training: `Task` says what to do with a batch, `Trainer` is the training that does it.

The loss of a batch is enough for any model and any structure of batches. A task that takes several optimizer steps with
a batch, such as a GAN, overrides `step` as well.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.experiments.training.gradients import LossOf, LossValue, add_gradients, precise, step_with_closure
from sacristan.experiments.training.meters import Meter, WeightedMeans, per_weight
from sacristan.ingredients.checkpoints.training_state import Place
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.datasets.collating import num_samples
from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.models.modules import evaluating
from sacristan.ingredients.precision import MixedPrecision, parameters_of, recomputes_loss, with_shares
from sacristan.ingredients.scheduler import Schedule

__all__ = ["LogScalar", "LossValue", "Task", "Trainer"]

LogScalar = Callable[[str, float, int], None]
# Takes one optimizer step on micro-batches; returns the loss, and whether the sole optimizer stepped.
Step = Callable[[list[Any]], tuple[Tensor | None, bool]]

# Names that `fit` logs itself, as train/NAME.
_RESERVED = ("loss", "lr", "grad_norm")


class Task:
    """The work of a training on each batch: the loss to minimise, the scalars to measure, or a whole step of its own.

    A subclass overrides `loss`, and other methods as needed.

    Attributes:
        module: Parameters or buffers of the task itself, or None. Checkpoints hold it; give its parameters to the
            optimizer.
        reduction: How `loss` reduces a batch: `mean`, or `sum` over what `weight` counts. Scalars beside the loss are
            means, unless it says so by name: `{"loss": "sum", "kl": "sum"}`. Micro-batches and ranks are joined
            accordingly, and means are logged.
        is_sum: The earlier name of `reduction = "sum"`.

    Example:
        class Smooth(Task):
            def loss(self, model, batch):
                inputs, targets = batch
                return torch.nn.functional.cross_entropy(model(inputs), targets, label_smoothing=0.1)

        opt = optimizer.make_optimizer(network)
        loop.fit(network, batches, Smooth(), opt, log=_run.log_scalar, **training)
    """

    module: nn.Module | None = None
    reduction: str | Mapping[str, str] = "mean"
    is_sum: bool = False

    def loss(self, model: nn.Module, batch: Any) -> LossValue:
        """Return the loss of a batch; called under autocast, in training and, by `measure`, in validation.

        Args:
            model: The model.
            batch: A batch of the data, or a micro-batch with `amp.accumulate`.

        Returns:
            The scalar; or a mapping with `loss` and other scalars, which are logged as `train/NAME`, their mean since
            the last logged value; or None to skip the batch.
        """
        raise NotImplementedError(f"{type(self).__name__}.loss is not written")

    def weight(self, batch: Any) -> Tensor | int:
        """Return how much a batch counts in means over several batches: by default the number of its samples.

        Weights join micro-batches, too. A batch whose loss is a mean over fewer items, such as targets that are not
        ignored, weighs the number of these items; a tensor on the device avoids waiting for it.
        """
        return num_samples(batch)

    def step(self, trainer: Trainer, group: Sequence[Any]) -> LossValue:
        """Take one step of the training: minimise one or several losses, and return the values to log.

        By default one optimizer takes one step on `loss`. An override may let several optimizers step; see
        `Trainer.minimize` and `Trainer.minimize_each`.

        Args:
            trainer: The training.
            group: The micro-batches of the step: one, unless gradients are accumulated.

        Returns:
            As `loss` does.
        """
        return trainer.minimize(lambda batch: self.loss(trainer.model, batch), group)

    def measure(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Return scalars of a validation batch by name: by default those of `loss`.

        Their means over all batches are logged as `val/NAME`. Called under autocast, without gradients, with the model
        in evaluation mode.

        Args:
            model: The model, or its average.
            batch: A batch.
        """
        value = self.loss(model, batch)
        if value is None:
            return {}
        return self.means_of(value if isinstance(value, Mapping) else {"loss": value}, batch)

    def means_of(self, values: Mapping[str, Tensor], batch: Any) -> Mapping[str, Tensor]:
        """Return what `loss` gave for a batch as means: sums divided by its weight.

        Raises:
            ConfigError: If `reduction` names a value that is not among them.
        """
        if not self.sums:
            return values
        is_whole = isinstance(self.reduction, str) or self.steps_itself  # losses of steps may have other names
        missing = [] if is_whole else [name for name in self.reduction if name not in values]
        if missing:
            raise ConfigError(
                f"{type(self).__name__}.reduction: got {', '.join(missing)}, expected names that its loss gives: "
                f"{', '.join(values)}"
            )
        weight = self.weight(batch)
        return {name: per_weight(value, weight) if name in self.sums else value for name, value in values.items()}

    @functools.cached_property
    def sums(self) -> frozenset[str]:
        """Names of the values that `loss` gives as sums, see `reduction`."""
        how = {"loss": self.reduction} if isinstance(self.reduction, str) else dict(self.reduction)
        wrong = [f"{name}: {value!r}" for name, value in how.items() if value not in ("mean", "sum")]
        if wrong:
            raise ConfigError(f"{type(self).__name__}.reduction: got {wrong[0]}, expected 'mean' or 'sum'")
        return frozenset(name for name, value in how.items() if value == "sum") | ({"loss"} if self.is_sum else set())

    def of_epoch(self) -> Mapping[str, float]:
        """Return metrics of the training batches of an epoch, when it ends; logged as `train/NAME`."""
        return {}

    def meter(self) -> Meter:
        """Return a new meter for a pass through a part of the data: by default the means of `measure`."""
        return WeightedMeans(self)

    def predict(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Return predictions for a batch by name, each (B, ...); called under autocast, without gradients.

        Args:
            model: The model, in evaluation mode.
            batch: A batch of B samples; targets may be missing.

        Raises:
            ConfigError: If the task does not override it.
        """
        raise ConfigError(f"{type(self).__name__} predicts nothing; write its method predict(model, batch)")

    def check(self, model: nn.Module, data: Data, amp: MixedPrecision) -> Sequence[str]:
        """Check before the first step that the task, the model and the data fit.

        By default one validation batch is measured, so that `measure` raises its errors at once.

        Args:
            model: The model, on its device.
            data: The data.
            amp: Autocast to measure in.

        Returns:
            The names of the metrics of validations, without `val/`; empty if there is no validation part.
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
        """Return what else the task keeps between steps, such as a hidden state; checkpoints hold it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the value of `state_dict`."""

    @property
    def steps_itself(self) -> bool:
        """True if the task overrides `step`."""
        return type(self).step is not Task.step

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the task itself to train, by name."""
        if self.module is None:
            return {}
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    @property
    def may_be_nan(self) -> bool:
        """True if the loss of a batch may be NaN without harm, as of one whose targets are all ignored."""
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
        """Return the modules to put in training or evaluation mode: the model, and that of the task."""
        return (model,) if self.module is None else (model, self.module)


class Trainer:
    """A training: its parts, how far it is, and the optimizer steps that tasks take.

    Attributes:
        model: The model to train.
        evaluated: The model that validations measure: `model`, unless a callback put an average of it here.
        task: The work on each batch.
        data: The batches.
        optimizers: By name; a sole one has the name "".
        schedules: Of some of the optimizers, by the same names.
        amp: Mixed precision, clipping and accumulation.
        log: Called as `log(name, value, step)`.
        place: The epochs and steps done, and the batches done of the epoch after them.
        steps_itself: Whether the task takes its own steps.
        is_logged: Whether values of the current step are logged.
        batch_loss: The loss of the current step, detached; kept only where a callback has `before_step`.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
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
        # By optimizer, of a task that takes its own steps.
        self.grad_norms: dict[str, Tensor | float] = {}
        self.look: Callable[[Trainer, str], None] | None = None
        # The `RankedSteps` of one of several processes; None where the process trains alone.
        self.ranked: Any = None
        self._skips = self._is_skipped = False
        self._stepped: set[str] = set()

    # ------------------------------------------------------------------ for tasks and callbacks

    def stop(self) -> None:
        """End the training after this step, or this validation. The epoch ends there; it is validated and saved."""
        self.place.stopped = True

    def skip_step(self) -> None:
        """Leave out the step that an optimizer is about to take; for `Callback.before_step`. Its loss is not logged."""
        self._skips = True

    def minimize(self, loss_of: LossOf, group: Iterable[Any], optimizer: str = "") -> Tensor | None:
        """Let an optimizer take one step on a loss.

        Gradients of its parameters are cleared first. Precision, the scale of float16, clipping and accumulation are
        those of the training. Of several processes, all take the same steps, each on its own micro-batches.

        Args:
            loss_of: Returns the loss of a micro-batch, under autocast; as `Task.loss` does.
            group: The micro-batches of the step.
            optimizer: Its name; needed if there are several.

        Returns:
            The loss, detached, the same in each process; None if `loss_of` skipped each micro-batch, and there was no
            step.

        Raises:
            ConfigError: If there is no such optimizer.
        """
        chosen, group = self._optimizer(optimizer), list(group)
        chosen.zero_grad()
        gradients = functools.partial(self._add_gradients, loss_of, group, optimizer)
        if recomputes_loss(chosen):
            loss, stepped = step_with_closure(gradients, self.amp, chosen)
        else:
            loss = gradients()
            self.batch_loss = None if self.look is None else loss
            stepped = loss is not None and self.amp.step(chosen)
        if loss is not None:
            self._note_step(optimizer, stepped)
            self.amp.update()
        return loss

    def minimize_each(
        self, losses_of: Callable[[Any], Mapping[str, Tensor]], group: Iterable[Any]
    ) -> dict[str, Tensor]:
        """Let several optimizers take one step, each on its own loss, where the losses share a forward pass.

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
        for batch, factor, share in self._shares(list(group)):
            with self.amp.context, contextlib.nullcontext() if share is None else self.ranked.watching(share):
                shared = {name: loss * factor for name, loss in losses_of(batch).items()}
            if not losses:
                self._clear_each(shared)
            elif losses.keys() != shared.keys():
                raise ConfigError(
                    f"task: got losses of {', '.join(shared) or 'none'} for a micro-batch, expected those of "
                    f"{', '.join(losses)}, as for the first one"
                )
            for left, (name, loss) in zip(reversed(range(len(shared))), shared.items(), strict=True):
                trained = [p for p in parameters_of(self.optimizers[name]) if p.requires_grad]
                if share is not None:
                    loss = self.ranked.exchanged(lambda loss=loss: loss, share, name)
                self.amp.backward(loss, trained, retain_graph=left > 0)
                losses[name] = losses.get(name, 0.0) + precise(loss.detach())
        if self.ranked is not None:
            losses = self.ranked.whole(losses)
        for name, loss in losses.items():
            self.batch_loss = None if self.look is None else loss
            self._note_step(name, self.amp.step(self.optimizers[name]))
        if losses:
            self.amp.update()
        return losses

    def _shares(self, group: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
        """Yield micro-batches, the factors of their losses, and this rank's shares of them; None in a process alone."""
        if self.ranked is not None:
            yield from ((share.batch, share.of_loss, share) for share in self.ranked.shares(group))
            return
        for batch, factor in with_shares(group, self.task.weight, is_sum="loss" in self.task.sums):
            yield batch, factor, None

    def _clear_each(self, names: Iterable[str]) -> None:
        for name in names:
            optimizer = self._optimizer(name)
            if recomputes_loss(optimizer):
                raise ConfigError(
                    f"optimizer: {type(optimizer).__name__} recomputes its loss; take its step by trainer.minimize"
                )
            optimizer.zero_grad()

    def _optimizer(self, name: str) -> torch.optim.Optimizer:
        if name not in self.optimizers:
            raise ConfigError(
                f"optimizer: the step asks for {name!r}; there are: {', '.join(self.optimizers) or 'none'}"
            )
        return self.optimizers[name]

    def _note_step(self, name: str, stepped: bool) -> None:
        """Note for the log and the schedules that an optimizer stepped."""
        self.grad_norms[name] = self.amp.grad_norm(self.optimizers[name]) if self.is_logged else 0.0
        if stepped:
            self._stepped.add(name)

    # ------------------------------------------------------------------ for the loop

    def look_before_steps(self, look: Callable[[Trainer, str], None] | None) -> None:
        """Set the function called before each step of an optimizer, on gradients that are unscaled and not clipped.

        It gets the trainer and the name of the optimizer; None calls nothing, which is faster.
        """
        self.look = look
        self.batch_loss, self._is_skipped = None, False
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

    def bound_step(self) -> Step:
        """Return the function that takes the steps of an epoch, each on a list of micro-batches, which it may empty.

        It returns the loss, None for a skipped step; and whether the sole optimizer stepped. Attributes that the steps
        share are looked up once, here: in each step, that would cost 3 us (measured).
        """
        if self.ranked is not None:
            return functools.partial(self.ranked.take, self._own_step if self.steps_itself else self._ordinary_step)
        if self.steps_itself:
            return self._own_step
        optimizer, model, loss_of, amp = self.optimizers[""], self.model, self.task.loss, self.amp
        # A task whose values are sums needs the weight of a batch after its loss.
        if self.look is not None or amp.accumulate > 1 or recomputes_loss(optimizer) or self.task.sums:
            return self._ordinary_step
        context, backward, step, note = amp.context, amp.backward, amp.step, self.note

        def take_step(group: list[Any]) -> tuple[Tensor | None, bool]:
            # As `_ordinary_step` does, but nothing holds on to the batch: the next one takes its memory, while it is
            # still in the cache. The loss holds its graph: to free it before the optimizer steps costs 4 us.
            with context:
                value = loss_of(model, group.pop())
            if value is None:
                return None, False
            batch_loss = value if isinstance(value, Tensor) else note(value)
            backward(batch_loss)
            return batch_loss, step(optimizer)

        return take_step

    def _ordinary_step(self, group: Sequence[Any]) -> tuple[Tensor | None, bool]:
        """Let the sole optimizer take one step on the task's loss."""
        optimizer, model = self.optimizers[""], self.model if self.ranked is None else self.ranked.model
        gradients = functools.partial(self._add_gradients, functools.partial(self.task.loss, model), group, "")
        if recomputes_loss(optimizer):
            return step_with_closure(gradients, self.amp, optimizer)
        loss = gradients()
        if self.look is not None:
            self.batch_loss, self._is_skipped = loss, False
        stepped = loss is not None and self.amp.step(optimizer)
        return (None if self._is_skipped else loss), stepped

    def _add_gradients(self, loss_of: LossOf, group: Sequence[Any], name: str) -> Tensor | None:
        if self.ranked is not None:
            return self.ranked.add_gradients(loss_of, group, name)
        return add_gradients(loss_of, group, self.task, self.amp, self.optimizers[name], self.note)

    def weight_of(self, group: Sequence[Any]) -> Tensor | float:
        """Return the weight of micro-batches of the data, in all processes together."""
        weight = sum(map(self.task.weight, group))
        return weight if self.ranked is None else self.ranked.weight_of(weight)

    def _own_step(self, group: list[Any]) -> tuple[Tensor | None, bool]:
        """Let the task take its own step; the schedules follow in `after_step`."""
        self._stepped.clear()
        self._is_skipped = False
        value = self.task.step(self, group)
        if self._is_skipped or value is None:
            return None, False
        if self.ranked is not None:
            value = self.ranked.parts_of(value, group)
        return (self.note(value) if isinstance(value, Mapping) else value), False

    def after_step(self) -> None:
        """Advance the schedules of the optimizers that stepped, of a task that takes its own steps."""
        for name in self._stepped & self.schedules.keys():
            self.schedules[name].after_step()

    def clear_gradients(self) -> None:
        """Clear all gradients, also those of parameters that a callback has just added to an optimizer."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def note(self, values: Mapping[str, Tensor]) -> Tensor:
        """Keep the scalars beside a loss until they are logged, and return the loss."""
        if "loss" not in values:
            raise ConfigError(f"task: its loss gave {', '.join(values) or 'nothing'}; expected 'loss' among the names")
        for name, value in values.items():
            if name == "loss":
                continue
            if name in _RESERVED:
                raise ConfigError(f"task: its loss gave a scalar {name!r}, which the training logs itself; rename it")
            value = torch.as_tensor(value).detach()
            self.place.scalars.setdefault(name, []).append(value.item() if value.device.type == "cpu" else value)
        return values["loss"]
