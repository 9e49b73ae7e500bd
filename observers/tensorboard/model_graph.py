"""The graph of a model, as TensorBoard shows it, found without a trace of the search in the model or the training."""

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
    """Return the graph of `model` as a serialized GraphDef.

    A copy of the model takes one step forward, in evaluation mode, without gradients and without its hooks. Random
    streams of torch, numpy and Python are left as they were.

    Args:
        model: A module of torch.
        inputs: A tensor, or a tuple of them.

    Raises:
        Exception: If the model cannot be copied or traced.
    """
    import torch
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef
    from torch.utils.tensorboard._pytorch_graph import parse

    # A compiled module holds the one it was made of.
    model = copy.deepcopy(getattr(model, "_orig_mod", model)).eval()
    for module in model.modules():
        for name in _HOOKS:
            getattr(module, name).clear()
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    given = tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in given)
    devices = {value.device.index or 0 for value in given if isinstance(value, torch.Tensor) and value.is_cuda}
    with (
        torch.random.fork_rng(devices=sorted(devices)),
        _other_streams_kept(),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        # torch.jit is deprecated since 2.13; TensorBoard's form of a graph has no other source yet.
        warnings.simplefilter("ignore")
        trace = torch.jit.trace(model, given, check_trace=False)
        graph = trace.graph
        torch._C._jit_pass_inline(graph)
        nodes = parse(graph, trace)
    return GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()


@contextlib.contextmanager
def _other_streams_kept() -> Iterator[None]:
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
