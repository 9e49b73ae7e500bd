"""Samplers and pruners by name: what they are, what they are given, and that they suggest the same again."""

import inspect
import re
import warnings

import optuna
import pytest

from sacristan.configs.packages import install_command
from sacristan.runs import MissingExtraError
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.spec.search import METHODS, STOPPING, violations
from sacristan.runs.sweeps.study.points import suggest
from sacristan.runs.sweeps.study.samplers import draws_alone, make_pruner, make_sampler

PARAMETERS = {
    "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
    "momentum": {"min": 0.0, "max": 0.99},
    "width": {"min": 8, "max": 64},
    "noise": {"distribution": "normal", "mu": 1.0, "sigma": 0.1},
}
KINDS = {
    "random": optuna.samplers.RandomSampler,
    "bayes": optuna.samplers.TPESampler,
    "tpe": optuna.samplers.TPESampler,
    "gp": optuna.samplers.GPSampler,
    "cma-es": optuna.samplers.CmaEsSampler,
    "nsga2": optuna.samplers.NSGAIISampler,
}
OPTIONS = {
    "tpe": {"n_startup_trials": 2, "n_ei_candidates": 8, "multivariate": False},
    "gp": {"n_startup_trials": 3, "deterministic_objective": True},
    "cma-es": {"n_startup_trials": 2, "popsize": 4},
    "qmc": {"qmc_type": "halton", "scramble": False},
    "nsga2": {"population_size": 4, "mutation_prob": 0.1, "crossover_prob": 0.8, "swapping_prob": 0.4},
    "random": {},
}


def spec_of(method, **others):
    return read_spec({"method": method, "metric": {"name": "loss"}, "parameters": PARAMETERS, **others})


def loss(point):
    return (point["momentum"] - 0.9) ** 2 + (point["width"] - 30) ** 2 / 1e3 + abs(point["noise"])


def searched(spec, seed=1, num=8, study=None):
    """Return the points of a search by one agent."""
    study = study or optuna.create_study(directions=[objective.goal for objective in spec.objectives] or ["minimize"])
    points = []
    for number in range(len(study.trials), num):
        study.sampler = make_sampler(spec, seed, number)
        trial = study.ask()
        points.append(suggest(spec, trial))
        study.tell(trial, [loss(points[-1])] * len(study.directions))
    return points


@pytest.mark.parametrize("method", KINDS)
def test_method_is_optunas(method):
    assert type(make_sampler(spec_of(method), 0, 0)) is KINDS[method]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", OPTIONS)
def test_one_agent_with_one_seed_suggests_the_same_again(method):
    spec = spec_of({"name": method, **OPTIONS[method]})
    num = 5 if method == "gp" else 8  # which imports torch, and takes a second for each point
    first = searched(spec, num=num)
    assert len({str(point) for point in first}) == num
    # Another one, interrupted.
    study = optuna.create_study()
    again = searched(spec, num=num - 1, study=study)
    assert again + searched(spec, num=num, study=study) == first
    if method != "qmc":  # unscrambled
        assert searched(spec, seed=2, num=1) != first[:1]


def test_options_are_optunas_own():
    for method, kind in KINDS.items():
        assert set(METHODS[method]) <= set(inspect.signature(kind.__init__).parameters)
    names = ("Median", "Percentile", "SuccessiveHalving", "Hyperband", "Patient", "Threshold")
    types = ("median", "percentile", "successive_halving", "optuna_hyperband", "patient", "threshold")
    for type_, name in zip(types, names, strict=True):
        kind = getattr(optuna.pruners, f"{name}Pruner")
        assert set(STOPPING[type_]) <= set(inspect.signature(kind.__init__).parameters)
    assert {*types, "hyperband"} == set(STOPPING)


def test_quasi_random_points_of_many_agents_are_those_of_one():
    spec = spec_of({"name": "qmc", "scramble": True})
    one = searched(spec, seed=5, num=16)
    study = optuna.create_study()
    # Out of order, while others run.
    found = {}
    for number in (7, 3, 15, 0):
        study.sampler = make_sampler(spec, 5, number)
        found[number] = suggest(spec, study.ask())
    assert found == {number: one[number] for number in found}
    # 16 points of a Sobol sequence: one in each sixteenth of each dimension.
    assert sorted(int(point["momentum"] / 0.99 * 16) for point in one) == list(range(16))


@pytest.mark.parametrize("method", ["tpe", "nsga2", "gp", "random", "qmc"])
def test_several_objectives_are_searched(method):
    spec = read_spec(
        {
            "method": method,
            "metrics": [{"name": "loss"}, {"name": "time", "goal": "maximize"}],
            "parameters": PARAMETERS,
        }
    )
    assert len(searched(spec, num=4)) == 4


def test_conditional_parameters_are_searched_together():
    parameters = {"name": {"values": ["a", "b"]}, "x": {"min": 0.0, "max": 1.0, "when": {"name": "a"}}}
    spec = read_spec({"method": "bayes", "metric": {"name": "loss"}, "parameters": parameters})
    study = optuna.create_study()
    for number in range(30):
        study.sampler = make_sampler(spec, 0, number)
        trial = study.ask()
        point = suggest(spec, trial)
        study.tell(trial, point.get("x", 0.5))
    assert study.best_value < 0.05


def test_constraints_guide_the_search():
    parameters = {"x": {"min": 0.0, "max": 1.0}}
    spec = read_spec(
        {"method": "tpe", "metric": {"name": "loss"}, "parameters": parameters, "constraints": ["time < 0.2"]}
    )
    study = optuna.create_study()
    for number in range(40):
        study.sampler = make_sampler(spec, 0, number)
        trial = study.ask()
        x = suggest(spec, trial)["x"]
        for name, violation in violations(spec.constraints, {"time": 1 - x}).items():
            trial.set_constraint(name, violation)
        study.tell(trial, x)
    assert 0.8 < study.best_value < 0.85
    assert sum(trial.params["x"] > 0.8 for trial in study.trials[10:]) > 12


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"type": "median", "n_startup_trials": 1, "n_warmup_steps": 0}, optuna.pruners.MedianPruner),
        ({"type": "percentile", "percentile": 25.0}, optuna.pruners.PercentilePruner),
        ({"type": "successive_halving", "min_resource": 2}, optuna.pruners.SuccessiveHalvingPruner),
        ({"type": "optuna_hyperband", "min_resource": 1, "max_resource": 9}, optuna.pruners.HyperbandPruner),
        ({"type": "patient", "patience": 2, "min_delta": 0.1}, optuna.pruners.PatientPruner),
        ({"type": "threshold", "lower": 0, "upper": 5}, optuna.pruners.ThresholdPruner),
    ],
)
def test_rule_of_early_termination_is_optunas(options, kind):
    pruner = make_pruner(spec_of("random", early_terminate=options))
    assert type(pruner) is kind
    study = optuna.create_study(pruner=pruner)
    trial = study.ask()
    trial.report(1.0, 0)
    assert trial.should_prune() is False


def test_without_early_termination_there_is_no_pruner():
    assert make_pruner(spec_of("random")) is None


def test_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cmaes", None)
    with pytest.raises(
        MissingExtraError,
        match=f"the method cma-es needs the package 'cmaes', .*{re.escape(install_command('sweeps'))}",
    ):
        make_sampler(spec_of("cma-es"), 0, 0)


def test_no_warning_of_optuna_reaches_the_user():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in METHODS:
            if method != "grid":
                make_sampler(spec_of(method), 0, 0)


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("random", PARAMETERS, True),
        ("qmc", PARAMETERS, True),
        ("random", {"width": {"min": 8, "max": 64}}, False),
        ("random", {"lr": {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.1}}, False),
        ("tpe", PARAMETERS, False),
        ("grid", {"x": {"values": [1, 2.5, True]}}, True),
        ("grid", {"x": {"values": [1, 2, 1]}}, False),
    ],
)
def test_points_are_drawn_without_others_where_none_comes_twice(method, parameters, expected):
    assert draws_alone(spec_of(method, parameters=parameters)) is expected
