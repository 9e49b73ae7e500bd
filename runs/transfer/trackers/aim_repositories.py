"""Repositories of Aim: folders with `.aim`, read by the extra `aim` from a copy, as opening one changes its files.

Only the run that is read is copied. Aim records that a run ended, but not how: its status is UNKNOWN; one that did not
end is DEAD.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.media.kinds import Text
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.observers.record.other_trackers import label_of_aim
from sacristan.runs.errors import ForeignError, needing_extra
from sacristan.runs.transfer.trackers.foreign_run import (
    UNKNOWN,
    Curve,
    ForeignRun,
    Found,
    histogram_content,
    png_content,
)
from sacristan.runs.transfer.trackers.source_files import file_inside, files_below

KIND = "aim"
_FOLDER, _RUNS = ".aim", "run_metadata.sqlite"
# The folders that hold a database for each run, named by its hash.
_CHUNKS = ("meta/chunks", "seqs/chunks")
_HASH = re.compile(r"[\w-]+")
_SYSTEM = "__system__"
# Sequences of media, by the kind here; other sequences are left out.
_MEDIA = {"images": "image", "distributions": "histogram", "texts": "text", "audios": "audio"}


def recognizes(path: Path) -> bool:
    """Tell whether this is a repository of Aim."""
    return (_repository(path) / _RUNS).is_file()


def find(path: Path) -> Iterator[Found]:
    """Yield each run, oldest first."""
    with needing_extra("aim", "importing runs of Aim", "it has wheels for Python 3.11 and 3.12; "):
        import aim
    source = _repository(path)
    with tempfile.TemporaryDirectory(prefix="aim-") as base:
        copy = Path(base, _FOLDER)
        try:
            _copy_files(source, copy)
            repository = aim.Repo(base)
            with contextlib.closing(sqlite3.connect(copy / _RUNS)) as database:
                hashes = [hash for (hash,) in database.execute("SELECT hash FROM run ORDER BY created_at, hash")]
        except (OSError, sqlite3.Error, RuntimeError) as error:
            raise ForeignError(f"{source}: it cannot be read ({error})") from error
        for hash in hashes:
            yield Found(hash, f"{source}, run {hash}", partial(_read, repository, hash, source, copy))
            if _HASH.fullmatch(hash):
                for kind in _CHUNKS:
                    shutil.rmtree(copy / kind / hash, ignore_errors=True)


def _repository(path: Path) -> Path:
    return path if path.name == _FOLDER else path / _FOLDER


def _copy_files(source: Path, target: Path) -> None:
    """Copy the regular files of a folder, but not of those in it."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.is_symlink():
            shutil.copyfile(file, target / file.name)


def _read(repository: Any, hash: str, source: Path, copy: Path) -> ForeignRun:
    from aim.sdk.run import Run

    if not _HASH.fullmatch(hash):
        raise ForeignError(f"got the hash {hash!r}, expected letters and digits")
    left_out: list[str] = []
    for kind in _CHUNKS:
        try:
            folder = file_inside(source, f"{kind}/{hash}")
        except ValueError as error:
            raise ForeignError(str(error)) from error
        for name, file in files_below(folder, left_out):
            (copy / kind / hash / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy / kind / hash / name)
    if not (copy / _CHUNKS[0] / hash).is_dir():
        raise ForeignError("it has no data in the repository")
    # Aim itself shows a damaged run as an empty one.
    repository.request_tree("meta", hash, read_only=True).collect()
    run = _RunReader(Run(hash, repo=repository, read_only=True)).read()
    run.left_out += left_out
    return run


class _RunReader:
    """Reads one `Run` of Aim."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._run = ForeignRun(experiment=source.experiment or "aim")

    def read(self) -> ForeignRun:
        source, run = self._source, self._run
        run.title, run.note, run.tags = source.name or "", source.description or "", [*source.tags]
        run.started, run.stopped = source.creation_time, source.end_time
        run.status = UNKNOWN if run.stopped else "DEAD"
        # Hyperparameters become the config; the rest of what Aim notes itself is info.
        attributes = source.meta_run_tree.collect().get("attrs") or {}
        for name, value in attributes.items():
            if name.startswith("__"):
                self._run.info[name.strip("_")] = _as_json(value)
            elif name == "hparams" and isinstance(value, dict):
                self._run.config |= _as_json(value)
            else:
                self._run.config[name] = _as_json(value)
        run.info["aim"] = {"hash": source.hash, "archived": source.archived}
        kinds = ("metric", *_MEDIA, "figures", "logs", "log_records")
        for kind, sequences in source.collect_sequence_info(kinds).items():
            for entry in sequences:
                self._take_sequence(kind, entry["name"], entry["context"])
        return run

    def _take_sequence(self, kind: str, name: str, context: Any) -> None:
        from aim.storage.context import Context

        run = self._run
        sequence = self._source._get_sequence(kind, name, Context(context))
        plain = f"system/{name.removeprefix(_SYSTEM)}" if name.startswith(_SYSTEM) else name
        label = label_of_aim(plain, context)
        steps, (values, _, times) = sequence.data.numpy()
        if kind == "metric":
            run.curves.append(
                Curve(label, np.asarray(steps, np.int64), np.asarray(values, np.float64), np.asarray(times))
            )
        elif kind == "logs":
            lines = sorted(zip(steps.tolist(), values, strict=True), key=lambda pair: pair[0])
            run.output = "".join(f"{line.data}\n" for _, line in lines).encode("utf-8", "replace")
        elif kind in _MEDIA:
            for step, value, at in zip(steps.tolist(), values, times, strict=True):
                self._take_medium(_MEDIA[kind], label, step, float(at), value)
        else:
            run.left_out.append(f"{len(steps)} {kind.replace('_', ' ')} of {label!r}")

    def _take_medium(self, kind: str, label: str, step: int, at: float, value: Any) -> None:
        for item in value if isinstance(value, list | tuple | np.ndarray) else [value]:
            try:
                content = _content(kind, item)
            except (ValueError, KeyError, TypeError) as error:
                self._run.left_out.append(f"{label!r} of step {step}: a {kind} ({error})")
            else:
                self._run.media.append(MediaEntry(label, kind, step, at, content))


def _content(kind: str, item: Any) -> Content:
    if kind == "text":
        return Text(item.data).encode()
    if kind == "histogram":
        return histogram_content(*item.to_np_histogram())
    data = item.storage["data"].load()
    if kind == "image":
        return png_content(data)
    if item.storage["format"] != "wav":
        raise ValueError(f"got the format {item.storage['format']}, expected wav")
    return Content(data, ".wav", "audio/wav", {})


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)
