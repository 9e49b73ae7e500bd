"""Results of removing runs and reclaiming files, and the entries of the trash."""

from __future__ import annotations

import dataclasses
from datetime import datetime

__all__ = ["GRACE_S", "Discarded", "Removed"]

# A starting run may be about to name a content touched so recently.
GRACE_S = 3600.0


@dataclasses.dataclass
class Removed:
    """Result of removing runs and reclaiming files.

    Attributes:
        runs: Ids of the removed runs.
        num_contents: Number of reclaimed files: contents, and half-written files of killed processes.
        num_bytes: Their size.
        num_young: Number of unused contents that stay because they were touched within the last hour.
        unreadable: Ids of runs with an unreadable record, which may name any content, so that none is reclaimed.
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
        uid: Its uid; None for a run of stock Sacred.
        name: The experiment's name.
        status: Its status at the end.
        at: When it was discarded, in UTC.
    """

    id: str
    uid: str | None
    name: str
    status: str
    at: datetime
