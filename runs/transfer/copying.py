"""Copying complete runs from any store into any other; a second copy changes nothing.

A copy keeps the run's uid. A run of stock Sacred has none; it gets one that is computed from its record, so that
copying it twice makes one copy.

The aliases of its versions come along, with all their moves, unless both stores have moved them on their own.

Runs are staged first: written to a folder in the layout of `sacristan.observers.record.schema`. No record is trusted:
names that lead out of the folder, links, and entries of wrong types are left out and reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from sacristan.observers.artifacts import check_name, is_name
from sacristan.observers.artifacts.store import RELATIONS, ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record import schema
from sacristan.observers.record.files import open_regular, relative_path, replacing
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.media_files import media_path
from sacristan.observers.record.points import POINT, TICKS_PER_S, Series, summarize
from sacristan.observers.record.points.intact_points import entries_of, has_latest_points
from sacristan.runs.errors import DamagedError, StoreError
from sacristan.runs.query import list_of, mapping_of, without_zone
from sacristan.runs.stores import HELD, Aliases, Content, Copied, Run, StagedRun, Store

# Files on deliveries and workers, which concern the original folder only.
_LEFT = {schema.DELIVERED, schema.DESTINATION, schema.CLAIMS}
_TIMES = ("start_time", "stop_time", "heartbeat", "queue_time")
# Entries of a document in a database that are files here, or concern the database only.
_ELSEWHERE = frozenset(
    (
        "_id", "captured_out", "captured_out_file", "changes", "checkpoints", "claims", "config", "delivery_turn",
        "display_colour", "display_name", "info", "lease", "note", "notified", "provenance", "rank_outputs", "removing",
        "reproductions", "rewinding", "summary", "tags", "values_file",
    )
)  # fmt: skip
_CHUNK_BYTES = 2**20
_EPOCH = datetime(1970, 1, 1)


def copy(run: Run, store: Store, *, stays_queued: bool = False) -> Copied:
    """Copy a complete run into another store, unless a run with its uid is there.

    Args:
        run: A run that has ended, of any store; it is copied as it is now.
        store: The store to copy to; `open_store(where, create=True)` creates the folder of a new one.
        stays_queued: Whether workers of that store may start a QUEUED run; by default it becomes HELD.

    Returns:
        The run there, whether it is new, and what could not be copied.

    Raises:
        StoreError: If the run is running, its record cannot be read, or the store cannot be written. Then nothing was
            copied; a database may have a run with the status COPYING, which the next copy finishes.

    Example:
        with open_store("my_runs") as store, open_store("copies", create=True) as copies:
            copied = copy(store.get("latest"), copies)
            print(copied.run.id, copied.is_new, copied.left_out)
    """
    run = run.store.get(run.id)
    if run.is_living:
        raise StoreError(f"run {run.id} is running; copy it when it has ended")
    if not run.is_whole:
        raise StoreError(f"run {run.id} is incomplete: its status is {run.status}; repeat the interrupted command")
    with store.staging() as base:
        copied = store.add(stage(run, base, stays_queued=stays_queued))
    return dataclasses.replace(copied, left_out=(*copied.left_out, *carry_aliases(run, store)))


def carry_aliases(run: Run, store: Store) -> list[str]:
    """Carry over the aliases of a run's artifacts whose version is there; return those that stay as they are."""
    entries = [entry for relation in RELATIONS for entry in list_of(run.document.get(relation))]
    stay = []
    for name in sorted({str(mapping_of(entry).get("name")) for entry in entries}):
        if not is_name(name):  # such versions are left out
            continue
        try:
            moves = Aliases(run.store).moves(name)
            stay += store.aliases.follow(name, moves) if moves else []
        except StoreError as error:  # the run itself is whole
            stay.append(f"the aliases of {name}: {error}")
    return stay


def stage(run: Run, base: Path, name: str = "1", *, stays_queued: bool = False) -> StagedRun:
    """Write a run into a new folder, with the contents that it names beside it; the result is ready for `Store.add`.

    A QUEUED run becomes HELD unless `stays_queued`, which lets workers start it in its new store. DamagedError means
    that a content differs from its record.
    """
    try:
        return _Staging(run, base / name, stays_queued=stays_queued).write()
    except DamagedError as error:
        raise DamagedError(f"run {run.id}: {error}, or remove that content to take the run over without it") from error
    except OSError as error:
        raise StoreError(f"run {run.id} cannot be written to {base} ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"the record of run {run.id} is damaged ({type(error).__name__}: {error})") from error


class _Staging:
    def __init__(self, run: Run, folder: Path, *, stays_queued: bool) -> None:
        self.run, self.folder, self.stays_queued = run, folder, stays_queued
        self.left_out: list[str] = []
        self.uid = uid_of(run)

    def write(self) -> StagedRun:
        self.folder.mkdir(parents=True)
        origin = self.run.folder
        if origin is not None and str(self.run.document.get("format", "")).startswith("sacristan"):
            self._copy_folder(origin)
        else:
            self._write_parts()
            self._write_metrics()
            self._write_media()
            self._write_checkpoints()
        entry = self._entry()
        entry["artifacts"] = self._artifacts()
        details = {name: one for name, one in self.run.artifact_details().items() if name in entry["artifacts"]}
        entry |= {"artifact_details": details} if details else {}
        entry["experiment"]["sources"] = self._stored("sources")
        entry["resources"] = self._stored("resources")
        for relation in RELATIONS:
            if relation in entry:
                entry[relation] = self._versions(relation, entry[relation])
        notes = self.run.notes()
        if any(notes.values()):
            self._write(schema.NOTES, notes)
        self._write(schema.RUN, entry)  # last: without it there is no run
        return StagedRun(self.folder, self.uid, tuple(self.left_out))

    def _write(self, name: str, document: Any) -> None:
        with replacing(self.folder / name, durable=False) as stream:
            stream.write(json.dumps(document, indent=2).encode())

    # ------------------------------------------------------------------ copying a folder of the lab

    def _copy_folder(self, origin: Path) -> None:
        # Reject now what the readers of the copy could not read.
        schema.read_names(origin)
        self.run.media_entries()
        for path in sorted(origin.rglob("*")):
            name = path.relative_to(origin)
            if path.is_symlink():
                self.left_out.append(f"{name.as_posix()!r}: it is a link")
            elif not path.is_dir() and not self._is_left(name):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                self._copy_file(path, name)
        if has_latest_points(self.folder):
            journal = Journal(self.folder)
            journal.recover()
            journal.close()

    def _copy_file(self, path: Path, name: Path) -> None:
        try:
            source = open_regular(path)
        except OSError as error:
            self.left_out.append(f"{name.as_posix()!r}: {error.strerror}")
            return
        with source, (self.folder / name).open("wb") as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)
        if name.parts[0] == schema.MEDIA_FOLDER:
            self._check_medium(name)

    def _check_medium(self, name: Path) -> None:
        with (self.folder / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if re.fullmatch("[0-9a-f]{64}", name.stem) and digest != name.stem:
            raise DamagedError(
                f"medium {name.as_posix()!r} has the SHA-256 {digest}, recorded was {name.stem}: the store is damaged; "
                "restore the file from a backup"
            )

    def _is_left(self, name: Path) -> bool:
        is_unfinished = name.name.startswith(".") and name.name.endswith(".tmp")
        return (
            is_unfinished
            or name.parts[0] in (schema.CLAIMS, schema.NOTIFIED_FOLDER)
            or (len(name.parts) == 1 and name.name in _LEFT | {schema.RUN, schema.NOTES, schema.LOCK})
        )

    # ------------------------------------------------------------------ writing any other run, part by part

    def _write_parts(self) -> None:
        info = self.run["info"] or {}
        self._write(schema.CONFIG, self.run["config"] or {})
        self._write(schema.INFO, {k: v for k, v in info.items() if k != "metrics" or not _is_list_of_metrics(v)})
        if self.run.provenance:
            self._write(schema.PROVENANCE, self.run.provenance)
        lease = self.run.lease
        if lease is not None:
            self._write(schema.LEASE, lease)
        (self.folder / schema.OUTPUT).write_bytes(self.run.read_output()[0])
        if odd_values := self.run.odd_values():
            (self.folder / schema.VALUES).write_bytes(odd_values)
        for rank, content in self.run.rank_outputs.items():
            path = self.folder / schema.RANKS_FOLDER / f"{rank}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.read())

    def _write_metrics(self) -> None:
        run, names = self.run, self.run.logged_metrics  # curves in `info` are copied with it

        def each() -> Iterator[tuple[str, Series]]:
            for number, name in enumerate(names):
                run.store.tell(f"metrics of run {run.id}", number, len(names))
                yield name, run.metric(name)
            run.store.tell(f"metrics of run {run.id}", len(names), len(names))

        if names:
            write_series(self.folder, each(), without_zone(run.start_time) or _EPOCH)

    def _write_media(self) -> None:
        lines = []
        for entry, contents in self.run.media_entries():
            with contextlib.suppress(ValueError):
                media_path(self.folder, entry.get("file"))
                lines.append(json.dumps(entry).encode() + b"\n")
            for content in contents:
                try:
                    path = media_path(self.folder, content.name)
                except ValueError:
                    self.left_out.append(f"media {content.name!r}: that is not the name of a content")
                else:
                    self._write_content(content, path, "media")
        if lines:
            (self.folder / schema.MEDIA).write_bytes(b"".join(lines))

    def _write_checkpoints(self) -> None:
        for name, content in self.run.checkpoints.items():
            path = relative_path(name)
            if path is None or not path.parts[0].startswith("checkpoints") or len(path.parts) < 2:
                self.left_out.append(f"checkpoint {name!r}: no file of a run's folder may be called so")
                continue
            self._write_content(content, self.folder / path, f"checkpoint {name!r}")

    def _write_content(self, content: Content, path: Path, name: str) -> bool:
        """Write a content unless its file is there; return False if it is left out, as `name`."""
        if path.is_file():
            return True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=False) as target:
                content.write_to(target)
        except StoreError as error:
            self._leave_out(name, error)
            return False
        return True

    def _leave_out(self, name: str, error: Exception) -> None:
        """Report a file as missing; if it is damaged instead, raise a DamagedError."""
        if isinstance(error, DamagedError):
            raise DamagedError(f"{name.partition(' ')[0]} {error}") from error
        self.left_out.append(f"{name}: {error}")

    # ------------------------------------------------------------------ the record

    def _entry(self) -> dict[str, Any]:
        """Return the record, with the entries that every reader expects."""
        document = self.run.document
        entry = {key: value for key, value in document.items() if key not in _ELSEWHERE}
        for key in [key for key in entry if key.endswith("_file") and isinstance(entry[key], list)]:
            entry[key.removesuffix("_file")] = entry.pop(key)  # the whole list, which was cut off in the document
        experiment = {k: v for k, v in mapping_of(entry.get("experiment")).items() if k != "sources_file"}
        entry |= {"format": schema.FORMAT, "uid": self.uid, "experiment": experiment}
        if document.get("uid") is None:
            entry["copied_from"] = {"store": self.run.store.where, "id": self.run.id, "by": "sacred"}
        entry["status"] = self._status(str(entry.get("status")))
        self._check_times(entry)
        return entry

    def _status(self, status: str) -> str:
        if status not in ("QUEUED", HELD) or self.stays_queued:
            return status
        self.left_out.append(
            "its place in the queue: it brings its own code, and is HELD until you have looked at it and start it "
            "with: sacristan work --held ID"
        )
        return HELD

    def _check_times(self, entry: dict[str, Any]) -> None:
        """Remove invalid times, and add those that every reader expects."""
        for key in _TIMES:
            try:
                datetime.fromisoformat(entry[key])
            except (KeyError, TypeError, ValueError):
                if entry.pop(key, None) is not None:
                    self.left_out.append(f"{key}: it is no time")
        if "start_time" not in entry and "queue_time" not in entry:
            entry["start_time"] = entry.get("heartbeat") or entry.get("stop_time") or "1970-01-01T00:00:00"
        entry.setdefault("heartbeat", None)

    def _artifacts(self) -> list[str]:
        names = []
        for name, content in self.run.artifacts.items():
            path = relative_path(name)
            if path is None or path.parts[0] in schema.OWN_FILES | _LEFT | {schema.MEDIA_FOLDER}:
                self.left_out.append(f"artifact {name!r}: no file of a run's folder may be called so")
                continue
            try:
                if self._write_content(content, self.folder / path, f"artifact {name!r}"):
                    names.append(name)
            except OSError as error:
                self._leave_out(f"artifact {name!r}", error)
        return names

    def _stored(self, kind: str) -> list[list[str]]:
        pairs = []
        for content in self.run.stored(kind):
            try:
                pairs.append([content.name, self._keep(content, self.folder.with_name(f"_{kind}"))])
            except (StoreError, IsADirectoryError) as error:
                self._leave_out(f"{kind.removesuffix('s')} {content.name!r}", error)
                pairs.append([content.name, ""])
        return pairs

    def _keep(self, content: Content, store: Path) -> str:
        """Store a content under the name that `FileObserver` would choose; return its path below the base folder."""
        store.mkdir(exist_ok=True)
        # Any safe name will do, as the digest makes it unique; the recorded name is untrusted.
        path = PurePosixPath(re.sub(r"[^\w.+ -]", "_", PurePosixPath(content.name).name) or "_")
        digest = hashlib.md5(usedforsecurity=False)
        with replacing(store / ".incoming", durable=False) as target:
            for piece in content.pieces():
                digest.update(piece)
                target.write(piece)
        kept = store / f"{path.stem[:100]}_{digest.hexdigest()}{path.suffix[:20]}"
        (store / ".incoming").replace(kept)
        return f"{store.name}/{kept.name}"

    def _versions(self, relation: str, entries: Any) -> list[dict[str, Any]]:
        store, versions = ArtifactStore(self.folder.parent), []
        for entry in list_of(entries):
            try:
                if not isinstance(entry, dict) or not re.fullmatch("[0-9a-f]{64}", str(entry.get("digest"))):
                    raise ArtifactError(f"got {entry!r}, expected a version with name and digest")
                check_name(entry.get("name"))
                version = store.take(self.run.fetch_version(entry, self.folder.parent))
                store.note_run(RELATIONS[relation], version, self.uid)
            except (ArtifactError, StoreError) as error:
                self.left_out.append(f"a version of an artifact: {error}")
            else:
                versions.append({**entry, **version.entry()})
        return versions


def _is_list_of_metrics(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and set(one) == {"name", "id"} for one in value)


def uid_of(run: Run) -> str:
    """Return a run's uid, or one that is computed from its record and always the same.

    Like `sacristan.observers.record.identity.new_uid`, it has 12 hexadecimal digits of the start in milliseconds, and
    20 of a hash.
    """
    if run.uid and re.fullmatch("[0-9a-f]{32}", run.uid):
        return run.uid
    base = mapping_of(run["experiment"]).get("base_dir")
    start = without_zone(run.start_time)
    milliseconds = 0 if start is None else max(0, (start - _EPOCH) // timedelta(milliseconds=1))
    fields = [run.id, run.uid, run.name, base, run.command, str(start), run["host"], run["config"]]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode())
    return f"{milliseconds % 16**12:012x}{digest.hexdigest()[:20]}"


def write_series(folder: Path, each_series: Iterable[tuple[str, Series]], start: datetime) -> None:
    """Write metrics into a run's folder, up to `MAX_SACRED_POINTS` in Sacred's form as well; `start` is in UTC."""
    rows: list[dict[str, Any]] = []
    sacred: dict[str, dict[str, list[Any]]] = {}
    summary: dict[str, Mapping[str, Any]] = {}
    total = 0
    with (folder / schema.POINTS).open("wb") as points, (folder / schema.SUMS).open("wb") as sums:
        for number, (name, series) in enumerate(each_series):
            is_float = series.steps.dtype == np.float64
            rows.append({"id": number, "name": name, **({"steps": "float"} if is_float else {})})
            data = _as_points(series, number).tobytes()
            points.write(data)
            sums.write(entries_of(data, total))
            total += len(series)
            if len(series):
                summary[name] = summarize(series.values, series.steps)
            if total <= schema.MAX_SACRED_POINTS:
                sacred[name] = _as_sacred(series, start)
    (folder / schema.NAMES).write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    (folder / schema.SUMMARY).write_text(json.dumps(summary, indent=2))
    if 0 < total <= schema.MAX_SACRED_POINTS:
        (folder / schema.SACRED_METRICS).write_text(json.dumps(sacred))  # many times quicker than indented


def _as_points(series: Series, number: int) -> np.ndarray:
    """Return the points as an array (n,) of `POINT`."""
    points = np.zeros(len(series), POINT)
    points["metric"] = number
    ticks = np.rint(np.nan_to_num(series.times) * TICKS_PER_S)
    points["time"] = np.clip(ticks, 0, 2**32 - 1).astype(np.uint32)
    points["step"] = series.steps.view("<i8") if series.steps.dtype == np.float64 else series.steps
    points["value"] = series.values
    return points


def _as_sacred(series: Series, start: datetime) -> dict[str, list[Any]]:
    stamps = [(start + timedelta(seconds=seconds)).isoformat() for seconds in np.nan_to_num(series.times).tolist()]
    return {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}
