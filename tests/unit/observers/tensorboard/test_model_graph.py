"""The search for a model's graph leaves everything as it was, bit for bit."""

import copy
import random

import numpy as np
import pytest
import torch
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch import nn

from sacristan.observers.tensorboard.run_events import graph_of


class Noisy(nn.Module):
    """Draws from every stream, changes its input in place, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        inputs += random.random() + float(np.random.rand()) + torch.rand(())
        return self.layers(inputs)


def state_of(model, inputs):
    return {
        "weights": copy.deepcopy(model.state_dict()),
        "gradients": [parameter.grad.clone() for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "inputs": inputs.clone(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].copy(),
        "python": random.getstate(),
    }


def assert_same(before, after):
    if isinstance(before, dict):
        assert before.keys() == after.keys()
        for key in before:
            assert_same(before[key], after[key])
    elif isinstance(before, list):
        for a, b in zip(before, after, strict=True):
            assert_same(a, b)
    elif isinstance(before, torch.Tensor | np.ndarray):
        assert before.tolist() == after.tolist()
    else:
        assert before == after


@pytest.mark.parametrize("training", [True, False])
def test_graph_leaves_model_streams_and_inputs_as_they_were(training):
    model, inputs, called = Noisy(), torch.randn(5, 3), []
    model(inputs.clone()).sum().backward()
    model.train(training)
    model.layers[2].train(not training)
    model.register_forward_hook(lambda *_: called.append("forward"))
    model.layers[0].register_forward_pre_hook(lambda *_: called.append("before"))
    before = state_of(model, inputs)
    graph = GraphDef.FromString(graph_of(model, inputs))
    assert_same(before, state_of(model, inputs))
    assert called == []
    assert torch.is_grad_enabled()
    names = {node.name for node in graph.node}
    assert any("Linear" in name for name in names), names


def test_graph_of_many_inputs_and_of_a_compiled_model_is_found():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b

    assert GraphDef.FromString(graph_of(Sum(), (torch.zeros(2), torch.ones(2)))).node
    assert GraphDef.FromString(graph_of(torch.compile(nn.Linear(3, 2), backend="eager"), torch.zeros(1, 3))).node
