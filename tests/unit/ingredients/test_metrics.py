from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
import sys

import pytest
import torch
from torch import nn

from sacristan.configs.packages import install_command
from sacristan.experiments import Supervised, evaluate, fit
from sacristan.ingredients import Checkpointer, ConfigError, Loss, LossError
from sacristan.ingredients.losses import build_loss
from sacristan.ingredients.losses.measures import Measures, build_measures

# Found, but not imported: each worker collects all tests, and one of them runs these.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchmetrics") is None, reason="needs torchmetrics")

INPUTS = torch.randn(36, 4, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
USE = {
    "f1": {"name": "F1Score", "average": "macro"},
    "auc": "AUROC",
    "top2": {"name": "Accuracy", "top_k": 2, "average": "micro"},
    "each": {"name": "Recall", "average": "none"},
    "confusion": "ConfusionMatrix",
}


@pytest.fixture
def data(tensor_data):
    return tensor_data((INPUTS[:20], LABELS[:20]), (INPUTS[20:], LABELS[20:]))


def measured(data, use=USE, on_train=False):
    loss = build_loss(None, {}, None, data, "cpu")
    measures = build_measures(use, loss, data.classes, "cpu")
    return dataclasses.replace(loss, measures=measures, measures_training=on_train)


def make_model(num_outputs=3):
    torch.manual_seed(0)
    return nn.Linear(4, num_outputs)


def train(data, loss, **settings):
    model, log = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    settings = {"epochs": 2, "log": lambda *point: log.append(point), **settings}
    return model, log, fit(model, data, loss, optimizer, **settings)


def test_metrics_are_those_of_sklearn(data):
    from sklearn import metrics as sklearn_metrics

    loss, model = measured(data), make_model()
    found = evaluate(model, data.val, loss)
    outputs = model(INPUTS[20:]).detach()
    predicted, labels = outputs.argmax(1), LABELS[20:]
    recalls = sklearn_metrics.recall_score(labels, predicted, average=None)
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(labels, predicted, average="macro"))
    scores = outputs.softmax(1)
    assert found["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores, multi_class="ovr"), rel=1e-5)
    assert found["top2"] == pytest.approx(sklearn_metrics.top_k_accuracy_score(labels, outputs, k=2))
    assert [found[f"each/{name}"] for name in data.classes] == pytest.approx(recalls.tolist())
    assert (
        loss.measures.matrices()["confusion"].tolist() == sklearn_metrics.confusion_matrix(labels, predicted).tolist()
    )
    assert evaluate(model, data.val, loss) == found


def test_metrics_say_which_way_they_are_better(data):
    use = {"f1": "F1Score", "hamming": "HammingDistance", "confusion": "ConfusionMatrix"}
    assert measured(data, use).measures.directions == {"f1": "max", "hamming": "min"}


def test_metrics_can_be_monitored_and_change_nothing(data):
    plain, _, _ = train(data, build_loss(None, {}, None, data, "cpu"))
    model, log, result = train(data, measured(data, on_train=True), monitor="val/f1", mode="max")
    assert torch.equal(model.weight, plain.weight)
    assert result.best == max(value for name, value, _ in log if name == "val/f1")
    assert [step for name, _, step in log if name == "train/f1"] == [3, 6]
    with pytest.raises(
        ConfigError, match="got 'val/f2', which is not measured; there are: val/loss, val/accuracy, val/f1"
    ):
        train(data, measured(data), monitor="val/f2")


def test_metrics_of_training_batches_are_of_all_of_an_epoch(data):
    from sklearn import metrics as sklearn_metrics

    model = make_model()
    optimizer, log = torch.optim.SGD(model.parameters(), lr=0.0), []
    fit(model, data, measured(data, on_train=True), optimizer, log=lambda *point: log.append(point), epochs=1)
    predicted = model(INPUTS[:20]).argmax(1)
    expected = sklearn_metrics.f1_score(LABELS[:20], predicted, average="macro")
    assert [value for name, value, _ in log if name == "train/f1"] == pytest.approx([expected])


def test_metrics_of_training_batches_are_resumed_in_mid_epoch(data, tmp_path):
    _, expected, _ = train(data, measured(data, on_train=True))

    def die(name, value, step):
        if step == 5:
            raise KeyboardInterrupt

    keeper = Checkpointer(tmp_path, {}, interval_steps=1)
    with pytest.raises(KeyboardInterrupt):
        train(data, measured(data, on_train=True), log=die, log_interval=1, checkpointer=keeper)
    again = Checkpointer(tmp_path, {}, interval_steps=1, resume=True)
    _, log, _ = train(data, measured(data, on_train=True), checkpointer=again)
    assert [point for point in log if point[0] == "train/f1"] == [
        p for p in expected if p[0] == "train/f1" and p[2] == 6
    ]


def test_metrics_of_values_are_in_their_own_unit(tensor_data):
    values = INPUTS[:, :2] * 3 + 1
    data = tensor_data((INPUTS[:20], values[:20]), (INPUTS[20:], values[20:]))
    loss = measured(data, {"mse": "MeanSquaredError"})
    found = evaluate(make_model(2), data.val, loss)
    assert found["mse"] == pytest.approx(found["rmse"] ** 2, rel=1e-5)


def test_metrics_of_classes_of_pixels(tensor_data):
    targets = torch.arange(20 * 9).reshape(20, 3, 3) % 3
    data = tensor_data((torch.randn(20, 1, 3, 3), LABELS[:20]))
    loss = measured(data, {"iou": "JaccardIndex"})
    outputs = nn.functional.one_hot(targets, 3).permute(0, 3, 1, 2).float() * 9
    loss.measures.update(outputs, targets)
    assert loss.measures.compute() == {"iou": 1.0}


@pytest.mark.parametrize("shape", [(), (5,)])
def test_perplexity_is_that_of_the_mean_cross_entropy(data, shape):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(20, 3, *shape, generator=generator)
    targets = torch.randint(3, (20, *shape), generator=generator)
    targets[3] = -100
    loss = measured(data, {"perplexity": "Perplexity"})
    for part in (slice(0, 7), slice(7, 20)):
        loss.measures.update(outputs[part], targets[part])
    expected = nn.functional.cross_entropy(outputs, targets).exp().item()
    assert loss.measures.compute() == {"perplexity": pytest.approx(expected, rel=1e-5)}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ({"f1": "F1Scor"}, "metrics.use.f1: got 'F1Scor', which torchmetrics does not have; did you mean F1Score"),
        ({"f1": 3}, "metrics.use.f1: got 3, expected a class of torchmetrics, such as F1Score"),
        ({"f1": {"name": "F1Score", "avrage": "macro"}}, "metrics.use.f1.*avrage"),
        ({"f1": {"name": "F1Score", "average": "x"}}, "metrics.use.f1: F1Score refuses its arguments"),
    ],
)
def test_metric_that_cannot_be_is_refused(data, use, message):
    with pytest.raises((ConfigError, LossError), match=message):
        measured(data, use)


def test_metrics_without_torchmetrics_say_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(LossError, match=f"not installed; install it with: {re.escape(install_command('metrics'))}"):
        measured(data, {"f1": "F1Score"})


def test_metrics_of_training_batches_are_logged_once_though_the_validation_after_them_was_cut_off(data):
    loss = measured(data, on_train=True)
    task = Supervised(loss)
    for batch in data.train.epoch(1):
        task.loss(make_model(), batch)
    first, state = task.of_epoch(), task.state_dict()
    assert first["f1"] > 0
    resumed = Supervised(loss)
    resumed.load_state_dict(state)
    assert resumed.of_epoch() == task.of_epoch() == {}


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_mixed_targets_are_measured_by_their_larger_share(kind, data):
    loss = Loss(nn.CrossEntropyLoss() if kind == "classes" else nn.BCEWithLogitsLoss(), kind, 3)
    outputs, hard = make_model()(INPUTS), nn.functional.one_hot(LABELS, 3)
    mixed = 0.7 * hard.float() + 0.3 * hard.flip(0)
    use = {name: entry for name, entry in USE.items() if name != "top2"}
    expected, found = (build_measures(use, loss, data.classes, "cpu") for _ in range(2))
    expected.update(outputs, LABELS if kind == "classes" else hard)
    found.update(outputs, mixed)
    assert found.compute() == expected.compute()


def test_perplexity_by_name_is_the_exponential_of_the_loss(data):
    found = evaluate(make_model(), data.val, measured(data, {"ppl": "Perplexity"}))
    assert found["ppl"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)


def test_perplexity_of_tokens_leaves_ignored_ones_out(tensor_data):
    scores = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(21).reshape(3, 7) % 5
    targets[1, 3:] = -100
    loss = Loss(nn.CrossEntropyLoss(), "classes", 5)
    measures = build_measures({"ppl": {"name": "torchmetrics.text:Perplexity"}}, loss, (), "cpu")
    for row in range(3):
        measures.update(scores[row : row + 1], targets[row : row + 1])
    expected = nn.functional.cross_entropy(scores, targets).exp().item()
    assert measures.compute()["ppl"] == pytest.approx(expected, rel=1e-5)


def test_perplexity_of_values_is_refused():
    with pytest.raises(
        LossError, match=r"metrics\.use\.ppl: Perplexity is of classes or tokens, but the loss is of values"
    ):
        build_measures({"ppl": "Perplexity"}, Loss(nn.MSELoss(), "values", 1), (), "cpu")


def test_batches_held_back_are_measured_at_once_and_come_to_the_same(data):
    """As on a GPU, where an update may wait for the device."""
    loss, model = measured(data), make_model()
    batches = [(model(inputs), labels) for inputs, labels in zip(INPUTS.split(5), LABELS.split(5), strict=True)]
    at_once = Measures(loss.measures.clone().metrics, loss, data.classes, held_back=3)
    updates = []
    for count, (outputs, labels) in enumerate(batches, 1):
        loss.measures.update(outputs, labels)
        at_once.update(outputs, labels)
        updates.append(next(iter(at_once.metrics.values())).update_count)
        assert not at_once.is_empty
        if count == 5:  # a state has what is held back, too
            assert at_once.state_dict().keys() == loss.measures.state_dict().keys()
            assert next(iter(at_once.metrics.values())).update_count == 5
    assert updates == [0, 0, 3, 3, 3, 5, 5, 8]
    assert at_once.compute() == loss.measures.compute()
    at_once.update(*batches[0])
    at_once.reset()
    assert at_once.is_empty
