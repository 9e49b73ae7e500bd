"""`Run`: one past run, read from any store, a part at a time."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from configs import Map
from observers.record.schema import Series
from runs.errors import StoreError
from runs.query.names import full_name
from runs.stores.content import Content
from runs.stores.downsampling import downsample
from runs.stores.media import Medium

if TYPE_CHECKING:
    from pathlib import Path

    from observers.artifacts.version import ArtifactVersion
    from runs.stores.store import Store

__all__ = ["Run", "time_of", "without_pickles"]


class Run(abc.ABC):
    """One past run. Nothing is loaded before it is asked for, and nothing that is read is ever executed.

    `run["optimizer.lr"]` is any field by its name (`runs.query.names`), None if the run does not have it.

    Attributes:
        store: Where it lies.
        id: What the store calls it, as text.
    """

    def __init__(self, store: Store, id: str, row: Mapping[str, Any] | None = None) -> None:
        self.store = store
        self.id = id
        self._row = dict(row or {})

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.store.where!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.store.where, self.id) == (other.store.where, other.id)

    def __hash__(self) -> int:
        return hash((self.store.where, self.id))

    # ------------------------------------------------------------------ what stores provide

    @functools.cached_property
    @abc.abstractmethod
    def document(self) -> dict[str, Any]:
        """The run's own fields, without config, info and summary; times as text in ISO form.

        Raises:
            StoreError: If it cannot be read, or is gone.
        """

    @abc.abstractmethod
    def _part(self, name: str) -> dict[str, Any]:
        """Return `config`, `info`, `summary` or `provenance`; empty if there is none."""

    @abc.abstractmethod
    def _metric_names(self) -> list[str]: ...

    @abc.abstractmethod
    def _series(self, name: str) -> Series | None: ...

    @property
    @abc.abstractmethod
    def status(self) -> str:
        """COMPLETED, FAILED, INTERRUPTED, RUNNING, QUEUED, ...; RUNNING without a living process is DEAD."""

    @abc.abstractmethod
    def read_output(self, start: int = 0) -> tuple[bytes, int]:
        """Return what the run wrote to its terminal, from byte `start` on, and up to which byte there is some now.

        What a database does not hold of the long output of a run that goes on is stood for by a line that says so.
        """

    @property
    @abc.abstractmethod
    def artifacts(self) -> dict[str, Content]:
        """Files that the run made, by name."""

    @property
    @abc.abstractmethod
    def lease(self) -> dict[str, Any] | None:
        """Who writes the run, and when last; None of a run that stock Sacred recorded."""

    @abc.abstractmethod
    def stored(self, kind: str) -> list[Content]:
        """Return all `sources` or `resources`; a name may be among them more than once."""

    @property
    @abc.abstractmethod
    def media(self) -> list[Medium]:
        """Images, figures, histograms, texts and tables, in the order of logging."""

    @abc.abstractmethod
    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        """Return what was logged beside numbers, each as `observers.record.schema` has it, with its files.

        Raises:
            StoreError: If an entry cannot be read.
        """

    @abc.abstractmethod
    def artifact_details(self) -> dict[str, dict[str, Any]]:
        """Return `metadata` and `content_type` of the artifacts that have any, by name."""

    @abc.abstractmethod
    def odd_values(self) -> bytes:
        """Return logged values that are no numbers, as lines of JSON; see `observers.record.schema`."""

    @abc.abstractmethod
    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        """Return a version of an artifact that the record names; `into` may be used for its contents.

        Args:
            entry: Of `artifacts_logged` or `artifacts_used`.
            into: The folder of runs that is to have it.

        Raises:
            ArtifactError: If it is not there, or damaged.
        """

    # ------------------------------------------------------------------ the same for all

    def __getitem__(self, name: str) -> Any:
        """Return the field `name`, short or full; None if the run does not have it."""
        name = full_name(name)
        if name == "duration":
            return self.duration_s
        if name in self._row:
            return self._row[name]
        if name == "status":
            return self.status
        if name == "_id":
            return self.id
        first, _, rest = name.partition(".")
        if first == "summary" and rest:
            metric, _, statistic = rest.rpartition(".")
            return self.summary.get(metric, {}).get(statistic)
        if first in ("config", "info", "provenance", "summary"):
            return _walk(self._part(first), rest)
        return _walk(self.document, name)

    def _text(self, name: str) -> str:
        """Return a field that is a text; of anything else, which a foreign record may hold, nothing."""
        value = self[name]
        return value if isinstance(value, str) else ""

    @property
    def sources(self) -> dict[str, Content]:
        """Sources that the run was made of, by path below its base folder."""
        return {content.name: content for content in self.stored("sources")}

    @property
    def resources(self) -> dict[str, Content]:
        """Files that the run read, by path."""
        return {content.name: content for content in self.stored("resources")}

    @property
    def uid(self) -> str | None:
        """Its id over all stores; None of a run that stock Sacred recorded."""
        return self._text("uid") or None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._text("experiment.name")

    @property
    def command(self) -> str:
        """The command that was run."""
        return self._text("command")

    @property
    def host(self) -> str:
        """The machine's name."""
        return self._text("host.hostname")

    @property
    def result(self) -> Any:
        """What the command returned."""
        return self["result"]

    @property
    def start_time(self) -> datetime | None:
        """When it started, in UTC without saying so."""
        return time_of(self["start_time"] or self["queue_time"])

    @property
    def stop_time(self) -> datetime | None:
        """When it ended."""
        return time_of(self["stop_time"])

    @property
    def duration_s(self) -> float | None:
        """Seconds from its start to its end, or to its last sign of life."""
        stop = self.stop_time or time_of(self["heartbeat"])
        return (stop - self.start_time).total_seconds() if stop and self.start_time else None

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The processes that wrote it, the last one last; empty of a run of one. See `observers.record.resuming`."""
        found = self.document.get("sessions")
        found = [dict(one) for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        if found:
            # One that was killed could not say so itself.
            found[-1] |= {"status": self.status, "stop_time": self["stop_time"]}
        return found

    @functools.cached_property
    def config(self) -> Map:
        """Its config."""
        return Map(self._part("config"))

    @functools.cached_property
    def info(self) -> Map:
        """What it put into its info."""
        return Map(self._part("info"))

    @functools.cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Of every metric first, last, min, max and so on; see `observers.record.schema.summarize`."""
        return {name: value for name, value in self._part("summary").items() if isinstance(value, Mapping)}

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """What it was made of: `git`, `packages`, `machine`; empty of a run that stock Sacred recorded."""
        return self._part("provenance")

    @property
    def diff(self) -> str:
        """The changes that were not committed when it started."""
        return _walk(self.provenance, "git.diff") or ""

    @property
    def metrics(self) -> list[str]:
        """Names of its metrics."""
        return sorted(self._metric_names())

    def metric(self, name: str, num_points: int | None = None) -> Series:
        """Return the points of a metric.

        Args:
            name: The metric.
            num_points: At most as many, extremes kept; see `runs.stores.downsampling`.

        Raises:
            StoreError: If there is no such metric.
        """
        series = self._series(name)
        if series is None:
            there = ", ".join(self.metrics) or "none"
            raise StoreError(f"run {self.id} has no metric {name!r}; there are: {there}")
        return series if num_points is None else downsample(series, num_points)

    @property
    def output(self) -> str:
        """All that the run wrote to its terminal."""
        return self.read_output()[0].decode("utf-8", "replace")

    @property
    def parent(self) -> Run | None:
        """The run that it was started from, if there is one and it is in the store."""
        uid = self["parent"]
        found = self.store.find([("uid", "==", uid)], limit=1) if uid else []
        return found[0] if found else None

    def children(self) -> list[Run]:
        """Return the runs that were started from it."""
        return self.store.find([("parent", "==", self.uid)]) if self.uid else []

    @property
    def tags(self) -> list[str]:
        """Words that people attached to it."""
        tags = self["tags"]
        return sorted(tags) if isinstance(tags, dict) else []

    @property
    def note(self) -> str:
        """What people wrote about it."""
        return str(self["note"] or "")

    @property
    def reproductions(self) -> list[dict[str, Any]]:
        """Verdicts on it, or on what it reproduces, the oldest first; see `runs.rerun.reproducing`."""
        found = self.document.get("reproductions")
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    def notes(self) -> dict[str, Any]:
        """Return what was noted about it when it had ended: tags, note, reproductions."""
        reproductions = self.reproductions
        notes = {"tags": dict.fromkeys(self.tags, True), "note": self.note}
        return {**notes, "reproductions": reproductions} if reproductions else notes


def _walk(document: Any, path: str) -> Any:
    """Return the entry at a dotted path; names with dots of their own are found too."""
    if not path:
        return document
    if not isinstance(document, Mapping):
        return None
    if path in document:
        return document[path]
    parts = path.split(".")
    for count in range(1, len(parts)):
        head = ".".join(parts[:count])
        if head in document:
            return _walk(document[head], ".".join(parts[count:]))
    return None


def time_of(value: Any) -> datetime | None:
    """Return a time of a record; None for what is none."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def without_pickles(value: Any) -> Any:
    """Return a document with what jsonpickle wrote for tuples as lists; nothing of it is decoded."""
    if isinstance(value, dict):
        if set(value) == {"py/tuple"}:
            return without_pickles(value["py/tuple"])
        return {str(key): without_pickles(item) for key, item in value.items()}
    return [without_pickles(item) for item in value] if isinstance(value, list) else value
