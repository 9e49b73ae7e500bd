"""Reproducing a past run: what was planned is run, what came out is judged, and the verdict is noted.

    with planned(store.get("3"), store) as plan:
        done = carry_out(plan)
    print(done.verdict.text)

The new run is one of the same store, with the old one as its parent; the verdict is noted with both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from observers.artifacts.store import ArtifactStore
from observers.errors import ArtifactError
from observers.record.regular_file import read_regular
from observers.record.schema import RUN
from runs.comparison.difference import diff
from runs.errors import LaunchError, StoreError
from runs.query.index.folders import read_json
from runs.rerun.environment import Differing, compare_flags, compare_reads
from runs.rerun.judging import judge
from runs.rerun.launching import run_launch
from runs.rerun.libraries import compare_libraries, has_libraries
from runs.rerun.planning import IN_PLACE, RESTORED, Plan
from runs.rerun.record import fingerprint_of, is_written_by
from runs.rerun.unwatched import unwatched
from runs.rerun.verdict import CUT_OFF, DIVERGED, IDENTICAL, Tolerance, Verdict
from runs.rerun.wording import end_text, some
from runs.stores.content import Content
from runs.stores.folders.store import FolderStore
from runs.stores.opening import open_store
from runs.stores.run import Run
from runs.stores.store import Store
from runs.transfer.copying import copy
from runs.transfer.uids import uid_of

__all__ = ["Reproduction", "carry_out"]


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A run that was reproduced, and the verdict on it.

    Attributes:
        plan: How it was done.
        run: The new run, in the store of the old one, or in a folder of its own where that cannot be written to.
        verdict: Whether it is what the old one was.
        flags: Determinism flags, files and environment variables that were not the same in both runs, and libraries
            that only the new run showed to differ.
        sources: The unified diff of each source that was not the same, recorded to new.
        notes: What else is to be said, a sentence each.
    """

    plan: Plan
    run: Run
    verdict: Verdict
    flags: tuple[Differing, ...]
    sources: dict[str, str]
    notes: tuple[str, ...]


def carry_out(plan: Plan, tolerance: Tolerance | None = None, output: int | None = None) -> Reproduction:
    """Run what was planned, judge what came out, and note the verdict with both runs.

    Args:
        plan: What to run.
        tolerance: How far values may be from the recorded ones.
        output: File descriptor for all that the process prints.

    Raises:
        LaunchError: If it could not be run: it did not start, failed though the old one did not, was interrupted, or
            found other data. What it recorded is in the store.
        StoreError: If the store cannot be read or written.
    """
    with contextlib.ExitStack() as stack:
        return _carry_out(plan, tolerance, output, stack)


def _carry_out(
    plan: Plan, tolerance: Tolerance | None, output: int | None, stack: contextlib.ExitStack
) -> Reproduction:
    old, store = plan.run, plan.store
    own = stack.enter_context(open_store(plan.own_store, create=True)) if plan.is_read_only else None
    if plan.is_staged:
        _fetch_used_versions(old, plan.record_to)
    before = {run.id for run in store.find(columns=())}
    pid, code = run_launch(plan.launch, output)
    notes: list[str] = []
    if plan.is_staged:
        new, notes = _find_staged(plan, pid, before, own, stack)
    else:
        new = _find_recorded(plan, pid, before)
    if new is None:
        raise LaunchError(
            f"run {old.id} could not be run again: its process recorded no run, and ended with {end_text(code)}"
        )
    _refuse_unlike(old, new, code)
    verdict = judge(old, new, tolerance)
    changed = _changed_sources(plan, old, new)
    flags = (*compare_flags(old, new), *compare_reads(old, new), *_late_libraries(plan, old, new))
    notes += verdict.notes
    if changed and plan.mode == RESTORED:
        notes.append(f"the new run was not made of the recorded sources alone: {some(changed)} differ")
    if plan.mode == IN_PLACE and verdict.verdict != IDENTICAL:
        notes.append(_attribution(plan, changed, flags))
    elif verdict.verdict == DIVERGED and not (changed or plan.environment.loud or flags):
        notes.append(unwatched(old))
    entry = _entry(plan, new, verdict)
    if new.store is store:
        try:
            store.note_reproduction(old, entry)
        except StoreError as error:  # as of somebody else's run in a shared folder
            notes.append(f"the verdict is noted with run {new.id} alone: {error}")
    new = cast(Store, new.store).note_reproduction(new, entry)
    return Reproduction(plan, new, verdict, flags, changed, tuple(notes))


def _changed_sources(plan: Plan, old: Run, new: Run) -> dict[str, str]:
    """Return the unified diff of each source that was not the same; nothing if the same ones were only not imported.

    Which ones a run imports depends on how it is recorded, too.
    """
    ours, theirs = old.sources, new.sources
    base = None if plan.restored is None else plan.restored.base

    def is_other(name: str) -> bool:
        if name in ours:
            return name in theirs
        # What was restored from git is of the record, imported or not.
        return base is None or not _has_content(base / name, theirs[name])

    found = diff(old, new).sources
    return found if any(is_other(name) for name in found) else {}


def _late_libraries(plan: Plan, old: Run, new: Run) -> tuple[Differing, ...]:
    """Return the libraries that differ though that was not seen before the run."""
    known = {one.name for one in plan.environment.differences if one.kind == "library"}
    return tuple(one for one in compare_libraries(old, new) if one.name not in known)


def _has_content(path: Path, content: Content) -> bool:
    try:
        return read_regular(path) == content.read()
    except (StoreError, OSError):
        return False


def _fetch_used_versions(run: Run, record_to: Path) -> None:
    """Bring the versions of artifacts that the run used to where its process looks for them."""
    entries = run["artifacts_used"]
    for entry in entries if isinstance(entries, list) else ():
        try:
            ArtifactStore(record_to).take(run.fetch_version(entry, record_to))
        except (ArtifactError, StoreError) as error:
            raise LaunchError(f"run {run.id} used an artifact that is not there: {error}") from error


def _find_recorded(plan: Plan, pid: int, before: set[str]) -> Run | None:
    """Return the run that the process recorded in the store itself."""
    found = [run for run in plan.store.find([("parent", "==", plan.run.uid)]) if run.id not in before]
    # Another reproduction of the same run, or a fork, may have begun beside this one.
    own = [run for run in found if not run.lease or is_written_by(run, pid)]
    return plan.store.get(own[0].id) if own else None


def _find_staged(
    plan: Plan, pid: int, before: set[str], own: Store | None, stack: contextlib.ExitStack
) -> tuple[Run | None, list[str]]:
    """Return the run that the process recorded beside the store, copied into it, and what is to be said of that.

    Where the store refuses, it is copied into a folder of its own, which `stack` closes.
    """
    old = plan.run
    with FolderStore(plan.record_to) as staging:
        recorded = staging.find(sort="start_time")
        if not recorded:
            return None, []
        # It may have started others, which are recorded beside it.
        run = next((one for one in recorded if is_written_by(one, pid)), recorded[0])
        if old.uid and not run["parent"]:
            _adopt(plan.record_to / run.id / RUN, old.uid)
        # What its own observer recorded in the store is not copied there once more.
        for new in plan.store.find():
            is_stock = new.uid is None and new.name == old.name
            if new.id not in before and (is_stock or (old.uid and new["parent"] == old.uid)):
                return new, []
        if own is None:
            try:
                return copy(staging.get(run.id), plan.store).run, []
            except StoreError as error:
                own = stack.enter_context(open_store(plan.own_store, create=True))
                note = f"the new run could not be put into {plan.store.where} ({error}); it is in {own.where}"
                return copy(staging.get(run.id), own).run, [note]
        return copy(staging.get(run.id), own).run, []


def _adopt(path: Path, parent: str) -> None:
    """Let a record that stock Sacred wrote name the run that it was started from."""
    path.write_text(json.dumps({**(read_json(path) or {}), "parent": parent}, indent=2))


def _refuse_unlike(old: Run, new: Run, code: int) -> None:
    """Refuse to judge a run that did not come to its end, or was trained on other data.

    Raises:
        LaunchError: If so.
    """
    if new.status == "FAILED" and old.status != "FAILED":
        trace = new["fail_trace"]
        lines = "".join(map(str, trace)).strip().splitlines() if isinstance(trace, list) else []
        raise LaunchError(
            f"run {old.id} could not be run again: run {new.id} failed: {lines[-1] if lines else end_text(code)}"
        )
    if new.status in (*CUT_OFF, "RUNNING"):
        raise LaunchError(f"run {old.id} was not run to its end again: run {new.id} is {new.status} ({end_text(code)})")
    # An experiment of stock Sacred does not look itself.
    read = {content.name: content for content in new.stored("resources")}
    for content in old.stored("resources"):
        if content.name in read and _differ(content, read[content.name]):
            raise LaunchError(
                f"run {new.id} read another {content.name!r} than run {old.id}: it has changed; put back what it was"
            )
    recorded, now = fingerprint_of(old), fingerprint_of(new)
    if recorded and now and recorded != now:
        raise LaunchError(
            f"run {new.id} was trained on other data than run {old.id}: the fingerprint is {now[:12]}, recorded "
            f"{recorded[:12]}; put back what was there"
        )


def _differ(one: Content, other: Content) -> bool:
    try:
        return one.sha256() != other.sha256()
    except (StoreError, OSError):
        return False  # said before the run


def _attribution(plan: Plan, sources: Mapping[str, str], flags: tuple[Differing, ...]) -> str:
    """Say whether code or environment make the difference of a run with today's sources."""
    loud = [one.name for one in (*plan.environment.loud, *flags)]
    if sources and loud:
        return (
            f"code ({some(sources)}) and environment ({some(loud)}) both differ; without --in-place the recorded "
            "sources are run in today's environment, which tells them apart"
        )
    if sources:
        return f"the environment is the same: it comes from the code ({some(sources)})"
    if loud:
        return f"the sources are the same: it comes from the environment ({some(loud)})"
    libraries = "libraries on PYTHONPATH or installed in editable form are not in the record, and may have changed; "
    return f"{'' if has_libraries(plan.run) else libraries}{unwatched(plan.run)}"


def _entry(plan: Plan, new: Run, verdict: Verdict) -> dict[str, Any]:
    """Return what is noted with both runs."""
    return {
        "of": uid_of(plan.run),
        "of_id": plan.run.id,
        "by": uid_of(new),
        "by_id": new.id,
        "verdict": verdict.verdict,
        "reason": verdict.text.partition(": ")[2] if verdict.verdict == DIVERGED else "",
        "tolerance": verdict.tolerance.text,
        "mode": plan.mode,
        "time": datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds"),
    }
