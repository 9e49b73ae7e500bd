"""Points of curves: as many as a plot has pixels, or all of them as a CSV file."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import time
from collections.abc import Iterator, Sequence

import numpy as np
from starlette.responses import Response, StreamingResponse

from sacristan.observers.record.points.points import Series
from sacristan.runs.board.answers import json_response, look_again_s
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.comparison.curves import Ancestry, joined_series, smoothed
from sacristan.runs.errors import PlotError
from sacristan.runs.query.decimation import pixels
from sacristan.runs.query.texts import cell_text, is_number
from sacristan.runs.stores.run import Run

__all__ = ["MAX_POINTS", "ROUTES", "Table", "between", "check_number", "csv_response"]

# Points that one request reads, and rows of a piece of the answer.
MAX_POINTS = 2_000_000
_PIECE = 10_000
_MIN_PIXELS, _USUAL_PIXELS, _MAX_PIXELS = 16, 500, 8_000


# ---------------------------------------------------------------------- what a plot draws


def _series(visit: Visit) -> Response:
    """Answer with the points that draw a metric, smoothed or not, or the part of it between two steps or times."""
    started = time.perf_counter()
    run = visit.store.get(visit.asked("run"))
    series, num_before = _asked_series(visit, run)
    positions = series.times if visit.asked("axis") == "times" else series.steps
    order = np.argsort(positions, kind="stable")
    order = order[np.isfinite(positions[order])]  # a run of stock Sacred may lack times
    num_pixels = visit.number("pixels", _USUAL_PIXELS, _MIN_PIXELS, _MAX_PIXELS)
    bounds, log_y = (visit.bound("from"), visit.bound("to")), bool(visit.asked("log"))
    values = series.values[order]
    chosen = pixels(positions[order], values, num_pixels, *bounds, log_y=log_y)
    weight = visit.bound("smoothing", "a number from 0 to below 1") or 0.0
    averages = smoothed(values, weight)
    if weight:  # averages are of all points; take those that draw either curve
        chosen = np.union1d(chosen, pixels(positions[order], averages, num_pixels, *bounds, log_y=log_y))
    return json_response(
        {
            "steps": series.steps[order][chosen].tolist(),
            "values": _with_gaps(values[chosen]),
            "smoothed": _with_gaps(averages[chosen]) if weight else None,
            "times": series.times[order][chosen].tolist(),
            "inherited": int(np.searchsorted(positions[order][chosen], np.nanmin(positions[num_before:])))
            if 0 < num_before < len(series)
            else 0,
            "count": len(series),
            "living": run.is_living,
            "look_again_s": look_again_s(started),
        }
    )


def _asked_series(visit: Visit, run: Run) -> tuple[Series, int]:
    """Return the points of the metric, after those of the runs it was started from, and the number of the latter."""
    name = visit.asked("metric")
    own = run.metric(name)
    if not visit.asked("joined"):
        return own, 0
    pieces = Ancestry([run]).pieces(run, own, lambda parent: parent.metric(name) if name in parent.metrics else None)
    return joined_series(pieces), sum(len(series) for _, series in pieces[:-1])


def _with_gaps(values: np.ndarray) -> list[float | None]:
    """Return numbers for JSON; non-finite ones become gaps in the curve."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


# ---------------------------------------------------------------------- all points as CSV


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of a CSV file.

    Attributes:
        columns: (n,) numbers for each further column; None for empty cells.
    """

    label: str
    columns: Sequence[np.ndarray | None]


def _points(visit: Visit) -> Response:
    """Answer with the points of a metric of one run, between two steps or times, as they were logged."""
    run = visit.store.get(visit.asked("run"))
    name = visit.asked("metric")
    check_number([run], name, joined=bool(visit.asked("joined")))
    series, _ = _asked_series(visit, run)
    shown = between(visit, series.times if visit.asked("axis") == "times" else series.steps)
    table = Table(name, [series.steps[shown], series.times[shown], series.values[shown]])
    return csv_response(f"run_{run.id}_{name}", ["name", "step", "time_s", "value"], [table])


def check_number(runs: Sequence[Run], metric: str, *, joined: bool = False) -> None:
    """Reject a request for more than `MAX_POINTS` points; `joined` counts the runs' ancestors, too."""
    ancestry = Ancestry(runs if joined else ())
    read = [*runs, *(parent for run in runs for parent, _ in ancestry.of(run))]
    num = sum(_num_points(run, metric) for run in read)
    if num > MAX_POINTS:
        raise PlotError(
            f"got {num:,} points of {metric}, expected {MAX_POINTS:,} at most in one file; "
            "choose fewer runs, or write: sacristan metrics RUN NAME --csv"
        )


def _num_points(run: Run, metric: str) -> int:
    count = run.summary.get(metric, {}).get("count")
    if is_number(count) and isinstance(count, int):  # a foreign record may hold anything
        return count
    return len(run.metric(metric)) if metric in run.metrics else 0


def between(visit: Visit, positions: np.ndarray) -> np.ndarray:
    """Tell which of the (n,) positions, in steps or seconds, are in the range that the URL asks for."""
    low, high = visit.bound("from"), visit.bound("to")
    shown = np.ones(len(positions), bool)
    if low is not None:
        shown &= positions >= low
    if high is not None:
        shown &= positions <= high
    return shown


def csv_response(name: str, head: Sequence[str], tables: Sequence[Table]) -> Response:
    """Return tables as one CSV file; the first column is that of the labels, `name` has no suffix."""
    file = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:100]
    headers = {"content-disposition": f'attachment; filename="{file}.csv"'}
    return StreamingResponse(_pieces(head, tables), media_type="text/csv; charset=utf-8", headers=headers)


def _pieces(head: Sequence[str], tables: Sequence[Table]) -> Iterator[str]:
    yield _text([head])
    for table in tables:
        num = max((len(column) for column in table.columns if column is not None), default=0)
        for start in range(0, num, _PIECE):
            size = min(_PIECE, num - start)
            parts = [
                [""] * size if column is None else column[start : start + size].tolist() for column in table.columns
            ]
            yield _text([(table.label, *row) for row in zip(*parts, strict=True)])


def _text(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((cell_text(str(first)), *rest) for first, *rest in rows)
    return text.getvalue()


ROUTES = [page("/series", _series), page("/points", _points)]
