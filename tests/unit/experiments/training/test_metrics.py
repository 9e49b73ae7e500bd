from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.experiments import RunningMetrics
from sacristan.experiments.training.meters import metric_names, on_device
from sacristan.ingredients import Loss

SCORES = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
CLASSES = Loss(nn.CrossEntropyLoss(), "classes", 2)
VALUES = Loss(nn.MSELoss(), "values", 1)


def measured(loss, *batches):
    metrics = RunningMetrics(loss)
    for outputs, targets in batches:
        metrics.update(outputs, targets, loss(outputs, targets))
    return metrics.compute()


def test_metrics_without_a_batch_are_empty():
    assert measured(CLASSES) == {}


@pytest.mark.parametrize(
    ("loss", "targets"), [(CLASSES, torch.tensor([0, 1, 1])), (VALUES, torch.tensor([[1.0], [2.0], [3.0]]))]
)
def test_metric_names_are_those_of_what_is_measured(loss, targets):
    found = measured(loss, (SCORES[:, : loss.num_outputs], targets))
    assert tuple(found) == metric_names(loss)
    assert loss.metric in found


def test_accuracy_is_a_plain_fraction():
    assert measured(CLASSES, (SCORES, torch.tensor([0, 1, 1])))["accuracy"] == 2 / 3


def test_accuracy_leaves_out_targets_that_the_loss_ignores():
    ignoring = Loss(nn.CrossEntropyLoss(ignore_index=1), "classes", 2)
    assert measured(ignoring, (SCORES, torch.tensor([0, 1, 0])))["accuracy"] == 1.0
    assert measured(ignoring, (SCORES, torch.tensor([0, 1, 1])), (SCORES[1:2], torch.tensor([0])))["accuracy"] == 0.5


def test_metrics_of_batches_of_different_size_are_those_of_all_samples():
    targets = torch.tensor([0, 1, 1])
    parts = measured(CLASSES, (SCORES[:1], targets[:1]), (SCORES[1:], targets[1:]))
    assert parts == pytest.approx(measured(CLASSES, (SCORES, targets)))


def test_metrics_of_a_batch_that_counts_nothing_are_those_of_the_others():
    loss = Loss(nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0])), "classes", 2)
    one, other = (SCORES[:2], torch.tensor([1, 1])), (SCORES[2:], torch.tensor([0]))
    assert measured(loss, one, other)["loss"] == measured(loss, one)["loss"]


def test_r2_of_a_perfect_prediction_far_from_zero_is_one():
    targets = torch.tensor([[1e4], [1e4 + 1], [1e4 + 2]])
    assert measured(VALUES, (targets, targets))["r2"] == 1.0


def test_r2_of_the_mean_is_zero():
    targets = torch.tensor([[1.0], [2.0], [6.0]])
    assert measured(VALUES, (torch.full((3, 1), 3.0), targets))["r2"] == pytest.approx(0.0)


def test_errors_are_in_the_own_unit_of_the_targets():
    loss = Loss(nn.MSELoss(), "values", 1, torch.tensor([100.0]), torch.tensor([10.0]))
    found = measured(loss, (torch.tensor([[0.0], [0.0]]), torch.tensor([[0.3], [-0.4]])))
    assert found["mae"] == pytest.approx(3.5)
    assert found["rmse"] == pytest.approx(12.5**0.5)
    assert found["loss"] == pytest.approx(0.125)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("kind", "targets"), [("classes", torch.zeros(4).long()), ("values", torch.zeros(4, 3))])
def test_adding_a_batch_on_cuda_waits_for_nothing(kind, targets):
    loss = Loss(nn.CrossEntropyLoss() if kind == "classes" else nn.MSELoss(), kind, 3)
    outputs, targets = torch.randn(4, 3).cuda(), targets.cuda()
    metrics, batch_loss = RunningMetrics(loss), loss(outputs, targets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        metrics.update(outputs, targets, batch_loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("value", [3, 2.5, torch.tensor(3), torch.tensor(2.5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scalar_on_a_device_is_the_number_in_that_type(value, dtype):
    found = on_device(value, dtype, torch.device("cpu"))
    assert (found.dtype, found.ndim, float(found)) == (dtype, 0, float(value))
