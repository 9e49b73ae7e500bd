"""Printed digits, and what learning from them is worth for handwritten ones."""

import numpy as np
import pytest
import torch

from sacristan.experiments import finetune
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.runs import compare, open_store
from tests.integration.test_ready_experiments import CONFIGS

RECIPE = str(CONFIGS / "finetune.yaml")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_printed_digits_have_the_shapes_of_their_digits():
    images, digits = finetune.printed_digits(num=300, seed=1)
    assert (images.shape, images.min(), images.max()) == ((300, 1, 8, 8), 0, 1)
    mean = [images[digits == digit, 0].mean(0) for digit in range(10)]
    assert mean[0][3:5, 3:5].mean() < 0.5 * mean[0][3:5].max()  # a hole
    assert mean[1][3:5, 3:5].mean() > mean[0][3:5, 3:5].mean()
    assert mean[7][:3].sum() > 1.2 * mean[7][5:].sum()  # its bar is above
    assert mean[2][6:].sum() > mean[7][6:].sum()


def test_printed_digits_are_drawn_by_the_seed_alone():
    one, same, other = (finetune.printed_digits(num=20, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one[0], same[0])
    assert not np.array_equal(one[0], other[0])
    # How much of the images is covered, and the weight of its columns.
    found = [one[0].sum(), (one[0] * np.arange(8)).sum()]
    assert found == pytest.approx([306.75, 1098.69], rel=2e-3)


def test_named_configs_are_small():
    assert finetune.ex.run("print_config", named_configs=["fast"]).config["model"]["options"]["widths"] == [8]


@pytest.mark.slow
def test_handwritten_digits_start_from_what_was_learnt_of_printed_ones():
    small = {"model.options.widths": [4], "epochs": 1}
    finetune.ex.run(named_configs=["printed"], config_updates={**small, "data.options.num": 100})
    done = finetune.ex.run(config_updates={**small, "data.limit": 300, "model.weights": "run:1", "lr": 1e-30})
    (report,) = done.info["weights"]
    assert (report["missing"], report["unexpected"], report["reshaped"]) == ([], [], [])
    before, after = (load_checkpoint(done.folder.parent / number / "checkpoints/best.pt")["model"] for number in "12")
    assert all(torch.equal(before[name], after[name]) for name in before if name.endswith("weight"))


def test_handwritten_digits_of_the_recipe_are_200_and_the_others_for_the_test(capsys):
    finetune.ex.run("data.stats", named_configs=[RECIPE])
    counts = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith(("train", "test"))]
    assert counts == [["train", "200"], ["test", "1,497"]]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_starting_from_printed_digits_is_better_than_from_scratch():
    finetune.ex.run(named_configs=[RECIPE, "printed"])
    for seed in range(5):
        for weights in (None, "run:1"):
            finetune.ex.run(named_configs=[RECIPE], config_updates={"seed": seed, "model.weights": weights})
    with open_store("my_runs") as store:
        found = compare(store.find(), "model.weights", "seed", "info.test.accuracy", where="data.name=digits")
    (pair,) = found.pairs
    assert pair.first.values == {"model.weights": "run:1"}
    assert (pair.first.sample.n, pair.verdict) == (5, "first")
    assert pair.test.low > 0
