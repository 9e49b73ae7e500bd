"""`Parameter`: an entry of the config, the distribution of its values, and the condition under which it is set.

`Grid` has all combinations of the parameters' values, in wandb's order; an extended grid appends those that are new.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.distributions import (
    DISTRIBUTION_KEYS,
    Choice,
    Constant,
    Distribution,
    read_distribution,
)
from sacristan.runs.sweeps.spec.fields import check_keys, identity, listing, mapping, shown

# wandb's names, except that no part of a dotted name is empty.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_KEYS = (*DISTRIBUTION_KEYS, "parameters", "when")

_Condition = dict[str, tuple[Any, ...]]
_read_nested = mapping("{lr: {min: 0.001, max: 0.1}}")
_read_when = mapping("{optimizer.name: sgd}")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An entry of the config, by its dotted name; `when` has the values of others for which it is set."""

    name: str
    distribution: Distribution
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def is_active(self, point: Mapping[str, Any]) -> bool:
        """Tell whether the parameter is set at a point, which lacks the parameters that are not set themselves."""
        return all(
            name in point and identity(point[name]) in map(identity, values) for name, values in self.when.items()
        )


def read_parameters(where: str, value: Any) -> dict[str, Parameter]:
    """Read the parameters of a spec by their dotted names, in wandb's order: sorted by name at each depth."""
    parameters: dict[str, Parameter] = {}
    for path, parameter in _walk(where, "", _read_nested(where, value), {}):
        _check_name(path, parameter.name, parameters)
        parameters[parameter.name] = parameter
    for parameter in parameters.values():
        for name, values in parameter.when.items():
            _check_condition(f"{where}.{parameter.name}.when.{name}", parameter.name, name, values, parameters)
    return parameters


def _walk(
    where: str, prefix: str, document: Mapping[str, Any], condition: _Condition
) -> Iterator[tuple[str, Parameter]]:
    """Yield each parameter with its path; `condition` holds for all of them."""
    for key, entry in sorted(document.items()):
        path, name = f"{where}.{key}", f"{prefix}{key}"
        if not _NAME.fullmatch(key):
            raise SweepError(f"{path}: got the name {key!r}, expected letters, digits, _ and -, and dots between parts")
        if not isinstance(entry, Mapping):
            example = f"{{values: {entry}}}" if isinstance(entry, list) else f"{{value: {shown(entry)}}}"
            raise SweepError(f"{path}: got {shown(entry)}, expected a mapping; write {key}: {example}")
        check_keys(path, entry, _KEYS, "a parameter")
        rest = dict(entry)
        when = condition | _condition(f"{path}.when", rest.pop("when", {}))
        if "parameters" not in rest:
            yield path, Parameter(name, read_distribution(path, rest), when)
            continue
        nested = rest.pop("parameters")
        if rest:
            other = next(iter(rest))
            raise SweepError(f"{path}: got parameters and {other}, expected one of them; nest {other}, or drop it")
        yield from _walk(f"{path}.parameters", f"{name}.", _read_nested(f"{path}.parameters", nested), when)


def _condition(where: str, value: Any) -> _Condition:
    document = {} if value == {} else _read_when(where, value)
    return {name: tuple(values) if isinstance(values, list) else (values,) for name, values in document.items()}


def _check_name(where: str, name: str, parameters: Mapping[str, Parameter]) -> None:
    if name in parameters:
        raise SweepError(f"{where}: {name} is a parameter already; remove one of the two")
    for other in parameters:
        if other.startswith(f"{name}.") or name.startswith(f"{other}."):
            outer, inner = sorted((name, other), key=len)
            raise SweepError(f"{where}: {inner} is a part of {outer}, which is also a parameter; remove one of the two")


def _check_condition(
    where: str, name: str, parent: str, values: tuple[Any, ...], parameters: Mapping[str, Parameter]
) -> None:
    """Reject conditions on unknown parameters, on values that a parameter never has, and circles."""
    if parent not in parameters:
        hint = word_suggestion(parent, parameters)
        raise SweepError(f"{where}: is no parameter of the sweep; {hint}")
    if name in _ancestors(parent, parameters):
        raise SweepError(f"{where}: {name} depends on itself; remove one of the conditions")
    distribution = parameters[parent].distribution
    if not isinstance(distribution, Choice | Constant):
        raise SweepError(f"{where}: {parent} has a range, expected a parameter with values; list them")
    possible = list(map(identity, distribution.ends()))
    for value in values:
        if identity(value) not in possible:
            raise SweepError(f"{where}: got {shown(value)}, expected {listing(map(repr, distribution.ends()))}")


def _ancestors(name: str, parameters: Mapping[str, Parameter]) -> set[str]:
    """Return a parameter and all others that it depends on."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        parent = waiting.pop()
        if parent not in seen:
            seen.add(parent)
            waiting += parameters[parent].when if parent in parameters else ()
    return seen


# ---------------------------------------------------------------------- grids


# A grid with conditions is written out, to find the points that are equal.
_MAX_CONDITIONAL = 1_000_000

# Values by parameter, of which all combinations are points.
_Product = Mapping[str, Sequence[Any]]


class Grid:
    """The points of a grid: the first parameter changes slowest, the last one fastest.

    The points of a grid `before` that this one extends come first; `start` is the number of the first one after them.
    """

    def __init__(self, parameters: Mapping[str, Parameter], before: Grid | None = None) -> None:
        self._parameters, self._before = parameters, before
        self._is_conditional = any(parameter.when for parameter in parameters.values())

    @functools.cached_property
    def start(self) -> int:
        return 0 if self._before is None else len(self._before)

    def check(self) -> None:
        """Reject ranges and probabilities, which a grid cannot hold, and conditional grids with too many points."""
        for name, parameter in self._parameters.items():
            try:
                values = parameter.distribution.grid()
            except SweepError as error:
                raise SweepError(f"parameters.{name}: {error}") from error
            if values is None:
                raise SweepError(
                    f"parameters.{name}: has a range or probabilities, expected values, integers from min to max, "
                    "or q_uniform, as method grid needs; list values, or take method random"
                )
        most = max(grid._num_combinations for grid in self._all)
        if self._is_listed and most > _MAX_CONDITIONAL:
            raise SweepError(
                f"parameters: got a grid of {most} combinations with conditions, expected "
                f"{_MAX_CONDITIONAL} at most; list fewer values, or take method random"
            )

    @property
    def _all(self) -> list[Grid]:
        """This grid and those that it extends, the first one first."""
        return [*(self._before._all if self._before is not None else ()), self]

    @functools.cached_property
    def _is_listed(self) -> bool:
        return any(grid._is_conditional for grid in self._all)

    def __len__(self) -> int:
        new = len(self._listed) if self._is_listed else sum(map(_num_points, self._products))
        return self.start + new

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a point by its number, from 0 to the grid's length - 1."""
        if not 0 <= number < len(self):
            raise IndexError(f"got the point {number} of a grid that has {len(self)}")
        if self._before is not None and number < self.start:
            return self._before[number]
        number -= self.start
        if self._is_listed:
            return dict(self._listed[number])
        for product in self._products:
            if number < _num_points(product):
                break
            number -= _num_points(product)
        point = {}
        for name, values in reversed(list(product.items())):
            number, position = divmod(number, len(values))
            point[name] = values[position]
        return {name: point[name] for name in self._parameters}

    @functools.cached_property
    def values(self) -> dict[str, Sequence[Any]]:
        """The values of each parameter, without those that earlier grids alone have."""
        return {name: parameter.distribution.grid() or [] for name, parameter in self._parameters.items()}

    @property
    def _num_combinations(self) -> int:
        return _num_points(self.values)

    @functools.cached_property
    def _products(self) -> list[_Product]:
        """The new points of a grid without conditions, as products of values that share no point."""
        products: list[_Product] = [self.values]
        for grid in self._all[:-1]:
            products = [rest for product in products for rest in _points_lacking(product, grid.values)]
        return products

    @functools.cached_property
    def _listed(self) -> list[dict[str, Any]]:
        """The new points where a grid is conditional."""
        earlier = {identity(point) for grid in self._all[:-1] for point in grid._distinct}
        return [point for point in self._distinct if identity(point) not in earlier]

    @property
    def _distinct(self) -> list[dict[str, Any]]:
        """The grid's own points, without inactive parameters, each once."""
        points: dict[str, dict[str, Any]] = {}
        for combination in itertools.product(*self.values.values()):
            point = dict(zip(self.values, combination, strict=True))
            # A parameter that depends on an inactive one is inactive.
            while inactive := [name for name in point if not self._parameters[name].is_active(point)]:
                for name in inactive:
                    del point[name]
            points.setdefault(identity(point), point)
        return list(points.values())


def _num_points(product: _Product) -> int:
    return math.prod(len(values) for values in product.values())


def _points_lacking(product: _Product, other: _Product) -> list[_Product]:
    """Return the points of a product that another one lacks, as products that share no point."""
    if product.keys() != other.keys():
        return [product]
    rest: list[_Product] = []
    shared = dict(product)
    for name, values in product.items():
        shared_values = set(map(identity, other[name]))
        new = [value for value in values if identity(value) not in shared_values]
        if new:
            rest.append({**shared, name: new})
        shared[name] = [value for value in values if identity(value) in shared_values]
        if not shared[name]:
            break
    return rest
