from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

from sacristan.ingredients import Checkpointer, checkpoint
from sacristan.ingredients.checkpoint import config

# What is no setting: it is given by the experiment.
OBJECTS = ("folder", "config", "start", "legacy_defaults", "resume", "record")


def test_config_has_the_arguments_of_the_checkpointer_and_their_defaults():
    parameters = inspect.signature(Checkpointer).parameters
    theirs = {name: parameter.default for name, parameter in parameters.items() if name not in OBJECTS}
    assert config() == {**theirs, "path": None, "resume": None, "dtype": "float32", "requeue": False}


def test_other_ranks_take_the_checkpoint_of_a_run_from_rank_0(monkeypatch):
    monkeypatch.setattr(checkpoint, "current", lambda: SimpleNamespace(from_first=lambda make: Path("there.pt")))
    assert checkpoint._checkpoint("run:1", None) == Path("there.pt")  # they have no folder of runs
