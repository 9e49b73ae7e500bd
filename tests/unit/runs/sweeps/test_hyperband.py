"""wandb's hyperband stops the runs that wandb's `sweeps` 0.3.0 stops."""

import math

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial

from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.spec.search import bands
from sacristan.runs.sweeps.study.samplers import make_pruner

PARAMETERS = {"lr": {"min": 0.0, "max": 1.0}}


def spec_of(options, goal="minimize"):
    metric = {"name": "loss", "goal": goal}
    return read_spec({"method": "random", "metric": metric, "early_terminate": options, "parameters": PARAMETERS})


def stopped(case):
    """Return the positions of the runs that our pruner stops."""
    pruner = make_pruner(spec_of(case["options"], case["goal"]))
    study = optuna.create_study(direction=case["goal"], pruner=pruner)
    for run in case["runs"]:
        reports = {step: math.nan if value is None else value for step, value in enumerate(run["history"])}
        state = TrialState.RUNNING if run["running"] else TrialState.FAIL
        study.add_trial(create_trial(state=state, intermediate_values=reports))
    running = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.RUNNING]
    return [trial.number for trial in running if pruner.prune(study, trial)]


def test_decisions_are_those_of_wandb(reference):
    assert len(reference["stopping"]) == 120
    wrong = [case for case in reference["stopping"] if stopped(case) != case["stopped"]]
    assert wrong == []


values = st.one_of(st.integers(-5, 5), st.floats(-10, 10), st.sampled_from([None, math.inf, -math.inf]))
rules = st.one_of(
    st.fixed_dictionaries({"min_iter": st.integers(1, 4)}),
    st.fixed_dictionaries({"max_iter": st.integers(8, 30), "s": st.integers(1, 4)}),
)
cases = st.builds(
    lambda rule, eta, strict, goal, runs: {
        "options": {"type": "hyperband", **rule, **eta, **strict},
        "goal": goal,
        "runs": runs,
    },
    rules,
    st.fixed_dictionaries({}, optional={"eta": st.sampled_from([2, 3, 1.5, 4, 2.7])}),
    st.fixed_dictionaries({}, optional={"strict": st.booleans()}),
    st.sampled_from(["minimize", "maximize"]),
    st.lists(
        st.fixed_dictionaries({"history": st.lists(values, max_size=12), "running": st.booleans()}),
        min_size=1,
        max_size=8,
    ),
)


def test_decisions_are_those_of_the_installed_package(live):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(cases)
    def compare(case):
        assert stopped(case) == live.stopped(case)

    compare()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_iter": 27, "s": 2, "eta": 3}, [3, 9]),
        ({"max_iter": 27, "s": 9, "eta": 3}, [1, 3, 9]),
        ({"max_iter": 27, "s": 2, "eta": 3, "min_iter": 5}, [3, 9]),
        ({"min_iter": 3, "eta": 3}, [3, 9, 27, 81]),
        ({"min_iter": 1, "eta": 1.5}, [1, 1, 2, 3]),
    ],
)
def test_bands_are_those_of_wandb(options, expected):
    found = bands(options)
    assert (found if "max_iter" in options else found[:4]) == expected


def test_bands_of_any_size_are_numbers():
    assert len(bands({"min_iter": 1, "eta": 1e300})) == 1
    assert len(bands({"min_iter": 1, "eta": 1.0001})) == 100


def test_defaults_are_those_of_wandb():
    assert spec_of({"type": "hyperband", "min_iter": 3}).stopping.options == {"eta": 3, "strict": True, "min_iter": 3}
