"""Mixed precision, gradient clipping and accumulation around plain optimizer steps. Without Sacred.

One effective batch, with any number of micro-batches and optimizers:

    for inputs, targets in micro_batches:
        with amp.autocast():
            loss = criterion(model(inputs), targets) * share_of_the_batch
        amp.backward(loss)
    stepped = amp.step(optimizer)      # unscales, clips, steps or skips; once for each optimizer
    amp.update()                       # sets the scale of the next effective batch
    optimizer.zero_grad()

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sacristan.ingredients.errors import PrecisionError

DTYPES = {"off": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


def auto_dtype(device: torch.device) -> str:
    """Return `bfloat16` where hardware supports it (it is slow elsewhere), else `float16` on CUDA, else `off`."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "off"
    return "off"


class _Autocast:
    """`torch.autocast` that can be entered inside itself; the outermost entry reuses one, as making one is slow."""

    def __init__(self, device_type: str, dtype: torch.dtype | None) -> None:
        self._make = functools.partial(torch.autocast, device_type, dtype)
        self._outermost = self._make()
        self._entered: list[torch.autocast] = []

    def __enter__(self) -> None:
        context = self._make() if self._entered else self._outermost
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *error: Any) -> Any:
        return self._entered.pop().__exit__(*error)


class MixedPrecision:
    """Autocast, loss scaling, clipping and accumulation for one device.

    Args:
        device: The device of the model.
        dtype: `off`, `float16`, `bfloat16` or `auto`.
        init_scale, growth_factor, backoff_factor, growth_interval: Of `torch.amp.GradScaler`, which float16 needs.
        clip_norm: Largest norm of an optimizer's gradients together; None for no limit.
        clip_value: Largest absolute value of one gradient; None for no limit.
        accumulate: Micro-batches in an effective batch.

    Attributes:
        num_skipped: Optimizer steps skipped so far, because a gradient overflowed.
        scaler: The gradient scaler; disabled without float16.
        context: The context of `autocast`; it can be entered repeatedly, also inside itself.

    Raises:
        PrecisionError: If a value is out of range.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: str = "off",
        *,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
    ) -> None:
        _check_limits(clip_norm, clip_value, accumulate)
        if init_scale <= 0 or growth_factor <= 1 or not 0 < backoff_factor < 1 or growth_interval < 1:
            raise PrecisionError(
                f"amp: got init_scale={init_scale}, growth_factor={growth_factor}, backoff_factor={backoff_factor}, "
                f"growth_interval={growth_interval}; expected above 0, above 1, between 0 and 1, at least 1"
            )
        self.dtype = auto_dtype(device) if dtype == "auto" else dtype
        if self.dtype not in DTYPES:
            raise PrecisionError(f"amp.dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}, auto")
        self.device = device
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.accumulate = accumulate
        self.num_skipped = 0
        self.scaler = torch.amp.GradScaler(
            device.type,
            enabled=self.dtype == "float16",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        self._scaling = self.scaler.is_enabled()
        self._before_step: Callable[[torch.optim.Optimizer], bool] | None = None
        self._plain = not self._scaling and clip_norm is None and clip_value is None
        self.context: Any = contextlib.nullcontext()
        if DTYPES[self.dtype] is not None:
            self.context = _Autocast(device.type, DTYPES[self.dtype])
        self._norms: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._watched: weakref.WeakSet = weakref.WeakSet()
        self._found_inf: list[Tensor | None] = []

    def autocast(self) -> Any:
        """Return the context to compute the forward pass and the loss in."""
        return self.context

    def backward(self, loss: Tensor, inputs: Sequence[Tensor] | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of `loss`, scaled where float16 needs it.

        Args:
            loss: A scalar.
            inputs: The parameters that get gradients; None for all.
            retain_graph: Whether another loss of the same graph comes after it.
        """
        if self._scaling:
            loss = self.scaler.scale(loss)
        if inputs is None and not retain_graph:
            loss.backward()
        else:
            loss.backward(inputs=inputs, retain_graph=retain_graph)

    def look_before_steps(self, look: Callable[[torch.optim.Optimizer], bool] | None) -> None:
        """Set the function called before an optimizer steps, on gradients that are unscaled and not clipped.

        Args:
            look: Takes the optimizer, and returns whether to take the step; None calls nothing, which is faster.
        """
        self._before_step = look
        self._plain = look is None and not self._scaling and self.clip_norm is None and self.clip_value is None

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor] | None = None) -> bool:
        """Unscale and clip the gradients of `optimizer`, and let it step unless they overflowed.

        Args:
            optimizer: One optimizer; call this once for each.
            closure: Recomputes loss and gradients, for optimizers such as LBFGS.

        Returns:
            Whether the step took place.

        Raises:
            PrecisionError: If there is a closure with float16, which cannot be scaled correctly.
        """
        if closure is not None:
            return self._step_with_closure(optimizer, closure)
        if self._plain:
            optimizer.step()
            return True
        clips = self.clip_norm is not None or self.clip_value is not None
        look = self._before_step
        if clips or look is not None or getattr(optimizer, "_step_supports_amp_scaling", False):
            # The scaler's own step unscales too, but not for fused optimizers, whose gradients would stay scaled.
            self.scaler.unscale_(optimizer)
        if look is not None and not look(optimizer):
            self._norms.pop(optimizer, None)
            return False
        if clips:
            self._clip(optimizer)
        if not self._scaling:
            optimizer.step()
            return True
        return self._step_unless_overflowed(optimizer)

    def update(self) -> None:
        """Set the scale of the next effective batch, after all optimizers have stepped."""
        if self._scaling:
            self.scaler.update()

    def scale(self) -> float:
        """Return the current scale of the loss; 1 without float16. Waits for the device."""
        return self.scaler.get_scale()

    def grad_norm(self, optimizer: torch.optim.Optimizer) -> Tensor | float:
        """Return the norm of all gradients of an optimizer from before clipping, after its `step`.

        Args:
            optimizer: The optimizer, whose gradients are not cleared yet.

        Returns:
            A number on the CPU; on a GPU a scalar there, so nothing waits for it.
        """
        norm = self._norms[optimizer] if optimizer in self._norms else _total_norm(parameters_of(optimizer))
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of gradients that are split over ranks

    def _clip(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = parameters_of(optimizer)
        if self.clip_norm is not None:
            self._norms[optimizer] = torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        else:
            self._norms[optimizer] = _total_norm(parameters)
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, self.clip_value)

    def _step_with_closure(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor]) -> bool:
        if self._scaling:
            raise PrecisionError(
                f"amp.dtype: {type(optimizer).__name__} recomputes its loss, which float16 cannot scale; use bfloat16"
            )

        def clipped() -> Tensor:
            # Most optimizers step with gradients disabled, and some call the closure there.
            with torch.enable_grad():
                loss = closure()
            if self.clip_norm is not None or self.clip_value is not None:
                self._clip(optimizer)
            return loss

        if _has_two_steps(type(optimizer)):
            clipped()
        optimizer.step(clipped)  # type: ignore[arg-type]  # torch's stubs say float, its optimizers take tensors
        return True

    def _step_unless_overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        if optimizer not in self._watched:
            # The scaler does not report whether it stepped; the optimizer's own hook does. A fused optimizer is always
            # called, and skips by the flag that the scaler sets on it.
            optimizer.register_step_post_hook(self._note_step)
            self._watched.add(optimizer)
        self._found_inf.clear()
        without = _without_momenta(optimizer)
        self.scaler.step(optimizer)
        stepped = bool(self._found_inf) and (self._found_inf[0] is None or not self._found_inf[0].item())
        if not stepped:
            self.num_skipped += 1
            for parameter in without:
                # torch 2.13 does not initialise their memory, and the kernel that skips the step leaves it so.
                optimizer.state[parameter].pop("momentum_buffer", None)
        return stepped

    def _note_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._found_inf.append(getattr(optimizer, "found_inf", None))

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {"scaler": self.scaler.state_dict(), "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the value of `state_dict`; the scale counts only with float16."""
        self.num_skipped = state["num_skipped"]
        if state["scaler"] and self._scaling:
            self.scaler.load_state_dict(state["scaler"])
            # Forget a step that an error interrupted.
            self.scaler._per_optimizer_states.clear()


def _total_norm(parameters: list[Tensor]) -> Tensor | float:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    if gradients and (gradients[0].device.type != "cpu" or hasattr(gradients[0], "full_tensor")):
        return torch.nn.utils.get_total_norm(gradients)
    # On the CPU, grouping by device costs more than the norms.
    return math.hypot(*(torch.linalg.vector_norm(gradient).item() for gradient in gradients))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _without_momenta(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters for which a fused SGD is about to create momenta; none for other optimizers."""
    if not (isinstance(optimizer, torch.optim.SGD) and getattr(optimizer, "_step_supports_amp_scaling", False)):
        return []
    return [p for p in parameters_of(optimizer) if optimizer.state.get(p, {}).get("momentum_buffer") is None]


def recomputes_loss(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer requires a closure, as those like SAM do even with a default for it."""
    return _needs_closure(type(optimizer))  # type: ignore[arg-type]  # mypy takes no class for hashable


def _has_two_steps(cls: type) -> bool:
    """Return whether an optimizer expects gradients before the closure, like SAM: https://arxiv.org/abs/2010.01412."""
    return all(callable(getattr(cls, name, None)) for name in ("first_step", "second_step"))


@functools.cache
def _needs_closure(cls: type[torch.optim.Optimizer]) -> bool:
    if _has_two_steps(cls):
        return True  # most have a default of None, which they reject
    parameters = [*inspect.signature(cls.step).parameters.values()][1:]
    return any(parameter.name == "closure" and parameter.default is parameter.empty for parameter in parameters)


def with_shares(
    group: Sequence[Any], weigh: Callable[[Any], Tensor | int], *, is_sum: bool
) -> Iterator[tuple[Any, Tensor | float]]:
    """Yield micro-batches with the factors of their losses, so that gradients add up to those of one big batch.

    Those of weight 0, all of whose targets the loss ignores, are left out: the mean over nothing is NaN. The factor is
    the share of the total weight, or 1 if losses are sums (`is_sum`). Waits once for weights on a device.
    """
    if is_sum or len(group) == 1:
        yield from ((batch, 1.0) for batch in group)
        return
    weights = [weigh(batch) for batch in group]
    total, numbers = sum(weights), _numbers(weights)
    for batch, weight, number in zip(group, weights, numbers, strict=True):
        if number != 0 or not any(numbers):
            yield batch, weight / total


def _numbers(weights: Sequence[Tensor | int]) -> Sequence[float]:
    tensors = [weight for weight in weights if isinstance(weight, Tensor)]
    if not tensors:
        return weights  # type: ignore[return-value]  # none is a tensor
    return torch.stack([torch.as_tensor(weight, device=tensors[0].device) for weight in weights]).tolist()


def _check_limits(clip_norm: float | None, clip_value: float | None, accumulate: int) -> None:
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None and not value > 0:
            raise PrecisionError(f"amp.{name}: got {value}, expected more than 0, or None for no limit")
    if accumulate < 1:
        raise PrecisionError(f"amp.accumulate: got {accumulate}, expected at least 1")
