"""Samples of other trackers, and what their imports are compared by."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from sacristan.runs import ImportedRun, Run, Store, import_foreign

__all__ = ["LOSSES", "SAMPLES", "digest_of", "num_torn", "points_of", "take", "unpack"]

SAMPLES = Path(__file__).parent / "data" / "trackers"
LOSSES = [1 / (step + 1) for step in range(40)]


def unpack(name: str, folder: Path) -> Path:
    """Unpack the sample of a tracker into `from` below a folder, and return its place."""
    with zipfile.ZipFile(SAMPLES / f"{name}.zip") as archive:
        archive.extractall(folder / "from")
    return folder / "from"


def take(path: Path, store: Store, **options: Any) -> list[ImportedRun]:
    """Import what lies at a path, and return the outcomes."""
    return list(import_foreign(path, store, **options))


def points_of(run: Run) -> dict[str, tuple[list[int], list[str]]]:
    """Return steps and values by metric, as texts that tell NaN and infinities apart."""
    series = {name: run.metric(name) for name in run.metrics}
    return {name: (each.steps.tolist(), [*map(repr, each.values.tolist())]) for name, each in series.items()}


def digest_of(path: Path) -> str:
    """Hash the names, times and contents of a source's files."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path, *sorted(path.parent.glob(f"{path.name}*"))]:
        digest.update(f"{file} {file.stat().st_mtime_ns}".encode())
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def num_torn(data: bytes) -> int:
    """Count the bytes behind the last whole record of an event file."""
    at = 0
    while at + 12 <= len(data) and at + 16 + int.from_bytes(data[at : at + 8], "little") <= len(data):
        at += 16 + int.from_bytes(data[at : at + 8], "little")
    return len(data) - at
