"""`Run`: one past run, read from any store, a part at a time."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sacristan.configs import Map
from sacristan.configs.nearest import word_suggestion
from sacristan.observers.record.identity import is_alive, last_sign
from sacristan.runs.errors import StoreAwayError, StoreError
from sacristan.runs.query import (
    DURATION,
    DURATION_FIELDS,
    duration_s,
    entry_at,
    full_name,
    in_utc,
    is_own,
    mappings_in,
    unquoted,
)
from sacristan.runs.stores.content import Content
from sacristan.runs.stores.contract import PARTS
from sacristan.runs.stores.record import RunRecord

if TYPE_CHECKING:
    import numpy as np

    from sacristan.observers.record.points import Series

# Status of a run while a database receives it, while it removes it, and of a queued run from another store until a
# person lets workers start it.
COPYING, REMOVING, HELD = "COPYING", "REMOVING", "HELD"
# A colour of curves.
COLOUR = re.compile(r"#[0-9a-f]{6}")
# PyMARL and its descendants keep curves in `info`: `name`, a list of values, and `name_T`, a list of their steps.
STEPS = "_T"


def curves_in(info: Mapping[str, Any]) -> list[str]:
    """Return the names of the curves that a project keeps in `info`; see `STEPS`."""
    return [name for name in info if _is_curve(info[name], info.get(f"{name}{STEPS}"))]


def _is_curve(values: Any, steps: Any) -> bool:
    if not (isinstance(values, list) and isinstance(steps, list) and values and steps):
        return False
    return isinstance(values[0], int | float | None) and isinstance(steps[0], int | float)


def _curve_in(info: Mapping[str, Any], name: str) -> Series | None:
    from sacristan.runs.stores.series import series_of

    values, steps = info.get(name), info.get(f"{name}{STEPS}")
    return series_of({"values": values, "steps": steps}, None) if _is_curve(values, steps) else None


def notes_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes in a document, which may hold anything, in the form of `Run.notes`."""
    tags, name, colour = (document.get(each) for each in ("tags", "display_name", "display_colour"))
    notes = {
        "tags": dict.fromkeys(sorted(tags) if isinstance(tags, dict) else (), True),
        "note": str(document.get("note") or ""),
    }
    optional = {
        "display_name": name if isinstance(name, str) else "",
        "display_colour": colour if isinstance(colour, str) and COLOUR.fullmatch(colour) else "",
        **{each: mappings_in(document.get(each)) for each in ("reproductions", "changes")},
    }
    return notes | {each: value for each, value in optional.items() if value}


class Run(RunRecord):
    """A past run. Nothing is loaded before you ask for it, and nothing that is read is ever executed.

    `run["optimizer.lr"]` is any field by its name (`sacristan.runs.query`), None if the run lacks it. A setting
    or metric that no run of the store has is an error; `run.get` returns None for it. A run shows the record as it was
    when the run was found; `run.store.get(run.id)` reads it again.

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

    def _repr_html_(self) -> str:
        """Return the run as notebooks show it: head, curves, config and summary."""
        from sacristan.runs.drawing.inline_html import run_form

        return run_form(self)

    # ------------------------------------------------------------------ fields

    def __getitem__(self, name: str) -> Any:
        """Return a field.

        Args:
            name: Its name, short or full.

        Returns:
            The value; None if the run lacks the field.

        Raises:
            FilterError: If it is an entry of the config, or a metric's statistic, that no run of the store has; the
                message suggests similar names.
        """
        value = self.get(name)
        if value is None and is_own(name):
            self.store.check_field(name)
        return value

    def get(self, name: str) -> Any:
        """Return a field, whether or not other runs have it.

        Args:
            name: Its name, short or full.

        Returns:
            The value; None if the run lacks the field.
        """
        name = full_name(name)
        if name in self._row:
            return self._row[name]
        if name in (DURATION, "status", "_id"):
            return self._duration() if name == DURATION else self.status if name == "status" else self.id
        part, _, rest = name.partition(".")
        if part == "summary" and rest:
            metric, _, statistic = rest.rpartition(".")
            return self.summary.get(metric, {}).get(statistic)
        if part not in PARTS:
            return entry_at(self.readable(lambda: self.document), name)
        return entry_at(self._read_part(part), rest)

    def _duration(self) -> float | None:
        status = self.status
        lease = self.lease if status in ("DEAD", "RUNNING") else None
        return duration_s({field: self.get(field) for field in DURATION_FIELDS}, last_sign(status, lease))

    def may_have(self, name: str) -> bool:
        """Tell whether the run may have the field of a full name: it has it, or the field was not fetched."""
        return self._row.get(name, True) is not None

    def has_at_hand(self, name: str) -> bool:
        """Tell whether the run has the field of a full name, and it was fetched."""
        return self._row.get(name) is not None

    def _text(self, name: str) -> str:
        """Return a field that is a text; a foreign record may hold anything else, which counts as empty."""
        value = self[name]
        return value if isinstance(value, str) else ""

    @property
    def status(self) -> str:
        """COMPLETED, FAILED, INTERRUPTED, PRUNED, RUNNING, QUEUED, HELD, ...; RUNNING without a process is DEAD."""
        return str(self._row.get("status") or self._ask("status"))

    @property
    def uid(self) -> str | None:
        """Its globally unique id; None for a run of stock Sacred."""
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
        """Seconds from its start to its end, to now, or to its last heartbeat; the field `duration`."""
        return self[DURATION]

    @property
    def is_whole(self) -> bool:
        """True if its store has all of it: it is neither being copied there nor being removed."""
        return self.status not in (COPYING, REMOVING)

    @property
    def is_living(self) -> bool:
        """True if its process may still write to it; if the record cannot be read, the lease alone decides."""
        try:
            return self.status == "RUNNING"  # a dead one reads as DEAD
        except StoreError:
            lease = self.lease
            return lease is not None and is_alive(lease)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The processes that wrote it, the last one last; empty for a single one (`observers/file/sessions.py`)."""
        sessions = mappings_in(self.document.get("sessions"))
        if sessions:
            # A killed process could not record its end.
            sessions[-1] |= {"status": self.status, "stop_time": self["stop_time"]}
        return sessions

    # ------------------------------------------------------------------ parts of the record

    @functools.cached_property
    def config(self) -> Map:
        """Its config."""
        return Map(self._read_part("config"))

    @functools.cached_property
    def info(self) -> Map:
        """The `info` that it wrote."""
        return Map(self._read_part("info"))

    @functools.cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        """First, last, min, max and so on of every metric; see `observers/record/points/__init__.py`."""
        summary = self._read_part("summary")
        return {name: value for name, value in summary.items() if isinstance(value, dict)}

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Return the `summary`, and the same of the curves that it kept in `info`."""
        info = self._read_part("info")
        if not (names := sorted(set(curves_in(info)) - self.summary.keys())):
            return self.summary
        from sacristan.observers.record.points import summarize

        curves = ((name, _curve_in(info, name)) for name in names)
        return {**self.summary, **{name: summarize(one.values, one.steps) for name, one in curves if one is not None}}

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """Its origins: `git`, `packages`, `machine`; empty for a run of stock Sacred."""
        return self._read_part("provenance")

    @property
    def diff(self) -> str:
        """The uncommitted changes when it started."""
        return entry_at(self.provenance, "git.diff") or ""

    # ------------------------------------------------------------------ points

    @property
    def metrics(self) -> list[str]:
        """Names of its metrics: those that it logged, and the curves that it kept in `info`."""
        return sorted({*self.logged_metrics, *self.curves_in_info})

    @property
    def logged_metrics(self) -> list[str]:
        """Names of the metrics that it logged."""
        if "metrics" in self._row:
            return sorted(self._row["metrics"])
        return sorted(self.readable(lambda: dict.fromkeys(self._ask("metrics"))))

    @property
    def curves_in_info(self) -> list[str]:
        """Names of the curves that it kept in `info`; see `STEPS`."""
        if "curves" not in self._row:
            self._row["curves"] = self._find_curves()
        return self._row["curves"]

    def _find_curves(self) -> list[str]:
        try:
            info = self._parts.get("info") or self._ask("info")
        except StoreAwayError:
            raise
        except StoreError:  # a damaged info does not hide the metrics that it logged
            return []
        if self.folder is None:  # to ask again would be a query; a file may be too large to keep those of many runs
            self._parts["info"] = info
        return curves_in(info)

    def _curve_in_info(self, name: str) -> Series | None:
        names = (name, f"{name}{STEPS}")
        return _curve_in(self._parts.get("info") or self.readable(lambda: self._ask("info", names)), name)

    def _logged_series(self, name: str) -> Series | None:
        return next((series for _, series in self.store.backend.series([self], name)), None)

    def metric(self, name: str, num_points: int | None = None) -> Series:
        """Return the points of a metric.

        Args:
            name: The metric; it may be quoted, see `sacristan.runs.query`.
            num_points: Maximum number of points, extremes kept; see `sacristan.runs.drawing.curve`. None for all.

        Raises:
            StoreError: If there is no such metric.
        """
        names = dict.fromkeys((name, unquoted(name)))
        reads = ((read, each) for read in (self._logged_series, self._curve_in_info) for each in names)
        series = next((found for read, each in reads if (found := read(each)) is not None), None)
        if series is None:
            hint = word_suggestion(name, self.metrics)
            raise StoreError(f"run {self.id} has no metric {name!r}; {hint}")
        if num_points is None:
            return series
        from sacristan.runs.drawing.curve import downsample

        return downsample(series, num_points)

    def other_values(self) -> dict[str, list[tuple[Any, Any]]]:
        """Return step and value of everything logged that is no number, by the name of the metric."""
        rows = [json.loads(line) for line in self.odd_values().splitlines()]
        names = dict.fromkeys(row["name"] for row in rows)
        return {name: [(row["step"], row["value"]) for row in rows if row["name"] == name] for name in names}

    def epochs_at(self, steps: np.ndarray) -> np.ndarray | None:
        """Return the epoch at each step, with its fraction.

        Args:
            steps: (n,) steps.

        Returns:
            (n,) epochs; None if the record does not tell.

        Raises:
            StoreError: If the run cannot be read.
        """
        from sacristan.runs.stores.series import epochs_at

        known = set(self.metrics)
        return epochs_at(lambda name: self.metric(name) if name in known else None, self.get, steps)

    # ------------------------------------------------------------------ files

    @property
    def sources(self) -> dict[str, Content]:
        """The run's source files, by path below the base folder."""
        return self._by_name("sources")

    @property
    def resources(self) -> dict[str, Content]:
        """Files that the run read, by path."""
        return self._by_name("resources")

    @property
    def artifacts(self) -> dict[str, Content]:
        """Files that the run made, by name."""
        return self._by_name("artifacts")

    @property
    def checkpoints(self) -> dict[str, Content]:
        """Checkpoints that the run keeps, by their path in its folder, such as `checkpoints/best.pt`; see `stored`."""
        return self._by_name("checkpoints")

    def _by_name(self, kind: str) -> dict[str, Content]:
        return {content.name: content for content in self.stored(kind)}

    @property
    def output(self) -> str:
        """All that the run wrote to its terminal."""
        return self.read_output()[0].decode("utf-8", "replace")

    # ------------------------------------------------------------------ notes and relatives

    @property
    def tags(self) -> list[str]:
        """Tags that people attached to it, sorted."""
        tags = self["tags"]
        return sorted(tags) if isinstance(tags, dict) else []

    @property
    def note(self) -> str:
        """The note that people wrote on it."""
        return str(self["note"] or "")

    @property
    def display_name(self) -> str:
        """The name that people gave it; empty if none."""
        return self._text("display_name")

    @property
    def display_colour(self) -> str:
        """The colour of its curves that people chose, such as `#d62728`; empty if none."""
        colour = self._text("display_colour")
        return colour if COLOUR.fullmatch(colour) else ""

    @property
    def reproductions(self) -> list[dict[str, Any]]:
        """Verdicts on it, or on the run that it reproduces, oldest first; see `sacristan.runs.rerun.reproducing`."""
        return mappings_in(self.document.get("reproductions"))

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Changes that people made of tags, note and so on, oldest first: `time`, `by`, `via`, `what`."""
        return mappings_in(self.document.get("changes"))

    def notes(self) -> dict[str, Any]:
        """Return everything that was noted after its end: tags, note, and, if there are any, name and so on."""
        return notes_in(self.document)

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that it recorded, oldest first: `time`, `level` and `text` of each, texts."""
        alerts = mappings_in(self.info.to_dict().get("alerts"))
        return [{name: str(alert.get(name) or "") for name in ("time", "level", "text")} for alert in alerts]

    @property
    def parent(self) -> Run | None:
        """The run that it was started from, if that is in the store."""
        uid = self._text("parent")
        return next(iter(self.store.find([("uid", "==", uid)], limit=1)), None) if uid else None

    def children(self) -> list[Run]:
        """Return the runs that were started from it."""
        return self.store.find([("parent", "==", self.uid)]) if self.uid else []


def prefetch(runs: Iterable[Run], names: Sequence[str]) -> None:
    """Fetch fields of runs, so that each run need not ask its store."""
    for store, of_store in itertools.groupby(runs, lambda run: run.store):
        store.prefetch(list(of_store), names)


def each_series(runs: Iterable[Run], metric: str) -> Iterator[tuple[Run, Series]]:
    """Yield each run with the points of a metric, one at a time to save memory; every run must have the metric."""
    for store, of_store in itertools.groupby(runs, lambda run: run.store):
        for run, series in store.each_series(list(of_store), metric):
            yield run, run.metric(metric) if series is None else series


def points_versions(runs: Iterable[Run], metric: str) -> list[Hashable | None]:
    """Return for each run a value that changes with the points of a metric; see `Store.points_versions`."""
    grouped = itertools.groupby(runs, lambda run: run.store)
    return [version for store, of_store in grouped for version in store.points_versions(list(of_store), metric)]
