"""Runs that are refused before they come to anything: they are recorded, and `ls` lists them when it is asked to."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import exp
from sacristan.__main__ import main
from sacristan.experiments import Experiment, tabular
from sacristan.ingredients import DataError, LabError, TrainingError
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import open_store
from sacristan.runs.query import REFUSED

TABLE = ["a,y", *(f"{number % 7},{number % 2}" for number in range(40))]


def write_images(folder):
    for number in range(12):
        path = folder / "images" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.zeros((8, 8 + (number == 5)), np.uint8)).save(path)


ROWS = """
import torch

class Rows(torch.nn.Module):
    def forward(self, outputs, targets):
        return outputs[:, :1].repeat(1, 3)
"""
CASES = {
    "target": (tabular.ex, {"data.path": "table.csv", "data.target": "nope"}, "has no column 'nope'"),
    "gaps": (exp.ex, {"data.name": "csv", "data.path": "gaps.csv"}, "NaN"),
    "sizes": (exp.ex, {"data.name": "image_folder", "data.path": "images"}, "size"),
    "loss": (exp.ex, {"data.name": "csv", "data.path": "table.csv", "loss.name": "mine:Rows"}, "shape"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_refused_run_is_listed_when_asked_for(tmp_path, monkeypatch, capsys, case):
    ex, settings, message = CASES[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("table.csv").write_text("\n".join(TABLE) + "\n")
    Path("gaps.csv").write_text("\n".join([*TABLE, ",1"]) + "\n")
    Path("mine.py").write_text(ROWS)
    write_images(tmp_path)
    with pytest.raises(LabError, match=message):
        ex.run(config_updates={"epochs": 1, **settings})
    capsys.readouterr()
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == "(1 refused run is not listed; --refused lists it)\n"
    for chosen in (["--refused"], ["--where", "status=FAILED"]):
        assert main(["ls", *chosen]) == 0
        assert "FAILED" in capsys.readouterr().out, chosen
    main(["show", "1"])
    assert "FAILED (rejected before training)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_run_that_came_to_something_or_failed_is_listed(tmp_path, kind, capsys, request):
    ex = Experiment("e", base_dir=tmp_path, save_git_info=False)
    url = str(tmp_path / "runs")
    if kind == "mongo":
        server, database = request.getfixturevalue("mongo_url"), request.getfixturevalue("database").name
        url = f"{server}/{database}"
    ex.observers.append(FileObserver(url) if kind == "files" else MongoObserver(server, database, failure_dir=tmp_path))

    @ex.main
    def run(_run, points, error):
        for step in range(points):
            _run.log_scalar("loss", 1.0, step)
        if error:
            raise error("no")

    ex.add_config(points=0, error=None)
    for points, error in ((0, DataError), (1, DataError), (0, TrainingError), (0, ValueError), (1, None)):
        with pytest.raises(error) if error else contextlib.nullcontext():
            ex.run(config_updates={"points": points, "error": error})
    with open_store(url) as store:
        assert [run.id for run in store.find({REFUSED: True})] == ["1"]
    capsys.readouterr()
    main(["ls", "--store", url, "--columns", "status"])
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["5", "4", "3", "2"]
    assert out.endswith("(1 refused run is not listed; --refused lists it)\n")
    main(["ls", "--store", url, "--limit", "1", "--json", "--refused", "--sort", "start"])
    assert '"id": "1"' in capsys.readouterr().out
