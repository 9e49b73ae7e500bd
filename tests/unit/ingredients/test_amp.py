from __future__ import annotations

import inspect

import torch

from sacristan.experiments import Experiment
from sacristan.ingredients import MixedPrecision, amp

SETTINGS = {
    "dtype": "float16",
    "init_scale": 8.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 3,
    "clip_norm": 1.5,
    "clip_value": 0.5,
    "accumulate": 2,
}


def test_config_has_the_arguments_of_mixed_precision_and_their_defaults():
    parameters = inspect.signature(MixedPrecision).parameters
    assert amp.config() == {name: parameter.default for name, parameter in parameters.items() if name != "device"}


def test_make_amp_hands_every_setting_over():
    experiment, made = Experiment("amp_test", ingredients=[amp.ingredient]), []
    experiment.main(lambda: made.append(amp.make_amp(torch.device("cpu"))))
    experiment.run(config_updates={"amp": SETTINGS})
    scaler = made[0].scaler
    assert {
        "init_scale": scaler.get_scale(),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        **{name: getattr(made[0], name) for name in ("dtype", "clip_norm", "clip_value", "accumulate")},
    } == SETTINGS
