"""`Grid`: all combinations of the parameters' values, in wandb's order; an extended grid appends those that are new."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import identity
from sacristan.runs.sweeps.spec.parameters import Parameter

__all__ = ["Grid"]

# A grid with conditions is written out, to find the points that are equal.
_MAX_CONDITIONAL = 1_000_000

# Values by parameter, of which all combinations are points.
_Product = Mapping[str, Sequence[Any]]


class Grid:
    """The points of a grid: the first parameter changes slowest, the last one fastest.

    Args:
        before: The grid that this one extends. Its points come first, under their numbers; then the new ones.

    Attributes:
        start: Number of the first point that `before` lacks.
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
                values = parameter.law.grid()
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
        new = len(self._listed) if self._is_listed else sum(map(_size, self._products))
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
            if number < _size(product):
                break
            number -= _size(product)
        point = {}
        for name, values in reversed(list(product.items())):
            number, position = divmod(number, len(values))
            point[name] = values[position]
        return {name: point[name] for name in self._parameters}

    @functools.cached_property
    def values(self) -> dict[str, Sequence[Any]]:
        """The values of each parameter, without those that earlier grids alone have."""
        return {name: parameter.law.grid() or [] for name, parameter in self._parameters.items()}

    @property
    def _num_combinations(self) -> int:
        return _size(self.values)

    @functools.cached_property
    def _products(self) -> list[_Product]:
        """The new points of a grid without conditions, as products of values that share no point."""
        products: list[_Product] = [self.values]
        for grid in self._all[:-1]:
            products = [rest for product in products for rest in _difference(product, grid.values)]
        return products

    @functools.cached_property
    def _listed(self) -> list[dict[str, Any]]:
        """The new points where a grid is conditional."""
        known = {identity(point) for grid in self._all[:-1] for point in grid._distinct}
        return [point for point in self._distinct if identity(point) not in known]

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


def _size(product: _Product) -> int:
    return math.prod(len(values) for values in product.values())


def _difference(product: _Product, other: _Product) -> list[_Product]:
    """Return the points of a product that another one lacks, as products that share no point."""
    if product.keys() != other.keys():
        return [product]
    rest: list[_Product] = []
    shared = dict(product)
    for name, values in product.items():
        known = set(map(identity, other[name]))
        new = [value for value in values if identity(value) not in known]
        if new:
            rest.append({**shared, name: new})
        shared[name] = [value for value in values if identity(value) in known]
        if not shared[name]:
            break
    return rest
