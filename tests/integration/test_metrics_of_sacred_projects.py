"""Curves that projects written for stock Sacred keep in `info`: they are shown and read as metrics."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pymongo
import pytest
import sacred
from sacred.observers import FileStorageObserver
from sacred.observers import MongoObserver as SacredMongoObserver

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import StoreError, open_store
from tests.integration.test_stores import KINDS

LONG = 30_000


class Logger:
    """The logger of PyMARL."""

    def __init__(self, info):
        self.info = info

    def log_stat(self, key, value, t):
        self.info.setdefault(f"{key}_T", []).append(t)
        self.info.setdefault(key, []).append(value)


@pytest.fixture(scope="module", params=KINDS)
def store(request, tmp_path_factory, mongo_url):
    """A run that logs nothing but curves in its info, and one that logs a metric, too."""
    kind = request.param
    folder, name = tmp_path_factory.mktemp(kind), f"info_{kind.replace('-', '_')}"
    ex = (Experiment if kind.startswith("our") else sacred.Experiment)("pymarl", base_dir=folder, save_git_info=False)

    @ex.config
    def config():
        logs = False

    @ex.main
    def main(_run, logs):
        logger = Logger(_run.info)
        for t in range(0, 1000, 100):
            logger.log_stat("return_mean", np.mean([t, t / 2]), t)
            logger.log_stat("q_taken", t / 7, t)
        _run.info["long"], _run.info["long_T"] = [n / 3 for n in range(LONG)], list(range(LONG))
        _run.info.update(
            shape=[3, 4], list=list(range(300)), names=["a"], names_T=["b"], label="x" * 500, note={"deep": 1}
        )
        if logs:
            _run.log_scalar("loss", 0.5, 3)

    with pymongo.MongoClient(mongo_url) as client:
        observer = {
            "our-files": lambda: FileObserver(folder / "store"),
            "our-mongo": lambda: MongoObserver(mongo_url, name),
            "sacred-files": lambda: FileStorageObserver(folder / "store"),
            "sacred-mongo": lambda: SacredMongoObserver(client=client, db_name=name),
        }[kind]()
        ex.observers.append(observer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logs in (False, True):
                ex.run(config_updates={"logs": logs}, options={"--capture": "sys"})
        yield str(folder / "store") if kind.endswith("files") else f"{mongo_url}/{name}"
        client.drop_database(name)


def test_curves_in_info_are_metrics(store):
    with open_store(store) as opened:
        first, second = opened.find(sort="id")
        own = [[name for name in run.metrics if not name.startswith("system/")] for run in (first, second)]
        assert own == [["long", "q_taken", "return_mean"], ["long", "loss", "q_taken", "return_mean"]]
        for run in (first, second):
            series = run.metric("return_mean")
            assert series.steps.tolist() == list(range(0, 1000, 100))
            assert series.values.tolist() == [np.mean([t, t / 2]) for t in range(0, 1000, 100)]
            assert run.metric("long").values.tolist() == [n / 3 for n in range(LONG)]
            with pytest.raises(StoreError, match="no metric 'names'"):
                run.metric("names")
        listed = [run.listed() for run in opened.find(sort="id")]
        opened.prefetch(listed, ["metrics"])
        assert [run.metrics for run in listed] == [first.metrics, second.metrics]
        assert first.statistics()["return_mean"]["max"] == 675
        frame = opened.curves("return_mean", where={"_id": {"$in": [first.id]}})
        assert frame["value"].max() == 675


def test_show_prints_info_folded_and_its_curves_as_metrics(store, capsys):
    assert main(["--store", store, "show", "1"]) == 0
    shown = capsys.readouterr().out
    metrics, info = shown.partition("metrics\n")[2].split("info\n")
    assert [line.split()[:2] for line in metrics.splitlines()[1:]] == [
        ["long", "30000"], ["q_taken", "10"], ["return_mean", "10"],
    ]  # fmt: skip
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in info.splitlines()}
    assert (rows["shape"], rows["note.deep"], rows["names"]) == ("[3, 4]", "1", '["a"]')
    assert rows["label"] == "x" * 80 + " …"
    assert rows["list"].startswith("[0, 1, 2")
    assert rows["list"].endswith(" (300 entries) …")
    assert rows["in"] == f"full: sacristan --store {store} show 1 --json"


def test_metrics_and_plots_take_curves_in_info(store, capsys):
    assert main(["--store", store, "metrics", "1", "q_taken", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["q_taken"]["values"] == [t / 7 for t in range(0, 1000, 100)]
    assert main(["--store", store, "metrics", "1"]) == 0
    assert "return_mean" in capsys.readouterr().out
    assert main(["--store", store, "plot", "1", "2", "--metric", "return_mean", "--log-y", "--json"]) == 0
    [panel] = json.loads(capsys.readouterr().out)["panels"]
    assert "gaps: 2 not above 0" in panel["notes"]
    assert panel["curves"][0]["x"] == list(range(0, 1000, 100))


def test_copies_keep_curves_in_info_there_alone(store, tmp_path):
    assert main(["--store", store, "copy", "1", "--to", str(tmp_path / "copy")]) == 0
    with open_store(tmp_path / "copy") as opened:
        [run] = opened.find()
        assert [name for name in run.logged_metrics if not name.startswith("system/")] == []
        assert "return_mean" in run.metrics
