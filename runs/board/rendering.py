"""Templates, and values as pages show them."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from sacristan.runs.board.assets import SCRIPTS, plotly_url, static_url
from sacristan.runs.board.charts import is_chart
from sacristan.runs.board.roots import rooted
from sacristan.runs.drawing.markup import harmless
from sacristan.runs.query.names import TIMES, full_name
from sacristan.runs.query.texts import duration_text, is_number, short_text, size_text
from sacristan.runs.query.times import time_of

__all__ = ["content_url", "render", "run_url"]

HERE = Path(__file__).parent
# Address and name of the pages that the head of each page leads to.
PAGES = (("/runs", "Runs"), ("/compare", "Compare"), ("/sweeps", "Sweeps"), ("/artifacts", "Artifacts"))
_STATUSES = frozenset(
    ["completed", "running", "queued", "failed", "unreadable", "dead", "interrupted", "timeout", "pruned"]
)
# Longer values are cut; the page of the run shows more of them.
_MAX_SHOWN = 200


def render(template: str, **values: Any) -> str:
    """Fill in a template, escaping every value; a missing value is an error."""
    return _environment().get_template(template).render(**values)


def run_url(id: str, tab: str = "", **more: Any) -> str:
    """Return the URL of a run's page; without `tab`, of its first tab."""
    pairs = {**({"tab": tab} if tab else {}), **more}
    return rooted(f"/runs/{quote(id)}") + (f"?{urlencode(pairs)}" if pairs else "")


def content_url(
    run: Any, kind: str, name: str | int, image: str = "", *, download: bool = False, version: str = ""
) -> str:
    """Return the URL of a file of a run; see `sacristan.runs.board.content_page`.

    `kind` is `artifact`, `checkpoint`, `source`, `resource` or `media`. `name` is that of the file, or the number of
    the medium; `image` that of an image in a table. `version` keeps browsers from using an outdated cached copy.
    """
    pairs = [("run", run.id), ("kind", kind), ("name", str(name))]
    pairs += [("image", image)] * bool(image) + [("download", "1")] * download + [("version", version)] * bool(version)
    return rooted(f"/content?{urlencode(pairs)}")


def _shown(value: Any, most: int = _MAX_SHOWN, *, exact: bool = False) -> str:
    """Return a value as a short text for a page, without characters that reverse the order of the line."""
    return harmless(short_text(value, most, exact=exact))


def _time(value: Any) -> Markup | str:
    """Return a recorded time in UTC; a script converts it to the local zone."""
    time = value if isinstance(value, datetime) else time_of(value)
    if time is None:
        return "" if value is None else short_text(value, _MAX_SHOWN)
    iso = time.replace(tzinfo=UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(iso, f"{time:%Y-%m-%d %H:%M} UTC")


def _duration(value: Any) -> str:
    return duration_text(value) if is_number(value) and value == value else ""


def _status_class(status: Any) -> str:
    """Return the class of the style sheet for a status, which may be any text."""
    name = str(status or "").lower()
    return name if name in _STATUSES else "other"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": _duration,
        "short": _shown,
        "size": size_text,
        "time": _time,
    }
    environment.filters["status_class"] = _status_class
    environment.tests |= {"chart": is_chart, "numeric": is_number, "time_field": lambda name: full_name(name) in TIMES}
    environment.globals |= {"content_url": content_url, "pages": PAGES, "plotly_url": plotly_url}
    environment.globals |= {"rooted": rooted, "run_url": run_url, "scripts_name": SCRIPTS, "static_url": static_url}
    return environment
