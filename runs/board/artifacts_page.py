"""The pages of artifacts and models: versions with their lineage, and checkpoints with their scores."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.responses import Response

from sacristan.observers.artifacts.aliases import LATEST, present_moves
from sacristan.observers.record.directions import monitored_direction
from sacristan.runs.board.access import Role
from sacristan.runs.board.contents import file_response
from sacristan.runs.board.rendering import render
from sacristan.runs.board.views import rooted
from sacristan.runs.board.visits import Visit, json_response, look_again_s, page, watched
from sacristan.runs.comparison.comparing import better_text
from sacristan.runs.documents.versions import command_of
from sacristan.runs.errors import FilterError, RunNotFoundError, RunsError, StoreError
from sacristan.runs.query import dotted, mapping_of
from sacristan.runs.query.texts import is_number
from sacristan.runs.stores import Run, StoredArtifact, length_of

# The names that `sacristan.ingredients.checkpoints.folder` gives to a run's own; those below `start/` are another
# run's.
_NAME = re.compile(r"checkpoints/(?:best\.pt|last\.pt|best-(?P<epoch>\d+)\.pt|step-(?P<step>\d+)\.pt)")
_MAX_ARTIFACTS, _MAX_VERSIONS, _MAX_FILES, _MAX_LINEAGE = 500, 200, 500, 100
# Runs whose checkpoints one page lists.
_PAGE = 50
# Moves of aliases, and results of models, that a page shows.
_MAX_MOVES, _MAX_RESULTS = 200, 6


@dataclasses.dataclass(frozen=True)
class CheckpointScore:
    """Origin and quality of the weights of a checkpoint; None and empty for what the record does not have."""

    # The metric that the training monitored, and the better direction in words.
    metric: str = ""
    better: str = ""
    value: float | None = None  # its value for exactly these weights
    # Optimizer steps and epochs before the checkpoint.
    step: int | None = None
    epoch: float | None = None


def checkpoint_scores(run: Run, names: Iterable[str]) -> Iterator[CheckpointScore]:
    """Yield the score of each checkpoint; an empty one if the training loop did not name the checkpoint.

    The best checkpoint has the best value, the last one the last value; a checkpoint of a step or an epoch has the
    value of a validation there.
    """
    metric = run.get("config.training.monitor")
    metric = metric if isinstance(metric, str) and metric in run.summary else ""
    direction = monitored_direction(metric, mapping_of(run.get("config.training")).get("mode"))
    points = _Validations(run, metric)
    for name in names:
        score = _score(points, name, direction)
        yield dataclasses.replace(score, better=better_text(direction)) if score.metric else score


def _score(points: _Validations, name: str, direction: str) -> CheckpointScore:
    match = _NAME.fullmatch(name)
    if match is None:
        return CheckpointScore()
    if match["step"] is not None:
        return points.at_step(int(match["step"]))
    if match["epoch"] is not None:
        return points.at_epoch(int(match["epoch"]))
    return points.of_summary(direction if name.endswith("best.pt") else "last")


class _Validations:
    """Values of the monitored metric; points are read on first use."""

    def __init__(self, run: Run, metric: str) -> None:
        self._run, self._metric = run, metric
        self._summary = run.summary.get(metric, {})

    def of_summary(self, statistic: str) -> CheckpointScore:
        value, step = self._summary.get(statistic), self._summary.get(f"{statistic}_step")
        if not is_number(value) or not is_number(step):
            return CheckpointScore(self._metric, value=value if is_number(value) else None)
        return CheckpointScore(self._metric, value=value, step=int(step), epoch=self._epoch(int(step)))

    def at_step(self, step: int) -> CheckpointScore:
        steps, values = self._points()
        positions = np.flatnonzero(steps == step)
        value = float(values[positions[-1]]) if len(positions) else None
        return CheckpointScore(self._metric if positions.size else "", value=value, step=step, epoch=self._epoch(step))

    def at_epoch(self, epoch: int) -> CheckpointScore:
        steps, values = self._points()
        with contextlib.suppress(StoreError):
            epochs = self._run.epochs_at(steps)
            positions = np.flatnonzero(np.abs(epochs - epoch) < 1e-6) if epochs is not None else np.empty(0, np.intp)
            if len(positions):
                value, step = float(values[positions[-1]]), int(steps[positions[-1]])
                return CheckpointScore(self._metric, value=value, step=step, epoch=epoch)
        return CheckpointScore(epoch=epoch)

    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        if self._metric:
            with contextlib.suppress(StoreError):
                series = self._run.metric(self._metric)
                return series.steps, series.values
        return np.zeros(0, np.int64), np.zeros(0)

    def _epoch(self, step: int) -> float | None:
        with contextlib.suppress(StoreError):
            epochs = self._run.epochs_at(np.array([step]))
            return None if epochs is None else round(float(epochs[0]), 2)
        return None


def _artifacts(visit: Visit) -> Response:
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
    name = visit.request.path_params["name"]
    versions = visit.store.artifact_versions(name)
    if not versions:
        raise RunNotFoundError(f"there is no artifact {name!r} in {visit.store.where}")
    moves = visit.store.aliases.moves(name)
    present = present_moves(moves)
    shown = [
        {
            "version": version,
            "aliases": [alias for alias, move in present.items() if move.version == version.version],
            "made_by": (made_by := _runs(visit, version.made_by)),
            "run": (run := next((run for _, run in made_by if run is not None), None)),
            "command": "" if run is None else command_of(run),
            "card": "" if run is None else shlex.join(["sacristan", "--store", visit.board.where, "card", run.id]),
            "used_by": _runs(visit, version.used_by),
            "files": [(path, version.sizes[path], _url(version, path)) for path in list(version.files)[:_MAX_FILES]],
        }
        for version in versions[::-1][:_MAX_VERSIONS]
    ]
    values: dict[str, Any] = {"versions": shown, "num": len(versions), "newest": versions[-1].version}
    values |= {"aliases": list(present), "moves": moves[::-1][:_MAX_MOVES], "num_moves": len(moves)}
    return visit.render("artifact.html", name=name, **values)


def _move_alias(visit: Visit) -> Response:
    """Let an alias name a version, or none; the page says which version it showed."""
    name, alias, version = visit.given("name"), visit.given("alias").strip(), visit.given("version")
    if version and not version.isdecimal():
        raise FilterError(f"got the version {version[:20]!r}, expected a number, or none to remove the alias")
    move = visit.store.aliases.move(name, alias, int(version) if version else None, visit.given("was"))
    named = "no version" if move.version is None else f"v{move.version}"
    return json_response({"done": f"{name}:{alias} names {named}"})


def _url(version: StoredArtifact, path: str) -> str:
    pairs = {"name": version.name, "version": version.version, "path": path, "download": 1}
    return rooted("/artifact-file") + f"?{urlencode(pairs)}"


def _runs(visit: Visit, uids: tuple[str, ...]) -> list[tuple[str, Run | None]]:
    """Return the runs of a lineage; None for one that is not in the store."""
    by_uid: dict[str, Run] = {}
    if uids:
        wanted = list(uids[:_MAX_LINEAGE])
        by_uid = {
            str(run.uid): run for run in visit.store.find({"uid": {"$in": wanted}}, columns=("uid", "name", "status"))
        }
    return [(uid, by_uid.get(uid)) for uid in uids[:_MAX_LINEAGE]]


def _file(visit: Visit) -> Response:
    """Answer with a file of a version, sandboxed."""
    name, path = visit.asked("name"), visit.asked("path")
    number = visit.number("version", 0, 0, 10**9)
    version = next((one for one in visit.store.artifact_versions(name) if one.version == number), None)
    if version is None or path not in version.files:
        raise RunNotFoundError(f"there is no file {path!r} in {name}:v{number}")
    return file_response(visit, version.files[path])


def _models(visit: Visit) -> Response:
    """Answer with versions of models and their results, and the checkpoints of the newest runs, each with its score."""
    started = time.perf_counter()
    number = visit.number("page", 1, 1, 100_000)
    runs = visit.store.find(
        limit=_PAGE + 1, columns=("name", "status", "start_time", "uid"), offset=(number - 1) * _PAGE
    )
    rows: list[dict[str, Any]] = []
    for run in runs[:_PAGE]:
        try:
            scores = zip(run.checkpoints.items(), checkpoint_scores(run, run.checkpoints), strict=True)
            rows += [
                {"run": run, "name": name, "score": score, "size": length_of(content), "problem": ""}
                for (name, content), score in scores
            ]
        except RunsError as error:
            rows.append({"run": run, "problem": str(error)})
    models, results = _model_versions(visit) if number == 1 else ([], [])
    values: dict[str, Any] = {"rows": rows, "models": models, "results": results}
    values |= {"number": number, "has_more": len(runs) > _PAGE}
    body = render("models.html", board=visit.board, path=visit.request.url.path, **values)
    return watched(visit.request, body, look_again_s(started))


def _model_versions(visit: Visit) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the newest versions of artifacts of the type `model` with their runs, and the names of their results."""
    versions: list[tuple[StoredArtifact, list[str]]] = []
    for name in visit.store.artifacts()[:_MAX_ARTIFACTS]:
        with contextlib.suppress(StoreError):
            models = [each for each in visit.store.artifact_versions(name) if each.type == "model"]
            present = visit.store.aliases.of(name) if models else {}
            for each in models:
                named = [alias for alias, move in present.items() if move.version == each.version]
                versions.append((each, [*([LATEST] if each is models[-1] else []), *named]))
    versions.sort(key=lambda pair: pair[0].created.timestamp() if pair[0].created else 0.0, reverse=True)
    shown = versions[:_MAX_VERSIONS]
    uids = list(dict.fromkeys(uid for version, _ in shown for uid in version.made_by[:1]))
    columns = ("uid", "name", "status", "result")
    runs = {run.uid: run for run in visit.store.find({"uid": {"$in": uids}}, columns=columns)} if uids else {}
    rows: list[dict[str, Any]] = []
    for version, aliases in shown:
        run = runs.get(version.made_by[0]) if version.made_by else None
        results = {} if run is None else dotted({"result": run.get("result")})
        rows.append({"version": version, "aliases": aliases, "run": run, "results": results})
    counts = Counter(name for row in rows for name, value in row["results"].items() if is_number(value))
    return rows, [name for name, _ in counts.most_common(_MAX_RESULTS)]


ROUTES = [
    page("/artifacts", _artifacts),
    page("/artifacts/{name}", _artifact),
    page("/artifact-file", _file),
    page("/artifact-alias", _move_alias, "POST", Role.NOTE),
    page("/models", _models),
]
