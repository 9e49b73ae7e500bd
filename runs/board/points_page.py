"""All points of a plot as a CSV file; the plot itself has as many as it has pixels."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterator, Sequence

import numpy as np
from starlette.responses import Response, StreamingResponse

from runs.board.compare_page import chosen_runs
from runs.board.compare_view import CompareView
from runs.board.visits import Visit, page
from runs.comparison.panels import make_panels
from runs.errors import PlotError
from runs.query.texts import cell_text, is_number
from runs.stores.run import Run

__all__ = ["ROUTES"]

# Points that one request reads, and rows of a piece of the answer.
_MAX_POINTS = 2_000_000
_PIECE = 10_000
_X_COLUMNS = {"time": "time_s", "wall": "wall_time_s"}


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
    """Refuse to read more points than one request may."""
    num = sum(_num_points(run, metric) for run in runs)
    if num > _MAX_POINTS:
        raise PlotError(
            f"got {num:,} points of {metric}, expected {_MAX_POINTS:,} at most in one file; "
            "choose fewer runs, or write: python -m runs metrics RUN NAME --csv"
        )


def _num_points(run: Run, metric: str) -> int:
    count = run.summary.get(metric, {}).get("count")
    if is_number(count) and isinstance(count, int):  # else a foreign record says something odd
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


ROUTES = [page("/points", _points), page("/compare/points", _panel_points)]
