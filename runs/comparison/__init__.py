"""Comparisons of runs: differences of two, the last good run before a failed one, and groups with equal fields.

A repetition in a group is one value of the fields that a setting was repeated over, such as a seed. Runs of a group
that share it are one repetition, however many they are: they are no independent evidence. Source: Hurlbert 1984,
"Pseudoreplication", https://doi.org/10.2307/1942661
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import ComparisonError, FilterError, StoreError
from sacristan.runs.query import Changes, changes, dotted, mapping_of
from sacristan.runs.stores import Content, Run, prefetch
from sacristan.runs.stores.settings import differing, flat_config, identity, plain_config, show

__all__ = [
    "Difference",
    "ExcludedRun",
    "Group",
    "compare_output",
    "damage",
    "diff",
    "differences_between",
    "differences_within",
    "group_runs",
    "last_good",
]

# The parts of the git state that identify the code; the root is just its place on a machine.
_GIT = ("url", "commit", "branch", "dirty", "diff")
_RESULTS = ("status", "result")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The differences between two runs; true if there are any. Times and machines are not compared.

    Most parts list the names that were `changed` (with old and new value), `added` and `removed`.

    Attributes:
        command: Name of the experiment, and command.
        config: Entries by their dotted names.
        sources: The unified diff of each source by its path, or why it cannot be read.
        packages: Versions by name.
        git: Commit, branch, uncommitted changes and so on.
        outcome: Status and result.
        metrics: Statistics such as `train/loss.last`; without those of the machine (`system/...`).
    """

    command: Changes
    config: Changes
    sources: dict[str, str]
    packages: Changes
    git: Changes
    outcome: Changes
    metrics: Changes

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in dataclasses.fields(self))


def diff(old: Run, new: Run) -> Difference:
    """Compare two runs.

    Args:
        old: A run.
        new: Another run, of the same store or another.

    Returns:
        The differences in config, sources, packages, git state, outcome and metrics.

    Raises:
        StoreError: If one of them cannot be read.

    Example:
        with open_store("my_runs") as store:
            difference = diff(store.get(1), store.get(2))
        for name, (before, after) in difference.config.changed.items():
            print(name, before, after)
    """
    return Difference(
        command=changes(*({"name": run.name, "command": run.command} for run in (old, new))),
        config=changes(flat_config(old), flat_config(new)),
        sources=_sources(old.sources, new.sources),
        packages=changes(_packages(old), _packages(new)),
        git=changes(*_git_states(old, new)),
        outcome=changes(*({name: run[name] for name in _RESULTS} for run in (old, new))),
        metrics=_metric_changes(old, new),
    )


def compare_output(old: Run, new: Run, max_bytes: int | None = None) -> str:
    """Return the unified diff of the captured output of two runs, or of its first `max_bytes`; empty if equal."""
    texts = (run.read_output(0, max_bytes)[0].decode("utf-8", "replace") for run in (old, new))
    return _unified("output", *texts)


def _packages(run: Run) -> dict[str, Any]:
    """Return the versions of packages; that of the lab includes its commit and the folder of a checkout."""
    lab = mapping_of(run.provenance.get("lab"))
    commit = f" at commit {str(lab['commit'])[:12]}" if lab.get("commit") else ""
    checkout = f" in {lab.get('folder')}" if lab.get("checkout") else ""
    own = {"sacristan": f"{lab.get('version')}{commit}{checkout}"} if lab else {}
    return {**mapping_of(run.provenance.get("packages")), **own}


def _git_states(old: Run, new: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the git states of both runs; for a reproduction, made outside of git, that of the code it restored."""
    states = [mapping_of(run.provenance.get("git")) for run in (old, new)]
    before, after = ({name: git[name] for name in _GIT if name in git} for git in states)
    pair, entries = {old.uid, new.uid}, [*old.reproductions, *new.reproductions]
    if None not in pair and any({entry.get("of"), entry.get("by")} == pair for entry in entries):
        return before or after, after or before
    return before, after


def _metric_changes(old: Run, new: Run) -> Changes:
    summaries = [{k: v for k, v in run.summary.items() if not k.startswith("system/")} for run in (old, new)]
    for name in summaries[0].keys() & summaries[1].keys():
        if changes(*(summary[name] for summary in summaries)).changed.keys() == {"mean"}:
            # Earlier versions rounded the mean at each heartbeat; the points tell whether it differs.
            for run, summary in zip((old, new), summaries, strict=True):
                summary[name] = _summary_of_points(run, name) or summary[name]
    return changes(*map(dotted, summaries))


def _summary_of_points(run: Run, name: str) -> dict[str, Any] | None:
    from sacristan.observers.record.points import summarize

    try:
        series = run.metric(name)
    except StoreError:
        return None
    return summarize(series.values, series.steps) if len(series) else None


def _sources(old: dict[str, Content], new: dict[str, Content]) -> dict[str, str]:
    diffs = {}
    for name in sorted({*old, *new}):
        try:
            texts = [one[name].read().decode("utf-8", "replace") if name in one else "" for one in (old, new)]
        except StoreError as error:
            diffs[name] = str(error)
            continue
        text = _unified(name, *texts)
        if text or (name in old) != (name in new):
            diffs[name] = text
    return diffs


def _unified(name: str, old: str, new: str) -> str:
    import difflib

    before, after = (text.splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    # A last line without a line end would run into the next one.
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


# Settings that differ in repetitions, too.
_CHANCE = ("seed",)
# Runs that are compared, and entries of each config.
_MAX_RUNS, _MAX_ENTRIES = 20, 2_000


def last_good(run: Run) -> tuple[Run, list[str]] | None:
    """Return the completed run most similar to a failed one, and the config entries, without seeds, that differ.

    Only the last 20 completed runs of the same experiment and command that started before it are compared; of equals,
    the newest wins. None if there is no such run.
    """
    if not run.name or run.get("start_time") is None:
        return None
    same = {"status": "COMPLETED", "experiment.name": run.name, "command": run.command}
    try:
        candidates = run.store.find(
            {**same, "start_time": {"$lt": run.get("start_time")}}, "-start_time", _MAX_RUNS, ("config", "display_name")
        )
    except FilterError:  # the start of a foreign record may be anything
        return None
    pairs = [(good, differing([run.listed(), good.listed()], _CHANCE, _MAX_ENTRIES)) for good in candidates]
    return min(pairs, key=lambda pair: len(pair[1]), default=None)


# ---------------------------------------------------------------------- groups of runs

# The commands that train, where an experiment has runs of several; without them the most frequent command counts.
_TRAININGS = ("main", "train")
# Settings that change the task of a run, or its model.
_WEIGHTY = ("data", "model", "loss")
# Parts whose settings seldom change a result.
_LIGHT = ("checkpoint", "device", "distributed", "export", "probe")
_MAX_NAMED = 5
# Maximum number of entries of a config to compare; nobody chooses the settings of a larger one.
_MAX_SETTINGS = 20_000
_CONTENT = "data (its content)"


@dataclasses.dataclass(frozen=True)
class ExcludedRun:
    """A run excluded from a comparison."""

    run: Run
    group: str  # label of the group that it would belong to
    reason: str  # why it is excluded, such as `is FAILED`
    is_of_other_command: bool = False  # whether the reason is its command, which differs from that of the compared runs


@dataclasses.dataclass
class Group:
    """Runs with equal fields.

    Its `label` is their text, such as `optimizer.name=Adam`, and `name` the values alone, such as `Adam`. `repetitions`
    has runs by the `identity` of the values they were repeated over, and `names` these as text, such as `seed=3`.
    """

    values: dict[str, Any]
    label: str
    name: str
    repetitions: dict[Hashable, list[Run]] = dataclasses.field(default_factory=dict)
    names: dict[Hashable, str] = dataclasses.field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.repetitions.values() for run in runs]


def group_runs(
    runs: Iterable[Run], by: Sequence[str], over: Sequence[str] = (), among: Sequence[Run] = ()
) -> tuple[list[Group], list[ExcludedRun]]:
    """Group runs by their fields; return the groups, sorted by their values, and the excluded runs.

    Runs are excluded if they lack a field of `over`, their record is damaged, or they belong to another command. The
    results of different commands do not compare: of each experiment, only runs of `main` or `train`, or else of its
    most frequent command, count. With `command` in `by`, runs of all commands count. A field of `by` that a run lacks
    is None; equal runs count once. Without `by`, all runs are one group; without `over`, every run is a repetition. The
    runs in `among` are not grouped, but a field that only they have is valid; one that no run has raises
    ComparisonError.
    """
    runs = sorted(set(runs), key=lambda run: (len(run.id), run.id))
    excluded: list[ExcludedRun] = []
    if "command" not in by:
        runs, excluded = _of_one_command(runs, by)
    for name in (*by, *over):
        if runs and all(run.get(name) is None for run in itertools.chain(runs, among)):
            settings_of_first = list(flat_config(runs[0]))
            otherwise = f"there are: {', '.join(sorted(settings_of_first)[:12]) or 'none'}"
            hint = word_suggestion(name.removeprefix("config."), settings_of_first, otherwise)
            raise ComparisonError(f"none of the runs has {name}; {hint}")
    members: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
    for run in runs:
        if reason := damage(run, by):
            excluded.append(ExcludedRun(run, "no group", reason))
        else:
            members.setdefault(tuple(identity(run.get(name)) for name in by), []).append(run)
    groups: list[Group] = []
    labels: collections.Counter[str] = collections.Counter()
    for key in sorted(members, key=_order):
        values = {name: members[key][0].get(name) for name in by}
        label = _label(values)
        labels[label] += 1
        # Long values are cut off, and labels may be equal then.
        number = f" #{labels[label]}" if labels[label] > 1 else ""
        name = ", ".join(map(show, values.values())) or label
        groups.append(Group(values, f"{label}{number}", f"{name}{number}"))
        for run in members[key]:
            _add(run, groups[-1], over, excluded)
    return groups, excluded


def _label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in values.items()) or "all runs"


def _of_one_command(runs: Sequence[Run], by: Sequence[str]) -> tuple[list[Run], list[ExcludedRun]]:
    """Keep the runs of one command of each experiment, and those with an unreadable command; exclude the others."""
    prefetch(runs, ["command", "experiment.name"])
    commands: dict[Run, tuple[str, str]] = {}
    for run in runs:
        with contextlib.suppress(StoreError):
            commands[run] = run.name, run.command
    counts: dict[str, collections.Counter[str]] = {}
    for name, command in commands.values():
        counts.setdefault(name, collections.Counter())[command] += 1
    chosen = {
        name: next((command for command in _TRAININGS if command in of), min(of, key=lambda c: (-of[c], c)))
        for name, of in counts.items()
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
    """Name up to five settings in which a group's runs differ besides the `asked` ones, the most important first."""
    return _in_words(_differing(group.runs, asked))


def differences_between(groups: Sequence[Group], asked: Sequence[str]) -> str:
    """Name settings of data, model and loss, and of the root, in which groups differ besides the `asked` ones.

    Settings that vary within a group are not named, nor those of the same part as an asked one, such as `data`.
    """
    within = {name for group in groups for name in _differing(group.runs, asked)}
    parts = {part for part in _WEIGHTY if not any(_part(name) == part for name in asked)}
    names = _differing([run for group in groups for run in group.runs], asked)
    return _in_words([name for name in names if name not in within and ("." not in name or _part(name) in parts)])


def _differing(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """Return the settings in which runs differ besides the `asked` ones, the most important first."""
    names = sorted(differing(runs, asked, _MAX_SETTINGS), key=_place)
    contents = {run.get("info.data.fingerprint") for run in runs} - {None}
    is_named = any(_part(name) == "data" for name in (*names, *asked))
    return [_CONTENT, *names] if len(contents) > 1 and not is_named else names


def _place(name: str) -> int:
    """Rank a setting: data, model, loss, the experiment's own, other parts, and those that rarely matter."""
    part = _part(name)
    if part in _WEIGHTY:
        return _WEIGHTY.index(part)
    return len(_WEIGHTY) + (2 if part in _LIGHT else 1 if "." in name else 0)


def _part(name: str) -> str:
    return name.removeprefix("config.").partition(".")[0].partition(" ")[0]


def _in_words(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} other settings" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


def damage(run: Run, names: Sequence[str]) -> str:
    """Return why a damaged record may lack these fields; empty if they are all there, or the record is sound."""
    if all(run.get(name) is not None for name in names):
        return ""
    _ = plain_config(run), run.summary  # reading them sets `problem`
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
    # Everything but numbers as text, so that values of any kinds can be sorted together.
    return tuple((kind, value if isinstance(value, int | float) else 0, repr(value)) for kind, value in key)
