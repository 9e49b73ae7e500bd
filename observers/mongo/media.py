"""Delivery of a run's media to MongoDB: contents once, and a document for each entry; resending one changes nothing.

A document of `media` has the entry of `sacristan.observers.record.schema`, with `run_id` and `uid`. `file_id` is the
content in GridFS, and `images` of a table has `file` and `file_id` of each image in it.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import bson
from pymongo import ReplaceOne

from sacristan.observers.errors import RecordError
from sacristan.observers.mongo.contents import Shipment
from sacristan.observers.mongo.documents import Packer, files_in, object_id
from sacristan.observers.mongo.layout import make_media_indexes
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.media_files import media_path
from sacristan.observers.record.schema import MEDIA

__all__ = ["MediaDelivery", "len_media"]

_log = logging.getLogger(__name__)
_BATCH_ENTRIES = 100
# The owner of large entries, which belong to no run, like contents.
_OWNER = "media"


class MediaDelivery:
    """Sends the media of one run's folder.

    Attributes:
        num_sent: How many entries of the folder are delivered.
    """

    def __init__(self, shipment: Shipment) -> None:
        self._run = shipment
        self.restart()

    def restart(self) -> None:
        """Forget what was sent, because something was removed from the database."""
        self.num_sent = 0
        self._offset = 0

    def send(self) -> None:
        """Send new media."""
        lines = self._new_lines()
        if lines and not self.num_sent:
            make_media_indexes(self._run.collections)
        for start in range(0, len(lines), _BATCH_ENTRIES):
            batch = lines[start : start + _BATCH_ENTRIES]
            documents = [self._document(line, self.num_sent + place) for place, line in enumerate(batch)]
            changes = [ReplaceOne({"_id": document["_id"]}, document, upsert=True) for document in documents]
            self._run.collections.media.bulk_write(changes, ordered=False)
            # Only now, so that an interrupted batch is sent again unchanged.
            self.num_sent += len(batch)
            self._offset += sum(len(line) + 1 for line in batch)

    def num_missing(self) -> int:
        """Return how many entries of the folder are not delivered."""
        return len(self._new_lines())

    def _new_lines(self) -> list[bytes]:
        with contextlib.suppress(FileNotFoundError), open_regular(self._run.folder / MEDIA) as stream:
            stream.seek(self._offset)
            return stream.read().split(b"\n")[:-1]
        return []

    def _document(self, line: bytes, number: int) -> dict[str, Any]:
        entry = parse_json(line)
        images = entry.pop("images", [])
        packer = Packer(_OWNER)
        packed = packer.entry(entry)
        for file_id in files_in(packed):
            self._run.contents.put(file_id, packer.files[file_id], "entry.json", _OWNER)
        document = {
            "run_id": self._run.run_id,
            "uid": self._run.uid,
            "number": number,
            **packed,
            "file_id": self._store(entry["file"]),
        }
        if images:
            document["images"] = [{"file": name, "file_id": self._store(name)} for name in images]
        return {"_id": object_id(self._run.uid, "media", number), **document}

    def _store(self, file: str) -> bson.ObjectId | None:
        """Store a content, and return its id; if it is missing or damaged, warn, and return None."""
        file_id, reason = None, "is not there"
        try:
            path = media_path(self._run.folder, file)
            file_id = self._run.contents.store(path, path.name)
        except RecordError:
            reason = "is no name of a content"
        if file_id == object_id("sha256", Path(file).stem):
            return file_id
        reason = "is not what was written" if file_id is not None else reason
        _log.warning("%s: %r %s; its entry is delivered without it", self._run.folder, file, reason)
        return None


def len_media(folder: Path) -> int:
    """Return the number of media in a run's folder, without a torn last line; 0 without a file of entries."""
    with contextlib.suppress(FileNotFoundError):
        return read_regular(folder / MEDIA).count(b"\n")
    return 0
