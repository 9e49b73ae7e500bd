"""Reports: pages of Markdown whose blocks show runs; written, looked at with their versions, and exported."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from sacristan.runs.board.access import Role
from sacristan.runs.board.charts import MAX_DRAWN, sections_of
from sacristan.runs.board.rendering import render, run_url
from sacristan.runs.board.views import Chart, RunsView, rooted
from sacristan.runs.board.visits import Visit, json_response, look_again_s, page, watched
from sacristan.runs.comparison.report_blocks import CHARTS, KINDS, Block, chosen_runs, run_table, value_of
from sacristan.runs.comparison.report_pages import as_html, as_markdown, html_table, plain_text, problem_html, rendered
from sacristan.runs.drawing import Markup, element
from sacristan.runs.errors import ChangedError, RunsError, StoreAwayError
from sacristan.runs.query import split_names
from sacristan.runs.stores import Report

# Greatest age of what other processes changed, so that a report of many blocks looks at the runs once.
_SHOWN_FOR_S = 2.0
_LOOK_S = 5.0
_HTML = {"content-type": "text/html; charset=utf-8"}


def _reports(visit: Visit) -> Response:
    return visit.render("reports.html", reports=visit.store.reports.visible(visit.board.visitor.name))


def _asked(visit: Visit) -> Report:
    number = visit.number("version", 0, 0, 10**9)
    return visit.store.reports.get(visit.request.path_params["id"], visit.board.visitor.name, number or None)


def _report(visit: Visit) -> Response:
    """Answer with a report, or with "not changed" to a page that follows it."""
    started = time.perf_counter()
    report = _asked(visit)
    now = visit.store.reports.get(report.id, visit.board.visitor.name)
    common = {"board": visit.board, "path": rooted("/reports"), "report": report, "now": now}
    body = render("report.html", **common, body=_shown(visit, report.text))
    return watched(visit.request, body, look_again_s(started, _LOOK_S))


def _shown(visit: Visit, text: str) -> Markup:
    """Return a text as HTML: tables and values as they are now, and figures whose curves the page fetches."""
    numbers = itertools.count()
    visit.store.max_age_s = _SHOWN_FOR_S
    try:
        return rendered(text, lambda block: _block(visit, block, next(numbers)))
    finally:
        visit.store.max_age_s = 0.0


def _table(visit: Visit, block: Block) -> Markup:
    return html_table(run_table(visit.store, block), lambda run: run_url(run.id))


def _value(visit: Visit, block: Block) -> Markup:
    run, name, value = value_of(visit.store, block)
    return element("a", plain_text(name, value), href=run_url(run.id), title=f"run {run.id}, {name}")


# Blocks that the server shows, each with its tag.
_TEXTS: dict[str, tuple[str, Callable[[Visit, Block], Markup]]] = {"runs": ("div", _table), "value": ("span", _value)}


def _block(visit: Visit, block: Block, number: int) -> Markup:
    if block.kind in _TEXTS:
        tag, make = _TEXTS[block.kind]
        try:
            text = make(visit, block)
        except StoreAwayError:
            raise
        except RunsError as error:  # its runs or metrics may come
            text = problem_html(block.source, error)
        return element(tag, text, data_live=f"block-{number}")
    if block.kind in CHARTS:
        Chart.of(block.title)  # says what is wrong
    runs = chosen_runs(visit.store, block, ("uid",))
    view = dataclasses.replace(
        RunsView(run=tuple(run.id for run in runs[:MAX_DRAWN])),
        group=",".join(split_names(block.text("group"))),
        over=",".join(split_names(block.text("over"))),
        x=block.text("x", "step"),
        smoothing=block.share("smoothing"),
        log_x=block.flag("log_x"),
        log_y=block.flag("log_y"),
        joined=block.flag("joined"),
        band=block.text("band", "interval"),
    )
    url = view.url("/workspace/panel")
    return element(
        "figure",
        element("figcaption", element("span", block.title, class_="title")),
        element("div", class_="plot"),
        element("p", class_="notes dim"),
        class_="panel",
        data_panel=block.title,
        data_url=url,
        data_chart="1" if block.kind in CHARTS else None,
        aria_label=block.title,
    )


# ---------------------------------------------------------------------- writing


def _new(visit: Visit) -> Response:
    return _editor(visit, Report("", _draft(visit)))


def _edit(visit: Visit) -> Response:
    report = _asked(visit)
    now = visit.store.reports.get(report.id, visit.board.visitor.name)
    return _editor(visit, dataclasses.replace(report, number=now.number))


def _editor(visit: Visit, report: Report) -> Response:
    examples = [(kind, known.example) for kind, known in KINDS.items()]
    return visit.render("report_edit.html", report=report, examples=examples)


def _draft(visit: Visit) -> str:
    """Return the first text of a report about the runs of a view, which the URL names; empty without one."""
    view = RunsView.of(visit.request.query_params)
    if not visit.request.query_params:
        return ""
    is_plain = (
        not view.run
        and not view.words
        and (len(view.where) < 2 or not any(re.search(r"\sor\s", text, re.IGNORECASE) for text in view.where))
    )
    runs = [run.listed() for run in visit.store.find(view.tree, view.sort, MAX_DRAWN)]
    visit.store.prefetch(runs, ["metrics"])
    chosen = f"where={_quoted(' and '.join(view.where))}" if view.where else ""
    if not is_plain:
        chosen = f"run={_quoted(', '.join(run.id for run in runs))}"
    elif view.sort != RunsView().sort:
        chosen += f" sort={_quoted(view.sort)}"
    columns = f" columns={_quoted(', '.join(view.column))}" if view.column else ""
    group = f" group={_quoted(view.group)}" if view.group else ""
    metrics = [name for _, names in sections_of(runs, ()) for name in names]
    panels = view.panel or tuple(metrics[:1])
    blocks = [f"{{{{runs {chosen}{columns}}}}}", *(_panel_block(panel, f"{chosen}{group}") for panel in panels)]
    return "\n\n".join(re.sub(r" +(?=\}\}$)", "", re.sub(r"  +", " ", block)) for block in blocks) + "\n"


def _panel_block(panel: str, options: str) -> str:
    drawn = Chart.of(panel)
    if drawn is not None:
        return f"{{{{{drawn.kind} {' '.join(map(_quoted, drawn.fields))} {options}}}}}"
    return f"{{{{curves {' '.join(map(_quoted, split_names(panel)))} {options}}}}}"


def _quoted(text: str) -> str:
    if re.fullmatch(r"[\w./-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _preview(visit: Visit) -> Response:
    return Response(_shown(visit, visit.given("text").replace("\r\n", "\n")), headers=_HTML)


def _save(visit: Visit) -> Response:
    """Save a report if its version still is the one that the writer saw; else answer with the present one."""
    visitor, id, seen = visit.board.visitor, visit.given("id"), _number(visit, "version")
    # Others' private reports are not there, and shared ones stay shared.
    is_shared = bool(id) and visit.store.reports.get(id, visitor.name).owner == ""
    owner = "" if is_shared or visit.given("shared") else visitor.name
    report = Report(visit.given("title"), visit.given("text"), owner, visitor.author.name, id)
    return _saving(visit, report, seen, "saved")


def _restore(visit: Visit) -> Response:
    """Save the text of an old version as the newest one."""
    visitor, id = visit.board.visitor, visit.given("id")
    now = visit.store.reports.get(id, visitor.name)
    old = visit.store.reports.get(id, visitor.name, _number(visit, "number"))
    report = dataclasses.replace(old, owner=now.owner, author=visitor.author.name)
    return _saving(visit, report, _number(visit, "version"), f"version {old.number} is back")


def _number(visit: Visit, name: str) -> int:
    text = visit.given(name)[:10]
    return int(text) if text.isascii() and text.isdecimal() else 0


def _saving(visit: Visit, report: Report, seen: int, done: str) -> Response:
    try:
        saved = visit.store.reports.save(report, seen)
    except ChangedError as error:
        visible = visit.store.reports.visible(visit.board.visitor.name)
        now = next((each for each in visible if each.id == report.id), None)
        theirs: dict[str, Any] = {} if now is None else {"text": now.text, "title": now.title, "version": now.number}
        return json_response({"error": str(error), **theirs}, 409)
    return json_response({"done": done, "url": rooted(f"/reports/{saved.id}"), "version": saved.number})


def _remove(visit: Visit) -> Response:
    report = visit.store.reports.get(visit.given("id"), visit.board.visitor.name)
    seen = _number(visit, "version")
    visit.store.reports.remove(dataclasses.replace(report, number=seen))
    return json_response({"done": f"report {report.title} removed", "url": rooted("/reports")})


def _versions(visit: Visit) -> Response:
    versions = visit.store.reports.versions(visit.request.path_params["id"], visit.board.visitor.name)
    return visit.render("report_versions.html", versions=versions, now=versions[0])


_FILES: dict[str, tuple[Callable[..., str], str]] = {
    "html": (as_html, "text/html; charset=utf-8"),
    "md": (as_markdown, "text/markdown; charset=utf-8"),
}


def _file(visit: Visit) -> Response:
    report = _asked(visit)
    kind = visit.asked("format") if visit.asked("format") in _FILES else "html"
    make, media_type = _FILES[kind]
    name = re.sub(r"[^\w.-]+", "_", report.title, flags=re.ASCII)[:80].strip("._") or "report"
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(make(visit.store, report), media_type=media_type, headers=headers)


ROUTES = [
    page("/reports", _reports),
    page("/reports/new", _new, role=Role.NOTE),
    page("/reports/preview", _preview, "POST", Role.NOTE),
    page("/reports/save", _save, "POST", Role.NOTE),
    page("/reports/restore", _restore, "POST", Role.NOTE),
    page("/reports/remove", _remove, "POST", Role.NOTE),
    page("/reports/{id}", _report),
    page("/reports/{id}/edit", _edit, role=Role.NOTE),
    page("/reports/{id}/versions", _versions),
    page("/reports/{id}/file", _file),
]
