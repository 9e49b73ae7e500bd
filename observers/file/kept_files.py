"""Keeping the files that a run reads (resources) and makes (artifacts); recording continues while they are copied."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

from sacristan.observers.errors import ArtifactError
from sacristan.observers.file.recording import Recording
from sacristan.observers.record.numbered_folder import artifact_path, make_numbered_folder
from sacristan.observers.record.safe_paths import file_name
from sacristan.observers.record.schema import DESTINATION, EARLIER_FOLDER
from sacristan.observers.record.stored_files import copy_file, keep, open_file, path_below

__all__ = ["keep_artifact", "keep_resource"]


def keep_resource(recording: Recording, filename: str, store: Path, *, copy: bool) -> None:
    """Keep the content of a file that the run read.

    Without `copy`, a file below the folder of runs is listed where it is; others are always copied. If the store cannot
    be written, `run.json` lists the file as lost.
    """
    try:
        stored = None if copy else path_below(recording.base, Path(filename))
        stored = stored or keep(Path(filename), store, recording.base)
    except OSError as error:
        with recording.lock:
            recording.run.add_once("lost_resources", str(filename))
        reason = f"{store} cannot be written ({error.strerror})"
        raise ArtifactError(f"{filename} cannot be kept as a resource: {reason}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{filename} cannot be kept as a resource: {error}") from error
    with recording.lock:
        recording.journal.note_file(recording.base / stored)
        recording.run.add_resource(filename, stored)


def keep_artifact(
    recording: Recording,
    name: str,
    filename: str | Path,
    metadata: dict[str, Any] | None,
    content_type: str | None,
    *,
    copy: bool,
) -> None:
    """Keep a file that the run made, in the run's folder; without `copy`, list it where it is.

    `name` is also its path in the folder. If it is the file's own name, `file_name` makes it valid.
    """
    file = Path(filename).absolute()
    with recording.lock:
        recording.stay_in_folder()
    name = file_name(file) if name == file.name else name
    target = artifact_path(recording.folder, name)
    is_there = file.resolve() == target
    if is_there or not copy:
        open_file(file).close()
    else:
        _copy(recording, name, Path(filename), target)
    left_at = None if is_there or copy else file
    with recording.lock:
        if left_at is None:
            recording.journal.note_file(target)
        recording.add_artifact(name, metadata, content_type, left_at)


def _copy(recording: Recording, name: str, file: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _keep_earlier(recording, name, target, file)
        copy_file(file, target)
    except OSError as error:
        raise ArtifactError(
            f"{file}: it cannot be kept in {recording.folder} ({error.strerror}); make room or check its "
            "permissions, and add it again"
        ) from error


def _keep_earlier(recording: Recording, name: str, target: Path, new: Path) -> None:
    """Keep an artifact whose name another file gets, if the run is delivered to a database.

    As with Sacred, the database has both, and the folder has the last one under the name.
    """
    if name not in recording.run.entry["artifacts"] or not (recording.folder / DESTINATION).exists():
        return
    filecmp.clear_cache()
    if not target.is_file() or filecmp.cmp(new, target, shallow=False):
        return
    folder, _ = make_numbered_folder(recording.folder / EARLIER_FOLDER)
    kept = folder / target.name
    try:
        kept.hardlink_to(target)
    except OSError:  # the file system has no hard links
        copy_file(target, kept)
    with recording.lock:
        recording.journal.note_file(kept)
        recording.run.add_earlier_artifact(name, kept.relative_to(recording.folder).as_posix())
