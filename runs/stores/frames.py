"""Runs, and the points of their metrics, as pandas DataFrames."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.drawing.curve import downsample
from sacristan.runs.errors import StoreError
from sacristan.runs.query.names import TIMES, full_name
from sacristan.runs.query.times import time_of
from sacristan.runs.stores.rows import read_rows
from sacristan.runs.stores.run import Run, each_series, prefetch

if TYPE_CHECKING:
    import pandas

    from sacristan.observers.record.points.points import Series

__all__ = ["curve_frame", "run_frame"]

_log = logging.getLogger(__name__)
_COLUMNS = ["id", "metric", "step", "epoch", "value", "time", "wall_time"]


def run_frame(runs: Sequence[Run], columns: Sequence[str] | None) -> pandas.DataFrame:
    """Return runs as a frame, by default with the usual columns; see `sacristan.runs.stores.store.Store.frame`."""
    import pandas

    rows, problems = read_rows(runs, columns)
    frame = pandas.DataFrame([row for _, row in rows], index=pandas.Index([run.id for run, _ in rows], name="id"))
    if problems:
        frame.attrs["problems"] = problems
        for id, why in problems.items():
            _log.warning("run %s cannot be read completely: %s", id, why)
    for name in frame.columns:
        if full_name(name) in TIMES:
            frame[name] = pandas.to_datetime([time_of(value) for value in frame[name]], utc=True, errors="coerce")
    return frame


def curve_frame(runs: Sequence[Run], names: Sequence[str], num_points: int | None = None) -> pandas.DataFrame:
    """Return the points of metrics as one frame; see `sacristan.runs.stores.store.Store.curves`."""
    import pandas

    prefetch(runs, ["metrics", "start_time", "config"])
    # By the positions of run and metric, which give the order of the rows.
    frames: dict[tuple[int, int], pandas.DataFrame] = {}
    for column, name in enumerate(names):
        rows = {run: row for row, run in enumerate(runs) if name in run.metrics}
        if runs and not rows:
            raise _missing(name, runs)
        for run, series in each_series(rows, name):
            frames[rows[run], column] = _curve(
                run, name, series if num_points is None else downsample(series, num_points)
            )
    if not frames:
        return pandas.DataFrame(columns=_COLUMNS)
    return pandas.concat([frames[place] for place in sorted(frames)], ignore_index=True)


def _missing(name: str, runs: Sequence[Run]) -> StoreError:
    known = sorted({name for run in runs[:20] for name in run.metrics if not name.startswith("system/")})
    hint = word_suggestion(name, known)
    return StoreError(f"no run has the metric {name!r}; {hint}")


def _curve(run: Run, name: str, series: Series) -> pandas.DataFrame:
    import pandas

    started = pandas.Timestamp(run.start_time) if run.start_time else pandas.NaT
    epochs = run.epochs_at(series.steps)
    frame = series.to_pandas()
    frame["wall_time"] = started + pandas.to_timedelta(frame["time"], unit="s")
    frame["id"], frame["metric"], frame["epoch"] = run.id, name, np.nan if epochs is None else epochs
    return frame[_COLUMNS]
