"""Whatever only looks at a training leaves its random streams as they are, also where the task draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.experiments import Callback, Task, evaluate, fit, predict
from sacristan.experiments.training.inspection import Probing
from sacristan.experiments.training.loop import evaluate_and_predict
from sacristan.ingredients import Checkpointer, seed_globals

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


def draw():
    """Draw from each of the global generators; numbers from 0 to 2."""
    return torch.rand(()) + random.random() + float(np.random.random()) - 1.0


class Drawing(Task):
    """Draws wherever a task may, as that of a VAE or of a diffusion model does."""

    def loss(self, model, batch):
        return (model(batch[0] * draw()) - batch[0]).square().mean()

    def predict(self, model, batch):
        return {"noisy": model(batch[0] * draw())}


class Looking(Callback):
    """Draws between epochs, and evaluates and predicts."""

    observes = True

    def start(self, trainer):
        draw()

    def after_epoch(self, trainer):
        draw()

    def end(self, trainer):
        draw()

    def after_validation(self, trainer, metrics):
        draw()
        for look in (evaluate, predict, evaluate_and_predict):
            look(trainer.model, trainer.data.val, trainer.task)


class Unchecked(Drawing):
    """A task whose check before the first step draws nothing."""

    def check(self, model, data, amp):
        return ["loss"]


@pytest.fixture
def data(tensor_data):
    targets = torch.zeros(40, dtype=torch.int64)
    return tensor_data((INPUTS[:24], targets[:24]), (INPUTS[24:], targets[24:]), task="classification", classes=["a"])


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 4))


def train(data, task=None, **settings):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seed_globals(1)
    fit(
        model,
        data,
        task or Drawing(),
        optimizer,
        log=lambda *point: None,
        **{"epochs": 4, **settings},
    )
    return nn.utils.parameters_to_vector(model.parameters()).detach(), draw()


SETTINGS = {
    "val_interval": {"val_interval": 2},
    "swa": {"average": "swa", "average_start": 2},
    "ema": {"average": "ema"},
    "patience": {"patience": 50},
    "monitor": {"monitor": "val/loss", "mode": "max"},
    "log_interval": {"log_interval": 1},
    "inference_mode": {"inference_mode": True},
    "check": {"task": Unchecked()},
    "callback": {"callbacks": [Looking()]},
    "on_nan": {"on_nan": "skip"},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("setting", SETTINGS)
def test_setting_that_only_looks_leaves_weights_and_streams_as_they_are(data, setting):
    weights, drawn = train(data)
    others, drawn_after = train(data, **SETTINGS[setting])
    assert torch.equal(others, weights)
    assert drawn_after == drawn


def test_checkpoints_and_probes_leave_weights_and_streams_as_they_are(data, tmp_path):
    weights, drawn = train(data)
    keeper = Checkpointer(tmp_path, {}, interval_steps=2)
    others, drawn_after = train(
        data, checkpointer=keeper, callbacks=[Probing(None, ["*"], 2, ["activations", "gradients", "weights"])]
    )
    assert torch.equal(others, weights)
    assert drawn_after == drawn


def test_evaluation_draws_the_same_each_time(data):
    model = make_model()
    first = evaluate(model, data.val, Drawing())
    draw()
    assert evaluate(model, data.val, Drawing()) == first
