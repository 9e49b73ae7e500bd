"""Settings of a script in the forms in which it may have them."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from sacristan.experiments.scripts.settings import as_settings
from sacristan.ingredients import ConfigError


@dataclasses.dataclass
class Options:
    lr: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, {}),
        ((), {}),
        ({"lr": 0.1, 2: "b"}, {"lr": 0.1, "2": "b"}),
        (argparse.Namespace(lr=0.1), {"lr": 0.1}),
        (Options(), {"lr": 0.1, "sizes": (1, 2)}),
    ],
)
def test_settings_are_a_dict_by_name(values, expected):
    assert as_settings(values) == expected


def test_settings_of_omegaconf_have_their_interpolations_resolved():
    omegaconf = pytest.importorskip("omegaconf")
    values = omegaconf.OmegaConf.create({"lr": 0.1, "opt": {"twice": "${lr}"}})
    assert as_settings(values) == {"lr": 0.1, "opt": {"twice": 0.1}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr: 0.1\nopt: {name: adam}\n", {"lr": 0.1, "opt": {"name": "adam"}}),
        ("wandb_version: 1\nlr: {value: 0.1, desc: null}\nopt: {value: 1}\n", {"lr": 0.1, "opt": 1}),
        ("opt: {value: 1, other: 2}\n", {"opt": {"value": 1, "other": 2}}),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_settings_of_a_file_are_its_entries(tmp_path, text, expected, kind):
    (tmp_path / "config.yaml").write_text(text)
    assert as_settings(kind(tmp_path / "config.yaml")) == expected


def test_values_that_are_no_settings_are_rejected(tmp_path):
    (tmp_path / "list.yaml").write_text("[1]")
    for values, message in (
        (3, "got 3, expected a dict"),
        (Options, "got <class .*Options'>, expected a dict"),
        (tmp_path / "no.yaml", "no.yaml cannot be read"),
        (tmp_path / "list.yaml", r"list.yaml holds \[1\], expected settings by name"),
    ):
        with pytest.raises(ConfigError, match=rf"^config: .*{message}"):
            as_settings(values)
