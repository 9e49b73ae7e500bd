"""Threads that sleep while they wait, asked for before torch is loaded."""

import os
import sys
from pathlib import Path

import pytest

from sacristan.ingredients.config.threads import is_asked_for_threads, let_threads_sleep, threads_sleep
from tests.processes import run

LAB = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No wishes of OpenMP in the environment, before and afterwards."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_threads_are_asked_to_sleep_before_torch_is_loaded(environment):
    environment.delitem(sys.modules, "torch")
    assert not threads_sleep()
    let_threads_sleep()
    assert (os.environ["OMP_WAIT_POLICY"], threads_sleep()) == ("passive", True)


def test_threads_are_not_asked_after_torch_is_loaded(environment):
    let_threads_sleep()
    assert ("OMP_WAIT_POLICY" in os.environ, threads_sleep()) == (False, False)


@pytest.mark.parametrize(
    ("name", "value", "sleep"),
    [("OMP_WAIT_POLICY", "active", False), ("OMP_WAIT_POLICY", "PASSIVE", True), ("GOMP_SPINCOUNT", "0", True)],
)
def test_what_the_user_asked_for_stays(name, value, sleep, environment):
    environment.delitem(sys.modules, "torch")
    environment.setenv(name, value)
    let_threads_sleep()
    assert {key: os.environ.get(key) for key in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if key in os.environ} == {
        name: value
    }
    assert threads_sleep() is sleep


def test_number_of_threads_asked_for_in_the_environment_is_known(environment):
    assert not is_asked_for_threads()
    environment.setenv("OMP_NUM_THREADS", "3")
    assert is_asked_for_threads()


def test_importing_ingredients_asks_before_torch_is_loaded():
    code = (
        "import os, sys, sacristan.ingredients; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    )
    done = run([sys.executable, "-c", code], cold=True, cwd=LAB, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("passive\n", 0), done.stderr
