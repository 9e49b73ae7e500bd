"""Selected runs: their ids, a table or a report of them; changes of their names, tags and notes; and the trash."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

from starlette.responses import Response

from sacristan.runs.board.access import Role
from sacristan.runs.board.rendering import run_url
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Visit, field_of, json_response, page, version_of
from sacristan.runs.comparison.reports import write_report
from sacristan.runs.drawing import harmless
from sacristan.runs.errors import ChangedError, FilterError
from sacristan.runs.query.texts import cell_text, count_text, is_number, short_text
from sacristan.runs.stores import Run

# Runs that a selection holds, and those of one request.
_MAX_SELECTED, _MAX_ASKED = 20_000, 500
_MAX_CELL, _MAX_NAME = 10_000, 100
_USUAL = ("id", "uid", "name", "status", "start", "duration", "result", "tags")
_MAX_CHANGED = 1_000
# Deleted runs that the page of the trash shows.
_MAX_DISCARDED = 2_000


def _ids(visit: Visit) -> Response:
    view = RunsView.of(visit.request.query_params)
    runs = visit.store.find(view.tree, view.sort, _MAX_SELECTED, ["uid"])
    return json_response({"ids": [run.id for run in runs], "most": _MAX_SELECTED})


def _names(visit: Visit) -> Response:
    """Answer with names and statuses of runs by their ids; those that are gone are missing."""
    ids = visit.request.query_params.getlist("run")[:_MAX_ASKED]
    runs = visit.store.find(RunsView(run=tuple(ids)).tree, "id", len(ids) or 1, ("display_name", "name", "status"))
    shown = {
        run.id: {
            "id": run.id,
            "name": harmless(short_text(field_of(run, "display_name") or field_of(run, "name") or "", _MAX_NAME)),
            "status": harmless(short_text(field_of(run, "status") or "unknown", _MAX_NAME)).lower(),
        }
        for run in (run.listed() for run in runs)
    }
    return json_response({"runs": [shown[id] for id in ids if id in shown]})


def _asked_runs(visit: Visit) -> list[Run]:
    ids = visit.request.query_params.getlist("run")
    if not 0 < len(ids) <= _MAX_ASKED:
        raise FilterError(f"got {len(ids)} runs, expected 1 to {_MAX_ASKED}")
    return [run.listed() for run in visit.store.get_all(ids)]


def _table(visit: Visit) -> Response:
    """Answer with the fields of runs as CSV; a table in several parts has its head in the first one."""
    asked = visit.request.query_params.getlist("column")
    columns = tuple(dict.fromkeys(("id", *asked))) if asked else _USUAL
    runs = _asked_runs(visit)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not visit.asked("part"):
        writer.writerow(map(cell_text, columns))
    for run in runs:
        writer.writerow([_cell(run, name) for name in columns])
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8")


def _cell(run: Run, name: str) -> Any:
    value = field_of(run, name)
    value = " ".join(value) if name == "tags" and value is not None else value
    return value if value is None or is_number(value) else cell_text(short_text(value, _MAX_CELL, exact=True))


def _report(visit: Visit) -> Response:
    view = RunsView.of(visit.request.query_params)
    runs = _asked_runs(visit)
    with tempfile.TemporaryDirectory() as folder:
        path = write_report(
            runs, Path(folder) / "report.html", by=view.fields_by, x=view.x, smoothing=view.smoothing, log_y=view.log_y
        )
        data = path.read_bytes()
    headers = {"content-disposition": 'attachment; filename="report.html"'}
    return Response(data, media_type="text/html; charset=utf-8", headers=headers)


def _posted(visit: Visit) -> list[str]:
    keys = visit.form.get("run", [])
    if not 0 < len(keys) <= _MAX_CHANGED:
        raise FilterError(f"got {len(keys)} runs, expected 1 to {_MAX_CHANGED}")
    return keys


def _posted_runs(visit: Visit) -> list[Run]:
    return [visit.store.get(id) for id in _posted(visit)]


def _tag(visit: Visit) -> Response:
    """Add the tags of `add`, remove those of `remove`, and the one of `untag`, which may hold any characters."""
    chosen = _posted_runs(visit)
    removed = [*_words(visit.given("remove")), *visit.form.get("untag", [])]
    for run in chosen:
        visit.store.tag(run, _words(visit.given("add")), removed)
    return json_response({"done": f"tags of {count_text(len(chosen), 'run')} changed"})


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _rename(visit: Visit) -> Response:
    """Give runs a display name, each only if it still has the one that the writer has seen."""
    name, seen = visit.given("name"), visit.given("version")
    for run in _posted_runs(visit):
        was = run.display_name
        try:
            if seen and seen != version_of(was):
                raise ChangedError(f"somebody else named the run {was!r}; save again to replace that")
            name = visit.store.rename(run, visit.given("name"), was=was if seen else None).display_name
        except ChangedError as error:
            now = visit.store.get(run.id).display_name
            return json_response({"error": str(error), "name": now, "version": version_of(now)}, 409)
    return json_response({"done": "name saved", "name": name, "version": version_of(name)})


def _colour(visit: Visit) -> Response:
    for run in _posted_runs(visit):
        visit.store.paint(run, visit.given("colour"))
    return json_response({"done": "colour saved"})


def _note(visit: Visit) -> Response:
    """Replace the notes of runs, each only if it still is the version that the writer has seen."""
    text, seen = visit.given("note").replace("\r\n", "\n"), visit.given("version")
    for run in _posted_runs(visit):
        try:
            if seen and seen != version_of(run.note):
                raise ChangedError("the note has changed to the text below; combine both, and save")
            visit.store.write_note(run, text, was=run.note if seen else None)
        except ChangedError as error:
            now = visit.store.get(run.id).note
            return json_response({"error": str(error), "note": now, "version": version_of(now)}, 409)
    return json_response({"done": "note written", "version": version_of(text)})


# ---------------------------------------------------------------------- the trash


def _discard(visit: Visit) -> Response:
    removed = visit.store.discard(_posted_runs(visit))
    return json_response({"done": f"{count_text(len(removed.runs), 'run')} moved into the trash"})


def _trash(visit: Visit) -> Response:
    listed = visit.store.trash()
    return visit.render("trash.html", listed=listed[:_MAX_DISCARDED], num=len(listed))


def _restore(visit: Visit) -> Response:
    """Restore runs by the keys of `Discarded`, and answer with the page of the last one."""
    keys = _posted(visit)
    restored = [visit.store.restore(key) for key in keys]
    what = f"run {restored[0].id} is" if len(keys) == 1 else f"{count_text(len(keys), 'run')} are"
    return json_response({"done": f"{what} back", "url": run_url(restored[-1].id)})


ROUTES = [
    page("/list/ids", _ids),
    page("/list/names", _names),
    page("/list/table", _table),
    page("/list/report", _report),
    page("/list/tag", _tag, "POST", Role.NOTE),
    page("/list/rename", _rename, "POST", Role.NOTE),
    page("/list/colour", _colour, "POST", Role.NOTE),
    page("/list/note", _note, "POST", Role.NOTE),
    page("/list/discard", _discard, "POST"),
    page("/trash", _trash, role=Role.WRITE),
    page("/trash/restore", _restore, "POST"),
]
