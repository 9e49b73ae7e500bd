from __future__ import annotations

import gzip
import json
import logging

import pytest
import torch
from torch import nn

from sacristan.experiments import Task, fit
from sacristan.experiments.training.inspection import Probing, Profiling, make_callbacks
from sacristan.ingredients import Checkpointer, ConfigError, MixedPrecision
from sacristan.ingredients.checkpoints.files import load_checkpoint

CPU = torch.device("cpu")
ALL = ["inputs", "activations", "gradients", "weights", "histograms", "images"]


class Run:
    """The parts of a run that a callback needs."""

    def __init__(self):
        self.info, self.media, self.traces = {}, [], []

    def log_media(self, name, media, step):
        self.media.append((name, type(media).__name__, step))

    def add_artifact(self, path):
        self.traces.append((path.name, json.loads(gzip.decompress(path.read_bytes()))))


class Classify(Task):
    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.head = nn.Linear(3 * 16, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs).flatten(1))


@pytest.fixture
def data(tensor_data):
    torch.manual_seed(0)
    return tensor_data((torch.randn(24, 1, 6, 6), torch.arange(24) % 3), (torch.randn(8, 1, 6, 6), torch.arange(8) % 3))


def train(data, *callbacks, **settings):
    torch.manual_seed(0)
    model, points = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    settings = {"epochs": 2, "log_interval": 1, **settings}
    fit(model, data, Classify(), optimizer, log=lambda *p: points.append(p), callbacks=callbacks, **settings)
    return model, points


def num_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_probes_log_what_goes_through_modules_every_so_many_steps(data):
    run = Run()
    model, points = train(data, Probing(run, ["body.*", "head"], 2, ALL))
    of = {name: value for name, value, step in points if step == 4 and name.startswith("probe/")}
    assert {step for name, _, step in points if name.startswith("probe/")} == {2, 4, 6}
    for what in ("input_mean", "output_std", "output_zeros", "output_norm", "output_dead", "gradient_mean"):
        assert {f"probe/{module}/{what}" for module in ("body.0", "body.1", "body.2", "head")} <= of.keys()
    assert 0.2 < of["probe/body.1/output_zeros"] < 0.9
    assert of["probe/body.0/output_zeros"] == 0  # as it was before it was rectified in place
    assert 0 < of["probe/head/weight_update_ratio"] < 1
    assert of["probe/body.0/bias_grad_norm"] > 0
    assert {(name, kind) for name, kind, step in run.media if step == 4} == {
        *((f"probe/{module}/{what}", "Histogram") for module in ("body.0", "head") for what in ("weight", "bias")),
        *(
            (f"probe/{m}/{w}", "Histogram")
            for m in ("body.0", "body.1", "body.2", "head")
            for w in ("output", "gradient")
        ),
        *((f"probe/body.{number}/maps", "Image") for number in range(3)),
    }
    assert num_hooks(model) == 0


def test_figures_are_those_of_the_tensors_and_of_the_step(data):
    seen = {}

    class Look(Probing):
        def before_step(self, trainer, optimizer):
            super().before_step(trainer, optimizer)
            seen["output"], seen["gradient"] = self._probe.outputs.get("head"), self._probe.gradients.get("head")
            weight = trainer.model.head.weight
            seen["weight"], seen["grad"] = weight.detach().clone(), weight.grad.clone()

    model, points = train(data, Look(Run(), ["head"], 6, ["activations", "gradients", "weights"]))
    of = {name.rpartition("/")[2]: value for name, value, step in points if name.startswith("probe/")}
    for word in ("output", "gradient"):
        values = seen[word]
        assert of[f"{word}_mean"] == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-7)
        assert of[f"{word}_std"] == pytest.approx(values.std(correction=0).item(), rel=1e-4)
        assert of[f"{word}_norm"] == pytest.approx(values.norm().item(), rel=1e-4)
    assert of["weight_grad_norm"] == pytest.approx(seen["grad"].norm().item(), rel=1e-4)
    moved = (model.head.weight.detach() - seen["weight"]).norm() / seen["weight"].norm()
    assert of["weight_update_ratio"] == pytest.approx(moved.item(), rel=1e-4)


def test_gradients_under_float16_are_without_its_scale(data):
    def gradient(**amp):
        points = train(data, Probing(Run(), ["head"], 1, ["gradients", "weights"]), amp=MixedPrecision(CPU, **amp))[1]
        return {name: value for name, value, step in points if step == 1 and "gr" in name.rpartition("/")[2]}

    plain, scaled = gradient(), gradient(dtype="float16", init_scale=1024.0)
    assert scaled["probe/head/gradient_norm"] == pytest.approx(plain["probe/head/gradient_norm"], rel=0.01)
    assert scaled["probe/head/weight_grad_norm"] == pytest.approx(plain["probe/head/weight_grad_norm"], rel=0.01)


def test_dead_units_are_counted(data):
    class Dead(Probing):
        def start(self, trainer):
            with torch.no_grad():
                trainer.model.body[0].weight[1].zero_()
                trainer.model.body[0].bias[1] = -1.0
            super().start(trainer)

    points = train(data, Dead(Run(), ["body.1"], 1, ["activations"]), epochs=1)[1]
    assert next(value for name, value, _ in points if name.endswith("output_dead")) == pytest.approx(1 / 3)


@pytest.mark.slow
def test_nothing_of_a_training_depends_on_probes_and_profile_bit_for_bit(data, tmp_path):
    def trained(name, *callbacks, epochs=3, resume=False):
        keeper = Checkpointer(tmp_path / name, {}, resume=resume, interval_steps=2)
        model, points = train(data, *callbacks, epochs=epochs, checkpointer=keeper, on_nan="skip")
        kept = [point for point in points if not point[0].startswith("probe/")]
        return model.state_dict(), kept, load_checkpoint(tmp_path / name / "last.pt")

    def watched():
        return Probing(Run(), ["*"], 2, ALL), Profiling(Run(), 2, 4)

    bare, watching = trained("bare"), trained("watched", *watched())
    trained("resumed", *watched(), epochs=2)
    resumed = trained("resumed", *watched(), resume=True)
    for weights, _, state in (watching, resumed):
        assert all(torch.equal(weights[name], bare[0][name]) for name in weights)
        assert state["streams"].keys() == bare[2]["streams"].keys()
        assert torch.equal(state["streams"]["torch"], bare[2]["streams"]["torch"])
    assert watching[1] == bare[1]
    assert resumed[1] == [point for point in bare[1] if point[2] > 6]
    # with them, or without, the states are the same ones
    trained("mixed", *watched(), epochs=2)
    mixed = trained("mixed", resume=True)[0]
    assert all(torch.equal(mixed[name], bare[0][name]) for name in bare[0])


def test_hooks_are_gone_after_an_error_in_the_middle_of_a_step(data):
    class Fail(Classify):
        def loss(self, model, batch):
            super().loss(model, batch)
            assert num_hooks(model) > 0
            raise RuntimeError("in the middle")

    model, amp, task = Net(), MixedPrecision(CPU), Fail()
    callbacks = [Probing(Run(), ["head"], 1, ALL), Profiling(Run(), 1, 2)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data.val.inputs, data.val.targets = data.val.inputs[:0], data.val.targets[:0]
    task.check = lambda model, data, amp: ()
    with pytest.raises(RuntimeError, match="in the middle"):
        fit(model, data, task, optimizer, log=lambda *p: None, callbacks=callbacks, amp=amp, epochs=1)
    assert num_hooks(model) == 0
    assert not {"backward", "step"} & vars(amp).keys()
    assert "loss" not in vars(task)


def test_profile_says_where_the_time_of_steps_went_and_keeps_a_trace(data, caplog):
    run = Run()
    with caplog.at_level(logging.INFO):
        train(data, Profiling(run, 2, 4))
    assert (run.info["profile"]["steps"], run.info["profile"]["last_step"]) == (3, 4)
    assert list(run.info["profile"]["share"]) == ["data", "forward", "backward", "optimizer", "rest"]
    assert sum(run.info["profile"]["share"].values()) == pytest.approx(1)
    assert all(run.info["profile"]["ms_per_step"][name] > 0 for name in ("forward", "backward", "optimizer"))
    assert "profile of 3 steps, up to step 4:" in caplog.text
    ((name, trace),) = run.traces
    names = [event.get("name") for event in trace["traceEvents"]]
    assert name == "profile-4.json.gz"
    assert [names.count(f"step: {phase}") for phase in ("forward", "backward", "optimizer")] == [3, 3, 3]


def test_profile_that_the_end_of_the_training_cuts_short_is_reported(data):
    run = Run()
    train(data, Profiling(run, 5, 99))
    assert run.info["profile"]["steps"] == 2


def test_profile_names_the_loader_where_steps_wait_for_it(data, caplog):
    class Slow(type(data.train)):
        def epoch(self, epoch=0, start=0):
            for batch in super().epoch(epoch, start):
                torch.linalg.inv(torch.randn(500, 500))  # some work
                yield batch

    data.train.__class__ = Slow
    with caplog.at_level(logging.WARNING):
        train(data, Profiling(Run(), 2, 3), epochs=1)
    assert "of the time of these steps went into batches; raise data.num_workers" in caplog.text


def test_settings_make_callbacks_and_none_by_default():
    off = {"modules": [], "every": 100, "what": [], "profile": []}
    assert make_callbacks(Run(), {}) == make_callbacks(Run(), {"probe": off}) == []
    made = make_callbacks(Run(), {"probe": {**off, "modules": "head", "profile": [1, 2]}})
    assert [type(callback).__name__ for callback in made] == ["Probing", "Profiling"]


def test_glob_that_matches_no_module_is_refused_with_the_nearest_name(data):
    with pytest.raises(ConfigError, match=r"probe.modules: got 'haed', which is no module's name; did you mean head\?"):
        train(data, Probing(Run(), ["haed"], 1, ALL))
