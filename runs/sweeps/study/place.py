"""`Place`: where sweeps are kept, for a folder of runs and perhaps a database that they are delivered to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacristan.observers.mongo.destination import Destination
from sacristan.runs.sweeps.study.home import FolderHome, Home, folder_of

__all__ = ["Place"]


@dataclasses.dataclass(frozen=True)
class Place:
    """Place where sweeps are kept: in the database, if there is one, so that agents on all machines see them.

    Attributes:
        base: The folder that runs are recorded below on this machine.
        destination: The database; None for the folder alone.
    """

    base: Path
    destination: Destination | None = None

    def home(self, id: str) -> Home:
        """Return the home of a sweep, which need not exist yet; close it when done. Invalid ids raise SweepError."""
        folder_of(self.base, id)
        if self.destination is None:
            return FolderHome(self.base, id)
        from sacristan.runs.sweeps.study.mongo_home import MongoHome

        return MongoHome(self.destination, id)

    def ids(self) -> list[str]:
        """Return the ids of all sweeps that are kept there."""
        if self.destination is None:
            return sorted(path.parent.name for path in (self.base / "sweeps").glob("*/sweep.json"))
        from sacristan.runs.sweeps.study.mongo_home import sweep_ids

        return sweep_ids(self.destination)

    def document(self) -> dict[str, Any]:
        """Return it as JSON, with the database's password: for a pipe, not for a file."""
        destination = None if self.destination is None else dataclasses.asdict(self.destination)
        return {"base": str(self.base.absolute()), "destination": destination}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Place:
        """Return what `document` returned."""
        destination = document["destination"]
        return cls(Path(document["base"]), None if destination is None else Destination(**destination))
