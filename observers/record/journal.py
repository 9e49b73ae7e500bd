"""The journal of a run: append-only files and whole files in its folder, written by one process.

A write that fails (full disk, lost mount, read-only folder) never raises. What could not be written is kept in memory
and tried again with the next write, up to a bound; beyond it the oldest is given up, and counted. The first failure is
said once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from observers.record.append_file import AppendFile
from observers.record.atomic_file import replacing, sync_files
from observers.record.media_files import MediaFiles
from observers.record.points.point_files import PointFiles
from observers.record.points.rewinding import Position, read_position, rewound_files
from observers.record.safe_paths import lasting_path
from observers.record.schema import MEDIA, NOTES, OUTPUT, PROVENANCE, SUMMARY

__all__ = ["Journal"]

_log = logging.getLogger(__name__)


class Journal:
    """Writes one run down.

    Args:
        folder: The run's folder, which exists.

    Attributes:
        num_failures: Writes that failed so far, most of them made good later.
        points: The files of points.
        media: The files of media.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = lasting_path(folder)
        self.num_failures = 0
        self.points = PointFiles(self.folder, self._say)
        self._output = AppendFile(self.folder / OUTPUT, 0)
        self.media = MediaFiles(self.folder, self._say)
        # Documents as they are to be, and those of them that are to be written.
        self._known: dict[str, bytes] = {}
        self._documents: dict[str, bytes] = {}
        self._unsynced: set[Path] = set()
        try:
            self._output.create()
        except OSError as error:
            self._say(self._output.path, error)

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were given up, because the disk refused them for too long."""
        return sum(file.num_lost_bytes for file in (self.points, self._output, self.media))

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """The summary of each metric, see `summaries.summarize`."""
        return self.points.summary

    def add_points(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append points of one metric, see `PointFiles.add_batch`."""
        self.points.add_batch(name, steps, values, ticks)

    def add_output(self, data: bytes) -> None:
        """Append captured output."""
        self._append(self._output, data)

    def end_line(self) -> None:
        """Append a line feed to output that ends in the middle of a line."""
        with self._output.path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
            last = stream.read()
        self._append(self._output, b"\n" if last not in (b"", b"\n") else b"")

    def flush(self) -> None:
        """Try again to write what failed before."""
        self.points.flush()
        self._append(self._output, b"")
        self.media.flush()
        for name in list(self._documents):
            self._replace(name)

    def write(self, name: str, document: Any, *, durable: bool = True) -> bool:
        """Replace the JSON file `name` by `document`, and return whether that is done.

        Args:
            name: Its name in the folder.
            document: What JSON can hold.
            durable: Whether to wait until it is on the disk; a killed process never needs that, a power cut does.
        """
        self._known[name] = self._documents[name] = json.dumps(document, indent=2).encode()
        self._replace(name, durable=durable)
        return name not in self._documents

    def write_summary(self, *, durable: bool = False) -> None:
        """Replace the summary of the metrics."""
        self.write(SUMMARY, self.summary, durable=durable)

    def note_file(self, path: Path) -> None:
        """Note a file that belongs to the run, and that others wrote: a source, resource or artifact."""
        self._unsynced.add(path)

    def sync(self) -> None:
        """Wait until all points, media and output are on the disk; what cannot be written is tried again later."""
        try:
            self.points.sync()
            self.media.flush_or_raise()
            self.media.sync()
            self._output.sync()
        except OSError as error:
            self._say(self.folder, error)

    def sync_all(self) -> None:
        """Do as `sync` does, and wait for the files that were noted, too."""
        self.sync()
        try:
            paths = self._unsynced.copy()
            sync_files(paths)
            self._unsynced -= paths
        except OSError as error:
            self._say(self.folder, error)

    # ------------------------------------------------------------------ a folder that is moved or deleted

    def is_gone(self) -> bool:
        """Tell whether a file that is appended to is no longer where it was."""
        return any(file.is_gone() for file in (*self.points.files, self._output, self.media.entries))

    def follow(self, folder: Path) -> None:
        """Go on in the same files, which are in `folder` now."""
        self.folder = folder
        self._output.path = folder / OUTPUT
        self.points.follow(folder)
        self.media.follow(folder)

    def recreate(self, folder: Path) -> dict[str, int]:
        """Make the record anew in `folder`, and return how many points and media are lost with the old one."""
        self.folder, num_lost_points, num_lost_media = folder, self.points.num_lost_points, self.media.num_lost
        self.points.recreate(folder)
        self._output.recreate(folder / OUTPUT)
        self.media.recreate(folder)
        self._documents = dict(self._known)
        self.flush()
        self.write_summary()
        return {
            "points": self.points.num_lost_points - num_lost_points,
            "media": self.media.num_lost - num_lost_media,
        }

    # ------------------------------------------------------------------ a journal that was begun before

    def recover(self) -> None:
        """Take in the latest points of a process that was killed; nobody else may write here meanwhile.

        Raises:
            OSError, ValueError: If they cannot be read, or written.
        """
        self.recall()
        self.write_summary()

    def recall(self) -> None:
        """Take over what an earlier process has written: the metrics' ids and summaries.

        Raises:
            OSError, ValueError: If it cannot be read.
        """
        self.points.recover()
        self.points.recall()
        self.points.recover_children()
        for file in (*self.points.files, self.media.entries):
            if file.path.exists():
                file.create()
        with contextlib.suppress(OSError):
            self._known[PROVENANCE] = (self.folder / PROVENANCE).read_bytes()

    def clear(self) -> None:
        """Remove what a process that was killed had written half of a file; nobody else may write here meanwhile."""
        # Tags and notes are written by others, who may be about to.
        for path in set(self.folder.glob(".*.tmp")) - set(self.folder.glob(f".{NOTES}.*.tmp")):
            with contextlib.suppress(OSError):
                path.unlink()

    def position(self) -> dict[str, dict[str, list]]:
        """Return the position of all that is in the folder."""
        return read_position(self.folder)

    def rewind(self, position: Position) -> dict[str, dict[str, list]]:
        """Take the points and media beyond a position away for good, and return the position that is reached.

        That is another one where the record has less than it should, as after a power cut.

        Raises:
            OSError: If something cannot be written; then this can be done again.
        """
        with self.points.turn:
            self.points.flush_or_raise()
            self.media.flush_or_raise()
            for name, data in rewound_files(self.folder, position):
                if name == MEDIA:
                    self.media.replace(data)
                else:
                    self.points.replace(name, data)
            self.points.recall()
        self.write_summary()
        return self.position()

    def _append(self, file: AppendFile, data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            self._say(file.path, error)

    def _replace(self, name: str, *, durable: bool = True) -> None:
        try:
            with replacing(self.folder / name, durable=durable) as stream:
                stream.write(self._documents[name])
            del self._documents[name]
        except OSError as error:
            self._say(self.folder / name, error)

    def _say(self, path: Path, error: OSError) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            _log.warning("%s cannot be written (%s); training continues, and writing is retried", path, error.strerror)

    def give_up(self) -> None:
        """Write what is left, but take no more points; what cannot be written is counted as lost from here on."""
        self.points.give_up()
        self.flush()
        self._output.give_up()
        self.media.give_up()

    def close(self) -> None:
        """Write what is left, say what cannot be written, and close all files."""
        self.give_up()
        self.points.close()
        self._output.close()
        self.media.close()
        if self.num_lost_bytes:
            _log.error(
                "%s: %d points and %d media could not be written and are lost, %d bytes of the record in all",
                self.folder,
                self.points.num_lost_points,
                self.media.num_lost,
                self.num_lost_bytes,
            )
        if self._documents:
            _log.error("%s: %s could not be written", self.folder, ", ".join(sorted(self._documents)))
