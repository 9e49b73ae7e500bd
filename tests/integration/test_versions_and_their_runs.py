"""A version of a model knows its run, data, metrics, card and command: of an experiment and a script, as processes."""

import json
import os
import shlex
import sys

import pytest

from sacristan.__main__ import main
from tests.processes import run

EXPERIMENT = """
import pathlib
from sacristan.experiments import Experiment

ex = Experiment("trained", save_git_info=False, system_metrics_s=None)


@ex.config
def config():
    lr = 0.1


@ex.automain
def main(_run, lr):
    pathlib.Path("digits.csv").write_text("1,2")
    _run.log_artifact("digits", "digits.csv")
    _run.use_artifact("digits")
    for step in range(3):
        _run.log_scalar("val/accuracy", lr * step, step)
    pathlib.Path("net.pt").write_bytes(b"net")
    _run.log_artifact("net", "net.pt", "model", {"lr": lr}).alias("best")
"""
SCRIPT = """
import argparse
import pathlib

import sacristan

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()
with sacristan.init("trained", config=vars(arguments)) as run:
    pathlib.Path("digits.csv").write_text("1,2")
    run.log_artifact("digits.csv", "digits", "dataset")
    run.use_artifact("digits:latest")
    for step in range(3):
        run.log({"val/accuracy": arguments.lr * step})
    pathlib.Path("net.pt").write_bytes(b"net")
    run.log_artifact("net.pt", "net", "model", aliases=["best"], metadata={"lr": arguments.lr})
"""


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["experiment", "script"])
def test_version_knows_what_made_it(tmp_path, request, capsys, kind, how):
    url = None if kind == "folder" else request.getfixturevalue("mongo_url")
    name = "" if kind == "folder" else request.getfixturevalue("database").name
    where = str(tmp_path / "my_runs") if kind == "folder" else f"{url}/{name}"
    if how == "experiment":
        (tmp_path / "train.py").write_text(EXPERIMENT)
        option = ["-F", "my_runs"] if kind == "folder" else ["-m", f"{url.removeprefix('mongodb://')}:{name}"]
        words = [*option, "with", "lr=0.25"]
    else:
        (tmp_path / "train.py").write_text(SCRIPT)
        words = ["--lr", "0.25"]
    env = {**os.environ, "SACRISTAN_STORE": where} if how == "script" else None
    done = run([sys.executable, "train.py", *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert main(["artifacts", "show", "net:best", "--json", "--store", where]) == 0
    shown = json.loads(capsys.readouterr().out)
    made = shown["run"]
    assert (shown["version"], shown["aliases"], shown["metadata"]) == (1, ["latest", "best"], {"lr": 0.25})
    assert (made["name"], made["status"], made["config"]["lr"]) == ("trained", "COMPLETED", 0.25)
    assert made["command"] == f"python {' '.join(['train.py', *words])}"
    assert (made["data"], made["metrics"]["val/accuracy"]["max"]) == ({"digits": "v1"}, 0.5)
    words = shlex.split(made["card"])
    assert words == ["sacristan", "--store", where, "card", made["id"]]
    assert main([*words[1:], "--output", str(tmp_path / "card.md")]) == 0
    assert "trained" in (tmp_path / "card.md").read_text()
