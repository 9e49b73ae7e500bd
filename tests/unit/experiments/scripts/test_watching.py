"""Histograms of models that a script watches."""

from __future__ import annotations

import pytest

from sacristan.experiments.scripts.watching import unwatch, watch

torch = pytest.importorskip("torch")


class Run:
    def __init__(self):
        self.names = []

    def log(self, values, *, commit):
        assert not commit
        self.names += values

    def looked_at(self, *models):
        """Return what is logged of a forward and backward pass of models."""
        self.names.clear()
        for model in models:
            model(torch.ones(1, 2)).sum().backward()
        return sorted(self.names)


@pytest.fixture
def models():
    return [torch.nn.Linear(2, 1, bias=False) for _ in range(3)]


@pytest.mark.parametrize(
    ("what", "kinds"),
    [("gradients", ["gradients"]), ("parameters", ["parameters"]), ("all", ["gradients", "parameters"])],
)
def test_each_model_has_histograms_of_its_own(models, what, kinds):
    run = Run()
    watch(run, models[:2], what, 1, None)
    watch(run, models[2], what, 1, None)
    names = [f"{kind}/{prefix}weight" for kind in kinds for prefix in ("", "graph_1", "graph_2")]
    assert run.looked_at(*models) == sorted(names)


def test_one_model_or_all_are_no_longer_watched(models):
    run = Run()
    watch(run, models, "parameters", 1, None)
    unwatch(run, models[0])
    assert run.looked_at(*models) == ["parameters/graph_1weight", "parameters/graph_2weight"]
    unwatch(run, models[1:2])
    assert run.looked_at(*models) == ["parameters/graph_2weight"]
    unwatch(run, None)
    assert run.looked_at(*models) == []
    unwatch(run, models)


def test_passes_between_two_looks_are_left_out(models):
    run = Run()
    watch(run, models[0], "all", 2, None)
    assert [len(run.looked_at(models[0])) for _ in range(4)] == [0, 2, 0, 2]


def test_what_is_no_model_is_rejected():
    with pytest.raises(ValueError, match=r"watch: got a int, expected a torch.nn.Module"):
        watch(Run(), 3, "all", 1, None)
