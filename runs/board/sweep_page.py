"""The pages of sweeps: the list of all, and the state of one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response

from sacristan.runs.board.charts import plain_value
from sacristan.runs.board.run_page import best_checkpoint, checkpoint_commands
from sacristan.runs.board.visits import Visit, json_response, look_again_s, page
from sacristan.runs.drawing.curve import pixels
from sacristan.runs.errors import RunsError, StoreAwayError, StoreError
from sacristan.runs.query import list_of
from sacristan.runs.query.filters import condition
from sacristan.runs.stores import Run
from sacristan.runs.stores.settings import show
from sacristan.runs.sweeps.study import Point
from sacristan.runs.sweeps.views import SeenSweep, importances_of, read_definitions, status_lines

# Trials that a page shows, the reports of one that are drawn, and sweeps in the list.
_MAX_TRIALS, _MAX_REPORTS, _MAX_SWEEPS = 3_000, 300, 500
_MAX_PARAMETERS, _MAX_BEST = 40, 5


def _sweeps(visit: Visit) -> Response:
    sweeps, problems = read_definitions(visit.store)
    return visit.render("sweeps.html", sweeps=sweeps[:_MAX_SWEEPS], problems=problems)


def _sweep(visit: Visit) -> Response:
    id = visit.request.path_params["id"]
    try:
        seen = visit.board.sweeps.read(visit.store, id)
    except RunsError as error:
        visit.store.latest()  # raises if the store is away, where sweeps say that there is no such sweep
        return visit.render("sweep.html", 409, id=id, problem=str(error))
    names = [objective.name for objective in seen.spec.objectives]
    lines = list(status_lines(seen.status, tuple(names)))
    ids = _ids(visit, seen)
    rows = [_row(seen, point, ids) for point in _points(seen)]
    values: dict[str, Any] = {"names": names, "lines": lines, "rows": rows, "parameters": _parameters(seen)}
    values |= {"best": {point.number for point in seen.status.best}, "winners": _winners(visit, seen)}
    return visit.render("sweep.html", id=id, problem="", seen=seen, num=len(seen.status.points), **values)


@dataclasses.dataclass(frozen=True)
class _Winner:
    """A best trial, its last run in the store, that run's best checkpoint, and commands as next steps."""

    point: Point
    run: Run | None
    checkpoint: str
    commands: list[tuple[str, str]]


def _winners(visit: Visit, seen: SeenSweep) -> list[_Winner]:
    """Return the best trials: one, or all that no other trial dominates."""
    winners = []
    for point in seen.status.best[:_MAX_BEST]:
        steps = [("run it again", seen.definition.command_line(point.parameters))]
        run, name = None, ""
        try:
            runs = visit.store.find({"uid": {"$in": _uids(point)}}, "-start_time", 1)
            if runs:
                run, name = runs[0], best_checkpoint(runs[0]) or ""
                steps += checkpoint_commands(run)
        except StoreAwayError:
            raise
        except StoreError:  # a damaged run hides neither the trial nor the others
            pass
        winners.append(_Winner(point, run, name, steps))
    return winners


def _points(seen: SeenSweep) -> list[Point]:
    return list(seen.status.points.values())[-_MAX_TRIALS:]


def _parameters(seen: SeenSweep) -> list[str]:
    values: dict[str, set[str]] = {}
    for point in _points(seen):
        for name, value in point.parameters.items():
            values.setdefault(name, set()).add(show(value))
    return [name for name, texts in values.items() if len(texts) > 1][:_MAX_PARAMETERS] or list(values)[
        :_MAX_PARAMETERS
    ]


def _ids(visit: Visit, seen: SeenSweep) -> dict[str, str]:
    """Return the ids of the trials' runs that the store has, by uid."""
    uids = [uid for point in _points(seen) for uid in _uids(point)]
    runs = visit.store.find(condition("uid", "in", uids), sort=None, columns=["uid"]) if uids else []
    return {run.uid: run.id for run in runs if run.uid}


def _row(seen: SeenSweep, point: Point, ids: Mapping[str, str]) -> dict[str, Any]:
    return {
        "point": point,
        "state": _state(seen, point),
        "runs": [(uid, ids.get(uid, "")) for uid in _uids(point)],
        "reason": str(point.notes.get("reason") or ""),
    }


def _uids(point: Point) -> list[str]:
    return [str(uid) for uid in list_of(point.notes.get("runs"))]


def _state(seen: SeenSweep, point: Point) -> str:
    names = {"COMPLETE": "COMPLETED", "FAIL": "FAILED"}
    if point.number in seen.status.abandoned:
        return "INTERRUPTED"
    return names.get(point.state, point.state)


def _data(visit: Visit) -> Response:
    started = time.perf_counter()
    seen = visit.board.sweeps.read(visit.store, visit.asked("id"))
    objectives = [{"name": one.name, "goal": one.goal} for one in seen.spec.objectives]
    ids = _ids(visit, seen)
    return json_response(
        {
            "objectives": objectives,
            "parameters": _parameters(seen),
            "trials": [_document(seen, point, ids) for point in _points(seen)],
            "living": bool(seen.status.num_agents),
            "line": next(status_lines(seen.status, tuple(one["name"] for one in objectives))),
            "look_again_s": max(5.0, look_again_s(started)),
        }
    )


def _document(seen: SeenSweep, point: Point, ids: Mapping[str, str]) -> dict[str, Any]:
    return {
        "number": point.number,
        "state": _state(seen, point),
        "runs": [ids[uid] for uid in _uids(point) if uid in ids],
        "values": [plain_value(value) for value in point.values],
        "parameters": {name: plain_value(value) for name, value in point.parameters.items()},
        "reports": [[step, plain_value(value)] for step, value in _thinned(point.reports)],
        "feasible": point.is_feasible,
    }


def _thinned(reports: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return the reports that are enough to draw the same curve."""
    points = sorted(reports.items())
    values = np.array([value for _, value in points], float)
    # Each column has three points at most: its extremes, and a gap.
    return [points[position] for position in pixels(np.arange(len(points)), values, _MAX_REPORTS // 3)]


def _importances(visit: Visit) -> Response:
    return json_response({"importances": list(importances_of(visit.store, visit.asked("id")))})


ROUTES = [
    page("/sweeps", _sweeps),
    page("/sweeps/{id}", _sweep),
    page("/sweep/data", _data),
    page("/sweep/importances", _importances),
]
