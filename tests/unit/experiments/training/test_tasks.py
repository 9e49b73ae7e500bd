from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Callback, Supervised, Task, evaluate, fit, predict
from sacristan.ingredients import Checkpointer, CheckpointError, ConfigError, Loss, LossError, MixedPrecision
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.losses import build_losses
from sacristan.ingredients.scheduler import build_schedule

CPU = torch.device("cpu")
INPUTS = torch.randn(36, 4, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()


class Autoencoder(Task):
    def loss(self, model, batch):
        return (model(batch[0]) - batch[0]).square().mean()


class WithParts(Autoencoder):
    """Gives two scalars beside the loss."""

    def loss(self, model, batch):
        outputs = model(batch[0])
        return {"loss": (outputs - batch[0]).square().mean(), "size": outputs.abs().mean(), "one": torch.tensor(1.0)}


class Skipping(Autoencoder):
    """Skips the second batch of eight."""

    def loss(self, model, batch):
        return None if torch.equal(batch[0][0], INPUTS[8]) else super().loss(model, batch)


class Adversarial(Task):
    """A GAN with a gradient penalty: two critic steps and one of the generator."""

    def step(self, trainer, group):
        generator, critic = trainer.model["generator"], trainer.model["critic"]

        def of_critic(batch):
            real = batch[0]
            fake = generator(torch.randn_like(real)).detach()
            between = (real + fake).div(2).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            return critic(fake).mean() - critic(real).mean() + (slope.norm(dim=1) - 1).square().mean()

        for _ in range(2):
            judged = trainer.minimize(of_critic, group, "critic")
        made = trainer.minimize(lambda batch: -critic(generator(torch.randn_like(batch[0]))).mean(), group, "generator")
        return {"loss": made, "critic_loss": judged}

    def measure(self, model, batch):
        return {"loss": (model["generator"](torch.zeros_like(batch[0])) - batch[0]).square().mean()}


class Recurrent(Task):
    """Truncated backpropagation: the hidden state of a batch is where the next one begins, the graph is cut."""

    def __init__(self):
        self.hidden = torch.zeros(1, 3)

    def loss(self, model, batch):
        outputs, hidden = model(batch[0], self.hidden)
        if torch.is_grad_enabled():
            self.hidden = hidden.detach()
        return outputs.square().mean()

    def state_dict(self):
        return {"hidden": self.hidden}

    def load_state_dict(self, state):
        self.hidden = state["hidden"]


class Centered(Task):
    """Has a parameter of its own."""

    def __init__(self):
        self.module = nn.Linear(2, 1, bias=False)

    def loss(self, model, batch):
        return self.module(model(batch[0])[:, :2]).square().mean() + model(batch[0]).square().mean()


@pytest.fixture
def data(tensor_data):
    return tensor_data((INPUTS[:20], LABELS[:20]), (INPUTS[20:30], LABELS[20:30]), (INPUTS[30:], LABELS[30:]))


def make_model(num_outputs=4):
    torch.manual_seed(0)
    return nn.Linear(4, num_outputs)


def pair():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"generator": nn.Linear(4, 4), "critic": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))}
    )


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(task, data, model=None, optimizer=None, **settings):
    model = make_model() if model is None else model
    log = []
    if optimizer is None:
        optimizer = torch.optim.SGD([*model.parameters(), *task.parameters.values()], lr=0.1, momentum=0.9)
    settings = {"epochs": 2, "log_interval": 1, **settings}
    result = fit(model, data, task, optimizer, log=lambda *point: log.append(point), **settings)
    return model, log, result


def of(log, name):
    return [value for other, value, _ in log if other == name]


def optimizers_of(model):
    return {
        "critic": torch.optim.Adam(model["critic"].parameters(), lr=0.01),
        "generator": torch.optim.SGD(model["generator"].parameters(), lr=0.1),
    }


# ------------------------------------------------------------------ losses of one's own


def test_task_of_ones_own_is_the_plain_loop_of_torch(data):
    model, log, _ = train(Autoencoder(), data)
    plain, losses = make_model(), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for batch in INPUTS[:20].split(8):
            loss = (plain(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert torch.equal(weights(model), weights(plain))
    assert of(log, "train/loss") == losses
    expected = (plain(INPUTS[20:30]) - INPUTS[20:30]).square().mean().item()
    assert of(log, "val/loss")[-1] == pytest.approx(expected, rel=1e-6)


class Distilled(Task):
    """Learns from a teacher, which is no part of the training."""

    def __init__(self, teacher):
        self.teacher = teacher.eval()

    def loss(self, model, batch):
        with torch.no_grad():
            expected = self.teacher(batch[0])
        return (model(batch[0]) - expected).square().mean()


def test_teacher_of_a_task_stays_as_it_is_and_in_no_checkpoint(data, tmp_path):
    teacher = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    keeper = Checkpointer(tmp_path, {})
    _, log, _ = train(Distilled(teacher), data, epochs=8, checkpointer=keeper)
    assert of(log, "val/loss")[-1] < 0.5 * of(log, "val/loss")[0]
    assert not teacher.training
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert load_checkpoint(keeper.last_path)["model"].keys() == {"weight", "bias"}


class Orthogonal(Autoencoder):
    """Penalises what is large, and rows that are not orthogonal."""

    def loss(self, model, batch):
        error, weight = super().loss(model, batch), model.weight
        overlap = (weight @ weight.T - torch.eye(len(weight))).square().mean()
        return {"loss": error + overlap + 0.01 * weight.abs().sum(), "error": error, "overlap": overlap}


def test_penalty_on_weights_is_part_of_the_loss(data):
    model, log, _ = train(Orthogonal(), data)
    plain = make_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in INPUTS[:20].split(8) * 2:
        overlap = (plain.weight @ plain.weight.T - torch.eye(4)).square().mean()
        optimizer.zero_grad()
        ((plain(batch) - batch).square().mean() + overlap + 0.01 * plain.weight.abs().sum()).backward()
        optimizer.step()
    assert torch.allclose(weights(model), weights(plain), rtol=1e-5)
    assert len(of(log, "train/overlap")) == 6


def test_loss_is_the_task_of_it(data):
    loss = Loss(nn.CrossEntropyLoss(), "classes", 2)
    found = []
    for task in (loss, Supervised(loss)):
        model = make_model(2)
        model, log, _ = train(task, data, model, torch.optim.SGD(model.parameters(), lr=0.1))
        found.append((weights(model), log, evaluate(model, data.test, task), predict(model, data.test, task)))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:3] == found[1][1:3]
    assert found[0][3].keys() == found[1][3].keys() == {"predictions", "targets", "probabilities"}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_scalars_beside_the_loss_are_logged_as_means(data, accumulate):
    amp = MixedPrecision(CPU, accumulate=accumulate)
    _, log, _ = train(WithParts(), data, amp=amp, epochs=1, log_interval=3)
    names = {name for name, _, _ in log}
    assert {"train/size", "train/one", "val/size", "val/one"} <= names
    assert of(log, "train/one") == pytest.approx([1.0])
    assert of(log, "val/one") == pytest.approx([1.0])


def test_scalars_are_weighed_as_the_micro_batches_are(data):
    small = train(WithParts(), data, epochs=1, amp=MixedPrecision(CPU, accumulate=3))[1]
    model = make_model()
    expected = model(INPUTS[:20]).abs().mean().item()
    assert of(small, "train/size") == pytest.approx([expected], rel=1e-6)


def test_batch_for_which_there_is_no_loss_is_skipped(data):
    model, log, result = train(Skipping(), data, epochs=1)
    plain, losses = make_model(), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for inputs in (INPUTS[:8], INPUTS[16:20]):
        loss = (plain(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert torch.equal(weights(model), weights(plain))
    assert of(log, "train/loss") == losses
    assert result.steps == 3


def test_micro_batch_that_is_skipped_leaves_the_mean_over_the_others(data):
    model, log, _ = train(Skipping(), data, epochs=1, amp=MixedPrecision(CPU, accumulate=3))
    plain = make_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    kept = torch.cat([INPUTS[:8], INPUTS[16:20]])
    loss = (plain(kept) - kept).square().mean()
    loss.backward()
    optimizer.step()
    assert torch.allclose(weights(model), weights(plain), atol=1e-7)
    assert of(log, "train/loss") == pytest.approx([loss.item()], rel=1e-6)


def test_parameters_of_a_task_are_trained_and_saved(data, tmp_path):
    task = Centered()
    before = task.module.weight.detach().clone()
    keeper = Checkpointer(tmp_path, {})
    train(task, data, checkpointer=keeper)
    assert not torch.equal(task.module.weight, before)
    assert torch.equal(load_checkpoint(keeper.last_path)["loss"]["weight"], task.module.weight.detach())
    with pytest.raises(LossError, match=r"Linear has parameters of its own \(weight\) that the optimizer does not"):
        train(Centered(), data, optimizer=torch.optim.SGD(make_model().parameters(), lr=0.1))


# ------------------------------------------------------------------ steps of one's own


@pytest.mark.parametrize("dtype", ["off", "bfloat16", "float16"])
def test_gan_is_the_plain_loop_of_torch(data, dtype):
    model = pair()
    amp = MixedPrecision(CPU, dtype, init_scale=1024.0)
    torch.manual_seed(1)
    _, log, _ = train(Adversarial(), data, model, optimizers_of(model), amp=amp)
    plain = pair()
    generator, critic = plain["generator"], plain["critic"]
    optimizers = optimizers_of(plain)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16", init_scale=1024.0)
    cast = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]

    def minimize(loss_of, name):
        optimizers[name].zero_grad()
        with torch.autocast("cpu", cast, enabled=cast is not None):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizers[name])
        scaler.update()
        return loss.item()

    def of_critic():
        fake = generator(torch.randn_like(real)).detach()
        between = (real + fake).div(2).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return critic(fake).mean() - critic(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    torch.manual_seed(1)
    losses, judged = [], []
    for _ in range(2):
        for real in INPUTS[:20].split(8):
            for _ in range(2):
                last = minimize(of_critic, "critic")
            losses.append(minimize(lambda: -critic(generator(torch.randn_like(real))).mean(), "generator"))  # noqa: B023
            judged.append(last)
    assert torch.equal(weights(model), weights(plain))
    assert of(log, "train/loss") == losses
    assert of(log, "train/critic_loss") == judged
    assert {"train/critic/lr", "train/generator/lr", "train/critic/grad_norm"} <= {name for name, _, _ in log}
    assert all(norm > 0 for norm in of(log, "train/critic/grad_norm"))


class ActorCritic(Task):
    """Two losses of one forward pass: the generator's depends on the critic's outputs, and the other way round."""

    def losses(self, model, batch):
        made = model["generator"](batch[0])
        judged = model["critic"](made)
        return {"generator": (judged - 1).square().mean(), "critic": (judged - batch[0].mean(1, True)).square().mean()}

    def step(self, trainer, group):
        found = trainer.minimize_each(lambda batch: self.losses(trainer.model, batch), group)
        return {"loss": found["generator"], "value": found["critic"]}

    def measure(self, model, batch):
        return {"loss": self.losses(model, batch)["generator"]}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("dtype", ["off", "bfloat16", "float16"])
def test_losses_of_one_forward_pass_are_minimised_each_by_its_optimizer(data, dtype, accumulate):
    model = pair()
    amp = MixedPrecision(CPU, dtype, init_scale=1024.0, accumulate=accumulate)
    _, log, _ = train(ActorCritic(), data, model, optimizers_of(model), amp=amp)
    plain = pair()
    optimizers = optimizers_of(plain)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16", init_scale=1024.0)
    cast = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    expected = []
    for _ in range(2):
        for first in range(0, 20, 8 * accumulate):
            whole = INPUTS[first : min(first + 8 * accumulate, 20)]
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            sums = dict.fromkeys(optimizers, 0.0)
            for batch in whole.split(8):
                with torch.autocast("cpu", cast, enabled=cast is not None):
                    losses = ActorCritic().losses(plain, (batch,))
                for name, loss in losses.items():
                    part = loss * (len(batch) / len(whole))
                    trained = list(plain[name].parameters())
                    found = torch.autograd.grad(scaler.scale(part), trained, retain_graph=True)
                    for parameter, gradient in zip(trained, found, strict=True):
                        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                    sums[name] += part.item()
            for name in losses:
                scaler.step(optimizers[name])
            scaler.update()
            expected.append(sums)
    assert torch.equal(weights(model), weights(plain))
    assert of(log, "train/loss") == pytest.approx([sums["generator"] for sums in expected], rel=1e-6)
    assert of(log, "train/value") == pytest.approx([sums["critic"] for sums in expected], rel=1e-6)
    assert all(norm > 0 for name in optimizers for norm in of(log, f"train/{name}/grad_norm"))


def test_losses_that_no_optimizer_takes_are_refused(data):
    model = pair()
    with pytest.raises(ConfigError, match="the step asks for 'critic'; there are: generator"):
        train(ActorCritic(), data, model, {"generator": optimizers_of(model)["generator"]})
    recomputing = {"generator": torch.optim.LBFGS(model["generator"].parameters())}
    with pytest.raises(ConfigError, match=r"LBFGS recomputes its loss; take its step by trainer\.minimize"):
        train(ActorCritic(), data, model, optimizers_of(model) | recomputing)

    class Forgetting(ActorCritic):
        def losses(self, model, batch):
            found = super().losses(model, batch)
            return found if torch.equal(batch[0][0], INPUTS[0]) or not torch.is_grad_enabled() else {}

    with pytest.raises(ConfigError, match="got losses of none for a micro-batch, expected those of generator, critic"):
        train(Forgetting(), data, model, optimizers_of(model), amp=MixedPrecision(CPU, accumulate=3))


def test_each_optimizer_has_its_schedule(data):
    model = pair()
    optimizers = optimizers_of(model)
    schedule = build_schedule(optimizers["generator"], 2, 3, "StepLR", {"step_size": 1, "gamma": 0.1})
    _, log, _ = train(Adversarial(), data, model, optimizers, scheduler={"generator": schedule})
    assert of(log, "train/critic/lr") == [0.01] * 6
    assert of(log, "train/generator/lr")[3:] == pytest.approx([0.01] * 3)


@pytest.mark.parametrize(
    ("task", "optimizer", "message"),
    [
        (Autoencoder(), {"a": None}, "got a by name, expected one optimizer; Autoencoder takes more only if it writes"),
        (Adversarial(), {"critic": None}, "the step asks for 'generator'; there are: critic"),
        (nn.MSELoss(), {}, "got MSELoss, expected a Loss, as loss.make_loss returns it, or a Task"),
    ],
)
def test_parts_that_do_not_fit_the_task_are_refused(data, task, optimizer, message):
    model = pair() if optimizer.keys() == {"critic"} else make_model()
    given = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name in optimizer}
    with pytest.raises((ConfigError, LossError), match=message):
        fit(model, data, task, given or torch.optim.SGD(model.parameters(), lr=0.1), log=print, epochs=1)


def test_names_that_the_training_logs_itself_are_refused(data):
    class Taken(Autoencoder):
        def loss(self, model, batch):
            return {"loss": super().loss(model, batch), "lr": torch.tensor(1.0)}

    with pytest.raises(ConfigError, match="a scalar 'lr', which the training logs itself; rename it"):
        train(Taken(), data)


# ------------------------------------------------------------------ callbacks


class Counting(Callback):
    """Counts steps, changes the rate by them, and notes the moments it saw."""

    def __init__(self):
        self.count = 0
        self.moments = []

    def start(self, trainer):
        self.moments.append("start")

    def after_step(self, trainer):
        self.count += 1
        trainer.optimizers[""].param_groups[0]["lr"] = 0.1 / self.count

    def after_validation(self, trainer, metrics):
        self.moments.append(f"epoch {trainer.place.epoch + 1}, step {trainer.place.step}: {sorted(metrics)}")
        metrics["val/count"] = float(self.count)

    def end(self, trainer):
        self.moments.append("end")

    metrics = ("val/count",)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Growing(Callback):
    """Trains the bias from the fourth step on."""

    def after_step(self, trainer):
        if trainer.place.step == 4:
            trainer.optimizers[""].add_param_group({"params": [trainer.model.bias], "lr": 0.01})


class StopAt(Callback):
    def __init__(self, step=None, epoch=None):
        self.step, self.epoch = step, epoch

    def after_step(self, trainer):
        if trainer.place.step == self.step:
            trainer.stop()

    def after_validation(self, trainer, metrics):
        if trainer.place.epoch + 1 == self.epoch:
            trainer.stop()


def test_callbacks_are_called_at_their_moments(data):
    counting = Counting()
    _, _, result = train(Autoencoder(), data, callbacks=[counting], monitor="val/count", mode="max")
    assert counting.moments == [
        "start",
        "epoch 1, step 3: ['val/loss']",
        "epoch 2, step 6: ['val/loss']",
        "end",
    ]
    assert (result.best, result.best_epoch) == (6.0, 2)
    with pytest.raises(ConfigError, match="got 'val/cuont', which is not measured; there are: val/loss, val/count"):
        train(Autoencoder(), data, callbacks=[counting], monitor="val/cuont")


@pytest.mark.parametrize(
    ("callback", "steps", "epochs"),
    [(StopAt(step=2), 2, 1), (StopAt(step=3), 3, 1), (StopAt(epoch=2), 6, 2)],
)
def test_callback_stops_a_training(data, tmp_path, callback, steps, epochs):
    keeper = Checkpointer(tmp_path, {})
    model, log, result = train(Autoencoder(), data, callbacks=[callback], epochs=4, checkpointer=keeper)
    assert (result.steps, result.epochs, result.stopped_early) == (steps, epochs, True)
    assert [step for name, _, step in log if name == "val/loss"][-1] == steps
    state = load_checkpoint(keeper.last_path)
    assert torch.equal(state["model"]["weight"], model.weight.detach())
    # Killed after its last state, the training is resumed, and ends at once.
    again = Checkpointer(tmp_path, {}, resume=True)
    found = train(Autoencoder(), data, callbacks=[StopAt()], epochs=4, checkpointer=again)
    assert found[2].steps == steps
    assert torch.equal(found[0].weight, model.weight)


# ------------------------------------------------------------------ resuming


def unscheduled(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def only_weight(model):
    return torch.optim.SGD([model.weight], lr=0.1, momentum=0.9)


def recurrent():
    torch.manual_seed(0)
    return nn.RNN(4, 3)


KINDS = {
    "gan": (Adversarial, pair, optimizers_of, list),
    "losses of one forward pass": (ActorCritic, pair, optimizers_of, list),
    "truncated backpropagation": (Recurrent, recurrent, unscheduled, list),
    "scalars": (WithParts, make_model, unscheduled, list),
    "skipping": (Skipping, make_model, unscheduled, list),
    "callback": (WithParts, make_model, unscheduled, lambda: [Counting()]),
    "group added": (Autoencoder, make_model, only_weight, lambda: [Growing()]),
}


class KilledError(Exception):
    pass


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stop", [5, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (2, 4, 8))])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_ends_with_the_same_bits(data, tmp_path, kind, stop):
    make_task, make, optimize, callbacks = KINDS[kind]

    def session(folder, *, resume=False, killed_at=None):
        model, log = make(), []

        def write(name, value, step):
            if step == killed_at:
                raise KilledError
            log.append((name, value, step))

        torch.manual_seed(3)
        keeper = Checkpointer(folder, {}, interval_steps=1, resume=resume)
        settings = {"checkpointer": keeper, "callbacks": callbacks(), "epochs": 3, "log_interval": 3}
        fit(model, data, make_task(), optimize(model), log=write, **settings)
        return model, log

    whole, expected = session(tmp_path / "whole")
    with pytest.raises(KilledError):
        session(tmp_path / "parts", killed_at=3 * -(-stop // 3))
    resumed, log = session(tmp_path / "parts", resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    assert log == expected[len(expected) - len(log) :]
    assert log


def test_state_with_other_callbacks_is_not_resumed(data, tmp_path):
    with pytest.raises(KilledError):
        train(Autoencoder(), data, checkpointer=Checkpointer(tmp_path, {}, interval_steps=1), callbacks=[Raising()])
    with pytest.raises(CheckpointError, match="the state has 0 Raising, this training 0 Counting"):
        train(Autoencoder(), data, checkpointer=Checkpointer(tmp_path, {}, resume=True), callbacks=[Counting()])


class Raising(Callback):
    def after_step(self, trainer):
        if trainer.place.step == 3:
            raise KilledError


def test_fork_with_other_callbacks_starts_them_anew(data, tmp_path, caplog):
    keeper = Checkpointer(tmp_path / "first", {})
    train(Autoencoder(), data, checkpointer=keeper)
    fork = Checkpointer(tmp_path / "second", {}, start=keeper.last_path)
    counting = Counting()
    train(Autoencoder(), data, checkpointer=fork, callbacks=[counting], epochs=3)
    assert counting.count == 3
    assert "those of this training start from the beginning" in caplog.text


def test_tasks_are_measured_in_evaluation_mode_and_weighed(tensor_data):
    class Modes(Task):
        def loss(self, model, batch):
            assert model.training == torch.is_grad_enabled()
            return {"loss": model(batch[0]).square().mean(), "half": functional.relu(batch[0]).mean()}

    data = tensor_data((INPUTS[:20], LABELS[:20]), (INPUTS[20:31], LABELS[20:31]))
    model = make_model()
    found = evaluate(model, data.val, Modes())
    assert found["half"] == pytest.approx(INPUTS[20:31].relu().mean().item(), rel=1e-6)
    assert model.training


def test_task_that_predicts_nothing_says_so(data):
    with pytest.raises(ConfigError, match=r"Autoencoder predicts nothing; write its method predict"):
        predict(make_model(), data.test, Autoencoder())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_each_of_several_losses_is_logged(data, accumulate):
    loss = build_losses({"ce": {}, "focal": {"name": "focal", "weight": 2.0}}, data, "cpu")
    model = make_model(2)
    settings = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.0), "epochs": 1, "log_interval": 3 // accumulate}
    _, log, _ = train(Supervised(loss), data, model, amp=MixedPrecision(CPU, accumulate=accumulate), **settings)
    found = {name: value for name, value, _ in log}
    assert found["val/loss"] == pytest.approx(found["val/ce"] + 2 * found["val/focal"])
    if accumulate == 3:
        whole = loss.module.terms(model(INPUTS[:20]), LABELS[:20])
        assert found["train/ce"] == pytest.approx(whole["ce"].item(), rel=1e-5)
        assert found["train/loss"] == pytest.approx(whole["loss"].item(), rel=1e-5)
    assert {"train/ce", "train/focal"} <= found.keys()
