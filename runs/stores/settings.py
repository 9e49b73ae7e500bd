"""Settings by which runs are known apart, and values that are the same."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from runs.errors import StoreError
from runs.query.flattening import dotted, shallowest
from runs.query.names import SWEEP, full_name, short_name
from runs.stores.prefetching import prefetch
from runs.stores.run import Run

__all__ = [
    "differing",
    "fingerprint",
    "identity",
    "origins",
    "parameters",
    "run_labels",
    "settings",
    "show",
    "telling_settings",
]

_MAX_SHOWN = 60
_MAX_LABEL, _MAX_NAMES = 60, 4
# Characters of a list or mapping that is compared as it is written.
_LONG = 10_000
# As many settings fit beside the other columns of a list.
_MAX_SETTINGS = 4
# Entries of a config that people know a run by; a larger one would take minutes to compare with those of many runs.
_MAX_TELLING = 2_000
_PARAMETERS = "meta.sweep.parameters"
_TYPED = "command line"
# What `settings` reads of each run.
_TOLD_BY = ("config", SWEEP, _PARAMETERS)
_PLAIN = re.compile(r"[^\W\d][\w./:+-]*")
_PLAIN_KINDS = frozenset((bool, int, float, str, type(None)))
_WORDS = frozenset(("true", "false", "none", "null", "nan", "inf"))


def identity(value: Any) -> tuple[str, Any]:
    """Return what is equal for equal values: 1 and 1.0 are, 1 and True are not, a list is its items."""
    if isinstance(value, bool) or value is None:
        return type(value).__name__, value
    if isinstance(value, int | float):
        return "number", "nan" if value != value else value
    if isinstance(value, str):
        return "text", value
    if isinstance(value, Mapping):
        return "map", tuple(sorted((str(key), identity(item)) for key, item in value.items()))
    if isinstance(value, Sequence):
        return "list", tuple(identity(item) for item in value)
    return "other", repr(value)


def fingerprint(value: Any) -> tuple[str, Any]:
    """Return what is equal for equal values, as `identity`; of a long list or mapping a digest of how it is written."""
    if not isinstance(value, Mapping | list | tuple) or not value:
        return identity(value)
    text = json.dumps(value, sort_keys=True, default=repr)
    return identity(value) if len(text) < _LONG else ("long", hashlib.blake2b(text.encode(), digest_size=16).digest())


def show(value: Any) -> str:
    """Return a value as short text, in the spelling that a filter takes."""
    if isinstance(value, str):
        # A text that could be taken for a number, or for more than one word, gets quotes.
        text = value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else repr(value)
    elif isinstance(value, float):
        text = repr(value) if not math.isfinite(value) or value != int(value) or abs(value) >= 1e15 else f"{value:g}"
    elif isinstance(value, Mapping | list | tuple):
        text = json.dumps(value, default=str)
    else:
        text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def differing(runs: Sequence[Run], without: Iterable[str] = (), most: int | None = None) -> list[str]:
    """Return the entries of the configs in which runs differ, by their short names, sorted.

    Of entries of one last name that are equal in every run, such as `lr` and `optimizer.lr`, the shortest stands.

    Args:
        runs: Any.
        without: Names that do not count, nor what lies below them or follows from them: with `seed`, neither does
            `model.seed`, and with `optimizer.lr` no `lr` of the same values. With `optimizer.name`, `data.name` does.
        most: So many entries of each config are looked at, those of few dots first; None for all.
    """
    known = [full_name(name).removeprefix("config.") for name in without]
    prefetch(runs, ["config"])
    configs = [(run, plain_config(run)) for run in runs]
    rows = [_entries(config, most) for run, config in configs if config or not run.problem]
    found: dict[Hashable, str] = {}
    for name in sorted({name for row in rows for name in row}, key=lambda name: (len(name), name)):
        # A row that was cut does not tell whether the run has the entry.
        found_in = [row for row in rows if name in row or len(row) != most]
        if not _are_different([row.get(name) for row in found_in]):
            continue
        values = tuple(fingerprint(row.get(name)) for row in rows)
        last = name.rpartition(".")[2]
        is_known = any(
            name == other
            or name.startswith(f"{other}.")
            or last == other
            or (last == other.rpartition(".")[2] and values == tuple(fingerprint(row.get(other)) for row in rows))
            for other in known
        )
        if not is_known:
            found.setdefault((last, values), name)
    return sorted(found.values())


def plain_config(run: Run) -> Mapping[str, Any]:
    """Return the config of a run without making a Map of it, which takes a while for a large one.

    Raises:
        StoreError: If it cannot be read, and the run is not listed among others; see `Run.listed`.
    """
    config = run.get("config")
    return config if isinstance(config, Mapping) else run.config


def _entries(config: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    return dotted(config) if most is None else shallowest(config, most)


def _are_different(values: Sequence[Any]) -> bool:
    """Tell whether not all of some values are the same; see `identity`."""
    if len(values) < 2:
        return False
    first, kind = values[0], type(values[0])
    if kind in _PLAIN_KINDS and all(type(value) is kind and value == first for value in values):
        return False  # as nearly all are
    return len({fingerprint(value) for value in values}) > 1


def settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings by which people know the runs apart, the shortest names first, and the seed last.

    A setting that some runs do not have, such as those of another experiment, differs if it does among the others.
    Seeds that Sacred derives from the seed do not count. Trials of one sweep are known by its parameters alone.
    """
    prefetch(runs, _TOLD_BY)
    rows = [_entries(plain_config(run), _MAX_TELLING) for run in runs]
    found = []
    swept = parameters(runs)
    for name in swept or differing(runs, ["seed"], _MAX_TELLING):
        if _are_different([row[name] for row in rows if name in row]):
            found.append(short_name(f"config.{name}"))
    found.sort(key=lambda name: (name.count("."), name))
    return [*found, "seed"] if _are_different([row["seed"] for row in rows if "seed" in row]) else found


def origins(run: Run) -> dict[str, str]:
    """Return what has set each entry of a config that is not at its default, by dotted name, those typed first.

    Of a run whose record does not say, such as one of stock Sacred, these are the entries that were typed.
    """
    groups = run.get("meta.origins")
    found: dict[str, str] = {}
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping) and isinstance(group.get("entries"), list):
            found |= dict.fromkeys(map(str, group["entries"]), str(group.get("origin")))
    updates = run.get("meta.config_updates")
    typed = dict.fromkeys(dotted(updates), _TYPED) if isinstance(updates, Mapping) else {}
    return {name: found.get(name, origin) for name, origin in typed.items()} | found


def telling_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings to show of runs in a list: all parameters of a sweep, else a few that differ."""
    prefetch(runs, _TOLD_BY)
    readable = list(filter(_has_config, runs))
    names = settings(readable)
    return names if parameters(readable) else names[:_MAX_SETTINGS]


def _has_config(run: Run) -> bool:
    try:
        return bool(plain_config(run))
    except StoreError:
        return False


def parameters(runs: Sequence[Run]) -> list[str]:
    """Return the parameters of the sweep that all of the runs are trials of, without the seed; of none, nothing."""
    sweeps = {run.get(SWEEP) for run in runs}
    if len(sweeps) != 1 or None in sweeps:
        return []
    found = [run.get(_PARAMETERS) for run in runs]
    names = {name for given in found if isinstance(given, Mapping) for name in given}
    return sorted(names - {"seed"})


def run_labels(runs: Sequence[Run]) -> dict[Run, str]:
    """Return for every run its id and what makes it differ from the others."""
    names = settings(runs)[:_MAX_NAMES]
    labels = {}
    for run in runs:
        text = ", ".join(f"{name}={show(run.get(name))}" for name in names)
        text = f"run {run.id}: {text}" if text else f"run {run.id}"
        labels[run] = text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
    return labels
