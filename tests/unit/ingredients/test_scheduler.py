from __future__ import annotations

import inspect
import sys

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from sacristan.ingredients import ConfigError, SchedulerError
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.scheduler import build_schedule, config

EPOCHS, STEPS = 6, 4
METRICS = {"val/loss": 1.0, "val/accuracy": 0.5}

# Options without which a class cannot be built.
NEEDED = {
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 1.0},
    "ExponentialLR": {"gamma": 0.5},
    "MultiStepLR": {"milestones": [2, 4]},
    "OneCycleLR": {"max_lr": 1.0},
    "ReduceLROnPlateau": {"patience": 0, "factor": 0.5},
    "StepLR": {"step_size": 2, "gamma": 0.5},
}
OF_OBJECTS = ("ChainedScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR")
NAMES = sorted(
    name
    for name, value in vars(lr_scheduler).items()
    if isinstance(value, type)
    and issubclass(value, lr_scheduler.LRScheduler)
    and name not in (*OF_OBJECTS, "LRScheduler", "_LRScheduler")
)

STEPPED = [(name, "epoch") for name in NAMES] + [(name, "step") for name in NAMES if name != "ReduceLROnPlateau"]


def make_halving(optimizer, factor=0.5):
    return lr_scheduler.LambdaLR(optimizer, lambda epoch: factor**epoch)


def make_sequence(optimizer):
    first = lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, step_size_up=3)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.ExponentialLR(optimizer, 0.9)], [12])


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Let this file be imported as `own`, as a user's module is."""
    monkeypatch.setitem(sys.modules, "own", sys.modules[__name__])


def make_optimizer(lr=1.0):
    model = nn.Linear(1, 1)
    model(torch.ones(1, 1)).sum().backward()
    return build_optimizer(model, "SGD", lr, options={"momentum": 0.9})


def make(name=None, options=None, optimizer=None, **entries):
    optimizer = optimizer or make_optimizer()
    schedule = build_schedule(
        optimizer, EPOCHS, STEPS, name, NEEDED.get(name, {}) if options is None else options, **entries
    )
    return optimizer, schedule


def train(optimizer, schedule, epochs=EPOCHS, metrics=METRICS):
    """Go through a training, and return the learning rate of each step."""
    rates = []
    for _ in range(epochs):
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.after_step()
        schedule.after_epoch(metrics)
    return rates


def rates_of_torch(name, length):
    """Return the learning rates that a class of torch has from its start, used as its documentation says."""
    cls, optimizer = getattr(lr_scheduler, name), make_optimizer()
    given = NEEDED.get(name, {})
    lengths = {key for key in ("T_max", "total_steps", "total_iters") if key in inspect.signature(cls).parameters}
    scheduler = cls(optimizer, **given, **dict.fromkeys(lengths, length))
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(length - 1):
        optimizer.step()
        scheduler.step(*([METRICS["val/loss"]] if name == "ReduceLROnPlateau" else []))
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("warmup_steps", [0, 1, 2, STEPS, STEPS + 1, 7, 100])
@pytest.mark.parametrize(("name", "interval"), STEPPED)
def test_scheduler_of_any_class_has_the_rates_of_torch_after_the_warmup(name, interval, warmup_steps):
    waits = max(warmup_steps - 1, 0)
    if interval == "step":
        length, num_steps = EPOCHS * STEPS - waits, [max(k - waits, 0) for k in range(EPOCHS * STEPS)]
    else:
        ends = [STEPS * epoch for epoch in range(1, EPOCHS + 1)]
        length = EPOCHS - sum(end <= waits for end in ends)
        num_steps = [sum(waits < end <= k for end in ends) for k in range(EPOCHS * STEPS)]
    reference = rates_of_torch(name, max(length, 1))
    expected = [
        reference[num_steps[k]] * (min((k + 1) / warmup_steps, 1) if warmup_steps else 1) for k in range(EPOCHS * STEPS)
    ]
    assert train(*make(name, interval=interval, warmup_steps=warmup_steps)) == pytest.approx(expected)
    assert len(set(reference)) > 1 or name == "ConstantLR" or length < 2


@pytest.mark.parametrize(("name", "interval"), STEPPED)
def test_scheduler_state_loaded_halfway_goes_on_as_without_a_break(name, interval):
    settings = {"interval": interval, "warmup_steps": 6}
    optimizer, schedule = make(name, **settings)
    train(optimizer, schedule, 3)
    again, resumed = make(name, **settings)
    again.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert train(again, resumed, 3) == train(optimizer, schedule, 3)


# Rates that a schedule does not go below.
LOWEST = {
    "CosineAnnealingLR": {"eta_min": 0.2},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "eta_min": 0.2},
    "ReduceLROnPlateau": {"patience": 0, "factor": 0.5, "min_lr": 0.3},
}


@pytest.mark.parametrize("warmup_steps", [0, 10])
@pytest.mark.parametrize(("name", "interval"), [(None, "epoch"), *STEPPED, ("own:make_sequence", "step")])
def test_scheduler_slowed_down_has_a_quarter_of_each_later_rate(name, interval, warmup_steps):
    settings = {"options": LOWEST.get(name, NEEDED.get(name, {})), "interval": interval, "warmup_steps": warmup_steps}
    whole = train(*make(name, **settings))
    optimizer, schedule = make(name, **settings)
    rates = train(optimizer, schedule, 2)
    for _ in range(2):
        schedule.slow_down(0.5)
    again, resumed = make(name, **settings)
    again.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert rates + train(again, resumed, EPOCHS - 2) == [
        rate * (1 if step < 2 * STEPS else 0.25) for step, rate in enumerate(whole)
    ]


def test_scheduler_state_loaded_within_the_warmup_goes_on_with_it():
    optimizer, schedule = make(warmup_steps=10)
    train(optimizer, schedule, 1)
    again, resumed = make(warmup_steps=10)
    again.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert train(again, resumed, 2) == train(optimizer, schedule, 2)


def test_scheduler_without_a_name_keeps_the_rate():
    assert set(train(*make())) == {1.0}


def test_scheduler_each_epoch_changes_the_rate_between_epochs():
    assert train(*make("StepLR", {"step_size": 1, "gamma": 0.5}))[::2] == [0.5 ** (k // 2) for k in range(2 * EPOCHS)]


def test_scheduler_each_step_changes_the_rate_between_steps():
    rates = train(*make("StepLR", {"step_size": 1, "gamma": 0.5}, interval="step"))
    assert rates == [0.5**k for k in range(EPOCHS * STEPS)]


@pytest.mark.parametrize("warmup_steps", [2, 5, 10])
def test_warmup_rises_linearly_to_the_rate(warmup_steps):
    rates = train(*make(warmup_steps=warmup_steps))
    expected = [min(1.0, (k + 1) / warmup_steps) for k in range(EPOCHS * STEPS)]
    assert rates == pytest.approx(expected)


def test_warmup_of_groups_rises_to_the_rate_of_each():
    model = nn.Linear(1, 1)
    model(torch.ones(1, 1)).sum().backward()
    optimizer = build_optimizer(model, "SGD", 1.0, groups=[{"match": "bias", "lr": 10.0}])
    _, schedule = make(optimizer=optimizer, warmup_steps=4)
    found = []
    for _ in range(4):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.after_step()
    assert found == [pytest.approx([k / 4, 10 * k / 4]) for k in (1, 2, 3, 4)]


def test_warmup_makes_the_scheduler_wait():
    rates = train(*make("ExponentialLR", {"gamma": 0.5}, interval="step", warmup_steps=3))
    assert rates[:6] == pytest.approx([1 / 3, 2 / 3, 1, 0.5, 0.25, 0.125])


def test_warmup_longer_than_an_epoch_makes_an_epoch_scheduler_wait():
    rates = train(*make("ExponentialLR", {"gamma": 0.5}, warmup_steps=6))
    assert rates[::STEPS] == pytest.approx([1 / 6, 5 / 6, 0.5, 0.25, 0.125, 0.0625])


@pytest.mark.parametrize("warmup_steps", range(1, 3 * STEPS + 2))
def test_warmup_of_any_length_reaches_the_rate_before_an_epoch_scheduler_lowers_it(warmup_steps):
    optimizer, schedule = make("ExponentialLR", {"gamma": 0.5}, warmup_steps=warmup_steps)
    assert max(train(optimizer, schedule)) == pytest.approx(1.0)


def test_warmup_that_ended_with_an_epoch_goes_on_from_its_state():
    settings = {"name": "ExponentialLR", "options": {"gamma": 0.5}, "warmup_steps": STEPS + 1}
    optimizer, schedule = make(**settings)
    train(optimizer, schedule, 1)
    again, resumed = make(**settings)
    again.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert train(again, resumed, 2) == pytest.approx([1.0] * STEPS + [0.5] * STEPS)
    old = {key: value for key, value in schedule.state_dict().items() if key != "is_warm"}
    resumed.load_state_dict(old)


@pytest.mark.parametrize("warmup_steps", [-1, -10])
def test_warmup_of_negative_length_raises(warmup_steps):
    with pytest.raises(SchedulerError, match=f"scheduler.warmup_steps: got {warmup_steps}, expected 0 or more"):
        make(warmup_steps=warmup_steps)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("CosineAnnealingLR", "T_max"),
        ("OneCycleLR", "total_steps"),
        ("PolynomialLR", "total_iters"),
        ("LinearLR", "total_iters"),
    ],
)
@pytest.mark.parametrize(
    ("interval", "warmup_steps", "length"),
    [
        ("epoch", 0, 6),
        ("epoch", 4, 6),
        ("epoch", 5, 5),
        ("epoch", 6, 5),
        ("step", 0, 24),
        ("step", 1, 24),
        ("step", 5, 20),
        ("step", 99, 1),
    ],
)
def test_scheduler_length_left_out_is_that_of_the_training_after_the_warmup(
    name, entry, interval, warmup_steps, length
):
    _, schedule = make(name, interval=interval, warmup_steps=warmup_steps)
    assert getattr(schedule.scheduler, entry) == length


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("warmup_steps", [0, 7])
def test_scheduler_cosine_reaches_zero_right_after_the_training(interval, warmup_steps):
    optimizer, schedule = make("CosineAnnealingLR", interval=interval, warmup_steps=warmup_steps)
    assert min(train(optimizer, schedule)) > 0
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "entry", "options"),
    [("CosineAnnealingLR", "T_max", {"T_max": 3}), ("LinearLR", "total_iters", {"total_iters": 3})],
)
def test_scheduler_length_given_is_kept(name, entry, options):
    assert getattr(make(name, options)[1].scheduler, entry) == 3


def test_scheduler_one_cycle_with_epochs_keeps_them():
    options = {"max_lr": 1.0, "epochs": 3, "steps_per_epoch": 5}
    assert make("OneCycleLR", options)[1].scheduler.total_steps == 15


@pytest.mark.parametrize(("mode", "values"), [("min", [3.0, 2.0, 2.0, 2.0]), ("max", [1.0, 2.0, 2.0, 2.0])])
def test_plateau_lowers_the_rate_when_its_metric_stands_still(mode, values):
    optimizer, schedule = make("ReduceLROnPlateau", {"mode": mode, "patience": 1, "factor": 0.5}, metric="val/x")
    rates = []
    for value in values:
        schedule.after_epoch({"val/loss": 0.0, "val/x": value})
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 1.0, 0.5]


def test_plateau_waits_where_nothing_was_measured():
    optimizer, schedule = make("ReduceLROnPlateau", {"patience": 0})
    for metrics in (METRICS, {}, {}):
        schedule.after_epoch(metrics)
    assert optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize("method", ["check", "after_epoch"])
def test_plateau_with_a_metric_that_is_not_measured_raises(method):
    _, schedule = make("ReduceLROnPlateau", metric="val/acuracy")
    message = r"scheduler.metric: got 'val/acuracy', which is not measured; there are: val/loss, val/accuracy"
    with pytest.raises(SchedulerError, match=message):
        getattr(schedule, method)(METRICS)


def test_plateau_without_a_validation_part_raises():
    _, schedule = make("ReduceLROnPlateau")
    with pytest.raises(
        SchedulerError, match=r"ReduceLROnPlateau reads a validation metric, but there is no validation part"
    ):
        schedule.check([])


def test_plateau_each_step_raises():
    with pytest.raises(
        SchedulerError, match="got 'step', but ReduceLROnPlateau reads a validation metric; use interval=epoch"
    ):
        make("ReduceLROnPlateau", interval="step")


@pytest.mark.parametrize("name", [None, "StepLR"])
def test_check_of_what_watches_no_metric_passes(name):
    make(name)[1].check([])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CosineAnnealing", "did you mean CosineAnnealingLR?"),
        ("LRScheduler", "there are: Constant"),
        ("Noam", "there are: Constant"),
    ],
)
def test_scheduler_with_unknown_name_raises_with_what_there_is(name, hint):
    message = rf"scheduler.name: got '{name}', which torch.optim.lr_scheduler does not have; {hint}".replace("?", r"\?")
    with pytest.raises(SchedulerError, match=message):
        make(name)


@pytest.mark.parametrize("name", OF_OBJECTS)
def test_scheduler_of_functions_or_schedulers_raises_with_the_way_out(name):
    with pytest.raises(
        SchedulerError, match=rf"got '{name}', which takes functions or .* write package.module:function"
    ):
        make(name)


def test_scheduler_of_a_dotted_path_to_a_function_is_what_it_returns():
    rates = train(*make("own:make_halving", {"factor": 0.1}))
    assert rates[::STEPS] == pytest.approx([0.1**k for k in range(EPOCHS)])


def test_scheduler_with_unknown_option_raises_with_the_nearest():
    with pytest.raises(ConfigError, match=r"scheduler.options.gama: StepLR takes no option .*; did you mean 'gamma'\?"):
        make("StepLR", {"step_size": 1, "gama": 0.1})


def test_scheduler_without_a_needed_option_raises():
    with pytest.raises(
        ConfigError, match=r"scheduler.options: StepLR needs a value for 'step_size'; write scheduler.op"
    ):
        make("StepLR", {})


def test_scheduler_with_refused_option_raises_with_the_reason():
    with pytest.raises(SchedulerError, match=r"scheduler.options: OneCycleLR refuses .*pct_start"):
        make("OneCycleLR", {"max_lr": 1.0, "pct_start": 2.0})


def test_config_has_the_arguments_of_build_schedule_and_their_defaults():
    parameters = inspect.signature(build_schedule).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    assert config() == defaults
