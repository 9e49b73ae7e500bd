"""`FileObserver`: records a run in a folder, so that a killed process loses at most the last beat.

It takes the place of Sacred's FileStorageObserver: the same arguments, the same layout of a run's folder, and more
beside it (see `observers.schema`). It never raises into a run: what cannot be written is said once, tried again, and
counted.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sacred.observers import RunObserver
from sacred.serializer import flatten

from configs.atomic_file import replacing
from observers import provenance
from observers.destination import redact
from observers.gathering import Gathering
from observers.guarding import guarded
from observers.identity import lease, new_uid, parent_uid
from observers.journal import Journal
from observers.media import MediaEntry
from observers.schema import (
    CONFIG,
    FORMAT,
    INFO,
    LEASE,
    MAX_SACRED_POINTS,
    MEDIA,
    NOTES,
    OUTPUT,
    POINTS,
    RUN,
    SACRED_METRICS,
    SUMMARY,
    TICKS_PER_S,
    read_metrics,
)

__all__ = ["FileObserver", "journal_of"]

_log = logging.getLogger(__name__)

PROVENANCE = "provenance.json"

# The observer that writes each run of this process down, by uid: what else delivers a run reads its journal.
_writers: dict[str, FileObserver] = {}

_OWN_FILES = {RUN, CONFIG, INFO, OUTPUT, SACRED_METRICS, PROVENANCE, LEASE, SUMMARY, POINTS, MEDIA, NOTES}


def journal_of(uid: str | None) -> FileObserver | None:
    """Return the observer that writes the run `uid` down in this process, if there is one."""
    return _writers.get(uid)


class FileObserver(RunObserver):
    """Records runs below a folder, each in a numbered folder of its own.

    Args:
        basedir: Where to; made if it is not there.
        resource_dir: Where contents of resources are kept, by default `basedir/_resources`.
        source_dir: Where contents of sources are kept, by default `basedir/_sources`.
        template: Taken for Sacred's sake; reports are not rendered.
        priority: Observers of higher priority hear of events first.
        copy_artifacts: Whether artifacts are copied into the run's folder.
        copy_sources: Whether sources are copied into `source_dir`.

    Attributes:
        dir: The folder of the run, as text; None before it starts.
        run_entry: What stands in `run.json`.
        num_errors: Events that failed.
    """

    VERSION = FORMAT

    def __init__(
        self,
        basedir: str | Path,
        resource_dir: str | Path | None = None,
        source_dir: str | Path | None = None,
        template: str | Path | None = None,
        priority: int = 40,
        copy_artifacts: bool = True,
        copy_sources: bool = True,
    ) -> None:
        self.basedir = str(basedir)
        self.resource_dir = Path(resource_dir or Path(basedir) / "_resources")
        self.source_dir = Path(source_dir or Path(basedir) / "_sources")
        self.template = template
        self.priority = priority
        self.copy_artifacts = copy_artifacts
        self.copy_sources = copy_sources
        self.dir: str | None = None
        self.run_entry: dict[str, Any] = {}
        self.journal: Journal | None = None
        self.num_errors = 0
        self._lock = threading.RLock()
        self._start: datetime | None = None
        self._output_done = 0
        self._info = "{}"
        self._info_due = 0.0
        self._live_info: dict = {}
        self._modules_seen = 0
        self._gathering: Gathering | None = None

    # ------------------------------------------------------------------ a run begins

    def queued_event(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        queue_time: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
    ) -> Any:
        """Write down a run that is to be started by somebody else."""
        with self._lock:
            return self._begin(ex_info, command, host_info, queue_time, config, meta_info, _id, "QUEUED")

    def started_event(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        start_time: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
    ) -> Any:
        """Write down a run that starts now; returns its id in this folder."""
        with self._lock:
            number = self._begin(ex_info, command, host_info, start_time, config, meta_info, _id, "RUNNING")
            write = functools.partial(self.journal.write, PROVENANCE)
            self._gathering = Gathering(write, self._lock, ex_info["base_dir"])
            return number

    def _begin(
        self,
        ex_info: dict,
        command: str,
        host_info: dict,
        at: datetime,
        config: dict,
        meta_info: dict,
        _id: Any,
        status: str,
    ) -> Any:
        number = self._make_folder(_id)
        self.journal = Journal(Path(self.dir))
        self._start = at.replace(tzinfo=UTC)
        self._output_done = 0
        meta_info.setdefault("uid", new_uid())
        _writers[meta_info["uid"]] = self
        time_key = "start_time" if status == "RUNNING" else "queue_time"
        self.run_entry = {
            "format": FORMAT,
            "uid": meta_info["uid"],
            "experiment": copy.deepcopy(dict(ex_info)),
            "command": command,
            "host": dict(host_info),
            time_key: at.isoformat(),
            "meta": meta_info,
            "status": status,
            "command_line": [redact(word) for word in sys.argv],
            "resources": [],
            "artifacts": [],
            "heartbeat": None,
        }
        parent = parent_uid(meta_info)
        self.run_entry |= {"parent": parent} if parent else {}
        self._save_sources()
        self.journal.write(CONFIG, _plain(config))
        self._write_lease()
        self._write_run()
        return number

    def _make_folder(self, _id: Any) -> Any:
        """Make the run's folder, and return its id: the one asked for if it is free, else the next number."""
        base = Path(self.basedir)
        try:
            base.mkdir(parents=True, exist_ok=True)
            if _id is not None:
                with contextlib.suppress(FileExistsError):
                    (base / str(_id)).mkdir()
                    self.dir = str(base / str(_id))
                    return _id
            number = 1 + max((int(entry.name) for entry in os.scandir(base) if entry.name.isdigit()), default=0)
            while True:
                try:
                    (base / str(number)).mkdir()
                except FileExistsError:  # another process was quicker
                    number += 1
                else:
                    self.dir = str(base / str(number))
                    return str(number) if _id is None else _id
        except OSError as error:
            # Somewhere else is better than nowhere, and nothing of this may stop the run.
            elsewhere = Path(tempfile.mkdtemp(prefix="sacristan-"))
            self.basedir, self.dir = str(elsewhere), str(elsewhere / "1")
            self.source_dir, self.resource_dir = elsewhere / "_sources", elsewhere / "_resources"
            Path(self.dir).mkdir()
            _log.error("%s cannot be written (%s); this run is recorded in %s", base, error.strerror, self.dir)
            return "1" if _id is None else _id

    def _save_sources(self) -> None:
        """Keep every source of the lab that is imported by now; modules imported later come with later beats."""
        if len(sys.modules) == self._modules_seen:
            return
        self._modules_seen = len(sys.modules)
        experiment = self.run_entry["experiment"]
        base = Path(experiment["base_dir"])
        kept = {name: stored for name, stored in experiment["sources"] if str(stored).startswith("_")}
        named = {name: digest for name, digest in experiment["sources"] if name not in kept}
        mainfile = base / experiment["mainfile"] if experiment.get("mainfile") else None
        named |= {name: md5 for name, md5 in provenance.imported_sources(base, mainfile) if name not in kept}
        for name in named:
            kept[name] = self._keep(base / name, self.source_dir) if self.copy_sources else str(base / name)
        if kept != dict(experiment["sources"]):
            experiment["sources"] = sorted([name, stored] for name, stored in kept.items())
            self._write_run()

    def _keep(self, path: Path, store: Path) -> str:
        """Keep the content of `path` in `store` once, and return where, from the base folder."""
        digest = hashlib.md5(usedforsecurity=False)
        with path.open("rb") as stream:
            while chunk := stream.read(2**20):
                digest.update(chunk)
        target = store / f"{path.stem}_{digest.hexdigest()}{path.suffix}"
        try:
            # `runs gc` keeps what was touched lately, whether or not a run names it yet.
            os.utime(target)
        except FileNotFoundError:
            store.mkdir(parents=True, exist_ok=True)
            _copy(path, target)
        except OSError:
            _log.debug("%s: its time cannot be set; it belongs to another user", target)
        return os.path.relpath(target, self.basedir)

    # ------------------------------------------------------------------ a run goes on

    @guarded
    def heartbeat_event(self, info: dict, captured_out: str, beat_time: datetime, result: Any) -> None:
        """Write down what is new: output, info, result, and that the run is alive."""
        self.journal.flush()
        self._add_output(captured_out)
        self._live_info = info
        if time.monotonic() >= self._info_due:
            self._write_info(info)
        self._save_sources()
        if self._gathering is not None:
            self._gathering.look()
        changed = self.run_entry.get("result") != result
        self.run_entry["result"] = _plain(result)
        self.run_entry["heartbeat"] = beat_time.isoformat()
        self._write_lease()
        if changed:
            self._write_run()

    def _add_output(self, captured_out: str) -> None:
        if len(captured_out) > self._output_done:
            self.journal.add_output(captured_out[self._output_done :].encode("utf-8", "replace"))
            self._output_done = len(captured_out)

    def _write_info(self, info: dict) -> None:
        """Write the info if it changed; a large one is looked at so rarely that it takes 5 % of the time at most."""
        began = time.monotonic()
        plain = _plain(info)
        text = json.dumps(plain, sort_keys=True)
        if text != self._info:
            self._info = text
            self.journal.write(INFO, plain)
        ended = time.monotonic()
        self._info_due = ended + 19 * (ended - began)

    def _write_lease(self) -> None:
        self.journal.write(LEASE, lease(1.0), durable=False)

    def _write_run(self) -> None:
        self.journal.write(RUN, _plain(self.run_entry))

    @guarded
    def log_metrics(self, metrics_by_name: dict[str, dict], info: dict) -> None:
        """Append new points."""
        for name, new in metrics_by_name.items():
            self.journal.add_points(name, new["steps"], new["values"], self._ticks(new["timestamps"]))
        if metrics_by_name:
            self.journal.write_summary()
        if "stop_time" in self.run_entry:
            # Sacred's own run waits two seconds for its last beat, which may come after the end.
            self.journal.close()

    @guarded
    def media_event(self, entries: list[MediaEntry]) -> None:
        """Write down images, figures, histograms, texts and tables."""
        for entry in entries:
            self.journal.media.add(entry, entry.time - self._start.timestamp())

    def _ticks(self, timestamps: list[datetime]) -> np.ndarray:
        start = self._start.replace(tzinfo=None)
        seconds = np.array([(at - start).total_seconds() for at in timestamps])
        return np.maximum(seconds * TICKS_PER_S, 0).astype(np.uint32)

    @guarded
    def resource_event(self, filename: str) -> None:
        """Keep the content of a file that the run read."""
        stored = self._keep(Path(filename), self.resource_dir)
        if [filename, stored] not in self.run_entry["resources"]:
            self.run_entry["resources"].append([filename, stored])
            self._write_run()

    @guarded
    def artifact_event(
        self, name: str, filename: str, metadata: dict | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file that the run made, under `name` in the run's folder."""
        target = (Path(self.dir) / name).resolve()
        if not target.is_relative_to(Path(self.dir).resolve()) or target.name in _OWN_FILES:
            raise ValueError(
                f"artifact name: got {name!r}, expected a name within the run's folder, none of its own files"
            )
        if self.copy_artifacts and Path(filename).resolve() != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(Path(filename), target)
        if name not in self.run_entry["artifacts"]:
            self.run_entry["artifacts"].append(name)
        if metadata or content_type:
            details = {"metadata": _plain(metadata), "content_type": content_type}
            self.run_entry.setdefault("artifact_details", {})[name] = details
        self._write_run()

    @property
    def is_recording(self) -> bool:
        """Whether a run has started and not ended."""
        return self.journal is not None and "stop_time" not in self.run_entry

    def note_artifact(self, key: str, entry: dict[str, Any]) -> None:
        """List under `key` of `run.json`, once, a version of an artifact that the run logged or used."""
        with self._lock:
            entries = self.run_entry.setdefault(key, [])
            if entry not in entries:
                entries.append(entry)
                self._write_run()

    # ------------------------------------------------------------------ a run ends

    @guarded
    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Write down that the run came to its end."""
        self._end("COMPLETED", stop_time, result=_plain(result))

    @guarded
    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Write down that the run was interrupted."""
        self._end(status, interrupt_time)

    @guarded
    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Write down that the run failed, and how."""
        self._end("FAILED", fail_time, fail_trace=fail_trace)

    def _end(self, status: str, at: datetime, **entries: Any) -> None:
        if self._gathering is not None:
            self._lock.release()
            self._gathering.join(20)
            self._lock.acquire()
            self._gathering.look()
        self.journal.flush()
        self._write_info(self._live_info)
        self.journal.media.give_up()
        self._save_sources()
        lost, lost_media = self.journal.num_lost_bytes, self.journal.media.num_lost
        if (lost or lost_media) and status == "COMPLETED":
            status = "COMPLETED_WITH_LOSS"
        self.run_entry |= {"stop_time": at.isoformat(), "heartbeat": at.isoformat(), "status": status, **entries}
        self.run_entry |= {"lost_bytes": lost} if lost else {}
        self.run_entry |= {"lost_media": lost_media} if lost_media else {}
        self.journal.write_summary()
        self._write_sacred_metrics()
        self._write_run()
        self.journal.close()
        _writers.pop(self.run_entry["uid"], None)

    def _write_sacred_metrics(self) -> None:
        count = sum(row["count"] for row in self.journal.summary.values())
        if not 0 < count <= MAX_SACRED_POINTS:
            return
        start = self._start.replace(tzinfo=None).timestamp()
        document = {}
        for name, series in read_metrics(Path(self.dir)).items():
            stamps = [datetime.fromtimestamp(start + seconds).isoformat() for seconds in series.times.tolist()]
            document[name] = {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}
        self.journal.write(SACRED_METRICS, document)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileObserver) and self.basedir == other.basedir

    __hash__ = None


def _plain(value: Any) -> Any:
    """Return `value` as what JSON holds, by Sacred's serializer; text where that fails."""
    try:
        return flatten(value)
    except Exception:
        return json.loads(json.dumps(value, default=str))


def _copy(path: Path, target: Path) -> None:
    """Copy a file so that `target` is whole or not there."""
    with path.open("rb") as source, replacing(target, durable=False) as stream:
        shutil.copyfileobj(source, stream)
