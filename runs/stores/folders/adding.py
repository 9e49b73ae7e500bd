"""Moving a run that was made ready into a folder of runs, with the contents that it names."""

from __future__ import annotations

import json
import os
from pathlib import Path

from observers.artifacts.store import ArtifactStore
from observers.record.numbered_folder import make_numbered_folder
from observers.record.schema import RUN
from observers.record.stored_files import is_as_named
from runs.query.index.folders import read_json
from runs.stores.adding import StagedRun

__all__ = ["RELATIONS", "move_in"]

# What a record calls versions of artifacts, and what the store of artifacts calls the run.
RELATIONS = {"artifacts_logged": "made", "artifacts_used": "used"}


def move_in(staged: StagedRun, store: Path) -> str:
    """Move a run into the folder `store` at once, after its contents; return its id there."""
    beside = staged.folder.parent
    for name in ("_sources", "_resources"):
        _move_contents(beside / name, store / name)
    _take_versions(staged, beside, store)
    folder, number = make_numbered_folder(store)
    # It takes the place of an empty folder at once.
    staged.folder.replace(folder)
    return str(number)


def _move_contents(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        target.mkdir(exist_ok=True)
        if is_as_named(target / path.name):
            os.utime(target / path.name)
        else:
            path.replace(target / path.name)


def _take_versions(staged: StagedRun, beside: Path, store: Path) -> None:
    """Take versions of artifacts, and let the record name them by their numbers here."""
    record = read_json(staged.folder / RUN)
    if not any(relation in record for relation in RELATIONS):
        return
    ours, theirs = ArtifactStore(store), ArtifactStore(beside)
    for relation, mark in RELATIONS.items():
        for entry in record.get(relation, ()):
            version = ours.take(theirs.resolve(f"{entry['name']}@{entry['digest']}"))
            ours.note_run(mark, version, staged.uid)
            entry["version"] = version.version
    (staged.folder / RUN).write_text(json.dumps(record, indent=2))
