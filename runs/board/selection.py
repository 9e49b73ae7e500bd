"""Reads the selected runs: the ids of all matching ones, a table, a report."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

from starlette.responses import Response

from sacristan.runs.board.answers import json_response
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.comparison.html_report import write_report
from sacristan.runs.errors import FilterError, StoreError
from sacristan.runs.query.texts import cell_text, is_number, short_text
from sacristan.runs.stores.run import Run

__all__ = ["ROUTES"]

# Runs that a selection holds, and those of one request.
_MAX_SELECTED, _MAX_ASKED = 20_000, 500
_MAX_CELL = 10_000
_USUAL = ("id", "uid", "name", "status", "start", "duration", "result", "tags")


def _ids(visit: Visit) -> Response:
    """Answer with the ids of all runs that match a view."""
    view = RunsView.of(visit.request.query_params)
    found = visit.store.find(view.tree, view.sort, _MAX_SELECTED, ["uid"])
    return json_response({"ids": [run.id for run in found], "most": _MAX_SELECTED})


def _chosen(visit: Visit) -> list[Run]:
    ids = visit.request.query_params.getlist("run")
    if not 0 < len(ids) <= _MAX_ASKED:
        raise FilterError(f"got {len(ids)} runs, expected 1 to {_MAX_ASKED}")
    return [run.listed() for run in visit.store.get_all(ids)]


def _table(visit: Visit) -> Response:
    """Answer with the fields of runs as CSV; a table in several parts has its head in the first one."""
    asked = visit.request.query_params.getlist("column")
    columns = tuple(dict.fromkeys(("id", *asked))) if asked else _USUAL
    runs = _chosen(visit)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not visit.asked("part"):
        writer.writerow(map(cell_text, columns))
    for run in runs:
        writer.writerow([_cell(run, name) for name in columns])
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8")


def _cell(run: Run, name: str) -> Any:
    try:
        value = run.id if name == "id" else " ".join(run.tags) if name == "tags" else run.get(name)
    except StoreError:  # damaged since it was found
        return ""
    return value if value is None or is_number(value) else cell_text(short_text(value, _MAX_CELL, exact=True))


def _report(visit: Visit) -> Response:
    """Answer with the report of runs as a file to save."""
    view = RunsView.of(visit.request.query_params)
    runs = _chosen(visit)
    with tempfile.TemporaryDirectory() as folder:
        path = write_report(
            runs, Path(folder) / "report.html", by=view.fields_by, x=view.x, smoothing=view.smoothing, log_y=view.log_y
        )
        data = path.read_bytes()
    headers = {"content-disposition": 'attachment; filename="report.html"'}
    return Response(data, media_type="text/html; charset=utf-8", headers=headers)


ROUTES = [page("/list/ids", _ids), page("/list/table", _table), page("/list/report", _report)]
