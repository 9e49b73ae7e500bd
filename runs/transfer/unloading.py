"""Writing a run of any store into a folder, in the layout of `observers.record.schema`, with all that it holds.

Nothing of a record is trusted: names that lead out of the folder, files that are links, and entries of the wrong kind
are left out, and said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from observers.artifacts.store import ArtifactStore
from observers.artifacts.version import ArtifactError, check_name
from observers.mongo.delivery import MARKER
from observers.mongo.destination import DESTINATION_FILE
from observers.record.atomic_file import replacing
from observers.record.journal import Journal
from observers.record.schema import (
    CONFIG,
    FORMAT,
    INFO,
    LEASE,
    LIVE,
    MAX_SACRED_POINTS,
    MEDIA,
    MEDIA_FOLDER,
    NAMES,
    NOTES,
    OUTPUT,
    OWN_FILES,
    POINT,
    POINTS,
    PROVENANCE,
    RUN,
    SACRED_METRICS,
    SUMMARY,
    TICKS_PER_S,
    VALUES,
    Series,
    media_path,
    read_names,
    summarize,
)
from runs.errors import StoreError
from runs.stores.content import Content
from runs.stores.run import Run

__all__ = ["Unloaded", "relative_path", "unload"]

# What says where a run was delivered to is the folder's own.
_LEFT = {MARKER, DESTINATION_FILE}
_TIMES = ("start_time", "stop_time", "heartbeat", "queue_time")
_ELSEWHERE = ("_id", "config", "info", "summary", "provenance", "captured_out", "captured_out_file", "values_file")
_ELSEWHERE += ("lease", "tags", "note", "removing", "reproductions", "rewinding", "delivery_turn")
_RELATIONS = {"artifacts_logged": "made", "artifacts_used": "used"}
_CHUNK_BYTES = 2**20


@dataclasses.dataclass
class Unloaded:
    """A run in a folder.

    Attributes:
        folder: The run's folder; sources, resources and versions of artifacts are beside it.
        uid: Its id over all stores.
        left_out: What could not be taken over, a sentence each.
    """

    folder: Path
    uid: str
    left_out: list[str]


def unload(run: Run, base: Path, name: str = "1") -> Unloaded:
    """Write a run into the folder `name` of `base`.

    Raises:
        StoreError: If its record cannot be read, or `base` cannot be written.
    """
    try:
        return _Unloading(run, base, name).unload()
    except OSError as error:
        raise StoreError(f"run {run.id} cannot be written to {base} ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"the record of run {run.id} is damaged ({type(error).__name__}: {error})") from error


def relative_path(name: str) -> PurePosixPath | None:
    """Return a name as a path below a folder; None if it is none that stays there on every system."""
    path = PurePosixPath(name)
    parts = name.split("/")
    odd = any(ord(letter) < 32 or ord(letter) == 127 for letter in name) or "\\" in name or ":" in parts[0]
    if (
        not name
        or odd
        or path.is_absolute()
        or {"", ".", ".."} & set(parts)
        or any(len(p.encode()) > 255 for p in parts)
    ):
        return None
    return path


def uid_of(run: Run) -> str:
    """Return the run's uid; of one without, one made from its record, the same each time."""
    if run.uid and re.fullmatch("[0-9a-f]{32}", run.uid):
        return run.uid
    experiment = run["experiment"]
    base = experiment.get("base_dir") if isinstance(experiment, dict) else None
    start = run.start_time
    milliseconds = (
        0 if start is None else max(0, (start.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(milliseconds=1))
    )
    known = [run.id, run.uid, run.name, base, run.command, str(start), run["host"], run["config"]]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    return f"{milliseconds % 16**12:012x}{digest.hexdigest()[:20]}"


class _Unloading:
    def __init__(self, run: Run, base: Path, name: str) -> None:
        self.run = run
        self.base = base
        self.folder = base / name
        self.left_out: list[str] = []
        self.uid = uid_of(run)

    def unload(self) -> Unloaded:
        self.folder.mkdir(parents=True)
        origin = getattr(self.run, "folder", None)
        is_whole = origin is not None and str(self.run.document.get("format", "")).startswith("sacristan")
        if is_whole:
            self._copy_folder(origin)
        else:
            self._write_parts()
            self._write_metrics()
            self._write_media()
        entry = self._entry()
        entry["artifacts"] = self._artifacts()
        details = {name: one for name, one in self.run.artifact_details().items() if name in entry["artifacts"]}
        entry |= {"artifact_details": details} if details else {}
        entry["experiment"]["sources"] = self._stored("sources")
        entry["resources"] = self._stored("resources")
        for relation in _RELATIONS:
            if relation in entry:
                entry[relation] = self._versions(relation, entry[relation])
        notes = self.run.notes()
        if any(notes.values()):
            self._write(NOTES, notes)
        self._write(RUN, entry)  # last: without it there is no run
        return Unloaded(self.folder, self.uid, self.left_out)

    def _write(self, name: str, document: Any) -> None:
        with replacing(self.folder / name, durable=False) as stream:
            stream.write(json.dumps(document, indent=2).encode())

    # ------------------------------------------------------------------ a folder of ours, as it is

    def _copy_folder(self, origin: Path) -> None:
        # What cannot be read here would be found out only by those who read the copy.
        read_names(origin)
        self.run.media_entries()
        for path in sorted(origin.rglob("*")):
            name = path.relative_to(origin)
            if path.is_symlink():
                self.left_out.append(f"{name.as_posix()!r}: it is a link")
            elif path.is_file() and not self._is_left(name):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, self.folder / name)
        if (self.folder / LIVE).exists():
            journal = Journal(self.folder)
            journal.recover()
            journal.close()

    def _is_left(self, name: Path) -> bool:
        is_unfinished = name.name.startswith(".") and name.name.endswith(".tmp")
        return is_unfinished or (len(name.parts) == 1 and name.name in {*_LEFT, RUN, NOTES})

    # ------------------------------------------------------------------ anything else, part by part

    def _write_parts(self) -> None:
        info = self.run["info"] or {}
        self._write(CONFIG, self.run["config"] or {})
        self._write(INFO, {k: v for k, v in info.items() if k != "metrics" or not _is_list_of_metrics(v)})
        if self.run.provenance:
            self._write(PROVENANCE, self.run.provenance)
        if self.run.lease is not None:
            self._write(LEASE, self.run.lease)
        (self.folder / OUTPUT).write_bytes(self.run.read_output()[0])
        odd = self.run.odd_values()
        if odd:
            (self.folder / VALUES).write_bytes(odd)

    def _write_metrics(self) -> None:
        names = self.run.metrics
        if not names:
            return
        rows, sacred, summary, total = [], {}, {}, 0
        stored = self.run.summary
        with (self.folder / POINTS).open("wb") as points:
            for number, name in enumerate(names):
                self.run.store.tell(f"metrics of run {self.run.id}", number, len(names))
                series = self.run.metric(name)
                as_float = series.steps.dtype == np.float64
                rows.append({"id": number, "name": name, **({"steps": "float"} if as_float else {})})
                points.write(_as_points(series, number).tobytes())
                total += len(series)
                if len(series):
                    summary[name] = stored.get(name) or summarize(series.values, series.steps)
                if total <= MAX_SACRED_POINTS:
                    sacred[name] = self._as_sacred(series)
        self.run.store.tell(f"metrics of run {self.run.id}", len(names), len(names))
        (self.folder / NAMES).write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        self._write(SUMMARY, summary)
        if 0 < total <= MAX_SACRED_POINTS:
            self._write(SACRED_METRICS, sacred)

    def _as_sacred(self, series: Series) -> dict[str, list]:
        start = (self.run.start_time or datetime(1970, 1, 1)).replace(tzinfo=None)
        times = np.nan_to_num(series.times).tolist()
        stamps = [(start + timedelta(seconds=seconds)).isoformat() for seconds in times]
        return {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}

    def _write_media(self) -> None:
        lines = []
        for entry, contents in self.run.media_entries():
            with contextlib.suppress(ValueError):
                media_path(self.folder, entry.get("file"))
                lines.append(json.dumps(entry).encode() + b"\n")
            for content in contents:
                self._write_medium(content)
        if lines:
            (self.folder / MEDIA).write_bytes(b"".join(lines))

    def _write_medium(self, content: Content) -> None:
        try:
            path = media_path(self.folder, content.name)
        except ValueError:
            self.left_out.append(f"media {content.name!r}: that is no name of a content")
            return
        if path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        try:
            with content.open() as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
        except StoreError as error:
            self.left_out.append(str(error))

    # ------------------------------------------------------------------ the record

    def _entry(self) -> dict[str, Any]:
        """Return the record, with what everybody who reads it counts on."""
        document = self.run.document
        entry = {key: value for key, value in document.items() if key not in _ELSEWHERE}
        for key in [key for key in entry if key.endswith("_file") and isinstance(entry[key], list)]:
            entry[key.removesuffix("_file")] = entry.pop(key)  # all of what was cut off in the document
        experiment = entry.get("experiment")
        experiment = (
            {k: v for k, v in experiment.items() if k != "sources_file"} if isinstance(experiment, dict) else {}
        )
        entry |= {"format": FORMAT, "uid": self.uid, "experiment": experiment}
        if document.get("uid") is None:
            entry["copied_from"] = {"store": self.run.store.where, "id": self.run.id, "by": "sacred"}
        if not isinstance(entry.get("status"), str):
            entry["status"] = str(entry.get("status"))
        for key in _TIMES:
            try:
                datetime.fromisoformat(entry[key])
            except (KeyError, TypeError, ValueError):
                if entry.pop(key, None) is not None:
                    self.left_out.append(f"{key}: it is no time")
        if "start_time" not in entry and "queue_time" not in entry:
            entry["start_time"] = entry.get("heartbeat") or entry.get("stop_time") or "1970-01-01T00:00:00"
        entry.setdefault("heartbeat", None)
        return entry

    def _artifacts(self) -> list[str]:
        found = []
        for name, content in self.run.artifacts.items():
            path = relative_path(name)
            if path is None or path.parts[0] in OWN_FILES | _LEFT | {MEDIA_FOLDER}:
                self.left_out.append(f"artifact {name!r}: no file of a run's folder may be called so")
                continue
            target = self.folder / path
            try:
                if not target.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with content.open() as source, replacing(target, durable=False) as stream:
                        shutil.copyfileobj(source, stream, _CHUNK_BYTES)
            except (StoreError, OSError) as error:
                self.left_out.append(f"artifact {name!r}: {error}")
            else:
                found.append(name)
        return found

    def _stored(self, kind: str) -> list[list[str]]:
        pairs = []
        for content in self.run.stored(kind):
            try:
                with content.open() as stream:
                    pairs.append([content.name, self._keep(stream, content.name, self.base / f"_{kind}")])
            except (StoreError, IsADirectoryError) as error:
                self.left_out.append(f"{kind.removesuffix('s')} {content.name!r}: {error}")
                pairs.append([content.name, ""])
        return pairs

    def _keep(self, stream: Any, name: str, store: Path) -> str:
        """Keep a content under the name that `FileObserver` gives it, and return that from the base folder."""
        store.mkdir(exist_ok=True)
        # No name from outside: any that is safe will do, the digest tells them apart.
        path = PurePosixPath(re.sub(r"[^\w.+ -]", "_", PurePosixPath(name).name) or "_")
        digest = hashlib.md5(usedforsecurity=False)
        with replacing(store / ".incoming", durable=False) as target:
            while piece := stream.read(_CHUNK_BYTES):
                digest.update(piece)
                target.write(piece)
        kept = store / f"{path.stem[:100]}_{digest.hexdigest()}{path.suffix[:20]}"
        (store / ".incoming").replace(kept)
        return f"{store.name}/{kept.name}"

    def _versions(self, relation: str, entries: Any) -> list[dict[str, Any]]:
        store, found = ArtifactStore(self.base), []
        for entry in entries if isinstance(entries, list) else ():
            try:
                if not isinstance(entry, dict) or not re.fullmatch("[0-9a-f]{64}", str(entry.get("digest"))):
                    raise ArtifactError(f"got {entry!r}, expected a version with name and digest")
                check_name(entry.get("name"))
                version = store.take(self.run.fetch_version(entry, self.base))
                store.note_run(_RELATIONS[relation], version, self.uid)
            except ArtifactError as error:
                self.left_out.append(f"a version of an artifact: {error}")
            else:
                found.append({**entry, **version.entry()})
        return found


def _is_list_of_metrics(value: Any) -> bool:
    """Tell whether it is the list of metrics that Sacred's MongoDB schema has in the info."""
    return isinstance(value, list) and all(isinstance(one, dict) and set(one) == {"name", "id"} for one in value)


def _as_points(series: Series, number: int) -> np.ndarray:
    points = np.zeros(len(series), POINT)
    points["metric"] = number
    ticks = np.rint(np.nan_to_num(series.times) * TICKS_PER_S)
    points["time"] = np.clip(ticks, 0, 2**32 - 1).astype(np.uint32)
    points["step"] = series.steps.view("<i8") if series.steps.dtype == np.float64 else series.steps
    points["value"] = series.values
    return points
