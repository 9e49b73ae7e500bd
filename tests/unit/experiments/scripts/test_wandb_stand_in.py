"""Names of W&B that its stand-in lacks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sacristan.experiments.scripts.loggers.wandb_stand_in import _Run, _Wandb


@pytest.fixture
def calls():
    return []


@pytest.fixture
def module(calls):
    return _Wandb("wandb", SimpleNamespace(unknown=lambda library, call: calls.append((library, call))))


def test_unknown_names_can_be_used_in_any_way_and_their_calls_are_reported(module, calls):
    with module.beta.workflow(1, x="step") as chart:
        assert [*chart.points] == []
    assert not chart
    assert calls == [("wandb", "beta.workflow")]


def test_special_names_are_missing_as_those_of_any_module(module):
    for named in (module, module.beta, _Run(SimpleNamespace(), module)):
        with pytest.raises(AttributeError):
            named.__wrapped__  # noqa: B018
