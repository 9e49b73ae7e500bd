"""Optimizers that evaluate other weights than they train, such as schedule-free ones."""

import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Callback, Task, evaluate, fit
from sacristan.ingredients import Checkpointer, ConfigError, Loss, MixedPrecision
from sacristan.ingredients.checkpoints.files import load_checkpoint, load_weights, read_weights
from sacristan.ingredients.datasets.epochs import shuffled
from sacristan.ingredients.inspection.searches import try_rates
from tests.optimizers import ScheduleFreeSGD

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
EPOCHS = 3


class Classify(Task):
    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])


class States(Callback):
    """Notes the weights that are validated, and copies each state of a training."""

    def __init__(self, keeper, folder):
        self.keeper, self.folder, self.validated = keeper, folder, []

    def after_step(self, trainer):
        self.keeper.wait()
        if self.keeper.last_path.exists():
            shutil.copy(self.keeper.last_path, self.folder / f"{self.keeper.newest_step}.pt")

    def after_validation(self, trainer, metrics):
        self.validated.append(copy_of(trainer.evaluated))
        assert metrics["val/loss"] == evaluate(trainer.evaluated, trainer.data.val, trainer.task)["loss"]


@pytest.fixture
def data(tensor_data):
    return tensor_data((INPUTS[:24], LABELS[:24]), (INPUTS[24:], LABELS[24:]), shuffle=True)


def copy_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def train(data, keeper, *, callbacks=(), model=None, **settings):
    model, points = model or make_model(), []
    optimizer = ScheduleFreeSGD(model.parameters(), settings.pop("lr", 0.1))
    settings = {"epochs": EPOCHS, "log_interval": 1, "checkpointer": keeper, "callbacks": callbacks, **settings}
    result = fit(model, data, Classify(), optimizer, log=lambda *point: points.append(point), **settings)
    return model, optimizer, points, result


def by_hand(data):
    """Train as the authors' page says; return the weights to evaluate after each epoch."""
    model, evaluated = make_model(), []
    model[1].p = 0.0
    optimizer = ScheduleFreeSGD(model.parameters())
    for epoch in range(1, EPOCHS + 1):
        optimizer.train()
        for rows in shuffled(24, 24, 0, epoch).split(8):
            optimizer.zero_grad()
            functional.cross_entropy(model(INPUTS[:24][rows]), LABELS[:24][rows]).backward()
            optimizer.step()
        optimizer.eval()
        evaluated.append(copy_of(model))
    return evaluated


def test_weights_to_evaluate_are_those_of_a_loop_by_hand(data, tmp_path):
    model, states = make_model(), States(Checkpointer(tmp_path / "c", {}), tmp_path)
    model[1].p = 0.0
    train(data, states.keeper, model=model, callbacks=[states])
    for found, expected in zip(states.validated, by_hand(data), strict=True):
        torch.testing.assert_close(found, expected)


def test_best_newest_and_final_weights_are_those_measured(data, tmp_path):
    keeper = Checkpointer(tmp_path / "c", {})
    states = States(keeper, tmp_path)
    model, optimizer, points, result = train(data, keeper, callbacks=[states])
    assert [group["train_mode"] for group in optimizer.param_groups] == [False]
    assert same(copy_of(model), states.validated[-1])
    assert same(load_checkpoint(keeper.best_path)["model"], states.validated[result.best_epoch - 1])
    assert same(read_weights(keeper.last_path), states.validated[-1])
    other = make_model()
    load_weights(other, keeper.last_path, {})
    measured = [value for name, value, _ in points if name == "val/loss"]
    assert evaluate(other, data.val, Classify())["loss"] == measured[-1]
    keeper.restore_best(model)
    assert evaluate(model, data.val, Classify())["loss"] == result.best == min(measured)


def test_training_goes_on_with_the_same_bits_from_each_state(data, tmp_path):
    keeper = Checkpointer(tmp_path / "c", {}, best=False, interval_steps=1)
    states = States(keeper, tmp_path)
    model, _, points, _ = train(data, keeper, callbacks=[states])
    for step in (1, 3, 4, 8):
        folder = tmp_path / f"again-{step}"
        folder.mkdir()
        shutil.copy(tmp_path / f"{step}.pt", folder / "last.pt")
        again = Checkpointer(folder, {}, best=False, interval_steps=1, resume=True)
        resumed, _, later, _ = train(data, again, callbacks=[States(again, folder)])
        assert later == [point for point in points if point[2] > step]
        assert same(copy_of(resumed), copy_of(model))
        assert same(load_checkpoint(again.last_path)["trained"], load_checkpoint(keeper.last_path)["trained"])


def test_validations_and_states_change_nothing_of_the_training(data, tmp_path):
    often = train(data, Checkpointer(tmp_path / "often", {}, interval_steps=1))
    seldom = train(data, None, val_interval=EPOCHS)
    assert same(copy_of(often[0]), copy_of(seldom[0]))
    assert [point for point in often[2] if "train" in point[0]] == [point for point in seldom[2] if "train" in point[0]]


def test_fork_with_another_rate_keeps_the_number_of_steps_and_the_weights_to_train(data, tmp_path):
    def config(lr):
        return {"optimizer": {"name": "own:ScheduleFreeSGD", "lr": lr}, "training": {"epochs": EPOCHS}}

    class Look(Callback):
        def start(self, trainer):
            (group,) = trainer.optimizers[""].param_groups
            self.found = copy_of(trainer.model), group["k"], group["lr"], group["train_mode"]

    keeper = Checkpointer(tmp_path / "c", config(0.1))
    train(data, keeper, epochs=1)
    look = Look()
    fork = Checkpointer(tmp_path / "fork", config(0.05), start=keeper.last_path)
    train(data, fork, lr=0.05, callbacks=[look])
    assert same(look.found[0], load_checkpoint(keeper.last_path)["trained"])
    assert look.found[1:] == (3, 0.05, True)


def test_rollback_returns_to_the_weights_to_train(data, tmp_path):
    class Bad(Callback):
        def before_step(self, trainer, optimizer):
            if trainer.place.step == 3 and not hasattr(self, "before"):
                self.before = copy_of(trainer.model)
                trainer.model[0].weight.grad.fill_(float("inf"))

        def after_step(self, trainer):
            if trainer.place.step == 4:
                self.after = copy_of(trainer.model)

    bad = Bad()
    train(data, Checkpointer(tmp_path / "c", {}), callbacks=[bad], on_nan="rollback")
    assert same(bad.after, bad.before)


def test_average_of_weights_that_are_averages_is_refused(data):
    message = "training.average: got 'ema', but ScheduleFreeSGD evaluates its own average"
    with pytest.raises(ConfigError, match=message):
        train(data, None, average="ema")


def test_rates_are_tried_on_the_weights_to_train(data):
    model = make_model()
    before = copy_of(model)
    optimizer = ScheduleFreeSGD(model.parameters())
    loss = Loss(nn.CrossEntropyLoss(), "classes", 3)
    assert try_rates(model, loss, data.train, optimizer, MixedPrecision(torch.device("cpu"))).losses
    assert same(copy_of(model), before)


def test_statistics_of_batch_norm_of_the_other_weights_are_warned_of(data, caplog):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    train(data, None, model=model, epochs=1)
    assert "ScheduleFreeSGD evaluates other weights than it trains" in caplog.text
    assert "BatchNorm1d (1)" in caplog.text
