"""Lookup of runs by the keys that people type: an id, a uid or its beginning, or `latest`; and a watch for new ones."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from typing import Any

from sacristan.runs.errors import DiscardedError, RunNotFoundError
from sacristan.runs.query.filters import Question
from sacristan.runs.stores.record import RunStore
from sacristan.runs.stores.run import Run

__all__ = ["NEWEST_FIRST", "find_run", "find_runs", "runs_by", "watch_runs"]


NEWEST_FIRST = "-start_time"
# What makes a run a changed one, and the number of newest runs that are watched.
_WATCHED = ("status", "start_time", "stop_time", "heartbeat", "result")
_MAX_WATCHED = 200


def runs_by(store: RunStore, keys: Iterable[str]) -> dict[str, Run]:
    """Return runs by their ids or whole uids; unknown ones are left out."""
    return {key: Run(store, row.id, row.values, row.key) for key, row in store.backend.get(keys).items()}


def find_run(store: RunStore, key: str | int) -> Run:
    """Return the run that a user's key means; see `Store.get`."""
    text, where = str(key).strip(), store.where
    if text == "latest":
        newest: list[Run] = store.find(sort=NEWEST_FIRST, limit=1)
        if not newest:
            raise RunNotFoundError(f"there is no run in {where} yet")
        return newest[0]
    run = runs_by(store, [text]).get(text)
    if run is not None:
        return run
    matches = _by_uid(store, text) if text else []
    if len(matches) > 1:
        ids = ", ".join(f"{run.id} ({run.uid})" for run in matches[:5])
        raise RunNotFoundError(f"{text!r} is the beginning of more than one uid: {ids}; give more of it")
    if not matches:
        raise _absent(store, text)
    return matches[0]


def _absent(store: RunStore, text: str) -> RunNotFoundError:
    """Return the error of a key that stands for no run, with what to do next."""
    there = [] if store.where == "my_runs" else ["--store", store.where]
    discarded = next((one for one, _ in store.backend.trash() if text in (one.id, one.uid)), None)
    if discarded is not None:
        by = f" by {discarded.by}" if discarded.by else ""
        command = shlex.join(["sacristan", *there, "restore", text])
        why = f"run {text} was moved to the trash of {store.where}{by}; bring it back with: {command}"
        return DiscardedError(why, discarded.key)
    id = text.rstrip("/").rpartition("/")[2]  # people give a run's folder
    listing = shlex.join(["sacristan", "ls", *there])
    hint = f"did you mean {id}?" if store.backend.get([id]) else f"list them with: {listing}"
    return RunNotFoundError(f"there is no run {text!r} in {store.where}; {hint}")


def _by_uid(store: RunStore, beginning: str) -> list[Run]:
    """Return up to six runs whose uids have a beginning, by a range: `g` sorts after any hexadecimal digit."""
    return store.find([("uid", ">=", beginning), ("uid", "<", f"{beginning}g")], NEWEST_FIRST, limit=6)


def find_runs(store: RunStore, keys: Iterable[str | int]) -> list[Run]:
    """Return several runs, each once, in the order of their keys; see `Store.get_all`."""
    texts = list(dict.fromkeys(str(key).strip() for key in keys))
    known = runs_by(store, [text for text in texts if text != "latest"])
    return list(dict.fromkeys(known.get(text) or find_run(store, text) for text in texts))


def watch_runs(store: RunStore, filter: Any, interval_s: float) -> Iterator[Run]:
    """Yield every run that is new or has changed, for ever, checking every `interval_s`; see `Store.watch`."""
    runs = store.find(filter, NEWEST_FIRST, _MAX_WATCHED, _WATCHED)
    question = Question.of(filter, NEWEST_FIRST, _MAX_WATCHED, _WATCHED)
    seen: dict[str, tuple[Any, ...]] = {}
    while True:
        for run in reversed(runs):
            state = tuple(run[name] for name in _WATCHED)
            if seen.get(run.id) != state:
                seen[run.id] = state
                yield run
        time.sleep(interval_s)
        runs = store.answer(question)
