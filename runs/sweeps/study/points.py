"""Points of a sweep: the values of its parameters in one trial, by the dotted names of the config's entries."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.spec.distributions import Constant, Integers, Reals
from sacristan.runs.sweeps.spec.fields import identity
from sacristan.runs.sweeps.spec.parameters import Parameter

if TYPE_CHECKING:
    from optuna import Trial

# Attributes of a trial: the number of its point; the version of the search space that it was chosen in, missing for the
# first; and, of the further trial of a point that had failed, the attempt that it begins with.
NUMBER, VERSION, FIRST_ATTEMPT = "point", "version", "first_attempt"
# Ends the name of a suggestion that is a quantile of the parameter's distribution.
QUANTILE = " (quantile)"


def grid_point(spec: Spec, number: int, seed: int = 0) -> dict[str, Any]:
    """Return a point of a grid, by its number, in wandb's order, or in that of the seed if the order is random."""
    if spec.grid is None or not 0 <= number < len(spec.grid):
        raise SweepError(f"got the point {number}, expected one of the {spec.size or 0} points of the grid")
    spec = spec.for_point(number)
    assert spec.grid is not None
    if spec.method_options.get("order") == "random":
        start = spec.grid.start
        number = start + _shuffled(number - start, len(spec.grid) - start, seed)
    return spec.grid[number]


def _shuffled(number: int, size: int, seed: int) -> int:
    """Return the number that replaces `number` in a permutation that depends on the seed alone.

    It is a Feistel network over the smallest square of a power of two that holds `size` numbers, walked until the
    result is one of them: no list is shuffled, however large the grid. Source: Black and Rogaway 2002, "Ciphers with
    arbitrary finite domains", https://doi.org/10.1007/3-540-45760-7_9
    """
    bits = max((size - 1).bit_length() + 1, 2) // 2
    while True:
        left, right = number >> bits, number & ((1 << bits) - 1)
        for step in range(4):
            left, right = right, left ^ random.Random(f"{seed} {step} {right}").getrandbits(bits)
        number = left << bits | right
        if number < size:
            return number


def suggest(spec: Spec, trial: Trial) -> dict[str, Any]:
    """Return the point that the study's sampler chooses for a trial.

    Distributions that Optuna has are suggested as they are, under the parameter's label. Of others, such as `normal`, a
    quantile is suggested, under the label followed by `QUANTILE`. Values that no storage holds, such as lists, are
    suggested as JSON.
    """
    point: dict[str, Any] = {}
    for parameter in in_order(spec):
        if parameter.is_active(point):
            point[parameter.name] = _suggested(spec, parameter, trial)
    return {name: point[name] for name in spec.parameters if name in point}


def _suggested(spec: Spec, parameter: Parameter, trial: Trial) -> Any:
    name, distribution = spec.labels[parameter.name], parameter.distribution
    values = spec.choices_of(parameter)
    if values is not None:
        categories = choices(values)
        return values[categories.index(trial.suggest_categorical(name, categories))]
    if isinstance(distribution, Constant):
        return distribution.value
    if isinstance(distribution, Integers):
        return trial.suggest_int(name, distribution.low, distribution.high)
    if isinstance(distribution, Reals) and distribution.q is None and distribution.shape in ("uniform", "log_uniform"):
        return trial.suggest_float(
            name, distribution.first, distribution.second, log=distribution.shape == "log_uniform"
        )
    low, high = distribution.quantiles if isinstance(distribution, Reals) else (0.0, 1.0)
    return distribution.ppf(trial.suggest_float(f"{name}{QUANTILE}", low, high))


def choices(values: Sequence[Any]) -> list[Any]:
    """Return values as Optuna gets them: unchanged, or as JSON if Optuna cannot store them or tell them apart."""
    # For a set, 1, 1.0 and True are the same, as for Optuna.
    if all(map(_is_plain, values)) and len(set(values)) == len(values):
        return list(values)
    texts = [json.dumps(value) for value in values]
    return [text if text not in texts[:place] else f"{text} ({place})" for place, text in enumerate(texts)]


def _is_plain(value: Any) -> bool:
    return value is None or (isinstance(value, bool | int | float | str) and value == value)


def position_of(values: Sequence[Any], value: Any) -> int:
    """Return the position of a value of a grid, of the same type, because 1 equals True."""
    return next(place for place, other in enumerate(values) if other is value or json.dumps(other) == json.dumps(value))


def in_order(spec: Spec) -> Iterator[Parameter]:
    """Yield the parameters, each after those that its condition names."""
    left = dict(spec.parameters)
    while left:
        ready = [name for name, parameter in left.items() if not left.keys() & parameter.when.keys()]
        for name in ready:
            yield left.pop(name)


def representative(spec: Spec) -> list[dict[str, Any]]:
    """Return few points to check a spec by, with every listed value and both ends (or 1%, 99%) of each range."""
    wanted = {name: list(parameter.distribution.ends()) for name, parameter in spec.parameters.items()}
    points = []
    while any(wanted.values()):
        name = next(name for name, values in wanted.items() if values)
        points.append(_point_with(spec, name, wanted))
    return points


def _point_with(spec: Spec, name: str, wanted: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a point that has the next wanted value of a parameter, and of others where they are active."""
    needed = _needed(spec.parameters, name)
    point: dict[str, Any] = {}
    for parameter in in_order(spec):
        if not parameter.is_active(point):
            continue
        left = wanted[parameter.name]
        if parameter.name in needed:
            point[parameter.name] = needed[parameter.name]
            left[:] = [value for value in left if identity(value) != identity(needed[parameter.name])]
        else:
            point[parameter.name] = left.pop(0) if left else parameter.distribution.ends()[0]
    if name not in point:
        wanted[name].clear()  # it is never set, as its conditions exclude each other
    return {key: point[key] for key in spec.parameters if key in point}


def _needed(parameters: Mapping[str, Parameter], name: str) -> dict[str, Any]:
    """Return values of other parameters with which one of them is active."""
    allowed: dict[str, list[Any]] = {}
    below = [name]
    while below:
        for parent, values in parameters[below.pop()].when.items():
            before = allowed.get(parent)
            kept = [value for value in values if before is None or identity(value) in map(identity, before)]
            allowed[parent] = kept or list(values)
            below.append(parent)
    return {parent: values[0] for parent, values in allowed.items()}
