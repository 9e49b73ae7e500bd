"""Artifacts of a run: kept by its observers, logged in every folder that records it, looked up, named by aliases."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacred.run import Run

from sacristan.observers.errors import ArtifactError, ArtifactNotFoundError
from sacristan.observers.file.recording import Recording, recordings_of
from sacristan.observers.record.identity import USED_ARTIFACTS_VARIABLE
from sacristan.observers.record.interface import ArtifactObserver, ArtifactSource
from sacristan.observers.record.json_text import parse_json

if TYPE_CHECKING:
    from sacristan.observers.artifacts import ArtifactVersion
    from sacristan.observers.artifacts.store import ArtifactStore

_log = logging.getLogger(__name__)


def keep_artifact(
    run: Run, name: str, filename: str, metadata: dict[str, Any] | None, content_type: str | None
) -> None:
    """Give a file to all observers, as Sacred's `Run.add_artifact`; then raise if one could not keep it."""
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
    """Log an artifact in every folder that records the run; return the version in the first."""
    versions = []
    for recording in _recordings(run):
        version = _store(recording.base).log(name, path, type, metadata, recording.uid)
        recording.note_artifact("artifacts_logged", version.entry())
        versions.append(version)
    return _with_keeper(run, versions[0])


def use_artifact(run: Run, reference: str) -> ArtifactVersion:
    """Return a version of an artifact, and note that a run used it; see `LabRun.use_artifact`."""
    recordings = _recordings(run)
    from sacristan.observers.artifacts import parse_reference

    moves = parse_reference(reference).moves
    version = _find(run, _used_before(reference, recordings) if moves else reference, recordings)
    for recording in recordings:
        _store(recording.base).note_use(version, recording.uid)
        recording.note_artifact("artifacts_used", version.entry() | ({"reference": reference} if moves else {}))
    return _with_keeper(run, version)


def _used_before(reference: str, recordings: list[Recording]) -> str:
    """Return the version that a run, or the run that it reproduces, got for a reference; otherwise the reference.

    So an alias names one version for the whole run, unless the run moves it itself; not `latest`, which it may log.
    """
    from sacristan.observers.artifacts import parse_reference

    reproduced = parse_json(os.environ.get(USED_ARTIFACTS_VARIABLE) or "{}")
    if reference in reproduced:
        _log.info("%s is %s, as in the run that is reproduced", reference, reproduced[reference])
        return str(reproduced[reference])
    wanted, record = parse_reference(reference), recordings[0].run.entry
    moved = [(entry["name"], entry["alias"]) for entry in record.get("artifacts_aliased", ())]
    if wanted.alias is None or (wanted.name, wanted.alias) in moved:
        return reference
    used = [entry for entry in record.get("artifacts_used", ()) if entry.get("reference") == reference]
    return f"{wanted.name}@{used[0]['digest']}" if used else reference


def _with_keeper(run: Run, version: ArtifactVersion) -> ArtifactVersion:
    """Return a version whose aliases are moved wherever the run is recorded."""
    return dataclasses.replace(version, keeper=_RunAliases(run))


class _RunAliases:
    """Keeps the aliases of versions in every folder that a run is recorded in; the database follows."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def move_alias(self, version: ArtifactVersion, alias: str, was: int | str | None) -> None:
        self._note(version, alias, was, is_removed=False)

    def remove_alias(self, version: ArtifactVersion, alias: str) -> None:
        self._note(version, alias, None, is_removed=True)

    def aliases_of(self, version: ArtifactVersion) -> list[str]:
        from sacristan.observers.artifacts.aliases import named_by

        recording = _recordings(self._run)[0]
        moved = [each for each in recording.run.entry.get("artifacts_aliased", ()) if each["name"] == version.name]
        places = [_store(recording.base).named(version.name)]
        places += [{each["alias"]: (each["time"], None if "removed" in each else each["digest"])} for each in moved]
        if recording.is_spool or _stored(recording, version) is None:
            for source in _sources(self._run):
                try:
                    places.append(dict(source.artifact_aliases(version.name)))
                except ArtifactError as error:  # an outage does not end a training
                    _log.warning("the aliases of %s there are not known: %s", version, error)
        return named_by(places, version.digest)

    def _note(self, version: ArtifactVersion, alias: str, was: int | str | None, *, is_removed: bool) -> None:
        from sacristan.observers.artifacts.aliases import check_alias, next_move

        self._run._owner.check("move aliases", ArtifactError)
        check_alias(alias)
        recordings = _recordings(self._run)
        if was is not None and recordings[0].is_spool:
            raise ArtifactError(
                f"{version.name}:{alias}: got was={was!r}, but this run is recorded in a database alone, which gets "
                "the move later; leave it out, or use: sacristan artifacts alias --was"
            )
        for recording in recordings:
            store, stored = _store(recording.base), _stored(recording, version)
            if stored is None and not _sources(self._run):
                stored = store.resolve(f"{version.name}@{version.digest}")  # which says what is wrong
            if stored is None or (recording.is_spool and is_removed):  # the database alone has it
                move = next_move(None, version.name, alias, (version.version, version.digest))
            elif is_removed:
                move = store.alias(stored.name, alias, None, stored.version, run=recording.uid)
            else:
                move = store.alias(stored.name, alias, stored.version, was, run=recording.uid)
            entry = {"name": version.name, "digest": version.digest, "alias": alias, "by": move.by, "time": move.time}
            recording.note_artifact("artifacts_aliased", entry | ({"removed": True} if is_removed else {}))


def _stored(recording: Recording, version: ArtifactVersion) -> ArtifactVersion | None:
    """Return a version with its number in the folder of a recording; None if only a database has it."""
    try:
        return _store(recording.base).resolve(f"{version.name}@{version.digest}")
    except ArtifactNotFoundError:
        return None


def _sources(run: Run) -> list[ArtifactSource]:
    return [observer for observer in run.observers if isinstance(observer, ArtifactSource)]


def _recordings(run: Run) -> list[Recording]:
    """Return the recordings of a run in folders, or else the one in the spool of a MongoObserver."""
    recordings = recordings_of(run.meta_info.get("uid"))
    if not recordings:
        raise ArtifactError(
            "artifacts: this run is not recorded, or is over; attach a FileObserver (-F my_runs) or a MongoObserver "
            "(-m db_name), and log and use artifacts while the run runs"
        )
    return recordings


def _find(run: Run, reference: str, recordings: list[Recording]) -> ArtifactVersion:
    from sacristan.observers.artifacts import parse_reference

    wanted = parse_reference(reference)
    stores = [_store(recording.base) for recording in recordings]
    sources = _sources(run)
    # A spool belongs to one run, and its numbers mean nothing to others.
    if recordings[0].is_spool and (wanted.number is not None or wanted.alias is not None):
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
    versions = (source.fetch_artifact(reference, store.root) for source in sources)
    return next((version for version in versions if version is not None), None)


@functools.cache
def _store(basedir: Path) -> ArtifactStore:
    from sacristan.observers.artifacts.store import ArtifactStore

    return ArtifactStore(basedir)
