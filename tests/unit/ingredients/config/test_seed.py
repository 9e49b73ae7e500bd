"""Random streams with names."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from sacristan.ingredients import global_stream, numpy_stream, seed_globals, stream_seed, torch_stream
from sacristan.ingredients.config import seed
from sacristan.ingredients.config.seed import by_device, look_stream


def draw():
    """Draw from every global generator."""
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.fixture(autouse=True)
def _own_globals():
    with global_stream(0, "test"):
        yield


def test_stream_seed_stays_what_it_was():
    assert stream_seed(0, "split") == 3769940940748469125
    assert stream_seed(7, "shuffle", 3) == 1607239670037233798


def test_streams_stay_what_they_were():
    assert numpy_stream(0, "split").integers(1000, size=3).tolist() == [117, 284, 202]
    assert torch.randperm(6, generator=torch_stream(0, "shuffle", 1)).tolist() == [0, 4, 3, 2, 1, 5]


@pytest.mark.parametrize("name", [("shuffle",), ("split", 0), ("split", 1), ("split", "val")])
@pytest.mark.parametrize("seed", [0, 1])
def test_streams_of_other_names_and_seeds_differ(seed, name):
    assert stream_seed(seed, *name) != stream_seed(0, "split")


def test_stream_seed_fits_every_generator():
    assert all(0 <= stream_seed(seed, "init") < 2**63 for seed in range(100))


@pytest.mark.parametrize("make", [numpy_stream, torch_stream])
def test_stream_does_not_depend_on_the_order_of_calls(make):
    def first(generator):
        return torch.rand(1, generator=generator).item() if make is torch_stream else generator.random()

    shuffle, split = first(make(0, "shuffle")), first(make(0, "split"))
    seed_globals(5)
    assert first(make(0, "split")) == split
    assert first(make(0, "shuffle")) == shuffle


def test_seed_globals_seeds_every_generator():
    seed_globals(3)
    one = draw()
    seed_globals(3)
    assert draw() == one
    seed_globals(4)
    assert not set(draw()) & set(one)


def test_seed_globals_with_a_name_is_another_stream():
    seed_globals(3)
    one = draw()
    seed_globals(3, "init")
    assert not set(draw()) & set(one)


def test_seed_globals_without_a_name_is_the_stream_global():
    seed_globals(3)
    one = draw()
    with global_stream(3, "global"):
        assert draw() == one


def test_global_stream_draws_the_same_and_puts_the_generators_back():
    seed_globals(0)
    expected = draw()
    seed_globals(0)
    with global_stream(1, "items", 4):
        one = draw()
    assert draw() == expected
    with global_stream(1, "items", 4):
        assert draw() == one


def test_global_stream_puts_the_generators_back_after_an_exception():
    seed_globals(0)
    expected = draw()
    seed_globals(0)
    with pytest.raises(ZeroDivisionError, match="division by zero"), global_stream(1, "items"):
        _ = draw()[0] / 0
    assert draw() == expected


def test_global_stream_within_another_leaves_the_outer_one_as_it_was():
    with global_stream(1, "outer"):
        expected = draw(), draw()
    with global_stream(1, "outer"):
        before = draw()
        with global_stream(1, "inner"):
            draw()
        assert (before, draw()) == expected


def test_global_stream_reads_the_generators_once_as_loaders_enter_it_for_each_item(monkeypatch):
    read, states = [], seed._cpu_states
    monkeypatch.setattr(seed, "_cpu_states", lambda: read.append(1) or states())
    with global_stream(1, "items", 4):
        draw()
    assert len(read) == 1


def test_global_stream_does_not_import_torch():
    code = (
        "import sys; from sacristan.ingredients.config.seed import global_stream, numpy_stream\n"
        "with global_stream(0, 'a'): numpy_stream(0, 'b')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_looking_at_a_training_leaves_no_notes_for_devices_that_are_not_used():
    torch.manual_seed(0)
    before = len(torch.cuda._queued_calls)
    for _ in range(3):
        with look_stream():
            torch.rand(1)
    assert len(torch.cuda._queued_calls) == before


def test_state_of_the_gpu_that_was_trained_on_goes_to_the_current_one():
    saved = {"cuda": ["a", "b"], "cuda_device": 1}
    assert by_device(saved, current=0, count=2) == {0: "b", 1: "b"}
    assert by_device(saved, current=0, count=1) == {0: "b"}
    assert by_device(saved, current=1, count=2) == {0: "a", 1: "b"}
    assert by_device(saved, current=2, count=3) == {0: "a", 1: "b", 2: "b"}
    assert by_device({"cuda": ["a", "b"]}, current=0, count=1) == {0: "a"}
    assert by_device({}, current=0, count=2) == {}
