"""The cause of a step that was not finite: `diagnose` repeats the step and watches modules, operations and gradients.

Forward, the cause is a module whose inputs are finite and whose outputs are not; backward, an operation whose incoming
gradients are finite and whose outgoing ones are not. Operations belong to the innermost module that ran them. If
infinite values led to the first NaN, their origin is the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sacristan.configs.map import abbreviated
from sacristan.experiments.training import Trainer
from sacristan.ingredients.datasets.collating import tensors_of
from sacristan.ingredients.models.modules import plain_name
from sacristan.observers.record.files import shown_path

# Operations that do not compute: they return memory as it is, or values as asked.
_NOT_COMPUTING = ("empty", "full", "new_", "detach", "lift")
# Masks are infinite on purpose.
_MASKING = "masked_fill"
_TORCH = str(Path(torch.__file__).parent)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The cause of a step that was not finite, `nan` or `inf`, whichever appeared first.

    `phase` is `data`, `weights` (they were not finite before), `forward`, `loss`, `backward` or `optimizer`. `module`
    is a dotted name, `loss` or `loss.NAME`, and `kind` its class. `tensor` is `output`, `gradient of NAME`, a
    parameter, or the part of the batch, with the places of bad `samples`. `operation`, such as `aten.log` or
    `LogBackward0`, was run at `site`: file, line and function.
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
        if self.phase == "data":
            shown = f", samples {abbreviated(self.samples, 8)}" if self.samples else ""
            return f"data: {self.tensor} of the batch hold {self.value}{shown}"
        if self.phase == "weights":
            return f"weights: {self.tensor} was {self.value} before the step"
        if self.phase == "optimizer":
            return f"optimizer: its step made {self.tensor} {self.value}; loss and gradients are finite"
        if self.phase == "forward" and self.operation is None:
            return (
                f"{self._where}: {self.tensor or 'a value'} is {self.value}, by no operation of torch; what writes to "
                "its memory by other means, such as NumPy, leaves no line to name"
            )
        site = f", at {self.site}" if self.site else ""
        return f"{self._where}: {self.operation or 'it'} made {self.tensor or 'a value'} {self.value}{site}"

    @property
    def _where(self) -> str:
        module = f"{self.module} ({self.kind})" if self.module and self.kind else self.module
        if self.phase == "loss":
            return f"loss ({module})" if module else "loss"
        return f"{self.phase} of {module or 'the step'}"


@dataclasses.dataclass(frozen=True)
class _Flags:
    """The kinds of values that are not finite among some tensors."""

    nan: bool = False
    inf: bool = False

    def has(self, value: str) -> bool:
        return self.nan if value == "nan" else self.inf

    @property
    def value(self) -> str | None:
        return "nan" if self.nan else "inf" if self.inf else None

    def exceeds(self, other: _Flags) -> bool:
        """Tell whether these tensors hold a kind of value that the others do not."""
        return any(self.has(value) and not other.has(value) for value in ("nan", "inf"))


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a module, an operation or a node of the graph."""

    name: str
    owner: str | None
    inputs: _Flags
    outputs: _Flags
    site: str | None = None
    tensor: str | None = None


def non_finite_parameters(*modules: nn.Module) -> list[str]:
    """Return the names of parameters that hold NaN or an infinity; waits for the device once if there are none."""
    all_named = itertools.chain.from_iterable(module.named_parameters() for module in modules)
    named = [(plain_name(name), p.detach()) for name, p in all_named if p.is_floating_point() or p.is_complex()]
    by_device: dict[torch.device, list[Tensor]] = {}
    for _, parameter in named:
        # A sum costs an eighth of looking at each number, and is not finite if one of them is not.
        total = parameter.sum(dtype=torch.promote_types(parameter.dtype, torch.float32))
        by_device.setdefault(parameter.device, []).append(total.isfinite())
    if all(torch.stack(finite).all() for finite in by_device.values()):
        return []
    return [name for name, parameter in named if not parameter.isfinite().all()]


def non_finite_gradients(trainer: Trainer) -> list[str]:
    """Return the names of the parameters whose gradients are not finite."""
    return [name for name, parameter in _named(trainer).items() if _flags([parameter.grad]).value]


def diagnose(trainer: Trainer, group: Sequence[Any]) -> tuple[Finding | None, Tensor | None]:
    """Take a step under anomaly detection; return its cause, if any, and the loss, None if weights were bad before."""
    of_weights = _in_weights(trainer, "weights")
    if of_weights is not None:
        return of_weights, None
    watch = _Watch(trainer)
    with watch.watching():
        loss, _ = trainer.bound_step()(list(group))
    loss = trainer.batch_loss if loss is None else loss  # a callback may have left the step out
    return _concluded(trainer, group, watch, loss), loss


def _concluded(trainer: Trainer, group: Sequence[Any], watch: _Watch, loss: Tensor | None) -> Finding | None:
    losses = [*watch.losses, _flags([loss])]
    value = _Flags(any(flags.nan for flags in losses), any(flags.inf for flags in losses)).value
    if value is not None:
        return _of_forward(group, watch, value)
    bad = non_finite_gradients(trainer)
    if bad and trainer.amp.dtype != "float16":
        named = _named(trainer)
        return _of_backward(trainer, watch, str(_flags(named[name].grad for name in bad).value), bad)
    return _in_weights(trainer, "optimizer")


def _in_weights(trainer: Trainer, phase: str) -> Finding | None:
    for name, parameter in _named(trainer).items():
        value = _flags([parameter]).value
        if value is not None:
            return Finding(phase, value, *_module_of(trainer, name), tensor=name)
    return None


def _of_forward(group: Sequence[Any], watch: _Watch, value: str) -> Finding:
    call, data = _first_maker(watch.calls, value), _in_data(group)
    source = call or _first_maker(watch.operations, value)
    if source is not None and source.inputs.inf and value == "nan":
        of_inf = _first_maker(watch.calls, "inf")
        if of_inf is None and data is not None:
            return data
        call, value = (call, value) if of_inf is None else (of_inf, "inf")
    if call is None and data is not None:
        return data
    owner = None if call is None else call.owner
    operation = _first_maker([each for each in watch.operations if each.owner == owner], value)
    is_loss = owner is None or owner == "loss" or owner.startswith("loss.")
    phase, tensor = ("loss", "the loss") if is_loss else ("forward", "its output")
    name, site = (None, None) if operation is None else (operation.name, operation.site)
    return Finding(phase, value, owner, watch.kinds.get(owner), tensor, name, site)


def _of_backward(trainer: Trainer, watch: _Watch, value: str, bad: Sequence[str]) -> Finding:
    node = _first_maker(watch.nodes, value)
    if node is not None and node.inputs.inf and value == "nan":
        of_inf = _first_maker(watch.nodes, "inf")
        node, value = (node, value) if of_inf is None else (of_inf, "inf")
    if node is None:  # such as by a hook on a tensor, between two operations
        node = next((node for node in watch.nodes if node.inputs.has(value)), None)
    if node is None:
        return Finding("backward", value, *_module_of(trainer, bad[0]), tensor=f"the gradient of {bad[0]}")
    kind = watch.kinds.get(node.owner)
    return Finding("backward", value, node.owner or "loss", kind, node.tensor or "a gradient", node.name, node.site)


def _first_maker(calls: Iterable[_Call], value: str) -> _Call | None:
    """Return the first call with such values among its outputs and none among its inputs."""
    return next((call for call in calls if call.outputs.has(value) and not call.inputs.has(value)), None)


def _in_data(group: Sequence[Any]) -> Finding | None:
    named = (pair for batch in group for pair in _named_tensors(batch))
    for name, tensor in named:
        value = _flags([tensor]).value
        if value:
            bad = ~tensor.isfinite()
            samples = bad.reshape(len(bad), -1).any(1).nonzero().flatten().tolist() if bad.ndim else ()
            return Finding("data", value, tensor=name, samples=tuple(samples))
    return None


def _named_tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        yield from zip(("inputs", "targets"), batch, strict=True)
    elif isinstance(batch, dict):
        yield from ((str(name), tensor) for name, part in batch.items() for tensor in tensors_of(part))
    else:
        yield from ((f"tensor {number}", tensor) for number, tensor in enumerate(tensors_of(batch)))


class _Watch:
    """Records the modules, operations and gradients of a step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.calls: list[_Call] = []
        self.operations: list[_Call] = []
        self.nodes: list[_Call] = []
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
            # Anomaly detection gives the traces; its own check finds NaN alone.
            stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and it takes seconds to import
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            amp.backward = functools.partial(self._backward, amp.backward)
            stack.callback(delattr, amp, "backward")
            stack.enter_context(_Operations(self))
            yield

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.is_backward:  # gradient checkpointing runs modules again there
            self._claim((args, kwargs), self._owner)
            self._stack.append((name, _flags(tensors_of((args, kwargs)))))

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if self.is_backward:
            return
        self._claim(output, name)
        inputs = _Flags()
        while self._stack:  # a module that raised is still on it
            top, inputs = self._stack.pop()
            if top == name:
                break
        self.calls.append(_Call(name, name, inputs, _flags(tensors_of(output))))

    @property
    def _owner(self) -> str | None:
        return self._stack[-1][0] if self._stack else None

    def _claim(self, values: Any, owner: str | None) -> None:
        """Assign to a module the operations that led to values and have no owner yet."""
        waiting = [tensor.grad_fn for tensor in tensors_of(values) if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node not in self._owners:
                self._owners[node] = owner
                waiting.extend(following for following, _ in node.next_functions if following is not None)

    def ran(self, name: str, inputs: _Flags, outputs: _Flags) -> None:
        """Record an operation of torch if it turned finite values into others."""
        is_mask = _MASKING in name and not outputs.nan
        if outputs.exceeds(inputs) and not is_mask and not any(part in name for part in _NOT_COMPUTING):
            self.operations.append(_Call(name.rpartition(".")[0], self._owner, inputs, outputs, _site()))

    def _backward(self, original: Any, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.losses.append(_flags([loss]))
        self._claim([loss], None)
        hooks = [node.register_hook(functools.partial(self._ran_backward, node)) for node in self._owners]
        self.is_backward = True
        try:
            original(loss, *args, **kwargs)
        finally:
            self.is_backward = False
            self._owners.clear()
            for hook in hooks:
                hook.remove()

    def _ran_backward(self, node: Any, outgoing: Any, incoming: Any) -> None:
        inputs, outputs = _flags(incoming), _flags(outgoing)
        if inputs.value is None and outputs.value is None:
            return
        tensor = "a gradient"
        for (following, _), gradient in zip(node.next_functions, outgoing, strict=False):
            if _flags([gradient]).value is not None:
                name = self._parameters.get(id(getattr(following, "variable", None)))
                tensor = f"the gradient of {name}" if name else "the gradient of its input"
                break
        site = _site_of(node.metadata.get("traceback_"))
        name, owner = node.name().rpartition("::")[2], self._owners.get(node)
        self.nodes.append(_Call(name, owner, inputs, outputs, site, tensor))


class _Operations(TorchDispatchMode):
    """Reports each operation to a watch."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._watch.is_backward or func.is_view:
            return func(*args, **kwargs)
        # Inputs are examined first, as the operation may write to them. A scalar that it writes counts as an output.
        writes = func._schema.is_mutable
        inputs = _flags(tensor for tensor in tensors_of((args, kwargs)) if tensor.ndim or not writes)
        result = func(*args, **kwargs)
        self._watch.ran(str(func), inputs, _flags(tensors_of(result)))
        return result


def _modules(trainer: Trainer) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules by their dotted names; those of the loss begin with `loss`."""
    for name, module in trainer.model.named_modules():
        if name != "_orig_mod":
            yield plain_name(name) or "(model)", module
    if trainer.task.module is not None:
        for name, module in trainer.task.module.named_modules(prefix="loss"):
            yield plain_name(name), module


def _module_of(trainer: Trainer, parameter: str) -> tuple[str | None, str | None]:
    """Return name and class of the module that owns a parameter."""
    owner = parameter.rpartition(".")[0] or "(model)"
    return owner, next((type(module).__name__ for name, module in _modules(trainer) if name == owner), None)


def _named(trainer: Trainer) -> dict[str, nn.Parameter]:
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
    """Return file, line and function of the innermost caller outside of torch."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_TORCH) and frame.filename != __file__ and "<" not in frame.filename:
            return f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
    return None


def _site_of(trace: Sequence[str] | None) -> str | None:
    """Return file, line and function of the innermost caller outside of torch, from a formatted trace."""
    for line in reversed(trace or ()):
        filename = line.partition('"')[2].partition('"')[0]
        if filename and not filename.startswith(_TORCH) and filename != __file__:
            number, _, function = line.partition(", line ")[2].partition("\n")[0].partition(", in ")
            return f"{_short(filename)}:{number} in {function}"
    return None


def _short(filename: str) -> str:
    return Path(shown_path(Path(filename))).as_posix()
