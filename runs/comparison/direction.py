"""The direction that is better for a field of runs: as the runs recorded it, never guessed."""

from __future__ import annotations

from collections.abc import Iterable

from sacristan.observers.record.directions import DIRECTIONS, MEASURED, base_name, monitored_direction, noted_directions
from sacristan.runs.errors import ComparisonError
from sacristan.runs.query.names import STATISTICS
from sacristan.runs.query.times import DURATION
from sacristan.runs.stores.prefetching import prefetch
from sacristan.runs.stores.run import Run

__all__ = ["MODES", "better_text", "direction_of"]

MODES = ("auto", *DIRECTIONS)


def direction_of(runs: Iterable[Run], field: str, mode: str = "auto") -> str:
    """Return the better direction of a field: `max` or `min`.

    With `auto` the records decide: by the noted directions (`better` in their info, of the result, the ingredient
    `metrics` or a sweep's goal), by the monitored metric (`training.monitor` and `training.mode`), or by a name that
    the training loop uses: accuracy, r2, loss, mae, rmse, and `duration`. Raises ComparisonError if no run records a
    direction, or two runs contradict each other.
    """
    if mode not in MODES:
        raise ComparisonError(f"mode: got {mode!r}, expected one of {', '.join(MODES)}")
    if mode != "auto":
        return mode
    runs = list(runs)
    prefetch(runs, ["info", "config"])
    recorded: dict[str, Run] = {}
    for run in runs:
        direction = _recorded_by(run, field)
        if direction is not None:
            recorded.setdefault(direction, run)
    if len(recorded) == 1:
        return next(iter(recorded))
    more = "say which: --max or --min (in Python mode='max' or mode='min')"
    if recorded:
        most, least = recorded["max"].id, recorded["min"].id
        raise ComparisonError(f"{field}: run {most} records that more is better, run {least} that less is; {more}")
    raise ComparisonError(f"{field}: no run records whether more or less of it is better; {more}")


def _recorded_by(run: Run, field: str) -> str | None:
    head, _, statistic = field.removeprefix("summary.").rpartition(".")
    name = base_name(head if statistic in STATISTICS else field)
    noted = noted_directions(run.info)
    parts = name.split("/")
    for length in range(len(parts), 0, -1):  # `f1/cat` is a class of `f1`
        direction = noted.get("/".join(parts[:length]))
        if direction is not None:
            return direction
    monitor, mode = run.get("config.training.monitor"), run.get("config.training.mode")
    is_monitored = isinstance(monitor, str) and base_name(monitor) == name
    if is_monitored and (mode in DIRECTIONS or (mode == "auto" and monitored_direction(name, mode) == "max")):
        return monitored_direction(name, mode)
    return {**MEASURED, DURATION: "min"}.get(name)


def better_text(direction: str) -> str:
    """Return `max` or `min` in words: `greater is better` or `less is better`."""
    return "greater is better" if direction == "max" else "less is better"
