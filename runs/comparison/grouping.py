"""Runs in groups of equal fields, and in each group the repetitions: what a comparison and a mean curve are made of.

A repetition is one value of the fields that a setting was repeated over, such as a seed. Runs of one group that share
it are one repetition, however many they are: they hold no independent evidence. Source: Hurlbert 1984,
"Pseudoreplication", https://doi.org/10.2307/1942661
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from runs.errors import ComparisonError, StoreError
from runs.query.flattening import dotted
from runs.stores.prefetching import prefetch
from runs.stores.run import Run
from runs.stores.settings import differing, identity, plain_config, show

__all__ = ["ExcludedRun", "Group", "damage", "differences_between", "differences_within", "group_runs"]

# What a training is called, where an experiment has runs of several commands; else the most frequent one is taken.
_TRAININGS = ("main", "train")
# Settings that make another task of a run, or another model.
_WEIGHTY = ("data", "model", "loss")
_MAX_NAMED = 5
# Entries of a config that are looked at; those of a larger one are no settings that people choose.
_MAX_ENTRIES = 20_000
_CONTENT = "data (its content)"


@dataclasses.dataclass(frozen=True)
class ExcludedRun:
    """A run that is excluded from a comparison.

    Attributes:
        run: The run.
        group: Label of the group that it would belong to.
        reason: What excludes it, such as `is FAILED`.
        is_of_other_command: Whether it is no run of what is compared at all.
    """

    run: Run
    group: str
    reason: str
    is_of_other_command: bool = False


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
    """Return the groups, sorted by their values, and the runs that are left out, each with the reason.

    Left out are runs that lack a field of `over`, whose record is damaged, or that are of another command. What an
    experiment's commands return are different things: of each experiment the runs of one command count, those of
    `main` or `train`, or of its most frequent one. With `command` in `by` those of all count.

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
    excluded: list[ExcludedRun] = []
    if "command" not in by:
        runs, excluded = _of_one_command(runs, by)
    for option, names in (("--by", by), ("--over", over)):
        for name in names:
            if runs and all(run.get(name) is None for run in runs):
                raise ComparisonError(f"{option} {name}: no run has it{_hint(name, runs)}")
    members: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
    for run in runs:
        why = damage(run, by)
        if why:
            excluded.append(ExcludedRun(run, "no group", why))
            continue
        members.setdefault(tuple(identity(run.get(name)) for name in by), []).append(run)
    groups: list[Group] = []
    labels: collections.Counter[str] = collections.Counter()
    for key in sorted(members, key=_order):
        values = {name: members[key][0].get(name) for name in by}
        label = _label(values)
        name = ", ".join(show(value) for value in values.values()) or label
        labels[label] += 1
        # Long values are cut short, and may be equal then.
        number = f" #{labels[label]}" if labels[label] > 1 else ""
        groups.append(Group(values, f"{label}{number}", f"{name}{number}"))
        for run in members[key]:
            _add(run, groups[-1], over, excluded)
    return groups, excluded


def _label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in values.items()) or "all runs"


def _of_one_command(runs: Sequence[Run], by: Sequence[str]) -> tuple[list[Run], list[ExcludedRun]]:
    """Return the runs of one command of each experiment, with those whose command cannot be read, and the others."""
    prefetch(runs, ["command", "experiment.name"])
    commands: dict[Run, tuple[str, str]] = {}
    for run in runs:
        with contextlib.suppress(StoreError):
            commands[run] = run.name, run.command
    counts: dict[str, collections.Counter[str]] = {}
    for name, command in commands.values():
        counts.setdefault(name, collections.Counter())[command] += 1
    chosen = {
        name: next((one for one in _TRAININGS if one in found), min(found, key=lambda one: (-found[one], one)))
        for name, found in counts.items()
    }
    kept, excluded = [], []
    for run in runs:
        name, command = commands.get(run, ("", ""))
        if run not in commands or command == chosen[name]:
            kept.append(run)
        else:
            reason = f"is of the command {command}, not {chosen[name]}; for those: --where command={command}"
            excluded.append(ExcludedRun(run, _label({name: run.get(name) for name in by}), reason, True))
    return kept, excluded


def differences_within(group: Group, asked: Sequence[str]) -> str:
    """Return in words what the runs of a group differ in that was not asked for; empty if in nothing."""
    return _in_words(_differing(group.runs, asked))


def differences_between(groups: Sequence[Group], asked: Sequence[str]) -> str:
    """Return in words what groups differ in of data, model and loss, as whole groups, that was not asked for."""
    within = {name for group in groups for name in _differing(group.runs, asked)}
    parts = {part for part in _WEIGHTY if not any(_part(name) == part for name in asked)}
    names = _differing([run for group in groups for run in group.runs], asked)
    return _in_words([name for name in names if name not in within and _part(name) in parts])


def _differing(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """Return the settings in which runs differ, those of data, model and loss first."""
    names = sorted(
        differing(runs, asked, _MAX_ENTRIES),
        key=lambda name: _WEIGHTY.index(_part(name)) if _part(name) in _WEIGHTY else 9,
    )
    contents = {run.get("info.data.fingerprint") for run in runs} - {None}
    return (
        [_CONTENT, *names]
        if len(contents) > 1 and not any(_part(name) == "data" for name in [*names, *asked])
        else names
    )


def _part(name: str) -> str:
    return name.removeprefix("config.").partition(".")[0].partition(" ")[0]


def _in_words(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} other settings" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


def damage(run: Run, names: Sequence[str]) -> str:
    """Return why a run that lacks some of these fields may have them, as its record is damaged; nothing if it may not.

    Raises:
        StoreError: If it cannot be read, and is not listed among others.
    """
    if all(run.get(name) is not None for name in names):
        return ""
    _ = plain_config(run), run.summary  # tells whether they can be read
    return f"cannot be read completely: {run.problem}" if run.problem else ""


def _add(run: Run, group: Group, over: Sequence[str], excluded: list[ExcludedRun]) -> None:
    missing = [name for name in over if run.get(name) is None]
    if missing:
        reason = damage(run, over) or f"has no {' and no '.join(missing)}"
        excluded.append(ExcludedRun(run, group.label, reason))
        return
    repetition: Hashable = tuple(identity(run.get(name)) for name in over) if over else run.id
    group.repetitions.setdefault(repetition, []).append(run)
    group.names[repetition] = ", ".join(f"{name}={show(run.get(name))}" for name in over) or f"run {run.id}"


def _order(key: tuple) -> tuple:
    # Texts of all but numbers, so that values of any kinds can be sorted together.
    return tuple((kind, value if isinstance(value, int | float) else 0, repr(value)) for kind, value in key)


def _hint(name: str, runs: Sequence[Run]) -> str:
    names = list(dotted(runs[0].config))
    near = difflib.get_close_matches(name.removeprefix("config."), names, 1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(names)[:12]) or 'none'}"
