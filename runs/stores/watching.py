"""Watching a store for new and changed runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sacristan.runs.query.filters import Question
from sacristan.runs.stores.backend import Backend
from sacristan.runs.stores.run import Run

__all__ = ["NEWEST_FIRST", "watch_runs"]

NEWEST_FIRST = "-start_time"
_WATCHED = ("status", "start_time", "stop_time", "heartbeat", "result")
_MAX_WATCHED = 200


def watch_runs(backend: Backend, filter: Any, interval_s: float) -> Iterator[Run]:
    """Yield every run that is new or has changed, for ever, checking every `interval_s`; see `Store.watch`."""
    runs = backend.store.find(filter, NEWEST_FIRST, _MAX_WATCHED, _WATCHED)
    question = Question.of(filter, NEWEST_FIRST, _MAX_WATCHED, _WATCHED)
    seen: dict[str, tuple[Any, ...]] = {}
    while True:
        for run in reversed(runs):
            state = tuple(run[name] for name in _WATCHED)
            if seen.get(run.id) != state:
                seen[run.id] = state
                yield run
        time.sleep(interval_s)
        runs = backend.find(question)
