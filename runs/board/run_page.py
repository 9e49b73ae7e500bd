"""The page of one run, in tabs, with commands as next steps. Every readable part of a damaged record is shown."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.responses import Response

from sacristan.runs.board.artifacts_page import checkpoint_scores
from sacristan.runs.board.charts import first_panels, metric_rank, panels_url, sections_of
from sacristan.runs.board.contents import highlighted, preview_of
from sacristan.runs.board.lineage import lineage_of
from sacristan.runs.board.media_page import series_of_media
from sacristan.runs.board.rendering import render, run_url, to_html
from sacristan.runs.board.views import CompareView, RunsView
from sacristan.runs.board.visits import Visit, json_response, look_again_s, page, version_of, watched
from sacristan.runs.comparison import last_good
from sacristan.runs.errors import RunNotFoundError, StoreError
from sacristan.runs.query import dotted, list_of, mappings_in
from sacristan.runs.query.texts import short_text
from sacristan.runs.stores import Content, Run, length_of
from sacristan.runs.stores.settings import flat_config, origins

# Statuses of runs that ended before they were done.
_ENDED_BADLY = ("INTERRUPTED", "DEAD", "FAILED", "TIMEOUT")
_BEST = ("checkpoints/best.pt", "checkpoints/last.pt")
TABS = ("overview", "curves", "system", "output", "media", "files", "sources", "environment")
# Tabs whose page follows the head alone: what they show never changes, or comes by itself.
_STILL = ("output", "sources", "environment")
# A run that has ended may be resumed, tagged or removed; its page looks so often.
_LOOK_AT_ENDED_S = 10.0
# Parts that share a template.
_TEMPLATES = {"system": "run_curves.html", "head": "run_layout.html"}
_RELATIONS = ("parent", "missing_parent", "children", "num_children", "sweep")
_STATISTICS = ("last", "min", "max", "mean", "count")
# What a page shows at most; the rest is said to be there.
_MAX_ENTRIES, _MAX_LINKED, _MAX_FILES = 2_000, 50, 2_000
_MAX_SIZED = 100
_OUTPUT_BYTES = 2**18
_FAILURE_LINES = 40
_DIFF_LINES = 10_000


def commands(where: str, run: Run) -> Iterator[tuple[str, str]]:
    """Yield what to do with a run, and the command that does it; `where` is the store as `--store` takes it."""
    words = list_of(run.get("command_line"))
    if words:
        yield "run it again", _there(run) + shlex.join(["python", *map(str, words)])
    store = ["sacristan", "--store", where]
    yield "reproduce it from its record", shlex.join([*store, "reproduce", run.id])
    if run.status in _ENDED_BADLY:
        yield "resume it in its record", shlex.join([*store, "resume", run.id])
    setting = "lr=1e-4" if run.get("config.lr") is not None else "seed=1"
    yield "fork it with other settings", shlex.join([*store, "fork", run.id, "with", setting])
    yield from checkpoint_commands(run)


def checkpoint_commands(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the commands that evaluate, predict with and export the best checkpoint, if it is on this machine."""
    name = best_checkpoint(run)
    words, recorded = list_of(run.get("command_line")), run.original() if name else None
    if name is None or not words or recorded is None or recorded.folder is None:
        return
    folder = recorded.folder.absolute()
    settings = ["with", str(folder / "config.json"), f"checkpoint.path={folder / name}"]
    for command, more in (("evaluate", []), ("predict", []), ("export", ["export.path=model.onnx"])):
        text = shlex.join(["python", str(words[0]), command, *settings, *more])
        yield f"{command} {'with ' if command == 'predict' else ''}its checkpoint", _there(run) + text


def best_checkpoint(run: Run) -> str | None:
    """Return the name of the run's best checkpoint, or of the last one; None if the run keeps neither."""
    return next((name for name in _BEST if name in run.checkpoints), None)


def _there(run: Run) -> str:
    folder = run.document.get("cwd")
    return f"cd {shlex.quote(folder)} && " if isinstance(folder, str) and folder else ""


def last_good_of(run: Run) -> tuple[Run, list[str], str] | None:
    """Return the last good run before a failed one, the settings that differ, and the page that compares them."""
    comparison = last_good(run) if run.status in _ENDED_BADLY else None
    if comparison is None:
        return None
    good, names = comparison
    return good, names, CompareView(run=(good.id, run.id)).url(tab="config" if names else "sources")


def _run(visit: Visit) -> Response:
    """Answer with a tab of a run, or with "not changed" to a page that follows the run."""
    started = time.perf_counter()
    run = visit.store.get(visit.request.path_params["id"])
    tab = visit.asked("tab")
    tab = tab if tab in _PARTS else TABS[0]
    problems: list[str] = []
    values = _PARTS[tab](visit, run, problems)
    head = {
        "status": _tried(problems, lambda: run.status, "UNREADABLE"),
        "tags": _tried(problems, lambda: run.tags, []),
        "name": (name := _tried(problems, lambda: run.display_name, "")),
        "name_version": version_of(name),
        "followed": run_url(run.id, "head") if tab in _STILL else "",
    }
    common = {"board": visit.board, "path": visit.request.url.path, "run": run, "tab": tab, "tabs": TABS}
    body = render(_TEMPLATES.get(tab, f"run_{tab}.html"), **common, problems=problems, **head, **values)
    is_open = _tried([], lambda: run.is_living, False) or head["status"] == "QUEUED"
    again_s = look_again_s(started) if is_open else look_again_s(started, _LOOK_AT_ENDED_S)
    return watched(visit.request, body, again_s, x_open="1" if is_open else "")


def _tried(problems: list[str], read: Callable[[], Any], otherwise: Any) -> Any:
    """Return the result of `read`; if the record is damaged, add the problem once and return `otherwise`."""
    try:
        return read()
    except (StoreError, RecursionError) as error:
        if str(error) not in problems:
            problems.append(str(error))
        return otherwise


# ---------------------------------------------------------------------- overview


def _overview(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    config = _tried(problems, lambda: flat_config(run), {})
    set_by = _tried(problems, lambda: origins(run), {})
    entries = [(name, config[name], set_by[name]) for name in set_by if name in config]
    defaults = [(name, value) for name, value in config.items() if name not in set_by]
    summary = _tried(problems, run.statistics, {})
    names = sorted((name for name in summary if not name.startswith("system/")), key=metric_rank)
    rows = [(name, [summary[name].get(each) for each in _STATISTICS]) for name in names]
    note = _tried(problems, lambda: run.note, "")
    return {
        "facts": list(_facts(run, problems)),
        "relations": _tried(problems, lambda: _relations(run), dict.fromkeys(_RELATIONS)),
        "config": entries[:_MAX_ENTRIES],
        "defaults": defaults[: max(0, _MAX_ENTRIES - len(entries))],
        "num_config": len(config),
        "statistics": _STATISTICS,
        "summary": rows[:_MAX_ENTRIES],
        "others": list(_tried(problems, run.other_values, {}).items())[:_MAX_ENTRIES],
        "result": _tried(problems, lambda: run.result, None),
        "info": _tried(problems, lambda: dotted(run.info), {}),
        "failure": _tried(problems, lambda: _failure(run), ""),
        "note": note,
        "note_version": version_of(note),
        "verdicts": _tried(problems, lambda: run.reproductions, [])[-_MAX_LINKED:],
        "changes": _tried(problems, lambda: run.changes, [])[: -1 - _MAX_LINKED * 2 : -1],
        "sessions": _tried(problems, lambda: run.sessions, [])[-_MAX_LINKED:],
        "commands": _tried(problems, lambda: list(commands(visit.board.where, run)), []),
        "lineage": _tried(problems, lambda: lineage_of(visit.store, run), None),
        "good": _tried(problems, lambda: last_good_of(run), None),
    }


def _facts(run: Run, problems: list[str]) -> Iterator[tuple[str, Any]]:
    names = {
        "started": "start",
        "ended": "stop",
        "took": "duration",
        "uid": "uid",
        "by": "user",
        "on": "host",
        "command": "command",
        "git": "",
        "interrupted by": "meta.interrupted_by",
        "comment": "meta.comment",
    }
    for label, name in names.items():
        get = functools.partial(run.get, name) if name else functools.partial(_git_text, run)
        value = _tried(problems, get, None)
        if value is not None and value != "":
            yield label, value


def _git_text(run: Run) -> str:
    git = run.provenance.get("git")
    if not isinstance(git, Mapping) or not git.get("commit"):
        problem = git.get("problem") if isinstance(git, Mapping) else None
        return f"no commit recorded: {short_text(problem, 300)}" if problem else ""
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    return f"{short_text(git['commit'], 60)} {short_text(git.get('branch') or '', 60)}{dirty}"


def _relations(run: Run) -> dict[str, Any]:
    parent = run.get("parent")
    children = run.children()
    sweep = run.get("meta.sweep")
    return {
        "parent": run.parent if parent else None,
        "missing_parent": parent if parent and run.parent is None else None,
        "children": children[:_MAX_LINKED],
        "num_children": len(children),
        "sweep": sweep if isinstance(sweep, Mapping) else None,
    }


def _failure(run: Run) -> str:
    trace = run.get("fail_trace")
    if not isinstance(trace, list):
        return ""
    return "\n".join("".join(map(str, trace)).rstrip("\n").split("\n")[-_FAILURE_LINES:])


def _metrics(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    of_system = visit.asked("tab") == "system"
    view = dataclasses.replace(RunsView.of(visit.request.query_params), run=(run.id,), where=(), words="", group="")
    if of_system:
        view = dataclasses.replace(view, closed=())
    sections = [
        part for part in _tried(problems, lambda: sections_of([run], ()), []) if (part[0] == "system") == of_system
    ]
    return {
        "of_run": True,
        "view": view,
        "sections": sections,
        "url": panels_url(view, [run]),
        "first": first_panels(view, panels_url(view, [run]), sections),
        "has_parent": _tried(problems, lambda: bool(run.get("parent")), False),
    }


def _output(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    start = visit.number("from", -_OUTPUT_BYTES, -_OUTPUT_BYTES, 2**62)
    data, end = _tried(problems, lambda: run.read_output(start, _OUTPUT_BYTES), (b"", 0))
    first = end - len(data)
    whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
    return {
        "html": to_html(data.decode("utf-8", "replace")),
        "first": first,
        "end": end,
        # What follows is requested from the beginning of its line, not from after an earlier part.
        "resume_at": end - len(data) + len(whole) if start < 0 else "",
        "page_bytes": _OUTPUT_BYTES,
    }


def _more_output(visit: Visit) -> Response:
    """Answer with the output since the last request: whole lines, and the last one as it is now."""
    run = visit.store.get(visit.asked("run"))
    is_over = not run.is_living  # looked at before the output, so that what comes last is read
    start = visit.number("from", 0, 0, 2**62)
    data, end = run.read_output(start, _OUTPUT_BYTES)
    whole, newline, rest = data.rpartition(b"\n")
    if not newline and len(data) == _OUTPUT_BYTES:
        whole, rest = data, b""
    texts = [part.decode("utf-8", "replace") for part in (whole + newline, rest)]
    there = len(data) == _OUTPUT_BYTES
    return json_response(
        {
            "lines": str(to_html(texts[0])),
            "line": str(to_html(texts[1])),
            "next": end - len(rest),
            "over": is_over and not there,
        }
    )


# ---------------------------------------------------------------------- files


@dataclasses.dataclass(frozen=True)
class _File:
    kind: str
    name: str
    size: int | None


def _files(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    groups: dict[str, Mapping[str, Content]] = {
        "artifact": _tried(problems, lambda: run.artifacts, {}),
        "checkpoint": _tried(problems, lambda: run.checkpoints, {}),
        "resource": _tried(problems, lambda: run.resources, {}),
    }
    files = [
        _File(kind, name, length_of(content) if number < _MAX_SIZED else None)
        for kind, contents in groups.items()
        for number, (name, content) in enumerate(list(contents.items())[:_MAX_FILES])
    ]
    kind, name = visit.asked("kind"), visit.asked("name")
    chosen = groups.get(kind, {}).get(name) if name else None
    if name and chosen is None:
        raise RunNotFoundError(f"run {run.id} has no {kind or 'file'} {name!r}")
    return {
        "files": files,
        "num_files": sum(map(len, groups.values())),
        "chosen": chosen,
        "kind": kind,
        "preview": None if chosen is None else preview_of(chosen),
        "score": _tried(problems, lambda: next(checkpoint_scores(run, [name])), None) if kind == "checkpoint" else None,
        "versions": _tried(problems, lambda: _versions(run), []),
    }


def _versions(run: Run) -> list[tuple[str, dict[str, Any]]]:
    relations = {"made": "artifacts_logged", "used": "artifacts_used"}
    versions = [(relation, entry) for relation, field in relations.items() for entry in mappings_in(run.get(field))]
    return versions[:_MAX_ENTRIES]


def _sources(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    sources = _tried(problems, lambda: run.sources, {})
    name = visit.asked("name")
    chosen = sources.get(name) if name else None
    if name and chosen is None:
        raise RunNotFoundError(f"run {run.id} has no source {name!r}")
    lines = _tried(problems, lambda: str(run.diff).splitlines(), [])
    return {
        "sources": sorted(sources)[:_MAX_FILES],
        "chosen": chosen,
        "code": None if chosen is None else _tried(problems, lambda: highlighted(chosen), None),
        "diff": lines[:_DIFF_LINES],
        "is_cut": len(lines) > _DIFF_LINES,
    }


def _environment(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    provenance = _tried(problems, lambda: dict(run.provenance), {})
    host = _tried(problems, lambda: run.document.get("host"), None)
    parts = {"host": host, **{name: part for name, part in provenance.items() if name != "git"}}
    git = provenance.get("git")
    if isinstance(git, Mapping):
        parts["git"] = {name: value for name, value in git.items() if name != "diff"}
    shown = {}
    for name, part in parts.items():
        entries = dotted(part) if isinstance(part, Mapping) else {"": part}
        shown[name] = list(entries.items())[:_MAX_ENTRIES]
    return {"parts": {name: entries for name, entries in shown.items() if entries and entries != [("", None)]}}


def _media(visit: Visit, run: Run, problems: list[str]) -> dict[str, Any]:
    media = _tried(problems, lambda: run.media, [])
    return {"series": series_of_media(media), "num_media": len(media)}


_PARTS: dict[str, Callable[[Visit, Run, list[str]], dict[str, Any]]] = {
    "overview": _overview,
    "curves": _metrics,
    "system": _metrics,
    "output": _output,
    "media": _media,
    "files": _files,
    "sources": _sources,
    "environment": _environment,
    "head": lambda visit, run, problems: {},
}
ROUTES = [page("/runs/{id:path}", _run), page("/output", _more_output)]
