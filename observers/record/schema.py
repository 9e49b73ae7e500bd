"""The record of a run on disk: its files, and how they are read. Writers and readers both go by this module.

A run's folder, beside what Sacred's FileStorageObserver would put there:

    run.json             experiment, command, host, times, status, result, artifacts, resources; replaced as a whole
    config.json          the config; replaced as a whole
    info.json            the run's info; replaced as a whole
    cout.txt             captured output; append-only
    metrics.bin          points, 24 bytes each; append-only
    metrics.sums         checksums of the points, see `observers.record.points.intact_points`; append-only
    metrics.live         the latest points of a run that goes on or was killed, see
                         `observers.record.points.live_points`
    metrics.children.jsonl  points of forked children that the run has yet to take over; only while there are any
    metrics.names.jsonl  the name of each metric id; append-only
    values.jsonl         logged values that are no numbers, each `after` so many numbers of its metric; append-only
    summary.json         first, last, min, max, mean, count of each metric; replaced as a whole
    media.jsonl          an entry for each medium that was logged: an image, a table and so on; append-only
    media/               their contents, each once: SHA-256 and suffix are the name; written before the entry
    provenance.json      git, packages, libraries, machine and determinism flags of the first session; replaced as a
                         whole
    lease.json           who writes this run, and when last; replaced as a whole
    lease.lock           empty; the process that writes this run holds a lock on it
    metrics.json         Sacred's form of the metrics, written when the run ends
    destination.json     the database that the run is delivered to, without credentials
    delivered.json       how much of the run was in that database, once all of it was
    earlier/             artifacts whose name was given to another file later, for that database; see `run.json`
    ranks/               of a run of several processes what each but rank 0 printed, as `NUMBER.txt`; each written by
                         that process, append-only
    claims/              which worker has taken each attempt at a queued run, as `NUMBER.json`, written once; and the
                         lease of the process that it started, as `NUMBER.lease`
    notes.json           tags, a note and verdicts on reproductions, which come later; replaced as a whole

`run.json` names the folder itself as `folder`, and the one that the run was started in as `cwd`. Of a run that is
recorded in several folders, the others name the one that has the states of its training as `states_folder`. That of a
resumed run has `sessions` (see `observers.record.resuming`), and `revision`, which counts how often the record was
rewound (see `observers.record.points.rewinding`); while that is done it has `rewinding`, and files that are append-only
otherwise are replaced as a whole.

The `kind` of a medium says what its content is. Readers take one that they do not know for a file of its
`content_type`, so that a later version may add kinds.

    image, figure        PNG
    video                PNG, animated, of frames; or MP4 or WebM
    audio                WAV, 16 bits
    point_cloud          PLY, see `observers.media.ply`
    histogram, table     JSON, see `observers.media.histograms` and `read_table`
    text, html           UTF-8

Of a run of several processes `meta.ranks` in `run.json` has their number as `size`, how many of them were `per_node`,
and what named their `launch`; `ranks` in `info.json` lists host, pid and device of each.

`better` in `info.json` says of metrics, and of `result`, whether `max` or `min` is better, by name (see
`observers.record.directions`). Of what is not in it, as in earlier records, nothing is known.

`metrics.live` has two halves. Each begins with the number of points in `metrics.bin` that come before its first one,
and a stamp (u8 each, and 8 unused bytes); slots follow (see `SLOT`). A slot is a point if its tag has the half's stamp,
which is never 0, in the upper 8 bits; the lower ones are the metric's id plus one. A reader who finds more points in
`metrics.bin` than come before a half passes over as many of its points, so that none counts twice.

A torn tail, which a killed process can leave behind an append-only file, is what follows the last whole record; readers
pass over it, and the next writer cuts it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from observers.record.json_text import parse_json
from observers.record.regular_file import read_regular

__all__ = ["checkpoint_files", "rank_files", "read_json", "read_json_lines", "read_names"]

FORMAT = "sacristan-1"
# More points than this have no `metrics.json`, which grows with them.
MAX_SACRED_POINTS = 200_000
RUN, CONFIG, INFO, OUTPUT = "run.json", "config.json", "info.json", "cout.txt"
CHILD_POINTS = "metrics.children.jsonl"
POINTS, LIVE, NAMES, VALUES = "metrics.bin", "metrics.live", "metrics.names.jsonl", "values.jsonl"
SUMS = "metrics.sums"
SUMMARY, LEASE, SACRED_METRICS = "summary.json", "lease.json", "metrics.json"
NOTES, PROVENANCE, LOCK = "notes.json", "provenance.json", "lease.lock"
DESTINATION, DELIVERED, EARLIER_FOLDER = "destination.json", "delivered.json", "earlier"
RANKS_FOLDER, CLAIMS = "ranks", "claims"
MEDIA, MEDIA_FOLDER = "media.jsonl", "media"
# What a run's folder has of itself, and no artifact may be called.
OWN_FILES = frozenset((RUN, CONFIG, INFO, OUTPUT, POINTS, NAMES, VALUES, SUMMARY, MEDIA, LEASE, NOTES, PROVENANCE))
OWN_FILES |= {SACRED_METRICS, CHILD_POINTS, LIVE, LOCK, SUMS, DESTINATION, DELIVERED}


def read_json(path: Path) -> Any | None:
    """Return what a JSON file of a record holds; None if there is no file.

    Raises:
        ValueError: If it is not JSON.
    """
    try:
        return parse_json(read_regular(path))
    except FileNotFoundError:
        return None


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the records of an append-only JSON-lines file, passing over a torn tail; none if there is no file."""
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[:-1]:
        yield parse_json(line)


def read_names(folder: Path) -> dict[int, tuple[str, bool]]:
    """Return name, and whether steps are floats, of each metric id."""
    return {row["id"]: (row["name"], row.get("steps") == "float") for row in read_json_lines(folder / NAMES)}


def rank_files(folder: Path) -> dict[int, Path]:
    """Return the output files of the ranks of a run by rank, in order; rank 0 writes the run's own output.

    Args:
        folder: The run's folder.
    """
    files = {int(path.stem): path for path in (folder / RANKS_FOLDER).glob("*.txt") if path.stem.isdecimal()}
    return dict(sorted(files.items()))


def checkpoint_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name in the folder and the path of each checkpoint, including those that the run started from.

    Args:
        folder: The run's folder, with `checkpoints/last.pt`, `checkpoints-2/best.pt` and so on.
    """
    for path in sorted(folder.glob("checkpoints*/**/*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not any(part.endswith(".tmp") for part in name.parts):
            yield name.as_posix(), path
