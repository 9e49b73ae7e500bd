"""Values of runs as charts draw them."""

from __future__ import annotations

import math
from datetime import UTC
from typing import Any

from sacristan.runs.errors import StoreError
from sacristan.runs.query.names import TIMES, full_name
from sacristan.runs.query.texts import is_number
from sacristan.runs.query.times import time_of
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import show

__all__ = ["NONE", "is_time", "plain_value", "value_of"]

# The name of a missing value.
NONE = "none"


def is_time(name: str) -> bool:
    """Tell whether a field is a time, which charts draw in milliseconds since 1970."""
    return full_name(name) in TIMES


def value_of(run: Run, name: str) -> float | str | None:
    """Return a field of a run: a number, a time in milliseconds since 1970, a short text, or None.

    A damaged run has no value.
    """
    try:
        value = " ".join(run.tags) if name == "tags" else run.id if name == "id" else run.get(name)
    except StoreError:  # damaged since it was found
        return None
    if is_time(name):
        found = time_of(value)
        return None if found is None else 1000 * found.replace(tzinfo=UTC).timestamp()
    return plain_value(value)


def plain_value(value: Any) -> float | str | None:
    """Return a finite number, or the short text of anything else; None for a missing or an infinite value."""
    if value is None:
        return None
    if not is_number(value):
        return show(value)
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None
