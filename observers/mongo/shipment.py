"""`Shipment`: a run, and the database that it is delivered to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from observers.mongo.contents import Contents
from observers.mongo.layout import Collections

__all__ = ["Shipment"]


@dataclasses.dataclass
class Shipment:
    """A run, and the database that it is delivered to.

    Attributes:
        folder: The run's folder, which may be moved.
        base: The folder that paths of stored sources and resources are relative to.
        collections: The collections of the database.
        contents: Stores contents of files.
        uid: The run's uid.
        run_id: The `_id` of the run's document; None before it is found or inserted.
    """

    folder: Path
    base: Path
    collections: Collections
    contents: Contents
    uid: str
    run_id: Any = None

    def store(self, path: Path, name: str, **fields: Any) -> Any:
        """Store the content of a file that belongs to this run alone.

        Args:
            path: The file.
            name: Its name in GridFS.
            **fields: Further entries of the file's document.

        Returns:
            The file's id; None if the file cannot be read.
        """
        return self.contents.store(path, name, owner=self.uid, **fields)
