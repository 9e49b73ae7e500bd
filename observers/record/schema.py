"""The record of a run on disk: its files, and how they are read. Writers and readers both follow this module.

Files in a run's folder, including those of Sacred's FileStorageObserver:

    run.json             experiment, command, host, times, status, result, artifacts, resources; replaced whole
    config.json          the config; replaced whole
    info.json            the run's info; replaced whole
    cout.txt             captured output; append-only
    metrics.bin          points, 24 bytes each; append-only
    metrics.sums         checksums of the points, see `sacristan.observers.record.points.intact_points`; append-only
    metrics.live         the latest points of a run that is active or was killed, see
                         `sacristan.observers.record.points.live_points`
    metrics.children.jsonl  points of forked children that the run has not moved yet; only while there are any
    metrics.names.jsonl  the name of each metric id; append-only
    values.jsonl         logged values that are not numbers, each `after` so many numbers of its metric; append-only
    summary.json         first, last, min, max, mean, count of each metric; replaced whole
    media.jsonl          an entry for each logged medium: an image, a table and so on; append-only
    media/               contents of media, each once, named by SHA-256 and suffix; written before the entry
    provenance.json      git, packages, libraries, machine and determinism flags of the first session; replaced whole
    lease.json           the process that writes this run, and its last heartbeat; replaced whole
    lease.lock           empty; the process that writes this run holds a lock on it
    metrics.json         Sacred's form of the metrics, written when the run ends
    destination.json     the database that the run is delivered to, without credentials
    delivered.json       how much of the run is in that database, once all of it is
    earlier/             for that database, artifacts whose name another file got later; see `run.json`
    ranks/               for a run of several processes, the output of each but rank 0, as `NUMBER.txt`; each written
                         by that process, append-only
    claims/              the workers that have taken a run from a queue, as `NUMBER.json`; each written once
    notes.json           tags, a note, a display name, verdicts on reproductions and who changed them; replaced whole
    notified/            the messages about the run that were sent, see `sacristan.observers.notifying`

`host` in `run.json` has the machine's name as `hostname` and the user as `user`; runs of earlier versions have no user,
and those recorded with `--anonymous` neither.

`run.json` names the folder itself as `folder`, and the folder that the run was started in as `cwd`. If a run is
recorded in several folders, the others name the one with the states of the training as `states_folder`. The `run.json`
of a resumed run has `sessions` (see `sacristan.observers.file.sessions`), and `revision`, which counts how often the
record was rewound (see `sacristan.observers.record.points.rewinding`). While it is rewound, it has `rewinding`, and
append-only files are replaced whole.

The `kind` of a medium describes its content. Readers treat an unknown kind as a file of its `content_type`, so later
versions may add kinds:

    image, figure        PNG
    video                PNG, animated, of frames; or MP4 or WebM
    audio                WAV, 16 bits
    point_cloud          PLY, see `sacristan.observers.media.point_clouds`
    histogram, table     JSON, see `sacristan.observers.media.kinds` and `read_table`
    text, html           UTF-8

For a run of several processes, `meta.ranks` in `run.json` has their number as `size`, the number on each machine as
`per_node`, and the name of their `launch`; `ranks` in `info.json` lists host, pid and device of each.

`better` in `info.json` is `max` or `min` for metrics, and for `result`, by name (see
`sacristan.observers.record.directions`). The direction of other metrics, such as in earlier records, is unknown.

`alerts` in `info.json` are the latest texts that the run gave to `_run.alert`, each with its `level` (`info`, `warning`
or `error`) and its `time` (ISO 8601, UTC); `alert_level` is the highest level so far. `notifies` is true if the run
sends messages about itself.

`metrics.live` has two halves. Each begins with the number of points in `metrics.bin` before its first one, and a stamp
(u8 each, and 8 unused bytes), followed by slots (see `SLOT`). A slot is a point if the upper 8 bits of its tag are the
half's stamp, which is never 0; the lower bits are the metric's id plus one. If `metrics.bin` has more points than come
before a half, readers skip as many points of the half, so that none counts twice.

`format` in `run.json` is `FORMAT`. A version that changes the meaning of a file counts its number up, and reads all
earlier formats. Files and entries that are only added leave it as it is: readers ignore those they do not know.

A torn tail, which a killed process can leave after an append-only file, is everything after the last whole record.
Readers skip it, and the next writer cuts it off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.json_text import load_json, parse_json

FORMAT = "sacristan-1"
# A run with more points gets no `metrics.json`, which grows with them.
MAX_SACRED_POINTS = 200_000
RUN, CONFIG, INFO, OUTPUT = "run.json", "config.json", "info.json", "cout.txt"
CHILD_POINTS = "metrics.children.jsonl"
POINTS, LIVE, NAMES, VALUES = "metrics.bin", "metrics.live", "metrics.names.jsonl", "values.jsonl"
SUMS = "metrics.sums"
SUMMARY, LEASE, SACRED_METRICS = "summary.json", "lease.json", "metrics.json"
NOTES, PROVENANCE, LOCK = "notes.json", "provenance.json", "lease.lock"
DESTINATION, DELIVERED, EARLIER_FOLDER = "destination.json", "delivered.json", "earlier"
RANKS_FOLDER, CLAIMS, NOTIFIED_FOLDER = "ranks", "claims", "notified"
MEDIA, MEDIA_FOLDER = "media.jsonl", "media"
# The artifact with the cells that a notebook had executed when it started the run.
EXECUTED_CELLS = "executed_cells.py"
# Names of the record's own files, which no artifact may have.
OWN_FILES = frozenset((RUN, CONFIG, INFO, OUTPUT, POINTS, NAMES, VALUES, SUMMARY, MEDIA, LEASE, NOTES, PROVENANCE))
OWN_FILES |= {SACRED_METRICS, CHILD_POINTS, LIVE, LOCK, SUMS, DESTINATION, DELIVERED}


def newer_format(run: Any) -> str:
    """Say why a record cannot be read: a later version of the lab wrote it in another format; empty if it can."""
    written = run.get("format") if isinstance(run, Mapping) else None
    number = re.fullmatch(r"sacristan-(\d{1,9})", written) if isinstance(written, str) else None
    if number is None or int(number[1]) <= int(FORMAT.rpartition("-")[2]):
        return ""
    return f"its format is {written}, this version reads up to {FORMAT}; use the version of the lab that recorded it"


def read_json(path: Path) -> Any | None:
    """Return the content of a JSON file of a record; None if there is no file."""
    try:
        return load_json(path)
    except FileNotFoundError:
        return None


def read_json_if_whole(path: Path) -> Any:
    """Return the content of a JSON file of a record; None if it is missing, unreadable or damaged."""
    try:
        return load_json(path)
    except (OSError, ValueError, RecursionError):
        return None


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the records of an append-only file of JSON lines, without a torn tail; none if there is no file."""
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[:-1]:
        yield parse_json(line)


def read_names(folder: Path) -> dict[int, tuple[str, bool]]:
    """Return each metric's name by id, and whether its steps are floats; a metric with both kinds has two ids."""
    return MetricNames(folder).by_id


class MetricNames:
    """Metrics of a run, read again from where the file had ended; the owner updates `folder` if that is moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forget()

    def _forget(self) -> None:
        # The inode of the file, the bytes that were parsed, and the last line of them.
        self._state: tuple[int, int, bytes] = (0, 0, b"")
        self._by_id: dict[int, tuple[str, bool]] = {}
        self._by_name: dict[str, dict[int, tuple[str, bool]]] = {}

    @property
    def by_id(self) -> dict[int, tuple[str, bool]]:
        """See `read_names`; later names are not added to this dict."""
        self._read_on()
        return self._by_id

    def of(self, name: str) -> dict[int, tuple[str, bool]]:
        """Return the one or two ids of a metric, as `by_id` has them; none if there is no such metric."""
        self._read_on()
        return self._by_name.get(name, {})

    def _read_on(self) -> None:
        try:
            with open_regular(self.folder / NAMES) as stream:
                inode, (before, end, last) = os.fstat(stream.fileno()).st_ino, self._state
                stream.seek(end - len(last))
                if inode != before or stream.read(len(last)) != last:  # the record was rewound
                    self._forget()
                    end, last = 0, b""
                    stream.seek(0)
                lines = stream.read().split(b"\n")[:-1]
        except FileNotFoundError:
            self._forget()
            return
        if not lines:
            return
        rows = [parse_json(line) for line in lines]
        new = {row["id"]: (row["name"], row.get("steps") == "float") for row in rows}
        self._by_id, self._by_name = {**self._by_id, **new}, dict(self._by_name)
        for number, entry in new.items():
            self._by_name[entry[0]] = {**self._by_name.get(entry[0], {}), number: entry}
        self._state = inode, end + sum(map(len, lines)) + len(lines), lines[-1] + b"\n"


def rank_files(folder: Path) -> dict[int, Path]:
    """Return the output files of the ranks of a run by rank, in order; rank 0 writes the run's own output."""
    files = {int(path.stem): path for path in (folder / RANKS_FOLDER).glob("*.txt") if path.stem.isdecimal()}
    return dict(sorted(files.items()))


def checkpoint_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each checkpoint, such as `checkpoints-2/best.pt`, the initial ones included."""
    for path in sorted(folder.glob("checkpoints*/**/*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not any(part.endswith(".tmp") for part in name.parts):
            yield name.as_posix(), path
