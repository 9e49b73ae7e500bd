"""Settings that distinguish runs, and the comparison of their values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sacristan.runs.errors import StoreError
from sacristan.runs.query import SWEEP, dotted, full_name, list_of, mapping_of, mappings_in, shallowest, short_name
from sacristan.runs.stores.run import Run, prefetch

_MAX_SHOWN = 60
_MAX_LABEL, _MAX_TITLE, _MAX_NAMES = 60, 40, 4
# Characters of JSON above which a list or mapping is compared by its digest.
_LONG = 10_000
# Settings that fit beside the other columns of a list.
_MAX_SETTINGS = 4
# Entries of a config to compare; comparing all entries of huge configs would take minutes.
_MAX_TELLING = 2_000
_PARAMETERS = "meta.sweep.parameters"
_TYPED = "command line"
# The fields that `settings` reads.
_READ = ("config", SWEEP, _PARAMETERS)
_PLAIN = re.compile(r"[^\W\d][\w./:+-]*")
_PLAIN_KINDS = frozenset((bool, int, float, str, type(None)))
_WORDS = frozenset(("true", "false", "none", "null", "nan", "inf"))


def identity(value: Any) -> tuple[str, Any]:
    """Return a hashable form of a JSON value, the same for equal values: 1 is 1.0 but not True, NaN is NaN."""
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
    """Return the `identity` of a JSON value, or a digest of a list or mapping of 10,000 characters or more."""
    if not isinstance(value, Mapping | list | tuple) or not value:
        return identity(value)
    text = json.dumps(value, sort_keys=True, default=repr)
    return identity(value) if len(text) < _LONG else ("long", hashlib.blake2b(text.encode(), digest_size=16).digest())


def show(value: Any) -> str:
    """Return a value as text of at most 60 characters, in the spelling of filters."""
    if isinstance(value, str):
        # Quote a text that looks like a number, or has several words.
        text = value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else repr(value)
    elif isinstance(value, float):
        text = repr(value) if not math.isfinite(value) or value != int(value) or abs(value) >= 1e15 else f"{value:g}"
    elif isinstance(value, Mapping | list | tuple):
        text = json.dumps(value, default=str)
    else:
        text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def differing(runs: Sequence[Run], without: Iterable[str] = (), most: int | None = None) -> list[str]:
    """Return the entries in which the configs of runs differ, sorted and without `config.`.

    `without` also leaves out entries below a name and copies of it: `seed` leaves out `model.seed`, and `optimizer.lr`
    an `lr` with the same values; `optimizer.name` does not leave out `data.name`. Of entries with the same last part
    and the same values in every run, such as `lr` and `optimizer.lr`, the shortest is listed. `most` limits the entries
    compared in each config to those with the fewest dots.
    """
    without_names = [full_name(name).removeprefix("config.") for name in without]
    prefetch(runs, ["config"])
    rows = [row for run in runs if (row := flat_config(run, most)) or not run.problem]
    chosen: dict[Hashable, str] = {}
    for name in _differing_names(rows, most):
        values = _values(rows, name)
        if not any(_is_copy(name, values, other, rows) for other in without_names):
            chosen.setdefault((name.rpartition(".")[2], values), name)
    return sorted(chosen.values())


def _differing_names(rows: Sequence[Mapping[str, Any]], most: int | None) -> Iterator[str]:
    """Yield the entries in which rows differ, the shortest names first."""
    for name in sorted({name for row in rows for name in row}, key=lambda name: (len(name), name)):
        # A full row does not tell whether the run has the entry.
        if _are_different([row.get(name) for row in rows if name in row or len(row) != most]):
            yield name


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[Hashable, ...]:
    return tuple(fingerprint(row.get(name)) for row in rows)


def _is_copy(name: str, values: tuple[Hashable, ...], other: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether an entry is `other`, lies below it, or copies it."""
    last = name.rpartition(".")[2]
    if other in (name, last) or name.startswith(f"{other}."):
        return True
    return last == other.rpartition(".")[2] and values == _values(rows, other)


def plain_config(run: Run) -> Mapping[str, Any]:
    """Return the config of a run without the cost of a `Map`."""
    config = run.get("config")
    return config if isinstance(config, Mapping) else run.config


def flat_config(run: Run, most: int | None = None) -> dict[str, Any]:
    """Return the config of a run by dotted name, at most so many entries: those nearest to the root."""
    return dotted(plain_config(run)) if most is None else shallowest(plain_config(run), most)


def _are_different(values: Sequence[Any]) -> bool:
    if len(values) < 2:
        return False
    first, kind = values[0], type(values[0])
    if kind in _PLAIN_KINDS and all(type(value) is kind and value == first for value in values):
        return False  # the usual case
    return len({fingerprint(value) for value in values}) > 1


def settings(runs: Sequence[Run]) -> list[str]:
    """Return the short names of the settings that distinguish runs: fewest dots first, the seed last.

    A setting counts if it differs among the runs that have it; seeds that Sacred derives from the seed do not. Trials
    of one sweep are distinguished by its parameters alone.
    """
    prefetch(runs, _READ)
    rows = [flat_config(run, _MAX_TELLING) for run in runs]
    found = []
    swept = parameters(runs)
    for name in swept or differing(runs, ["seed"], _MAX_TELLING):
        if _are_different([row[name] for row in rows if name in row]):
            found.append(short_name(f"config.{name}"))
    found.sort(key=lambda name: (name.count("."), name))
    return [*found, "seed"] if _are_different([row["seed"] for row in rows if "seed" in row]) else found


def origins(run: Run) -> dict[str, str]:
    """Return who set each entry of a config that is not at its default, typed entries first.

    A run whose record has no origins, such as one of stock Sacred, has only the typed entries.
    """
    set_by: dict[str, str] = {}
    for group in mappings_in(run.get("meta.origins")):
        set_by |= dict.fromkeys(map(str, list_of(group.get("entries"))), str(group.get("origin")))
    typed = dict.fromkeys(dotted(mapping_of(run.get("meta.config_updates"))), _TYPED)
    return {name: set_by.get(name, origin) for name, origin in typed.items()} | set_by


def telling_settings(runs: Sequence[Run], most: int = _MAX_SETTINGS) -> list[str]:
    """Return the short names of the settings to show in a list of runs, the seed last.

    In a sweep, these are all parameters that differ; else up to `most` settings that differ, first those that most runs
    set on the command line, then those that most runs set otherwise. Runs whose config cannot be read are ignored.
    """
    prefetch(runs, (*_READ, "meta.origins", "meta.config_updates"))
    readable = list(filter(_has_config, runs))
    names = settings(readable)
    if parameters(readable):
        return names
    by_run = [origins(run) for run in readable]

    def rank(name: str) -> tuple[bool, int, int]:
        entry = full_name(name).removeprefix("config.")
        setters = [given[entry] for given in by_run if entry in given]
        return name == "seed", -setters.count(_TYPED), -len(setters)

    return sorted(names, key=rank)[:most]


def _has_config(run: Run) -> bool:
    try:
        return bool(plain_config(run))
    except StoreError:
        return False


def parameters(runs: Sequence[Run]) -> list[str]:
    """Return the sorted parameters, without the seed, of the sweep that all runs are trials of; none without one."""
    sweeps = {run.get(SWEEP) for run in runs}
    if len(sweeps) != 1 or None in sweeps:
        return []
    mappings = [run.get(_PARAMETERS) for run in runs]
    names = {name for mapping in mappings if isinstance(mapping, Mapping) for name in mapping}
    return sorted(names - {"seed"})


def title_of(run: Run) -> str:
    """Return the name of a run in legends: `run 3`, or `wider (run 3)` if people named it; a long name is cut."""
    name = run.display_name
    short = name if len(name) <= _MAX_TITLE else f"{name[: _MAX_TITLE - 1]}…"
    return f"{short} (run {run.id})" if name else f"run {run.id}"


def run_labels(runs: Sequence[Run]) -> dict[Run, str]:
    """Return a label of at most 60 characters for every run, such as `run 3: lr=0.1, seed=2`."""
    prefetch(runs, ["display_name"])
    names = settings(runs)[:_MAX_NAMES]
    labels = {}
    for run in runs:
        text = ", ".join(f"{name}={show(run.get(name))}" for name in names)
        text = f"{title_of(run)}: {text}" if text else title_of(run)
        labels[run] = text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
    return labels
