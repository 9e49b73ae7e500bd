from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.experiments import Callback, Monitor, Supervised, Trainer, evaluate, fit, predict, steps_per_epoch
from sacristan.experiments.training.gradients import add_gradients, grouped
from sacristan.experiments.training.loop import _num_validations, evaluate_and_predict
from sacristan.ingredients import (
    CNN,
    Checkpointer,
    ConfigError,
    LossError,
    MixedPrecision,
    ModelError,
    PrecisionError,
    SchedulerError,
    TrainingError,
)
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.losses import build_loss
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.scheduler import build_schedule

CPU = torch.device("cpu")
_GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(36, 4, generator=_GENERATOR)
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
VALUES = torch.stack([INPUTS[:, 0] * 2 + 1, INPUTS[:, 1] - INPUTS[:, 2]], -1)


class Log(list):
    """The metrics that were logged, as (name, value, step)."""

    def __call__(self, name, value, step):
        self.append((name, value, step))

    def of(self, name):
        return [value for other, value, _ in self if other == name]

    def steps(self, name):
        return [step for other, _, step in self if other == name]


@pytest.fixture
def data(tensor_data):
    return tensor_data((INPUTS[:20], LABELS[:20]), (INPUTS[20:30], LABELS[20:30]), (INPUTS[30:], LABELS[30:]))


def backward(model, group, loss, amp):
    """Return the loss of one effective batch, after adding its gradients to the model's."""
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters.values()], lr=1.0)
    trainer = Trainer(model, Supervised(loss), None, {"": optimizer}, {}, amp, None)
    return add_gradients(
        lambda batch: trainer.task.loss(model, batch), group, trainer.task, amp, optimizer, trainer.note
    )


def make_model(num_outputs=3, *layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *layers, nn.Linear(8, num_outputs))


def loss_for(data, name=None, options={}, class_weights=None):
    return build_loss(name, options, class_weights, data, CPU)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def train(data, model=None, optimizer=None, *, name="SGD", lr=0.5, epochs=2, loss=None, schedule={}, **settings):
    """Train as the main experiment does, and return the model, what was logged, and the result."""
    model, log = model or make_model(data.num_targets), Log()
    optimizer = optimizer or build_optimizer(model, name, lr)
    amp = settings.get("amp")
    steps = steps_per_epoch(data.train, amp.accumulate if amp else 1)
    scheduler = build_schedule(optimizer, epochs, steps, **schedule)
    result = fit(
        model, data, loss or loss_for(data), optimizer, scheduler=scheduler, log=log, epochs=epochs, **settings
    )
    return model, log, result


@pytest.mark.parametrize(
    ("last", "name", "told"),
    [
        (nn.Softmax(1), "cross_entropy", "Softmax, and CrossEntropyLoss"),
        (nn.Softmax(1), "focal", "Softmax, and FocalLoss"),
        (nn.Sigmoid(), "bce", "Sigmoid, and BinaryCrossEntropy"),
        (nn.Sigmoid(), "binary_focal", "Sigmoid, and BinaryFocalLoss"),
        (nn.Identity(), "cross_entropy", None),
        (nn.Sigmoid(), "cross_entropy", None),
        (nn.LogSoftmax(1), "nll", None),
    ],
)
def test_function_that_the_loss_applies_as_the_last_layer_is_told_once(tensor_data, caplog, last, name, told):
    inputs, targets = INPUTS, (LABELS > 0).long()
    data = tensor_data((inputs[:20], targets[:20]), (inputs[20:], targets[20:]))
    loss = loss_for(data, name)
    train(data, nn.Sequential(make_model(loss.num_outputs), nn.Sequential(last)), loss=loss)
    assert caplog.text.count("the last layer is") == (told is not None)
    assert told is None or f"the last layer is {told} takes scores before it" in caplog.text


def test_fit_is_the_plain_loop_of_torch(data):
    model, log, result = train(data, epochs=3, log_interval=4)
    plain, losses, norms = make_model(), [], []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(3):
        for start in (0, 8, 16):
            loss = functional.cross_entropy(
                plain(INPUTS[start : min(start + 8, 20)]), LABELS[start : min(start + 8, 20)]
            )
            loss.backward()
            norms.append(gradients(plain).norm().item())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert torch.equal(weights(model), weights(plain))
    assert (result.epochs, result.steps, result.stopped_early) == (3, 9, False)
    assert log.of("train/loss") == pytest.approx([np.mean(losses[:4]), np.mean(losses[4:8]), losses[8]])
    assert log.of("train/grad_norm") == pytest.approx([norms[3], norms[7], norms[8]])


@pytest.mark.parametrize("name", ["train/loss", "train/grad_norm", "train/lr"])
@pytest.mark.parametrize(("interval", "steps"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4, 6]), (50, [6])])
def test_fit_logs_the_training_every_interval_and_at_the_end(data, name, interval, steps):
    assert train(data, log_interval=interval)[1].steps(name) == steps


@pytest.mark.parametrize(("interval", "steps"), [(1, [3, 6, 9, 12, 15]), (2, [6, 12, 15]), (9, [15])])
def test_fit_logs_the_validation_every_interval_and_at_the_end(data, interval, steps):
    log = train(data, epochs=5, val_interval=interval)[1]
    assert log.steps("val/loss") == log.steps("val/accuracy") == steps


def test_fit_logs_the_validation_that_evaluate_measures(data):
    model, log, _ = train(data)
    assert {name: log.of(f"val/{name}")[-1] for name in ("loss", "accuracy")} == evaluate(
        model, data.val, loss_for(data)
    )


def test_fit_logs_the_rate_of_each_step(data):
    schedule = {"name": "StepLR", "options": {"step_size": 1, "gamma": 0.5}, "interval": "step"}
    assert train(data, lr=1.0, log_interval=1, schedule=schedule)[1].of("train/lr") == [0.5**k for k in range(6)]


def test_fit_logs_the_rate_of_the_config_before_that_of_a_group(data):
    model = make_model()
    optimizer = build_optimizer(model, "SGD", 0.5, groups=[{"match": "0.*", "lr": 0.1}])
    assert set(train(data, model, optimizer)[1].of("train/lr")) == {0.5}


def test_fit_steps_the_schedule_each_epoch(data):
    schedule = {"name": "StepLR", "options": {"step_size": 1, "gamma": 0.5}}
    rates = train(data, lr=1.0, log_interval=1, schedule=schedule)[1].of("train/lr")
    assert rates == [1.0] * 3 + [0.5] * 3


def test_fit_without_float16_logs_no_scale(data):
    assert {name for name, _, _ in train(data)[1]} == {
        "train/loss",
        "train/grad_norm",
        "train/lr",
        "val/loss",
        "val/accuracy",
    }


def test_fit_again_with_the_same_generator_gives_the_same_bits(data):
    found = []
    for seed in (0, 0, 1):
        model = make_model(3, nn.Dropout(0.5))
        torch.manual_seed(seed)
        _, log, _ = train(data, model)
        found.append((weights(model).tolist(), log))
    assert found[0] == found[1] != found[2]


def test_fit_of_a_model_in_evaluation_mode_trains_all_of_it(data):
    model = train(data, make_model(3, nn.BatchNorm1d(8)).eval())[0]
    assert model.training
    assert model[2].num_batches_tracked == 6


def test_fit_clips_and_logs_the_norm_before(data):
    log = train(data, lr=1e-9, amp=MixedPrecision(CPU, clip_norm=1e-3), log_interval=1)[1]
    free = train(data, lr=1e-9, log_interval=1)[1]
    assert log.of("train/grad_norm") == pytest.approx(free.of("train/grad_norm"))
    assert min(free.of("train/grad_norm")) > 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fit_in_low_precision_comes_close_to_float32(data, dtype):
    _, log, _ = train(data, epochs=10, amp=MixedPrecision(CPU, dtype))
    expected = evaluate(train(data, epochs=10)[0], data.val, loss_for(data))["loss"]
    assert log.of("val/loss")[-1] == pytest.approx(expected, rel=0.05)


def test_fit_under_overflow_skips_counts_and_goes_on_without_moving_the_schedule(data):
    amp = MixedPrecision(CPU, "float16", init_scale=2.0**120, backoff_factor=2.0**-56)
    schedule = {"name": "StepLR", "options": {"step_size": 1, "gamma": 0.5}, "interval": "step"}
    model, log, result = train(data, amp=amp, log_interval=1, schedule=schedule)
    assert (result.steps, amp.num_skipped) == (6, 2)
    assert log.of("train/lr") == [0.5, 0.5, 0.5, 0.25, 0.125, 0.0625]
    assert log.of("amp/skipped") == [1, 2, 2, 2, 2, 2]
    assert log.of("amp/scale") == [2.0**120, 2.0**64] + [2.0**8] * 4
    assert weights(model).isfinite().all()


def test_fit_with_lbfgs_trains(tensor_data):
    data, model = tensor_data((INPUTS, LABELS), batch_size=36), make_model()
    optimizer = build_optimizer(model, "LBFGS", 0.5, options={"line_search_fn": "strong_wolfe"})
    log = train(data, model, optimizer, epochs=3, log_interval=1)[1]
    assert log.of("train/loss") == sorted(log.of("train/loss"), reverse=True)
    assert log.of("train/loss")[-1] < log.of("train/loss")[0] / 2


def test_fit_with_lbfgs_and_accumulation_is_that_of_big_batches(tensor_data):
    found = []
    for batch_size, accumulate in ((20, 1), (8, 3)):
        data, model = tensor_data((INPUTS[:20], LABELS[:20]), batch_size=batch_size), make_model()
        optimizer = build_optimizer(model, "LBFGS", 0.1, options={"max_iter": 3})
        train(data, model, optimizer, epochs=1, amp=MixedPrecision(CPU, accumulate=accumulate))
        found.append(weights(model))
    assert torch.allclose(*found, atol=1e-5)


def test_fit_with_lbfgs_under_float16_raises(data):
    with pytest.raises(PrecisionError, match=r"amp.dtype: LBFGS recomputes its loss, which float16 cannot scale"):
        train(data, name="LBFGS", amp=MixedPrecision(CPU, "float16"))


def test_scalar_beside_the_loss_that_is_not_finite_is_told_once(data, caplog):
    class Beside(Supervised):
        def loss(self, model, batch):
            return {"loss": super().loss(model, batch), "ratio": torch.tensor(0.0) / 0, "error": torch.tensor(1.0)}

    log = train(data, loss=Beside(loss_for(data)), log_interval=1)[1]
    assert len(log.of("train/loss")) == len(log.of("train/ratio")) == 6
    assert caplog.text.count("train/ratio, which the task returns beside its loss, is nan by step 1;") == 1
    assert caplog.text.count("beside its loss") == 1


class Sharpness(torch.optim.SGD):
    """SAM: steps by the gradients where the loss is greatest near by; it wants those at the weights first."""

    @torch.no_grad()
    def first_step(self):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.moved = [(parameter, parameter.grad / (parameter.grad.norm() + 1e-12) * 0.05) for parameter in parameters]
        for parameter, by in self.moved:
            parameter.add_(by)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for parameter, by in self.moved:
            parameter.sub_(by)
        super().step()

    def step(self, closure=None):
        assert closure is not None, "SAM needs a closure"
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


class Twice(torch.optim.SGD):
    """Takes two steps on a batch, and computes the gradients of both itself."""

    @torch.no_grad()
    def step(self, closure):
        loss = closure()
        super().step()
        closure()
        super().step()
        return loss


@pytest.mark.parametrize("cls", [Sharpness, Twice])
def test_fit_with_an_optimizer_that_wants_a_closure_is_the_loop_by_hand(data, cls):
    model, by_hand = make_model(), make_model()
    log = train(data, model, cls(model.parameters(), lr=0.1), epochs=2, log_interval=1)[1]
    optimizer, losses = cls(by_hand.parameters(), lr=0.1), []
    parts = (slice(0, 8), slice(8, 16), slice(16, 20))
    for batch in 2 * [(INPUTS[part], LABELS[part]) for part in parts]:

        def closure(batch=batch):
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = functional.cross_entropy(by_hand(batch[0]), batch[1])
            loss.backward()
            return loss

        losses.append(functional.cross_entropy(by_hand(batch[0]), batch[1]).item())
        if cls is Sharpness:
            closure()
        optimizer.step(closure)
    assert torch.equal(weights(model), weights(by_hand))
    assert log.of("train/loss") == losses


@pytest.mark.parametrize("cls", [Sharpness, Twice, torch.optim.LBFGS])
def test_batch_that_a_task_skips_is_no_step_of_an_optimizer_with_a_closure(data, tensor_data, cls):
    class SkipsTheFirst(Supervised):
        def loss(self, model, batch):
            return None if torch.equal(batch[0], INPUTS[:8]) else super().loss(model, batch)

    found, steps = [], []
    for used, task in ((data, SkipsTheFirst), (tensor_data((INPUTS[8:20], LABELS[8:20])), Supervised)):
        model = make_model()
        task = task(loss_for(data))
        steps.append(train(used, model, cls(model.parameters(), lr=0.1), epochs=1, loss=task)[2].steps)
        found.append(weights(model))
    assert torch.equal(*found)
    assert steps == [3, 2]


def test_task_that_skips_a_batch_it_had_a_loss_of_is_told(data):
    class Wavers(Supervised):
        def loss(self, model, batch):
            return super().loss(model, batch) if torch.equal(weights(model), before) else None

    model = make_model()
    before = weights(model)
    with pytest.raises(ConfigError, match="task: skipped a batch that it had a loss of; Twice computes"):
        train(data, model, Twice(model.parameters(), lr=0.1), loss=Wavers(loss_for(data)))


def test_fit_with_sparse_gradients_trains(tensor_data):
    words = torch.arange(20.0).reshape(20, 1) % 5
    data = tensor_data((words, words[:, 0].long() % 2))

    class Words(nn.Embedding):
        def forward(self, inputs):
            return super().forward(inputs[:, 0].long())

    log = train(data, Words(5, 2, sparse=True), name="SparseAdam", lr=0.1, log_interval=1, epochs=5)[1]
    assert log.of("train/loss")[-1] < log.of("train/loss")[0]
    assert min(log.of("train/grad_norm")) > 0


# Losses that need care when the mean of a batch is put together from those of its parts.
COMPOSED = {
    "plain": ("cross_entropy", {}, None),
    "weighted": ("cross_entropy", {}, [1.0, 2.0, 5.0]),
    "ignored": ("cross_entropy", {"ignore_index": 1}, None),
    "ignored and weighted": ("cross_entropy", {"ignore_index": 1}, [1.0, 2.0, 5.0]),
    "smoothed and weighted": ("cross_entropy", {"label_smoothing": 0.2}, [1.0, 2.0, 5.0]),
    "focal and weighted": ("focal", {"gamma": 2.0}, [1.0, 2.0, 5.0]),
}


def gradients_of(data, loss, parts, num_outputs=3, amp=None):
    model, inputs, targets = make_model(num_outputs), data.train.inputs, data.train.targets
    group = list(zip(inputs.split(parts), targets.split(parts), strict=True))
    value = backward(model, group, loss, amp or MixedPrecision(CPU)).item()
    return gradients(model), value


@pytest.mark.parametrize("parts", [[5, 5, 5, 5], [8, 8, 4], [19, 1]])
@pytest.mark.parametrize("composed", COMPOSED)
def test_accumulated_gradients_are_those_of_one_big_batch(data, composed, parts):
    loss = loss_for(data, *COMPOSED[composed])
    whole, value = gradients_of(data, loss, [20])
    accumulated, mean = gradients_of(data, loss, parts)
    assert torch.allclose(accumulated, whole, atol=1e-6)
    assert mean == pytest.approx(value)


@pytest.mark.parametrize("name", ["mse", "l1", "smooth_l1"])
def test_accumulated_gradients_of_values_are_those_of_one_big_batch(tensor_data, name):
    data = tensor_data((INPUTS[:20], VALUES[:20]))
    loss = loss_for(data, name)
    whole, accumulated = (gradients_of(data, loss, parts, 2)[0] for parts in ([20], [8, 8, 4]))
    assert torch.allclose(accumulated, whole, atol=1e-6)


@pytest.mark.parametrize("weight", [{}, {"pos_weight": 3.0}])
def test_accumulated_gradients_of_labels_are_those_of_one_big_batch(tensor_data, weight):
    data = tensor_data((INPUTS[:20], (VALUES[:20] > 0).float()), task="multilabel", classes="ab")
    loss = loss_for(data, "bce", weight)
    whole, accumulated = (gradients_of(data, loss, parts, 2)[0] for parts in ([20], [8, 8, 4]))
    assert torch.allclose(accumulated, whole, atol=1e-6)


@pytest.mark.parametrize("class_weights", [None, [1.0, 2.0, 5.0]])
def test_accumulated_gradients_with_a_part_all_ignored_are_those_of_one_big_batch(data, class_weights):
    data.train.targets = data.train.targets.sort().values
    num_ignored = int((data.train.targets == 0).sum())
    loss = loss_for(data, "cross_entropy", {"ignore_index": 0}, class_weights)
    whole, value = gradients_of(data, loss, [20])
    accumulated, mean = gradients_of(data, loss, [num_ignored, 20 - num_ignored])
    assert torch.allclose(accumulated, whole, atol=1e-6)
    assert mean == pytest.approx(value)


def test_fit_with_accumulation_is_that_of_big_batches(data, tensor_data):
    halves = tensor_data((INPUTS[:20], LABELS[:20]), batch_size=4)
    one, log, result = train(data, log_interval=1)
    other, accumulated, same = train(halves, log_interval=1, amp=MixedPrecision(CPU, accumulate=2))
    assert torch.allclose(weights(one), weights(other), atol=1e-6)
    assert accumulated.of("train/loss") == pytest.approx(log.of("train/loss"))
    assert (result.steps, same.steps) == (6, 6)


def test_grouped_yields_lists_with_a_shorter_last_one():
    assert list(grouped("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(grouped("", 2)) == []


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 3), (2, 2), (3, 1), (9, 1)])
def test_steps_per_epoch_count_a_shorter_last_one(data, accumulate, steps):
    assert steps_per_epoch(data.train, accumulate) == steps


class StoppedError(Exception):
    pass


class Stop(Callback):
    """Stops a training after so many steps."""

    def __init__(self, step=None):
        self.step = step

    def before_step(self, trainer, optimizer):
        if trainer.place.step == self.step:
            raise StoppedError


def test_last_step_of_a_training_that_stopped_within_an_epoch_is_logged(data, tmp_path):
    def session(stop, **options):
        keeper = Checkpointer(tmp_path, {}, interval_steps=1, **options)
        amp = MixedPrecision(CPU, accumulate=2)  # two steps an epoch, of two batches and one
        return train(data, callbacks=[Stop(stop)], checkpointer=keeper, amp=amp, epochs=2, log_interval=1000)[1]

    with pytest.raises(StoppedError):
        session(1)
    assert [step for name, _, step in session(None, resume=True) if name == "train/loss"] == [4]


def test_fit_with_patience_stops_when_nothing_improves(data, tmp_path):
    keeper = Checkpointer(tmp_path, {}, interval=100)
    _, log, result = train(data, lr=1e-12, epochs=9, patience=2, min_delta=1e-3, checkpointer=keeper)
    assert (result.epochs, result.stopped_early, result.best_epoch) == (3, True, 1)
    assert result.best == log.of("val/loss")[0]
    assert load_checkpoint(keeper.last_path)["epoch"] == 3


def test_fit_without_patience_goes_on(data):
    result = train(data, lr=1e-12, epochs=5)[2]
    assert (result.epochs, result.stopped_early) == (5, False)


@pytest.mark.parametrize(("monitor", "choose"), [("val/loss", min), ("val/accuracy", max)])
def test_fit_keeps_the_best_epoch_and_restores_it(data, tmp_path, monitor, choose):
    keeper, model = Checkpointer(tmp_path, {}), train(data, epochs=20)[0]
    data.train.targets = (data.train.targets + 1) % 3
    _, log, result = train(data, model, lr=0.1, epochs=9, monitor=monitor, checkpointer=keeper)
    values = log.of(monitor)
    keeper.restore_best(model)
    assert result.best == choose(values) != values[-1]
    assert result.best_epoch == values.index(choose(values)) + 1
    assert evaluate(model, data.val, loss_for(data))[monitor.removeprefix("val/")] == choose(values)


def test_fit_keeps_the_newest_state_of_every_part(data, tmp_path):
    keeper, amp = Checkpointer(tmp_path, {"seed": 3}), MixedPrecision(CPU, "float16")
    model, _, result = train(data, epochs=3, checkpointer=keeper, amp=amp, schedule={"name": "CosineAnnealingLR"})
    state = load_checkpoint(keeper.last_path)
    parts = {"model", "optimizer", "scheduler", "amp", "monitor", "streams"}
    assert state.keys() == {
        *parts,
        "epoch",
        "batch",
        "step",
        "losses",
        "scalars",
        "stopped",
        "data",
        "config",
        "format",
    }
    assert (state["epoch"], state["batch"], state["step"], state["config"]) == (3, 0, 9, {"seed": 3})
    assert torch.equal(state["model"]["0.weight"], model[0].weight)
    waited = 3 - result.best_epoch
    assert state["monitor"] == {"value": result.best, "epoch": result.best_epoch, "waited": waited, "mark": result.best}


def refused(data, error, message, model=None, **settings):
    """Check that training is refused before anything happened."""
    model = model or make_model(data.num_targets)
    before = weights(model)
    with pytest.raises(error, match=message):
        train(data, model, **settings)
    assert torch.equal(weights(model), before)


def test_fit_with_a_monitor_that_is_not_measured_raises_before_the_first_step(data):
    message = r"training.monitor: got 'val/acuracy', which is not measured; there are: val/loss, val/accuracy"
    refused(data, ConfigError, message, monitor="val/acuracy")


def test_fit_of_values_with_a_monitor_of_classes_raises_before_the_first_step(tensor_data):
    data = tensor_data((INPUTS, VALUES), (INPUTS, VALUES))
    message = r"got 'val/accuracy', which is not measured; there are: val/loss, val/r2, val/mae, val/rmse"
    refused(data, ConfigError, message, monitor="val/accuracy")


def test_fit_with_a_plateau_of_what_is_not_measured_raises_before_the_first_step(data):
    schedule = {"name": "ReduceLROnPlateau", "metric": "val/acuracy"}
    refused(data, SchedulerError, r"scheduler.metric: got 'val/acuracy', which is not measured", schedule=schedule)


def test_fit_with_a_plateau_without_a_validation_part_raises_before_the_first_step(tensor_data):
    data = tensor_data((INPUTS, LABELS))
    refused(
        data,
        SchedulerError,
        "ReduceLROnPlateau reads a validation metric",
        schedule={"name": "ReduceLROnPlateau"},
    )


def test_fit_with_patience_without_a_validation_part_raises_before_the_first_step(tensor_data):
    data = tensor_data((INPUTS, LABELS))
    refused(data, ConfigError, r"training.patience: got a number, but there is no validation part", patience=3)


@pytest.mark.parametrize("name", ["epochs", "val_interval", "log_interval"])
def test_fit_with_a_number_below_one_raises(data, name):
    refused(data, ConfigError, f"training.{name}: got 0, expected at least 1", **{name: 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0}, "training.patience: got 0, expected at least 1, or None to never stop early"),
        ({"min_delta": -0.1}, "training.min_delta: got -0.1, expected 0 or more"),
    ],
)
def test_fit_with_impossible_stopping_raises(data, settings, message):
    refused(data, ConfigError, message, **settings)


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (19, r"the last training batch holds one sample, which BatchNorm1d cannot take; set data.drop_last=True"),
        (1, r"every training batch holds one sample, which BatchNorm1d cannot take; raise data.batch_size"),
    ],
)
@pytest.mark.parametrize("keeps_statistics", [True, False])
def test_fit_with_batchnorm_and_a_batch_of_one_sample_raises(tensor_data, batch_size, message, keeps_statistics):
    data = tensor_data((INPUTS[:20], LABELS[:20]), batch_size=batch_size)
    refused(data, ModelError, message, make_model(3, nn.BatchNorm1d(8, track_running_stats=keeps_statistics)))


@pytest.mark.parametrize(
    ("size", "widths", "refuses"), [(4, [4, 8, 8], True), (8, [4, 8, 8], False), (2, [4, 4], True), (1, [4], True)]
)
def test_fit_of_the_cnn_and_a_batch_of_one_sample_raises_where_one_pixel_is_left(tensor_data, size, widths, refuses):
    images = torch.randn(17, 1, size, size, generator=torch.Generator().manual_seed(0))
    data, model = tensor_data((images, LABELS[:17]), batch_size=8), CNN((1, size, size), 3, widths)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if not refuses:
        assert train(data, model, epochs=1)[2].steps == 3
        return
    refused(data, ModelError, r"the last training .* which BatchNorm2d cannot take; set data.drop_last=True", model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("part", ["validation", "test"])
def test_fit_with_batchnorm_without_statistics_and_a_part_that_ends_with_one_sample_raises(tensor_data, part):
    whole, ending = (INPUTS[:16], LABELS[:16]), (INPUTS[:9], LABELS[:9])
    data = tensor_data(whole, *((ending, whole) if part == "validation" else (whole, ending)), batch_size=8)
    message = (
        rf"the last {part} batch holds one sample, which BatchNorm1d without running statistics cannot take; leave"
    )
    refused(data, ModelError, message, make_model(3, nn.BatchNorm1d(8, track_running_stats=False)))


def test_fit_with_batchnorm_without_statistics_warns_once_of_metrics_that_depend_on_batches(tensor_data, caplog):
    part = (INPUTS[:16], LABELS[:16])
    train(tensor_data(part, part, batch_size=8), make_model(3, nn.BatchNorm1d(8, track_running_stats=False)))
    message = "model: BatchNorm without running statistics (BatchNorm1d (2)) normalises by the batch in evaluation, too"
    assert [message in text for text in caplog.messages] == [True]


def test_fit_with_batchnorm_that_drops_the_last_batch_trains(tensor_data):
    data = tensor_data((INPUTS[:20], LABELS[:20]), batch_size=19)
    data.train.drop_last = True
    assert train(data, make_model(3, nn.BatchNorm1d(8)))[2].steps == 2


def test_fit_with_a_loss_that_does_not_fit_raises_before_the_first_step(data):
    refused(data, LossError, r"loss.name: nll needs log-probabilities", loss=loss_for(data, "nll"))


def test_fit_without_a_validation_part_trains_and_keeps_no_best(tensor_data, tmp_path):
    keeper = Checkpointer(tmp_path, {})
    _, log, result = train(tensor_data((INPUTS, LABELS)), checkpointer=keeper)
    assert {name for name, _, _ in log} == {"train/loss", "train/grad_norm", "train/lr"}
    assert (result.best_epoch, math.isnan(result.best)) == (0, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "step-000000005.pt"]


def followed(values, **options):
    """Return after which values a monitor had a new best, and after which it was exhausted."""
    monitor = Monitor("val/x", **options)
    found = [(monitor.update({"val/x": value}, k + 1), monitor.exhausted) for k, value in enumerate(values)]
    return [k for k, (better, _) in enumerate(found) if better], [k for k, (_, end) in enumerate(found) if end]


@pytest.mark.parametrize(
    ("options", "best", "exhausted"),
    [
        ({"mode": "min"}, [0, 1, 3], []),
        ({"mode": "max"}, [0, 4], []),
        ({"mode": "min", "min_delta": 0.5}, [0, 1, 3], []),
        ({"mode": "min", "patience": 1}, [0, 1, 3], [2, 4]),
        ({"mode": "max", "patience": 3}, [0, 4], [3]),
        ({"mode": "min", "min_delta": 0.5, "patience": 2}, [0, 1, 3], [3, 4]),
    ],
)
def test_monitor_follows_its_metric(options, best, exhausted):
    assert followed([3.0, 2.0, 2.0, 1.75, 4.0], **options) == (best, exhausted)


@pytest.mark.parametrize(
    ("name", "larger"),
    [("val/loss", False), ("val/mae", False), ("val/rmse", False), ("val/accuracy", True), ("val/r2", True)],
)
def test_monitor_knows_which_way_is_better(name, larger):
    assert Monitor(name).larger_is_better is larger


def test_monitor_takes_any_number_for_better_than_nan():
    assert followed([math.nan, math.nan, 5.0, math.nan, 4.0], patience=2) == ([0, 2, 4], [])


def test_monitor_counts_small_steps_together():
    assert followed([1.0, 0.75, 0.5, 0.25, 0.0], mode="min", min_delta=0.4, patience=2) == ([0, 1, 2, 3, 4], [])


def test_monitor_goes_on_from_the_state_of_an_earlier_version():
    monitor = Monitor("val/x", "min", patience=2, min_delta=0.5)
    monitor.load_state_dict({"value": 2.0, "epoch": 1, "waited": 1})
    assert (monitor.update({"val/x": 1.75}, 2), monitor.exhausted, monitor.epoch) == (True, True, 2)


def test_monitor_that_meets_only_nan_is_exhausted():
    assert followed([math.nan] * 4, patience=2) == ([0], [2, 3])


def test_monitor_goes_on_from_its_state():
    monitor, again = Monitor("val/x", patience=3), Monitor("val/x", patience=3)
    for epoch, value in enumerate([2.0, 1.0, 3.0], 1):
        monitor.update({"val/x": value}, epoch)
    again.load_state_dict(monitor.state_dict())
    assert (again.value, again.epoch, again.waited) == (1.0, 2, 1)


def test_evaluate_of_classes_is_the_hand_computation_over_all_samples(data):
    model, loss = make_model(), loss_for(data)
    scores = model(INPUTS[20:30])
    assert data.val.last_batch_size == 2
    assert evaluate(model, data.val, loss) == {
        "loss": pytest.approx(functional.cross_entropy(scores, LABELS[20:30]).item()),
        "accuracy": (scores.argmax(-1) == LABELS[20:30]).double().mean().item(),
    }


@pytest.mark.parametrize("composed", COMPOSED)
def test_evaluate_with_weights_is_the_loss_of_one_big_batch(data, composed):
    model, loss = make_model(), loss_for(data, *COMPOSED[composed])
    expected = loss(model(INPUTS[20:30]), LABELS[20:30]).item()
    assert evaluate(model, data.val, loss)["loss"] == pytest.approx(expected)


def test_evaluate_with_a_batch_all_ignored_is_the_loss_of_the_others(data):
    model, loss = make_model(), loss_for(data, "cross_entropy", {"ignore_index": 1})
    data.val.targets = torch.tensor([0, 2] * 4 + [1, 1])
    expected = loss(model(INPUTS[20:30]), data.val.targets).item()
    assert evaluate(model, data.val, loss)["loss"] == pytest.approx(expected)


def test_evaluate_of_labels_counts_each(tensor_data):
    labels = (VALUES > 0).float()
    data = tensor_data((INPUTS, labels), (INPUTS[:10], labels[:10]), task="multilabel", classes="ab")
    model, loss = make_model(2), loss_for(data)
    outputs = model(INPUTS[:10])
    assert evaluate(model, data.val, loss) == {
        "loss": pytest.approx(functional.binary_cross_entropy_with_logits(outputs, labels[:10]).item()),
        "accuracy": pytest.approx(((outputs > 0) == (labels[:10] > 0)).float().mean().item()),
    }


@pytest.mark.parametrize("num_values", [1, 2])
def test_evaluate_of_values_is_that_of_scikit_learn_in_their_own_unit(tensor_data, num_values):
    from sklearn import metrics as sklearn_metrics

    values = VALUES[:, :num_values] * 50 + 300
    mean, std = values[:20].mean(0), values[:20].std(0)
    normalized = (values - mean) / std
    data = tensor_data((INPUTS[:20], normalized[:20]), (INPUTS[20:], normalized[20:]), target_mean=mean, target_std=std)
    model, _, _ = train(data, make_model(num_values), lr=0.1, epochs=10)
    found = evaluate(model, data.val, loss_for(data))
    true, guess = values[20:].numpy(), (model(INPUTS[20:]).detach() * std + mean).numpy()
    assert found == {
        "loss": pytest.approx(functional.mse_loss(model(INPUTS[20:]), normalized[20:]).item()),
        "r2": pytest.approx(sklearn_metrics.r2_score(true, guess, multioutput="variance_weighted"), rel=1e-4),
        "mae": pytest.approx(sklearn_metrics.mean_absolute_error(true, guess), rel=1e-4),
        "rmse": pytest.approx(sklearn_metrics.root_mean_squared_error(true.ravel(), guess.ravel()), rel=1e-4),
    }


def test_evaluate_of_values_that_are_all_the_same_has_no_r2(tensor_data):
    data = tensor_data((INPUTS, VALUES), (INPUTS, torch.ones(36, 2)))
    assert math.isnan(evaluate(make_model(2), data.val, loss_for(data))["r2"])


@pytest.mark.parametrize("function", [evaluate, predict])
def test_evaluate_and_predict_of_an_empty_part_are_empty(tensor_data, function):
    data = tensor_data((INPUTS, LABELS))
    assert function(make_model(), data.test, loss_for(data)) == {}


@pytest.mark.parametrize("function", [evaluate, predict])
def test_evaluate_and_predict_leave_every_module_in_its_mode(data, function):
    model = make_model(3, nn.Dropout(0.5), nn.BatchNorm1d(8))
    model[3].eval()
    modes = [module.training for module in model.modules()]
    function(model, data.val, loss_for(data))
    assert [module.training for module in model.modules()] == modes
    assert model[3].num_batches_tracked == 0


@pytest.mark.parametrize("function", [evaluate, predict])
def test_evaluate_and_predict_that_fail_leave_the_mode(tensor_data, function):
    data, model = tensor_data((INPUTS[:, :2], LABELS)), make_model()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        function(model, data.train, loss_for(data))
    assert model.training


def test_evaluate_is_without_dropout(data):
    model, loss = make_model(3, nn.Dropout(0.9)), loss_for(data)
    assert evaluate(model, data.val, loss) == evaluate(model, data.val, loss)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_evaluate_computes_in_the_precision(data, dtype):
    model, loss = make_model(), loss_for(data)
    exact, rounded = (evaluate(model, data.val, loss, amp)["loss"] for amp in (None, MixedPrecision(CPU, dtype)))
    assert exact != rounded == pytest.approx(exact, rel=0.02)


def test_predict_is_in_the_order_of_the_samples(data):
    model = make_model()
    found = predict(model, data.test, loss_for(data))
    scores = model(INPUTS[30:]).detach()
    assert torch.equal(found["targets"], LABELS[30:])
    assert torch.equal(found["predictions"], scores.argmax(-1))
    assert torch.allclose(found["probabilities"], scores.softmax(-1), atol=1e-6)


def test_evaluate_and_predict_are_one_pass(data):
    model, calls = make_model(3, nn.BatchNorm1d(8)), []
    hook = model.register_forward_hook(lambda module, inputs, outputs: calls.append(len(inputs[0])))
    metrics, found = evaluate_and_predict(model, data.train, loss_for(data))
    assert sum(calls) == len(data.train.targets)
    assert model.training
    hook.remove()
    assert metrics == evaluate(model, data.train, loss_for(data))
    for name, part in predict(model, data.train, loss_for(data)).items():
        assert torch.equal(found[name], part)


def test_predict_of_values_is_in_their_own_unit_without_probabilities(tensor_data):
    mean, std = torch.tensor([300.0, 0.0]), torch.tensor([50.0, 2.0])
    data = tensor_data((INPUTS, VALUES), target_mean=mean, target_std=std)
    model = make_model(2)
    found = predict(model, data.train, loss_for(data))
    assert found.keys() == {"predictions", "targets"}
    assert torch.allclose(found["targets"], VALUES * std + mean)
    assert torch.allclose(found["predictions"], model(INPUTS).detach() * std + mean, atol=1e-4)


def test_predict_of_labels_gives_targets_and_predictions_alike(tensor_data):
    labels = (VALUES > 0).float()
    data = tensor_data((INPUTS, labels), task="multilabel", classes="ab")
    found = predict(make_model(2), data.train, loss_for(data))
    assert torch.equal(found["targets"], labels.long())
    assert found["targets"].dtype == found["predictions"].dtype
    assert torch.equal(found["predictions"], (found["probabilities"] > 0.5).long())


class Diverging(nn.Linear):
    """A layer whose outputs, or gradients, are spoilt at one of its training steps."""

    def __init__(self, step, outputs=math.nan, gradient=1.0):
        torch.manual_seed(0)
        super().__init__(4, 3)
        self.step, self.outputs, self.gradient, self.count = step, outputs, gradient, 0

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if self.training:
            self.count += 1
            if self.count == self.step:
                outputs = outputs + self.outputs
                if self.gradient != 1.0:
                    outputs.register_hook(lambda gradient: gradient * self.gradient)
        return outputs


def diverges(data, model, message, **settings):
    """Check that a training ends with an error, and return what was logged until then."""
    log = Log()
    optimizer = build_optimizer(model, "SGD", 0.1)
    with pytest.raises(TrainingError, match=message):
        fit(model, data, loss_for(data), optimizer, log=log, **{"epochs": 5, "log_interval": 50, **settings})
    return log


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("step", "where"), [(1, "epoch 1, batch 1"), (5, "epoch 2, batch 2"), (6, "epoch 2, batch 3")])
def test_fit_stops_at_a_loss_that_is_not_finite_and_names_step_epoch_and_batch(data, step, where, value):
    message = rf"the loss is (nan|inf) at step {step} \({where}\); no state was saved before\. Lower the learning rate"
    log = diverges(data, Diverging(step, value), message)
    assert log.of("val/loss") == log.of("val/loss")[: (step - 1) // 3]  # no validation of what diverged
    assert all(map(math.isfinite, log.of("val/loss")))


def test_fit_stops_where_a_loss_that_is_not_finite_is_logged(data):
    log = diverges(data, Diverging(4), r"at step 4 \(epoch 2, batch 1\)", log_interval=2)
    assert log.steps("train/loss") == [2, 4]
    assert math.isnan(log.of("train/loss")[-1])


def test_fit_with_accumulation_names_the_batches_of_the_step_that_diverged(data):
    message = r"at step 2 \(epoch 1, batch 3\)"
    diverges(data, Diverging(3), message, amp=MixedPrecision(CPU, accumulate=2))
    message = r"at step 1 \(epoch 1, batches 1 to 2\)"
    diverges(data, Diverging(2), message, amp=MixedPrecision(CPU, accumulate=2))


def test_fit_that_diverges_keeps_the_last_good_state(data, tmp_path):
    keeper = Checkpointer(tmp_path, {}, interval_steps=1)
    diverges(data, Diverging(6), rf"the state after step 5 is kept in {tmp_path}/last\.pt\.", checkpointer=keeper)
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 5
    kept = sorted(tmp_path.glob("*.pt"))
    assert {"best.pt", "last.pt", "step-000000004.pt"} <= {path.name for path in kept}
    for path in kept:
        assert all(values.isfinite().all() for values in load_checkpoint(path)["model"].values())


def test_fit_saves_no_weights_that_a_gradient_made_infinite(data, tmp_path):
    keeper = Checkpointer(tmp_path, {}, interval_steps=1)
    model = Diverging(5, 0.0, gradient=math.inf)
    message = r"weights are NaN or infinite \(weight, bias\) at step 5 \(epoch 2, batch 2\); the state after step 4 is"
    diverges(data, model, message, checkpointer=keeper)
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 4


def test_fit_whose_last_step_makes_the_weights_infinite_stops(data):
    model = Diverging(15, 0.0, gradient=math.inf)
    diverges(data, model, r"weights are NaN or infinite \(weight, bias\) at step 15 \(epoch 5, its last batch\)")


def test_fit_that_is_to_ignore_nan_goes_on(data, tmp_path):
    keeper = Checkpointer(tmp_path, {})
    result = train(data, Diverging(4), epochs=3, on_nan="ignore", checkpointer=keeper)[2]
    assert (result.epochs, load_checkpoint(tmp_path / "last.pt")["step"]) == (3, 9)


def test_fit_with_a_batch_all_ignored_trains_though_its_loss_is_nan(data):
    data.train.targets[8:16] = 0
    model, log, result = train(data, loss=loss_for(data, "cross_entropy", {"ignore_index": 0}), log_interval=1)
    assert math.isnan(log.of("train/loss")[1])
    assert (result.steps, bool(weights(model).isfinite().all())) == (6, True)
    loss = loss_for(data, "cross_entropy", {"ignore_index": 0})
    with pytest.raises(TrainingError, match=r"the loss is nan at step 4 \(epoch 2, batch 1\)"):
        train(data, Diverging(4), loss=loss)


def test_fit_with_another_word_for_nan_raises(data):
    refused(data, ConfigError, "training.on_nan: got 'go', expected stop, skip, rollback or", on_nan="go")


@pytest.mark.parametrize("done", [0, 1, 3, 6, 7])
@pytest.mark.parametrize("interval", [1, 3, 9])
def test_validations_to_come_are_the_epochs_at_the_interval_and_the_last_one(done, interval):
    coming = [epoch for epoch in range(done + 1, 8) if epoch % interval == 0 or epoch == 7]
    assert _num_validations(done, 7, interval) == len(coming)


def test_training_without_an_end_starts_at_once(data):
    class Stop(Callback):
        def after_epoch(self, trainer):
            trainer.place.stopped = True

    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert fit(model, data, loss_for(data), sgd, log=Log(), epochs=10**15, callbacks=[Stop()]).epochs == 1
