"""The page of all runs: found, sorted and paged by the store."""

from __future__ import annotations

from starlette.responses import Response

from runs.board.runs_view import RunsView
from runs.board.visits import Visit, page
from runs.query.names import full_name, short_name
from runs.stores.run import Run

__all__ = ["ROUTES"]

_COLUMNS = ("name", "command", "status", "start", "duration", "result", "tags")


def _runs(visit: Visit) -> Response:
    view = RunsView.of(visit.request.query_params)
    columns = [short_name(full_name(name)) for name in view.columns or _COLUMNS]
    runs = visit.store.find(list(view.where), view.sort, view.size, [*columns, "status", "uid", "tags"])
    rows = [{"run": run, "cells": [_cell(run, name) for name in columns]} for run in runs]
    return visit.render("runs.html", view=view, columns=columns, rows=rows)


def _cell(run: Run, name: str) -> object:
    return run.tags if name == "tags" else run[name]


ROUTES = [page("/runs", _runs)]
