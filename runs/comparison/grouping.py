"""Runs in groups of equal fields, and in each group the repetitions: what a comparison and a mean curve are made of.

A repetition is one value of the fields that a setting was repeated over, such as a seed. Runs of one group that share
it are one repetition, however many they are: they hold no independent evidence. Source: Hurlbert 1984,
"Pseudoreplication", https://doi.org/10.2307/1942661
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from runs.errors import ComparisonError, StoreError
from runs.query.flattening import dotted
from runs.query.names import SWEEP, full_name, short_name
from runs.stores.run import Run

__all__ = [
    "ExcludedRun",
    "Group",
    "differing",
    "group_runs",
    "identity",
    "parameters",
    "settings",
    "show",
    "telling_settings",
]

_MAX_SHOWN = 60
# As many settings fit beside the other columns of a list.
_MAX_SETTINGS = 4
_PLAIN = re.compile(r"[^\W\d][\w./:+-]*")
_WORDS = frozenset(("true", "false", "none", "null", "nan", "inf"))


@dataclasses.dataclass(frozen=True)
class ExcludedRun:
    """A run that is excluded from a comparison.

    Attributes:
        run: The run.
        group: Label of the group that it would belong to.
        reason: What excludes it, such as `is FAILED`.
    """

    run: Run
    group: str
    reason: str


@dataclasses.dataclass
class Group:
    """Runs of equal fields.

    Attributes:
        values: The fields, by the names that were asked for.
        label: The same as text, such as `optimizer.name=Adam`.
        name: The values alone, such as `Adam`.
        repetitions: Runs by what `identity` returns of the values they were repeated over.
        names: The same values as text, such as `seed=3`.
    """

    values: dict[str, Any]
    label: str
    name: str
    repetitions: dict[Hashable, list[Run]] = dataclasses.field(default_factory=dict)
    names: dict[Hashable, str] = dataclasses.field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """All of its runs."""
        return [run for runs in self.repetitions.values() for run in runs]


def group_runs(
    runs: Iterable[Run], by: Sequence[str], over: Sequence[str] = ()
) -> tuple[list[Group], list[ExcludedRun]]:
    """Return the groups, sorted by their values, and the runs that lack a field of `over`.

    The order of `runs` changes nothing.

    Args:
        runs: Any; of equal ones one counts.
        by: Fields that are equal within a group; a field that a run does not have is None. Of none, all runs are one
            group.
        over: Fields that a repetition is known by; of none, every run is one.

    Raises:
        ComparisonError: If no run has a field of `by` or `over`.
    """
    runs = sorted(set(runs), key=lambda run: (len(run.id), run.id))
    for option, names in (("--by", by), ("--over", over)):
        for name in names:
            if runs and all(run.get(name) is None for run in runs):
                raise ComparisonError(f"{option} {name}: no run has it{_hint(name, runs)}")
    members: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
    for run in runs:
        members.setdefault(tuple(identity(run.get(name)) for name in by), []).append(run)
    groups: list[Group] = []
    excluded: list[ExcludedRun] = []
    labels: collections.Counter[str] = collections.Counter()
    for key in sorted(members, key=_order):
        values = {name: members[key][0].get(name) for name in by}
        label = ", ".join(f"{name}={show(value)}" for name, value in values.items()) or "all runs"
        name = ", ".join(show(value) for value in values.values()) or label
        labels[label] += 1
        # Long values are cut short, and may be equal then.
        number = f" #{labels[label]}" if labels[label] > 1 else ""
        groups.append(Group(values, f"{label}{number}", f"{name}{number}"))
        for run in members[key]:
            _add(run, groups[-1], over, excluded)
    return groups, excluded


def _add(run: Run, group: Group, over: Sequence[str], excluded: list[ExcludedRun]) -> None:
    missing = [name for name in over if run.get(name) is None]
    if missing:
        excluded.append(ExcludedRun(run, group.label, f"has no {' and no '.join(missing)}"))
        return
    repetition: Hashable = tuple(identity(run.get(name)) for name in over) if over else run.id
    group.repetitions.setdefault(repetition, []).append(run)
    group.names[repetition] = ", ".join(f"{name}={show(run.get(name))}" for name in over) or f"run {run.id}"


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


def _order(key: tuple) -> tuple:
    # Texts of all but numbers, so that values of any kinds can be sorted together.
    return tuple((kind, value if isinstance(value, int | float) else 0, repr(value)) for kind, value in key)


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


def differing(runs: Sequence[Run], without: Iterable[str] = ()) -> list[str]:
    """Return the entries of the configs in which runs differ, by their short names, sorted.

    Of entries of one last name that are equal in every run, such as `lr` and `optimizer.lr`, the shortest stands.

    Args:
        runs: Any.
        without: Names that do not count, nor what lies below them, nor others of the same last name: with `seed`,
            `model.seed`, which Sacred derives from it, neither.
    """
    known = [full_name(name).removeprefix("config.") for name in without]
    rows = [dotted(run.config) for run in runs]
    found: dict[Hashable, str] = {}
    for name in sorted({name for row in rows for name in row}, key=lambda name: (len(name), name)):
        values = tuple(identity(row.get(name)) for row in rows)
        last = name.rpartition(".")[2]
        is_known = any(name.startswith(f"{other}.") or last == other.rpartition(".")[2] for other in known)
        if len(set(values)) > 1 and not is_known:
            found.setdefault((last, values), name)
    return sorted(found.values())


def settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings by which people know the runs apart, the shortest names first, and the seed last.

    A setting that some runs do not have, such as those of another experiment, differs if it does among the others.
    Seeds that Sacred derives from the seed do not count. Trials of one sweep are known by its parameters alone.
    """
    rows = [dotted(run.config) for run in runs]
    found = []
    swept = parameters(runs)
    for name in swept or differing(runs, ["seed"]):
        if len({identity(row[name]) for row in rows if name in row}) > 1:
            found.append(short_name(f"config.{name}"))
    found.sort(key=lambda name: (name.count("."), name))
    return [*found, "seed"] if len({identity(row["seed"]) for row in rows if "seed" in row}) > 1 else found


def telling_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings to show of runs in a list: all parameters of a sweep, else a few that differ."""
    readable = list(filter(_has_config, runs))
    names = settings(readable)
    return names if parameters(readable) else names[:_MAX_SETTINGS]


def _has_config(run: Run) -> bool:
    try:
        return bool(run.config)
    except StoreError:
        return False


def parameters(runs: Sequence[Run]) -> list[str]:
    """Return the parameters of the sweep that all of the runs are trials of, without the seed; of none, nothing."""
    sweeps = {run.get(SWEEP) for run in runs}
    if len(sweeps) != 1 or None in sweeps:
        return []
    found = [run.get("meta.sweep.parameters") for run in runs]
    names = {name for given in found if isinstance(given, Mapping) for name in given}
    return sorted(names - {"seed"})


def _hint(name: str, runs: Sequence[Run]) -> str:
    names = list(dotted(runs[0].config))
    near = difflib.get_close_matches(name.removeprefix("config."), names, 1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(names)[:12]) or 'none'}"
