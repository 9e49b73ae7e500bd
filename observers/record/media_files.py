"""The media of a run on disk: each content in one file, named by its SHA-256, and an entry for each time it was logged.

A content is written before its entry, so an entry always leads to a file. Media that a full disk rejects wait in
memory, up to a bound, and are retried; beyond the bound the oldest are dropped, and counted.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.observers.errors import RecordError
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.files import replacing, sync_files
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.schema import MEDIA, MEDIA_FOLDER, read_json_lines


@dataclasses.dataclass(repr=False)
class Content:
    """A media file; `meta` is JSON that readers need without opening it, `images` are contents that it refers to."""

    data: bytes
    suffix: str
    content_type: str
    meta: dict[str, Any]
    images: tuple[Content, ...] = ()

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def file(self) -> str:
        """Name of the file, made from the SHA-256."""
        return f"{self.sha256}{self.suffix}"

    @property
    def num_bytes(self) -> int:
        """Length of the content and all its images."""
        return len(self.data) + sum(len(image.data) for image in self.images)


class MediaEntry(NamedTuple):
    """A logged medium, as observers receive it.

    Attributes:
        name: The name of the series.
        kind: image, figure, histogram, text, table, audio, video, point_cloud or html.
        step: Its step.
        time: When it was logged, in seconds since 1970.
        content: The content; None if it could not be created.
    """

    name: str
    kind: str
    step: int | float
    time: float
    content: Content | None


MAX_WAITING_BYTES = 64 * 2**20
_MEDIA_FILE = rf"({MEDIA_FOLDER}/)?[0-9a-f]{{64}}\.[a-z0-9]{{1,8}}"


class MediaFiles:
    """Writes the media of one run; `say` gets path and error of those that wait, `num_lost` are dropped."""

    def __init__(self, folder: Path, say: Callable[[Path, OSError], None]) -> None:
        self.folder = folder
        self.num_lost = 0
        self.entries = AppendFile(folder / MEDIA)
        self._say = say
        self._waiting: deque[tuple[MediaEntry, Content, float]] = deque()
        self._waiting_bytes = self._lost_bytes = 0
        # Names of contents this process has written, which need no look at the disk.
        self._written: set[str] = set()
        # Contents that may not be on the disk yet.
        self._unsynced: set[Path] = set()

    @property
    def num_lost_bytes(self) -> int:
        """Bytes of contents and entries that were dropped."""
        return self._lost_bytes + self.entries.num_lost_bytes

    def add(self, entry: MediaEntry, time_s: float) -> None:
        """Write one medium, after those that wait; `time_s` counts from the start of the run."""
        if entry.content is None:
            self._lose(1)
            return
        self._waiting.append((entry, entry.content, time_s))
        self._waiting_bytes += entry.content.num_bytes
        self.retry()

    def retry(self) -> None:
        """Write waiting media, as far as the disk has room; drop the oldest if too much waits."""
        try:
            self.flush()
        except OSError as error:
            self._say(self.folder / MEDIA_FOLDER, error)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            dropped = self._waiting.popleft()[1].num_bytes
            self._waiting_bytes -= dropped
            self._lose(dropped)

    def flush(self) -> None:
        """Write waiting media; after an OSError, some still wait."""
        while self._waiting:
            entry, content, time_s = self._waiting[0]
            for each in (*content.images, content):
                self._write(each)
            self._waiting.popleft()
            self._waiting_bytes -= content.num_bytes
            self.entries.append(_line(entry, content, time_s))
        self.entries.append(b"")

    def sync(self) -> None:
        """Write waiting media, and wait until all are on the disk."""
        self.flush()
        paths = self._unsynced.copy()
        sync_files(paths)
        self._unsynced -= paths
        self.entries.sync()

    def follow(self, folder: Path) -> None:
        """Continue after the folder was moved; the file of entries stays open, so no entry is lost."""
        self.folder, self.entries.path = folder, folder / MEDIA

    def recreate(self, folder: Path) -> None:
        """Create the entries again after the folder was deleted; entries whose content is gone count as lost."""
        self.folder = folder
        self._written.clear()
        self.entries.recreate(folder / MEDIA)
        self.num_lost += sum(not media.path.exists() for media in read_media(folder))

    def _lose(self, num_bytes: int) -> None:
        self.num_lost += 1
        self._lost_bytes += num_bytes

    def _write(self, content: Content) -> None:
        if content.file in self._written:
            return
        path = self.folder / MEDIA_FOLDER / content.file
        path.parent.mkdir(exist_ok=True)
        self._unsynced.add(path)
        # After a power cut, a file may exist without its content.
        if not path.exists() or path.stat().st_size != len(content.data):
            with replacing(path, durable=False) as stream:
                stream.write(content.data)
        self._written.add(content.file)

    def give_up(self) -> None:
        """Drop media that still wait, and count them as lost."""
        while self._waiting:
            self._lose(self._waiting.popleft()[1].num_bytes)
        self._waiting_bytes = 0
        self.num_lost += self.entries.num_pending_lines
        self.entries.give_up()


def _line(entry: MediaEntry, content: Content, time_s: float) -> bytes:
    row: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "step": entry.step,
        "time": round(time_s, 3),
        "file": f"{MEDIA_FOLDER}/{content.file}",
        "sha256": content.sha256,
        "bytes": len(content.data),
        "content_type": content.content_type,
        "meta": content.meta,
    }
    if content.images:
        row["images"] = [f"{MEDIA_FOLDER}/{image.file}" for image in content.images]
    return json.dumps(row).encode() + b"\n"


# ---------------------------------------------------------------------- reading


class MediaRecord(NamedTuple):
    """A medium in the record of a run.

    Attributes:
        name: The name of the series.
        kind: image, figure, histogram, text, table, audio, video, point_cloud or html; later versions may add kinds.
        step: Its step.
        time: Seconds since the run started.
        path: The file. `read_table` reads a table, any JSON reader a histogram; other files are PNG, WAV, MP4, PLY or
            HTML, by their kind.
        sha256: SHA-256 of the file.
        content_type: Its MIME type.
        meta: Width and height, sample rate, caption, number of rows, depending on the kind.
    """

    name: str
    kind: str
    step: int | float
    time: float
    path: Path
    sha256: str
    content_type: str
    meta: dict[str, Any]


def media_path(folder: Path, file: Any) -> Path:
    """Return the path of a content, from `file` in an entry or a table's cell; reject names that lead elsewhere."""
    if not isinstance(file, str) or not re.fullmatch(_MEDIA_FILE, file):
        raise RecordError(
            f"{folder / MEDIA}: got the file name {file!r}, expected {MEDIA_FOLDER}/SHA256.SUFFIX; it was not written "
            "by this program, remove the entry"
        )
    return folder / MEDIA_FOLDER / file.rpartition("/")[2]


def read_media(folder: str | Path) -> list[MediaRecord]:
    """Return the media of a run in the order of logging, without opening their files.

    Args:
        folder: The run's folder.

    Raises:
        RecordError: If a file name leads out of the folder.
    """
    folder = Path(folder)
    return [
        MediaRecord(
            **{key: row[key] for key in ("name", "kind", "step", "time", "sha256", "content_type", "meta")},
            path=media_path(folder, row["file"]),
        )
        for row in read_json_lines(folder / MEDIA)
    ]


def read_table(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Read a table.

    Args:
        path: The table's file, `MediaRecord.path`.

    Returns:
        The names of the columns, and the rows. Cells are numbers, texts, None, or the `Path` of an image.

    Raises:
        RecordError: If an image's file name leads out of the folder.
    """
    table = load_json(path)

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return float(value["$number"]) if "$number" in value else media_path(path.parent.parent, value["$image"])
        return value

    return table["columns"], [[cell(value) for value in row] for row in table["rows"]]
