"""The pages of a store."""

from __future__ import annotations

from sacristan.runs.board import (
    artifacts_page,
    changes,
    compare_page,
    content_page,
    media_page,
    panels_page,
    points_page,
    run_page,
    runs_page,
    saved_views,
    selection,
    sweep_page,
)

__all__ = ["ROUTES"]

_PAGES = (
    runs_page,
    saved_views,
    selection,
    changes,
    panels_page,
    run_page,
    compare_page,
    sweep_page,
    artifacts_page,
    points_page,
    media_page,
    content_page,
)
ROUTES = [route for module in _PAGES for route in module.ROUTES]
