"""wandb's package `sweeps`: what it made of specs, as a file, and the package itself where it is installed."""

import importlib.util
import json
import warnings
from pathlib import Path

import optuna
import pytest

# One line for each trial, otherwise.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def load_script():
    """Return the module that wrote the file."""
    found = importlib.util.spec_from_file_location("wandb_reference", Path(__file__).with_name("wandb_reference.py"))
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def script():
    return load_script()


@pytest.fixture(scope="session")
def reference():
    return json.loads(Path(__file__).with_name("wandb_reference.json").read_text(encoding="utf-8"))


@pytest.fixture
def live(script):
    """The module that asks wandb's package, and its warnings silenced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("sweeps", reason="wandb's sweeps 0.3.0 is not installed: the file stands for it")
        yield script
