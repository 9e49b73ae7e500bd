"""Better direction of a field: as the runs recorded it, never guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from observers.record.directions import DIRECTIONS, base_name, noted_directions
from runs.errors import ComparisonError
from runs.query.names import STATISTICS
from runs.query.times import DURATION
from runs.stores.prefetching import prefetch
from runs.stores.run import Run

__all__ = ["MODES", "better_text", "direction_of", "monitored_direction"]

MODES = ("auto", *DIRECTIONS)
# What the training loop measures of every loss, by these names.
_MEASURED = {"accuracy": "max", "r2": "max", "loss": "min", "mae": "min", "rmse": "min", DURATION: "min"}


def direction_of(runs: Iterable[Run], field: str, mode: str = "auto") -> str:
    """Return `max` or `min`: which way a field is better.

    With `auto` the runs say it: by what they noted (`better` in their info: of the result, of the ingredient `metrics`,
    of a sweep's goal), by the metric that they monitored (`training.monitor` and `training.mode`), or by a name that
    the training loop gives: accuracy, r2, loss, mae, rmse, and `duration`.

    Raises:
        ComparisonError: If there is no such mode, no run says it, or they contradict each other.
    """
    if mode not in MODES:
        raise ComparisonError(f"mode: got {mode!r}, expected one of {', '.join(MODES)}")
    if mode != "auto":
        return mode
    runs = list(runs)
    prefetch(runs, ["info", "config"])
    said: dict[str, Run] = {}
    for run in runs:
        direction = _said_by(run, field)
        if direction is not None:
            said.setdefault(direction, run)
    if len(said) == 1:
        return next(iter(said))
    more = "say which: --max or --min (in Python mode='max' or mode='min')"
    if said:
        raise ComparisonError(
            f"{field}: run {said['max'].id} records that more is better, run {said['min'].id} that less is; {more}"
        )
    raise ComparisonError(f"{field}: no run records whether more or less of it is better; {more}")


def _said_by(run: Run, field: str) -> str | None:
    head, _, statistic = field.removeprefix("summary.").rpartition(".")
    name = base_name(head if statistic in STATISTICS else field)
    noted = noted_directions(run.info)
    parts = name.split("/")
    for length in range(len(parts), 0, -1):  # `f1/cat` is a class of `f1`
        found = noted.get("/".join(parts[:length]))
        if found is not None:
            return found
    monitor, mode = run.get("config.training.monitor"), run.get("config.training.mode")
    if isinstance(monitor, str) and base_name(monitor) == name:
        if mode in DIRECTIONS:
            return mode
        if mode == "auto" and name.endswith(("accuracy", "r2")):
            return "max"
    return _MEASURED.get(name)


def monitored_direction(run: Run, metric: str) -> str:
    """Return which way the training of a run took its monitored metric to be better, as `Monitor` does."""
    settings = run.get("config.training")
    mode = settings.get("mode") if isinstance(settings, Mapping) else None
    if mode in DIRECTIONS:
        return str(mode)
    return "max" if metric.endswith(("accuracy", "r2")) else "min"


def better_text(direction: str) -> str:
    """Return a direction in words."""
    return "greater is better" if direction == "max" else "less is better"
