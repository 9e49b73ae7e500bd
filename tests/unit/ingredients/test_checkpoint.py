from __future__ import annotations

import inspect

from ingredients.checkpoint import config
from ingredients.checkpoints.checkpointer import Checkpointer

# What is no setting: it is given by the experiment.
OBJECTS = ("folder", "config", "start", "resume", "record")


def test_config_has_the_arguments_of_the_checkpointer_and_their_defaults():
    parameters = inspect.signature(Checkpointer).parameters
    theirs = {name: parameter.default for name, parameter in parameters.items() if name not in OBJECTS}
    assert config() == {**theirs, "path": None, "resume": None, "dtype": "float32"}
