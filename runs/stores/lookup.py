"""Lookup of runs by the keys that people type: an id, a uid or its beginning, or `latest`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from sacristan.runs.errors import RunNotFoundError
from sacristan.runs.stores.backend import Backend
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.watching import NEWEST_FIRST

__all__ = ["find_run", "find_runs"]


def find_run(backend: Backend, key: str | int) -> Run:
    """Return the run that a user's key means; see `Store.get`."""
    text = str(key).strip()
    if text == "latest":
        newest = backend.store.find(sort=NEWEST_FIRST, limit=1)
        if not newest:
            raise RunNotFoundError(f"there is no run in {backend.where} yet")
        return newest[0]
    run = backend.by_id([text]).get(text)
    if run is not None:
        return run
    matches = _by_uid(backend, text) if text else []
    if len(matches) > 1:
        ids = ", ".join(f"{run.id} ({run.uid})" for run in matches[:5])
        raise RunNotFoundError(f"{text!r} is the beginning of more than one uid: {ids}; give more of it")
    if not matches:
        id = text.rstrip("/").rpartition("/")[2]  # people give a run's folder
        listing = ["sacristan", "ls", *([] if backend.where == "my_runs" else ["--store", backend.where])]
        hint = f"did you mean {id}?" if backend.by_id([id]) else f"list them with: {shlex.join(listing)}"
        raise RunNotFoundError(f"there is no run {text!r} in {backend.where}; {hint}")
    return matches[0]


def _by_uid(backend: Backend, beginning: str) -> list[Run]:
    """Return up to six runs whose uids have a beginning, by a range: `g` sorts after any hexadecimal digit."""
    return backend.store.find([("uid", ">=", beginning), ("uid", "<", f"{beginning}g")], NEWEST_FIRST, limit=6)


def find_runs(backend: Backend, keys: Iterable[str | int]) -> list[Run]:
    """Return several runs, each once, in the order of their keys; see `Store.get_all`."""
    texts = list(dict.fromkeys(str(key).strip() for key in keys))
    known = backend.by_id([text for text in texts if text != "latest"])
    return list(dict.fromkeys(known.get(text) or find_run(backend, text) for text in texts))
