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

from runs.board.answers import json_response, look_again_s
from runs.board.compare_page import chosen_runs
from runs.board.views import CompareView
from runs.board.visits import Visit, page
from runs.comparison.curves import smoothed
from runs.comparison.panels import make_panels
from runs.errors import PlotError
from runs.query.decimation import pixels
from runs.query.texts import cell_text, is_number
from runs.stores.run import Run

__all__ = ["ROUTES"]

# Points that one request reads, and rows of a piece of the answer.
_MAX_POINTS = 2_000_000
_PIECE = 10_000
_MIN_PIXELS, _USUAL_PIXELS, _MAX_PIXELS = 16, 500, 8_000
_X_COLUMNS = {"time": "time_s", "wall": "wall_time_s"}


# ---------------------------------------------------------------------- what a plot draws


def _series(visit: Visit) -> Response:
    """Answer with the points that draw a metric, smoothed or not, or the part of it between two steps or times."""
    started = time.perf_counter()
    run = visit.store.get(visit.asked("run"))
    series = run.metric(visit.asked("metric"))
    positions = series.times if visit.asked("axis") == "times" else series.steps
    order = np.argsort(positions, kind="stable") if np.any(np.diff(positions) < 0) else slice(None)
    num_pixels = visit.number("pixels", _USUAL_PIXELS, _MIN_PIXELS, _MAX_PIXELS)
    bounds = visit.bound("from"), visit.bound("to")
    values = series.values[order]
    chosen = pixels(positions[order], values, num_pixels, *bounds)
    weight = visit.bound("smoothing", "a number from 0 to below 1") or 0.0
    averages = smoothed(values, weight)
    if weight:  # averages are of all points; take those that draw either curve
        chosen = np.union1d(chosen, pixels(positions[order], averages, num_pixels, *bounds))
    return json_response(
        {
            "steps": series.steps[order][chosen].tolist(),
            "values": _plain(values[chosen]),
            "smoothed": _plain(averages[chosen]) if weight else None,
            "times": series.times[order][chosen].tolist(),
            "count": len(series),
            "living": run.is_living,
            "look_again_s": look_again_s(started),
        }
    )


def _plain(values: np.ndarray) -> list[float | None]:
    """Return numbers for JSON; one that is not finite is a gap in the curve."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


# ---------------------------------------------------------------------- all points as CSV


@dataclasses.dataclass(frozen=True)
class _Table:
    """Rows of a file: a label, and a number of each column; None for a column of empty cells."""

    label: str
    columns: Sequence[np.ndarray | None]


def _points(visit: Visit) -> Response:
    """Answer with the points of a metric of one run, between two steps or times, as they were logged."""
    run = visit.store.get(visit.asked("run"))
    name = visit.asked("metric")
    _check_number([run], name)
    series = run.metric(name)
    shown = _between(visit, series.times if visit.asked("axis") == "times" else series.steps)
    table = _Table(name, [series.steps[shown], series.times[shown], series.values[shown]])
    return _file(f"run_{run.id}_{name}", ["name", "step", "time_s", "value"], [table])


def _panel_points(visit: Visit) -> Response:
    """Answer with the points of all curves of a panel of the page that compares runs."""
    view = CompareView.of(visit.request.query_params)
    runs = chosen_runs(visit, view)
    if not view.metric:
        raise PlotError("got no metric to save")
    _check_number(runs, view.metric[0])
    [panel] = make_panels(runs, view.metric[:1], view.plot(_MAX_POINTS))
    optional = [
        (title, name)
        for title, name in (("low", "low"), ("high", "high"), ("as_logged", "raw"))
        if any(getattr(curve, name) is not None for curve in panel.curves)
    ]
    tables = []
    for curve in panel.curves:
        shown = _between(visit, curve.x)
        x = curve.x.astype(np.int64) if view.x == "step" else curve.x
        columns = [x, curve.y, *(getattr(curve, name) for _, name in optional)]
        tables.append(_Table(curve.label, [None if column is None else column[shown] for column in columns]))
    head = ["curve", _X_COLUMNS.get(view.x, view.x), "value", *(title for title, _ in optional)]
    return _file(panel.metric, head, tables)


def _check_number(runs: Sequence[Run], metric: str) -> None:
    """Reject a request for more points than one may read."""
    num = sum(_num_points(run, metric) for run in runs)
    if num > _MAX_POINTS:
        raise PlotError(
            f"got {num:,} points of {metric}, expected {_MAX_POINTS:,} at most in one file; "
            "choose fewer runs, or write: python -m runs metrics RUN NAME --csv"
        )


def _num_points(run: Run, metric: str) -> int:
    count = run.summary.get(metric, {}).get("count")
    if is_number(count) and isinstance(count, int):  # a foreign record may hold anything
        return count
    return len(run.metric(metric)) if metric in run.metrics else 0


def _between(visit: Visit, positions: np.ndarray) -> np.ndarray:
    low, high = visit.bound("from"), visit.bound("to")
    shown = np.ones(len(positions), bool)
    if low is not None:
        shown &= positions >= low
    if high is not None:
        shown &= positions <= high
    return shown


def _file(name: str, head: Sequence[str], tables: Sequence[_Table]) -> Response:
    file = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:100]
    headers = {"content-disposition": f'attachment; filename="{file}.csv"'}
    return StreamingResponse(_pieces(head, tables), media_type="text/csv; charset=utf-8", headers=headers)


def _pieces(head: Sequence[str], tables: Sequence[_Table]) -> Iterator[str]:
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


ROUTES = [page("/series", _series), page("/points", _points), page("/compare/points", _panel_points)]
