"""Direction in which a run's result and metrics are better, as `better` in its info: `max` or `min` by name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

__all__ = ["BETTER", "DIRECTIONS", "base_name", "note_better", "noted_directions"]

BETTER = "better"
DIRECTIONS = ("max", "min")
# The parts of the data that a metric is measured on: it is better the same way on each.
_PARTS = ("train/", "val/", "test/", "info.test.", "info.val.", "info.train.")


def note_better(info: MutableMapping[str, Any], directions: Mapping[str, str]) -> None:
    """Note which way metrics, or the `result`, are better, beside what the info says already.

    Args:
        info: The run's.
        directions: `max` or `min` by name, such as `{"result": "max", "val/f1": "max"}`.

    Raises:
        ValueError: If a direction is neither.
    """
    for name, direction in directions.items():
        if direction not in DIRECTIONS:
            raise ValueError(f"the better way of {name!r}: got {direction!r}, expected max or min")
    known = info.get(BETTER)
    info[BETTER] = {**(known if isinstance(known, Mapping) else {}), **directions}


def noted_directions(info: Mapping[str, Any]) -> dict[str, str]:
    """Return what `note_better` noted, by `base_name`; what is damaged is passed over."""
    noted = info.get(BETTER)
    found = noted.items() if isinstance(noted, Mapping) else ()
    return {base_name(str(name)): direction for name, direction in found if direction in DIRECTIONS}


def base_name(name: str) -> str:
    """Return the name of a metric without the part of the data: `f1` of `val/f1` and of `info.test.f1`."""
    for part in _PARTS:
        if name.startswith(part) and len(name) > len(part):
            return name.removeprefix(part)
    return name
