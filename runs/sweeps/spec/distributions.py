"""Distributions of parameters: those of wandb's sweeps, by their names and with their defaults.

There are four kinds: a constant, a choice, integers, and reals of five shapes. `ppf`, the quantile function of each,
equals that of wandb's package `sweeps` 0.3.0.

* A distribution `q_...` is the one without `q_`, rounded to the nearest multiple of q.
* `log_uniform` takes exponents of e as limits, `log_uniform_values` the limits themselves.
* `inv_log_uniform` has 1/x log-uniform between the limits. Then x is log-uniform between their inverses, and
  `inv_log_uniform_values` equals `log_uniform_values`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import Reader, anything, identity, items, listing, number, read_fields, shown

# The quantiles that bound distributions without ends; a sample of a million has about one value beyond each.
QUANTILES = (1e-6, 1 - 1e-6)
_MAX_GRID = 1_000_000


@dataclasses.dataclass(frozen=True)
class Constant:
    """One value, which is not searched."""

    value: Any

    def ppf(self, quantile: float) -> Any:
        return self.value

    def ends(self) -> list[Any]:
        return [self.value]

    def grid(self) -> Sequence[Any]:
        return [self.value]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A list of values, equally likely unless `probabilities` are given."""

    values: tuple[Any, ...]
    probabilities: tuple[float, ...] | None = None

    def ppf(self, quantile: float) -> Any:
        if self.probabilities is None:
            return self.values[max(math.ceil(quantile * len(self.values)) - 1, 0)]
        reached = 0.0
        for value, probability in zip(self.values, self.probabilities, strict=True):
            reached += probability
            if probability and quantile <= reached:
                return value
        # Rounding may leave the sum of all below 1.
        return [value for value, probability in zip(self.values, self.probabilities, strict=True) if probability][-1]

    def ends(self) -> list[Any]:
        return list(self.values)

    def grid(self) -> Sequence[Any] | None:
        # Of equal values, such as 1 and 1.0, the last one takes the position of the first.
        return None if self.probabilities else list({identity(value): value for value in self.values}.values())


@dataclasses.dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def ppf(self, quantile: float) -> int:
        return min(max(math.ceil(quantile * (self.high + 1 - self.low)) - 1, 0) + self.low, self.high)

    def ends(self) -> list[int]:
        return [self.low, self.high]

    def grid(self) -> Sequence[int]:
        return range(self.low, self.high + 1)


@dataclasses.dataclass(frozen=True)
class Reals:
    """A continuous distribution, rounded to multiples of `q` if that is given."""

    shape: str  # `uniform`, `log_uniform`, `normal`, `log_normal` or `beta`
    # The limits of the first two shapes; mean and standard deviation, of `log_normal` those of the logarithm; a and b
    # of `beta`.
    first: float
    second: float
    q: float | None = None  # The step; an integer makes the values integers. None for no rounding.

    def ppf(self, quantile: float) -> int | float:
        value = float(_QUANTILE_FUNCTIONS[self.shape](quantile, self.first, self.second))
        if self.q is None:
            return value
        multiple = round(value / self.q) * self.q
        return multiple if isinstance(self.q, int) else _short(multiple)

    @property
    def quantiles(self) -> tuple[float, float]:
        """The quantiles that bound the values drawn."""
        return QUANTILES if self.shape in ("normal", "log_normal") else (0.0, 1.0)

    def ends(self) -> list[int | float]:
        """Return the ends of the range; for a distribution without ends, the 1% and 99% quantiles."""
        if self.shape in ("uniform", "log_uniform") and self.q is None:
            return [self.first, self.second]
        low, high = (0.01, 0.99) if self.shape in ("normal", "log_normal") else (0.0, 1.0)
        return [self.ppf(low), self.ppf(high)]

    def grid(self) -> Sequence[int | float] | None:
        """Return the points of a grid: from the lower limit, without the upper one, as in wandb's grids."""
        if self.shape != "uniform" or self.q is None:
            return None
        num = math.ceil((self.second - self.first) / self.q)
        if num > _MAX_GRID:
            raise SweepError(f"got {num} points from {self.first:g} to {self.second:g}, expected fewer; raise q")
        return [_sum(self.first, position * self.q) for position in range(num)]


Distribution = Constant | Choice | Integers | Reals


def _sum(first: float, second: float) -> int | float:
    total = first + second
    return total if isinstance(total, int) else _short(total)


def _short(value: float) -> float:
    """Return 0.3 for 0.30000000000000004."""
    return float(f"{value:.15g}")


def _uniform(quantile: float, low: float, high: float) -> float:
    return low + quantile * (high - low)


def _log_uniform(quantile: float, low: float, high: float) -> float:
    value = math.exp(_uniform(quantile, math.log(low), math.log(high)))
    return min(max(value, low), high)  # rounding may leave the limits


def _normal(quantile: float, mu: float, sigma: float) -> float:
    from scipy.special import ndtri

    return mu + sigma * float(ndtri(quantile))


def _log_normal(quantile: float, mu: float, sigma: float) -> float:
    return math.exp(_normal(quantile, mu, sigma))


def _beta(quantile: float, a: float, b: float) -> float:
    from scipy.special import betaincinv

    return float(betaincinv(a, b, quantile))


_QUANTILE_FUNCTIONS: dict[str, Callable[[float, float, float], float]] = {
    "uniform": _uniform,
    "log_uniform": _log_uniform,
    "normal": _normal,
    "log_normal": _log_normal,
    "beta": _beta,
}


# ---------------------------------------------------------------------- reading

_LIMITS, _NORMAL, _BETA = ("min", "max"), ("mu", "sigma"), ("a", "b")
# The keys of each distribution beside `distribution`; `q_` adds q.
_CONTINUOUS: dict[str, tuple[str, ...]] = {
    "uniform": _LIMITS,
    "log_uniform": _LIMITS,
    "log_uniform_values": _LIMITS,
    "normal": _NORMAL,
    "log_normal": _NORMAL,
    "beta": _BETA,
}
_KEYS: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "categorical": ("values", "probabilities"),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": _LIMITS,
    **_CONTINUOUS,
    "inv_log_uniform": _LIMITS,
    "inv_log_uniform_values": _LIMITS,
    **{f"q_{name}": (*keys, "q") for name, keys in _CONTINUOUS.items()},
}
DISTRIBUTIONS = tuple(_KEYS)
_READERS: dict[str, Reader] = {
    "value": anything,
    "values": items("[16, 32]"),
    "probabilities": items("[0.2, 0.8]", number(least=0)),
    "min": number(),
    "max": number(),
    "distribution": anything,
    "mu": number(),
    "sigma": number(above=0),
    "a": number(above=0),
    "b": number(above=0),
    "q": number(above=0),
}
DISTRIBUTION_KEYS = tuple(_READERS)
_DEFAULTS = {"mu": 0.0, "sigma": 1.0, "a": 1, "b": 1, "q": 1.0}


def read_distribution(where: str, document: Mapping[str, Any]) -> Distribution:
    """Read the distribution of a parameter; without `distribution` the other keys decide which one it is."""
    name = _distribution(where, document)
    keys = _KEYS[name]
    readers = {key: _READERS[key] for key in ("distribution", *keys)}
    fields = read_fields(where, document, readers, f"the distribution {name}", _required(name, keys))
    fields = {key: _DEFAULTS[key] for key in _DEFAULTS.keys() & keys} | fields
    if name == "constant":
        return Constant(fields["value"])
    if name.startswith("categorical"):
        return _choice(where, fields["values"], fields.get("probabilities"))
    first, second = (fields[key] for key in keys[:2])
    if keys[:2] == _LIMITS and first >= second:
        raise SweepError(f"{where}: got min {first!r} and max {second!r}, expected min below max; or take value")
    if name == "int_uniform":
        if not isinstance(first, int) or not isinstance(second, int):
            raise SweepError(
                f"{where}: got {first!r} and {second!r}, expected integers for int_uniform; or take uniform"
            )
        return Integers(first, second)
    return _reals(where, name.removeprefix("q_"), first, second, fields.get("q"))


def _distribution(where: str, document: Mapping[str, Any]) -> str:
    name = document.get("distribution")
    if name is None:
        return _implied(where, document)
    if name in _KEYS:
        return str(name)
    hint = word_suggestion(str(name), DISTRIBUTIONS)
    raise SweepError(f"{where}.distribution: got {shown(name)}, which is unknown; {hint}")


def _implied(where: str, document: Mapping[str, Any]) -> str:
    """Return the distribution that the keys of a parameter imply."""
    if "value" in document:
        return "constant"
    if {"values", "probabilities"} & set(document):
        return "categorical"
    if {"min", "max"} & set(document):
        return "uniform" if float in map(type, document.values()) else "int_uniform"
    if document:
        fitting = listing([name for name, keys in _KEYS.items() if set(document) <= set(keys)] or ["..."])
        raise SweepError(f"{where}: got {', '.join(document)} without a distribution; add distribution: {fitting}")
    raise SweepError(f"{where}: got nothing, expected value, values, min and max, distribution or parameters")


def _required(name: str, keys: tuple[str, ...]) -> dict[str, str]:
    """Return the keys that a distribution must have, with the end of the message for when one is missing."""
    hints = {"values": "a list of them", "probabilities": "one for each of values"}
    optional = {"probabilities"} if name == "categorical" else _DEFAULTS.keys()
    return {key: f"; {name} takes {hints.get(key) or ' and '.join(keys[:2])}" for key in keys if key not in optional}


def _choice(where: str, values: list[Any], probabilities: list[float] | None) -> Choice:
    if probabilities is None:
        return Choice(tuple(values))
    if len(probabilities) != len(values):
        raise SweepError(f"{where}.probabilities: got {len(probabilities)} for {len(values)} values, expected as many")
    total = math.fsum(probabilities)
    if not math.isclose(total, 1, rel_tol=1e-5):
        raise SweepError(f"{where}.probabilities: got numbers that add up to {total:g}, expected 1")
    return Choice(tuple(values), tuple(map(float, probabilities)))


def _reals(where: str, name: str, first: float, second: float, q: float | None) -> Reals:
    """Return the continuous distribution of a name without `q_`."""
    shape = name.removeprefix("inv_").removesuffix("_values")
    if name.endswith("_values"):
        if first <= 0:
            raise SweepError(f"{where}.min: got {first!r}, expected a number above 0, as {name} needs")
    elif shape == "log_uniform":
        first, second = _powers(where, name, *((-second, -first) if name.startswith("inv_") else (first, second)))
    distribution = Reals(shape, first, second, q)
    if not _is_finite(distribution):
        raise SweepError(f"{where}: got a range that no float holds, expected smaller numbers")
    return distribution


def _is_finite(distribution: Reals) -> bool:
    try:
        return all(
            map(
                math.isfinite,
                (*map(distribution.ppf, distribution.quantiles), distribution.second - distribution.first),
            )
        )
    except OverflowError:
        return False


def _powers(where: str, name: str, low: float, high: float) -> tuple[float, float]:
    try:
        limits = math.exp(low), math.exp(high)
    except OverflowError:
        limits = 0.0, math.inf
    if not limits[0] or math.isinf(limits[1]):
        raise SweepError(
            f"{where}: got exponents of e from {low:g} to {high:g}, which no float holds; {name} takes exponents, "
            f"{name}_values the limits themselves"
        )
    return limits
