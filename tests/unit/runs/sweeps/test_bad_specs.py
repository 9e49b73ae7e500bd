"""A bad spec is refused in one clear sentence: the key, what was got, what was expected."""

import re

import pytest

from sacristan.runs import SweepError
from sacristan.runs.sweeps.spec import read_over, read_spec

GOOD = {"method": "random", "parameters": {"lr": {"min": 0.0, "max": 1.0}}}
METRIC = {"name": "loss"}
HYPERBAND = {"type": "hyperband", "min_iter": 3}


def with_parameter(**parameter):
    return {"method": "random", "parameters": {"lr": parameter}}


def with_stopping(**options):
    return {**GOOD, "metric": METRIC, "early_terminate": options}


def conditional(**when):
    parameters = {"lr": {"min": 0.0, "max": 1.0}, "name": {"values": ["sgd", "adam"]}}
    return {"method": "random", "parameters": {**parameters, "momentum": {"value": 1, "when": when}}}


BAD = [
    # The whole
    ([], "got [], expected a mapping with method and parameters"),
    ({"method": "random"}, "parameters: is missing; a sweep needs method"),
    ({"parameters": {}}, "method: is missing; a sweep needs method"),
    ({**GOOD, "parametres": {}}, "parametres: is no key of a sweep; did you mean parameters?"),
    ({**GOOD, "zzz": 1}, "zzz: is no key of a sweep; there are: method, metric"),
    ({**GOOD, "job": "a/b:v1"}, "job: is not supported: runs are started from this folder"),
    ({**GOOD, "image_uri": "x"}, "image_uri: is not supported"),
    ({**GOOD, "scheduler": {"engine": "optuna"}}, "scheduler: is not supported: the search runs here; name its method"),
    ({**GOOD, 3: 4}, "got the key 3 (int), expected text; quote it"),
    ({**GOOD, "name": ["x"]}, "name: got ['x'], expected text"),
    # The method
    ({**GOOD, "method": "bayse"}, "method: got 'bayse', expected grid, random, bayes, tpe, gp, cma-es, qmc or nsga2"),
    ({**GOOD, "method": "custom"}, "method: got 'custom', wandb's for schedulers of others; name the search itself"),
    ({**GOOD, "method": None}, "method: got None, expected a mapping such as {name: tpe}"),
    (
        {**GOOD, "metric": METRIC, "method": {"name": "tpe", "n_startup": 5}},
        "method.n_startup: is no key of the method tpe; did you mean n_startup_trials?",
    ),
    (
        {**GOOD, "metric": METRIC, "method": {"name": "tpe", "n_startup_trials": 2.5}},
        "method.n_startup_trials: got 2.5, expected an integer of at least 0",
    ),
    ({**GOOD, "method": "bayes"}, "metric: is missing, which the method bayes needs; add metric: {name: ..., goal"),
    (
        {"method": "grid", "parameters": {"lr": {"min": 0.0, "max": 1.0}}},
        "parameters.lr: has a range or probabilities, expected values, integers from min to max, or q_uniform",
    ),
    (
        {"method": "grid", "parameters": {"lr": {"values": [1, 2], "probabilities": [0.5, 0.5]}}},
        "parameters.lr: has a range or probabilities",
    ),
    (
        {"method": "grid", "parameters": {"x": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 1e-9}}},
        "parameters.x: got 1000000000 points from 0 to 1, expected fewer; raise q",
    ),
    (with_parameter(value=3), "parameters: all have one value, expected at least one to search"),
    # Objectives
    ({**GOOD, "metric": "loss"}, "metric: got 'loss', expected a mapping; write metric: {name: loss}"),
    ({**GOOD, "metric": {"goal": "minimize"}}, "metric.name: is missing, the name of a metric that runs log"),
    ({**GOOD, "metric": {"name": ""}}, "metric.name: got '', expected the name of a metric that runs log"),
    ({**GOOD, "metric": {"name": "x", "goal": "minimise"}}, "metric.goal: got 'minimise', expected minimize or"),
    ({**GOOD, "metric": {"name": "x", "target": "low"}}, "metric.target: got 'low', expected a number"),
    ({**GOOD, "metric": METRIC, "metrics": [METRIC]}, "metrics: got metric and metrics, expected one of them"),
    ({**GOOD, "metrics": [METRIC, METRIC]}, "metrics[1].name: got 'loss' twice, expected different metrics"),
    ({**GOOD, "metrics": {"name": "x"}}, "metrics: got {'name': 'x'}, expected a list such as"),
    (
        {**GOOD, "method": "cma-es", "metrics": [METRIC, {"name": "time"}]},
        "metrics: got several, the method cma-es takes one; try nsga2, tpe or gp",
    ),
    (
        {**GOOD, "early_terminate": HYPERBAND, "metrics": [METRIC, {"name": "time"}]},
        "early_terminate: judges one metric, got several in metrics",
    ),
    # Parameters
    ({**GOOD, "parameters": {}}, "parameters: got {}, expected a mapping such as {lr: {min: 0.001, max: 0.1}}"),
    ({**GOOD, "parameters": {"lr": [1, 2]}}, "parameters.lr: got [1, 2], expected a mapping; write lr: {values: [1"),
    ({**GOOD, "parameters": {"lr": 1}}, "parameters.lr: got 1, expected a mapping; write lr: {value: 1}"),
    ({**GOOD, "parameters": {"l r": {"value": 1}}}, "parameters.l r: got the name 'l r', expected letters"),
    ({**GOOD, "parameters": {"a..b": {"value": 1}}}, "parameters.a..b: got the name 'a..b', expected letters"),
    (with_parameter(), "parameters.lr: got nothing, expected value, values, min and max, distribution or parameters"),
    (with_parameter(vales=[1]), "parameters.lr.vales: is no key of a parameter; did you mean values?"),
    (with_parameter(values=[]), "parameters.lr.values: got [], expected a list such as [16, 32]"),
    (with_parameter(values=3), "parameters.lr.values: got 3, expected a list such as [16, 32]"),
    (with_parameter(value=1, values=[1]), "parameters.lr.values: is no key of the distribution constant"),
    (with_parameter(min=1, max="5"), "parameters.lr.max: got '5', expected a number"),
    (with_parameter(min=True, max=5), "parameters.lr.min: got True, expected a number"),
    (with_parameter(min=1, max=float("inf")), "parameters.lr.max: got inf, expected a number"),
    (with_parameter(min=1), "parameters.lr.max: is missing; int_uniform takes min and max"),
    (with_parameter(min=5, max=1), "parameters.lr: got min 5 and max 1, expected min below max; or take value"),
    (with_parameter(min=5, max=5), "parameters.lr: got min 5 and max 5, expected min below max; or take value"),
    (with_parameter(mu=1), "parameters.lr: got mu without a distribution; add distribution: normal, log_normal"),
    (with_parameter(mu=1, values=[1]), "parameters.lr.mu: is no key of the distribution categorical; there are"),
    (with_parameter(distribution="uniform", mu=1), "parameters.lr.mu: is no key of the distribution uniform"),
    (
        with_parameter(distribution="lognormal"),
        "parameters.lr.distribution: got 'lognormal', which is unknown; did you mean log_normal?",
    ),
    (with_parameter(distribution="normal", sigma=0), "parameters.lr.sigma: got 0, expected a number above 0"),
    (with_parameter(distribution="beta", a=-1), "parameters.lr.a: got -1, expected a number above 0"),
    (with_parameter(distribution="q_uniform", min=0, max=1, q=0), "parameters.lr.q: got 0, expected a number above 0"),
    (
        with_parameter(distribution="int_uniform", min=0.0, max=1),
        "parameters.lr: got 0.0 and 1, expected integers for int_uniform; or take uniform",
    ),
    (
        with_parameter(distribution="log_uniform_values", min=0, max=1),
        "parameters.lr.min: got 0, expected a number above 0, as log_uniform_values needs",
    ),
    (
        with_parameter(distribution="log_uniform", min=1, max=1000),
        "parameters.lr: got exponents of e from 1 to 1000, which no float holds; log_uniform takes exponents, "
        "log_uniform_values the limits themselves",
    ),
    (with_parameter(distribution="log_normal", sigma=500), "parameters.lr: got a range that no float holds"),
    (with_parameter(values=[1, 2], probabilities=[1]), "parameters.lr.probabilities: got 1 for 2 values, expected"),
    (
        with_parameter(values=[1, 2], probabilities=[0.5, 0.6]),
        "parameters.lr.probabilities: got numbers that add up to 1.1, expected 1",
    ),
    (
        with_parameter(values=[1, 2], probabilities=[1.5, -0.5]),
        "parameters.lr.probabilities[1]: got -0.5, expected a number of at least 0",
    ),
    (with_parameter(probabilities=[1]), "parameters.lr.values: is missing; categorical takes a list of them"),
    (
        with_parameter(distribution="categorical_w_probabilities", values=[1]),
        "parameters.lr.probabilities: is missing; categorical_w_probabilities takes one for each of values",
    ),
    (
        with_parameter(parameters={"a": {"value": 1}}, values=[1]),
        "parameters.lr: got parameters and values, expected one of them; nest values, or drop it",
    ),
    (with_parameter(parameters={}), "parameters.lr.parameters: got {}, expected a mapping such as"),
    (
        with_parameter(parameters={"a": {"mn": 1}}),
        "parameters.lr.parameters.a.mn: is no key of a parameter; did you mean min?",
    ),
    (
        {"method": "random", "parameters": {"o": {"parameters": {"lr": {"value": 1}}}, "o.lr": {"value": 2}}},
        "parameters.o.lr: o.lr is a parameter already; remove one of the two",
    ),
    (
        {"method": "random", "parameters": {"o": {"values": [1, 2]}, "o.lr": {"value": 2}}},
        "parameters.o.lr: o.lr is a part of o, which is also a parameter; remove one of the two",
    ),
    # Conditions
    (conditional(nmae="sgd"), "parameters.momentum.when.nmae: is no parameter of the sweep; did you mean name?"),
    (conditional(name="sdg"), "parameters.momentum.when.name: got 'sdg', expected 'sgd' or 'adam'"),
    (conditional(lr=1), "parameters.momentum.when.lr: lr has a range, expected a parameter with values; list them"),
    (
        {
            "method": "random",
            "parameters": {"a": {"values": [1, 2], "when": {"b": 1}}, "b": {"values": [1, 2], "when": {"a": 1}}},
        },
        "parameters.a.when.b: a depends on itself; remove one of the conditions",
    ),
    # Early termination
    ({**GOOD, "early_terminate": HYPERBAND}, "metric: is missing, which early_terminate needs"),
    ({**GOOD, "metric": METRIC, "early_terminate": "hyperband"}, "early_terminate: got 'hyperband', expected a"),
    (with_stopping(min_iter=3), "early_terminate.type: is missing, expected hyperband, median"),
    (with_stopping(type="hyperbnad"), "early_terminate.type: got 'hyperbnad', expected hyperband, median"),
    (with_stopping(type="hyperband"), "early_terminate: got hyperband without min_iter or max_iter; add min_iter"),
    (with_stopping(type="hyperband", max_iter=27), "early_terminate.s: is missing, the number of brackets"),
    (
        with_stopping(type="hyperband", max_iter=2, s=2),
        "early_terminate: got no bracket (max_iter 2 / eta 3 is below 1); raise max_iter, or lower eta",
    ),
    (with_stopping(type="hyperband", min_iter=3, eta=1), "early_terminate.eta: got 1, expected a number above 1"),
    (with_stopping(type="hyperband", min_iter=3, strict=1), "early_terminate.strict: got 1, expected true or false"),
    (with_stopping(type="hyperband", min_ter=3), "early_terminate.min_ter: is no key of the type hyperband; did you"),
    (with_stopping(type="percentile"), "early_terminate.percentile: is missing, which the type percentile needs"),
    (with_stopping(type="threshold"), "early_terminate: got a threshold without limits; add lower or upper"),
    # The rest
    ({**GOOD, "run_cap": 0}, "run_cap: got 0, expected an integer of at least 1"),
    ({**GOOD, "run_cap": "40"}, "run_cap: got '40', expected an integer of at least 1"),
    ({**GOOD, "seeds": 0}, "seeds: got 0, expected an integer of at least 1"),
    (
        {**with_stopping(**HYPERBAND), "seeds": 3},
        "seeds: the mean of several runs is judged, which early_terminate would cut short; remove one",
    ),
    (
        {"method": "grid", "parameters": {"seed": {"values": [1, 2]}}, "seeds": 2},
        "seeds: each point runs on its own seeds, but seed is also a parameter; remove one of them",
    ),
    ({**GOOD, "budget": "2 weeks"}, "budget: got '2 weeks', expected a time such as 90m, 2h or 1d12h, or seconds"),
    ({**GOOD, "budget": 0}, "budget: got 0, expected a time"),
    ({**GOOD, "constraints": "time < 10"}, "constraints: got 'time < 10', expected a list such as [time < 10]"),
    ({**GOOD, "constraints": ["time"]}, "constraints[0]: got 'time', expected a metric, one of < <= > >="),
    ({**GOOD, "constraints": ["a < 1", "b < c"]}, "constraints[1]: got 'b < c', expected a metric"),
    ({**GOOD, "constraints": ["a == 1"]}, "constraints[0]: got 'a == 1', expected a metric"),
    ({**GOOD, "constraints": ["__import__('os') < nan"]}, "constraints[0]: got "),
    # The command
    ({**GOOD, "command": "python train.py"}, "command: got 'python train.py', expected a list such as [${env}, python"),
    ({**GOOD, "command": ["python", "--debug"]}, "command[1]: got '--debug', which runs cannot be started with"),
    ({**GOOD, "command": ["python", "${envvar:HOME}"]}, "command[1]: got '${envvar:HOME}', which runs"),
    ({**GOOD, "command": ["lr=3"]}, "command[0]: got 'lr=3', but lr has a value already; remove one of them"),
    ({**GOOD, "command": [3]}, "command[0]: got 3, expected text; quote it"),
    ({**GOOD, "command": ["--x=[1"]}, "command[0]: got '--x=[1', expected NAME=VALUE; put a text in quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), BAD)
def test_bad_spec_is_refused_in_one_sentence(document, message):
    with pytest.raises(SweepError, match=re.escape(message)) as caught:
        read_spec(document) if isinstance(document, dict) else read_file_of(document)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 350


def read_file_of(document):
    from sacristan.runs.sweeps.spec import _read

    return _read(document)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sweep.toml", "", "got a .toml file, expected .yaml, .yml or .json"),
        ("sweep.yaml", None, "there is no such file; check the path"),
        ("sweep.yaml", "method: [", "is not valid YAML: while parsing"),
        ("sweep.json", "{", "is not valid JSON: Expecting property name"),
        ("sweep.yaml", "- 1", "got [1], expected a mapping with method and parameters"),
        (
            "sweep.yaml",
            "method: random\nparameters: {lr: {vales: [1]}}",
            "parameters.lr.vales: is no key of a parameter",
        ),
        ("sweep.yaml", "method: random\nname: 2026-01-31", "name: got 2026-01-31 (date), expected a number or text"),
        ("sweep.yaml", "method: !!python/object:os.system {}", "is not valid YAML: could not determine a constructor"),
    ],
)
def test_bad_file_is_named(name, text, message, tmp_path):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(SweepError, match=re.escape(f"{path}: {message}")) as caught:
        read_spec(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({}, "over: got {}, expected a mapping such as {lr: [1e-3, 1e-2]}"),
        ({"lr": []}, "over.lr: got [], expected a list such as [1e-3, 1e-2]"),
        ({"lr": {"min": 0.0, "max": 1.0}}, "parameters.lr: has a range or probabilities, expected values"),
        ({"lr": {}}, "parameters.lr: got nothing, expected value, values, min and max"),
    ],
)
def test_bad_over_is_refused(over, message):
    with pytest.raises(SweepError, match=re.escape(message)):
        read_over(over)
