"""Changes of runs: names, tags, notes, and deletion."""

from __future__ import annotations

from starlette.responses import Response

from sacristan.runs.board.answers import json_response, version_of
from sacristan.runs.board.visitors import Role
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.errors import ChangedError, FilterError
from sacristan.runs.query.texts import count_text
from sacristan.runs.stores.run import Run

__all__ = ["ROUTES"]

_MAX_CHANGED = 1_000


def _chosen(visit: Visit) -> list[Run]:
    ids = visit.form.get("run", [])
    if not ids or len(ids) > _MAX_CHANGED:
        raise FilterError(f"got {len(ids)} runs, expected 1 to {_MAX_CHANGED}")
    return [visit.store.get(id) for id in ids]


def _discard(visit: Visit) -> Response:
    removed = visit.store.discard(_chosen(visit))
    return json_response({"done": f"{count_text(len(removed.runs), 'run')} moved into the trash"})


def _tag(visit: Visit) -> Response:
    """Add the tags of `add`, remove those of `remove`, and the one of `untag`, which may hold any characters."""
    chosen = _chosen(visit)
    removed = [*_words(visit.given("remove")), *visit.form.get("untag", [])]
    for run in chosen:
        visit.store.tag(run, _words(visit.given("add")), removed)
    return json_response({"done": f"tags of {count_text(len(chosen), 'run')} changed"})


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _rename(visit: Visit) -> Response:
    """Give runs a display name, each only if it still has the one that the writer has seen."""
    name, seen = visit.given("name"), visit.given("version")
    for run in _chosen(visit):
        was = run.display_name
        try:
            if seen and seen != version_of(was):
                raise ChangedError(f"somebody else named the run {was!r}; save again to replace that")
            name = visit.store.rename(run, visit.given("name"), was=was if seen else None).display_name
        except ChangedError as error:
            now = visit.store.get(run.id).display_name
            return json_response({"error": str(error), "name": now, "version": version_of(now)}, 409)
    return json_response({"done": "name saved", "name": name, "version": version_of(name)})


def _note(visit: Visit) -> Response:
    """Replace the notes of runs, each only if it still is the version that the writer has seen."""
    text, seen = visit.given("note").replace("\r\n", "\n"), visit.given("version")
    for run in _chosen(visit):
        try:
            if seen and seen != version_of(run.note):
                raise ChangedError("the note has changed to the text below; combine both, and save")
            visit.store.write_note(run, text, was=run.note if seen else None)
        except ChangedError as error:
            now = visit.store.get(run.id).note
            return json_response({"error": str(error), "note": now, "version": version_of(now)}, 409)
    return json_response({"done": "note written", "version": version_of(text)})


ROUTES = [
    page("/list/discard", _discard, "POST"),
    page("/list/tag", _tag, "POST", Role.NOTE),
    page("/list/rename", _rename, "POST", Role.NOTE),
    page("/list/note", _note, "POST", Role.NOTE),
]
