"""Settings that cannot be: refused before a run is made, so that no list of runs is full of them."""

from __future__ import annotations

import functools
import json

import pytest

from sacristan.configs import Map
from sacristan.experiments import Experiment, supervised
from sacristan.ingredients import (
    ConfigError,
    LabError,
    data,
    device,
    loss,
    model,
    optimizer,
    scheduler,
    sweep,
    training,
)
from sacristan.observers import FileObserver


def make_experiment(folder):
    parts = (device, data, loss, model, optimizer, scheduler, training)
    ex = Experiment("refusing", [part.ingredient for part in parts], base_dir=folder, save_git_info=False)
    ex.observers.append(FileObserver(folder / "runs"))
    ex.main(lambda: None)
    return ex


@pytest.fixture
def experiment(tmp_path):
    return make_experiment(tmp_path)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """An experiment that never comes to run, and where it would record."""
    folder = tmp_path_factory.mktemp("refusing")
    return make_experiment(folder), folder / "runs"


REFUSED = [
    ("optimizer.name", "Adm", "optimizer.name: got 'Adm', .* did you mean Adam"),
    ("optimizer.options", {"betaz": 1}, "optimizer.options.betaz: AdamW takes no option 'betaz'; did you mean"),
    ("optimizer.lr", -1.0, "optimizer.lr: got -1.0, expected more than 0"),
    ("optimizer.lr", float("nan"), "optimizer.lr: got nan, expected more than 0"),
    ("scheduler.name", "StepLRR", "scheduler.name: got 'StepLRR', .* did you mean StepLR"),
    ("scheduler.warmup_steps", -1, "scheduler.warmup_steps: got -1, expected 0 or more"),
    ("model.name", "mpl", "model.name: got 'mpl', which is unknown; did you mean mlp"),
    ("model.name", "nothing.here:Net", "model.name: got 'nothing.here:Net', but there is no module 'nothing'"),
    ("model.init", "kaimin", "model.init: got 'kaimin', which is unknown; did you mean kaiming"),
    ("model.init", [{"name": "zeros"}], "model.init: got .*, expected an entry like"),
    ("model.unfreeze", [{"match": "x"}], "model.unfreeze: got .*, expected an entry like"),
    ("optimizer.layer_decay", 2.0, "optimizer.layer_decay: got 2.0, expected more than 0"),
    ("model.weights", "run:", "model.weights: got 'run:'; write run:ID"),
    ("model.rename", [{"match": "("}], "model.rename: got .*, expected an entry like"),
    ("loss.name", "mes", "loss.name: got 'mes', which is unknown; did you mean mse"),
    ("device.name", "gpu", "device.name: got 'gpu', expected auto, cpu, mps, cuda or cuda:N"),
    ("device.name", "cuda:99", "device.name: got 'cuda:99', but this machine has"),
    ("device.num_threads", 0, "device.num_threads: got 0, expected at least 1 or None"),
    ("training.epochs", 0, "training.epochs: got 0, expected at least 1"),
    ("training.patience", 0, "training.patience: got 0, expected at least 1"),
    ("training.monitor", "val/los", "training.monitor: got 'val/los', .* did you mean val/loss"),
    ("data.name", "digit", "data.name: got 'digit', which is unknown; did you mean digits"),
    ("data.name", "csv", "data.path: got None, but data.name=csv reads from a path"),
    ("data.path", "no.csv", "data.path: there is no 'no.csv'"),
    ("data.path", "no.txt", "data.path: got 'no.txt', which data.name=digits does not read"),
    (
        "data.target",
        "kind",
        "data.target: got 'kind', which data.name=digits does not read; .*: csv, text, tar, parquet, hugging",
    ),
    ("data.image_size", 8, "data.image_size: got 8, which data.name=digits does not read; .*: image_folder$"),
    ("data.options", {"a": 1}, "data.options: got {'a': 1}, which data.name=digits does not read"),
    ("data.batch_size", 0, "data.batch_size: got 0, expected at least 1"),
    ("data.limit", 0, "data.limit: got 0, expected at least 1"),
    ("data.test_fraction", 1.0, "data.test_fraction: got 1.0, expected at least 0 and below 1"),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("entry", "value", "message"), REFUSED)
def test_setting_that_cannot_be_makes_no_run(refusing, entry, value, message):
    experiment, records = refusing
    with pytest.raises(LabError, match=message):
        experiment.run(config_updates={entry: value})
    assert not records.exists()


LEAST = {
    "data": {
        "batch_size": 1,
        "num_workers": 0,
        "limit": 1,
        "epoch_samples": 1,
        "shuffle_buffer": 0,
        "val_fraction": 0.0,
    },
    "distributed": {"timeout_s": 1e-3},
    "export": {"tolerance": 0.0, "num_batches": 1},
    "optimizer": {"layer_decay": 1.0},
    "probe": {"every": 1, "profile": [1, 1]},
    "scheduler": {"warmup_steps": 0},
    "training": {"epochs": 1, "val_interval": 1, "log_interval": 1, "patience": 1, "min_delta": 0.0},
}


def test_least_values_are_accepted_and_those_below_are_not(tmp_path):
    ex = Experiment("bounds", supervised.ingredients(), base_dir=tmp_path, save_git_info=False, record_to=None)
    ex.main(lambda: None)
    assert ex.run(config_updates=LEAST).status == "COMPLETED"
    steps = [("probe.profile", steps) for steps in ([0, 1], [2, 1], [1])]
    for name, below in (*steps, ("export.tolerance", -1.0), ("training.log_interval", 0), ("training.val_interval", 0)):
        with pytest.raises(LabError, match=f"{name}: got "):
            ex.run(config_updates={name: below})


LEAST_OF_SWEEPS = {"workers": 1, "workers_per_gpu": 1, "retries": 0, "count": 1, "reseed": 2, "trial_timeout_s": 1e-3}


def test_least_values_of_sweeps_are_accepted_and_any_below_are_not():
    config = {"storage": None, "engine": "local", "address": None, "resources": {}, "slurm": {}, **LEAST_OF_SWEEPS}
    sweep.check_config(Map(config))
    sweep.check_config(Map({**config, "count": None, "reseed": None, "trial_timeout_s": None}))
    for name, least in LEAST_OF_SWEEPS.items():
        with pytest.raises(ConfigError, match=f"sweep.{name}: got {least - 1}, expected "):
            sweep.check_config(Map({**config, name: least - 1}))


def test_experiment_that_refused_settings_runs_all_the_same(experiment, tmp_path):
    for entry, value, message in REFUSED:
        with pytest.raises(LabError, match=message):
            experiment.run(config_updates={entry: value})
    assert experiment.run().status == "COMPLETED"
    assert (tmp_path / "runs" / "1").exists()


def test_run_for_another_machine_is_queued_with_what_is_there(experiment, tmp_path):
    updates = {"device.name": "cuda:99", "data.path": "/on/that/machine.csv"}
    experiment.run(config_updates=updates, options={"--queue": True})
    assert json.loads((tmp_path / "runs" / "1" / "run.json").read_text())["status"] == "QUEUED"


WRONG = {
    bool: [1, "yes", None],
    int: [0.5, "x", None, True, [1]],
    float: ["x", None, True, [1.0]],
    str: [3, 0.5, None, True, ["a"]],
    list: [3, "x", None],
    dict: [3, "x", None],
}


def entries_of(values, name=""):
    """Yield the dotted names of all entries, also of groups, with their defaults."""
    for key, value in values.items():
        yield f"{name}{key}", value
        if isinstance(value, dict):
            yield from entries_of(value, f"{name}{key}.")


def test_every_shipped_setting_takes_the_type_of_its_default_alone():
    num_refused = 0
    for part in supervised.ingredients():
        for scope in part.configurations:
            for name, default in entries_of(scope() if not scope.args else {}):
                if name.partition(".")[0] in scope._declared or default is None:
                    continue
                for wrong in WRONG.get(type(default), ()):
                    update = functools.reduce(lambda value, key: {key: value}, reversed(name.split(".")), wrong)
                    with pytest.raises(LabError, match=rf"{part.path}\.{name}: got .*, expected .*"):
                        scope(update)
                    num_refused += 1
    assert num_refused > 200


@pytest.mark.parametrize("monitor", ["val/loss", "val/accuracy", "train/loss", "val/f1", "mine"])
def test_metric_of_a_loop_of_ones_own_can_be_monitored(experiment, monitor):
    assert experiment.run(config_updates={"training.monitor": monitor}).status == "COMPLETED"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (None, "digits"),
        ("table.csv", "csv"),
        ("TABLE.CSV", "csv"),
        ("arrays.npz", "npz"),
        ("images", "image_folder"),
        ("mnist", "idx"),
    ],
)
def test_kind_of_data_is_read_off_the_path(experiment, tmp_path, monkeypatch, path, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").touch()
    for name in ("table.csv", "TABLE.CSV", "arrays.npz"):
        (tmp_path / name).touch()
    run = experiment.run(config_updates={"data.path": path})
    assert run.config["data"]["name"] == kind


def test_ingredient_of_ones_own_checks_its_settings(tmp_path):
    from sacristan.ingredients import ConfigError, Ingredient

    noise = Ingredient("noise")

    @noise.config
    def config():
        level = 0.5

    @noise.check
    def check(config):
        if config.level < 0:
            raise ConfigError(f"noise.level: got {config.level}, expected 0 or more")

    ex = Experiment("noisy", [noise, noise.twin("other")], base_dir=tmp_path, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda: None)
    for name in ("noise", "other"):
        with pytest.raises(ConfigError, match=r"noise.level: got -1.0, expected 0 or more"):
            ex.run(config_updates={name: {"level": -1.0}})
    assert not (tmp_path / "runs").exists()
    assert ex.run(config_updates={"noise.level": 1.0}).status == "COMPLETED"


def test_check_of_an_ingredient_may_call_its_captured_functions(tmp_path):
    from sacristan.ingredients import Ingredient

    noise, checked = Ingredient("noise"), []

    @noise.config
    def config():
        level = 0.5

    @noise.capture
    def doubled(level):
        return 2 * level

    @noise.check
    def check(config):
        checked.append(doubled())

    ex = Experiment("noisy", [noise], base_dir=tmp_path, save_git_info=False, record_to=None)
    ex.main(lambda: None)
    ex.run(config_updates={"noise.level": 1.5})
    assert checked == [3.0]
