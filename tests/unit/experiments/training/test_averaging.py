from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.experiments import Callback, Task, evaluate, fit
from sacristan.experiments.training.callbacks import Averaging
from sacristan.ingredients import Checkpointer, ConfigError
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.models.modules import Freezing

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


class Autoencoder(Task):
    def loss(self, model, batch):
        return (model(batch[0]) - batch[0]).square().mean()


class Twice(Callback):
    """Ends each epoch once more, as where a training is resumed between the end of an epoch and its validation."""

    def __init__(self, averaging):
        self.averaging = averaging

    def after_epoch(self, trainer):
        self.averaging.after_epoch(trainer)
        again = Averaging("swa", 0.9, 2)
        again.load_state_dict(self.averaging.state_dict())
        evaluated = trainer.evaluated
        again.start(trainer)
        again.after_epoch(trainer)
        same(again.state_dict()["averaged"], self.averaging.state_dict()["averaged"])
        trainer.evaluated = evaluated


class Recording(Callback):
    """Keeps the weights after each step and each epoch, and what is validated."""

    def __init__(self):
        self.steps, self.epochs, self.evaluated, self.metrics_of = [], [], [], []

    def after_step(self, trainer):
        self.steps.append(copy_of(trainer.model))

    def after_validation(self, trainer, metrics):
        self.epochs.append(copy_of(trainer.model))
        self.evaluated.append(copy_of(trainer.evaluated))
        self.metrics_of.append((dict(metrics), evaluate(trainer.evaluated, trainer.data.val, trainer.task)))


def same(one, other):
    assert (one or {}).keys() == (other or {}).keys()
    assert all(torch.equal(value, other[name]) for name, value in (one or {}).items())


def copy_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture
def data(tensor_data):
    targets = torch.zeros(40, dtype=torch.int64)
    return tensor_data((INPUTS[:24], targets[:24]), (INPUTS[24:], targets[24:]), task="classification", classes=["a"])


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 4))


def train(data, model=None, **settings):
    model, seen = model or make_model(), Recording()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
    settings = {"epochs": 4, "callbacks": [seen], **settings}
    fit(model, data, Autoencoder(), optimizer, log=lambda *point: None, **settings)
    return model, seen


def test_ema_is_that_of_all_steps_and_is_validated(data):
    _, seen = train(data, average="ema", average_decay=0.5)
    expected = seen.steps[0]
    for state in seen.steps[1:]:
        expected = {name: 0.5 * value + 0.5 * state[name] for name, value in expected.items()}
    names = [name for name in expected if "num_batches" not in name]
    for name in names:
        torch.testing.assert_close(seen.evaluated[-1][name], expected[name])
    assert not torch.equal(seen.evaluated[-1]["0.weight"], seen.epochs[-1]["0.weight"])
    assert all(logged["val/loss"] == again["loss"] for logged, again in seen.metrics_of)


def test_ema_leaves_whole_numbers_whole(data):
    model = make_model()
    model[0].register_buffer("places", torch.arange(9))
    _, seen = train(data, model, average="ema", average_decay=0.999)
    assert torch.equal(seen.evaluated[-1]["0.places"], torch.arange(9))
    assert seen.evaluated[-1]["1.num_batches_tracked"] == 12


def test_swa_is_the_mean_of_the_last_epochs_with_statistics_of_its_own(data):
    _, seen = train(data, average="swa", average_start=3)
    assert all(torch.equal(seen.evaluated[1][name], value) for name, value in seen.epochs[1].items())
    found, last = seen.evaluated[-1], seen.epochs[2:]
    for name in ("0.weight", "1.bias", "3.weight"):
        torch.testing.assert_close(found[name], torch.stack([state[name] for state in last]).mean(0))
    hidden = INPUTS[:24] @ found["0.weight"].T + found["0.bias"]
    batches = hidden.split(8)
    torch.testing.assert_close(found["1.running_mean"], hidden.mean(0))
    torch.testing.assert_close(found["1.running_var"], torch.stack([batch.var(0) for batch in batches]).mean(0))


def test_swa_counts_an_epoch_once(data):
    _, once = train(data, average="swa", average_start=2)
    averaging, seen = Averaging("swa", 0.9, 2), Recording()
    train(data, callbacks=[averaging, Twice(averaging), seen])
    assert all(torch.equal(value, once.evaluated[-1][name]) for name, value in seen.evaluated[-1].items())


def test_swa_begins_with_the_last_quarter(data):
    _, seen = train(data, average="swa", epochs=8)
    same = [
        torch.equal(one["0.weight"], other["0.weight"]) for one, other in zip(seen.evaluated, seen.epochs, strict=True)
    ]
    assert same == [True] * 7 + [False]


@pytest.mark.parametrize("average", ["ema", "swa"])
def test_averaging_leaves_the_training_as_it_is(data, average):
    plain, _ = train(data)
    averaged, _ = train(data, average=average, average_start=2)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in averaged.state_dict().items())


@pytest.mark.parametrize("average", ["ema", "swa"])
def test_best_holds_the_average_and_last_holds_both(data, tmp_path, average):
    model, seen = train(data, average=average, average_start=2, checkpointer=Checkpointer(tmp_path, {}))
    best, last = load_checkpoint(tmp_path / "best.pt"), load_checkpoint(tmp_path / "last.pt")
    assert best["epoch"] > 2
    assert not torch.equal(best["model"]["0.weight"], seen.epochs[best["epoch"] - 1]["0.weight"])
    assert all(torch.equal(value, seen.evaluated[best["epoch"] - 1][name]) for name, value in best["model"].items())
    assert best["model"].keys() == last["model"].keys()
    assert all(torch.equal(value, last["model"][name]) for name, value in model.state_dict().items())
    kept = last["callbacks"]["1 Averaging"]["averaged"]
    assert all(torch.equal(value, kept[f"module.{name}"]) for name, value in seen.evaluated[-1].items())


@pytest.mark.parametrize("average", ["ema", "swa"])
def test_frozen_parts_are_bit_equal_in_the_average(data, average):
    model = make_model()
    with torch.no_grad():
        model[1].running_mean.fill_(0.5)
    before = copy_of(model)
    Freezing(model, ["0", "1"])
    _, seen = train(data, model, average=average, average_start=2)
    for name in before:
        if name.startswith(("0.", "1.")):
            assert torch.equal(seen.evaluated[-1][name], before[name]), name


@pytest.mark.slow
def test_average_of_a_compiled_model_has_plain_names(data):
    _, seen = train(data, torch.compile(make_model(), backend="eager"), average="ema", epochs=1)
    assert "0.weight" in seen.evaluated[-1]


def test_average_without_a_validation_part_raises(data, tensor_data):
    data = tensor_data((INPUTS, torch.zeros(40, dtype=torch.int64)), task="classification", classes=["a"])
    with pytest.raises(ConfigError, match=r"training.average: there is no validation part"):
        train(data, average="ema")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": "mean"}, "training.average: got 'mean', expected ema, swa or None"),
        ({"average_decay": 1.0}, "training.average_decay: got 1.0, expected more than 0 and less than 1"),
        ({"average_start": 0}, "training.average_start: got 0, expected an epoch of the training: 1 to 4"),
        ({"average_start": 5}, "training.average_start: got 5, expected an epoch of the training: 1 to 4"),
    ],
)
def test_average_that_cannot_be_raises(data, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(data, **settings)


class Scaled(Autoencoder):
    """Has a parameter of its own, a factor of the outputs."""

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)

    def loss(self, model, batch):
        return (self.module.weight * model(batch[0]) - batch[0]).square().mean()


def test_parameters_of_the_task_are_measured_and_kept_as_they_are_and_not_averaged(data, tmp_path):
    model, task, seen = make_model(), Scaled(), Recording()
    optimizer = torch.optim.SGD([*model.parameters(), *task.module.parameters()], lr=0.2)
    scales = []
    seen.after_epoch = lambda trainer: scales.append(task.module.weight.item())
    settings = {"epochs": 4, "average": "ema", "average_decay": 0.5, "callbacks": [seen]}
    fit(model, data, task, optimizer, log=lambda *point: None, checkpointer=Checkpointer(tmp_path, {}), **settings)
    best = load_checkpoint(tmp_path / "best.pt")
    assert len(set(scales)) == 4
    assert best["loss"]["weight"].item() == scales[best["epoch"] - 1]
    same(best["model"], seen.evaluated[best["epoch"] - 1])
    assert all(logged["val/loss"] == again["loss"] for logged, again in seen.metrics_of)
