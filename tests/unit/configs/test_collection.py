"""Garbage collection while a run is set up."""

import gc

import pytest

from sacristan.configs.importing import pause_collection, resume_collection
from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError


@pytest.fixture
def ex():
    ex = Experiment("collected", interactive=True, record_to=None, system_metrics_s=None)
    states = {"scope": [], "hook": [], "main": []}
    ex.states = states

    @ex.config_hook
    def look(config, command_name, logger):
        states["scope"].append(gc.isenabled())
        return {}

    @ex.pre_run_hook
    def before():
        states["hook"].append(gc.isenabled())

    @ex.main
    def main():
        states["main"].append(gc.isenabled())

    return ex


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_collected_from_the_first_line_of_a_run_on_if_it_was_before(ex, is_on):
    (gc.enable if is_on else gc.disable)()
    try:
        ex.run()
        assert ex.states == {"scope": [False], "hook": [is_on], "main": [is_on]}
        assert gc.isenabled() is is_on
    finally:
        gc.enable()


def test_later_collections_do_not_scan_what_was_imported(ex):
    gc.unfreeze()
    pause_collection()
    resume_collection()
    assert gc.get_freeze_count() > 1000


def test_garbage_is_collected_after_a_run_that_was_refused(ex):
    with pytest.raises(ConfigError):
        ex.run(config_updates={"nothing": 1})
    assert gc.isenabled()


def test_who_resumes_what_was_not_paused_changes_nothing():
    gc.disable()
    try:
        resume_collection()
        assert not gc.isenabled()
    finally:
        gc.enable()
