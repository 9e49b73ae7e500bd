"""Runs of W&B that lie on this machine: folders `run-*` and `offline-run-*` with a `.wandb` file.

The file is a log of protocol buffers, whose definitions come from the extra `wandb`. It has a header of 7 bytes, and
records in blocks, as in LevelDB (https://github.com/google/leveldb/blob/main/doc/log_format.md), with CRC-32 instead of
CRC-32C. Folders of one run, as resuming makes them, are read as one. A run without an exit record is DEAD.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sacristan.observers.record.media_files import MediaEntry
from sacristan.runs.errors import ForeignError, needing_extra
from sacristan.runs.query import mapping_of
from sacristan.runs.transfer.trackers.foreign_run import (
    ForeignRun,
    Found,
    Points,
    file_content,
    flat,
    histogram_content,
    table_content,
    take_status,
)
from sacristan.runs.transfer.trackers.source_files import (
    damage_texts,
    file_inside,
    files_below,
    is_incomplete,
    is_inside,
)

KIND = "wandb"
# Media that are taken as they are.
_MEDIA_FILES = {"audio-file", "html-file", "image-file", "video-file"}
HEADER = b":W&B"
# The magic number and the version of the form.
_HEADER_REST = b"\xe1\xbe\x00"
_HEADER_BYTES, _BLOCK_BYTES, _HEAD = 7, 32768, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def recognizes(path: Path) -> bool:
    """Tell whether there are folders of W&B."""
    return next(_files(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield each run, with all folders that have its id, project and entity."""
    runs: dict[str, dict[tuple[str, str], list[Path]]] = {}
    for file in sorted(_files(path), key=lambda file: file.parent.name.rpartition("run-")[2]):
        name = file.parent.name if is_incomplete(file.parent) else file.stem.removeprefix("run-")
        homes, home = runs.setdefault(name, {}), _home(file)
        homes.setdefault(next((each for each in homes if _is_one_home(each, home)), home), []).append(file)
    for name, homes in runs.items():
        for home, files in homes.items():
            key = "/".join((*home, name)) if any(home) else name
            folders = ", ".join(str(file.parent) for file in files)
            yield Found(key, folders, lambda files=files: _RunReader().read(files), former=name)  # type: ignore[misc]


def _home(file: Path) -> tuple[str, str]:
    """Return entity and project of a run, in which its id is unique; empty where the file does not say."""
    message = _message()
    with contextlib.suppress(Exception):  # reading the run reports a damaged file
        for data in records(file.read_bytes(), []):
            record = message.FromString(data)
            if record.WhichOneof("record_type") == "run":
                return record.run.entity, record.run.project
    return "", ""


def _is_one_home(home: tuple[str, str], other: tuple[str, str]) -> bool:
    return all(name == another or not name or not another for name, another in zip(home, other, strict=True))


def _message() -> Any:
    with needing_extra("wandb", "importing runs of W&B"):
        from wandb.proto import wandb_internal_pb2
    return wandb_internal_pb2.Record  # type: ignore[attr-defined]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        if path.suffix == ".wandb":
            yield path
        return
    for where, folders, names in os.walk(path):  # does not follow `latest-run`, a link
        folders.sort()
        files = (Path(where, name) for name in names if name.endswith(".wandb"))
        yield from (file for file in files if is_inside(path, file))


class _RunReader:
    """Reads the folders of one run, one after the other."""

    def __init__(self) -> None:
        self._message = _message()
        self._run = ForeignRun(experiment="wandb", status="DEAD")
        self._points = Points()
        self._step_metrics: list[tuple[str, str]] = []  # a pattern of names, and the metric that is their step
        self._hidden: set[str] = set()
        self._summary: dict[str, Any] = {}
        self._num_texts: dict[str, int] = {}
        self._num_stats = 0
        self._output: list[str] = []
        self._files = Path()
        self._used: set[str] = set()  # files that became media

    def read(self, files: list[Path]) -> ForeignRun:
        """Return the run from its `.wandb` files, oldest first."""
        run, count = self._run, 0
        for file in files:
            self._files = file.parent / "files"
            run.status = "DEAD"  # until this file says how it ended
            count += self._read_file(file)
            others = files_below(self._files, run.left_out)
            run.artifacts |= {name: path for name, path in others if name not in self._used}
        if not count:
            raise ForeignError("its .wandb file holds no whole record")
        axes = self._hidden & {metric for _, metric in self._step_metrics}  # steps of others, and nothing else
        run.curves = [curve for curve in self._points.curves() if curve.name not in axes]
        run.left_out += [f"{count} values of {name!r} are no numbers" for name, count in self._num_texts.items()]
        run.output = "".join(self._output).encode()
        if not run.output and "output.log" in run.artifacts:
            run.output = run.artifacts["output.log"].read_bytes()
        names = {*axes, *(curve.name for curve in run.curves)}
        own = mapping_of(self._summary.pop("sacristan", None))
        if own:  # from `sacristan export`
            take_status(run, own.get("status"))
            run.result = own.get("result")
        if summary := {name: value for name, value in self._summary.items() if name not in names}:
            run.info["summary"] = summary
        return run

    def _read_file(self, file: Path) -> int:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ForeignError(f"{file.name}: {error.strerror}") from error
        if data[:4] != HEADER:
            raise ForeignError(f"{file.name} begins with {data[:4]!r}, expected {HEADER!r}")
        count = 0
        damages: list[tuple[int, int]] = []
        try:
            for record in records(data, damages):
                message = self._message.FromString(record)
                kind = message.WhichOneof("record_type")
                if (take := getattr(self, f"_take_{kind}", None)) is not None:
                    take(getattr(message, kind))
                count += 1
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            raise ForeignError(f"{file.name}: record {count + 1} is invalid ({error})") from error
        except Exception as error:  # protobuf's DecodeError
            raise ForeignError(f"{file.name}: record {count + 1} is no record of W&B ({error})") from error
        self._run.left_out += damage_texts(file, damages, len(data), "record")
        return count

    def _take_run(self, record: Any) -> None:
        run = self._run
        run.experiment, run.title = record.project or run.experiment, record.display_name or record.run_id
        run.note, run.tags = record.notes, list(record.tags)
        run.host["hostname"] = record.host
        started = _seconds(record.start_time)
        run.started = started if run.started is None else min(run.started, started)
        run.info["wandb"] = {
            name: text
            for name, text in (
                ("id", record.run_id), ("entity", record.entity), ("group", record.run_group),
                ("job_type", record.job_type), ("sweep", record.sweep_id),
            )
            if text
        }  # fmt: skip
        self._take_config(record.config)

    def _take_config(self, record: Any) -> None:
        config = _nested(record.update, self._run.config)
        for item in record.remove:
            config.pop(item.key, None)
        config.pop("_wandb", None)

    def _take_environment(self, record: Any) -> None:
        run = self._run
        run.host |= {
            name: text
            for name, text in (("os", record.os), ("python_version", record.python), ("user", record.username))
            if text
        }
        if record.program:
            run.command = [record.program, *record.args]
        if record.HasField("git") and record.git.commit:
            run.info["git"] = {"commit": record.git.commit, "remote": record.git.remote_url}

    def _take_metric(self, record: Any) -> None:
        if record.options.hidden:
            self._hidden.add(record.name)
        if record.step_metric:
            self._step_metrics.append((record.glob_name or glob.escape(record.name), record.step_metric))

    def _take_history(self, record: Any) -> None:
        row = _nested(record.item, {})
        own_step = int(row.pop("_step", record.step.num))
        at = float(row.pop("_timestamp", np.nan))
        row.pop("_runtime", None)
        self._end_at(at)
        values = dict(flat(row, separator="."))
        for name, value in values.items():
            if isinstance(value, dict):
                self._take_medium(name, value, own_step, at)
            elif isinstance(value, int | float):
                step = self._step_of(name, values, own_step)
                self._points.add(name, step, float(value), at)
            elif value is not None:
                self._num_texts[name] = self._num_texts.get(name, 0) + 1

    def _step_of(self, name: str, values: dict[str, Any], own_step: int) -> Any:
        for pattern, metric in self._step_metrics:
            if name != metric and fnmatch.fnmatchcase(name, pattern) and isinstance(values.get(metric), int | float):
                return values[metric]
        return own_step

    def _take_summary(self, record: Any) -> None:
        _nested(record.update, self._summary)
        for name in [name for name in self._summary if name.startswith("_")]:
            del self._summary[name]

    def _take_stats(self, record: Any) -> None:
        at = _seconds(record.timestamp)
        for item in record.item:
            value = json.loads(item.value_json)
            if isinstance(value, int | float):
                self._points.add(f"system/{item.key}", self._num_stats, float(value), at, origin="system")
        self._num_stats += 1
        self._end_at(at)

    def _take_output_raw(self, record: Any) -> None:
        self._output.append(record.line)

    def _take_exit(self, record: Any) -> None:
        self._run.status = "FAILED" if record.exit_code else "COMPLETED"
        self._run.info["exit_code"] = record.exit_code

    def _end_at(self, at: float) -> None:
        if at == at:
            self._run.stopped = at if self._run.stopped is None else max(self._run.stopped, at)

    def _take_medium(self, name: str, value: dict[str, Any], step: int, at: float) -> None:
        kind = str(value.get("_type"))
        try:
            if kind == "histogram":
                content, kind = histogram_content(value["values"], value["bins"]), "histogram"
            elif kind == "table-file":
                table = json.loads(self._file(value).read_bytes())
                content, kind = table_content(table["columns"], table["data"]), "table"
                self._used.add(value["path"])
            elif kind in _MEDIA_FILES:
                kind, content = file_content(self._file(value))
                self._used.add(value["path"])
            else:
                raise ValueError("of an unknown kind")
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._run.left_out.append(f"{name!r} of step {step}: a {kind}, kept as a file if there is one ({error})")
        else:
            self._run.media.append(MediaEntry(name, kind, step, at, content))

    def _file(self, value: dict[str, Any]) -> Path:
        return file_inside(self._files, str(value["path"]))


def _seconds(stamp: Any) -> float:
    return stamp.seconds + stamp.nanos / 1e9


def _nested(items: Iterable[Any], into: dict[str, Any]) -> dict[str, Any]:
    """Set entries in nested dicts, by their keys; return the outer one."""
    for item in items:
        *outer, last = list(item.nested_key) or [item.key]
        inner = into
        for key in outer:
            inner = inner[key] if isinstance(inner.get(key), dict) else inner.setdefault(key, {})
        inner[last] = json.loads(item.value_json)
    return into


def records(data: bytes, damages: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the intact records of a file; `damages` gets the first byte of each damaged part and the first after."""
    at, begin = _HEADER_BYTES, 0
    bad: int | None = None
    parts: list[bytes] = []
    while at < len(data):
        room = _BLOCK_BYTES - at % _BLOCK_BYTES
        if room < _HEAD.size:  # padding
            at += room
            continue
        kind, piece = _piece(data, at) or (0, b"")
        if parts and kind not in (_MIDDLE, _LAST):  # its end is missing
            bad, parts = begin if bad is None else bad, []
        if not kind or (kind in (_MIDDLE, _LAST) and not parts):
            bad = at if bad is None else bad
        elif kind in (_FULL, _FIRST):
            if bad is not None:
                damages.append((bad, at))
            bad, begin, parts = None, at, [piece]
        else:
            parts.append(piece)
        if kind in (_FULL, _LAST) and parts:
            yield b"".join(parts)
            parts = []
        at += _HEAD.size + len(piece) if kind else _distance(data, at, room)
    bad = begin if parts and bad is None else bad
    if bad is not None:
        damages.append((bad, len(data)))


def _piece(data: bytes, at: int) -> tuple[int, bytes] | None:
    """Return the kind and the content of the piece at a place; None if it is damaged or cut off."""
    if at + _HEAD.size > len(data):
        return None
    checksum, length, kind = _HEAD.unpack_from(data, at)
    piece = data[at + _HEAD.size : at + _HEAD.size + length]
    is_whole = len(piece) == length and _FULL <= kind <= _LAST and _checksum(kind, piece) == checksum
    return (kind, piece) if is_whole else None


def _distance(data: bytes, at: int, room: int) -> int:
    """Return the distance to the next piece after a damaged one: right after it, or at the start of the next block."""
    length = _HEAD.unpack_from(data, at)[1] if at + _HEAD.size <= len(data) else room
    after = _HEAD.size + length
    return after if after + _HEAD.size <= room and _piece(data, at + after) is not None else room


class LogWriter:
    """Writes records to a new file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = stream.write(HEADER + _HEADER_REST)

    def add(self, record: bytes) -> None:
        """Append a record, split at the blocks that it spans."""
        is_first, start = True, 0
        while is_first or start < len(record):
            room = _BLOCK_BYTES - self._at % _BLOCK_BYTES
            if room < _HEAD.size:
                self._at += self._stream.write(bytes(room))
                continue
            piece = record[start : start + room - _HEAD.size]
            start += len(piece)
            is_last = start == len(record)
            kind = (_FULL if is_last else _FIRST) if is_first else (_LAST if is_last else _MIDDLE)
            self._at += self._stream.write(_HEAD.pack(_checksum(kind, piece), len(piece), kind) + piece)
            is_first = False


def _checksum(kind: int, piece: bytes) -> int:
    return zlib.crc32(piece, zlib.crc32(bytes([kind])))
