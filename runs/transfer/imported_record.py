"""The record of an imported run: what a reader returned, in the layout of the lab's own runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.files import relative_path
from sacristan.observers.record.media_files import MediaFiles
from sacristan.observers.record.points.points import TICKS_PER_S, Series
from sacristan.observers.record.schema import CONFIG, FORMAT, INFO, MEDIA_FOLDER, NOTES, OUTPUT, RUN
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.changes import StagedRun
from sacristan.runs.stores.notes import MOST_LETTERS, one_line
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.metric_files import write_series
from sacristan.runs.transfer.trackers.foreign_run import Curve, ForeignRun

__all__ = ["StagedImport", "start_of"]

# The folder of an imported run's files, apart from those of the record.
_FILES = "files"
_EPOCH = datetime(1970, 1, 1)
# The greatest time of a point after the start.
_MOST_S = (2**32 - 1) / TICKS_PER_S


def start_of(run: ForeignRun) -> float:
    """Return the earlier of a run's start and its first point, in seconds since 1970; without them, its end, or 0."""
    first = min((float(np.nanmin(curve.times)) for curve in run.curves if _has_times(curve)), default=None)
    known = [time for time in (run.started, first) if time is not None]
    return min(known) if known else run.stopped or 0.0


class StagedImport:
    """Writes a run in the layout of `sacristan.observers.record.schema`.

    Args:
        imported: What its record says about its origin.
        earlier: The run that it replaces, which hands on its notes; None for none.
    """

    def __init__(
        self,
        run: ForeignRun,
        uid: str,
        imported: dict[str, Any],
        folder: Path,
        tags: Collection[str],
        earlier: Run | None,
    ) -> None:
        self.run, self.uid, self.imported, self.folder = run, uid, imported, folder
        self.tags, self.earlier = tags, earlier
        self.left_out = list(run.left_out)
        self.started = start_of(run)

    def write(self) -> StagedRun:
        """Write everything; `run.json` comes last, as there is no run without it."""
        try:
            self.folder.mkdir(parents=True)
            self._write(CONFIG, self.run.config)
            self._write(INFO, self.run.info)
            (self.folder / OUTPUT).write_bytes(self.run.output)
            if self.run.curves:
                write_series(self.folder, self._each_series(), _EPOCH + timedelta(seconds=self.started))
            self._write_media()
            artifacts = self._copy_artifacts()
            self._write_notes()
            used = self._keep_used()
            self._write(RUN, self._entry(artifacts) | ({"artifacts_used": used} if used else {}))
        except ArtifactError as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            raise StoreError(f"{self.folder.parent} cannot be written ({error.strerror or error})") from error
        return StagedRun(self.folder, self.uid, tuple(self.left_out))

    def _write(self, name: str, document: Any) -> None:
        (self.folder / name).write_text(json.dumps(document, indent=2, default=str))

    def _each_series(self) -> Iterator[tuple[str, Series]]:
        for curve in self.run.curves:
            times = np.where(np.isnan(curve.times), 0.0, curve.times - self.started)
            if times.max(initial=0.0) > _MOST_S:
                self.left_out.append(f"times of {curve.name!r} more than 497 days after the start")
            yield curve.name, Series(curve.steps, curve.values, np.minimum(times, _MOST_S))

    def _write_media(self) -> None:
        def fail(path: Path, error: OSError) -> None:
            raise error

        if not self.run.media:
            return
        (self.folder / MEDIA_FOLDER).mkdir()
        files = MediaFiles(self.folder, fail)
        for entry in self.run.media:
            files.add(entry, max(0.0, entry.time - self.started) if entry.time == entry.time else 0.0)
        files.entries.close()

    def _copy_artifacts(self) -> list[str]:
        names = []
        for name, path in self.run.artifacts.items():
            target = relative_path(f"{_FILES}/{name}")
            if target is None:
                self.left_out.append(f"file {name!r}: no file of a run may be called so")
                continue
            try:
                (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
                if (self.folder / target).exists():
                    raise FileExistsError
                source = path.open("rb")
            except (FileExistsError, NotADirectoryError):
                self.left_out.append(f"file {name!r}: another file or folder of the run has that name")
                continue
            except OSError as error:
                self.left_out.append(f"file {name!r}: {error.strerror}")
                continue
            with source, (self.folder / target).open("wb") as stream:
                shutil.copyfileobj(source, stream, 2**20)
            names.append(target.as_posix())
        return names

    def _keep_used(self) -> list[dict[str, Any]]:
        """Keep the description of each data set as a version of an artifact, which other runs may have used, too."""
        if not self.run.used:
            return []
        store = ArtifactStore(self.folder.parent)
        versions = {}
        for name, description in self.run.used.items():
            path = self.folder / "dataset.json"
            path.write_text(json.dumps(description, indent=2, sort_keys=True, default=str))
            version = store.log(re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", name).strip("-")[:128] or "data", path)
            versions[str(version)] = version
            path.unlink()
        for version in versions.values():
            store.note_run("used", version, self.uid)
        return [version.entry() for version in versions.values()]

    def _write_notes(self) -> None:
        notes: dict[str, Any] = {} if self.earlier is None else dict(self.earlier.notes())
        tags = [re.sub(r"[^\w-]+", "-", tag).strip("-") for tag in self.run.tags]
        notes["tags"] = {tag: True for tag in (*(notes.get("tags") or {}), *tags, *self.tags) if tag}
        notes["note"] = notes.get("note") or self.run.note
        if self.earlier is None:  # a person may have taken the name away since
            notes["display_name"] = one_line(self.run.title[:MOST_LETTERS])
        if any(notes.values()):
            self._write(NOTES, notes)

    def _entry(self, artifacts: list[str]) -> dict[str, Any]:
        run = self.run
        stopped = max(self.started, run.stopped if run.stopped is not None else self.started)
        title = {"comment": run.title} if run.title else {}
        return {
            "format": FORMAT,
            "uid": self.uid,
            "experiment": {
                "name": run.experiment,
                "base_dir": "",
                "sources": [],
                "dependencies": [],
                "repositories": [],
            },
            "command": "imported",
            "command_line": list(run.command),
            "host": run.host,
            "start_time": _text(self.started),
            "stop_time": _text(stopped),
            "heartbeat": _text(stopped),
            "status": run.status,
            "result": run.result,
            "meta": {"command": "imported", "options": {}, **title},
            "resources": [],
            "artifacts": artifacts,
            "imported": {**self.imported, **({"left_out": self.left_out} if self.left_out else {})},
        }


def _has_times(curve: Curve) -> bool:
    return bool(len(curve)) and not np.isnan(curve.times).all()


def _text(seconds: float) -> str:
    """Return seconds since 1970 as records hold times: ISO 8601 in UTC, without a zone."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
