"""Trainings of the main experiment that start from the weights of another."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import exp
from sacristan.ingredients import ModelError
from sacristan.ingredients.checkpoints.files import load_checkpoint

SETTINGS = {"data.name": "npz", "model.options.hidden": [8, 8], "epochs": 1, "data.batch_size": 16}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Return a folder with a run `my_runs/1` on five classes, and data of five and of three classes."""
    folder = tmp_path_factory.mktemp("pretrained")
    rng = np.random.default_rng(0)
    for num_classes in (5, 3):
        inputs, targets = rng.standard_normal((60, 6)).astype("float32"), np.arange(60) % num_classes
        np.savez(folder / f"{num_classes}.npz", x=inputs, y=targets)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exp.ex.run(config_updates=SETTINGS | {"data.path": "5.npz"})
    return folder


@pytest.fixture
def run(pretrained, tmp_path, monkeypatch):
    """Return what runs a command of the main experiment on the three classes, beside the run before."""
    shutil.copytree(pretrained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return lambda settings, command="main": exp.ex.run(
        command, config_updates=SETTINGS | {"data.path": "3.npz"} | settings
    )


def weights_of(number, name="last"):
    return load_checkpoint(Path("my_runs", str(number), "checkpoints", f"{name}.pt"))["model"]


def test_run_starts_from_the_body_of_another_with_a_new_head(run, caplog):
    caplog.set_level("INFO", "sacristan.ingredients.model")
    done = run({"model.weights": "run:1", "model.strict": False, "lr": 1e-30})
    report = done.info["weights"][0]
    assert (report["source"], report["missing"], report["unexpected"]) == ("run:1", [], [])
    assert report["sha256"] == hashlib.sha256(Path(report["path"]).read_bytes()).hexdigest()
    assert [entry["name"] for entry in report["reshaped"]] == ["5.weight", "5.bias"]
    assert "weights of run:1: loaded 4 of the model's 6 tensors" in caplog.text
    mine, theirs = weights_of(2), weights_of(1, "best")
    assert all(torch.equal(mine[name], theirs[name]) for name in report["loaded"])


@pytest.mark.slow
def test_run_is_evaluated_when_the_weights_that_it_started_from_are_gone(run):
    settings = {"model.weights": "run:1", "model.strict": False}
    run(settings)
    shutil.rmtree("my_runs/1")
    assert run(settings | {"checkpoint.path": "my_runs/2/checkpoints/best.pt"}, "evaluate").status == "COMPLETED"


def test_run_from_weights_that_do_not_fit_raises(run):
    with pytest.raises(ModelError, match=r"model.weights: run:1 does not fit this model \(of another shape: 5.weight"):
        run({"model.weights": "run:1"})


def test_run_with_frozen_parts_leaves_them_bit_equal_and_unfreezes_some(run):
    settings = {"model.weights": "run:1", "model.strict": False, "epochs": 2, "checkpoint.keep": 9, "lr": 0.1}
    run(
        settings
        | {"model.freeze": ["1", "3"], "model.unfreeze": [{"epoch": 2, "match": "3"}], "training.average": "ema"}
    )
    before, folder = weights_of(1, "best"), Path("my_runs/2/checkpoints")
    first, last = (load_checkpoint(path)["model"] for path in (next(folder.glob("step-*.pt")), folder / "last.pt"))
    same = [[torch.equal(state[name], before[name]) for name in ("1.weight", "3.weight")] for state in (first, last)]
    assert same == [[True, True], [True, False]]
    assert not torch.equal(first["5.weight"], last["5.weight"])


@pytest.mark.slow
def test_run_with_frozen_parts_is_evaluated(run):
    settings = {"model.freeze": ["1"], "training.average": "swa"}
    done = run(settings)
    assert run(settings | {"checkpoint.path": "my_runs/2/checkpoints/best.pt"}, "evaluate").result == done.result
