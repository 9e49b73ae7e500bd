"""Reproduce a past run: run the plan, judge the result, look for causes of a difference, and note the verdict.

    with planned(Record(store.get("3")), Tolerance()) as plan:
        done = carry_out(plan)
    print(done.verdict.text)

The new run goes into the same store and has the old one as its parent.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.schema import RUN, read_json_if_whole
from sacristan.runs.comparison import diff
from sacristan.runs.errors import LaunchError, StoreError
from sacristan.runs.query import list_of, mapping_of
from sacristan.runs.query.texts import list_text
from sacristan.runs.rerun import Record, digest_of, is_content_of, is_written_by
from sacristan.runs.rerun.environment import (
    Differing,
    compare_flags,
    compare_libraries,
    compare_reads,
    compare_settings,
    parsed_sources,
)
from sacristan.runs.rerun.judging import cause_of, judge
from sacristan.runs.rerun.launching import end_text, run_launch
from sacristan.runs.rerun.planning import Plan, planned
from sacristan.runs.rerun.verdict import CUT_OFF, DIVERGED, IDENTICAL, Tolerance, Verdict
from sacristan.runs.stores import Run, Store
from sacristan.runs.stores.opening import open_store
from sacristan.runs.transfer.copying import copy, uid_of

_log = logging.getLogger(__name__)


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


def reproduce(
    run: Run,
    tolerance: Tolerance | None = None,
    *,
    in_place: bool = False,
    keep: str | Path | None = None,
    settings: Sequence[str] = (),
    output: int | None = None,
) -> Reproduction:
    """Run a past run again from its record, wait until it ends, and compare it with the original.

    The sources are restored into a separate folder, and the command runs there with the recorded config. The new run
    goes into the same store with the old one as its parent, and the verdict is noted with both.

    Args:
        run: A run that has ended.
        tolerance: Allowed distance of metrics and the result from the recorded ones; by default a thousandth.
        in_place: Whether to run today's sources instead of the recorded ones.
        keep: An empty folder to restore the sources into, which stays; by default a temporary one.
        settings: URLs that the config was recorded without the passwords of, see `resume`.
        output: File descriptor for everything that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The verdict, the new run, and the differences in sources and environment.

    Raises:
        LaunchError: If the sources or data are missing or differ, or the process did not start, was interrupted, or
            failed where the old one did not.
        RunsError: If the tolerance names a metric that the run lacks.
        StoreError: If the store cannot be read or written.

    Example:
        with open_store("my_runs") as store:
            done = reproduce(store.get(1), Tolerance(rtol=1e-6))
            print(done.verdict.text, done.run.id)
    """
    record = Record(run.store.get(run.id))  # it may have changed since it was read
    folder = None if keep is None else Path(keep)
    with planned(record, tolerance or Tolerance(), in_place=in_place, keep=folder, settings=settings) as plan:
        for note in (*plan.notes, *plan.environment.notes):
            _log.warning("%s", note)
        return carry_out(plan, output)


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
        sources = source_differences(plan, new)
        known = {entry.name for entry in plan.environment.differences if entry.kind == "library"}
        libraries = [entry for entry in compare_libraries(old, new) if entry.name not in known]
        settings = compare_settings(old, new)
        differences = (*settings, *compare_flags(old, new), *compare_reads(old, new), *libraries)
        notes += [*verdict.notes, *cause_notes(plan, verdict, sources, differences)]
        run, refusal = _note_verdict(plan, new, verdict)
        return Reproduction(plan, run, verdict, differences, sources, (*notes, *refusal))


def _check_comparable(old: Record, new: Record, code: int) -> None:
    """Reject a new run that did not complete, or read other data."""
    if new.run.status == "FAILED" and old.run.status != "FAILED":
        cause = cause_of(new.run) or end_text(code)
        raise LaunchError(f"run {old.id} could not be run again: run {new.id} failed: {cause}")
    if new.script_start is not None and new.run.status == "DEAD" and code == 0:
        raise LaunchError(
            f"run {old.id} cannot be run again: its script replaces its process by another program (os.exec), which "
            "ends its record; record that program itself"
        )
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


class NewRunPlace(contextlib.AbstractContextManager["NewRunPlace"]):
    """Context manager around the process of a plan; open it before the process starts.

    The process records into the store itself, or beside it into a staging folder, from which the run is copied. Where
    the store cannot be written to, the run goes into a folder of runs of its own, which is open until the block ends.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._old, self._store = plan, plan.record.run, plan.record.store
        with contextlib.ExitStack() as self._stack:
            self._own = self._open_own() if plan.is_read_only else None
            if plan.is_staged:
                self._fetch_used_versions()
            self._before = {run.id for run in self._store.find(columns=())}
            self._stack = self._stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open_own(self) -> Store:
        return self._stack.enter_context(open_store(self._plan.own_store, create=True))

    def _fetch_used_versions(self) -> None:
        """Put the artifact versions that the old run used where the process looks for them."""
        folder = self._plan.record_to
        for entry in list_of(self._old["artifacts_used"]):
            try:
                ArtifactStore(folder).take(self._old.fetch_version(entry, folder))
            except (ArtifactError, StoreError) as error:
                raise LaunchError(f"run {self._old.id} used an artifact that does not exist: {error}") from error

    def find(self, pid: int) -> tuple[Run | None, list[str]]:
        """Return the run that the ended process recorded, copied if it is staged, None without one; and notes."""
        return self._find_staged(pid) if self._plan.is_staged else (self._find_recorded(pid), [])

    def _find_recorded(self, pid: int) -> Run | None:
        children = self._store.find([("parent", "==", self._old.uid)])
        # Another reproduction of the same run, or a fork, may have begun beside this one.
        own = [run for run in children if run.id not in self._before and (not run.lease or is_written_by(run, pid))]
        run = self._same_of_process(own)
        return None if run is None else self._store.get(run.id)

    def _same_of_process(self, runs: Sequence[Run]) -> Run | None:
        """Return the run among those of a process that is the old one again: a script may start several."""
        start = self._plan.record.script_start
        if start is None:
            return runs[0] if runs else None
        starts = ((run, Record(run).script_start) for run in runs)
        return next((run for run, new in starts if new is not None and new.number == start.number), None)

    def _find_staged(self, pid: int) -> tuple[Run | None, list[str]]:
        old = self._old
        with open_store(self._plan.record_to) as staging:
            recorded = staging.find(sort="start_time")
            if not recorded:
                return None, []
            # It may have started others, which are recorded beside it.
            own = [entry for entry in recorded if is_written_by(entry, pid)]
            run = self._same_of_process(own) or recorded[0]
            if old.uid and not run["parent"]:
                # Stock Sacred names no parent.
                path = self._plan.record_to / run.id / RUN
                path.write_text(json.dumps({**(read_json_if_whole(path) or {}), "parent": old.uid}, indent=2))
            # A run that its own observer recorded in the store is not copied there a second time.
            delivered = next((new for new in self._store.find() if self._is_new_run(new)), None)
            return self._copy(staging.get(run.id)) if delivered is None else (delivered, [])

    def _is_new_run(self, run: Run) -> bool:
        """Tell whether a run of the store may be the one that the process recorded into a database itself."""
        if run.id in self._before:
            return False
        if run.uid is None and run.name == self._old.name:
            return True
        return self._old.uid is not None and run["parent"] == self._old.uid

    def _copy(self, run: Run) -> tuple[Run, list[str]]:
        if self._own is not None:
            return copy(run, self._own).run, []
        try:
            return copy(run, self._store).run, []
        except StoreError as error:
            own = self._open_own()
            return copy(run, own).run, [
                f"the new run could not be put into {self._store.where} ({error}); it is in {own.where}"
            ]


# ---------------------------------------------------------------------- causes of a different result


# The lab's own packages, whose results do not depend on the order of sets.
_LAB = ("configs/", "experiments/", "ingredients/", "observers/", "runs/", "sacristan/")
# Functions that turn a set into something without an order, or with a fixed one.
_ORDERLESS = frozenset(("sorted", "len", "min", "max", "any", "all", "set", "frozenset"))


def source_differences(plan: Plan, new: Record) -> dict[str, str]:
    """Return the diffs of sources between a run and its reproduction, unless both only imported different parts."""
    old = plan.record
    base = None if plan.restored is None else plan.restored.base

    def is_other(name: str) -> bool:
        if name in old.sources:
            return name in new.sources
        # Files that were restored from git belong to the record, imported or not.
        return base is None or not is_content_of(base / name, new.sources[name])

    diffs = diff(old.run, new.run).sources
    return diffs if any(is_other(name) for name in diffs) else {}


def cause_notes(
    plan: Plan, verdict: Verdict, sources: Mapping[str, str], differences: tuple[Differing, ...]
) -> Iterator[str]:
    """Yield what may have caused a verdict; `differences` are those of the environment that only the new run showed."""
    if verdict.verdict == DIVERGED:
        yield from _suspect_session(plan.record, verdict)
    loud = list_text(entry.name for entry in (*plan.environment.loud, *differences))
    if plan.restored is None:
        if verdict.verdict != IDENTICAL:
            yield _cause_in_place(plan.record, list_text(sources), loud)
    elif sources:
        yield f"the new run was not made of the recorded sources alone: {list_text(sources)} differ"
    elif verdict.verdict == DIVERGED and not loud:
        yield _unrecorded(plan.record)


def _suspect_session(record: Record, verdict: Verdict) -> Iterator[str]:
    """Yield which session of a resumed run may have differed from an unbroken run."""
    sessions = record.run.sessions
    if len(sessions) < 2:
        return
    last = verdict.first.step if verdict.first else None
    begun = [number for number, session in enumerate(sessions, 1) if number > 1 and _began_before(session, last)]
    if not begun:
        yield f"the first difference lies in session 1 of {len(sessions)}, so no resuming explains it"
        return
    number, session = begun[-1], sessions[begun[-1] - 1]
    step = session.get("step")
    at = f" at step {step}" if isinstance(step, int) else ""
    environment = mapping_of(session.get("changed_environment")).items()
    names = [f"{part} {name}" for part, entries in environment for name in mapping_of(entries)]
    changed = list_text([*(session.get("changed_sources") or ()), *names])
    why = f"{changed} had changed by then" if changed else "if it was not resumed exactly, an unbroken run differs"
    yield (
        f"run {record.id} was resumed: its session {number} of {len(sessions)} began{at}, before the first difference, "
        f"and is a suspect ({why}); to check the resuming of such a run: sacristan resume --verify"
    )


def _began_before(session: Mapping[str, Any], step: float | None) -> bool:
    begun = session.get("step")
    return step is None or not isinstance(begun, int) or begun < step


def _cause_in_place(record: Record, code: str, environment: str) -> str:
    """Return the cause that a run of today's sources differs, where `code` and `environment` name the differences."""
    if code and environment:
        return (
            f"code ({code}) and environment ({environment}) both differ; to tell them apart, run the recorded sources "
            "in today's environment, without --in-place"
        )
    if code:
        return f"the environment is the same: the difference comes from the code ({code})"
    if environment:
        return f"the sources are the same: the difference comes from the environment ({environment})"
    libraries = "libraries on PYTHONPATH or installed in editable form are not in the record, and may have changed; "
    return f"{libraries if record.libraries is None else ''}{_unrecorded(record)}"


def _unrecorded(record: Record) -> str:
    """Return what may have changed a result although no record shows a difference."""
    text = (
        "nothing recorded differs; a record does not include the time, random generators without a seed, environment "
        "variables that the sources do not name, files outside of its folders and those that other processes opened, "
        "and the network"
    )
    hash_seed = record.part("determinism").get("PYTHONHASHSEED", "0")
    files = hash_order_sources(record) if hash_seed in (None, "", "random") else []
    if not files:
        return text
    return (
        f"{text}; {list_text(files)} may depend on the order of a set or on hash(), which differ from process to "
        f"process: PYTHONHASHSEED was not set for run {record.id}; set it before a run to reproduce: PYTHONHASHSEED=0 "
        "python ..."
    )


def hash_order_sources(record: Record) -> list[str]:
    """Return the recorded sources that call `hash` or depend on the order of a set, without the lab's own packages."""
    return [
        name
        for name, tree in parsed_sources(record)
        if (name == record.mainfile_text or not name.startswith(_LAB)) and any(_uses_hash_order(tree))
    ]


def _uses_hash_order(tree: ast.AST) -> Iterator[bool]:
    """Yield for each expression of a tree whether it may depend on hashes."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):  # parents come before their children
        if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _name(node) in _ORDERLESS):
            harmless.update(ast.iter_child_nodes(node))
        called = _name(node) if isinstance(node, ast.Call) else ""
        is_set = isinstance(node, ast.Set | ast.SetComp) or called in ("set", "frozenset")
        yield (is_set and node not in harmless) or called == "hash"


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""
