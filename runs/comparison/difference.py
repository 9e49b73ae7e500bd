"""Differences between two runs, in code, settings, environment and results; the last good run before a failed one."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from sacristan.runs.errors import FilterError, StoreError
from sacristan.runs.query.flattening import Changes, changes, dotted, mapping_of
from sacristan.runs.stores.content import Content
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import differing, flat_config

__all__ = ["Difference", "compare_output", "diff", "last_good"]

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
        if _differ_by_mean(*(summary[name] for summary in summaries)):
            # Earlier versions rounded the mean at each heartbeat; the points tell whether it differs.
            for run, summary in zip((old, new), summaries, strict=True):
                summary[name] = _summary_of_points(run, name) or summary[name]
    return changes(*map(dotted, summaries))


def _differ_by_mean(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return set(changes(old, new).changed) == {"mean"}


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
    before, after = (text.splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    # A last line without a line end would run into the next one.
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


# ---------------------------------------------------------------------- the last good run


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
