"""The main experiment in this process: training, evaluating and predicting, from a config."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sacred.observers import RunObserver

import exp
from sacristan.experiments import Callback, Experiment, loop
from sacristan.experiments.running.starting_state import check_start
from sacristan.ingredients import (
    CheckpointError,
    ConfigError,
    DataError,
    LossError,
    ModelError,
    OptimizerError,
    PrecisionError,
    SchedulerError,
    optimizer,
)
from sacristan.ingredients.checkpoints.files import load_checkpoint, save_checkpoint
from sacristan.ingredients.losses import build_loss
from sacristan.observers import ArtifactStore, FileObserver, Histogram, file_observer, read_media

WINE = {"data.name": "wine", "epochs": 2, "training.log_interval": 1}


class Recorder(RunObserver):
    """Keeps the metrics of a run, but for what it costs the machine, which no two runs share."""

    def __init__(self):
        self.metrics = {}

    def log_metrics(self, metrics_by_name, info):
        for name, entry in metrics_by_name.items():
            if not name.startswith("system/"):
                self.metrics.setdefault(name, []).extend(entry["values"])

    def media_event(self, entries):
        """Take media, and keep none."""


@pytest.fixture
def recorder():
    """Return what records the metrics of the run."""
    recorder = Recorder()
    exp.ex.observers.append(recorder)
    yield recorder
    exp.ex.observers.remove(recorder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder that runs are recorded in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exp.ex, "observers", [*exp.ex.observers, file_observer("my_runs")])
    return tmp_path / "my_runs"


@pytest.fixture
def run(folder, recorder):
    """Return what runs a command of the main experiment."""

    def run(settings={}, command="main"):
        recorder.metrics.clear()
        return exp.ex.run(command, config_updates=settings)

    return run


def weights_of(path):
    return load_checkpoint(path)["model"]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_main_on_the_digits_has_the_pinned_losses(run, recorder):
    result = run({"epochs": 2, "training.log_interval": 20}).result
    assert recorder.metrics["train/loss"] == pytest.approx([2.00548, 1.04467], rel=1e-3)
    assert recorder.metrics["val/loss"] == pytest.approx([1.58397, 0.66767], rel=1e-3)
    assert recorder.metrics["train/grad_norm"] == pytest.approx([1.30215, 2.19559], rel=1e-2)
    assert recorder.metrics["train/lr"] == [0.001, 0.001]
    assert result == pytest.approx(0.8815, abs=0.005)


@pytest.mark.parametrize(
    "settings",
    [
        WINE | {"model.options.dropout": 0.5},
        pytest.param(
            {"data.limit": 120, "epochs": 2, "model.name": "cnn", "model.options.dropout": 0.5, "data.augment.crop": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_main_with_the_same_seed_gives_the_same_bits_and_with_another_not(run, recorder, folder, settings):
    found = []
    for seed in (1, 1, 2):
        result = run(settings | {"seed": seed}).result
        found.append(
            (result, dict(recorder.metrics), weights_of(folder / str(len(found) + 1) / "checkpoints" / "last.pt"))
        )
        torch.rand(3)
    assert found[0][:2] == found[1][:2]
    assert same(found[0][2], found[1][2])
    assert found[0][1] != found[2][1]
    assert not same(found[0][2], found[2][2])


def test_main_keeps_the_best_epoch_and_measures_it(run, recorder, folder):
    done = run(WINE | {"epochs": 5, "lr": 0.3, "seed": 1})
    best = load_checkpoint(folder / "1" / "checkpoints" / "best.pt")
    losses = recorder.metrics["val/loss"]
    assert best["epoch"] == losses.index(min(losses)) + 1
    assert best["metrics"]["val/loss"] == min(losses)
    assert best["config"]["seed"] == 1
    evaluated = run(WINE | {"seed": 1, "checkpoint.path": str(folder / "1" / "checkpoints" / "best.pt")}, "evaluate")
    assert evaluated.result == done.result == done.info["test"]["accuracy"]
    assert evaluated.info["test"] == done.info["test"]


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        pytest.param({"checkpoint.best": False}, ["last.pt", "step-000000004.pt"], marks=pytest.mark.slow),
        pytest.param({"checkpoint.last": False}, ["best.pt"], marks=pytest.mark.slow),
        pytest.param({"checkpoint.keep": 1}, ["best.pt", "last.pt"], marks=pytest.mark.slow),
        (
            {"checkpoint.keep": 5, "checkpoint.interval": 2},
            ["best-000002.pt", "best.pt", "last.pt", "step-000000004.pt"],
        ),
        pytest.param({"checkpoint.keep": 1, "data.val_fraction": 0.0}, ["last.pt"], marks=pytest.mark.slow),
    ],
)
def test_main_keeps_the_checkpoints_asked_for(run, folder, settings, files):
    run(WINE | {"epochs": 3} | settings)
    assert sorted(path.name for path in (folder / "1" / "checkpoints").iterdir()) == files


def test_main_with_patience_stops_early(run, recorder):
    run(WINE | {"epochs": 50, "lr": 1e-9, "training.patience": 2, "training.min_delta": 1e-3})
    assert len(recorder.metrics["val/loss"]) == 3


def test_main_without_a_test_part_returns_none(run):
    done = run(WINE | {"data.test_fraction": 0.0})
    assert done.result is None
    assert "test" not in done.info


def test_main_with_accumulation_is_that_of_big_batches(run, recorder):
    settings = WINE | {"scheduler.name": "CosineAnnealingLR", "scheduler.interval": "step"}
    whole = run(settings | {"data.batch_size": 64}).result, dict(recorder.metrics)
    parts = run(settings | {"data.batch_size": 16, "amp.accumulate": 4}).result, dict(recorder.metrics)
    assert parts[0] == whole[0]
    assert parts[1]["train/lr"] == whole[1]["train/lr"] == pytest.approx([1e-3, 8.536e-4, 5e-4, 1.464e-4], rel=1e-3)
    assert parts[1]["train/loss"] == pytest.approx(whole[1]["train/loss"], rel=1e-4)
    assert parts[1]["val/loss"] == pytest.approx(whole[1]["val/loss"], rel=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("off", marks=pytest.mark.slow),
        pytest.param("bfloat16", marks=pytest.mark.slow),
        "float16",
        pytest.param("auto", marks=pytest.mark.slow),
    ],
)
def test_main_in_each_precision_learns(run, recorder, dtype):
    done = run(WINE | {"epochs": 10, "lr": 1e-2, "amp.dtype": dtype, "amp.clip_norm": 1.0})
    assert done.result > 0.9
    assert ("amp/scale" in recorder.metrics) == (dtype == "float16")


def test_main_under_overflow_counts_what_it_skipped(run, recorder):
    run(WINE | {"amp.dtype": "float16", "amp.init_scale": 2.0**100, "amp.backoff_factor": 2.0**-92})
    assert recorder.metrics["amp/skipped"] == [1.0] * 4
    assert recorder.metrics["amp/scale"] == [2.0**100, 2.0**8, 2.0**8, 2.0**8]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"loss.class_weights": "balanced"}, marks=pytest.mark.slow),
        {"loss.name": "focal", "loss.options.gamma": 1.0},
        pytest.param({"loss.options.label_smoothing": 0.1}, marks=pytest.mark.slow),
        pytest.param(
            {"data.name": "breast_cancer", "loss.name": "bce", "loss.options.pos_weight": 2.0}, marks=pytest.mark.slow
        ),
        {"optimizer.name": "SGD", "optimizer.options": {"momentum": 0.9, "nesterov": True}, "lr": 0.1},
        pytest.param(
            {"optimizer.groups": [{"match": "*.bias", "lr": 0.1}], "optimizer.decay_bias_and_norm": False},
            marks=pytest.mark.slow,
        ),
        pytest.param({"optimizer.name": "LBFGS", "lr": 0.1, "epochs": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"scheduler.name": "OneCycleLR", "scheduler.options": {"max_lr": 0.1}, "scheduler.interval": "step"},
            marks=pytest.mark.slow,
        ),
        {"scheduler.name": "CosineAnnealingLR", "scheduler.warmup_steps": 5},
        pytest.param(
            {
                "scheduler.name": "ReduceLROnPlateau",
                "scheduler.options": {"patience": 0},
                "scheduler.metric": "val/accuracy",
            },
            marks=pytest.mark.slow,
        ),
        pytest.param({"model.init": "orthogonal", "optimizer.options": {"fused": True}}, marks=pytest.mark.slow),
    ],
)
def test_main_with_other_parts_learns(run, settings):
    assert run({"data.name": "wine", "epochs": 10, "lr": 0.01} | settings).result > 0.85


def test_weights_of_an_artifact_are_used_by_an_alias_and_noted(run, folder, tmp_path):
    run(WINE)
    store = ArtifactStore(folder)
    store.log("net", folder / "1" / "checkpoints" / "best.pt", "model").alias("champion")
    run(WINE | {"checkpoint.path": "artifact:net:champion"}, "predict")
    assert list((folder / "2").rglob("predictions.csv"))
    [used] = json.loads((folder / "2" / "run.json").read_text())["artifacts_used"]
    assert (used["name"], used["version"], used["reference"]) == ("net", 1, "net:champion")
    run(WINE | {"model.weights": "artifact:net:v1"})
    assert json.loads((folder / "3" / "info.json").read_text())["weights"][0]["source"] == "artifact:net:v1"
    (tmp_path / "both").mkdir()
    for name in ("a.pt", "b.pt"):
        shutil.copy(folder / "1" / "checkpoints" / "best.pt", tmp_path / "both" / name)
    store.log("two", tmp_path / "both", "model")
    with pytest.raises(CheckpointError, match=r"two:v1 has a.pt, b.pt; write which: artifact:two:latest/FILE"):
        run(WINE | {"checkpoint.path": "artifact:two:latest"}, "evaluate")
    assert run(WINE | {"checkpoint.path": "artifact:two:latest/b.pt"}, "evaluate").result is not None
    with pytest.raises(CheckpointError, match=r"checkpoint.path: got 'artifact:net:best': net:best: .* no such alias"):
        run(WINE | {"checkpoint.path": "artifact:net:best"}, "evaluate")


def test_main_on_numbers_returns_r2_and_predicts_in_their_own_unit(run, folder):
    settings = {"data.name": "diabetes", "epochs": 10}
    done = run(settings)
    assert done.result == done.info["test"]["r2"] > 0.3
    assert 30 < done.info["test"]["mae"] < done.info["test"]["rmse"] < 90
    run(settings | {"checkpoint.path": str(folder / "1" / "checkpoints" / "best.pt")}, "predict")
    with next((folder / "2").rglob("predictions.csv")).open(newline="") as stream:
        rows = [(float(row["target"]), float(row["prediction"])) for row in csv.DictReader(stream)]
    mean = sum(target for target, _ in rows) / len(rows)
    errors, spread = (sum((a - b) ** 2 for a, b in pairs) for pairs in (rows, [(target, mean) for target, _ in rows]))
    assert 25 <= min(target for target, _ in rows) < 100
    assert 1 - errors / spread == pytest.approx(done.result, abs=1e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"training.monitor": "val/acuracy"},
            ConfigError,
            "training.monitor: got 'val/acuracy', which is not measured",
        ),
        (
            {"scheduler.name": "ReduceLROnPlateau", "scheduler.metric": "val/x"},
            SchedulerError,
            "scheduler.metric: got 'val/x', which is not measured",
        ),
        ({"amp.dtype": "float16", "amp.init_scale": 0.0}, PrecisionError, "amp: got init_scale=0.0"),
        ({"optimizer.name": "Muon"}, OptimizerError, "Muon only supports 2D parameters"),
        ({"optimizer.name": "LBFGS", "amp.dtype": "float16"}, PrecisionError, "amp.dtype: LBFGS recomputes its loss"),
        ({"model.name": "cnn"}, ModelError, r"inputs have shape \(13,\), expected images"),
        ({"loss.name": "mse"}, LossError, "loss.name: mse is for regression, but the data are for classification"),
        ({"loss.name": "nll"}, LossError, "loss.name: nll needs log-probabilities"),
        ({"checkpoint.keep": 0}, CheckpointError, "checkpoint.keep: got 0, expected at least 1"),
        ({"training.val_interval": 0}, ConfigError, "training.val_interval: got 0, expected at least 1"),
    ],
)
def test_main_with_what_does_not_fit_raises_before_the_first_step(run, recorder, folder, settings, error, message):
    with pytest.raises(error, match=message):
        run(WINE | settings)
    assert recorder.metrics == {}
    assert not (folder / "1" / "checkpoints").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "checkpoint.path: got None; write checkpoint.path=my_runs/ID/checkpoints/best.pt"),
        ("nowhere/best.pt", "checkpoint.path: there is no file nowhere/best.pt; check the path"),
    ],
)
def test_evaluate_and_predict_without_a_checkpoint_raise(run, command, path, message):
    with pytest.raises(CheckpointError, match=message):
        run(WINE | {"checkpoint.path": path}, command)


@pytest.mark.parametrize("num_bytes", [0, 20, 900])
@pytest.mark.parametrize(
    ("command", "entry"),
    [("main", "model.weights"), ("main", "checkpoint.path"), ("evaluate", "checkpoint.path")],
)
def test_file_cut_short_is_refused_before_there_is_a_run(run, folder, num_bytes, command, entry):
    model = {"model": {"weight": torch.ones(50, 50)}, "format": 2}
    save_checkpoint(model, Path("cut.pt"))
    Path("cut.pt").write_bytes(Path("cut.pt").read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match=r"^cut.pt: is damaged, [^\n]*; copy it again .* or give another file$"):
        run(WINE | {entry: "cut.pt"}, command)
    assert not folder.exists()


def test_evaluate_warns_of_nothing_and_of_another_model_raises_with_the_settings_that_differ(run, folder, caplog):
    run(WINE)
    path = str(folder / "1" / "checkpoints" / "best.pt")
    run(WINE | {"checkpoint.path": path}, "evaluate")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    message = r"best.pt: does not fit this model: .* it was saved with model.options=\{.*'hidden': \[128, 128\]"
    with pytest.raises(CheckpointError, match=message):
        run(WINE | {"model.options.hidden": [7], "checkpoint.path": path}, "evaluate")


@pytest.mark.slow
def test_evaluate_with_other_settings_measures_the_test_part_that_the_training_kept_apart(run, folder, caplog):
    done = run(WINE | {"seed": 1, "loss.class_weights": "balanced"})
    path = str(folder / "1" / "checkpoints" / "best.pt")
    settings = {"seed": 2, "data.val_fraction": 0.4, "data.normalize": "none", "loss.class_weights": "balanced"}
    again = run(WINE | settings | {"checkpoint.path": path}, "evaluate")
    assert again.info["test"] == done.info["test"]
    assert again.info["data"]["tested"] == 27
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def without_preparation(path):
    """Make a checkpoint one that an earlier version saved."""
    state = load_checkpoint(path)
    del state["preparation"]
    save_checkpoint(state, path)


@pytest.mark.slow
def test_checkpoint_of_an_earlier_version_is_evaluated_with_a_line_that_says_so(run, folder, caplog):
    done = run(WINE | {"seed": 1})
    path = folder / "1" / "checkpoints" / "best.pt"
    without_preparation(path)
    assert run(WINE | {"seed": 1, "checkpoint.path": str(path)}, "evaluate").result == done.result
    assert f"{path} was saved by an earlier version, which did not keep the preparation of its data" in caplog.text
    run(WINE | {"checkpoint.path": str(path)}, "evaluate")
    assert any(message.startswith(f"{path} was trained with seed=1, so the test part") for message in caplog.messages)


RANDOM = {"data.name": f"{__name__}:random_labels", "epochs": 60, "model.options.hidden": [256], "lr": 0.01}


def random_labels():
    """Return labels that nothing tells but remembering them."""
    random = np.random.default_rng(0)
    return random.normal(size=(240, 40)), random.integers(0, 2, 240)


@pytest.mark.slow
def test_fork_with_another_seed_is_tested_on_samples_that_its_parent_was_not_trained_on(run, folder, caplog):
    first = run(RANDOM | {"checkpoint.best": False})
    start = str(folder / "1" / "checkpoints" / "last.pt")
    fork = {**RANDOM, "epochs": 61, "checkpoint.resume": start, "checkpoint.best": False}
    second = run(fork | {"seed": 1})
    assert second.result < 0.65
    splits = [done.info["data"]["split"] for done in (first, second)]
    assert splits[1] == {**splits[0], "is_new": False, "differs_from_start": []}
    # On a split of its own it knows most of the test part by heart.
    third = run(fork | {"seed": 1, "data.new_split": True})
    assert third.result > 0.75
    assert third.info["data"]["split"]["differs_from_start"] == ["data.split_seed=0", "seed=0"]
    assert "samples are split differently than for the state that this run starts from" in caplog.text


OTHER_SPLITS = [
    ({"data.val_fraction": 0.3}, r"trained with data\.val_fraction=0\.15, so another split"),
    ({"data.fold": "1/5"}, r"trained with data\.test_fraction=0\.15, data\.fold=None, so another"),
    ({"data.split_seed": 3, "data.limit": 100}, r"trained with data\.limit=None, data\.split_seed=0, so another"),
    ({"data.name": "breast_cancer"}, r"trained on data with the fingerprint \w{12}, and data\.name=breast_cancer has"),
]


@pytest.mark.slow
def test_fork_with_another_split_is_refused_unless_asked_for(run, folder):
    run(WINE)
    for changed, message in OTHER_SPLITS:
        fork = WINE | {"epochs": 3, "checkpoint.resume": str(folder / "1" / "checkpoints" / "last.pt")} | changed
        with pytest.raises(DataError, match=message):
            run(fork)
        if "data.name" not in changed:
            assert run(fork | {"data.new_split": True}).info["data"]["split"]["differs_from_start"]


def own_model(input_shape, num_outputs, hidden=8):
    """Return a model that cannot be built without memory: it looks at its weights."""
    layers = torch.nn.Linear(input_shape[0], hidden), torch.nn.Linear(hidden, num_outputs)
    assert layers[0].weight.sum().item() < 1e9
    return torch.nn.Sequential(*layers)


BY_ACCURACY = WINE | {"training.monitor": "val/accuracy"}
CANNOT_START = [
    ({"model.options.hidden": [4]}, r"last.pt: does not fit this model: .*saved with model.options=.*128, 128"),
    ({"model.name": "cnn"}, r"model.options: CNN refuses .*: inputs have shape \(13,\), expected images"),
    ({"model.name": f"{__name__}:own_model"}, r"last.pt: does not fit this model: .*0.weight is only here"),
    ({"training.patience": 2}, r"training.patience: got 2, but by .*last.pt val/accuracy has not improved"),
    ({"checkpoint.resume": "best"}, r"best.pt: holds no batch, losses, streams, so it is no state"),
    ({"checkpoint.resume": "damaged"}, r"damaged.pt: is damaged"),
]


@pytest.mark.slow
def test_fork_that_cannot_start_makes_no_run_and_others_do(run, folder):
    # Nothing improves, so that the first epoch stays the best.
    run(BY_ACCURACY | {"epochs": 3, "lr": 1e-12})
    states = folder / "1" / "checkpoints"
    content = bytearray((states / "last.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (states / "damaged.pt").write_bytes(content)
    for changed, message in CANNOT_START:
        start = states / f"{changed.get('checkpoint.resume', 'last')}.pt"
        with pytest.raises((CheckpointError, ConfigError, ModelError), match=message):
            run(BY_ACCURACY | {"epochs": 4} | changed | {"checkpoint.resume": str(start)})
    assert sorted(path.name for path in folder.iterdir() if path.name.isdecimal()) == ["1"]
    for changed in ({"training.patience": 3}, {"training.patience": 2, "training.monitor": "val/loss"}):
        fork = BY_ACCURACY | {"epochs": 4, "checkpoint.resume": str(states / "last.pt")} | changed
        assert run(fork).status == "COMPLETED"


def test_fork_of_weights_that_are_not_those_of_the_configured_model_is_left_to_the_training(run, folder):
    config = run(WINE).config
    path = folder / "1" / "checkpoints" / "last.pt"
    state = load_checkpoint(path)
    # As an experiment has them that trains more than what the config builds.
    state["model"] = {f"wrapped.{name}": weights for name, weights in state["model"].items()}
    save_checkpoint({key: value for key, value in state.items() if key != "format"}, path)
    changed = {
        "model": {**config["model"], "options": {"hidden": [4]}},
        "training": {**config["training"], "epochs": 3},
    }
    check_start(path, {**config, **changed}, {})


@pytest.mark.slow
def test_fork_of_a_state_of_an_earlier_version_keeps_its_split(run, folder):
    first = run(WINE | {"seed": 4})
    path = folder / "1" / "checkpoints" / "last.pt"
    without_preparation(path)
    fork = WINE | {"epochs": 3, "seed": 5, "checkpoint.resume": str(path)}
    assert run(fork).info["data"]["split"]["digest"] == first.info["data"]["split"]["digest"]
    with pytest.raises(DataError, match=r"trained with data\.test_fraction=0\.15"):
        run(fork | {"data.test_fraction": 0.3})


def test_amp_check_shows_the_configured_model_in_each_precision(run, capsys):
    run(WINE, "amp.check")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("device: cpu; supports float16 yes, bfloat16 yes; amp.dtype=auto means ")
    assert lines[1] == "one training step on 64 samples:"
    assert [line.split()[0] for line in lines[3:6]] == ["float32", "float16", "bfloat16"]
    assert lines[6:8] == [
        "not a multiple of 8: 1 (Linear, in_features=13)",
        "not a multiple of 8: 5 (Linear, out_features=3)",
    ]


@pytest.mark.slow
def test_find_lr_suggests_a_rate_draws_it_and_records_nothing(run, folder, capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    run(WINE, "training.find_lr")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lr", "loss"]
    assert float(re.search(r"the suggestion: optimizer.lr=(\S+)", "\n".join(lines)).group(1)) > 0
    assert lines[-1] == "drawn in lr_range.png"
    assert (tmp_path / "lr_range.png").exists()
    assert not (folder / "1").exists()


def test_model_summary_shows_the_configured_model(run, capsys):
    run(WINE | {"model.options.hidden": [16]}, "model.summary")
    out = capsys.readouterr().out
    assert "parameters: 275 (275 trainable)" in out
    assert f"operations per sample, forward: {2 * (13 * 16 + 16 * 3)} FLOPs" in out
    assert "memory: parameters and buffers 0.00 MiB, outputs of layers 0.000 MiB a sample" in out


def test_model_probe_shows_what_goes_through_layers_and_draws_it(run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(WINE | {"model.options.hidden": [16], "probe.modules": "[12]"}, "model.probe")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[-3:-1]] == [["1", "Linear", "16"], ["2", "ReLU", "16"]]
    assert lines[-1] == "drawn in probe.png"
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")


def test_model_summary_of_data_that_are_read_item_by_item(run, capsys, tmp_path):
    for number in range(8):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(path)
    run({"data.name": "image_folder", "data.path": str(tmp_path / "images"), "data.batch_size": 2}, "model.summary")
    assert "operations per sample, forward:" in capsys.readouterr().out


def test_two_optimizers_of_twins_step_on_their_own_settings(folder):
    twin = optimizer.ingredient.twin("critic_optimizer")
    experiment = exp.Experiment("twins", ingredients=[optimizer.ingredient, twin])

    @experiment.main
    def main():
        models = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        made = optimizer.make_optimizer(models[0]), twin.make_optimizer(models[1])
        return [(type(one).__name__, one.param_groups[0]["lr"]) for one in made]

    settings = {"optimizer": {"lr": 0.5}, "critic_optimizer": {"name": "SGD", "lr": 0.25}}
    assert experiment.run(config_updates=settings).result == [("AdamW", 0.5), ("SGD", 0.25)]


def test_config_of_a_run_loaded_again_gives_the_same_run(run, recorder, folder):
    run(WINE | {"model.options.hidden": [8], "seed": 5})
    first = dict(recorder.metrics)
    settings = json.loads((folder / "1" / "config.json").read_text())
    recorder.metrics.clear()
    exp.ex.run(config_updates={key: value for key, value in settings.items() if not key.startswith("__")})
    assert recorder.metrics == first


def test_a_callback_logs_histograms(tmp_path, tensor_data):
    class Watch(Callback):
        def __init__(self, run):
            self.run = run

        def after_step(self, trainer):
            weights = {name: Histogram(weight) for name, weight in trainer.model.named_parameters()}
            self.run.log(weights, trainer.place.step)

    ex = Experiment("watched", interactive=True)
    ex.observers.append(FileObserver(tmp_path))

    @ex.main
    def main(_run):
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
        data = tensor_data((inputs, (inputs[:, 0] > 0).long()), (inputs, (inputs[:, 0] > 0).long()))
        model = torch.nn.Linear(4, 2)
        loss = build_loss(None, {}, None, data, "cpu")
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        loop.fit(model, data, loss, sgd, epochs=1, callbacks=[Watch(_run)], log=_run.log_scalar)

    ex.run()
    found = [(record.name, record.step, record.kind) for record in read_media(tmp_path / "1")]
    assert sorted(found) == [(name, step, "histogram") for name in ("bias", "weight") for step in (1, 2)]
