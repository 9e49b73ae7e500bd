"""Trials of sweeps among other runs, in a folder and in a real MongoDB: chosen, listed, shown and drawn."""

from __future__ import annotations

import json

import pymongo
import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp("swept")
    ex = Experiment("swept", base_dir=folder, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        optimizer = {"lr": 0.1, "momentum": 0.0}
        lr = optimizer["lr"]
        sizes = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
        seed = 0

    @ex.main
    def run(_run, lr):
        _run.log_scalar("val/loss", lr, 0)

    ex.observers.append(FileObserver(folder / "store"))
    ex.observers.append(MongoObserver(mongo_url, "swept", failure_dir=folder / "spool"))
    for trial, lr in enumerate((0.1, 0.2, 0.3)):
        parameters = {"optimizer.lr": lr, **{f"sizes.{name}": trial for name in "abcde"}, "optimizer.momentum": 0.0}
        sweep = {"id": "first", "trial": trial, "attempt": trial + 1, "parameters": parameters}
        updates = {**parameters, "seed": trial}
        ex.run(config_updates=updates, meta_info={"sweep": sweep}, options={"--capture": "sys"})
    ex.run(meta_info={"sweep": {"id": "12", "trial": 0, "attempt": 1, "parameters": {}}}, options={"--capture": "sys"})
    ex.run(options={"--capture": "sys"})
    yield {"files": str(folder / "store"), "mongo": f"{mongo_url}/swept"}
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database("swept")


@pytest.fixture(params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
def runs(request, recorded, capsys):
    def call(*words, code=0):
        assert main(["--store", recorded[request.param], *words]) == code
        return capsys.readouterr()

    return call


def test_sweep_chooses_its_trials(runs):
    assert [run["id"] for run in json.loads(runs("ls", "--sweep", "first", "--json").out)] == ["3", "2", "1"]
    assert [run["id"] for run in json.loads(runs("ls", "--sweep", "12", "--json").out)] == ["4"]
    assert runs("ls", "--sweep", "none").out == "no run matches the conditions\n"
    assert [run["id"] for run in json.loads(runs("export", "--sweep", "12", "--format", "json").out)] == ["4"]


def test_sweep_among_runs_of_none_is_no_misspelt_field(tmp_path, capsys):
    FileObserver(tmp_path)
    ex = Experiment("alone", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "store"))
    ex.main(lambda: None)
    ex.run(options={"--capture": "sys"})
    assert main(["--store", str(tmp_path / "store"), "ls", "--sweep", "s"]) == 0
    assert capsys.readouterr().out == "no run matches the conditions\n"


def test_trials_are_listed_with_all_parameters_that_differ_and_no_others(runs):
    header = runs("ls", "--sweep", "first").out.splitlines()[0].split()
    assert [name for name in header if "." in name] == ["optimizer.lr", *(f"sizes.{name}" for name in "abcde")]
    assert "lr" not in header  # the same setting as optimizer.lr
    # Of all runs no more than four settings.
    assert len([name for name in runs("ls").out.splitlines()[0].split() if "." in name]) <= 4


def test_curves_of_trials_name_what_differs_alone(runs):
    drawn = json.loads(runs("plot", "--metric", "val/loss", "--sweep", "first", "--json").out)
    labels = [curve["label"] for curve in drawn["panels"][0]["curves"]]
    assert labels == [f"run {trial + 1}: optimizer.lr={lr}, sizes.a={trial}, sizes.b={trial}, sizes.c={trial}"[:60]
                      for trial, lr in ((2, 0.3), (1, 0.2), (0, 0.1))]  # fmt: skip
    assert "momentum" not in json.dumps(drawn)


def test_conditions_and_ids_together_are_refused_with_a_sweep_too(runs):
    got = runs("plot", "1", "--metric", "val/loss", "--sweep", "first", code=1).err
    assert got == (
        "error: got runs and conditions, expected either; leave out the ids, or --where, --tag, --mine and --sweep\n"
    )


def test_show_tells_the_trial(runs):
    lines = [line.split(None, 1) for line in runs("show", "2").out.splitlines()]
    text = next(words[1] for words in lines if words[:1] == ["sweep"])
    assert text.startswith("first, trial 1, attempt 2: optimizer.lr=0.2 sizes.a=1 ")
    assert not any(words[:1] == ["sweep"] for words in (line.split() for line in runs("show", "5").out.splitlines()))


def test_comparison_takes_the_trials_of_a_sweep(runs):
    found = json.loads(runs("compare", "--by", "lr", "--metric", "val/loss.min", "--sweep", "first", "--json").out)
    assert [group["n"] for group in found["groups"]] == [1, 1, 1]
