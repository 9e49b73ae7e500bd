"""Media of a run on disk: each content in a file once, named by its SHA-256; one entry for each time it was logged.

The content is written before its entry, so that an entry always leads to a file. What a full disk refuses waits in
memory, up to a bound, and is tried again; beyond it the oldest is given up, and counted.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from observers.record.append_file import AppendFile
from observers.record.atomic_file import replacing, sync_files
from observers.record.media_entry import Content, MediaEntry
from observers.record.schema import MEDIA, MEDIA_FOLDER, read_media

__all__ = ["MAX_WAITING_BYTES", "MediaFiles"]

MAX_WAITING_BYTES = 64 * 2**20


class MediaFiles:
    """Writes the media of one run.

    Args:
        folder: The run's folder, which exists.
        say: Called with a path and an error for what cannot be written, and is tried again.

    Attributes:
        num_lost: Entries that were given up, or came without a content.
    """

    def __init__(self, folder: Path, say: Callable[[Path, OSError], None]) -> None:
        self.folder = folder
        self.num_lost = 0
        self._say = say
        self._entries = AppendFile(folder / MEDIA)
        self._waiting: deque[tuple[MediaEntry, Content, float]] = deque()
        self._waiting_bytes = self._lost_bytes = 0
        # Names of contents that this process has written: they need no look at the disk.
        self._written: set[str] = set()
        # Contents that are not on the disk for certain.
        self._unsynced: set[Path] = set()

    @property
    def num_lost_bytes(self) -> int:
        """Bytes of contents and entries that were given up."""
        return self._lost_bytes + self._entries.num_lost_bytes

    def add(self, entry: MediaEntry, time_s: float) -> None:
        """Write one entry, behind those that wait; `time_s` counts from the run's start."""
        if entry.content is None:
            self._lose(1)
            return
        self._waiting.append((entry, entry.content, time_s))
        self._waiting_bytes += entry.content.num_bytes
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the disk takes it."""
        try:
            self.flush_or_raise()
        except OSError as error:
            self._say(self.folder / MEDIA_FOLDER, error)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            given_up = self._waiting.popleft()[1].num_bytes
            self._waiting_bytes -= given_up
            self._lose(given_up)

    def flush_or_raise(self) -> None:
        """Write what waits.

        Raises:
            OSError: If it cannot be written; it still waits then.
        """
        while self._waiting:
            entry, content, time_s = self._waiting[0]
            for each in (*content.images, content):
                self._write(each)
            self._waiting.popleft()
            self._waiting_bytes -= content.num_bytes
            self._entries.append(_line(entry, content, time_s))
        self._entries.append(b"")

    def replace(self, data: bytes) -> None:
        """Put other entries in the place of those that are there; their contents stay, for whom they are the same.

        Raises:
            OSError: If they cannot be written.
        """
        self._entries.replace(data)

    @property
    def entries(self) -> AppendFile:
        """The file of entries."""
        return self._entries

    def follow(self, folder: Path) -> None:
        """Go on in the same files, which are in `folder` now."""
        self.folder, self._entries.path = folder, folder / MEDIA

    def recreate(self, folder: Path) -> None:
        """Make the entries anew in `folder`; those whose contents are gone are lost."""
        self.folder = folder
        self._written.clear()
        self._entries.recreate(folder / MEDIA)
        self.num_lost += sum(not media.path.exists() for media in read_media(folder))

    def sync(self) -> None:
        """Wait until the contents and entries that are written are on the disk.

        Raises:
            OSError: If the disk fails.
        """
        paths = self._unsynced.copy()
        sync_files(paths)
        self._unsynced -= paths
        self._entries.sync()

    def _lose(self, num_bytes: int) -> None:
        self.num_lost += 1
        self._lost_bytes += num_bytes

    def _write(self, content: Content) -> None:
        if content.file in self._written:
            return
        path = self.folder / MEDIA_FOLDER / content.file
        path.parent.mkdir(exist_ok=True)
        self._unsynced.add(path)
        # After a power cut, a file may be there without what was in it.
        if not path.exists() or path.stat().st_size != len(content.data):
            with replacing(path, durable=False) as stream:
                stream.write(content.data)
        self._written.add(content.file)

    def give_up(self) -> None:
        """Give up what still waits."""
        while self._waiting:
            self._lose(self._waiting.popleft()[1].num_bytes)
        self._waiting_bytes = 0
        self.num_lost += self._entries.num_pending_lines
        self._entries.give_up()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.flush()
        self._entries.close()


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
