"""A training that is taken up from any of its states goes on as if it had never been left, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from sacred.observers import RunObserver

from sacristan.experiments import Experiment, Terminated, fit, steps_per_epoch
from sacristan.ingredients import (
    Checkpointer,
    ConfigError,
    Data,
    LoaderBatches,
    MixedPrecision,
    Place,
    TensorBatches,
    seed_globals,
)
from sacristan.ingredients.checkpoints.files import load_checkpoint, save_checkpoint
from sacristan.ingredients.losses import build_loss
from sacristan.ingredients.models.building import build_model
from sacristan.ingredients.models.modules import Freezing
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.scheduler import build_schedule
from sacristan.observers import FileObserver

CPU = torch.device("cpu")
SEED, EPOCHS, CLASSES = 3, 3, 4
AUGMENT = {"flip": True, "crop": 1, "rotate": 5.0}
PER_STEP = {"name": "CosineAnnealingLR", "interval": "step", "warmup_steps": 3}

TRAININGS = {
    "mlp": {"model": ("mlp", {"hidden": [6], "dropout": 0.3})},
    "mlp-float16": {"model": ("mlp", {"hidden": [6], "dropout": 0.3}), "dtype": "float16"},
    # Starts so high that the first steps overflow and are skipped.
    "mlp-float16-overflow": {"model": ("mlp", {"hidden": [6]}), "dtype": "float16", "init_scale": 2.0**30},
    "mlp-lbfgs": {"model": ("mlp", {"hidden": [6], "dropout": 0.3}), "optimizer": ("LBFGS", 0.1, {"max_iter": 3})},
    "mlp-sgd-plateau": {
        "model": ("mlp", {"hidden": [6]}),
        "optimizer": ("SGD", 0.5, {"momentum": 0.9}),
        "schedule": {"name": "ReduceLROnPlateau", "options": {"patience": 0}},
    },
    "cnn": {"model": ("cnn", {"widths": [4], "dropout": 0.2}), "augmentation": AUGMENT, "schedule": PER_STEP},
    "cnn-bfloat16": {
        "model": ("cnn", {"widths": [4], "dropout": 0.2}),
        "dtype": "bfloat16",
        "augmentation": AUGMENT,
        "accumulate": 2,
        "schedule": {"name": "OneCycleLR", "interval": "step", "options": {"max_lr": 0.01}},
    },
    "vit": {
        "model": ("vit", {"patch": 4, "width": 8, "depth": 1, "heads": 2, "dropout": 0.2}),
        "accumulate": 2,
        "schedule": {"name": "MultiStepLR", "interval": "step", "options": {"milestones": [2, 7]}},
    },
    "vit-float16": {
        "model": ("vit", {"patch": 4, "width": 8, "depth": 1, "heads": 2, "dropout": 0.2}),
        "dtype": "float16",
        "augmentation": AUGMENT,
        "schedule": PER_STEP,
    },
    "cnn-ema": {
        "model": ("cnn", {"widths": [4], "dropout": 0.2}),
        "averaging": {"average": "ema", "average_decay": 0.8},
    },
    "cnn-swa": {
        "model": ("cnn", {"widths": [4], "dropout": 0.2}),
        "averaging": {"average": "swa", "average_start": 2},
        "augmentation": AUGMENT,
    },
    "cnn-unfreezing": {
        "model": ("cnn", {"widths": [4, 8], "dropout": 0.2}),
        "unfreeze": [{"epoch": 2, "match": ["4", "1"]}, {"epoch": 3, "match": "3"}],
        "schedule": PER_STEP,
    },
    "mlp-loader": {"model": ("mlp", {"hidden": [6], "dropout": 0.3}), "num_workers": 0, "augmentation": AUGMENT},
}
# What the ordinary suite trains of them.
OFTEN = {"mlp", "vit-float16"}


class Images(torch.utils.data.Dataset):
    """Images that are read one by one, as a split of a map-style data set."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, key):
        return self.inputs[key[1]], self.targets[key[1]]


def make_data(*, augmentation, num_workers, batch_size=8):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 1, 8, 8, generator=generator)
    targets = torch.randint(CLASSES, (60,), generator=generator)
    splits = {}
    for split, chosen in (("train", slice(0, 44)), ("val", slice(44, 60)), ("test", slice(0, 0))):
        training = split == "train"
        options = {"seed": SEED, "shuffle": training, "augmentation": augmentation if training else None}
        if num_workers is None:
            splits[split] = TensorBatches(inputs[chosen], targets[chosen], batch_size, **options)
        else:
            images = Images(inputs[chosen], targets[chosen])
            splits[split] = LoaderBatches(images, CPU, batch_size, num_workers, False, **options)
    return Data(
        **splits,
        task="classification",
        input_shape=(1, 8, 8),
        num_targets=CLASSES,
        classes=tuple("abcd"),
        class_counts=tuple(torch.bincount(targets[:44], minlength=CLASSES).tolist()),
        target_mean=None,
        target_std=None,
        fingerprint="",
    )


def train(
    folder,
    *,
    model,
    optimizer=("AdamW", 0.02, {}),
    schedule={},
    dtype="off",
    init_scale=65536.0,
    accumulate=1,
    augmentation=None,
    num_workers=None,
    resume=False,
    patience=None,
    averaging={},
    unfreeze=(),
    **checkpoints,
):
    """Train from the seed on, or from the state in `folder`; return the weights, what was logged, and the result."""
    data = make_data(augmentation=augmentation, num_workers=num_workers)
    loss = build_loss(None, {}, None, data, CPU)
    seed_globals(SEED)
    network = build_model(*model, "default", data.input_shape, CLASSES, SEED)
    if unfreeze:
        Freezing(network, ["0", "1"], unfreeze)
    name, lr, options = optimizer
    opt = build_optimizer(network, name, lr, options=options)
    scheduler = build_schedule(opt, EPOCHS, steps_per_epoch(data.train, accumulate), **schedule)
    amp = MixedPrecision(CPU, dtype, init_scale=init_scale, clip_norm=1.0, accumulate=accumulate)
    log = []
    result = fit(
        network,
        data,
        loss,
        opt,
        log=lambda *point: log.append(point),
        epochs=EPOCHS,
        scheduler=scheduler,
        amp=amp,
        checkpointer=Checkpointer(folder, {}, resume=resume, **checkpoints),
        log_interval=4,
        patience=patience,
        **averaging,
    )
    torch.rand(3)
    return network.state_dict(), log, result, torch.rand(3)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def best_weights(folder):
    return load_checkpoint(folder / "best.pt")["model"]


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in TRAININGS]
)
def test_training_taken_up_after_one_of_its_steps_ends_with_the_same_bits(tmp_path, name, stride):
    settings = TRAININGS[name]
    weights, log, result, drawn = train(tmp_path / "whole", **settings, interval_steps=1, keep=1000)
    states = sorted((tmp_path / "whole").glob("step-*.pt"))
    assert len(states) == result.steps - 1
    for number, path in list(enumerate(states, 1))[stride - 1 :: stride]:
        folder = tmp_path / path.stem
        folder.mkdir()
        shutil.copy(path, folder / "last.pt")
        for best in (tmp_path / "whole").glob("best*.pt"):
            shutil.copy(best, folder)
        others = train(folder, **settings, resume=True)
        assert same(others[0], weights), path.name
        left = [point for point in log if point[2] > number or ends_epoch(path, point, number)]
        assert repr(others[1]) == repr(left), path.name  # by repr, as NaN is not itself
        assert repr(others[2]) == repr(result), path.name
        assert torch.equal(others[3], drawn), path.name
        assert same(best_weights(folder), best_weights(tmp_path / "whole")), path.name
        shutil.rmtree(folder)


def ends_epoch(path, point, number):
    """Tell whether a point of a state's own step is logged after that state: those of the validation are."""
    return point[2] == number and point[0].startswith("val/") and load_checkpoint(path)["batch"] > 0


@pytest.mark.slow
def test_training_with_two_workers_taken_up_in_an_epoch_ends_with_the_same_bits(tmp_path):
    settings = {"model": ("mlp", {"hidden": [6], "dropout": 0.3}), "augmentation": AUGMENT}
    weights, log, *_ = train(tmp_path / "whole", **settings, num_workers=2, interval_steps=1, keep=1000)
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "whole" / "step-000000008.pt", tmp_path / "again" / "last.pt")
    shutil.copy(tmp_path / "whole" / "best-000001.pt", tmp_path / "again")
    again = train(tmp_path / "again", **settings, num_workers=2, resume=True)
    assert same(again[0], weights)
    assert again[1] == [point for point in log if point[2] > 8]
    # Neither do the workers change anything.
    assert same(train(tmp_path / "alone", **settings)[0], weights)


def test_training_taken_up_after_its_end_does_nothing_more(tmp_path):
    settings = TRAININGS["mlp"]
    weights, _, result, _ = train(tmp_path, **settings)
    others = train(tmp_path, **settings, resume=True)
    assert same(others[0], weights)
    assert (others[1], repr(others[2])) == ([], repr(result))


def test_start_from_the_end_of_another_training_is_refused_where_nothing_would_be_trained(tmp_path):
    settings = TRAININGS["mlp"]
    train(tmp_path / "first", **settings)
    start = tmp_path / "first" / "last.pt"
    with pytest.raises(ConfigError, match=r"training.epochs: got 3, but .*last.pt has 3 epochs .* such as epochs=6"):
        train(tmp_path / "second", **settings, start=start)
    state = load_checkpoint(start)
    save_checkpoint({**state, "epoch": 2, "monitor": {**state["monitor"], "waited": 2}}, start)
    with pytest.raises(ConfigError, match=r"training.patience: got 2, .* val/loss has not improved for as long"):
        train(tmp_path / "second", **settings, start=start, patience=2)
    assert train(tmp_path / "second", **settings, start=start, patience=3)[2].epochs == 3


def test_training_that_saved_nothing_yet_starts_again_from_what_it_started_from(tmp_path):
    settings = TRAININGS["mlp"]
    train(tmp_path / "first", **settings, interval_steps=1, keep=1000)
    start = tmp_path / "first" / "step-000000008.pt"
    weights, log, *_ = train(tmp_path / "second", **settings, start=start)
    shutil.copytree(tmp_path / "second" / "start", tmp_path / "third" / "start")
    shutil.rmtree(tmp_path / "first")
    others = train(tmp_path / "third", **settings, start=start, resume=True)
    assert same(others[0], weights)
    assert others[1] == log
    assert load_checkpoint(tmp_path / "third" / "start" / "best.pt")["epoch"] == 1


class Late(RunObserver):
    """Sends the signal once the state is about to be written."""

    def flush_event(self):
        os.kill(os.getpid(), signal.SIGTERM)


def test_signal_while_the_final_state_is_written_ends_the_run(tmp_path):
    ex = Experiment("late", base_dir=Path(__file__).parent)
    ex.observers.extend([FileObserver(tmp_path), Late()])
    model = torch.nn.Linear(2, 2)

    @ex.main
    def main(_run):
        keeper = Checkpointer(tmp_path / "1" / "checkpoints", {}, record=_run)
        with keeper.session():
            keeper.save(Place(epoch=1, step=7), {"model": model}, final=True)

    with pytest.raises(Terminated) as raised:
        ex.run(options={"--capture": "sys"})
    assert (raised.value.step, raised.value.code) == (7, 75)
    assert load_checkpoint(tmp_path / "1" / "checkpoints" / "last.pt")["step"] == 7
    assert json.loads((tmp_path / "1" / "run.json").read_text())["status"] == "INTERRUPTED"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "weights alone"])
def test_training_with_a_damaged_newest_state_goes_on_from_the_one_before(tmp_path, damage, caplog):
    settings = TRAININGS["mlp"]
    weights, *_ = train(tmp_path, **settings)
    last = tmp_path / "last.pt"
    raw = bytearray(last.read_bytes())
    raw[len(raw) // 2] ^= 1
    if damage == "foreign":
        train(tmp_path / "other", model=("mlp", {"hidden": [7]}), optimizer=("SGD", 0.1, {}))
        raw = (tmp_path / "other" / "last.pt").read_bytes()
    elif damage == "weights alone":
        raw = (tmp_path / "best.pt").read_bytes()
    last.write_bytes({"cut": bytes(raw[: len(raw) // 2]), "empty": b""}.get(damage, bytes(raw)))
    again = train(tmp_path, **settings, resume=True)
    assert same(again[0], weights)
    assert {step for _, _, step in again[1]} == {16, 18}
    assert f"{last}: " in caplog.text
    assert "trying the state before it" in caplog.text
    assert load_checkpoint(last)["step"] == 18
