"""`Run`: one past run, read from any store, a part at a time."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from configs import Map
from observers.record.identity import is_alive
from runs.errors import StoreAwayError, StoreError
from runs.query.flattening import entry_at
from runs.query.names import full_name, is_own
from runs.query.times import DURATION, DURATION_FIELDS, duration_s, in_utc, last_sign
from runs.stores.content import Content
from runs.stores.media import Medium

if TYPE_CHECKING:
    import numpy as np

    from observers.artifacts.version import ArtifactVersion
    from observers.record.points.points import Series

__all__ = ["COPYING", "HELD", "REMOVING", "Run", "RunStore"]

# The status of a run in a database while it is copied there, and while it is removed.
COPYING, REMOVING = "COPYING", "REMOVING"
# Of a run that was queued elsewhere and came here: no worker starts it until a person says so.
HELD = "HELD"


class RunStore(Protocol):
    """The part of a store that its runs ask: see `runs.stores.store.Store`."""

    where: str

    def find(
        self,
        filter: Any = None,
        sort: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Run]: ...

    def get(self, key: str | int) -> Run: ...

    def check_field(self, name: str) -> None: ...

    def prefetch(self, runs: Sequence[Run], names: Sequence[str]) -> None: ...

    def each_series(self, runs: Sequence[Run], metric: str) -> Iterator[tuple[Run, Series | None]]: ...

    def tell(self, what: str, done: int, total: int) -> None: ...


class Run(abc.ABC):
    """A past run. Nothing is loaded before it is asked for, and nothing that is read is ever executed.

    `run["optimizer.lr"]` is any field by its name (`runs.query.names`), None if the run does not have it; a setting or
    metric that no run of the store has is refused, which `run.get` does not do. A run shows what was recorded when it
    was found; `run.store.get(run.id)` reads it anew.

    Attributes:
        store: The store that it was found in.
        id: Its id in the store, as text.
        folder: The folder that it lies in; None in a database.
        problem: Why a part of its record cannot be read, as far as is known; None if nothing is wrong.

    Example:
        with open_store("my_runs") as store:
            run = store.get("latest")
            print(run.status, run.duration_s, run.result, run.config.optimizer.lr)
            loss = run.metric("train/loss", num_points=100)
            print(loss.steps, loss.values)
            source = run.sources["exp.py"].read().decode()
    """

    folder: Path | None = None
    problem: str | None = None
    # Whether it is shown among others, which a damaged part of its record must not hide.
    is_listed = False

    def __init__(self, store: RunStore, id: str, row: Mapping[str, Any] | None = None) -> None:
        self.store = store
        self.id = id
        self._row = dict(row or {})
        # Those of which an entry was asked for.
        self._parts: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.store.where!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.store.where, self.id) == (other.store.where, other.id)

    def __hash__(self) -> int:
        return hash((self.store.where, self.id))

    def listed(self) -> Self:
        """Return a copy to show among others: damaged parts of its record are missing, and `problem` says why."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, is_listed=True)
        return copied

    def _readable(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a part of the record; of a run that is listed an empty one if it is damaged.

        Raises:
            StoreError: If it is damaged, and the run is not listed; or if the run is gone.
        """
        try:
            return read()
        except StoreAwayError:
            raise
        except StoreError as error:
            if not self.is_listed:
                raise
            self._check_is_there()
            self.problem = self.problem or str(error)
            return {}

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
    def _check_is_there(self) -> None:
        """Raise a StoreError if it was removed."""

    @abc.abstractmethod
    def _metric_names(self) -> list[str]: ...

    @abc.abstractmethod
    def _series(self, name: str) -> Series | None: ...

    @abc.abstractmethod
    def original(self) -> Run | None:
        """Return the run as the folder has it that it was recorded in, where its states are; None if that is not here.

        A folder by that name that holds another run does not count.
        """

    @abc.abstractmethod
    def _change_notes(self, change: Callable[[Run], Mapping[str, Any]]) -> None:
        """Write down what is noted about it: tags, note, reproductions. Of others who do the same nothing is lost.

        Args:
            change: Returns what changes, given the run as it is now; called again if others were first.

        Raises:
            StoreError: If the store cannot be written; and whatever `change` raises.
        """

    @abc.abstractmethod
    def _remove(self) -> None:
        """Remove it from its store, at once or not at all; see `runs.stores.store.Store.remove`."""

    @abc.abstractmethod
    def _discard(self) -> None:
        """Move it into the trash, at once or not at all; see `runs.stores.store.Store.discard`."""

    @property
    @abc.abstractmethod
    def status(self) -> str:
        """COMPLETED, FAILED, INTERRUPTED, PRUNED, RUNNING, QUEUED, HELD, ...; RUNNING without a process is DEAD."""

    @abc.abstractmethod
    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        """Return what the run wrote to its terminal, from byte `start` on, and the byte behind it.

        A `start` below 0 counts from the end. Without `max_bytes` it is all that there is now.

        What a database does not hold of the long output of a run that goes on is stood for by a line that says so.
        """

    @property
    @abc.abstractmethod
    def rank_outputs(self) -> dict[int, Content]:
        """Output of each rank but rank 0, whose output is the run's.

        Of a run in a database they are those that it had when it ended; before that, those in its folder, if that is on
        this machine.
        """

    @property
    @abc.abstractmethod
    def artifacts(self) -> dict[str, Content]:
        """Files that the run made, by name."""

    @property
    @abc.abstractmethod
    def checkpoints(self) -> dict[str, Content]:
        """Checkpoints that the run keeps, by their path in its folder, such as `checkpoints/best.pt`.

        Of a run in a database they are those that were delivered or copied there, else those in its folder, if that is
        on this machine.
        """

    @property
    @abc.abstractmethod
    def lease(self) -> dict[str, Any] | None:
        """The run's writer and its last heartbeat; None for a run that stock Sacred recorded."""

    @abc.abstractmethod
    def stored(self, kind: str) -> list[Content]:
        """Return all `sources` or `resources`; a name may be among them more than once."""

    @property
    @abc.abstractmethod
    def media(self) -> list[Medium]:
        """Images, tables, sounds and so on, in the order of logging."""

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
            StoreError: If it is not there, or damaged.
        """

    # ------------------------------------------------------------------ the same for all

    def _repr_html_(self) -> str:
        """Return the form of it that notebooks show: head, curves, config and summary."""
        from runs.drawing.forms import run_form

        return run_form(self)

    def __getitem__(self, name: str) -> Any:
        """Return the field `name`, short or full; None if the run does not have it.

        Raises:
            FilterError: If it is an entry of the config, or a metric's statistic, that no run of the store has; the
                message names those that are spelt much like it.
        """
        value = self.get(name)
        if value is None and is_own(name):
            self.store.check_field(name)
        return value

    def get(self, name: str) -> Any:
        """Return a field of the run; None if it does not have it.

            run.get("val/accuracy.max")

        Unlike `run[name]`, it never looks at other runs, so a mistyped name gives None, too.

        Args:
            name: A field as in conditions, short (`lr`, `val/loss.min`) or full (`config.lr`, `summary.val/loss.min`).
        """
        name = full_name(name)
        if name in self._row:
            return self._row[name]
        if name == DURATION:
            status = self.status
            lease = self.lease if status in ("DEAD", "RUNNING") else None
            return duration_s({field: self.get(field) for field in DURATION_FIELDS}, last_sign(status, lease))
        if name == "status":
            return self.status
        if name == "_id":
            return self.id
        first, _, rest = name.partition(".")
        if first == "summary" and rest:
            metric, _, statistic = rest.rpartition(".")
            return self.summary.get(metric, {}).get(statistic)
        if first in ("config", "info", "provenance", "summary"):
            if first not in self._parts:
                self._parts[first] = self._readable(lambda: self._part(first))
            return entry_at(self._parts[first], rest)
        return entry_at(self._readable(lambda: self.document), name)

    def may_have(self, name: str) -> bool:
        """Return False if the run was found with this field fetched and does not have it, else True.

        Args:
            name: The full name of a field, such as `config.lr`.
        """
        return self._row.get(name, True) is not None

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
        """The result that its command returned."""
        return self["result"]

    @property
    def start_time(self) -> datetime | None:
        """When it started, in UTC."""
        return in_utc(self["start_time"] or self["queue_time"])

    @property
    def stop_time(self) -> datetime | None:
        """When it ended, in UTC."""
        return in_utc(self["stop_time"])

    @property
    def duration_s(self) -> float | None:
        """Seconds from its start to its end, by now, or to its last heartbeat; the field `duration`."""
        return self[DURATION]

    @property
    def is_whole(self) -> bool:
        """True if all of it is in its store: it is neither being added nor being removed."""
        return self.status not in (COPYING, REMOVING)

    @property
    def is_living(self) -> bool:
        """True if its process may still write it. A run whose record cannot be read is judged by its lease alone."""
        try:
            return self.status == "RUNNING"  # without a living process it reads as DEAD
        except StoreError:
            lease = self.lease
            return lease is not None and is_alive(lease)

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
        return Map(self._readable(lambda: self._part("config")))

    @functools.cached_property
    def info(self) -> Map:
        """The `info` that it wrote."""
        return Map(self._readable(lambda: self._part("info")))

    @functools.cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Of every metric first, last, min, max and so on; see `observers.record.points.summaries.summarize`."""
        found = self._readable(lambda: self._part("summary"))
        return {name: value for name, value in found.items() if isinstance(value, dict)}

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """Its origins: `git`, `packages`, `machine`; empty of a run that stock Sacred recorded."""
        return self._readable(lambda: self._part("provenance"))

    @property
    def diff(self) -> str:
        """The changes that were not committed when it started."""
        return entry_at(self.provenance, "git.diff") or ""

    @property
    def metrics(self) -> list[str]:
        """Names of its metrics."""
        return sorted(self._readable(lambda: dict.fromkeys(self._metric_names())))

    def metric(self, name: str, num_points: int | None = None) -> Series:
        """Return the points of a metric.

        Args:
            name: The metric.
            num_points: At most as many, extremes kept; see `runs.query.decimation`.

        Raises:
            StoreError: If there is no such metric.
        """
        series = self._series(name)
        if series is None:
            there = ", ".join(self.metrics) or "none"
            raise StoreError(f"run {self.id} has no metric {name!r}; there are: {there}")
        if num_points is None:
            return series
        from runs.query.decimation import downsample

        return downsample(series, num_points)

    def epochs_at(self, steps: np.ndarray) -> np.ndarray | None:
        """Return the epoch at each step, such as 2.5 in the middle of the third; None if the record has no epochs.

        Epochs come from validations of the training loop, or from a metric named `epoch`.

        Args:
            steps: (n,) steps of a metric.

        Raises:
            StoreError: If the run cannot be read.
        """
        from runs.stores.epochs import epochs_at

        return epochs_at(self, steps)

    @property
    def output(self) -> str:
        """All that the run wrote to its terminal."""
        return self.read_output()[0].decode("utf-8", "replace")

    @property
    def parent(self) -> Run | None:
        """The run that it was started from, if there is one and it is in the store."""
        uid = self._text("parent")
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
        """The note that people wrote on it."""
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
