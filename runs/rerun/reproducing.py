"""Reproduce a past run: run the plan, judge the result, and note the verdict with both runs.

    with planned(Record(store.get("3")), Tolerance()) as plan:
        done = carry_out(plan)
    print(done.verdict.text)

The new run goes into the same store and has the old one as its parent.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from sacristan.runs.errors import LaunchError, StoreError
from sacristan.runs.rerun.causes import cause_notes, changed_sources
from sacristan.runs.rerun.environment import Differing, compare_flags, compare_libraries, compare_reads
from sacristan.runs.rerun.judging import cause_of, judge
from sacristan.runs.rerun.new_run import NewRunPlace
from sacristan.runs.rerun.planning import Plan
from sacristan.runs.rerun.processes import end_text, run_launch
from sacristan.runs.rerun.record import Record, digest_of
from sacristan.runs.rerun.verdict import CUT_OFF, DIVERGED, Verdict
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.unloading import uid_of

__all__ = ["Reproduction", "carry_out"]


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A reproduced run with its verdict.

    Attributes:
        plan: How the run was reproduced.
        run: The new run, in the store of the old one, or in a folder of runs of its own if that is read-only.
        verdict: The comparison of the two runs.
        flags: Determinism flags, files and environment variables that differ between the two runs, and libraries whose
            difference only the new run showed.
        sources: The unified diff of each source that differs, recorded to new.
        notes: Further sentences for the user.
    """

    plan: Plan
    run: Run
    verdict: Verdict
    flags: tuple[Differing, ...]
    sources: dict[str, str]
    notes: tuple[str, ...]


def carry_out(plan: Plan, output: int | None = None) -> Reproduction:
    """Run a plan, judge the new run, and note the verdict with both runs.

    If the run did not start, was interrupted, read other data, or failed although the old one did not, this raises
    LaunchError, and the record stays in the store. Without an `output`, the process prints to stdout and stderr of this
    one.
    """
    old = plan.record
    with NewRunPlace(plan) as place:
        pid, code = run_launch(plan.launch, output)
        run, notes = place.find(pid)
        if run is None:
            raise LaunchError(
                f"run {old.id} could not be run again: its process recorded no run, and ended with {end_text(code)}"
            )
        new = Record(run)
        _check_comparable(old, new, code)
        verdict = judge(old.run, run, plan.tolerance)
        sources = changed_sources(plan, new)
        known = {entry.name for entry in plan.environment.differences if entry.kind == "library"}
        libraries = [entry for entry in compare_libraries(old, new) if entry.name not in known]
        differences = (*compare_flags(old, new), *compare_reads(old, new), *libraries)
        notes += [*verdict.notes, *cause_notes(plan, verdict, sources, differences)]
        run, refusal = _note_verdict(plan, new, verdict)
        return Reproduction(plan, run, verdict, differences, sources, (*notes, *refusal))


def _check_comparable(old: Record, new: Record, code: int) -> None:
    """Reject a new run that did not complete, or read other data."""
    if new.run.status == "FAILED" and old.run.status != "FAILED":
        cause = cause_of(new.run) or end_text(code)
        raise LaunchError(f"run {old.id} could not be run again: run {new.id} failed: {cause}")
    if new.run.status in (*CUT_OFF, "RUNNING"):
        raise LaunchError(
            f"run {old.id} was not run to its end again: run {new.id} is {new.run.status} ({end_text(code)})"
        )
    _check_same_data(old, new)


def _check_same_data(old: Record, new: Record) -> None:
    # Stock Sacred does not check resources itself.
    read = {content.name: content for content in new.resources}
    for content in old.resources:
        digests = {digest_of(content), digest_of(read.get(content.name, content))}
        if len(digests - {None}) > 1:  # a note of the plan names one that cannot be read
            raise LaunchError(
                f"run {new.id} read another {content.name!r} than run {old.id}: it has changed; restore it"
            )
    if old.fingerprint and new.fingerprint and old.fingerprint != new.fingerprint:
        raise LaunchError(
            f"run {new.id} was trained on other data than run {old.id}: the fingerprint is {new.fingerprint[:12]}, "
            f"recorded {old.fingerprint[:12]}; restore the original data"
        )


# ---------------------------------------------------------------------- the verdict


def _note_verdict(plan: Plan, new: Record, verdict: Verdict) -> tuple[Run, list[str]]:
    """Note a verdict with both runs; return the new one, and a note if the old one cannot be written to."""
    old, notes = plan.record.run, []
    entry = {
        "of": uid_of(old),
        "of_id": old.id,
        "by": uid_of(new.run),
        "by_id": new.id,
        "verdict": verdict.verdict,
        "reason": verdict.text.partition(": ")[2] if verdict.verdict == DIVERGED else "",
        "tolerance": verdict.tolerance.text,
        "mode": plan.mode,
        "time": datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds"),
    }
    if new.store is plan.record.store:
        try:
            new.store.note_reproduction(old, entry)
        except StoreError as error:  # as for somebody else's run in a shared folder
            notes.append(f"the verdict is noted with run {new.id} alone: {error}")
    return new.store.note_reproduction(new.run, entry), notes
