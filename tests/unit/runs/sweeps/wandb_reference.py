"""Writes `wandb_reference.json`: what wandb's package `sweeps` 0.3.0 makes of specs, which ours are compared with.

pip install --no-deps sweeps==0.3.0 jsonref==1.1.0 pydantic jsonschema
python tests/unit/runs/work/sweeps/wandb_reference.py
"""

import json
from pathlib import Path

import numpy as np

# One of each distribution, and of the defaults that are taken where none is named.
PARAMETERS = [
    {"value": 3},
    {"values": ["a", "b", "c"]},
    {"distribution": "categorical", "values": [1, 2, 4, 8, 16, 32, 64]},
    {"values": ["a", "b", "c"], "probabilities": [0.5, 0.1, 0.4]},
    {"values": ["a", "b"], "probabilities": [0, 1]},
    {"min": 1, "max": 10},
    {"min": -3, "max": 3},
    {"min": 0.0, "max": 1.0},
    {"min": 0, "max": 0.1},
    {"min": -2.5, "max": 4},
    {"distribution": "int_uniform", "min": 0, "max": 99},
    {"distribution": "uniform", "min": 0, "max": 10},
    {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1},
    {"distribution": "q_uniform", "min": 0, "max": 100, "q": 8},
    {"distribution": "q_uniform", "min": 0.5, "max": 9.5},
    {"distribution": "log_uniform", "min": -9.2, "max": -2.3},
    {"distribution": "log_uniform_values", "min": 1e-5, "max": 0.1},
    {"distribution": "q_log_uniform", "min": 0, "max": 5},
    {"distribution": "q_log_uniform", "min": 0, "max": 5, "q": 2},
    {"distribution": "q_log_uniform_values", "min": 32, "max": 256, "q": 8},
    {"distribution": "q_log_uniform_values", "min": 0.1, "max": 10, "q": 0.25},
    {"distribution": "inv_log_uniform", "min": -2, "max": 3},
    {"distribution": "inv_log_uniform_values", "min": 0.01, "max": 10},
    {"distribution": "normal"},
    {"distribution": "normal", "mu": 3, "sigma": 0.5},
    {"distribution": "q_normal", "mu": 10, "sigma": 5},
    {"distribution": "q_normal", "mu": 10, "sigma": 5, "q": 3},
    {"distribution": "log_normal"},
    {"distribution": "log_normal", "mu": -7.0, "sigma": 0.7},
    {"distribution": "q_log_normal"},
    {"distribution": "q_log_normal", "mu": 3, "sigma": 0.4, "q": 0.5},
    {"distribution": "beta"},
    {"distribution": "beta", "a": 2, "b": 5},
    {"distribution": "q_beta", "a": 2, "b": 3, "q": 0.05},
    {"distribution": "q_beta", "a": 0.5, "b": 0.5},
]
# None of them is where a discrete law jumps, as the side to which rounding takes it there is chance.
QUANTILES = [0.00123, *(round((step + 0.31) / 40, 6) for step in range(40)), 0.99871]
GRIDS = [
    {"b": {"values": [1, 2]}, "a": {"values": ["x", "y", "z"]}},
    {"lr": {"values": [0.1, 0.01]}, "epochs": {"value": 3}, "layers": {"min": 1, "max": 3}},
    {"q": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1}, "k": {"values": [True, False]}},
    {"q": {"distribution": "q_uniform", "min": 2, "max": 9, "q": 3}},
    {"a": {"values": [1, 1.0, 2, 1]}, "b": {"values": [True, 1]}},
    {"z": {"parameters": {"y": {"values": [1, 2]}, "x": {"values": [3, 4]}}}, "m": {"values": [5, 6]}},
    {"o": {"values": [{"k": 1}, {"k": 2}]}, "l": {"values": [[1, 2], [3]]}, "n": {"values": [None, "none"]}},
]


def plain(value):
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def quantile_function(parameter):
    from sweeps.params import HyperParameter

    law = HyperParameter("x", parameter)
    # One by one, as wandb samples.
    return law.type, [plain(law.ppf(quantile)) for quantile in QUANTILES]


def grid(parameters):
    from sweeps import next_runs

    found = next_runs({"method": "grid", "parameters": parameters}, [], n=10_000)
    return [flat(run.config) for run in found if run is not None]


def flat(config):
    """Return the parameters of a run by their dotted names; those that are nested lie below the value of the first."""
    found = {}
    for name, entry in config.items():
        value = entry["value"]
        if name == "z":  # the one of `GRIDS` that holds others
            found.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            found[name] = value
    return found


def stopping_cases(num=120):
    """Return random histories, None where a run has reported NaN, and which of the running ones are stopped."""
    random, cases = np.random.default_rng(0), []
    for _ in range(num):
        options = {"type": "hyperband", "eta": [2, 3, 1.5, 2.7][random.integers(4)]}
        if random.random() < 0.5:
            options["min_iter"] = int(random.integers(1, 4))
        else:
            options |= {"max_iter": int(random.integers(6, 28)), "s": int(random.integers(1, 4))}
        if random.random() < 0.6:
            options["strict"] = bool(random.random() < 0.5)
        runs = []
        for _ in range(random.integers(1, 9)):
            values = random.integers(0, 12, random.integers(0, 14)).tolist()
            history = [None if random.random() < 0.05 else value for value in values]
            runs.append({"history": history, "running": bool(random.random() < 0.6)})
        case = {"options": options, "goal": ["minimize", "maximize"][random.integers(2)], "runs": runs}
        cases.append({**case, "stopped": stopped(case)})
    return cases


def stopped(case):
    """Return the positions of the runs that wandb stops."""
    from sweeps import RunState, SweepRun, stop_runs

    runs = [
        SweepRun(
            name=str(position),
            state=RunState.running if run["running"] else RunState.finished,
            history=[{"loss": float("nan") if value is None else value} for value in run["history"]],
        )
        for position, run in enumerate(case["runs"])
    ]
    metric = {"name": "loss", "goal": case["goal"]}
    config = {"method": "random", "metric": metric, "early_terminate": case["options"], "parameters": {}}
    return [int(run.name) for run in stop_runs(config, runs)]


def reference():
    laws = [dict(zip(("type", "values"), quantile_function(parameter), strict=True)) for parameter in PARAMETERS]
    return {"laws": laws, "grids": [grid(parameters) for parameters in GRIDS], "stopping": stopping_cases()}


if __name__ == "__main__":
    parts = [f"{json.dumps(key)}: [\n" + ",\n".join(map(json.dumps, part)) + "\n]" for key, part in reference().items()]
    Path(__file__).with_suffix(".json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
