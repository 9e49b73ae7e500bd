"""Runs as tables: lists that notebooks show, flat rows, and pandas DataFrames, also of the points of their metrics."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import StoreAwayError, StoreError
from sacristan.runs.query import TIMES, dotted, full_name, is_own, mapping_of, time_of
from sacristan.runs.query.texts import count_text, list_text
from sacristan.runs.stores.run import Run, each_series, prefetch
from sacristan.runs.stores.settings import telling_settings

if TYPE_CHECKING:
    import pandas

    from sacristan.observers.record.points import Series

# Fields for a list of runs.
DEFAULT_COLUMNS = ("name", "command", "status", "start_time", "stop_time", "heartbeat", "result", "uid")
# Fields for `read_rows` without columns.
WHOLE_COLUMNS = (*DEFAULT_COLUMNS, "config", "summary", "host")


def read_rows(
    runs: Iterable[Run], columns: Sequence[str] | None = None
) -> tuple[list[tuple[Run, dict[str, Any]]], dict[str, str]]:
    """Return runs as rows, so that no damaged run hides another, and by id why a run cannot be read completely.

    By default, the columns are `DEFAULT_COLUMNS`, the host, every entry of the config (`config.lr`) and every statistic
    of the summary (`summary.val/loss.min`). Rows lack the unreadable parts; a run that was removed meanwhile has no
    row.
    """
    rows, problems = [], {}
    for run in runs:
        run = run if run.is_listed else run.listed()
        try:
            rows.append((run, _row_of(run, columns)))
        except StoreAwayError:
            raise
        except StoreError as error:
            problems[run.id] = str(error)
        else:
            problems |= {run.id: run.problem} if run.problem else {}
    for name in columns or () if rows else ():
        if is_own(name) and all(row[name] is None for _, row in rows):  # one with a value is a field
            rows[0][0].store.check_field(name)
    return rows, problems


def _row_of(run: Run, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of a run by column; tags are a sorted list."""
    if columns is not None:
        return {name: run.tags if name == "tags" else run.get(name) for name in columns}
    row = {name: run[name] for name in (*DEFAULT_COLUMNS, "host")}
    # A foreign record may hold other types.
    row |= dotted(mapping_of(run["config"]), "config.")
    for metric, statistics in mapping_of(run["summary"]).items():
        row |= {f"summary.{metric}.{name}": value for name, value in mapping_of(statistics).items()}
    return row


# Number of configs to read for the settings that distinguish the runs.
_MAX_READ = 20
# More runs than these are counted by kind before they are changed.
HANDFUL = 5


class RunList(list[Run]):
    """A list of runs; a notebook shows it as a table, with the curves inline."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> RunList: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Run | RunList:
        """Return one run, or a slice as a `RunList`."""
        item = super().__getitem__(index)
        return RunList(item) if isinstance(item, list) else item

    def _repr_html_(self) -> str:
        """Return the list as notebooks show it."""
        return self.as_html()

    def as_html(self, title: str = "") -> str:
        """Return a table of the first runs as self-contained HTML, below a title."""
        from sacristan.runs.drawing.inline_html import runs_form  # imports numpy, which lists of runs do without

        listed = [run.listed() for run in self]
        return runs_form(listed, telling_settings(listed[:_MAX_READ]), title)


def census(runs: Sequence[Run]) -> str:
    """Count runs and, if they are more than a handful, say which: `9 runs (8 COMPLETED, 1 FAILED) of digits`."""
    number = count_text(len(runs), "run")
    if len(runs) <= HANDFUL:
        return number
    statuses: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for run in runs:
        try:
            status, name = run.status, run.name
        except StoreError:
            status, name = "unreadable", ""
        statuses[status] += 1
        names[name] += 1
    kinds = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    experiments = list_text(name for name, _ in names.most_common() if name)
    return f"{number} ({kinds}) of {experiments}" if experiments else f"{number} ({kinds})"


_log = logging.getLogger(__name__)
_COLUMNS = ["id", "metric", "step", "epoch", "value", "time", "wall_time"]


def run_frame(runs: Sequence[Run], columns: Sequence[str] | None) -> pandas.DataFrame:
    """Return runs as a frame, by default with the usual columns; see `sacristan.runs.stores.Store.frame`."""
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
    """Return the points of metrics as one frame; see `sacristan.runs.stores.Store.curves`."""
    import pandas

    from sacristan.runs.drawing.curve import downsample

    prefetch(runs, ["metrics", "start_time", "config"])
    # By the positions of run and metric, which give the order of the rows.
    frames: dict[tuple[int, int], pandas.DataFrame] = {}
    for column, name in enumerate(names):
        rows = {run: row for row, run in enumerate(runs) if name in run.metrics}
        if runs and not rows:
            known = sorted({each for run in runs[:20] for each in run.metrics if not each.startswith("system/")})
            raise StoreError(f"no run has the metric {name!r}; {word_suggestion(name, known)}")
        for run, series in each_series(rows, name):
            frames[rows[run], column] = _curve(
                run, name, series if num_points is None else downsample(series, num_points)
            )
    if not frames:
        return pandas.DataFrame(columns=_COLUMNS)
    return pandas.concat([frames[place] for place in sorted(frames)], ignore_index=True)


def _curve(run: Run, name: str, series: Series) -> pandas.DataFrame:
    import pandas

    started = pandas.Timestamp(run.start_time) if run.start_time else pandas.NaT
    epochs = run.epochs_at(series.steps)
    frame = series.to_pandas()
    frame["wall_time"] = started + pandas.to_timedelta(frame["time"], unit="s")
    frame["id"], frame["metric"], frame["epoch"] = run.id, name, math.nan if epochs is None else epochs
    return frame[_COLUMNS]
