from __future__ import annotations

import inspect

import pytest

from sacristan.ingredients.model import OPTIONS, config
from sacristan.ingredients.models.networks import NETWORKS


def as_written(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", NETWORKS)
def test_options_of_a_network_are_the_defaults_of_its_signature(name):
    parameters = inspect.signature(NETWORKS[name]).parameters
    defaults = {key: p.default for key, p in parameters.items() if key not in ("input_shape", "num_outputs")}
    assert OPTIONS[name] == {key: as_written(value) for key, value in defaults.items()}


def test_options_are_those_of_the_networks_that_ship():
    assert OPTIONS.keys() == NETWORKS.keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_config_of_a_network_shows_its_options(name):
    assert config({"name": name})["options"] == OPTIONS[name]


def test_config_of_a_class_has_free_options():
    assert config({"name": "nets:Net", "options": {"size": 3}})["options"] == {"size": 3}


@pytest.mark.parametrize("option", sorted({option for options in OPTIONS.values() for option in options}))
def test_config_documents_every_option(option):
    assert config().docs[f"options.{option}"]
