"""The page that compares runs: configs, sources, media and statistics side by side."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.responses import RedirectResponse, Response

from sacristan.runs.board.views import TABS, CompareView, RunsView
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.comparison.comparing import compare
from sacristan.runs.comparison.reports import PAIR_HEAD, group_head, group_rows, notes, pair_rows
from sacristan.runs.errors import FilterError, RunsError, StoreAwayError, StoreError
from sacristan.runs.query import mapping_of
from sacristan.runs.query.texts import is_number
from sacristan.runs.stores import Content, Run
from sacristan.runs.stores.settings import differing, fingerprint, flat_config, run_labels, show

# Bytes of a source that are read, lines that are compared (the time grows with their square), and lines around changes.
_MAX_BYTES, _MAX_LINES, _CONTEXT = 2**19, 3_000, 4
_MAX_SOURCES = 1_000
# Runs that one page compares, and columns of its tables.
_MAX_RUNS, _MAX_COLUMNS = 500, 40
_MAX_ENTRIES, _MAX_SERIES, _MAX_STEPS = 500, 50, 2_000
# Entries of a config that are compared.
_MAX_COMPARED = 20_000
_COLUMNS = ("status", "start_time", "uid")
# Tabs that name every run.
_LABELLED = ("sources", "media")
# Fields of all runs that a tab reads.
_READ_BY = {"config": ("config",), "statistics": ("status", "config", "summary")}


class Line(NamedTuple):
    """A line of two texts side by side."""

    kind: str  # `same`, `changed`, `added`, `removed`, or `gap` for omitted lines
    # Number and text on either side; None if that side has no line.
    left: tuple[int, str] | None = None
    right: tuple[int, str] | None = None


def changed_sources(first: Mapping[str, Content], second: Mapping[str, Content]) -> dict[str, str]:
    """Return `changed`, `added` or `removed` for each source that differs, among the first thousand names."""
    changes = {}
    for name in sorted({*first, *second})[:_MAX_SOURCES]:
        if name not in second:
            changes[name] = "removed"
        elif name not in first:
            changes[name] = "added"
        elif not _are_equal(first[name], second[name]):
            changes[name] = "changed"
    return changes


def _are_equal(first: Content, second: Content) -> bool:
    if first.md5 and second.md5:
        return first.md5 == second.md5
    try:
        return first.sha256() == second.sha256()
    except StoreError:
        return False


def side_by_side(first: Content | None, second: Content | None) -> list[Line]:
    """Compare two texts line by line, None for a missing one; most of the equal lines are omitted."""
    left, right = _lines(first), _lines(second)
    lines: list[Line] = []
    for group in difflib.SequenceMatcher(None, left, right).get_grouped_opcodes(_CONTEXT):
        if lines:
            lines.append(Line("gap"))
        for kind, a, b, c, d in group:
            for old, new in itertools.zip_longest(enumerate(left[a:b], a + 1), enumerate(right[c:d], c + 1)):
                change = "added" if old is None else "removed" if new is None else "changed"
                lines.append(Line("same" if kind == "equal" else change, old, new))
    return lines


def _lines(content: Content | None) -> list[str]:
    if content is None:
        return []
    with content.open() as stream:
        data = stream.read(_MAX_BYTES + 1)
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) > _MAX_BYTES or len(lines) > _MAX_LINES:
        raise StoreError(f"{content.name!r} is too long to compare here; see: sacristan diff")
    return lines


def chosen_runs(visit: Visit, view: CompareView) -> list[Run]:
    """Return the runs of a view, in the order in which they were named; too many raise FilterError."""
    if len(view.run) > _MAX_RUNS:
        raise FilterError(f"got {len(view.run)} runs, expected {_MAX_RUNS} at most; choose fewer")
    if view.run:
        return [run.listed() for run in visit.store.get_all(view.run)]
    if not view.where:
        return []
    matching = visit.store.find(list(view.where), limit=_MAX_RUNS + 1, columns=_COLUMNS)
    if len(matching) > _MAX_RUNS:
        raise FilterError(f"got more than {_MAX_RUNS} runs; add a condition")
    return [run.listed() for run in matching]


def _compare(visit: Visit) -> Response:
    if visit.asked("tab") == "curves":  # where they were before the workspace
        return RedirectResponse(RunsView.of(visit.request.query_params).url(group=visit.asked("by")))
    view = CompareView.of(visit.request.query_params)
    problem, runs = "", list[Run]()
    values: dict[str, Any] = {}
    try:
        runs = chosen_runs(visit, view)
        visit.store.prefetch(runs, (*_READ_BY.get(view.tab, ()), "display_colour"))
        values = _TAB_VALUES[view.tab](visit, view, runs) if runs else {}
    except StoreAwayError:
        raise
    except RunsError as error:
        problem = str(error)
    labels = run_labels(runs) if runs and view.tab in _LABELLED else {}
    status = 400 if problem and not runs else 200
    common = {"view": view, "tabs": TABS, "runs": runs, "labels": labels, "problem": problem}
    common["workspace"] = RunsView(run=view.run, where=view.where).url()
    return visit.render("compare.html", status, **common, **values)


def _config(visit: Visit, view: CompareView, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the entries of the configs with a column for each run; those that differ are marked."""
    shown = runs[:_MAX_COLUMNS]
    configs = [flat_config(run, _MAX_COMPARED) for run in shown]
    every = sorted({name for config in configs for name in config})
    names = every if view.everything else differing(shown, most=_MAX_COMPARED)
    rows = [(name, [_cell(config, configs[0], name) for config in configs]) for name in names[:_MAX_ENTRIES]]
    is_cut = any(len(config) == _MAX_COMPARED for config in configs)
    most = _MAX_COMPARED if is_cut else None
    return {"columns": shown, "rows": rows, "num_entries": len(names), "most": most}


def _cell(config: Mapping[str, Any], first: Mapping[str, Any], name: str) -> tuple[str | None, bool]:
    """Return an entry, None if it is missing, and whether it differs from that of the first run."""
    if name not in config:
        return None, name in first and len(config) < _MAX_COMPARED
    return show(config[name]), name not in first or fingerprint(config[name]) != fingerprint(first[name])


def _sources(visit: Visit, view: CompareView, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the sources that differ between two of the runs, and a side-by-side diff of one."""
    by_id = {run.id: run for run in runs}
    first = by_id.get(view.first, runs[0])
    second = by_id.get(view.second) or next((run for run in runs if run is not first), first)
    files = changed_sources(first.sources, second.sources)
    file = view.file if view.file in files else next(iter(files), "")
    lines, problem = [], ""
    if file:
        try:
            lines = side_by_side(first.sources.get(file), second.sources.get(file))
        except StoreError as error:
            problem = str(error)
    return {
        "first": first,
        "second": second,
        "files": files,
        "file": file,
        "lines": lines,
        "file_problem": problem,
        "origins": _origins(first, second),
    }


def _origins(first: Run, second: Run) -> list[tuple[str, object, object]]:
    """Return the packages and git state that differ between two runs: name and both values."""
    differences: list[tuple[str, object, object]] = []
    for part in ("git", "packages"):
        old, new = (mapping_of(run.provenance.get(part)) for run in (first, second))
        for name in sorted({*old, *new} - {"diff", "untracked", "root"}):
            if old.get(name) != new.get(name):
                differences.append((f"{part}: {name}", old.get(name), new.get(name)))
    return differences[:_MAX_ENTRIES]


def _media(visit: Visit, view: CompareView, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the media that the runs logged: for each series, the entries of each run."""
    by_series: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    for run in runs[:_MAX_COLUMNS]:
        for number, medium in enumerate(run.media):
            of_runs = by_series.setdefault((str(medium.name), str(medium.kind)), {})
            of_runs.setdefault(run.id, []).append((number, _step(medium.step)))
    series = [
        {
            "name": name,
            "kind": kind,
            "entries": {id: entries[-_MAX_STEPS:] for id, entries in of_runs.items()},
            "steps": sorted({step for entries in of_runs.values() for _, step in entries[-_MAX_STEPS:]}),
        }
        for (name, kind), of_runs in sorted(by_series.items())[:_MAX_SERIES]
    ]
    return {"columns": runs[:_MAX_COLUMNS], "series": series}


def _step(step: Any) -> float:
    """Return a step as a number; 0 for anything else, which a foreign record may contain."""
    return step if is_number(step) and math.isfinite(step) else 0


def _statistics(visit: Visit, view: CompareView, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the output of `sacristan compare`; without fields to compare by, the available choices."""
    names = sorted({f"{name}.{one}" for run in runs[:50] for name in run.summary for one in ("last", "min", "max")})
    choices = {"fields": ["result", "duration", *(name for name in names if not name.startswith("system/"))]}
    if not view.by or not view.field:
        return {**choices, "comparison": None}
    comparison = compare(runs, view.fields_by, view.fields_over, view.field, mode=view.mode or "auto")
    return {
        **choices,
        "comparison": comparison,
        "group_head": group_head(comparison),
        "group_rows": group_rows(comparison),
        "pair_head": PAIR_HEAD,
        "pair_rows": pair_rows(comparison)[:_MAX_ENTRIES],
        "notes": notes(comparison)[:_MAX_ENTRIES],
    }


_TAB_VALUES: dict[str, Callable[[Visit, CompareView, Sequence[Run]], dict[str, Any]]] = {
    "config": _config,
    "sources": _sources,
    "media": _media,
    "statistics": _statistics,
}

ROUTES = [page("/compare", _compare)]
