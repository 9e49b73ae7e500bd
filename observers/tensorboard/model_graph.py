"""The graph of a model for TensorBoard, traced without side effects on the model or the training."""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["graph_of"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def graph_of(model: Any, inputs: Any) -> bytes:
    """Trace a model, and return its graph as a serialized GraphDef.

    A copy of the model runs forward once, in evaluation mode, without gradients or hooks. The random streams of torch,
    numpy and Python are restored.

    Args:
        model: A module of torch.
        inputs: A tensor, or a tuple of them, that the model takes.

    Raises:
        Exception: If the model cannot be copied or traced.
    """
    import torch
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef
    from torch.utils.tensorboard._pytorch_graph import parse

    # A compiled module holds the original.
    model = copy.deepcopy(getattr(model, "_orig_mod", model)).eval()
    for module in model.modules():
        for name in _HOOKS:
            getattr(module, name).clear()
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    copies = tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values)
    devices = {value.device.index or 0 for value in copies if isinstance(value, torch.Tensor) and value.is_cuda}
    with (
        torch.random.fork_rng(devices=sorted(devices)),
        _kept_streams(),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        # torch.jit is deprecated since 2.13, but nothing else makes TensorBoard's form of a graph yet.
        warnings.simplefilter("ignore")
        trace = torch.jit.trace(model, copies, check_trace=False)
        graph = trace.graph
        torch._C._jit_pass_inline(graph)
        nodes = parse(graph, trace)
    return GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()


@contextlib.contextmanager
def _kept_streams() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
