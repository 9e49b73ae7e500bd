"""Direction in which a run's result and metrics are better: noted in its info, given by a mode, or known by name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

BETTER = "better"
DIRECTIONS = ("max", "min")
# The metrics that the training loop measures.
MEASURED = {"loss": "min", "accuracy": "max", "r2": "max", "mae": "min", "rmse": "min"}
_GREATER_IS_BETTER = tuple(name for name, direction in MEASURED.items() if direction == "max")
# The parts of the data that a metric is measured on; its direction is the same for each.
_PARTS = ("train/", "val/", "test/", "info.test.", "info.val.", "info.train.")


def note_better(info: MutableMapping[str, Any], directions: Mapping[str, str]) -> None:
    """Note `max` or `min` by name in a run's info, and keep existing notes."""
    for name, direction in directions.items():
        if direction not in DIRECTIONS:
            raise ValueError(f"the better way of {name!r}: got {direction!r}, expected max or min")
    noted = info.get(BETTER)
    info[BETTER] = {**(noted if isinstance(noted, Mapping) else {}), **directions}


def noted_directions(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the directions in a run's info by `base_name`; damaged entries are skipped."""
    noted = info.get(BETTER)
    entries = noted.items() if isinstance(noted, Mapping) else ()
    return {base_name(str(name)): direction for name, direction in entries if direction in DIRECTIONS}


def base_name(name: str) -> str:
    """Return a metric's name without the part of the data: `val/f1` and `info.test.f1` become `f1`."""
    for part in _PARTS:
        if name.startswith(part) and len(name) > len(part):
            return name.removeprefix(part)
    return name


def monitored_direction(name: str, mode: object) -> str:
    """Return the direction of a monitored metric: the mode of its `Monitor`; with `auto` its name decides."""
    if mode in DIRECTIONS:
        return str(mode)
    return "max" if name.endswith(_GREATER_IS_BETTER) else "min"
