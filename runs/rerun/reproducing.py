"""Reproducing a past run: its code restored, its command run again with its config, and a verdict on what came out.

    with planned(store.get("3")) as plan:
        done = carry_out(plan)
    print(done.verdict.text)

The new run is one of the same store, with the old one as its parent; the verdict is noted with both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from observers.artifacts.store import ArtifactStore
from observers.artifacts.version import ArtifactError
from observers.record.identity import EXPECT_DATA_VARIABLE, PARENT_VARIABLE, RECORD_TO_VARIABLE, RESUME_VARIABLE
from observers.record.safe_paths import relative_path
from observers.record.schema import RUN
from runs.comparison.difference import diff
from runs.errors import LaunchError, StoreError
from runs.index.folders import read_json
from runs.rerun.environment import Differing, Environment, compare_environment, compare_switches
from runs.rerun.launching import (
    OBSERVERS,
    Launch,
    end_text,
    mainfile_of,
    recorded_launch,
    recorded_switches,
    run_launch,
)
from runs.rerun.restoring import Restored, restore
from runs.rerun.resuming import RESUME_SETTING, start_of
from runs.rerun.verdict import CUT_OFF, DIVERGED, IDENTICAL, Tolerance, Verdict, judge
from runs.stores.content import Content
from runs.stores.folder import FolderStore
from runs.stores.run import Run
from runs.transfer.copying import copy
from runs.transfer.uids import uid_of

__all__ = ["IN_PLACE", "RESTORED", "Plan", "Reproduction", "carry_out", "planned"]

RESTORED, IN_PLACE = "restored", "in place"
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a run is going to be reproduced.

    Attributes:
        run: The run.
        mode: Whether with its own sources, restored, or with today's, in place.
        restored: Its code; None in place.
        environment: What differs from the recorded one.
        launch: The process.
        record_to: The folder that the process records below.
        is_staged: Whether the new run goes from there into the store.
        notes: What could not be taken over, a sentence each.
    """

    run: Run
    mode: str
    restored: Restored | None
    environment: Environment
    launch: Launch
    record_to: Path
    is_staged: bool
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What came out.

    Attributes:
        plan: How it was done.
        run: The new run, in the store of the old one.
        verdict: Whether it is what the old one was.
        switches: Determinism switches that were not the same.
        sources: The unified diff of each source that was not the same, recorded to new.
        notes: What else is to be said, a sentence each.
    """

    plan: Plan
    run: Run
    verdict: Verdict
    switches: tuple[Differing, ...]
    sources: dict[str, str]
    notes: tuple[str, ...]


@contextlib.contextmanager
def planned(run: Run, *, in_place: bool = False, keep: Path | None = None) -> Iterator[Plan]:
    """Restore a run's code and give what is to be started; nothing runs yet. What was restored goes in the end.

    Args:
        run: The run.
        in_place: Whether today's sources are taken in the place of its own.
        keep: An empty folder to restore into, which stays.

    Raises:
        LaunchError: If it cannot be reproduced.
        StoreError: If its record cannot be read.
    """
    run = run.store.get(run.id)
    _refuse(run)
    with contextlib.ExitStack() as stack:
        folder = _working_folder(keep, stack)
        config = folder / "config.json"
        start, notes = _start(run)
        config.write_text(json.dumps(run.config.to_dict(), indent=2))
        restored = None if in_place else restore(run, folder / "code")
        script = restored.script if restored is not None else _script_of_today(run)
        notes += [] if restored is None else restored.notes
        notes += _compare_resources(run, restored)
        record_to, is_staged = _place_for_record(run, folder, in_place=in_place)
        options = [f"--file_storage={record_to}"] if is_staged or _is_of_lab(run) else []
        launch = recorded_launch(
            run,
            script=script,
            config=config,
            # Where the setting would go on with whatever unfinished run there is, the run begins anew.
            updates=[f"{RESUME_SETTING}={start!r}"] if run[f"config.{RESUME_SETTING}"] else [],
            options=options,
            environment=_environment(run, record_to),
            without=[*OBSERVERS, "--enforce_clean"],
            # What lies beside the experiment in its repository is restored, too, and may be imported from there.
            search=[] if restored is None else [restored.folder],
        )
        notes += launch.notes
        mode = RESTORED if restored is not None else IN_PLACE
        yield Plan(run, mode, restored, compare_environment(run), launch, record_to, is_staged, tuple(notes))


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
    old = plan.run
    if plan.is_staged:
        _fetch_used_versions(old, plan.record_to)
    before = {run.id for run in old.store.find(columns=())}
    pid, code = run_launch(plan.launch, output)
    new = _find_new(plan, pid, before)
    if new is None:
        raise LaunchError(
            f"run {old.id} could not be run again: its process recorded no run, and ended with {end_text(code)}"
        )
    _refuse_unlike(old, new, code)
    verdict = judge(old, new, tolerance)
    changed = diff(old, new).sources
    switches = tuple(compare_switches(old, new))
    notes = list(verdict.notes)
    if changed and plan.mode == RESTORED:
        notes.append(f"the new run was not made of the recorded sources alone: {_some(changed)} differ")
    if plan.mode == IN_PLACE and verdict.verdict != IDENTICAL:
        notes.append(_attribution(plan, changed, switches))
    entry = _entry(plan, new, verdict)
    old.store.note_reproduction(old, entry)
    return Reproduction(plan, old.store.note_reproduction(new, entry), verdict, switches, changed, tuple(notes))


# ---------------------------------------------------------------------- before


def _refuse(run: Run) -> None:
    if run.is_living:
        raise LaunchError(f"run {run.id} is running; reproduce it when it has ended")
    if run.status == "QUEUED":
        raise LaunchError(f"run {run.id} is queued and was never started: there is nothing to compare with")
    if not run.is_whole:
        raise LaunchError(f"run {run.id} is not whole: it says {run.status}; repeat what was interrupted")


def _working_folder(keep: Path | None, stack: contextlib.ExitStack) -> Path:
    try:
        if keep is None:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reproduce-"))).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise LaunchError(f"{keep} is not empty; give another folder to --keep")
    except OSError as error:
        raise LaunchError(f"{keep or 'a temporary folder'} cannot be made ({error.strerror})") from error
    return keep.resolve()


def _start(run: Run) -> tuple[str | None, list[str]]:
    """Return the state of another run that a run started from, or None, and what is to be said of it.

    Raises:
        LaunchError: If it is not there.
    """
    setting = run[f"config.{RESUME_SETTING}"]
    if not isinstance(setting, str) or setting == "auto":  # which may not find another unfinished run now
        return None, []
    kept = start_of(run)
    if kept is not None:
        return str(kept.absolute()), []
    if not (Path(run.document.get("cwd") or "") / setting).is_file():
        raise LaunchError(f"run {run.id} started from the state {setting}, which is not there; put it back")
    return setting, [f"it cannot be told whether {setting}, which the run started from, is still what it was"]


def _script_of_today(run: Run) -> Path:
    name = mainfile_of(run)
    places = [Path(str(run["experiment.base_dir"] or "")), Path.cwd()]
    for place in places:
        if (place / name).is_file():
            return (place / name).absolute()
    raise LaunchError(
        f"{name} is neither in {places[0]} nor in {places[1]}; start this in the folder of the experiment"
    )


def _is_of_lab(run: Run) -> bool:
    """Tell whether the experiment was one of the lab, and not stock Sacred's."""
    options = run["meta.options"]
    return isinstance(options, Mapping) and "--tensorboard" in options


def _place_for_record(run: Run, folder: Path, *, in_place: bool) -> tuple[Path, bool]:
    """Return the folder that the process is to record below, and whether the run goes from there into the store."""
    # Sources from before a record said `cwd`, and stock Sacred, do not look at the variable.
    is_heard = run.uid is not None and "copied_from" not in run.document and (in_place or "cwd" in run.document)
    if isinstance(run.store, FolderStore) and is_heard:
        return run.store.folder.resolve(), False
    staging = folder / "record"
    staging.mkdir()
    return staging, True


def _environment(run: Run, record_to: Path) -> dict[str, str]:
    found = {**recorded_switches(run), RECORD_TO_VARIABLE: str(record_to), RESUME_VARIABLE: ""}
    found[PARENT_VARIABLE] = run.uid or ""
    found[EXPECT_DATA_VARIABLE] = _fingerprint(run) or ""
    return found


def _fingerprint(run: Run) -> str | None:
    found = run["info.data.fingerprint"]
    return found if isinstance(found, str) and found else None


def _compare_resources(run: Run, restored: Restored | None) -> Iterator[str]:
    """Compare the files that the run read with what they are now; yield which of them are not there.

    Raises:
        LaunchError: If one has another content.
    """
    base = str(run["experiment.base_dir"] or "")
    for content in run.stored("resources"):
        there = [Path(content.name)]
        if restored is not None and base and Path(content.name).is_relative_to(base):
            path = relative_path(Path(content.name).relative_to(base).as_posix())
            up = len(mainfile_of(run).parts) - 1
            there.insert(0, restored.script.parents[up] / path) if path is not None else None
        found = [path for path in there if path.is_file()]
        try:
            recorded = content.sha256()
        except (StoreError, OSError):
            yield f"the content of {content.name!r}, which the run read, is not in its record: it is not compared"
            continue
        if not found:
            yield f"{content.name!r}, which the run read, is not there"
        elif all(Content(path.name, lambda path=path: path.open("rb")).sha256() != recorded for path in found):
            raise LaunchError(
                f"{content.name!r}, which the run read, has another content now than the recorded one (sha256 "
                f"{recorded[:12]}); put back what it was"
            )


def _fetch_used_versions(run: Run, record_to: Path) -> None:
    """Bring the versions of artifacts that the run used to where its process looks for them."""
    entries = run["artifacts_used"]
    for entry in entries if isinstance(entries, list) else ():
        try:
            ArtifactStore(record_to).take(run.fetch_version(entry, record_to))
        except ArtifactError as error:
            raise LaunchError(f"run {run.id} used an artifact that is not there: {error}") from error


# ---------------------------------------------------------------------- after


def _find_new(plan: Plan, pid: int, before: set[str]) -> Run | None:
    old = plan.run
    if not plan.is_staged:
        found = [run for run in old.store.find([("parent", "==", old.uid)]) if run.id not in before]
        # Another reproduction of the same run, or a fork, may have begun beside this one.
        own = [run for run in found if (run.lease or {"pid": pid}).get("pid") == pid]
        return old.store.get(own[0].id) if own else None
    with FolderStore(plan.record_to) as staging:
        recorded = staging.find(sort="start_time")
        if not recorded:
            return None
        # It may have started others, which are recorded beside it.
        found = next((run for run in recorded if (run.lease or {}).get("pid") == pid), recorded[0])
        if old.uid and not found["parent"]:
            _adopt(plan.record_to / found.id / RUN, old.uid)
        # What its own observer recorded in the store is not copied there once more.
        new = [run for run in old.store.find() if run.id not in before]
        own = [
            run for run in new if (run.uid is None and run.name == old.name) or (old.uid and run["parent"] == old.uid)
        ]
        return own[0] if own else copy(staging.get(found.id), old.store).run


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
    recorded, now = _fingerprint(old), _fingerprint(new)
    if recorded and now and recorded != now:
        raise LaunchError(
            f"run {new.id} was trained on other data than run {old.id}: the fingerprint is {now[:12]}, recorded "
            f"{recorded[:12]}; put back what was there"
        )


def _attribution(plan: Plan, sources: Mapping[str, str], switches: tuple[Differing, ...]) -> str:
    """Say whether code or environment make the difference of a run with today's sources."""
    loud = [one.name for one in (*plan.environment.loud, *switches)]
    if sources and loud:
        return (
            f"code ({_some(sources)}) and environment ({_some(loud)}) both differ; without --in-place the recorded "
            "sources are run in today's environment, which tells them apart"
        )
    if sources:
        return f"the environment is the same: it comes from the code ({_some(sources)})"
    if loud:
        return f"the sources are the same: it comes from the environment ({_some(loud)})"
    return "sources and environment are the same: it comes from what is not repeated bit for bit, or from outside"


def _some(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


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
