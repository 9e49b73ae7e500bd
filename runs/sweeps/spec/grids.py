"""`Grid`: all combinations of the parameters' values, in wandb's order."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from runs.errors import SweepError
from runs.sweeps.spec.fields import identity
from runs.sweeps.spec.parameters import Parameter

__all__ = ["Grid"]

# A grid with conditions is written out, to find the points that are equal.
_MAX_CONDITIONAL = 1_000_000


class Grid:
    """The points of a grid: the first parameter changes slowest, the last one fastest.

    Args:
        parameters: By their names, in order.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters
        self._is_conditional = any(parameter.when for parameter in parameters.values())

    def check(self) -> None:
        """Reject parameters that a grid cannot hold.

        Raises:
            SweepError: If a parameter has a range or probabilities, or a conditional grid has too many points.
        """
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
        if self._is_conditional and self._num_combinations > _MAX_CONDITIONAL:
            raise SweepError(
                f"parameters: got a grid of {self._num_combinations} combinations with conditions, expected "
                f"{_MAX_CONDITIONAL} at most; list fewer values, or take method random"
            )

    def __len__(self) -> int:
        return len(self._distinct) if self._is_conditional else self._num_combinations

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a point by its number, from 0 to the grid's length - 1.

        Raises:
            IndexError: If there is no such point.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"got the point {number} of a grid that has {len(self)}")
        if self._is_conditional:
            return dict(self._distinct[number])
        point = {}
        for name, values in reversed(self.values.items()):
            number, position = divmod(number, len(values))
            point[name] = values[position]
        return {name: point[name] for name in self._parameters}

    @functools.cached_property
    def values(self) -> dict[str, Sequence[Any]]:
        """The values of each parameter."""
        return {name: parameter.law.grid() or [] for name, parameter in self._parameters.items()}

    @property
    def _num_combinations(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    @functools.cached_property
    def _distinct(self) -> list[dict[str, Any]]:
        """The points of a conditional grid, without inactive parameters, each once."""
        points: dict[str, dict[str, Any]] = {}
        for combination in itertools.product(*self.values.values()):
            point = dict(zip(self.values, combination, strict=True))
            # A parameter that depends on an inactive one is inactive.
            while inactive := [name for name in point if not self._parameters[name].is_active(point)]:
                for name in inactive:
                    del point[name]
            points.setdefault(identity(point), point)
        return list(points.values())
