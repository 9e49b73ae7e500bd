"""The artifacts of a run: files that it keeps, versions that it logs and uses."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacred.run import Run

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.artifacts.version import ArtifactVersion, parse_reference
from sacristan.observers.errors import ArtifactError, ArtifactNotFoundError
from sacristan.observers.file.recording import Recording, recordings_of
from sacristan.observers.record.protocols import ArtifactObserver, ArtifactSource
from sacristan.observers.record.schema import EXECUTED_CELLS

__all__ = ["keep_artifact", "keep_cells", "log_artifact", "use_artifact"]

_log = logging.getLogger(__name__)


def keep_artifact(
    run: Run, name: str, filename: str, metadata: dict[str, Any] | None, content_type: str | None
) -> None:
    """Give a file to all observers of a run; see Sacred's `Run.add_artifact`.

    If one cannot keep it, `ArtifactError` is raised after the others have it.
    """
    errors = []
    for observer in run.observers:
        if not isinstance(observer, ArtifactObserver):
            event = {"name": name, "filename": filename, "metadata": metadata, "content_type": content_type}
            run._safe_call(observer, "artifact_event", **event)
            continue
        try:
            observer.keep_artifact(name, filename, metadata, content_type)
        except ArtifactError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def log_artifact(
    run: Run, name: str, path: str | Path, type: str, metadata: Mapping[str, Any] | None
) -> ArtifactVersion:
    """Log an artifact in every folder that a run is recorded in; see `LabRun.log_artifact`.

    Returns the version in the first of these folders.
    """
    versions = []
    for recording in _recordings(run):
        version = _store(recording.base).log(name, path, type, metadata, recording.uid)
        recording.note_artifact("artifacts_logged", version.entry())
        versions.append(version)
    return versions[0]


def keep_cells(run: Run, cells: str) -> None:
    """Keep the executed cells of a notebook, as a script, as an artifact of its run, which has no main file."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, EXECUTED_CELLS)
            path.write_text(cells, encoding="utf-8", errors="surrogateescape")
            run.add_artifact(str(path))
    except (OSError, ArtifactError) as error:  # the run itself goes on
        _log.warning("the executed cells of the notebook are not kept: %s", error)


def use_artifact(run: Run, reference: str) -> ArtifactVersion:
    """Return a version of an artifact, and note that a run used it; see `LabRun.use_artifact`.

    `reference` is `name`, `name:latest`, `name:v3`, or `name@` and the start of its digest.
    """
    recordings = _recordings(run)
    version = _find(run, reference, recordings)
    for recording in recordings:
        _store(recording.base).note_use(version, recording.uid)
        recording.note_artifact("artifacts_used", version.entry())
    return version


def _recordings(run: Run) -> list[Recording]:
    """Return the recordings of a run in folders, or else the one in the spool of a MongoObserver."""
    found = recordings_of(run.meta_info.get("uid"))
    if not found:
        raise ArtifactError(
            "artifacts: this run is not recorded, or is over; attach a FileObserver (-F my_runs) or a MongoObserver "
            "(-m db_name), and log and use artifacts while the run runs"
        )
    return found


def _find(run: Run, reference: str, recordings: list[Recording]) -> ArtifactVersion:
    wanted = parse_reference(reference)
    stores = [_store(recording.base) for recording in recordings]
    sources: list[ArtifactSource] = [o for o in run.observers if isinstance(o, ArtifactSource)]
    # A spool belongs to one run, and its numbers mean nothing to others.
    if recordings[0].is_spool and wanted.number is not None:
        version = _fetch(sources, reference, stores[0])
        if version is not None:
            return version
    not_there = []
    for store in stores:
        try:
            return store.resolve(reference)
        except ArtifactNotFoundError as error:
            not_there.append(error)
    version = _fetch(sources, reference, stores[0])
    if version is None:
        where = "".join(f"; neither is it at {source.label}" for source in sources)
        raise ArtifactNotFoundError(f"{not_there[0]}{where}") from not_there[0]
    return version


def _fetch(sources: list[ArtifactSource], reference: str, store: ArtifactStore) -> ArtifactVersion | None:
    found = (source.fetch_artifact(reference, store.root) for source in sources)
    return next((version for version in found if version is not None), None)


@functools.cache
def _store(basedir: Path) -> ArtifactStore:
    return ArtifactStore(basedir)
