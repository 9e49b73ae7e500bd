"""The trash: runs that were deleted, by whom and when, and restoring them."""

from __future__ import annotations

from starlette.responses import Response

from sacristan.runs.board.access import Role
from sacristan.runs.board.rendering import run_url
from sacristan.runs.board.visits import Visit, json_response, page
from sacristan.runs.errors import FilterError
from sacristan.runs.query.texts import count_text

__all__ = ["ROUTES"]

# Runs that the page shows, and those of one request.
_MAX_SHOWN, _MAX_RESTORED = 2_000, 1_000


def _trash(visit: Visit) -> Response:
    listed = visit.store.trash()
    return visit.render("trash.html", listed=listed[:_MAX_SHOWN], num=len(listed))


def _restore(visit: Visit) -> Response:
    """Restore runs by the keys of `Discarded`, and answer with the page of the last one."""
    keys = visit.form.get("run", [])
    if not 0 < len(keys) <= _MAX_RESTORED:
        raise FilterError(f"got {len(keys)} runs, expected 1 to {_MAX_RESTORED}")
    restored = [visit.store.restore(key) for key in keys]
    what = f"run {restored[0].id} is" if len(keys) == 1 else f"{count_text(len(keys), 'run')} are"
    return json_response({"done": f"{what} back", "url": run_url(restored[-1].id)})


ROUTES = [page("/trash", _trash, role=Role.WRITE), page("/trash/restore", _restore, "POST")]
