"""Laws that values are drawn from: the distributions of wandb's sweeps, by their names and with their defaults.

`ppf` is the quantile function of each, equal to that of wandb's package `sweeps` 0.3.0. Four laws are behind them all:

* a constant, a choice, integers, and reals of five shapes;
* a distribution `q_...` is the one without `q_`, rounded to the nearest multiple of q;
* `log_uniform` takes exponents of e for limits, `log_uniform_values` the limits themselves;
* `inv_log_uniform` has 1/x log-uniform between the limits. Then x is log-uniform, too, between their inverses, and
  `inv_log_uniform_values` is `log_uniform_values`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runs.errors import SweepError
from runs.sweeps.spec.checking import check_keys, check_list, check_number, identity, listing, nearest, shown

__all__ = ["DISTRIBUTIONS", "LAW_KEYS", "QUANTILES", "Choice", "Constant", "Integers", "Law", "Reals", "read_law"]

# What is drawn of laws without ends; a sample of a million has about one value beyond.
QUANTILES = (1e-6, 1 - 1e-6)
_MAX_GRID = 1_000_000


@dataclasses.dataclass(frozen=True)
class Constant:
    """One value, which is no part of the search."""

    value: Any

    def ppf(self, quantile: float) -> Any:
        return self.value

    def ends(self) -> list[Any]:
        return [self.value]

    def grid(self) -> Sequence[Any]:
        return [self.value]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Values, all as likely as each other unless `probabilities` are given."""

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
        # The sum of all may be 1 but for rounding.
        return [value for value, probability in zip(self.values, self.probabilities, strict=True) if probability][-1]

    def ends(self) -> list[Any]:
        return list(self.values)

    def grid(self) -> Sequence[Any] | None:
        # Of values that are the same, such as 1 and 1.0, the last one stands in the place of the first.
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
    """A continuous law, rounded to multiples of `q` if that is given.

    Attributes:
        shape: `uniform` and `log_uniform`, between `first` and `second`; `normal` and `log_normal`, with mean and
            standard deviation (of the logarithm); `beta`, with a and b.
        first, second: The numbers.
        q: An integer makes the values integers.
    """

    shape: str
    first: float
    second: float
    q: float | None = None

    def ppf(self, quantile: float) -> int | float:
        value = float(_QUANTILE_FUNCTIONS[self.shape](quantile, self.first, self.second))
        if self.q is None:
            return value
        return _multiple(round(value / self.q), self.q)

    @property
    def quantiles(self) -> tuple[float, float]:
        """The quantiles between which values are drawn."""
        return QUANTILES if self.shape in ("normal", "log_normal") else (0.0, 1.0)

    def ends(self) -> list[int | float]:
        """Return the ends of the range; of a law that has none what 98 of 100 values are between."""
        if self.shape in ("uniform", "log_uniform") and self.q is None:
            return [self.first, self.second]
        low, high = (0.01, 0.99) if self.shape in ("normal", "log_normal") else (0.0, 1.0)
        return [self.ppf(low), self.ppf(high)]

    def grid(self) -> Sequence[int | float] | None:
        """Return the points of a grid: as in wandb's, they begin at the lower limit and leave out the upper one."""
        if self.shape != "uniform" or self.q is None:
            return None
        num = math.ceil((self.second - self.first) / self.q)
        if num > _MAX_GRID:
            raise SweepError(f"got {num} points from {self.first:g} to {self.second:g}, expected fewer; raise q")
        return [_sum(self.first, position * self.q) for position in range(num)]


Law = Constant | Choice | Integers | Reals


def _multiple(count: int, q: float) -> int | float:
    return count * q if isinstance(q, int) else _short(count * q)


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
    return min(max(value, low), high)  # which rounding may leave


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
# What each distribution takes beside `distribution`; `q_` takes q, too.
_CONTINUOUS: dict[str, tuple[str, ...]] = {
    "uniform": _LIMITS,
    "log_uniform": _LIMITS,
    "log_uniform_values": _LIMITS,
    "normal": _NORMAL,
    "log_normal": _NORMAL,
    "beta": _BETA,
}
_TAKES: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "categorical": ("values", "probabilities"),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": _LIMITS,
    **_CONTINUOUS,
    "inv_log_uniform": _LIMITS,
    "inv_log_uniform_values": _LIMITS,
    **{f"q_{name}": (*takes, "q") for name, takes in _CONTINUOUS.items()},
}
DISTRIBUTIONS = tuple(_TAKES)
LAW_KEYS = ("value", "values", "probabilities", "min", "max", "distribution", "mu", "sigma", "a", "b", "q")
_DEFAULTS = {"mu": 0.0, "sigma": 1.0, "a": 1, "b": 1, "q": 1.0}


def read_law(where: str, document: Mapping[str, Any]) -> Law:
    """Return the law that the document of a parameter describes.

    Args:
        where: The path of the parameter, for messages.
        document: Its keys, all of them among `LAW_KEYS`.

    Raises:
        SweepError: If it describes none.
    """
    name = _distribution(where, document)
    check_keys(where, document, ("distribution", *_TAKES[name]), f"the distribution {name}")
    if name == "constant":
        return Constant(_given(where, document, "value", name))
    if name.startswith("categorical"):
        return _choice(where, document, name)
    if name == "int_uniform":
        low, high = _limits(where, document, name)
        if not isinstance(low, int) or not isinstance(high, int):
            raise SweepError(f"{where}: got {low!r} and {high!r}, expected integers for int_uniform; or take uniform")
        return Integers(low, high)
    q = None
    if name.startswith("q_"):
        q = check_number(f"{where}.q", document.get("q", _DEFAULTS["q"]), above=0)
    return _reals(where, document, name.removeprefix("q_"), q)


def _distribution(where: str, document: Mapping[str, Any]) -> str:
    name = document.get("distribution")
    if name is not None:
        if name not in _TAKES:
            near = nearest(str(name), DISTRIBUTIONS)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(DISTRIBUTIONS)}"
            raise SweepError(f"{where}.distribution: got {shown(name)}, which is unknown; {hint}")
        return str(name)
    if "value" in document:
        return "constant"
    if "values" in document or "probabilities" in document:
        return "categorical"
    if "min" in document or "max" in document:
        limits = [document.get("min"), document.get("max")]
        return "uniform" if any(isinstance(limit, float) for limit in limits) else "int_uniform"
    if document:
        named = ", ".join(document)
        takers = [name for name, takes in _TAKES.items() if set(document) <= set(takes)]
        raise SweepError(f"{where}: got {named} without a distribution; add distribution: {listing(takers or ['...'])}")
    raise SweepError(f"{where}: got nothing, expected value, values, min and max, distribution or parameters")


def _given(where: str, document: Mapping[str, Any], key: str, name: str) -> Any:
    if key not in document:
        raise SweepError(f"{where}.{key}: is missing; {name} takes {' and '.join(_TAKES[name][:2])}")
    return document[key]


def _choice(where: str, document: Mapping[str, Any], name: str) -> Choice:
    if "values" not in document:
        raise SweepError(f"{where}.values: is missing; {name} takes a list of them")
    values = tuple(check_list(f"{where}.values", document["values"], "[16, 32]"))
    if "probabilities" not in document:
        if name == "categorical":
            return Choice(values)
        raise SweepError(f"{where}.probabilities: is missing; {name} takes one for each of values")
    given = check_list(f"{where}.probabilities", document["probabilities"], "[0.2, 0.8]")
    probabilities = tuple(
        float(check_number(f"{where}.probabilities[{position}]", item, least=0)) for position, item in enumerate(given)
    )
    if len(probabilities) != len(values):
        raise SweepError(f"{where}.probabilities: got {len(probabilities)} for {len(values)} values, expected as many")
    total = math.fsum(probabilities)
    if not math.isclose(total, 1, rel_tol=1e-5):
        raise SweepError(f"{where}.probabilities: got numbers that add up to {total:g}, expected 1")
    return Choice(values, probabilities)


def _limits(where: str, document: Mapping[str, Any], name: str) -> tuple[int | float, int | float]:
    low, high = (check_number(f"{where}.{key}", _given(where, document, key, name)) for key in _LIMITS)
    if low >= high:
        raise SweepError(f"{where}: got min {low!r} and max {high!r}, expected min below max; or take value")
    return low, high


def _reals(where: str, document: Mapping[str, Any], name: str, q: float | None) -> Reals:
    if name in ("normal", "log_normal"):
        mu = check_number(f"{where}.mu", document.get("mu", _DEFAULTS["mu"]))
        law = Reals(name, mu, check_number(f"{where}.sigma", document.get("sigma", _DEFAULTS["sigma"]), above=0), q)
    elif name == "beta":
        a, b = (check_number(f"{where}.{key}", document.get(key, _DEFAULTS[key]), above=0) for key in _BETA)
        law = Reals(name, a, b, q)
    else:
        law = _between(where, *_limits(where, document, f"{'q_' * (q is not None)}{name}"), name, q)
    _check_finite(where, law)
    return law


def _between(where: str, low: float, high: float, name: str, q: float | None) -> Reals:
    if name == "uniform":
        return Reals(name, low, high, q)
    if name.endswith("_values"):
        if low <= 0:
            raise SweepError(f"{where}.min: got {low!r}, expected a number above 0, as {name} needs")
        return Reals("log_uniform", low, high, q)
    if name == "inv_log_uniform":
        low, high = -high, -low
    try:
        limits = math.exp(low), math.exp(high)
    except OverflowError:
        limits = 0.0, math.inf
    if not limits[0] or math.isinf(limits[1]):
        raise SweepError(
            f"{where}: got exponents of e from {low:g} to {high:g}, which no float holds; {name} takes exponents, "
            f"{name}_values the limits themselves"
        )
    return Reals("log_uniform", *limits, q)


def _check_finite(where: str, law: Reals) -> None:
    try:
        ends = [law.ppf(quantile) for quantile in law.quantiles]
        finite = all(math.isfinite(end) for end in ends) and math.isfinite(law.second - law.first)
    except OverflowError:
        finite = False
    if not finite:
        raise SweepError(f"{where}: got a range that no float holds, expected smaller numbers")
