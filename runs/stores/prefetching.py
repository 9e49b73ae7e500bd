"""Reading of many runs at once: a database answers one question for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from runs.stores.run import Run

if TYPE_CHECKING:
    from observers.record.points.points import Series

__all__ = ["each_series", "prefetch"]


def prefetch(runs: Iterable[Run], names: Sequence[str]) -> None:
    """Fetch fields of runs, of one store or of several, before each run is asked for them.

    Args:
        runs: Any.
        names: See `runs.stores.store.Store.prefetch`.

    Raises:
        StoreError: If a store cannot be read.
    """
    for store, of_store in itertools.groupby(runs, lambda run: run.store):
        store.prefetch(list(of_store), names)


def each_series(runs: Iterable[Run], metric: str) -> Iterator[tuple[Run, Series]]:
    """Yield a metric of each run, in the order of the runs; one at a time, so that not all of them are held.

    Args:
        runs: Of one store or of several, each with the metric.
        metric: The metric.

    Raises:
        StoreError: If a run cannot be read, or lacks the metric.
    """
    for store, of_store in itertools.groupby(runs, lambda run: run.store):
        for run, series in store.each_series(list(of_store), metric):
            yield run, run.metric(metric) if series is None else series
