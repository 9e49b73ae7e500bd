from __future__ import annotations

import inspect

from sacristan.experiments.training.loop import fit
from sacristan.ingredients.training import config, fast

PARTS = {"model", "data", "loss", "optimizer", "log", "scheduler", "amp", "checkpointer", "callbacks"}


def test_config_has_the_settings_of_fit():
    assert config().keys() == inspect.signature(fit).parameters.keys() - PARTS


def test_config_has_the_defaults_of_fit():
    parameters = inspect.signature(fit).parameters
    assert {name: value for name, value in config().items() if name != "epochs"} == {
        name: parameters[name].default for name in config() if name != "epochs"
    }


def test_fast_trains_for_two_epochs():
    assert fast() == {"epochs": 2}
