from __future__ import annotations

import inspect

from ingredients.checkpoint import config
from ingredients.checkpoint_files import Checkpointer


def test_config_has_the_arguments_of_the_checkpointer_and_their_defaults():
    parameters = inspect.signature(Checkpointer).parameters
    theirs = {name: parameter.default for name, parameter in parameters.items() if name not in ("folder", "config")}
    assert config() == {**theirs, "path": None}
