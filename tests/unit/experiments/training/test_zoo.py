"""Tasks of many kinds, `ZOO`, come to what a loop by hand does, whatever shares of a batch they see."""

from __future__ import annotations

import functools
from typing import ClassVar

import pytest
import torch
from torch import nn

from sacristan.experiments import Task, fit
from sacristan.ingredients import ConfigError, MixedPrecision
from sacristan.ingredients.datasets.epochs import shuffled
from tests import zoo
from tests.ranked_cases import INPUTS, LABELS, ZOO, train
from tests.unit.experiments.training.test_ranked import trained_by
from tests.zoo import make_model

TRAIN, VAL = slice(0, 30), slice(30, 43)
BATCH, EPOCHS, LOG_INTERVAL = 8, 2, 2


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    """Return what some ranks came to, by their number."""
    return functools.cache(lambda num: trained_by(num, tmp_path_factory.mktemp("zoo") / "found.pt", "zoo"))


def values_of(name, scores, targets):
    """Return the gradient's loss, and what is logged of a batch in training and in validation."""
    wrong = nn.functional.cross_entropy(scores, targets, reduction="none")
    right = (scores.argmax(1) == targets).float().mean()
    if name == "sum of its own":
        logged = {"loss": wrong.mean(), "right": right, "hits": right}
        return wrong.sum(), logged, logged
    if name == "sum as before":
        return wrong.sum(), {"loss": wrong.mean()}, {"loss": wrong.mean()}
    if name in ("sum by label", "mean of its own"):
        whole = (wrong * targets).sum()
        logged = {"loss": whole / targets.sum(), "labels": (targets * targets).sum() / targets.sum()}
        return whole if name == "sum by label" else logged["loss"], logged, logged
    if name == "sum":
        return wrong.sum(), {"loss": wrong.mean()}, {"loss": wrong.mean(), "accuracy": right}
    if name == "sum and a mean beside":
        logged = {"loss": wrong.mean(), "right": right}
        return wrong.sum(), logged, {**logged, "accuracy": right}
    if name == "penalised":
        size = scores.square().mean()
        logged = {"loss": wrong.mean() + size, "size": size}
        return logged["loss"], logged, {**logged, "accuracy": right}
    if name == "measured":
        sure = scores.softmax(1).amax(1).mean()
        return wrong.mean(), {"loss": wrong.mean()}, {"loss": wrong.mean(), "accuracy": right, "sure": sure}
    weights = 1 + 9 * targets
    loss = (wrong * weights).sum() / weights.sum()
    return loss, {"loss": loss}, {"loss": loss, "accuracy": right}


def descend(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def ordinary(name):
    """Return the parameters of a case, its step on a batch, and its measurements."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 if "sum" in name else 0.1, momentum=0.5)

    def step(inputs, targets):
        loss, values, _ = values_of(name, model(inputs), targets)
        descend(optimizer, loss)
        return values

    return model.parameters(), step, lambda inputs, targets: values_of(name, model(inputs), targets)[2]


def adversarial():
    model, optimizers = zoo.Adversarial().parts()
    generator, critic = model["generator"], model["critic"]

    def made(inputs):
        return torch.cat([inputs[:, :2], generator(inputs[:, :2])], 1)

    def step(inputs, targets):
        for _ in range(2):
            fake = made(inputs).detach()
            slope = zoo.penalty(critic, fake)
            judged = critic(fake).mean() - critic(inputs).mean() + slope
            descend(optimizers["critic"], judged)
            slopes.append(slope.item())
        loss = -critic(made(inputs)).mean()
        descend(optimizers["generator"], loss)
        values = {"loss": loss, "critic_loss": judged, "size": made(inputs).square().mean()}
        return {**values, "slope": torch.tensor(slopes[-2:]).mean()}

    slopes = []
    return model.parameters(), step, lambda inputs, targets: {"loss": (inputs - made(inputs)).square().mean()}


def actor_and_critic():
    task = zoo.ActorCritic()
    model, optimizers = task.parts()

    def step(*batch):
        whole = [task.losses(model, batch) for _ in optimizers]
        for losses, name in zip(whole, optimizers, strict=True):
            mine = [*model[name].parameters()]
            for parameter, gradient in zip(mine, torch.autograd.grad(losses[name], mine), strict=True):
                parameter.grad = gradient
        for optimizer in optimizers.values():
            optimizer.step()
        return {"loss": whole[0]["actor"], "value_loss": whole[0]["critic"]}

    return model.parameters(), step, lambda *batch: task.measure(model, batch)


def policy():
    task = zoo.Policy()
    model, optimizer = task.parts()

    def step(*batch):
        chosen = task.rolled_out(model, batch)
        for _ in range(2):
            loss = task.loss(model, chosen)
            descend(optimizer, loss)
        return {"loss": loss, "reward": batch[0][:, 1].mean()}

    return model.parameters(), step, lambda *batch: task.measure(model, batch)


def two_optimizers():
    task = zoo.Muon()
    model, optimizers = task.parts()

    def step(*batch):
        model.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return {"loss": loss}

    return model.parameters(), step, lambda *batch: {"loss": task.loss(model, batch)}


def sharpness():
    task = zoo.Sharp()
    model, optimizer = task.parts()
    parameters, rate = [*model.parameters()], optimizer.param_groups[0]["lr"]

    def step(*batch):
        first = task.loss(model, batch)
        gradients = torch.autograd.grad(first["loss"], parameters)
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        before = [each.detach().clone() for each in parameters]
        with torch.no_grad():
            for each, gradient in zip(parameters, gradients, strict=True):
                each += 0.05 * gradient / norm
        second = task.loss(model, batch)
        gradients = torch.autograd.grad(second["loss"], parameters)
        with torch.no_grad():
            for each, old, gradient in zip(parameters, before, gradients, strict=True):
                each.copy_(old - rate * gradient)
        return {"loss": first["loss"], "size": (first["size"] + second["size"]) / 2}

    return parameters, step, lambda *batch: task.loss(model, batch)


def line_search():
    task = zoo.Refined()
    model, optimizer = task.parts()

    def step(*batch):
        def closure():
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            return loss

        return {"loss": optimizer.step(closure)}

    return model.parameters(), step, lambda *batch: {"loss": task.loss(model, batch)}


def uncertainty():
    task = zoo.Uncertain()
    model, optimizer = task.parts()

    def values(*batch):
        first, second = zoo.objectives(model, batch)
        one, two = task.module.weight[:, 0]
        return {"loss": first / one.exp() + one + second / two.exp() + two, "first": first, "second": second}

    def step(*batch):
        found = values(*batch)
        descend(optimizer, found["loss"])
        return found

    return [*model.parameters(), *task.module.parameters()], step, values


HANDS = {
    "adversarial": adversarial,
    "actor and critic": actor_and_critic,
    "policy": policy,
    "two optimizers": two_optimizers,
    "sharpness": sharpness,
    "line search": line_search,
    "uncertainty": uncertainty,
}


def by_hand(case):
    """Train on whole batches; return the weights, and the logged values by name and step."""
    name, _, accumulate = case.rpartition(", accumulate ")
    parameters, take, measure = HANDS[name]() if name in HANDS else ordinary(name)
    parameters, logged, since = [*parameters], {}, []
    step, steps = 0, EPOCHS * -(-4 // int(accumulate))
    for epoch in (1, 2):
        for rows in shuffled(30, 30, 0, epoch).split(BATCH * int(accumulate)):
            values = take(INPUTS[TRAIN][rows], LABELS[TRAIN][rows])
            since.append({key: value.item() for key, value in values.items()})
            step += 1
            if step % LOG_INTERVAL == 0 or step == steps:
                for key in values:
                    logged[f"train/{key}", step] = sum(each[key] for each in since) / len(since)
                since = []
        with torch.no_grad():
            values = measure(INPUTS[VAL], LABELS[VAL])
        logged |= {(f"val/{key}", step): value.item() for key, value in values.items()}
    return torch.cat([each.detach().flatten() for each in parameters]), logged


@pytest.mark.parametrize(
    "num_ranks", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("case", ZOO)
def test_task_comes_to_what_a_loop_by_hand_does(case, num_ranks, by_ranks):
    found = train(case) if num_ranks == 1 else by_ranks(num_ranks)[case]
    weights, logged = by_hand(case)
    torch.testing.assert_close(found["weights"], weights, rtol=1e-4, atol=1e-6)
    mine = {(name, step): value for name, value, step in found["logged"] if not name.endswith(("/lr", "/grad_norm"))}
    assert mine.keys() == logged.keys()
    assert mine == pytest.approx(logged, rel=1e-4)


class Misspelt(Task):
    reduction: ClassVar = {"los": "sum"}

    def loss(self, model, batch):
        return {"loss": model(batch[0]).sum(), "size": model(batch[0]).abs().mean()}


class Averaged(Misspelt):
    reduction = "average"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Misspelt(), "Misspelt.reduction: got los, expected names that its loss gives: loss, size"),
        (Averaged(), "Averaged.reduction: got loss: 'average', expected 'mean' or 'sum'"),
    ],
)
def test_reduction_that_is_none_is_refused_before_the_first_step(task, message, tensor_data):
    data = tensor_data((INPUTS[TRAIN], LABELS[TRAIN]), (INPUTS[VAL], LABELS[VAL]))
    model = make_model()
    with pytest.raises(ConfigError, match=message):
        fit(model, data, task, torch.optim.SGD(model.parameters(), lr=0.1), epochs=1, log=lambda *point: None)


class Skipping(Task):
    """Skips batches whose first label is 0."""

    reduction = "sum"

    def loss(self, model, batch):
        if batch[1][0] == 0:
            return None
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def test_sums_of_skipped_micro_batches_do_not_count(tensor_data):
    data = tensor_data((INPUTS[:16], torch.tensor([1, 2] * 4 + [0, 1] * 4)))
    model, logged = make_model(), {}
    expected = nn.functional.cross_entropy(model(INPUTS[:8]), torch.tensor([1, 2] * 4)).item()
    data.train.shuffle = False
    options = {
        "amp": MixedPrecision(torch.device("cpu"), accumulate=2),
        "log": lambda *point: logged.update([point[:2]]),
    }
    fit(model, data, Skipping(), torch.optim.SGD(model.parameters(), lr=0.0), epochs=1, log_interval=1, **options)
    assert logged["train/loss"] == pytest.approx(expected)
