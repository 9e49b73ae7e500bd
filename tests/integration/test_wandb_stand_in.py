"""Scripts that import wandb, under `sacristan run`: recorded without W&B, and never ended by what is not recorded."""

from __future__ import annotations

import json
import os
import sys

import pytest

from sacristan.runs import open_store
from tests.processes import PIPE, run

SCRIPT = """
import numpy as np
import wandb
import wandb.util
from wandb.sdk import wandb_run

wandb.login()
for seed in range(2):
    run = wandb.init(
        project="digits", name=f"seed {seed}", config={"seed": seed}, entity="me", dir="/nonexistent", tags=["x"],
        id=wandb.util.generate_id(),
    )
    wandb.define_metric("val/*", step_metric="epoch")
    wandb.config.update({"lr": 0.1}, allow_val_change=True)
    for epoch in range(3):
        wandb.log({"loss": 1 / (epoch + 1), "val/accuracy": epoch / 4, "epoch": epoch + 10})
    wandb.log({"image": wandb.Image(255 * np.ones((4, 4, 3)), caption="white"), "line": wandb.plot.line(1, 2, 3)})
    run.log({"table": wandb.Table(columns=["a"], data=[[np.zeros(3)]]), "images": [wandb.Image(np.zeros((1, 4, 4)))]})
    run.summary["best"] = seed
    run.log_code(".")
    wandb.alert(title="title", text="text", level=wandb.AlertLevel.WARN)
    with open(wandb.run.dir + "/mine.txt", "w") as stream:
        stream.write("kept")
    wandb.finish()
try:
    wandb.log({"late": 1})
except wandb.errors.Error as error:
    print(error)
"""


def test_script_for_wandb_is_recorded_without_it(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = run(command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "You must call wandb.init() before wandb.log()\n"), done.stderr
    for left_out in ("plot.line", "run.log_code"):
        assert done.stderr.count(f"sacristan: wandb: {left_out} is not recorded") == 1
    assert not (tmp_path / "wandb").exists()
    for seed in range(2):
        found = open_store(tmp_path / "my_runs").get(seed + 1)
        assert (found.status, found.display_name, found.tags) == ("COMPLETED", f"seed {seed}", ["x"])
        assert {name: found.config[name] for name in ("seed", "lr")} == {"seed": seed, "lr": 0.1}
        accuracy = found.metric("val/accuracy")
        assert (accuracy.steps.tolist(), accuracy.values.tolist()) == ([10, 11, 12], [0.0, 0.25, 0.5])
        assert found.metric("loss").steps.tolist() == [0, 1, 2]
        assert sorted(medium.name for medium in found.media) == ["image", "images", "table"]
        table = next(medium for medium in found.media if medium.name == "table")
        assert json.loads(table.content.read())["rows"] == [["[0. 0. 0.]"]]
        assert (found.info["summary"]["best"], found.alerts[0]["text"]) == (seed, "title: text")
        assert "log" in found.info["captured"]["wandb"]
        assert (tmp_path / "my_runs" / str(seed + 1) / "files" / "mine.txt").read_text() == "kept"


TAGGED = """
import wandb

for options in ({}, {"tags": ["mine"]}):
    wandb.init(**options).log({"loss": 1.0})
    wandb.finish()
"""


def test_variables_give_name_and_tags_to_runs_that_name_none(tmp_path):
    (tmp_path / "train.py").write_text(TAGGED)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    env |= {"WANDB_NAME": "one", "WANDB_TAGS": "small,first"}
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    done = run(command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        found = store.find(sort="start")
    assert [sorted(each.tags) for each in found] == [["first", "small"], ["mine"]]
    assert [each.display_name for each in found] == ["one", "one"]


# Forms that are common in public scripts, and names that the lab does not have.
ODD = """
import copy
import numpy as np
import torch
import wandb
from wandb.data_types import Image
from wandb.sdk.data_types.table import Table

run = wandb.init(project="digits", config={"lr": 0.1})
wandb.config = {"epochs": 3}
print(wandb.config.lr, wandb.config["epochs"], wandb.run.sweep_id is None, wandb.run.start_time > 1e9, run.entity == "")
print(isinstance(run, wandb.Object3D), wandb.Api().runs("me/digits")[0].summary["loss"] > 1, len(wandb.Api().runs("x")))

class Callback(wandb.keras.WandbCallback):
    def __init__(self, monitor):
        super().__init__(monitor=monitor)
        self.monitor = monitor

print(Callback("loss").monitor)
cases = Table(columns=["image", "class"])
cases.add_data(wandb.Image(torch.ones((3, 4, 4), device="meta")), "cat")
cases.add_data(wandb.Image(np.zeros((4, 4))), "dog")
print([row[1] for _, row in cases.iterrows()], cases.get_dataframe())
twice = wandb.Table(columns=["a", "a"])
twice.add_data(1, 2)
artifact = wandb.Artifact("digits", type="dataset")
artifact.ttl = 3
artifact.add(wandb.JoinedTable(cases, cases, "class"), "joined")
wandb.log({"cases": cases, "image": Image(np.zeros((4, 4, 3))), "twice": twice, "loss": 1.0})
other = wandb.init(project="digits", reinit="create_new")
other.log({"loss": 2.0})
run.log({"loss": 3.0})
try:
    wandb.sweep({"method": "random"}, project="digits")
except wandb.Error as error:
    print(error)
"""


def test_odd_uses_of_wandb_end_no_training_and_are_named(tmp_path):
    (tmp_path / "train.py").write_text(ODD)
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = run(command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    *lines, advice = done.stdout.splitlines()
    assert lines[:3] == ["0.1 3 True True True", "False False 0", "loss"]
    assert lines[3].startswith("['cat', 'dog']")
    assert "sacristan sweep train.py --over" in advice
    named = (
        "keras.WandbCallback",
        "Api",
        "JoinedTable",
        "Table.get_dataframe",
        "Artifact.add of JoinedTable",
        "Image",
        "Table: got",
    )
    for left_out in named:
        lines = [line for line in done.stderr.splitlines() if line.startswith(f"sacristan: wandb: {left_out}")]
        assert lines, (left_out, done.stderr)
    assert done.stderr.count("the run has ended; what is logged from here on is lost") == 1
    with open_store(tmp_path / "my_runs") as store:
        first, second = store.find(sort="id")
        assert {name: first.config[name] for name in first.config} == {"lr": 0.1, "epochs": 3}
        losses = [found.metric("loss").values.tolist() for found in (first, second)]
        assert (losses, [medium.name for medium in first.media]) == ([[1.0], [2.0]], ["cases", "image"])


def test_disabled_run_of_wandb_is_named(tmp_path):
    (tmp_path / "train.py").write_text(TAGGED)
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    env = os.environ | {"WANDB_MODE": "disabled"}
    done = run(command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sacristan: wandb: what is logged in mode disabled is not recorded\n") == 1
    with open_store(tmp_path / "my_runs") as store:
        assert [found.status for found in store.find()] == ["COMPLETED"]


AGENT = """
import wandb

def train():
    with wandb.init() as run:
        run.log({"loss": run.config.lr})

sweep = wandb.sweep({"method": "random", "parameters": {"lr": {"values": [1, 2]}}}, project="digits")
wandb.agent(sweep, function=train, count=5)
"""


@pytest.mark.slow
def test_agent_in_a_script_trains_once_in_each_trial_of_a_sweep(tmp_path):
    (tmp_path / "train.py").write_text(AGENT)
    over = ["--over", "{lr: [0.1, 0.2]}", "--metric", "loss", "--id", "first", "--packages", ""]
    command = [sys.executable, "-m", "sacristan", "sweep", "train.py", *over]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        assert sorted(found.metric("loss").values.tolist() for found in store.find()) == [[0.1], [0.2]]
