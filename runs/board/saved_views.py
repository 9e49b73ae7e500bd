"""Named views of the workspace: list, save and remove them; one of them opens first."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import QueryParams
from starlette.responses import RedirectResponse, Response

from sacristan.runs.board.answers import json_response
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visitors import Role
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.errors import FilterError
from sacristan.runs.stores.saved_views import SavedView

__all__ = ["ROUTES"]

# What the names of these ranges begin with in a query; see `static/brushes.js`.
_BRUSH = "brush."


def _first_page(visit: Visit) -> Response:
    """Redirect to the default view, or to all runs."""
    view = visit.store.views.default(visit.board.visitor.name)
    return RedirectResponse(_url(view.query) if view else RunsView().url())


def _url(query: str) -> str:
    """Return the URL of a query that anyone may have written into the store."""
    params = QueryParams(query[:20_000])
    url, brushes = RunsView.of(params).url(page=1), urlencode(_brushes(params.multi_items()))
    return f"{url}{'&' if '?' in url else '?'}{brushes}" if brushes else url


def _brushes(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the ranges of parallel coordinates, which only the browser reads."""
    return [pair for pair in pairs if pair[0].startswith(_BRUSH)]


def _views(visit: Visit) -> Response:
    """Answer with the views that this board shows."""
    found = visit.store.views.visible(visit.board.visitor.name)
    default = visit.store.views.default(visit.board.visitor.name)
    return json_response(
        {
            "views": [
                {
                    "name": view.name,
                    "url": _url(view.query),
                    "shared": not view.owner,
                    "default": view == default,
                    "version": view.version,
                }
                for view in found
            ]
        }
    )


def _save(visit: Visit) -> Response:
    """Save the view in the form."""
    pairs = parse_qsl(visit.given("query").removeprefix("?"))
    query = urlencode([*RunsView.of(QueryParams(pairs)).pairs("page"), *_brushes(pairs)])
    owner = "" if visit.given("shared") else visit.board.visitor.name
    since = datetime.now(UTC).isoformat() if visit.given("default") else ""
    view = SavedView(visit.given("name").strip(), query, owner, since)
    visit.store.views.save(view, visit.given("version"))
    return json_response({"done": f"view {view.name} saved"})


def _remove(visit: Visit) -> Response:
    """Remove a view if it still is the version that the visitor saw."""
    for view in visit.store.views.visible(visit.board.visitor.name):
        if view.version == visit.given("version"):
            visit.store.views.remove(view)
            return json_response({"done": f"view {view.name} removed"})
    raise FilterError("this view is gone; reload the list")


ROUTES = [
    page("/", _first_page),
    page("/list/views", _views),
    page("/list/view", _save, "POST", Role.NOTE),
    page("/list/view/remove", _remove, "POST", Role.NOTE),
]
