"""Settings that change memory and speed of a model, but not its results and names: `tune`."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import check_options
from sacristan.ingredients.errors import ModelError


def tune(
    model: nn.Module,
    *,
    gradient_checkpointing: Sequence[str] = (),
    channels_last: bool = False,
    compile: str | None = None,
    compile_options: Mapping[str, Any] = {},
) -> None:
    """Reduce the memory of a model, or speed it up, in place; a deep copy is tuned as well, but not compiled.

    The outermost matches of `gradient_checkpointing` recompute all but their inputs in the backward pass, with the same
    random numbers (Chen et al. 2016, https://arxiv.org/abs/1604.06174). Each shape of a batch is compiled separately,
    unless the options set `dynamic`, so that results do not depend on earlier shapes. Convolutions that would corrupt
    memory on a CPU compute the same without a stride, whatever the settings.
    """
    if gradient_checkpointing and compile is not None and compile_options.get("backend") == "eager":
        raise ModelError(
            "model.gradient_checkpointing: the backend eager of torch.compile would update buffers twice; use another "
            "backend, or leave out one of the two"
        )
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and _overruns_buffer(module):
            forward = functools.partial(_without_stride, module, module._conv_forward)
            module._conv_forward = forward  # type: ignore[method-assign]  # a deep copy calls its own
    for module in _matching(model, gradient_checkpointing):
        module.forward = functools.partial(_recomputed, module, module.forward)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        model.register_forward_pre_hook(_channels_last)
    if compile is not None:
        _compile(model, {"mode": compile, "dynamic": False, **compile_options})


def _compile(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Compile a model in place; unlike `Module.compile`, which skips `forward` of torch's own modules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    # torch counts recompilations by code object, which models of one process must not share.
    call.__code__ = call.__code__.replace()
    model._compiled_call_impl = torch.compile(call, **options)


def _overruns_buffer(module: nn.Conv2d) -> bool:
    """Return whether oneDNN may write past the end of a buffer as it computes the gradient of the weight.

    It does for channels-last inputs, to which `torch.compile` may change them: with fewer than 8 channels on CPUs with
    AVX2, and fewer than 16 with AVX-512 (https://github.com/uxlfoundation/oneDNN/issues/6035). The process crashes, or
    the gradient is wrong.
    """
    is_strided_pointwise = module.kernel_size == (1, 1) and module.stride != (1, 1) and module.groups == 1
    return is_strided_pointwise and module.padding in ((0, 0), "valid") and module.in_channels < 16


def _without_stride(
    module: nn.Conv2d, forward: Callable[..., Tensor], images: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Compute a strided 1x1 convolution on the CPU from the pixels that it reads; elsewhere as it is."""
    if images.device.type != "cpu":
        return forward(images, weight, bias)
    rows, columns = module.stride
    return functional.conv2d(images[..., ::rows, ::columns], weight, bias)


def _matching(model: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """Return the outermost modules whose names match one of the globs."""
    modules: dict[str, nn.Module] = {}
    for glob in globs:
        matching = {name: module for name, module in model.named_modules() if name and fnmatch.fnmatchcase(name, glob)}
        if not matching:
            names = [name for name, _ in model.named_modules() if name]
            raise ModelError(
                f"model.gradient_checkpointing: {glob!r} matches no module; there are {', '.join(names[:8])}, ..."
            )
        modules |= matching
    outermost = {
        name: module for name, module in modules.items() if not any(name.startswith(f"{other}.") for other in modules)
    }
    for name, module in outermost.items():
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            raise ModelError(
                f"model.gradient_checkpointing: {name!r} is a {type(module).__name__}, which is never called; "
                f"write {name}.* for the modules in it"
            )
    return list(outermost.values())


def _recomputed(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {}
    # Compiled code writes buffers only at its end.
    if not torch.compiler.is_compiling():
        buffers = list(module.buffers())
        if module.training and buffers:
            options["context_fn"] = functools.partial(_contexts, buffers)
    return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)


def _contexts(buffers: list[Tensor]) -> tuple[Any, Any]:
    """Return contexts for both computations; the second one restores the buffers as before the first."""
    return contextlib.nullcontext(), _with_values(buffers, [buffer.clone() for buffer in buffers])


@contextlib.contextmanager
def _with_values(buffers: list[Tensor], values: list[Tensor]) -> Iterator[None]:
    after = [buffer.clone() for buffer in buffers]
    _set(buffers, values)
    try:
        yield
    finally:
        _set(buffers, after)


def _set(buffers: list[Tensor], values: list[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.data.copy_(value)  # without invalidating what autograd saved


def _channels_last(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        arg.contiguous(memory_format=torch.channels_last) if isinstance(arg, Tensor) and arg.ndim == 4 else arg
        for arg in args
    )


def cast(model: nn.Module, dtype: str) -> tuple[int, int]:
    """Cast weights in place; the model still takes and returns float32. Return its bytes before and after."""
    kind = getattr(torch, dtype)
    before = _num_bytes(model)
    model.to(kind)
    model.register_forward_pre_hook(lambda module, args: tuple(_floats_as(arg, kind) for arg in args))
    model.register_forward_hook(lambda module, args, outputs: _floats_as(outputs, torch.float32))
    return before, _num_bytes(model)


def _num_bytes(model: nn.Module) -> int:
    return sum(value.nbytes for value in (*model.parameters(), *model.buffers()))


def _floats_as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check_compile(mode: str | None, options: Mapping[str, Any]) -> None:
    """Reject options that `torch.compile` does not take, and backends that cannot work on this machine."""
    if mode is None:
        if options:
            raise ModelError(
                f"model.compile_options: got {dict(options)}, but model.compile=None; write model.compile=default"
            )
        return
    check_options(torch.compile, options, "model.compile_options", {"model": None, "mode": mode})
    backend = options.get("backend", "inductor")
    backends = torch.compiler.list_backends(exclude_tags=())
    if backend not in backends:
        hint = suggestion(str(backend), backends)
        raise ModelError(f"model.compile_options.backend: got {backend!r}, which is unknown; {hint}")
    if backend == "inductor":
        _check_compiler()


def _check_compiler() -> None:
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX") or usual
    if shutil.which(compiler.split()[0]) is None:
        raise ModelError(
            f"model.compile: torch.compile needs a C++ compiler, but there is no {compiler}; install one (or name it "
            "in CXX), or write model.compile_options.backend=aot_eager"
        )
    if torch.cuda.is_available() and importlib.util.find_spec("triton") is None:
        raise ModelError(
            "model.compile: torch.compile needs the package 'triton' for GPUs, which is not installed; install it, or "
            "write model.compile_options.backend=aot_eager"
        )


@contextlib.contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run a compiled model, and compiled modules in it, without `torch.compile`, for a few samples."""
    compiled = {module: module._compiled_call_impl for module in model.modules() if module._compiled_call_impl}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call
