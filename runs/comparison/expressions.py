"""Expressions of metrics, such as `val/loss - train/loss`, parsed by hand and computed by NumPy.

    expression = term {("+" | "-") term}        term = factor {("*" | "/") factor}
    factor = "-" factor | atom ["**" factor]    atom = number | metric | function "(" expression {"," expression} ")"
                                                       | "(" expression ")"

A metric is written as it is, or between backticks if it holds other characters than letters, digits and `_ . / : @ %`.
So `/` and `-` between metrics need a space before them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sacristan.observers.record.points.points import Series
from sacristan.runs.errors import PlotError
from sacristan.runs.query.names import QUOTED, unquoted
from sacristan.runs.stores.prefetching import each_series

if TYPE_CHECKING:
    from sacristan.runs.stores.run import Run

__all__ = ["Quantity", "values_by_step"]

_MAX_LENGTH, _MAX_DEPTH = 500, 20
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?(?![\w/]))|(?P<name>[^\W\d][\w./:@%]*)|"
    rf"(?P<quoted>{QUOTED})|(?P<operator>\*\*|[-+*/(),]))"
)
_FUNCTIONS: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    "abs": (1, np.abs),
    "exp": (1, np.exp),
    "log": (1, np.log),
    "log10": (1, np.log10),
    "sqrt": (1, np.sqrt),
    "min": (2, np.minimum),
    "max": (2, np.maximum),
}
_BINARY: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
}

Values = Mapping[str, np.ndarray]
Formula = Callable[[Values], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A metric, or an expression of metrics: its text, the metrics' names, and a formula if it is no plain metric."""

    text: str
    names: tuple[str, ...]
    formula: Formula | None = None

    @classmethod
    def of(cls, text: str, metrics: Collection[str]) -> Quantity:
        """Parse a quantity; the name of a metric in `metrics` is never an expression. May raise PlotError."""
        if text in metrics:
            return cls(text, (text,))
        parser = _Parser(text)
        formula = parser.whole()
        names = tuple(dict.fromkeys(parser.names))
        if names == (text,) or not names:
            return cls(text, (text,))
        return cls(text, names, formula)

    def is_of(self, run: Run) -> bool:
        """Tell whether a run has all of the metrics."""
        return set(self.names) <= set(run.metrics)

    def each_series(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Series]]:
        """Yield each run, which has all metrics, with the quantity's points at the steps that all of them have."""
        if self.formula is None:
            yield from each_series(runs, self.names[0])
            return
        for pairs in zip(*(each_series(runs, name) for name in self.names), strict=True):
            yield pairs[0][0], self._computed([series for _, series in pairs])

    def _computed(self, parts: Sequence[Series]) -> Series:
        assert self.formula is not None
        firsts = [_last_of_each_step(series) for series in parts]
        steps = functools.reduce(np.intersect1d, (steps for steps, _ in firsts))
        chosen = [positions[np.searchsorted(own, steps)] for own, positions in firsts]
        values = {
            name: np.asarray(series.values[where], float)
            for name, series, where in zip(self.names, parts, chosen, strict=True)
        }
        with np.errstate(all="ignore"):
            result = np.broadcast_to(np.asarray(self.formula(values), float), steps.shape)
        return dataclasses.replace(parts[0], steps=steps, values=result, times=parts[0].times[chosen[0]])


def values_by_step(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a series, ascending, and the last value of each."""
    steps, positions = _last_of_each_step(series)
    return steps, np.asarray(series.values[positions], float)


def _last_of_each_step(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a series, ascending, and the position of the last point of each."""
    steps, from_end = np.unique(series.steps[::-1], return_index=True)
    return steps, len(series.steps) - 1 - from_end


class _Parser:
    """Parses one expression by recursive descent; `names` are the metrics that it names."""

    def __init__(self, text: str) -> None:
        self.names: list[str] = []
        self._text = text
        self._tokens = list(self._tokenized()) if len(text) <= _MAX_LENGTH else []
        if not self._tokens:
            raise self._error(f"expected a metric or an expression of at most {_MAX_LENGTH} characters")
        self._place = self._depth = 0

    def _tokenized(self) -> Iterator[tuple[str, str]]:
        place, end = 0, len(self._text.rstrip())
        while place < end:
            match = _TOKEN.match(self._text, place)
            if match is None or match.lastgroup is None:
                raise self._error(f"cannot read {self._text[place : place + 20]!r}")
            yield match.lastgroup, unquoted(match[match.lastgroup])
            place = match.end()

    def _error(self, why: str) -> PlotError:
        example = "write it like val/loss - train/loss, and other names between backticks"
        return PlotError(f"got the expression {self._text[:100]!r}: {why}; {example}")

    def _next(self, *operators: str) -> str:
        """Consume and return the next operator if it is one of these; otherwise return an empty text."""
        kind, token = self._tokens[self._place] if self._place < len(self._tokens) else ("", "")
        if kind != "operator" or token not in operators:
            return ""
        self._place += 1
        return token

    def whole(self) -> Formula:
        """Return the formula of the whole text."""
        formula = self._sum()
        if self._place < len(self._tokens):
            raise self._error(f"expected an operator before {self._tokens[self._place][1]!r}")
        return formula

    def _sum(self) -> Formula:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested more than {_MAX_DEPTH} deep")
        formula = self._chain(("+", "-"), lambda: self._chain(("*", "/"), self._factor))
        self._depth -= 1
        return formula

    def _chain(self, operators: tuple[str, ...], part: Callable[[], Formula]) -> Formula:
        formula = part()
        while operator := self._next(*operators):
            formula = _applied(_BINARY[operator], formula, part())
        return formula

    def _factor(self) -> Formula:
        num_signs = 0
        while self._next("-"):
            num_signs += 1
        formula = self._atom()
        if self._next("**"):
            formula = _applied(np.power, formula, self._factor())
        return _applied(np.negative, formula) if num_signs % 2 else formula

    def _atom(self) -> Formula:
        if self._next("("):
            return self._closed([self._sum()])[0]
        if self._place == len(self._tokens):
            raise self._error("it ends too early")
        kind, token = self._tokens[self._place]
        self._place += 1
        if kind == "number":
            number = np.asarray(float(token))
            return lambda values: number
        if kind == "name" and token in _FUNCTIONS and self._next("("):
            return self._call(token)
        if kind == "operator":
            raise self._error(f"expected a metric instead of {token!r}")
        self.names.append(token)
        return lambda values: values[token]

    def _call(self, name: str) -> Formula:
        num, function = _FUNCTIONS[name]
        arguments = [self._sum()]
        while self._next(","):
            arguments.append(self._sum())
        if len(arguments) != num:
            raise self._error(f"{name} takes {num} argument{'s' * (num > 1)}, got {len(arguments)}")
        return _applied(function, *self._closed(arguments))

    def _closed(self, formulas: list[Formula]) -> list[Formula]:
        if not self._next(")"):
            raise self._error("a parenthesis is not closed")
        return formulas


def _applied(function: Callable[..., np.ndarray], *formulas: Formula) -> Formula:
    return lambda values: function(*(formula(values) for formula in formulas))
