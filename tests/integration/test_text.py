"""Texts of one's own, in batches that are filled up and masked, to classes of new texts."""

import csv
from pathlib import Path

import pytest
import torch

from sacristan.experiments import text
from sacristan.ingredients import ModelError
from sacristan.ingredients.datasets.fitted import Vocabulary
from sacristan.observers import read_metrics

RECIPE = str(Path(__file__).parents[2] / "configs" / "text.yaml")
IRIS = str(Path(__file__).parents[2] / "configs" / "iris.csv")
LINES = [f"{'well' if number % 2 else 'never'} {'so ' * (number % 7)}done" for number in range(30)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command on a few texts, with a tiny network."""
    monkeypatch.chdir(tmp_path)
    Path("texts.csv").write_text("text,label\n" + "".join(f"{line},{line.split()[0]}\n" for line in LINES))
    Path("new.txt").write_text("well so so done\nnever done\nwhat is this\n")

    def run(command="main", named=(), **settings):
        small = {
            "data.path": "texts.csv",
            "data.batch_size": 11,
            "model.options": {"width": 8, "heads": 2, "dropout": 0.0},
            "epochs": 1,
            "training.log_interval": 1,
        }
        return text.ex.run(
            command, named_configs=named, config_updates={**small, **settings} if not named else settings
        )

    return run


def test_two_steps_have_the_pinned_losses(run):
    done = run()
    found = read_metrics(Path("my_runs/1"))
    assert found["train/loss"].values.tolist() == pytest.approx([0.641949, 0.672663], rel=1e-3)
    assert done.result == 0.75


@pytest.mark.slow
def test_new_texts_are_predicted(run):
    trained = run(epochs=30, lr=0.02)
    assert trained.result == 1
    run("predict", **{"checkpoint.path": "my_runs/1/checkpoints/best.pt", "data.path": "new.txt"})
    with Path("my_runs/2/predictions.csv").open() as stream:
        found = list(csv.DictReader(stream))
    assert [row["prediction"] for row in found[:2]] == ["well", "never"]
    assert [row["index"] for row in found] == ["0", "1", "2"]


def test_recipe_and_fast_go_together(run):
    done = run(named=[RECIPE, "fast"], **{"data.path": "texts.csv"})
    assert (done.status, done.config["epochs"]) == ("COMPLETED", 2)


def test_padding_does_not_change_the_output():
    torch.manual_seed(0)
    prepared = type("Prepared", (), {"vocabulary": Vocabulary(("a", "b", "c"))})
    network = text.network(3, prepared, width=8, depth=2, heads=2).eval()
    short = torch.tensor([[2, 3, 1]])
    batch = torch.tensor([[2, 3, 1, 0, 0, 0], [4, 4, 4, 3, 2, 2]])
    assert torch.allclose(network(batch)[:1], network(short), atol=1e-6)
    assert not torch.allclose(network(batch)[:1], network(torch.tensor([[2, 3]])), atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.options.heads": 3}, "3 heads do not divide a width of 8"),
        ({"data.name": "csv", "data.path": IRIS, "data.sampler": None}, "this network is for texts; write data.name"),
    ],
)
def test_network_that_does_not_fit_is_refused(run, settings, message):
    with pytest.raises(ModelError, match=message):
        run(**settings)


def test_stats_of_texts_have_no_means(run, capsys):
    run("data.stats")
    out = capsys.readouterr().out
    assert "nan" not in out
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["split", "count", "targets"],
        ["train", "21", "2", "classes"],
    ]
