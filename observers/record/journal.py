"""The journal of a run: append-only files and whole files in its folder, written by one process.

A write that fails (full disk, lost mount, read-only folder) never raises. The data waits in memory and is retried with
the next write, up to a bound; beyond it the oldest data is dropped, and counted. Only the first failure is reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.copies import PART
from sacristan.observers.record.files import lasting_path, replacing, sync_files
from sacristan.observers.record.media_files import MediaFiles
from sacristan.observers.record.points.point_files import PointFiles
from sacristan.observers.record.points.rewinding import Position, read_position, rewound_files
from sacristan.observers.record.schema import MEDIA, MEDIA_FOLDER, NOTES, OUTPUT, PROVENANCE, SUMMARY

_log = logging.getLogger(__name__)


class Journal:
    """Writes the record of one run; most of the `num_failures` writes that failed so far succeed later."""

    def __init__(self, folder: Path) -> None:
        self.folder = lasting_path(folder)
        self.num_failures = 0
        self.points = PointFiles(self.folder, self._say)
        self._output = AppendFile(self.folder / OUTPUT, 0, say=self._say)
        self.media = MediaFiles(self.folder, self._say)
        # The current content of each whole file, and the names of those that are not written yet.
        self._contents: dict[str, bytes] = {}
        self._unwritten: set[str] = set()
        self._unsynced: set[Path] = set()
        try:
            self._output.create()
        except OSError as error:
            self._say(self._output.path, error)

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were dropped because the disk rejected them for too long."""
        return sum(file.num_lost_bytes for file in (self.points, self._output, self.media))

    def add_output(self, data: bytes) -> None:
        """Append captured output in UTF-8, which may end in the middle of a line, or of a character."""
        self._output.write(data)

    def end_line(self) -> None:
        """Append a line feed if the output ends in the middle of a line."""
        with self._output.path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
            last = stream.read()
        self._output.write(b"\n" if last not in (b"", b"\n") else b"")

    def retry(self) -> None:
        """Write everything that could not be written before; see `PointLog.drain` for new points."""
        self.points.retry()
        self._output.write(b"")
        self.media.retry()
        for name in list(self._unwritten):
            self._replace(name)

    def write(self, name: str, document: Any, *, durable: bool = True) -> bool:
        """Replace a whole file, and return whether it is written; if not, it is retried."""
        self._contents[name] = json.dumps(document, indent=2).encode()
        self._unwritten.add(name)
        self._replace(name, durable=durable)
        return self.is_written(name)

    def is_written(self, name: str) -> bool:
        """Return whether a whole file is as `write` last got it."""
        return name not in self._unwritten

    def write_summary(self, *, durable: bool = False) -> None:
        """Replace the summaries of the metrics."""
        self.write(SUMMARY, self.points.summary, durable=durable)

    def note_file(self, path: Path) -> None:
        """Remember a file for `sync_all` that belongs to the run and was written elsewhere."""
        self._unsynced.add(path)

    def sync(self) -> None:
        """Write points, media and output, and wait until they are on the disk; what cannot be written is retried."""
        try:
            self.points.sync()
            self.media.sync()
            self._output.sync()
        except OSError as error:
            self._say(self.folder, error)

    def sync_all(self) -> None:
        """Do what `sync` does, and wait for the files from `note_file`."""
        self.sync()
        try:
            paths = self._unsynced.copy()
            sync_files(paths)
            self._unsynced -= paths
        except OSError as error:
            self._say(self.folder, error)

    # ------------------------------------------------------------------ a folder that is moved or deleted

    def is_gone(self) -> bool:
        """Tell whether an append-only file is no longer at its path."""
        return any(file.is_gone() for file in (*self.points.files, self._output, self.media.entries))

    def follow(self, folder: Path) -> None:
        """Continue in the same files after their folder was moved; they stay open, so nothing is lost."""
        self.folder = folder
        self._output.path = folder / OUTPUT
        self.points.follow(folder)
        self.media.follow(folder)

    def recreate(self, folder: Path) -> dict[str, int]:
        """Create the record again after its folder was deleted; return how many points and media are lost, by kind."""
        self.folder, num_lost_points, num_lost_media = folder, self.points.num_lost_points, self.media.num_lost
        self.points.recreate(folder)
        self._output.recreate(folder / OUTPUT)
        self.media.recreate(folder)
        self._unwritten = set(self._contents)
        self.retry()
        self.write_summary()
        return {
            "points": self.points.num_lost_points - num_lost_points,
            "media": self.media.num_lost - num_lost_media,
        }

    # ------------------------------------------------------------------ an earlier process's journal

    def recover(self) -> None:
        """Do what `recall` does, and update the summaries."""
        self.recall()
        self.write_summary()

    def recall(self) -> None:
        """Take over the record of an earlier process with its latest points; no other process may write here."""
        self.points.recover()
        self.points.recall()
        self.points.recover_children()
        for file in (*self.points.files, self.media.entries):
            if file.path.exists():
                file.create()
        with contextlib.suppress(OSError):
            self._contents[PROVENANCE] = (self.folder / PROVENANCE).read_bytes()

    def clear(self) -> None:
        """Remove the partial files of a killed process; no other process may write here."""
        # Other processes write tags and notes, at any time; the copy of a large artifact goes on from its part.
        kept = (*self.folder.glob(f".{NOTES}.*.tmp"), *self.folder.glob(f".*{PART}"))
        partial = set(self.folder.glob(".*.tmp")) - set(kept)
        for path in (*partial, *(self.folder / MEDIA_FOLDER).glob(".*.tmp")):
            with contextlib.suppress(OSError):
                path.unlink()

    def rewind(self, position: Position) -> dict[str, dict[str, list]]:
        """Remove the points and media beyond a position; return that of the record. After an OSError, repeat it."""
        with self.points.turn:
            self.points.flush()
            self.media.flush()
            for name, data in rewound_files(self.folder, position):
                if name == MEDIA:  # contents stay; the same one may be logged again
                    self.media.entries.replace(data)
                else:
                    self.points.replace(name, data)
            self.points.recall()
        self.write_summary()
        return read_position(self.folder)

    def _replace(self, name: str, *, durable: bool = True) -> None:
        try:
            with replacing(self.folder / name, durable=durable) as stream:
                stream.write(self._contents[name])
            self._unwritten.discard(name)
        except OSError as error:
            self._say(self.folder / name, error)

    def _say(self, path: Path, error: OSError) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            _log.warning("%s cannot be written (%s); training continues, and writing is retried", path, error.strerror)

    def give_up(self) -> None:
        """Reject new points, write the rest, and count as lost what cannot be written."""
        self.points.give_up()
        self.retry()
        self._output.give_up()
        self.media.give_up()

    def close(self) -> None:
        """Give up, report what could not be written, and close all files."""
        self.give_up()
        for file in (*self.points.files, self._output, self.media.entries):
            file.close()
        if self.num_lost_bytes:
            _log.error(
                "%s: %d points and %d media could not be written and are lost, %d bytes of the record in all",
                self.folder,
                self.points.num_lost_points,
                self.media.num_lost,
                self.num_lost_bytes,
            )
        if self._unwritten:
            _log.error("%s: %s could not be written", self.folder, ", ".join(sorted(self._unwritten)))
