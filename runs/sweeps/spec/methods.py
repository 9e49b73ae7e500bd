"""Search methods and rules of early termination by their names, with the options that each takes.

Reading a spec needs these tables alone; `samplers` and `pruners` make Optuna's objects of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from runs.errors import SweepError
from runs.sweeps.spec.checking import (
    check_choice,
    check_integer,
    check_keys,
    check_mapping,
    check_number,
    listing,
    nearest,
    shown,
)

__all__ = ["METHODS", "STOPPING", "Stopping", "bands", "read_method", "read_stopping"]

Check = Callable[[str, Any], Any]


def _at_least(least: int) -> Check:
    return lambda where, value: check_integer(where, value, least=least)


def _above(above: float) -> Check:
    return lambda where, value: check_number(where, value, above=above)


def _one_of(*choices: str) -> Check:
    return lambda where, value: check_choice(where, value, choices)


def _share(where: str, value: Any) -> float:
    if check_number(where, value, least=0) > 1:
        raise SweepError(f"{where}: got {value!r}, expected a number from 0 to 1")
    return float(value)


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SweepError(f"{where}: got {shown(value)}, expected true or false")
    return value


_TPE: dict[str, Check] = {"n_startup_trials": _at_least(0), "n_ei_candidates": _at_least(1), "multivariate": _flag}
_MEDIAN: dict[str, Check] = {
    "n_startup_trials": _at_least(0),
    "n_warmup_steps": _at_least(0),
    "interval_steps": _at_least(1),
    "n_min_trials": _at_least(1),
}

# The methods, and the options of each under their names in Optuna.
METHODS: dict[str, dict[str, Check]] = {
    "grid": {"order": _one_of("listed", "random")},
    "random": {},
    "bayes": _TPE,
    "tpe": _TPE,
    "gp": {"n_startup_trials": _at_least(1), "deterministic_objective": _flag},
    "cma-es": {"n_startup_trials": _at_least(1), "popsize": _at_least(2)},
    "qmc": {"qmc_type": _one_of("sobol", "halton"), "scramble": _flag},
    "nsga2": {
        "population_size": _at_least(2),
        "mutation_prob": _share,
        "crossover_prob": _share,
        "swapping_prob": _share,
    },
}

# The rules of early termination: `hyperband` is wandb's, all others are Optuna's.
STOPPING: dict[str, dict[str, Check]] = {
    "hyperband": {
        "min_iter": _at_least(1),
        "max_iter": _at_least(1),
        "s": _at_least(1),
        "eta": _above(1),
        "strict": _flag,
    },
    "median": _MEDIAN,
    "percentile": {"percentile": lambda where, value: check_number(where, value, least=0), **_MEDIAN},
    "successive_halving": {
        "min_resource": _at_least(1),
        "reduction_factor": _at_least(2),
        "min_early_stopping_rate": _at_least(0),
        "bootstrap_count": _at_least(0),
    },
    "optuna_hyperband": {
        "min_resource": _at_least(1),
        "max_resource": _at_least(1),
        "reduction_factor": _at_least(2),
    },
    "patient": {"patience": _at_least(0), "min_delta": lambda where, value: check_number(where, value, least=0)},
    "threshold": {
        "lower": check_number,
        "upper": check_number,
        "n_warmup_steps": _at_least(0),
        "interval_steps": _at_least(1),
    },
}
_REQUIRED = {"percentile": "percentile", "patient": "patience", "optuna_hyperband": "max_resource"}


@dataclasses.dataclass(frozen=True)
class Stopping:
    """A rule of early termination: its name, one of `STOPPING`, and its options; of wandb's all of them."""

    name: str
    options: Mapping[str, Any]


def read_method(value: Any) -> tuple[str, dict[str, Any]]:
    """Return the method, one of `METHODS`, and the options that it is given.

    It is written as a name, or as a mapping with `name` and options.

    Raises:
        SweepError: If there is none of that name, or it does not take an option.
    """
    document = {"name": value} if isinstance(value, str) else check_mapping("method", value, "{name: tpe}")
    name = document.get("name")
    if name == "custom":
        raise SweepError("method: got 'custom', wandb's for schedulers of others; name the search itself, such as tpe")
    if name not in METHODS:
        near = nearest(str(name), METHODS)
        hint = f"; did you mean {near}?" if near else ""
        raise SweepError(f"method: got {shown(name)}, expected {listing(METHODS)}{hint}")
    return str(name), _options("method", document, "name", METHODS[str(name)])


def read_stopping(value: Any) -> Stopping:
    """Return the rule of `early_terminate`.

    Raises:
        SweepError: If there is none of that name, an option is missing, or it does not take one.
    """
    where = "early_terminate"
    document = check_mapping(where, value, "{type: hyperband, min_iter: 3}")
    if "type" not in document:
        raise SweepError(f"{where}.type: is missing, expected {listing(STOPPING)}")
    name = check_choice(f"{where}.type", document["type"], tuple(STOPPING))
    options = _options(where, document, "type", STOPPING[name])
    if name in _REQUIRED and _REQUIRED[name] not in options:
        raise SweepError(f"{where}.{_REQUIRED[name]}: is missing, which the type {name} needs")
    if name == "threshold" and not {"lower", "upper"} & set(options):
        raise SweepError(f"{where}: got a threshold without limits; add lower or upper")
    if name == "hyperband":
        options = {"eta": 3, "strict": True, **options}
        _check_hyperband(options)
    return Stopping(name, options)


def _options(where: str, document: Mapping[str, Any], name: str, known: dict[str, Check]) -> dict[str, Any]:
    kind = "method" if name == "name" else name
    check_keys(where, document, (name, *known), f"the {kind} {document[name]}")
    return {key: known[key](f"{where}.{key}", value) for key, value in document.items() if key != name}


def _check_hyperband(options: Mapping[str, Any]) -> None:
    where = "early_terminate"
    if "max_iter" not in options and "min_iter" not in options:
        raise SweepError(f"{where}: got hyperband without min_iter or max_iter; add min_iter, or max_iter and s")
    if "max_iter" in options and "s" not in options:
        raise SweepError(f"{where}.s: is missing, the number of brackets that max_iter needs; or take min_iter alone")
    if not bands(options):
        raise SweepError(
            f"{where}: got no bracket (max_iter {options['max_iter']} / eta {options['eta']:g} is below 1); "
            "raise max_iter, or lower eta"
        )


def bands(options: Mapping[str, Any]) -> list[int]:
    """Return the numbers of reports after which wandb's hyperband judges a run, in order.

    With `max_iter`, which goes first, these are max_iter / eta, / eta**2, ..., `s` of them; otherwise min_iter,
    * eta, * eta**2, ...
    """
    eta = options["eta"]
    found: list[int] = []
    if "max_iter" in options:
        band = options["max_iter"] / eta
        while len(found) < options["s"] and band >= 1:
            found.insert(0, int(band))
            band /= eta
        return found
    band = options["min_iter"]
    while len(found) < 100 and band < 2**62:
        found.append(int(band))
        band *= eta
    return found
