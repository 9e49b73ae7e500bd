"""Runs as HTML for notebooks: self-contained, without script or style sheet, everything escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from sacristan.observers.record.points.points import Series
from sacristan.runs.drawing.curve import curve_of, panelled
from sacristan.runs.drawing.markup import Markup, element, table
from sacristan.runs.drawing.svg import chart, sparkline
from sacristan.runs.errors import RunsError
from sacristan.runs.query.flattening import dotted
from sacristan.runs.query.texts import MISSING, count_text, duration_text, short_text, time_text

__all__ = ["run_form", "runs_form", "status_form"]

_COLORS = {"COMPLETED": "#1a7f37", "RUNNING": "#0969da", "QUEUED": "#0969da", "FAILED": "#cf222e", "PRUNED": "#8250df"}
_OTHER_COLOR = "#9a6700"
_MOST_PANELS, _MOST_ROWS, _MOST_ENTRIES, _MOST_SETTINGS = 8, 20, 60, 5
_MOST_CHARACTERS = 80
# The metrics to show first, where runs have them.
_FIRST = ("val/loss", "train/loss", "loss")


class Shown(Protocol):
    """The part of `sacristan.runs.stores.run.Run` that is shown."""

    id: str
    problem: str | None

    @property
    def name(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def metrics(self) -> list[str]: ...
    @property
    def summary(self) -> dict[str, dict[str, Any]]: ...
    @property
    def config(self) -> Any: ...
    @property
    def tags(self) -> list[str]: ...
    @property
    def note(self) -> str: ...

    def metric(self, name: str) -> Series: ...
    def get(self, name: str) -> Any: ...


def status_form(status: str) -> Markup:
    """Return a run's status with a dot in its colour; an empty one shows as `unknown`."""
    dot = element("span", "●", style=f"color:{_COLORS.get(status, _OTHER_COLOR)}", aria_hidden="true")
    return element("span", dot, f" {status or 'unknown'}", style="white-space:nowrap")


def run_form(run: Shown) -> str:
    """Show a run: its facts, its curves, its config, and the summary of its metrics; see `Run._repr_html_`.

    If the run cannot be read, the result says why.
    """
    try:
        parts = [*_run_parts(run)]
    except RunsError as error:
        parts = [element("p", f"run {run.id} cannot be shown: {error}")]
    return element("div", *parts, style="font-family:system-ui,sans-serif")


def _run_parts(run: Shown) -> Iterator[Markup]:
    yield element("h3", f"run {run.id}  {run.name}  {run.command}".rstrip())
    facts = [
        ("display name", run.get("display_name") or ""),
        ("status", status_form(run.status)),
        ("start", time_text(run.get("start_time"), exact=True)),
        ("duration", duration_text(run.get("duration"))),
        ("result", _short(run.get("result"), exact=True)),
        ("uid", run.get("uid") or ""),
        ("tags", ", ".join(run.tags)),
        ("note", run.note),
    ]
    yield table((), [fact for fact in facts if fact[1] not in ("", MISSING)])
    yield from _curves(run)
    config = [(name, _short(value, exact=True)) for name, value in dotted(run.config).items()]
    if config:
        yield _folded(f"config, {len(config)} {'entry' if len(config) == 1 else 'entries'}", ("entry", "value"), config)
    statistics = ("last", "min", "max", "count")
    rows = [(name, *(_short(summary.get(key)) for key in statistics)) for name, summary in run.summary.items()]
    if rows:
        yield _folded(count_text(len(rows), "metric"), ("metric", *statistics), rows, (1, 2, 3, 4))


def _folded(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[int] = ()) -> Markup:
    more = [element("p", f"and {len(rows) - _MOST_ENTRIES} more")] if len(rows) > _MOST_ENTRIES else []
    return element("details", element("summary", title), table(head, rows[:_MOST_ENTRIES], numbers), *more)


def _curves(run: Shown) -> Iterator[Markup]:
    """Yield a plot for each metric except the machine's; the losses of training and validation share one."""
    own = [name for name in run.metrics if not name.startswith("system/")]
    panels = panelled(sorted(own, key=lambda name: ("loss" not in name, not name.startswith("val/"), name)))
    for title, names in list(panels.items())[:_MOST_PANELS]:
        parts = [name.removesuffix(f"/{title}") if len(names) > 1 else "" for name in names]
        curves = [curve_of(run.metric(name), part) for name, part in zip(names, parts, strict=True)]
        yield chart(title, curves, width=400, height=200)
    if len(panels) > _MOST_PANELS:
        rest = ", ".join(list(panels)[_MOST_PANELS : _MOST_PANELS + 20])
        yield element("p", f"{len(panels) - _MOST_PANELS} more metrics: {rest}")


def runs_form(runs: Sequence[Shown], settings: Sequence[str], title: str = "") -> str:
    """Show runs as a table with inline curves; only the first runs and settings are shown."""
    shown, settings = runs[:_MOST_ROWS], settings[:_MOST_SETTINGS]
    metrics_of, problems = _metrics_of(shown)
    metrics = _leading({name for names in metrics_of.values() for name in names})
    head = ("id", "name", "status", "start", "duration", "result", *settings, *metrics)
    rows = [_row(run, settings, [n if n in metrics_of.get(run.id, ()) else None for n in metrics]) for run in shown]
    more = [element("p", f"and {len(runs) - _MOST_ROWS} more")] if len(runs) > _MOST_ROWS else []
    caption = element("p", title or count_text(len(runs), "run"))
    texts = {name for name in settings if any(isinstance(run.get(name), str) for run in shown)}
    numbers = (4, 5, *(column for column, name in enumerate(settings, 6) if name not in texts))
    style = "overflow-x:auto;font-family:system-ui,sans-serif"
    return element("div", caption, table(head, rows, numbers), *more, *problems, style=style)


def _metrics_of(runs: Sequence[Shown]) -> tuple[dict[str, list[str]], list[Markup]]:
    """Return the metrics of each run by its id, and the problems of runs that cannot be read."""
    metrics_of: dict[str, list[str]] = {}
    problems = []
    for run in runs:
        try:
            metrics_of[run.id] = run.metrics
        except RunsError as error:
            problems.append(element("p", f"run {run.id}: {error}"))
        else:
            if run.problem:
                problems.append(element("p", f"run {run.id} cannot be read completely: {run.problem}"))
    return metrics_of, problems


def _row(run: Shown, settings: Sequence[str], metrics: Sequence[str | None]) -> list[object]:
    start = element("span", time_text(run.get("start_time")), style="white-space:nowrap")
    row: list[object] = [run.id, run.name, status_form(run.status), start]
    row += [duration_text(run.get("duration")), _short(run.get("result"))]
    row += [_short(run.get(name)) for name in settings]
    return [*row, *(Markup("") if name is None else _sparkline(run, name) for name in metrics)]


def _sparkline(run: Shown, name: str) -> Markup:
    try:
        return sparkline(curve_of(run.metric(name), name))
    except RunsError:
        return Markup("")


def _leading(metrics: set[str]) -> list[str]:
    own = sorted(name for name in metrics if not name.startswith("system/"))
    order = {name: rank for rank, name in enumerate(_FIRST)}
    validations = [name for name in own if name.startswith("val/") and name not in order]
    return [*sorted(order.keys() & set(own), key=order.__getitem__), *validations, *own][:2] if own else []


def _short(value: Any, *, exact: bool = False) -> str:
    return short_text(dict(value) if isinstance(value, Mapping) else value, _MOST_CHARACTERS, exact=exact)
