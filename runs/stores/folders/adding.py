"""Moving a staged run into a folder of runs, with the contents that it names."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.record.run_folder import make_numbered_folder
from sacristan.observers.record.schema import RUN, read_json_if_whole
from sacristan.observers.record.stored_files import is_as_named, make_shared
from sacristan.runs.stores.changes import StagedRun

__all__ = ["RELATIONS", "move_in"]

# Lists of artifact versions in a record, and what the store of artifacts calls the run's relation to them.
RELATIONS = {"artifacts_logged": "made", "artifacts_used": "used"}


def move_in(staged: StagedRun, store: Path, number: int) -> str:
    """Move a run into a folder of runs: first its contents, then the run, in one step; return its id there.

    The caller has claimed the folder. The id is `number`, or the next free one if that is taken.
    """
    beside = staged.folder.parent
    for name in ("_sources", "_resources"):
        _move_contents(beside / name, store / name)
    _take_versions(staged, beside, store)
    folder, _ = make_numbered_folder(store, number)
    # Replaces an empty folder atomically.
    staged.folder.replace(folder)
    return folder.name


def _move_contents(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        make_shared(target, target.parent)
        if is_as_named(target / path.name):
            os.utime(target / path.name)
        else:
            path.replace(target / path.name)


def _take_versions(staged: StagedRun, beside: Path, store: Path) -> None:
    """Copy versions of artifacts, and write this store's numbers of them into the record."""
    record = read_json_if_whole(staged.folder / RUN)
    if not any(relation in record for relation in RELATIONS):
        return
    target, source = ArtifactStore(store), ArtifactStore(beside)
    for relation, mark in RELATIONS.items():
        for entry in record.get(relation, ()):
            version = target.take(source.resolve(f"{entry['name']}@{entry['digest']}"))
            target.note_run(mark, version, staged.uid)
            entry["version"] = version.version
    (staged.folder / RUN).write_text(json.dumps(record, indent=2))
