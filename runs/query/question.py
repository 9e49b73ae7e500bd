"""`Question`: which runs a caller asks for, parsed and checked once for every store."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from runs.errors import FilterError
from runs.query.conditions import AllOf, Filter, names_in
from runs.query.filters import parse_filter
from runs.query.names import full_name

__all__ = ["Question"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question that a store answers with runs.

    Attributes:
        tree: The filter; by default all runs.
        by: Full name of the field to sort by; by default the id.
        descending: Whether the greatest value comes first. Runs without the field come last either way.
        limit: Maximum number of runs; None for all.
        offset: Number of runs to skip.
        columns: Names, short or full, of the fields to fetch with the runs.
    """

    tree: Filter = dataclasses.field(default_factory=lambda: AllOf(()))
    by: str = "_id"
    descending: bool = False
    limit: int | None = None
    offset: int = 0
    columns: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        filter: Any = None,
        sort: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] = (),
        offset: int = 0,
    ) -> Question:
        """Parse and check a question.

        Args:
            filter: See `runs.query.filters.parse_filter`.
            sort: A field, short or full, prefixed with `-` for descending order; None for the id.
            limit, columns, offset: See the attributes.

        Raises:
            FilterError: If the filter is malformed, or limit or offset is no count.
        """
        if limit is not None and not _is_count(limit):
            raise FilterError(f"limit: got {limit!r}, expected a maximum number of runs, or None for all")
        if not _is_count(offset):
            raise FilterError(f"offset: got {offset!r}, expected the number of runs to skip, at least 0")
        by = full_name(sort.removeprefix("-")) if sort else "_id"
        return cls(parse_filter(filter), by, bool(sort and sort.startswith("-")), limit, offset, tuple(columns))

    @functools.cached_property
    def judged(self) -> frozenset[str]:
        """Full names of the fields that decide which runs come, and in what order."""
        return frozenset(names_in(self.tree) | {self.by})

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Full names of all fields: those `judged` and the columns."""
        return self.judged | {full_name(name) for name in self.columns}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
