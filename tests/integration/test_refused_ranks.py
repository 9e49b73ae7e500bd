"""Processes of a launch that cannot train together: refused before they meet."""

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, DeviceError, distributed
from sacristan.ingredients.ranks import World, group
from sacristan.ingredients.ranks.group import Ranks

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"}


@pytest.fixture
def launched(monkeypatch):
    for name, value in MEETING.items():
        monkeypatch.setenv(name, value)


def experiment(*ingredients):
    ex = Experiment("ranked", ingredients=ingredients, interactive=True, record_to=None)
    ex.main(lambda: None)
    return ex


def test_an_experiment_without_the_ingredient_is_refused(launched):
    with pytest.raises(
        ConfigError, match="this process is rank 1 of 2, but the experiment ranked has no ingredient dist"
    ):
        experiment().run()


def test_a_command_that_is_not_recorded_is_refused(launched):
    with pytest.raises(ConfigError, match="rank 1 of 2, but this command takes one process; start it without torchrun"):
        experiment(distributed.ingredient).run("print_config")


@pytest.mark.parametrize("size", ["1", ""])
def test_one_process_trains_alone_whatever_launched_it(launched, monkeypatch, size):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", size)
    run = experiment(distributed.ingredient).run()
    assert run.status == "COMPLETED"
    assert run.notices is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout_s": 0.0}, "distributed.timeout_s: got 0.0, expected more than 0 seconds"),
        pytest.param(
            {"backend": "nccl"},
            "distributed.backend: got nccl, which needs CUDA",
            marks=pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="has CUDA"),
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        experiment(distributed.ingredient).run(config_updates={"distributed": settings})


def test_devices_that_ranks_would_share_are_refused(monkeypatch):
    import torch

    from sacristan.ingredients.device import _of_rank

    ranks = Ranks(World(1, 3, 1, 3))
    monkeypatch.setattr(group, "_current", ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        DeviceError, match="got cuda:1, which 3 processes would share; use cuda, which gives each its own"
    ):
        _of_rank(torch.device("cuda", 1), ranks)
    with pytest.raises(
        DeviceError, match="got 3 processes on a node with 2 CUDA devices; start torchrun with --nproc-per"
    ):
        _of_rank(torch.device("cuda"), ranks)
    assert _of_rank(torch.device("cpu"), ranks) == torch.device("cpu")
