"""A past run of another tracker, as the reader of that tracker returns it.

A reader is a module with three names:

    KIND                    its name for `sacristan import --from`
    recognizes(path)        tells by a quick look whether a file or folder is the tracker's
    find(path)              yields a `Found` for each run in it, oldest first

Readers never write to the source, and never execute anything of it. A run that cannot be read raises `ForeignError`
when it is read, so that it hides no others; a part that cannot be read is left out, with a sentence in `left_out`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sacristan.configs.map import flattened
from sacristan.observers.media.arrays import png_size
from sacristan.observers.media.kinds import binned
from sacristan.observers.media.table import Table
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import ForeignError
from sacristan.runs.query import mapping_of
from sacristan.runs.query.texts import STATUS_STYLES

__all__ = [
    "UNKNOWN",
    "Curve",
    "ForeignRun",
    "Found",
    "Points",
    "Reader",
    "as_json",
    "as_steps",
    "as_whole",
    "file_content",
    "flat",
    "histogram_content",
    "png_content",
    "set_nested",
    "table_content",
    "take_export",
    "take_status",
]

# The status of a run whose tracker does not record how it ended.
UNKNOWN = "UNKNOWN"
# The file in which an export notes what the tracker has no place for.
MARK = "sacristan.json"
_LIVING = ("RUNNING", "QUEUED", "HELD", "COPYING", "REMOVING")
# Of a config or info.
_MOST_ENTRIES = 1_000_000
# Files that are media as they are: the kind here, and the MIME type.
_FILES = {
    ".html": ("html", "text/html; charset=utf-8"),
    ".mp4": ("video", "video/mp4"),
    ".wav": ("audio", "audio/wav"),
    ".webm": ("video", "video/webm"),
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """The points of one metric, in the order of logging.

    Attributes:
        steps: (n,) int64, or float64 if any step is not an integer.
        values: (n,) float64; NaN and infinities as logged.
        times: (n,) float64, seconds since 1970; NaN where the tracker has none.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    times: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def without_last(self) -> Curve:
        return Curve(self.name, self.steps[:-1], self.values[:-1], self.times[:-1])


class Points:
    """Collects the points of a run by metric, in the order of logging."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], tuple[list[Any], array[float], array[float]]] = {}

    def add(self, name: str, step: Any, value: float, time: float = np.nan, origin: str = "") -> None:
        """Add a point; `step` None means the number of the metric's points so far.

        `time` is in seconds since 1970, NaN if the tracker has none. `origin` tells apart metrics that have one name
        here and several in the tracker.
        """
        steps, values, times = self._columns.setdefault((name, origin), ([], array("d"), array("d")))
        steps.append(len(steps) if step is None else step)
        values.append(value)
        times.append(time)

    def curves(self) -> list[Curve]:
        """Return a curve for each metric; a step that is not a number is a ForeignError."""
        return [
            Curve(name, as_steps(steps), np.array(values, np.float64), np.array(times, np.float64))
            for (name, _), (steps, values, times) in self._columns.items()
        ]


@dataclasses.dataclass
class ForeignRun:
    """A past run of another tracker.

    Attributes:
        experiment: Name of the experiment or project.
        title: Name of the run; empty if it has none.
        status: COMPLETED, FAILED, INTERRUPTED, DEAD or `UNKNOWN`.
        started, stopped: Seconds since 1970; None if the tracker has no such time.
        config: The hyperparameters, nested by dotted or other names as in the tracker.
        info: Everything else that is worth keeping, as JSON holds it.
        result: The result as JSON holds it; None for none.
        host: Entries about the machine, such as `hostname`, `os` and `python_version`.
        command: The command line; empty if it is unknown.
        output: The captured output, in UTF-8.
        artifacts: Paths of further files by their name in the run.
        used: Descriptions of the data that it used, as JSON holds them, by name.
        left_out: A sentence for each part that could not be read.
    """

    experiment: str
    title: str = ""
    status: str = UNKNOWN
    started: float | None = None
    stopped: float | None = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    result: Any = None
    tags: list[str] = dataclasses.field(default_factory=list)
    note: str = ""
    host: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: Sequence[str] = ()
    output: bytes = b""
    curves: list[Curve] = dataclasses.field(default_factory=list)
    media: list[MediaEntry] = dataclasses.field(default_factory=list)
    artifacts: dict[str, Path] = dataclasses.field(default_factory=dict)
    used: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    left_out: list[str] = dataclasses.field(default_factory=list)

    @property
    def num_points(self) -> int:
        return sum(map(len, self.curves))


@dataclasses.dataclass(frozen=True)
class Found:
    """A run that a reader has found, before it is read.

    Attributes:
        key: Identifies the run among all runs of its tracker, also after the source has grown.
        place: The file or folder, and the run's name in it, for messages.
        read: Reads the run; to be called before the next run is asked for.
        by_place: Whether the run's experiment, title and end are those of files, so that a copy of it has others.
        former: The key that earlier versions used; empty for the same.
    """

    key: str
    place: str
    read: Callable[[], ForeignRun]
    by_place: bool = False
    former: str = ""


class Reader(Protocol):
    """The module of a reader."""

    KIND: str

    def recognizes(self, path: Path) -> bool:
        """Tell by a quick look whether a file or folder is the tracker's."""

    def find(self, path: Path) -> Iterator[Found]:
        """Yield each run in a file or folder, oldest first."""


def as_json(value: Any) -> Any:
    """Return a copy of a config as JSON holds it: keys, which may be numbers in YAML, become texts.

    Too many entries are a ForeignError: references in YAML can make them from a few lines.
    """
    num_left = itertools.count(_MOST_ENTRIES, -1)

    def copied(value: Any) -> Any:
        if not next(num_left):
            raise ForeignError(f"its config has more than {_MOST_ENTRIES:,} entries")
        if isinstance(value, dict):
            return {str(key): copied(item) for key, item in value.items()}
        return [copied(item) for item in value] if isinstance(value, list) else value

    return copied(value)


def flat(
    values: Mapping[str, Any], prefix: str = "", separator: str = "/", *, has_media: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield nested values by joined name, without empty mappings; a medium, which has a `_type`, is one value."""

    def is_nested(value: Any) -> bool:
        return isinstance(value, dict) and not (has_media and "_type" in value)

    return flattened(values, prefix, separator, is_nested)


def set_nested(entries: dict[str, Any], name: str, separator: str, value: Any) -> None:
    """Set an entry whose name is nested by separators; where a group has the name of a value, under its whole name."""
    *outer, last = name.split(separator)
    inner = entries
    for key in outer:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            inner, last = entries, name
            break
    inner[last] = value


def as_steps(steps: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return steps as int64 if all are integers, else as float64."""
    if isinstance(steps, np.ndarray) and steps.dtype == np.int64:
        return steps
    if {*map(type, steps)} == {int}:
        with contextlib.suppress(OverflowError):
            return np.asarray(steps, np.int64)
    try:
        floats = np.asarray(steps, np.float64)
    except (TypeError, ValueError) as error:
        raise ForeignError(f"got a step that is no number ({error})") from error
    if all(type(step) is int or float(step).is_integer() for step in steps):
        try:
            return np.asarray([int(step) for step in steps], np.int64)
        except OverflowError:
            pass
    return floats


def as_whole(value: Any) -> Any:
    """Return a float that is a whole number as an int, for trackers with one type for both."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def take_export(run: ForeignRun, folder: Path) -> None:
    """Take the status and result that `sacristan export` noted in a folder, as its tracker has no place for them."""
    with contextlib.suppress(OSError, ValueError):
        mark = mapping_of(load_json(folder / MARK))
        take_status(run, mark.get("status"))
        run.result = mark.get("result")


def take_status(run: ForeignRun, status: Any) -> None:
    """Take the status of an exported run, DEAD if it had not ended; a hostile source may name anything."""
    if isinstance(status, str) and status in STATUS_STYLES:
        run.status = "DEAD" if status in _LIVING else status


def file_content(path: Path) -> tuple[str, Content]:
    """Return the kind and content of a PNG, WAV, MP4, WebM or HTML file; others raise ValueError."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        return "image", png_content(read_regular(path))
    if suffix not in _FILES:
        raise ValueError(f"got a file {suffix or path.name!r}, expected .png, {', '.join(_FILES)}")
    kind, content_type = _FILES[suffix]
    return kind, Content(read_regular(path), suffix, content_type, {})


def png_content(data: bytes) -> Content:
    """Return the content of an image; data that are no PNG file are a ValueError."""
    width, height = png_size(data)
    return Content(data, ".png", "image/png", {"width": width, "height": height})


def histogram_content(counts: Any, edges: Any) -> Content:
    """Return a histogram of counts (bins,) and ascending edges (bins + 1,); anything else is a ValueError."""
    counts, edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
    if counts.ndim != 1 or not len(counts) or edges.shape != (len(counts) + 1,):
        raise ValueError(f"got arrays of shapes {counts.shape} and {edges.shape}, expected (bins,) and (bins + 1,)")
    if not (np.isfinite(counts).all() and np.isfinite(edges).all()):
        raise ValueError("got bounds or counts that are not finite")
    return Content(json.dumps(binned(counts, edges)).encode(), ".json", "application/json", {})


def table_content(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Content:
    """Return the content of a table; cells that are neither numbers nor texts become JSON."""
    plain = (str, int, float, type(None))
    return Table(
        columns, [[cell if isinstance(cell, plain) else json.dumps(cell) for cell in row] for row in rows]
    ).encode()
