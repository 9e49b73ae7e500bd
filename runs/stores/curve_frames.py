"""Points of many runs as one pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from runs.errors import StoreError
from runs.query.decimation import downsample
from runs.stores.prefetching import each_series, prefetch
from runs.stores.run import Run

if TYPE_CHECKING:
    import pandas

__all__ = ["curve_frame"]

_COLUMNS = ("id", "metric", "step", "epoch", "value", "time", "wall_time")


def curve_frame(runs: Sequence[Run], names: Sequence[str], num_points: int | None = None) -> pandas.DataFrame:
    """Return the points of metrics as one frame; see `runs.stores.store.Store.curves`.

    Raises:
        StoreError: If no run has one of the metrics, or one cannot be read.
    """
    import pandas

    prefetch(runs, ["metrics", "start_time", "config"])
    frames, missing = {}, set(names)
    for column, name in enumerate(names):
        having = {run: row for row, run in enumerate(runs) if name in run.metrics}
        missing -= {name} if having else set()
        for run, series in each_series(having, name):
            series = series if num_points is None else downsample(series, num_points)
            started = pandas.Timestamp(run.start_time) if run.start_time else pandas.NaT
            epochs = run.epochs_at(series.steps)
            frame = series.to_pandas()
            frame["wall_time"] = started + pandas.to_timedelta(frame["time"], unit="s")
            frame["id"], frame["metric"], frame["epoch"] = run.id, name, np.nan if epochs is None else epochs
            frames[having[run], column] = frame[list(_COLUMNS)]
    if runs and missing:
        known = sorted({name for run in runs[:20] for name in run.metrics if not name.startswith("system/")})
        raise StoreError(f"no run has the metric {min(missing)!r}; there are: {', '.join(known) or 'none'}")
    return (
        pandas.concat([frames[place] for place in sorted(frames)], ignore_index=True)
        if frames
        else pandas.DataFrame(columns=list(_COLUMNS))
    )
