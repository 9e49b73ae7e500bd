from __future__ import annotations

import json
import logging
import resource
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Callback, Task, fit
from sacristan.experiments.running.commands import Replayed, replaying
from sacristan.experiments.training.triage import like, on_cpu, read_bundle
from sacristan.ingredients import Checkpointer, CheckpointError, ConfigError, MixedPrecision, TrainingError
from sacristan.ingredients.losses import build_loss
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.scheduler import build_schedule

CPU = torch.device("cpu")
_GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(40, 4, generator=_GENERATOR)
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
# The sample that does harm, where something is planted, and its place in the training part.
EVIL = 17


class Log(list):
    def __call__(self, name, value, step):
        self.append((name, value, step))

    def of(self, name):
        return [value for other, value, _ in self if other == name]


class Part(nn.Linear):
    """A layer in whose batch with the harmful sample something happens."""

    def __init__(self, *sizes, harm=None):
        super().__init__(*sizes)
        self.harm = harm

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if self.harm == "log" and self.training and Net.is_evil:
            return outputs + (outputs.detach() - outputs.detach().max() - 1).log()
        if self.harm == "overflow" and self.training and Net.is_evil:
            return outputs * 1e38 * 1e38
        if self.harm == "in place" and self.training and Net.is_evil:
            outputs[0, 0] = float("nan")
        if self.harm == "masked" and self.training and Net.is_evil:
            outputs.masked_fill_(outputs > 0, float("nan"))
        if self.harm == "unseen" and self.training and Net.is_evil:
            outputs.detach().numpy()[0, 0] = float("nan")
        if self.harm == "backward" and self.training and Net.is_evil:
            return Poisoned.apply(outputs)
        return outputs


class Poisoned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("nan")


class Net(nn.Module):
    """Three layers with batch normalisation and dropout; it notes whether the harmful sample is in the batch."""

    is_evil = False

    def __init__(self, harm=None, where="middle"):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.ModuleDict({"first": Part(4, 8), "middle": Part(8, 8)})
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.head = Part(8, 3)
        for name, part in (*self.body.items(), ("head", self.head)):
            part.harm = harm if name == where else None

    def forward(self, inputs):
        Net.is_evil = bool((inputs == INPUTS[EVIL]).all(-1).any())
        hidden = self.drop(self.norm(self.body["first"](inputs)))
        return self.head(self.body["middle"](hidden).tanh())


class Classify(Task):
    def __init__(self, harm=False):
        self.harm = harm

    def loss(self, model, batch):
        inputs, targets = batch
        found = functional.cross_entropy(model(inputs), targets)
        if self.harm and model.training and Net.is_evil:
            return found * (found.detach() * 0 - 1).sqrt()
        return found


@pytest.fixture
def data(tensor_data):
    parts = ((INPUTS[a:b].clone(), LABELS[a:b]) for a, b in ((0, 24), (24, 32), (32, 40)))
    return tensor_data(*parts)


@pytest.fixture
def keeper(tmp_path):
    return Checkpointer(tmp_path / "checkpoints", {"seed": 3})


def train(data, keeper, model=None, task=None, *, name="SGD", lr=0.1, **settings):
    model, log = Net() if model is None else model, Log()
    optimizer = build_optimizer(model, name, lr)
    settings = {"epochs": 3, "log_interval": 50, **settings}
    settings.setdefault("scheduler", build_schedule(optimizer, 3, 3))
    result = fit(model, data, task or Classify(), optimizer, log=log, checkpointer=keeper, **settings)
    return model, log, result


def bundle_of(data, keeper, *parts, match="NaN|nan|inf", **settings):
    """Train until it fails, and return the bundle and the error."""
    with pytest.raises(TrainingError, match=match) as raised:
        train(data, keeper, *parts, **settings)
    (path,) = keeper.files.path.glob("nonfinite-*")
    return read_bundle(path), str(raised.value)


def replayed(data, bundle, keeper, *parts, **settings):
    """Return what the replay of a bundle says."""
    with replaying(bundle.path), pytest.raises(Replayed) as raised:
        train(data, keeper, *parts, **settings)
    return raised.value


PLANTED = {
    "forward": ("log", False, {"phase": "forward", "module": "body.middle", "kind": "Part", "operation": "aten.log"}),
    "overflow": ("overflow", False, {"phase": "forward", "module": "head", "value": "inf", "operation": "aten.mul"}),
    "in place": ("in place", False, {"phase": "forward", "module": "body.middle", "operation": "aten.copy_"}),
    "masked": ("masked", False, {"phase": "forward", "module": "body.middle", "operation": "aten.masked_fill_"}),
    "unseen": ("unseen", False, {"phase": "forward", "module": "body.middle", "operation": None, "site": None}),
    "backward": ("backward", False, {"phase": "backward", "module": "body.middle", "operation": "PoisonedBackward"}),
    "loss": (None, True, {"phase": "loss", "module": None, "operation": "aten.sqrt"}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_named_by_the_bundle_and_the_replay_says_the_same(data, keeper, tmp_path, planted):
    harm, in_loss, expected = PLANTED[planted]
    where = "head" if harm == "overflow" else "middle"
    bundle, message = bundle_of(data, keeper, Net(harm, where), Classify(in_loss))
    finding = bundle.incident["finding"]
    assert {name: finding[name] for name in expected} == expected
    if planted in ("forward", "backward", "in place", "masked"):
        assert "test_triage.py:" in finding["site"]
    if planted == "unseen":
        assert "its output is nan, by no operation of torch; what writes to its memory by other means" in message
    assert message.endswith(f"Repeat that step with: replay with bundle={bundle.path}")
    said = replayed(data, bundle, Checkpointer(tmp_path / "checkpoints", {}), Net(harm, where), Classify(in_loss))
    assert bundle.incident["summary"] in said.report
    assert "recorded was" not in said.report
    assert json.loads(json.dumps(said.finding)) == finding


def test_bundle_holds_place_batch_indices_history_and_the_state_from_before(data, keeper):
    bundle, _ = bundle_of(data, keeper, Net("log"), log_interval=2)
    incident = bundle.incident
    (batch,) = incident["batches"]
    assert (incident["epoch"], incident["step"]) == (1, batch)
    assert incident["samples"] == [data.train.order(1)[(batch - 1) * 8 : batch * 8].tolist()]
    assert EVIL in incident["samples"][0]
    inputs, targets = bundle.group[0]
    assert torch.equal(inputs, data.train.inputs[incident["samples"][0]])
    assert torch.equal(targets, data.train.targets[incident["samples"][0]])
    assert (bundle.state["step"], bundle.state["batch"]) == (batch - 1, batch - 1)
    assert {"model", "optimizer", "scheduler", "streams"} <= bundle.state.keys()
    assert all(value.isfinite().all() for value in bundle.state["model"].values())
    assert [entry["step"] for entry in incident["history"]] == list(range(1, batch + 1))
    assert all(isinstance(entry["grad_norm"], float) for entry in incident["history"][:-1])
    assert (incident["history"][-1]["loss"], incident["scale"]) == ("nan", 1.0)
    assert json.loads((bundle.path / "config.json").read_text()) == {"seed": 3}


def test_bundle_is_of_the_first_bad_step_though_it_was_seen_later(data, keeper):
    # The gradient is NaN once, the loss only from the next step on.
    bundle, message = bundle_of(data, keeper, Net("backward"), epochs=1)
    seen = int(message.partition(" at step ")[2].partition(" ")[0])
    assert bundle.incident["step"] <= seen
    assert np.isfinite(bundle.incident["history"][-1]["loss"])
    assert bundle.incident["history"][-1]["grad_norm"] == "nan"


def test_state_of_an_earlier_epoch_is_where_the_steps_are_repeated_from(data, keeper):
    class Later(Net):
        def forward(self, inputs):
            self.body["middle"].harm = "log" if float(self.norm.num_batches_tracked) >= 4 else None
            return super().forward(inputs)

    bundle, message = bundle_of(data, keeper, Later())
    assert bundle.incident["epoch"] == 2
    assert bundle.incident["history"][0]["step"] == 4
    assert "the state after step 3 is kept in" in message


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_data_that_are_not_finite_are_named_with_their_samples_and_the_replay_says_the_same(
    tensor_data, keeper, tmp_path, what
):
    inputs, targets = INPUTS.clone(), INPUTS[:, :1] * 2
    (inputs if what == "inputs" else targets)[EVIL, 0] = float("nan")
    data = tensor_data(*((inputs[a:b], targets[a:b]) for a, b in ((0, 24), (24, 32), (32, 40))), task="regression")
    loss = build_loss(None, {}, None, data, CPU)

    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))

    bundle, message = bundle_of(data, keeper, model(), loss)
    finding = bundle.incident["finding"]
    assert (finding["phase"], finding["tensor"]) == ("data", what)
    (place,) = finding["samples"]
    assert bundle.incident["samples"][0][place] == EVIL
    assert f"data: {what} of the batch hold nan, samples {place}" in message
    # The replay takes the batch of the bundle, whatever the data are now.
    for tensor in (data.train.inputs, data.train.targets):
        tensor.nan_to_num_()
    said = replayed(data, bundle, Checkpointer(tmp_path / "checkpoints", {}), model(), loss)
    assert bundle.incident["summary"] in said.report
    assert "recorded was" not in said.report
    assert json.loads(json.dumps(said.finding)) == finding


def test_step_of_the_optimizer_that_overflows_is_named(data, keeper):
    class Steep(Classify):
        def loss(self, model, batch):
            return super().loss(model, batch) * 1e3

    bundle, message = bundle_of(data, keeper, Net(), Steep(), lr=3e38, epochs=1)
    finding = bundle.incident["finding"]
    assert (finding["phase"], finding["value"], bundle.incident["step"]) == ("optimizer", "inf", 1)
    assert f"its step made {finding['tensor']} inf; loss and gradients are finite" in message


def test_overflow_that_the_scaler_skips_is_no_incident(data, keeper):
    amp = MixedPrecision(CPU, "float16", init_scale=2.0**120, backoff_factor=2.0**-56)
    _, log, _ = train(data, keeper, amp=amp, log_interval=1)
    assert log.of("amp/skipped")[-1] >= 1
    assert not list(keeper.files.path.glob("nonfinite-*"))


def test_loss_that_is_nan_under_float16_is_an_incident_with_its_scale(data, keeper):
    amp = MixedPrecision(CPU, "float16", init_scale=4.0)
    bundle, _ = bundle_of(data, keeper, Net(), Classify(True), amp=amp)
    assert (bundle.incident["finding"]["phase"], bundle.incident["scale"]) == ("loss", 4.0)


def test_bundle_that_finds_no_room_leaves_the_error_as_it_was_and_nothing_behind(data, keeper):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(TrainingError, match=r"is nan at step .*No bundle of the step was written: .*large"):
            train(data, keeper, Net("log"), epochs=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(keeper.files.path.iterdir()) == []


def test_fault_that_does_not_come_again_is_written_down_as_such(data, keeper):
    class Once(Net):
        count = 0

        def forward(self, inputs):
            self.count += self.training
            return super().forward(inputs) * (float("nan") if self.count == 2 else 1.0)

    bundle, message = bundle_of(data, keeper, Once())
    assert (bundle.incident["step"], bundle.incident["finding"]) == (2, None)
    assert "the step was finite when it was repeated" in message


def test_training_that_ignores_nan_or_keeps_no_states_writes_no_bundle(data, keeper):
    train(data, keeper, Net("log"), on_nan="ignore")
    assert not list(keeper.files.path.glob("nonfinite-*"))
    with pytest.raises(TrainingError, match=r"trains on anyway$"):
        train(data, None, Net("log"))


def test_states_that_are_not_kept_on_disk_are_kept_in_memory(data, tmp_path):
    keeper = Checkpointer(tmp_path, {}, best=False, last=False)
    bundle, _ = bundle_of(data, keeper, Net("log"))
    assert bundle.incident["finding"]["module"] == "body.middle"


def test_skip_leaves_weights_and_buffers_as_they_were_and_goes_on(data, keeper, caplog):
    class Look(Callback):
        observes = True  # else it would be called for the steps that are repeated, too

        def __init__(self):
            self.kept = []

        def after_step(self, trainer):
            self.kept.append({name: value.clone() for name, value in trainer.model.state_dict().items()})

    look = Look()
    with caplog.at_level(logging.WARNING):
        model, log, result = train(data, keeper, Net("log"), on_nan="skip", callbacks=[look], log_interval=1)
    assert (result.steps, log.of("train/nonfinite")) == (9, [1, 2, 3])
    steps = [step for name, _, step in log if name == "train/nonfinite"]
    for step in steps[1:] if steps[0] == 1 else steps:
        before, after = look.kept[step - 2], look.kept[step - 1]
        assert all(torch.equal(before[name], after[name]) for name in before)  # buffers, too
    assert all(value.isfinite().all() for value in model.state_dict().values())
    (bundle,) = keeper.files.path.glob("nonfinite-*")  # of the first one
    assert f"Found at step {steps[0]}: forward of body.middle" in caplog.text
    assert read_bundle(bundle).incident["step"] == steps[0]


def test_skip_trains_as_if_the_step_had_not_been_and_examining_it_changes_nothing(data, tmp_path):
    def trained(**settings):
        model = Net("log")
        keeper = Checkpointer(tmp_path / str(len(settings)), {}, **settings)
        return train(data, keeper, model, on_nan="skip", name="Adam")[0].state_dict()

    with_bundle, without = trained(), trained(last=True)
    model = Net("log")
    bare = train(data, None, model, on_nan="skip", name="Adam")[0].state_dict()  # nothing is examined
    for other in (without, bare):
        assert all(torch.equal(with_bundle[name], other[name]) for name in other)


def test_skip_that_never_ends_stops_the_training(data, keeper):
    with torch.no_grad():
        model = Net()
        model.head.register_forward_hook(lambda module, inputs, output: output * float("nan"))
    with pytest.raises(TrainingError, match=r"were NaN or infinite 10 times in a row, the last at step 10; lower"):
        train(data, keeper, model, on_nan="skip", epochs=5)


def test_bad_steps_with_good_ones_between_them_do_not_stop_the_training(data, keeper):
    class Bad(Callback):
        def before_step(self, trainer, optimizer):
            if trainer.place.step % 5:
                trainer.model.head.weight.grad.fill_(float("inf"))

    _, log, result = train(data, keeper, on_nan="skip", callbacks=[Bad()], epochs=5, log_interval=1)
    assert (result.steps, log.of("train/nonfinite")[-1]) == (15, 12)


def rates_of(scheduler, count):
    """Return the rates of steps, all of which are taken."""
    optimizer = build_optimizer(Net(), "SGD", 0.1)
    schedule, rates = build_schedule(optimizer, 3, 3, interval="step", **scheduler), []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.after_step()
    return rates


@pytest.mark.parametrize(
    "scheduler",
    [
        {},
        {"name": "CyclicLR", "options": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3}},
        {"name": "CosineAnnealingLR", "options": {"eta_min": 0.02}},
        {"name": "OneCycleLR", "options": {"max_lr": 0.1}},
    ],
)
def test_rollback_takes_the_newest_good_weights_and_halves_the_rates(data, keeper, caplog, scheduler):
    class Worse(Net):
        count = 0

        def forward(self, inputs):
            self.count += self.training
            outputs = super().forward(inputs)
            return outputs * float("nan") if self.count == 4 else outputs

    class Look(Callback):
        observes = True  # else it would be called for the steps that are repeated, too

        def __init__(self):
            self.weights = {}

        def after_step(self, trainer):
            self.weights[trainer.place.step] = trainer.model.head.weight.detach().clone()

    look, model = Look(), Worse()
    optimizer = build_optimizer(model, "SGD", 0.1)
    schedule = build_schedule(optimizer, 3, 3, interval="step", **scheduler)
    log = Log()
    with caplog.at_level(logging.WARNING):
        result = fit(
            model,
            data,
            Classify(),
            optimizer,
            log=log,
            checkpointer=keeper,
            scheduler=schedule,
            on_nan="rollback",
            callbacks=[look],
            log_interval=1,
            epochs=3,
        )
    assert result.steps == 9
    (bad,) = [step for name, _, step in log if name == "train/nonfinite"]
    assert bad == 4
    assert torch.equal(look.weights[4], look.weights[3])
    rates = rates_of(scheduler, 8)
    assert log.of("train/lr") == [*rates[:4], *(rate / 2 for rate in rates[3:])]  # no schedule counts step 4
    assert "step 4: loss or gradients are NaN or infinite; back to the weights after step 3, with half" in caplog.text


def test_rollback_goes_back_over_the_steps_since_the_newest_state(data, keeper):
    class Bad(Callback):
        weights = None
        seen = None

        def before_step(self, trainer, optimizer):
            if trainer.place.step == 3:
                self.weights = trainer.model.head.weight.detach().clone()
            if trainer.place.step == 5 and self.seen is None:
                trainer.model.head.weight.grad.fill_(float("inf"))

        def after_step(self, trainer):
            if trainer.place.step == 6:
                self.seen = trainer.model.head.weight.detach().clone()

    bad = Bad()
    train(data, keeper, on_nan="rollback", callbacks=[bad])
    assert torch.equal(bad.seen, bad.weights)  # those before step 4


def test_rollback_without_states_and_lbfgs_are_refused(data, keeper):
    class Bad(Callback):
        def before_step(self, trainer, optimizer):
            trainer.model.head.weight.grad.fill_(float("nan"))

    with pytest.raises(TrainingError, match="no state"):
        train(data, None, on_nan="rollback", callbacks=[Bad()])
    with pytest.raises(ConfigError, match=r"training.on_nan: LBFGS steps on its own"):
        train(data, keeper, on_nan="skip", name="LBFGS", scheduler=None)


def test_task_with_its_own_steps_is_examined(data, keeper):
    class Own(Classify):
        def step(self, trainer, group):
            return {"loss": trainer.minimize(lambda batch: self.loss(trainer.model, batch), group)}

    bundle, _ = bundle_of(data, keeper, Net("backward"), Own())
    assert bundle.incident["finding"]["operation"] == "PoisonedBackward"
    assert bundle.incident["history"][-1]["grad_norm"] == "nan"


def test_losses_that_share_a_forward_pass_are_examined(data, keeper):
    class Shared(Classify):
        def step(self, trainer, group):
            def losses(batch):
                loss = self.loss(trainer.model, batch)
                return {"body": loss, "head": 2 * loss}

            return {"loss": trainer.minimize_each(losses, group)["head"]}

    model = Net("backward")
    bodies = [*model.body.parameters(), *model.norm.parameters()]
    optimizers = {name: torch.optim.SGD(p, 0.1) for name, p in (("body", bodies), ("head", model.head.parameters()))}
    with pytest.raises(TrainingError, match="nan") as raised:
        fit(model, data, Shared(), optimizers, log=Log(), checkpointer=keeper, epochs=3)
    assert "PoisonedBackward" in str(raised.value)


def test_bundle_of_another_training_is_left_to_that(data, keeper, tmp_path):
    bundle, _ = bundle_of(data, keeper, Net("log"))
    with replaying(bundle.path):
        _, _, result = train(data, Checkpointer(tmp_path / "checkpoints-2", {}), Net())
    assert result.epochs == 3
    (bundle.path / "batch.pt").write_bytes(b"no batch")
    with replaying(bundle.path), pytest.raises(CheckpointError, match=r"batch\.pt"):
        train(data, keeper, Net("log"))
    (bundle.path / "incident.json").unlink()
    with replaying(bundle.path), pytest.raises(CheckpointError, match=r"bundle: .* is none that can be read"):
        train(data, keeper, Net("log"))


def test_bundle_that_lacks_what_it_tells_or_is_of_another_model_is_refused(data, keeper):
    bundle, _ = bundle_of(data, keeper, Net("log"))
    with replaying(bundle.path), pytest.raises(CheckpointError, match=r"does not fit this model: .* is only here"):
        train(data, keeper, nn.Sequential(nn.Linear(4, 3)))
    (bundle.path / "incident.json").write_text('{"format": 1, "step": 3}')
    with (
        replaying(bundle.path),
        pytest.raises(CheckpointError, match=r"is none that can be read \(KeyError: 'training'"),
    ):
        train(data, keeper, Net("log"))


def test_batches_of_any_structure_come_back_in_their_containers():
    pair = namedtuple("pair", "left right")
    batch = {"a": pair(torch.ones(2), [torch.zeros(1), "x"]), "b": (1, None)}
    kept = on_cpu(batch)
    assert type(kept["a"]) is tuple
    again = like(batch, kept)
    assert type(again["a"]) is pair
    assert (again["a"].right[1], again["b"]) == ("x", (1, None))
    assert torch.equal(again["a"].left, batch["a"].left)


@pytest.mark.nightly  # importing what compiles takes seconds
def test_module_of_a_compiled_model_is_named_as_without(data, keeper):
    bundle, _ = bundle_of(data, keeper, torch.compile(Net("log"), backend="eager"))
    assert bundle.incident["finding"]["module"] == "body.middle"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("planted", ["forward", "backward"])
def test_what_is_planted_is_named_on_cuda_and_replayed_there(data, keeper, tmp_path, planted):
    harm, _, expected = PLANTED[planted]
    for part in (data.train, data.val, data.test):
        part.inputs, part.targets = part.inputs.cuda(), part.targets.cuda()
    settings = {"amp": MixedPrecision(torch.device("cuda"))}
    bundle, _ = bundle_of(data, keeper, Net(harm).cuda(), **settings)
    assert {name: bundle.incident["finding"][name] for name in expected} == expected
    again = Checkpointer(tmp_path / "checkpoints", {})
    said = replayed(data, bundle, again, Net(harm).cuda(), amp=MixedPrecision(torch.device("cuda")))
    assert bundle.incident["summary"] in said.report
