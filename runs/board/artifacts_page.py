"""The pages of artifacts and models: versions with their lineage, and checkpoints with their scores."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from sacristan.runs.board.checkpoint_scores import checkpoint_scores
from sacristan.runs.board.content_page import file_response
from sacristan.runs.board.previews import size_of
from sacristan.runs.board.roots import rooted
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.errors import RunNotFoundError, RunsError, StoreError
from sacristan.runs.stores.content import StoredArtifact
from sacristan.runs.stores.run import Run

__all__ = ["ROUTES"]

_MAX_ARTIFACTS, _MAX_VERSIONS, _MAX_FILES, _MAX_LINEAGE = 500, 200, 500, 100
# Runs whose checkpoints one page lists.
_PAGE = 50


def _artifacts(visit: Visit) -> Response:
    """Answer with the list of all artifacts, each with its newest version."""
    names = visit.store.artifacts()
    rows, problems = [], []
    for name in names[:_MAX_ARTIFACTS]:
        try:
            versions = visit.store.artifact_versions(name)
        except StoreError as error:
            problems.append(str(error))
            continue
        if versions:
            rows.append((name, len(versions), versions[-1]))
    return visit.render("artifacts.html", rows=rows, num=len(names), problems=problems)


def _artifact(visit: Visit) -> Response:
    """Answer with the versions of one artifact, the newest first."""
    name = visit.request.path_params["name"]
    versions = visit.store.artifact_versions(name)
    if not versions:
        raise RunNotFoundError(f"there is no artifact {name!r} in {visit.store.where}")
    shown = [
        {
            "version": version,
            "made_by": _runs(visit, version.made_by),
            "used_by": _runs(visit, version.used_by),
            "files": [(path, version.sizes[path], _url(version, path)) for path in list(version.files)[:_MAX_FILES]],
        }
        for version in versions[::-1][:_MAX_VERSIONS]
    ]
    return visit.render("artifact.html", name=name, versions=shown, num=len(versions))


def _url(version: StoredArtifact, path: str) -> str:
    pairs = {"name": version.name, "version": version.version, "path": path, "download": 1}
    return rooted("/artifact-file") + f"?{urlencode(pairs)}"


def _runs(visit: Visit, uids: tuple[str, ...]) -> list[tuple[str, Run | None]]:
    """Return the runs of a lineage; None for one that is not in the store."""
    found: dict[str, Run] = {}
    if uids:
        wanted = list(uids[:_MAX_LINEAGE])
        found = {
            str(run.uid): run for run in visit.store.find({"uid": {"$in": wanted}}, columns=("uid", "name", "status"))
        }
    return [(uid, found.get(uid)) for uid in uids[:_MAX_LINEAGE]]


def _file(visit: Visit) -> Response:
    """Answer with a file of a version, sandboxed."""
    name, path = visit.asked("name"), visit.asked("path")
    number = visit.number("version", 0, 0, 10**9)
    version = next((one for one in visit.store.artifact_versions(name) if one.version == number), None)
    if version is None or path not in version.files:
        raise RunNotFoundError(f"there is no file {path!r} in {name}:v{number}")
    return file_response(visit, version.files[path])


def _models(visit: Visit) -> Response:
    """Answer with the checkpoints of the newest runs that keep any, each with its score."""
    number = visit.number("page", 1, 1, 100_000)
    runs = visit.store.find(
        limit=_PAGE + 1, columns=("name", "status", "start_time", "uid"), offset=(number - 1) * _PAGE
    )
    rows: list[dict[str, Any]] = []
    for run in runs[:_PAGE]:
        try:
            scores = zip(run.checkpoints.items(), checkpoint_scores(run, run.checkpoints), strict=True)
            rows += [
                {"run": run, "name": name, "score": score, "size": size_of(content), "problem": ""}
                for (name, content), score in scores
            ]
        except RunsError as error:
            rows.append({"run": run, "problem": str(error)})
    return visit.render("models.html", rows=rows, number=number, has_more=len(runs) > _PAGE)


ROUTES = [
    page("/artifacts", _artifacts),
    page("/artifacts/{name}", _artifact),
    page("/artifact-file", _file),
    page("/models", _models),
]
