"""Diagnosis of a step that was not finite: repeat it while watching each module, operation and gradient.

Forward, a module is to blame whose inputs are finite and whose outputs are not; backward, an operation whose incoming
gradients are finite and whose outgoing ones are not. Operations belong to the innermost module that ran them. Where the
first NaN was made of infinite values, what made those is named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.training.trainer import Trainer
from ingredients.datasets.structure import tensors_of
from ingredients.models.compiled import plain_name
from observers.record.safe_paths import shown_path

__all__ = ["Finding", "diagnose", "non_finite_gradients", "take_step"]

# Of operations that leave memory as it was found, or are asked for such values.
_NO_MAKERS = ("empty", "full", "new_", "detach", "lift")
# Masks are made of infinite values.
_OF_MASKS = "masked_fill"
_TORCH = str(Path(torch.__file__).parent)


@dataclasses.dataclass(frozen=True)
class Finding:
    """Cause of a step that was not finite.

    Attributes:
        phase: `data`, `weights` (they were not finite before), `forward`, `loss`, `backward` or `optimizer`.
        value: `nan` or `inf`: the first of them that was made.
        module: Dotted name of the module; `loss` and `loss.NAME` of the loss's, None outside of any.
        kind: Class of the module.
        tensor: Which tensor: `output`, `gradient of NAME`, a parameter, or the part of the batch.
        operation: Name of the operation, such as `aten.log` or `LogBackward0`; None where it is not known.
        site: File, line and function that ran it.
        samples: Places of the samples in their batch that are not finite, of data.
    """

    phase: str
    value: str
    module: str | None = None
    kind: str | None = None
    tensor: str | None = None
    operation: str | None = None
    site: str | None = None
    samples: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return it as a sentence's part, such as `forward of head (Linear): aten.mul made its output nan`."""
        where = f"{self.module} ({self.kind})" if self.module and self.kind else self.module or "the step"
        if self.phase == "data":
            shown = ", ".join(map(str, self.samples[:8])) + (", ..." if len(self.samples) > 8 else "")
            return f"data: {self.tensor} of the batch hold {self.value}" + (f", samples {shown}" if shown else "")
        if self.phase == "weights":
            return f"weights: {self.tensor} was {self.value} before the step"
        if self.phase == "optimizer":
            return f"optimizer: its step made {self.tensor} {self.value}; loss and gradients are finite"
        beginning = "loss" if self.phase == "loss" else f"{self.phase} of {where}"
        if self.phase == "loss" and self.module:
            beginning += f" ({where})"
        if self.phase == "forward" and self.operation is None:
            return (
                f"{beginning}: {self.tensor or 'a value'} is {self.value}, by no operation of torch; what writes to "
                "its memory by other means, such as NumPy, leaves no line to name"
            )
        site = f", at {self.site}" if self.site else ""
        return f"{beginning}: {self.operation or 'it'} made {self.tensor or 'a value'} {self.value}{site}"


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Flags of the values that are not finite."""

    nan: bool = False
    inf: bool = False

    def has(self, value: str) -> bool:
        return self.nan if value == "nan" else self.inf

    @property
    def value(self) -> str | None:
        return "nan" if self.nan else "inf" if self.inf else None


@dataclasses.dataclass(frozen=True)
class _Made:
    """A module, an operation or a node of the graph, and what it took and gave."""

    name: str
    owner: str | None
    taken: _Flags
    given: _Flags
    site: str | None = None
    tensor: str | None = None


def take_step(trainer: Trainer, group: Sequence[Any]) -> tuple[Tensor | None, bool]:
    """Let the training take one step, and return its loss, and whether the sole optimizer stepped; gradients stay."""
    return trainer.bound_step()(list(group))


def non_finite_gradients(trainer: Trainer) -> list[str]:
    """Return the names of the parameters whose gradients are not finite."""
    return [name for name, parameter in _named(trainer).items() if _flags([parameter.grad]).value]


def diagnose(trainer: Trainer, group: Sequence[Any]) -> tuple[Finding | None, Tensor | None]:
    """Take one step under anomaly detection, and return what made it not finite, and its loss; None if nothing did.

    Args:
        trainer: The training, in the state from before the step.
        group: The micro-batches of the step.
    """
    of_weights = _in_weights(trainer, "weights")
    if of_weights is not None:
        return of_weights, None
    watch = _Watch(trainer)
    with watch.watching():
        loss, _ = take_step(trainer, group)
    loss = trainer.batch_loss if loss is None else loss  # a callback may have left the step out
    return _concluded(trainer, group, watch, loss), loss


def _concluded(trainer: Trainer, group: Sequence[Any], watch: _Watch, loss: Tensor | None) -> Finding | None:
    losses = [*watch.losses, _flags([loss])]
    if any(flags.value for flags in losses):
        return _of_forward(trainer, group, watch, "nan" if any(flags.nan for flags in losses) else "inf")
    named = _named(trainer)
    bad = non_finite_gradients(trainer)
    if bad and trainer.amp.dtype != "float16":
        value = "nan" if _flags(named[name].grad for name in bad).nan else "inf"
        return _of_backward(trainer, watch, value, bad)
    return _in_weights(trainer, "optimizer")


def _in_weights(trainer: Trainer, phase: str) -> Finding | None:
    """Return what of the weights is not finite."""
    for name, parameter in _named(trainer).items():
        value = _flags([parameter]).value
        if value is not None:
            return Finding(phase, value, *_module_of(trainer, name), tensor=name)
    return None


def _of_forward(trainer: Trainer, group: Sequence[Any], watch: _Watch, value: str) -> Finding:
    made = _first_maker(watch.calls, value)
    data = _in_data(group)
    source = made or _first_maker(watch.operations, value)
    if source is not None and source.taken.inf and value == "nan":
        # NaN of infinite values: what made those is to blame.
        of_inf = _first_maker(watch.calls, "inf")
        if of_inf is not None:
            made, value = of_inf, "inf"
        elif data is not None:
            return data
    if made is None and data is not None:
        return data
    owner = None if made is None else made.owner
    operation = _first_maker([each for each in watch.operations if each.owner == owner], value)
    is_loss = owner is None or owner == "loss" or owner.startswith("loss.")
    return Finding(
        "loss" if is_loss else "forward",
        value,
        owner,
        watch.kinds.get(owner),
        "the loss" if is_loss else "its output",
        None if operation is None else operation.name,
        None if operation is None else operation.site,
    )


def _of_backward(trainer: Trainer, watch: _Watch, value: str, bad: Sequence[str]) -> Finding:
    made = _first_maker(watch.nodes, value)
    if made is not None and made.taken.inf and value == "nan":
        of_inf = _first_maker(watch.nodes, "inf")
        made, value = (made, value) if of_inf is None else (of_inf, "inf")
    if made is None:  # such as by a hook on a tensor, between two operations
        made = next((node for node in watch.nodes if node.taken.has(value)), None)
    if made is None:
        return Finding("backward", value, *_module_of(trainer, bad[0]), tensor=f"the gradient of {bad[0]}")
    kind = watch.kinds.get(made.owner)
    where = made.owner or "loss"
    return Finding("backward", value, where, kind, made.tensor or "a gradient", made.name, made.site)


def _first_maker(all_made: Iterable[_Made], value: str) -> _Made | None:
    """Return the first that gave such values and took none."""
    return next((made for made in all_made if made.given.has(value) and not made.taken.has(value)), None)


def _in_data(group: Sequence[Any]) -> Finding | None:
    """Return what of the batches is not finite."""
    for batch in group:
        for name, tensor in _named_tensors(batch):
            flags = _flags([tensor])
            if flags.value:
                rows = (~tensor.isfinite()).reshape(len(tensor), -1).any(1).nonzero() if tensor.ndim else tensor[None]
                samples = tuple(rows.flatten().tolist()) if tensor.ndim else ()
                return Finding("data", flags.value, tensor=name, samples=samples)
    return None


def _named_tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        yield from zip(("inputs", "targets"), batch, strict=True)
    elif isinstance(batch, dict):
        for name, part in batch.items():
            yield from ((str(name), tensor) for tensor in tensors_of(part))
    else:
        yield from ((f"tensor {number}", tensor) for number, tensor in enumerate(tensors_of(batch)))


class _Watch:
    """Looks at each module, operation and gradient of a step.

    Attributes:
        calls: Modules in the order in which they return.
        operations: Operations that made what is not finite, forward.
        nodes: Operations backward, in the order in which they run.
        losses: What the losses were that gradients were asked of.
        kinds: Classes of modules by name.
        is_backward: Whether gradients are being computed.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.calls: list[_Made] = []
        self.operations: list[_Made] = []
        self.nodes: list[_Made] = []
        self.losses: list[_Flags] = []
        self.kinds: dict[str | None, str] = {}
        self._stack: list[tuple[str, _Flags]] = []
        self._owners: dict[Any, str | None] = {}
        self.is_backward = False
        self._parameters = {id(parameter): name for name, parameter in _named(trainer).items()}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        amp: Any = self._trainer.amp
        with contextlib.ExitStack() as stack:
            for name, module in _modules(self._trainer):
                self.kinds[name] = type(module).__name__
                enter, leave = functools.partial(self._enter, name), functools.partial(self._leave, name)
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True).remove)
                stack.callback(module.register_forward_hook(leave).remove)
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
            # NaN alone would be found by the check of anomaly detection; its traces are what is wanted here.
            stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and it takes seconds to import
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            amp.backward = functools.partial(self._backward, amp.backward)
            stack.callback(delattr, amp, "backward")
            stack.enter_context(_Operations(self))
            yield

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.is_backward:  # modules run again there, where their activations are not kept
            self._claim((args, kwargs), self._owner)
            self._stack.append((name, _flags(tensors_of((args, kwargs)))))

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if self.is_backward:
            return
        self._claim(output, name)
        taken = _Flags()
        while self._stack:  # one that raised and was caught has not left
            top, taken = self._stack.pop()
            if top == name:
                break
        self.calls.append(_Made(name, name, taken, _flags(tensors_of(output))))

    @property
    def _owner(self) -> str | None:
        return self._stack[-1][0] if self._stack else None

    def _claim(self, values: Any, owner: str | None) -> None:
        """Let operations that led to values, and are nobody's yet, be those of a module."""
        waiting = [tensor.grad_fn for tensor in tensors_of(values) if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node not in self._owners:
                self._owners[node] = owner
                waiting.extend(following for following, _ in node.next_functions if following is not None)

    def ran(self, name: str, taken: _Flags, given: _Flags) -> None:
        """Note an operation of torch that has run, if it made what is not finite."""
        made = (given.nan and not taken.nan) or (given.inf and not taken.inf)
        is_mask = _OF_MASKS in name and not given.nan
        if made and not is_mask and not any(part in name for part in _NO_MAKERS):
            self.operations.append(_Made(name.rpartition(".")[0], self._owner, taken, given, _site()))

    def _backward(self, original: Any, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.losses.append(_flags([loss]))
        self._claim([loss], None)
        hooks = [node.register_hook(functools.partial(self._ran_backward, node)) for node in self._owners]
        self.is_backward = True
        try:
            original(loss)
        finally:
            self.is_backward = False
            self._owners.clear()
            for hook in hooks:
                hook.remove()

    def _ran_backward(self, node: Any, given: Any, taken: Any) -> None:
        of_inputs, made = _flags(taken), _flags(given)
        if of_inputs.value is None and made.value is None:
            return
        tensor = "a gradient"
        for (following, _), gradient in zip(node.next_functions, given, strict=False):
            if _flags([gradient]).value is not None:
                name = self._parameters.get(id(getattr(following, "variable", None)))
                tensor = f"the gradient of {name}" if name else "the gradient of its input"
                break
        site = _site_of(node.metadata.get("traceback_"))
        self.nodes.append(_Made(node.name().rpartition("::")[2], self._owners.get(node), of_inputs, made, site, tensor))


class _Operations(TorchDispatchMode):
    """Tells a watch of each operation."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._watch.is_backward or func.is_view:
            return func(*args, **kwargs)
        # What an operation takes is looked at before: it may write there. A number that it writes is its own doing.
        writes = func._schema.is_mutable
        taken = _flags(one for one in tensors_of((args, kwargs)) if one.ndim or not writes)
        given = func(*args, **kwargs)
        self._watch.ran(str(func), taken, _flags(tensors_of(given)))
        return given


def _modules(trainer: Trainer) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules by their dotted names; those of the loss begin with `loss`."""
    for name, module in trainer.model.named_modules():
        if name != "_orig_mod":
            yield plain_name(name) or "(model)", module
    if trainer.task.module is not None:
        for name, module in trainer.task.module.named_modules(prefix="loss"):
            yield plain_name(name), module


def _module_of(trainer: Trainer, parameter: str) -> tuple[str | None, str | None]:
    """Return name and class of the module that has a parameter."""
    owner = parameter.rpartition(".")[0] or "(model)"
    return owner, next((type(module).__name__ for name, module in _modules(trainer) if name == owner), None)


def _named(trainer: Trainer) -> dict[str, nn.Parameter]:
    """Return all parameters by name."""
    named = {plain_name(name): parameter for name, parameter in trainer.model.named_parameters()}
    return named | {f"loss.{plain_name(name)}": parameter for name, parameter in trainer.task.parameters.items()}


def _flags(tensors: Iterable[Any]) -> _Flags:
    nan = inf = False
    for tensor in tensors:
        if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
            values = tensor.detach()
            values = values.coalesce().values() if values.is_sparse else values
            if not values.isfinite().all():
                nan, inf = nan or bool(values.isnan().any()), inf or bool(values.isinf().any())
    return _Flags(nan, inf)


def _site() -> str | None:
    """Return file, line and function outside of torch that is running now."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_TORCH) and frame.filename != __file__ and "<" not in frame.filename:
            return f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
    return None


def _site_of(trace: Sequence[str] | None) -> str | None:
    """Return file, line and function of the last line of a formatted trace that is outside of torch."""
    for line in reversed(trace or ()):
        filename = line.partition('"')[2].partition('"')[0]
        if filename and not filename.startswith(_TORCH) and filename != __file__:
            number, _, function = line.partition(", line ")[2].partition("\n")[0].partition(", in ")
            return f"{_short(filename)}:{number} in {function}"
    return None


def _short(filename: str) -> str:
    return Path(shown_path(Path(filename))).as_posix()
