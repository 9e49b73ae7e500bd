"""Tools for tests of several kinds of records: a run to kill, observers by name, a database that breaks off."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pymongo.errors import AutoReconnect
from sacred.observers import FileStorageObserver, RunObserver
from sacred.observers import MongoObserver as SacredMongoObserver

from sacristan.observers import FileObserver, MongoObserver

__all__ = ["Flaky", "logs_for_ever", "observer_of"]

# More would let an unlucky order go on for minutes.
_MAX_BREAKS = 100


def logs_for_ever(observer: str = 'FileObserver("runs")') -> str:
    """Return the body of a script (see the fixture `start`) that logs a point each millisecond until it is stopped."""
    return f"""
ex.observers.append({observer})
@ex.automain
def main(_run):
    step = 0
    while True:
        _run.log_scalar("loss", step, step); step += 1; time.sleep(0.001)
"""


def observer_of(kind: str, folder: Path, url: str, name: str) -> RunObserver:
    """Return an observer of a kind, ours or Sacred's: into the folder's `store`, or the database `name` at `url`."""
    kinds: dict[str, Callable[[], RunObserver]] = {
        "our-files": lambda: FileObserver(folder / "store"),
        "our-mongo": lambda: MongoObserver(url, name, failure_dir=folder / "spool"),
        "sacred-files": lambda: FileStorageObserver(folder / "store"),
        "sacred-mongo": lambda: SacredMongoObserver(url=url, db_name=name),
    }
    return kinds[kind]()


class Flaky:
    """A collection that breaks off at random, before or after the server has done what it was told.

    Args:
        real: The collection.
        rng: What chooses.
        breaks: Counts how often all together have.
        methods: The methods that break off.
        share: How many of their calls do.
    """

    def __init__(
        self, real: Any, rng: random.Random, breaks: Counter, *, methods: Collection[str], share: float
    ) -> None:
        self._real, self._rng, self._breaks, self._methods, self._share = real, rng, breaks, methods, share

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        if name not in self._methods:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            fate = self._rng.random() if self._breaks.total() < _MAX_BREAKS else 1.0
            self._breaks.update(["broken off"] * (fate < self._share))
            if fate < self._share / 2:
                raise AutoReconnect("broken off before")
            done = method(*args, **kwargs)
            if fate < self._share:
                raise AutoReconnect("broken off after")
            return done

        return call
