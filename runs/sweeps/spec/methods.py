"""Search methods and rules of early termination by their names, with the options of each.

Reading a spec needs these tables alone; `samplers` and `pruners` turn them into Optuna's objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import (
    Reader,
    anything,
    choice,
    flag,
    integer,
    listing,
    mapping,
    number,
    read_fields,
)

__all__ = ["METHODS", "STOPPING", "Stopping", "bands", "read_method", "read_stopping"]

_SHARE = number(least=0, most=1)
_TPE: dict[str, Reader] = {"n_startup_trials": integer(0), "n_ei_candidates": integer(1), "multivariate": flag}
_MEDIAN: dict[str, Reader] = {
    "n_startup_trials": integer(0),
    "n_warmup_steps": integer(0),
    "interval_steps": integer(1),
    "n_min_trials": integer(1),
}

# The methods, and the options of each under their names in Optuna.
METHODS: dict[str, dict[str, Reader]] = {
    "grid": {"order": choice("listed", "random")},
    "random": {},
    "bayes": _TPE,
    "tpe": _TPE,
    "gp": {"n_startup_trials": integer(1), "deterministic_objective": flag},
    "cma-es": {"n_startup_trials": integer(1), "popsize": integer(2)},
    "qmc": {"qmc_type": choice("sobol", "halton"), "scramble": flag},
    "nsga2": {
        "population_size": integer(2),
        "mutation_prob": _SHARE,
        "crossover_prob": _SHARE,
        "swapping_prob": _SHARE,
    },
}

# The rules of early termination: `hyperband` is wandb's, all others are Optuna's.
STOPPING: dict[str, dict[str, Reader]] = {
    "hyperband": {
        "min_iter": integer(1),
        "max_iter": integer(1),
        "s": integer(1),
        "eta": number(above=1),
        "strict": flag,
    },
    "median": _MEDIAN,
    "percentile": {"percentile": number(least=0), **_MEDIAN},
    "successive_halving": {
        "min_resource": integer(1),
        "reduction_factor": integer(2),
        "min_early_stopping_rate": integer(0),
        "bootstrap_count": integer(0),
    },
    "optuna_hyperband": {"min_resource": integer(1), "max_resource": integer(1), "reduction_factor": integer(2)},
    "patient": {"patience": integer(0), "min_delta": number(least=0)},
    "threshold": {
        "lower": number(),
        "upper": number(),
        "n_warmup_steps": integer(0),
        "interval_steps": integer(1),
    },
}
_REQUIRED = {"percentile": "percentile", "patient": "patience", "optuna_hyperband": "max_resource"}


@dataclasses.dataclass(frozen=True)
class Stopping:
    """A rule of early termination.

    Attributes:
        options: The options given; for wandb's `hyperband` with the defaults of the others.
    """

    name: str
    options: Mapping[str, Any]


def read_method(where: str, value: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a search method, given as a name or as a mapping with `name`, and its options."""
    document = {"name": value} if isinstance(value, str) else mapping("{name: tpe}")(where, value)
    name = document.get("name")
    if name == "custom":
        raise SweepError(
            f"{where}: got 'custom', wandb's for schedulers of others; name the search itself, such as tpe"
        )
    name = choice(*METHODS)(where, name)
    fields = read_fields(where, document, {"name": anything, **METHODS[name]}, f"the method {name}")
    return fields.pop("name"), fields


def read_stopping(where: str, value: Any) -> Stopping:
    """Read the rule of early termination from a mapping with `type` and options."""
    document = mapping("{type: hyperband, min_iter: 3}")(where, value)
    if "type" not in document:
        raise SweepError(f"{where}.type: is missing, expected {listing(STOPPING)}")
    name = choice(*STOPPING)(f"{where}.type", document["type"])
    required = {_REQUIRED[name]: f", which the type {name} needs"} if name in _REQUIRED else {}
    options = read_fields(where, document, {"type": anything, **STOPPING[name]}, f"the type {name}", required)
    del options["type"]
    if name == "threshold" and not {"lower", "upper"} & set(options):
        raise SweepError(f"{where}: got a threshold without limits; add lower or upper")
    if name == "hyperband":
        options = {"eta": 3, "strict": True, **options}
        _check_hyperband(where, options)
    return Stopping(name, options)


def _check_hyperband(where: str, options: Mapping[str, Any]) -> None:
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
    """Return the numbers of reports after which wandb's hyperband judges a run, in ascending order.

    With `max_iter`, which takes precedence, they are max_iter / eta, max_iter / eta**2, ..., `s` of them and none below
    1; otherwise min_iter, min_iter * eta, min_iter * eta**2, ...
    """
    eta = options["eta"]
    numbers: list[int] = []
    # Step by step, as wandb rounds; the power of a large eta would overflow.
    if "max_iter" in options:
        band = options["max_iter"] / eta
        while len(numbers) < options["s"] and band >= 1:
            numbers.insert(0, int(band))
            band /= eta
        return numbers
    band = options["min_iter"]
    while len(numbers) < 100 and band < 2**62:
        numbers.append(int(band))
        band *= eta
    return numbers
