"""The ready experiments: two steps with pinned losses, resumed in mid-training, their commands and recipes."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from sacristan.experiments import Experiment, finetune, gan, language_model, segment, tabular, text
from sacristan.ingredients import CheckpointError, ConfigError, DataError, amp, data, device, loss, model
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.observers import read_media, read_metrics
from tests.processes import PIPE, Process, run

CONFIGS = Path(__file__).parents[2] / "configs"

GAN = {
    "data.limit": 90,
    "data.batch_size": 32,
    "gan.hidden": [8],
    "gan.noise": 4,
    "epochs": 1,
    "training.log_interval": 1,
}
SEGMENT = {
    "data.options": {"num": 24, "size": 16, "digits": 1},
    "data.batch_size": 9,
    "model.options.width": 2,
    "epochs": 1,
    "training.log_interval": 1,
}
TABULAR = {
    "data.path": str(CONFIGS / "diabetes.csv"),
    "data.limit": 90,
    "data.batch_size": 32,
    "model.options.hidden": [8],
    "epochs": 1,
    "training.log_interval": 1,
}
FINETUNE = {
    "data.limit": 300,
    "data.batch_size": 17,
    "model.options.widths": [4],
    "epochs": 1,
    "training.log_interval": 1,
}
KINDS = {
    "gan": (gan.ex, GAN),
    "segment": (segment.ex, SEGMENT),
    "tabular": (tabular.ex, TABULAR),
    "finetune": (finetune.ex, FINETUNE),
}
LANGUAGE_MODEL = {
    "text.path": "../text.txt",
    "text.context": 8,
    "text.batch_size": 13,
    "text.val_fraction": 0.2,
    "text.test_fraction": 0.2,
    "gpt": {"width": 8, "depth": 1, "heads": 2, "dropout": 0.3},
    "training.log_interval": 1,
    "sample.length": 8,
}
STREAM = {
    "data.name": "stream:make",
    "data.epoch_samples": 90,
    "data.shuffle_buffer": 16,
    "data.batch_size": 45,
    "data.num_workers": 2,
    "training.log_interval": 1,
}
# An experiment of one's own over a stream, whose samples are drawn by the workers that read it.
STREAM_SCRIPT = """
import torch
from sacristan.experiments import Experiment, Task, loop
from sacristan.ingredients import checkpoint, data, device, optimizer, training
from sacristan.ingredients.config.seed import global_stream
from sacristan.observers import file_observer, run_folder

ex = Experiment("stream", [part.ingredient for part in (device, data, optimizer, training, checkpoint)])
ex.alias(epochs="training.epochs", resume="checkpoint.resume")
ex.observers.append(file_observer("my_runs"))


class Waves(torch.utils.data.IterableDataset):
    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __iter__(self):
        for number in range(self.num_samples):
            yield lambda n=number: (torch.sin(torch.arange(8) * n) + 0.1 * torch.randn(8), n % 2)


def make():
    return {"train": Waves(200), "val": Waves(50)}


class Classify(Task):
    def loss(self, model, batch):
        waves, labels = batch
        return torch.nn.functional.cross_entropy(model(waves), labels)


@ex.config
def config(training, checkpoint):
    # passes
    epochs = training["epochs"]
    # whether to resume
    resume = checkpoint["resume"]
    # of all random streams
    seed = 0


@ex.automain
def main(_config, _run, seed, training):
    where = device.make_device(seed)
    batches = data.make_data(seed, where, start=checkpoint.load_split(_run))
    with global_stream(seed, "init"):
        hidden = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3)
        network = torch.nn.Sequential(*hidden, torch.nn.Linear(16, 2)).to(where)
    opt = optimizer.make_optimizer(network)
    with run_folder(_run) as folder:
        keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
        return loop.fit(
            network, batches, Classify(), opt, checkpointer=keeper, log=_run.log_scalar, **training
        ).best
"""
KILLED = {
    "gan": GAN,
    "segment": SEGMENT,
    "language_model": LANGUAGE_MODEL,
    "stream": STREAM,
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def train(kind, command=None, named=(), **settings):
        ex, small = KINDS[kind]
        return ex.run(command, config_updates={**small, **settings}, named_configs=named)

    return train


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "losses", "result"),
    [
        ("gan", [-0.0815220, -0.0736331], 63.2754),
        ("segment", [2.79648, 2.86768], 0),
        ("tabular", [0.96461, 1.25041], 0.00680763),
        ("finetune", [2.49165, 2.38882], 0.104),
    ],
)
def test_two_steps_have_the_pinned_losses(train, tmp_path, kind, losses, result):
    run = train(kind, **{"data.drop_last": False})
    found = read_metrics(tmp_path / "my_runs" / "1")
    assert found["train/loss"].values.tolist() == pytest.approx(losses, rel=1e-3)
    assert run.result == pytest.approx(result, rel=1e-3)
    assert run.status == "COMPLETED"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [[], ["recipe", "fast"]])
def test_recipe_and_fast_go_together(train, kind, named):
    chosen = [str(CONFIGS / f"{kind}.yaml") if name == "recipe" else name for name in named]
    assert train(kind, named=chosen).status == "COMPLETED"


CHECKS = ["amp.check", "training.find_lr", "training.find_batch_size"]


def offered(ex):
    return [name for name, _ in ex.gather_commands()]


@pytest.mark.parametrize("name", CHECKS)
def test_command_that_needs_other_ingredients_is_refused_and_not_offered(train, name, capsys):
    with pytest.raises(ConfigError, match=rf"^{name}: this experiment lacks ingredients .* needs: loss, model.*; see"):
        train("gan", name)
    with pytest.raises(SystemExit):
        language_model.ex.run_commandline(["language_model", name])
    assert re.search(rf"^error: {name}: .* needs: data, loss, model.*; see", capsys.readouterr().err, re.M)
    assert name not in {*offered(gan.ex), *offered(language_model.ex)}
    assert all(name in offered(ex) for ex in (segment.ex, tabular.ex, finetune.ex, text.ex))


def test_twin_offers_its_commands_under_the_same_condition():
    twin = amp.ingredient.twin("half")
    assert "half.check" not in offered(Experiment("small", [twin], interactive=True))
    parts = [part.ingredient for part in (data, device, loss, model)]
    with_all = Experiment("whole", [*parts, twin], interactive=True)
    assert "half.check" in offered(with_all)


def test_summaries_show_the_networks_that_are_trained(train, capsys):
    train("gan", "gan.summary")
    shown = capsys.readouterr().out
    assert "generator:" in shown
    assert "critic:" in shown
    assert "parameters: 529 (529 trainable)" in shown  # 64 inputs, 8 hidden units, a score
    language_model.ex.run("gpt.summary", config_updates={"gpt": {"width": 8, "depth": 1, "heads": 2}})
    assert re.search(r"^embed +Embedding +128x8 +2,048 ", capsys.readouterr().out, re.M)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_look_run_where_they_are_offered(train, kind):
    looks = [name for name in offered(KINDS[kind][0]) if name in CHECKS or name.endswith((".summary", ".probe"))]
    for name in looks:
        if name != "training.find_batch_size":  # of GPUs alone
            assert train(kind, name).status == "COMPLETED"


@pytest.mark.parametrize("name", ["finetune", "gan", "language_model", "lightning", "segment", "tabular", "text"])
def test_ready_experiment_leaves_it_to_options_where_it_records(name):
    assert importlib.import_module(f"sacristan.experiments.{name}").ex.observers == []


def test_gan_makes_pictures_that_a_checkpoint_makes_again(train, tmp_path):
    train("gan")
    train("gan", "sample", **{"checkpoint.path": "my_runs/1/checkpoints/best.pt"})
    first, second = (
        [entry for entry in read_media(tmp_path / "my_runs" / number) if entry.name.endswith("samples")]
        for number in "12"
    )
    assert [entry.name for entry in first] == ["samples", "test/samples"]
    assert len(second) == 1
    assert second[0].path.stat().st_size > 500


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"gan.noise": 0}, "gan.noise: got 0, expected at least 1"), ({"gan.critic_lr": -1.0}, "gan.critic_lr: got -1.0")],
)
def test_gan_that_cannot_be_is_refused(train, settings, message):
    with pytest.raises(ConfigError, match=message):
        train("gan", **settings)


def test_gan_on_data_that_are_no_images_is_refused(train):
    with pytest.raises(DataError, match=r"got inputs of shape \(13,\), expected images"):
        train("gan", **{"data.name": "wine"})


def test_segmentation_shows_cases_and_records_predictions(train, tmp_path):
    run = train("segment")
    (cases,) = [entry for entry in read_media(tmp_path / "my_runs" / "1") if entry.name == "test/cases"]
    assert cases.path.stat().st_size > 100
    assert 0 <= run.result <= 1
    train("segment", "predict", **{"checkpoint.path": "my_runs/1/checkpoints/best.pt"})
    found = np.load(tmp_path / "my_runs" / "2" / "predictions.npz")
    assert found["prediction"].shape == found["target"].shape == (4, 16, 16)
    accuracy = (found["prediction"] == found["target"]).mean()
    assert run.result == pytest.approx(accuracy)


def test_scattered_digits_are_where_their_classes_say():
    images, classes = segment.scattered_digits(num=20, seed=3)
    assert ((images[:, 0] > 0.25) == (classes > 0)).all()
    assert set(np.unique(classes)) <= set(range(11))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "verifies"),
    [
        ("gan", False),
        pytest.param("stream", False, marks=pytest.mark.slow),
        *(pytest.param(kind, False, marks=pytest.mark.nightly) for kind in KILLED if kind not in ("gan", "stream")),
        *(pytest.param(kind, True, marks=pytest.mark.nightly) for kind in ("gan", "language_model", "stream")),
    ],
)
def test_killed_training_ends_with_the_same_bits(tmp_path, kind, verifies, wait_for):
    """Kill it with -9 once a state of its second epoch is there, start it again, and compare it to an unbroken one."""
    (tmp_path / "text.txt").write_text(
        "to be, or not to be, that is the question: whether it is nobler to suffer\n" * 5
    )
    num_epochs = 4 if kind == "stream" else 6
    given = {**KILLED[kind], "epochs": num_epochs, "checkpoint.interval_steps": 1, "resume": "auto"}
    settings = [f"{name}={value}" for name, value in given.items()]
    script = ["stream.py"] if kind == "stream" else ["-m", f"sacristan.experiments.{kind}"]
    command = [sys.executable, *script, "with", *settings]
    runs = {}
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stream.py").write_text(STREAM_SCRIPT)
        runs[name] = tmp_path / name / "my_runs" / "1"
    with Process(command, cwd=tmp_path / "killed", stdout=PIPE, stderr=PIPE) as process:
        wait_for(lambda: newest_step(runs["killed"]) > 2 or process.poll() is not None, "a state of the second epoch")
        process.kill()
        process.communicate()
    assert 2 < newest_step(runs["killed"]) < 2 * num_epochs
    resume = [sys.executable, "-m", "sacristan", "resume", "1", "--verify", "1"] if verifies else command
    for name, start in (("whole", command), ("killed", resume)):
        done = run(start, cwd=tmp_path / name, capture_output=True, text=True, starts_python=not verifies)
        assert done.returncode == 0, done.stderr
        assert verifies or not (tmp_path / name / "my_runs" / "2").exists(), done.stderr
    assert done.stdout.startswith("IDENTICAL") == verifies
    whole, killed = (read_metrics(folder) for folder in runs.values())
    # What the machine was asked for depends on when.
    names, others = ({name for name in found if not name.startswith("system/")} for found in (whole, killed))
    assert names == others
    for name in names:
        assert whole[name].steps.tolist() == killed[name].steps.tolist()
        assert whole[name].values.tolist() == killed[name].values.tolist()
    results = [json.loads((folder / "run.json").read_text()) for folder in runs.values()]
    assert results[0]["result"] == results[1]["result"]
    assert [document["status"] for document in results] == ["COMPLETED", "COMPLETED"]


def newest_step(run):
    """Return the step of the newest state that a training has saved; 0 for none."""
    try:
        return load_checkpoint(run / "checkpoints" / "last.pt")["step"]
    except CheckpointError:
        return 0


@pytest.mark.parametrize("kind", KINDS)
def test_fast_after_a_recipe_has_its_epochs(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    ex, small = KINDS[kind]
    settings = {name: value for name, value in small.items() if name != "epochs"}
    done = ex.run("print_config", config_updates=settings, named_configs=[str(CONFIGS / f"{kind}.yaml"), "fast"])
    assert done.config["epochs"] == done.config["training"]["epochs"] == 2
