"""Removing and reclaiming: what was done, and what lies in the trash."""

from __future__ import annotations

import dataclasses
from datetime import datetime

__all__ = ["GRACE_S", "Discarded", "Removed"]

# What was touched so lately may be about to be named by a run that starts.
GRACE_S = 3600.0


@dataclasses.dataclass
class Removed:
    """Result of removing runs and reclaiming files.

    Attributes:
        runs: Ids of the runs.
        num_contents: Files that were reclaimed: contents, and what killed processes left half-written.
        num_bytes: Their length.
        num_young: Contents that no run names, kept because they were touched within the last hour.
        unreadable: Ids of runs whose record cannot be read, so that they may name any content: none is reclaimed.
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    num_contents: int = 0
    num_bytes: int = 0
    num_young: int = 0
    unreadable: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Discarded:
    """A run in the trash.

    Attributes:
        id: The id that it had in the store.
        uid: Its uid; None of a run of stock Sacred.
        name: The experiment's name.
        status: As it ended.
        at: When it was discarded, in UTC.
    """

    id: str
    uid: str | None
    name: str
    status: str
    at: datetime
