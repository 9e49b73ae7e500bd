"""Templates, and values as pages show them."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from runs.board.assets import SCRIPTS, plotly_url, static_url
from runs.board.charts import is_chart
from runs.board.roots import rooted
from runs.drawing.markup import harmless
from runs.query.names import TIMES, full_name
from runs.query.texts import duration_text, is_number, size_text, value_text
from runs.query.times import time_of

__all__ = ["content_url", "render", "run_url", "short_text"]

HERE = Path(__file__).parent
# Address and name of the pages that the head of each page leads to.
PAGES = (("/runs", "Runs"), ("/compare", "Compare"), ("/sweeps", "Sweeps"), ("/artifacts", "Artifacts"))
_STATUSES = frozenset(
    ["completed", "running", "queued", "failed", "unreadable", "dead", "interrupted", "timeout", "pruned"]
)
# Longer values are cut; the page of the run shows more of them.
_MAX_SHOWN = 200


def render(template: str, **values: Any) -> str:
    """Fill in a template; every value is escaped.

    Args:
        template: Name of the template.
        values: Its values; a missing one is an error.
    """
    return _environment().get_template(template).render(**values)


def run_url(id: str, tab: str = "", **more: Any) -> str:
    """Return the address of a run's page.

    Args:
        id: The run's id or uid.
        tab: The part of the page; the first one without.
        more: Further parameters, which the part reads.
    """
    pairs = {**({"tab": tab} if tab else {}), **more}
    return rooted(f"/runs/{quote(id)}") + (f"?{urlencode(pairs)}" if pairs else "")


def content_url(
    run: Any, kind: str, name: str | int, image: str = "", *, download: bool = False, version: str = ""
) -> str:
    """Return the address of a file of a run; see `runs.board.content_page`.

    Args:
        run: The run.
        kind: `artifact`, `checkpoint`, `source`, `resource` or `media`.
        name: Name of the file, or number of the medium.
        image: Name of an image in a table.
        download: Whether the browser should save the file instead of showing it.
        version: The version of the file, so that browsers do not take a cached older one.
    """
    pairs = [("run", run.id), ("kind", kind), ("name", str(name))]
    pairs += [("image", image)] * bool(image) + [("download", "1")] * download + [("version", version)] * bool(version)
    return rooted(f"/content?{urlencode(pairs)}")


def short_text(value: Any, most: int = _MAX_SHOWN, *, exact: bool = False) -> str:
    """Return a value as a short text.

    Args:
        value: Any value of a record.
        most: The maximum number of characters; a longer text is cut.
        exact: Whether to show all digits of a float.
    """
    try:
        text = value_text(value, exact=exact)
    except (RecursionError, ValueError):  # nested too deeply; an integer of more digits than Python writes
        text = f"({type(value).__name__}, too large to show)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shown(value: Any, most: int = _MAX_SHOWN, *, exact: bool = False) -> str:
    """Return a value as a short text of a page, without characters that reverse the order of the line."""
    return harmless(short_text(value, most, exact=exact))


def _time(value: Any) -> Markup | str:
    """Return a time of a record, in UTC; a script converts it to the local zone."""
    time = value if isinstance(value, datetime) else time_of(value)
    if time is None:
        return "" if value is None else short_text(value)
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
