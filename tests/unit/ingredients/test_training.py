from __future__ import annotations

import dataclasses

from sacristan.ingredients import TrainingSettings
from sacristan.ingredients.training import config, fast


def test_config_has_the_settings_of_fit_and_their_defaults():
    settings = TrainingSettings(epochs=config()["epochs"])
    assert config() == dataclasses.asdict(settings)


def test_fast_trains_for_two_epochs():
    assert fast() == {"epochs": 2}
