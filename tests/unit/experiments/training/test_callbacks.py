from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Callback, Task, fit
from sacristan.experiments.training.callbacks import Callbacks
from sacristan.ingredients import Checkpointer, MixedPrecision
from sacristan.ingredients.checkpoints.files import load_checkpoint

CPU = torch.device("cpu")


class Classify(Task):
    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])


class Two(Classify):
    """Two steps with a batch, each with an optimizer of its own."""

    def step(self, trainer, group):
        def of_batch(batch):
            return self.loss(trainer.model, batch)

        trainer.minimize(of_batch, group, "first")
        return {"loss": trainer.minimize(of_batch, group, "second")}


@pytest.fixture
def data(tensor_data):
    torch.manual_seed(0)
    return tensor_data((torch.randn(16, 4), torch.arange(16) % 2), (torch.randn(8, 4), torch.arange(8) % 2))


def train(data, *callbacks, task=None, optimizer=None, **settings):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    points = []
    optimizer = optimizer(model) if optimizer else torch.optim.SGD(model.parameters(), 0.1)
    settings = {"epochs": 1, "log_interval": 1, **settings}
    log = lambda *point: points.append(point)  # noqa: E731
    fit(model, data, task or Classify(), optimizer, log=log, callbacks=callbacks, **settings)
    return model, points


class Look(Callback):
    def __init__(self):
        self.seen = []

    def before_step(self, trainer, optimizer):
        gradient = trainer.model.weight.grad.clone()
        self.seen.append((optimizer, trainer.place.step, float(trainer.batch_loss), gradient))


@pytest.mark.parametrize("amp", [{}, {"clip_norm": 1e-3}, {"accumulate": 2}, {"dtype": "float16"}], ids=str)
def test_before_step_sees_gradients_of_the_whole_batch_unscaled_and_not_clipped(data, amp):
    plain, look = Look(), Look()
    train(data, plain, amp=MixedPrecision(CPU, accumulate=amp.get("accumulate", 1)))
    model, points = train(data, look, amp=MixedPrecision(CPU, **amp))
    assert [step for _, step, _, _ in look.seen] == list(range(len(plain.seen)))
    torch.testing.assert_close(look.seen[0][3], plain.seen[0][3], atol=2e-3, rtol=2e-3)
    losses = [value for name, value, _ in points if name == "train/loss"]
    assert losses == pytest.approx([loss for _, _, loss, _ in look.seen])
    unwatched, others = train(data, amp=MixedPrecision(CPU, **amp))
    assert torch.equal(model.weight, unwatched.weight)  # looking changes nothing
    assert points == others


def test_before_step_of_several_optimizers_is_called_for_each_by_name(data):
    look = Look()
    optimizers = lambda model: {  # noqa: E731
        "first": torch.optim.SGD([model.weight], 0.1),
        "second": torch.optim.SGD([model.bias], 0.1),
    }
    train(data, look, task=Two(), optimizer=optimizers)
    assert [name for name, *_ in look.seen] == ["first", "second"] * 2


def test_step_that_a_callback_skips_changes_no_weight_and_logs_no_loss(data):
    class Skip(Callback):
        def before_step(self, trainer, optimizer):
            if trainer.place.step == 0:
                trainer.skip_step()

    torch.manual_seed(0)
    begun = nn.Linear(4, 2)
    model, points = train(data, Skip(), epochs=1)
    assert [step for name, _, step in points if name == "train/loss"] == [2]
    assert not torch.equal(model.weight, begun.weight)
    scaled, _ = train(data, Skip(), amp=MixedPrecision(CPU, "float16"))
    torch.testing.assert_close(scaled.weight, model.weight, atol=1e-3, rtol=1e-3)


def test_close_is_called_in_any_case_and_nothing_looks_at_steps_afterwards(data):
    class Closes(Callback):
        closed = 0

        def before_step(self, trainer, optimizer):
            self.trainer = trainer
            if self.fails:
                raise RuntimeError("in the middle")

        def close(self):
            self.closed += 1

    for fails in (False, True):
        callback = Closes()
        callback.fails = fails
        amp = MixedPrecision(CPU)
        if fails:
            with pytest.raises(RuntimeError, match="in the middle"):
                train(data, callback, amp=amp)
        else:
            train(data, callback, amp=amp)
        assert (callback.closed, callback.trainer.look) == (1, None)


def test_callback_that_only_observes_is_no_part_of_a_state(data, tmp_path):
    class Watches(Callback):
        observes = True

    class Counts(Callback):
        def state_dict(self):
            return {"count": 1}

    keeper = Checkpointer(tmp_path, {})
    train(data, Watches(), Counts(), checkpointer=keeper)
    assert load_checkpoint(tmp_path / "last.pt")["callbacks"] == {"0 Counts": {"count": 1}}
    assert not Callbacks([Watches()])
