"""`OpenRuns`: which of the runs that a library has open is the record; those that begin meanwhile are parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sacristan.experiments.scripts.capturing import Capture
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.observers.record.other_trackers import part_name


class Part(NamedTuple):
    """A run of a library within the record.

    Attributes:
        record: Number of the record among those of this process.
        name: What the names of its metrics, settings and files begin with; empty for the run that is the record.
    """

    record: int
    name: str

    def of(self, name: str) -> str:
        """Return the name that something of this run has in the record."""
        return f"{self.name}/{name}" if self.name else name

    def nested(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings of this run as the record has them."""
        for name in reversed(self.name.split("/") if self.name else ()):
            settings = {name: settings}
        return settings


class OpenRuns:
    """The runs of a library that knows several at a time, as nested ones, where a process has one record at a time.

    Args:
        capture: Where they are passed on to.
        library: Short name of the library.
    """

    def __init__(self, capture: Capture, library: str) -> None:
        self._capture, self._library = capture, library
        self._parts: dict[str, Part] = {}
        self._num_records = 0
        # The run that is the record, while it is open, and the record if this library has begun it.
        self._main: str | None = None
        self._tracked: TrackedRun | None = None

    def begin(self, id: str, name: str = "", *, parent: str | None = None, **options: Any) -> None:
        """Note that a run begins: a part of the record if one is open or it is a child of it, else the next record.

        Args:
            id: The library's name of the run.
            name: The name that the script gave it; empty for none.
            parent: The `id` of the run that it belongs to.
            **options: Those of `sacristan.init`, for the next record.
        """
        above = self._parts.get(parent or self._main or "")
        if above is not None and above.record == self._num_records:
            names = {part.name for part in self._parts.values() if part.record == above.record}
            self._parts[id] = Part(self._num_records, part_name(name, above.name, names))
            return
        from sacristan.experiments.scripts.tracking import current_run

        is_ours = current_run() is None
        tracked = self._capture.start_run(name=name, **options) if is_ours else None
        self._num_records += 1
        self._main, self._tracked = id, tracked
        self._parts[id] = Part(self._num_records, "")

    def part(self, id: str) -> Part | None:
        """Return the part of the record that a run is; None, and a warning, if its record has ended."""
        found = self._parts.get(id)
        if found is None:  # of an earlier process, such as one that is resumed
            self._capture.unknown(self._library, f"what an earlier process has logged to run {id}")
            self.begin(id)
            found = self._parts[id]
        if found.record == self._num_records:
            return found
        self._capture.unknown(self._library, f"what is logged to run {id} after a later one has begun")
        return None

    def record(self, id: str) -> TrackedRun | None:
        """Return the record, if this run is the whole of it and has begun it."""
        return self._tracked if id == self._main else None

    def end(self, id: str, exit_code: int = 0) -> None:
        """Note that a run has ended."""
        if id == self._main:
            if self._tracked is not None:
                self._tracked.finish(exit_code)
            self._main = self._tracked = None
