"""`replay` of a composed experiment: its own main function makes the model, the task and the data."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn

from sacristan.experiments import Experiment, supervised
from sacristan.ingredients import ConfigError, TrainingError
from sacristan.observers import FileObserver


class Net(nn.Module):
    """A network whose middle layer overflows for bright images."""

    def __init__(self, input_shape, num_outputs, limit=20.0):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
        self.middle = Middle(16, 16)
        self.middle.limit = limit
        self.head = nn.Linear(16, num_outputs)

    def forward(self, inputs):
        return self.head(self.middle(self.first(inputs)))


class Middle(nn.Linear):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs * torch.where(outputs.abs().sum() > self.limit, torch.inf, 1.0) if self.training else outputs


def experiment(folder):
    ex = Experiment("mine", ingredients=supervised.ingredients(), interactive=True, system_metrics_s=None)
    supervised.compose(ex)
    ex.observers[:] = [FileObserver(folder)]
    return ex


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Return a folder of runs, in which run 1 has failed, with the settings that it was given."""
    folder = tmp_path_factory.mktemp("failed")
    settings = {
        "data": {"limit": 120},
        "model": {"name": f"{__name__}:Net", "options": {"limit": 100.0}},
        "epochs": 2,
        "resume": "auto",
        "seed": 3,
    }
    with pytest.raises(TrainingError, match=r"Found at step 1: forward of middle \(Middle\)"):
        experiment(folder).run(config_updates=settings)
    return folder


def test_replay_runs_the_experiment_by_the_config_of_the_bundle_and_names_what_was_found(failed, capsys):
    (bundle,) = (failed / "1" / "checkpoints").glob("nonfinite-*")
    run = experiment(failed).run("replay", config_updates={"bundle": str(bundle)})
    assert (run.config["seed"], run.config["data"]["limit"]) == (3, 120)
    assert run.result["module"] == "middle"
    printed = capsys.readouterr().out
    assert json.loads((bundle / "incident.json").read_text())["summary"] in printed
    assert "recorded was" not in printed
    assert sorted(path.name for path in failed.iterdir() if path.name.isdecimal()) == ["1"]  # it is not recorded


def test_replay_with_another_setting_says_what_it_changes(failed, capsys):
    (bundle,) = (failed / "1" / "checkpoints").glob("nonfinite-*")
    settings = {"bundle": str(bundle), "model": {"options": {"limit": 1e9}}}
    run = experiment(failed).run("replay", config_updates=settings)
    assert run.result is None
    assert "all of it is finite here\nrecorded was: forward of middle (Middle)" in capsys.readouterr().out


def test_bundle_is_noted_and_belongs_to_the_record(failed):
    from sacristan import runs

    run = runs.open_store(failed).get(1)
    (noted,) = run.info["nonfinite"]
    assert f"{noted['bundle']}/incident.json" in run.checkpoints


def test_replay_without_a_bundle_or_a_training_is_refused(failed, tmp_path):
    ex = experiment(failed)
    with pytest.raises(ConfigError, match=r"bundle: got 'nowhere', which holds no config.json; expected a folder such"):
        ex.run("replay", config_updates={"bundle": "nowhere"})
    with pytest.raises(ConfigError, match="replay: got no bundle; write replay with bundle=FOLDER, a folder such as"):
        ex.run("replay")
    other = Experiment("other", ingredients=supervised.ingredients(), interactive=True)
    other.main(lambda: logging.getLogger().debug("no training"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"bundle: got '.*', which holds no incident.json; expected a folder such"):
        other.run("replay", config_updates={"bundle": str(tmp_path)})
    (tmp_path / "incident.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"replay: the experiment ended without a training by loop\.fit"):
        other.run("replay", config_updates={"bundle": str(tmp_path)})
