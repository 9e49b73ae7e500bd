"""Reading many runs at once, which a database answers in one query."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sacristan.runs.stores.run import Run

if TYPE_CHECKING:
    from sacristan.observers.record.points.points import Series

__all__ = ["each_series", "points_versions", "prefetch"]


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
