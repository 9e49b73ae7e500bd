"""`Grid`: all combinations of the parameters' values, in the order in which wandb hands them out."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from runs.errors import SweepError
from runs.sweeps.spec.checking import identity
from runs.sweeps.spec.parameters import Parameter

__all__ = ["Grid"]

# Grids with conditions are written out, to see which of their points are the same.
_MAX_CONDITIONAL = 1_000_000


class Grid:
    """The points of a grid: the first parameter changes slowest, the last one fastest.

    Args:
        parameters: By their names, in order.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters

    def check(self) -> None:
        """Refuse what cannot be on a grid.

        Raises:
            SweepError: If a parameter has a range, or probabilities, or points are too many to tell apart.
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
        """Return the point of a number.

        Raises:
            IndexError: If there is none.
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

    @property
    def _is_conditional(self) -> bool:
        return any(parameter.when for parameter in self._parameters.values())

    @functools.cached_property
    def _distinct(self) -> list[dict[str, Any]]:
        """The points without what is not active there, each once."""
        found: dict[str, dict[str, Any]] = {}
        for combination in itertools.product(*self.values.values()):
            point = dict(zip(self.values, combination, strict=True))
            # What depends on something that is not active is not, either.
            while inactive := [name for name in point if not self._parameters[name].is_active(point)]:
                for name in inactive:
                    del point[name]
            found.setdefault(identity(point), point)
        return list(found.values())
